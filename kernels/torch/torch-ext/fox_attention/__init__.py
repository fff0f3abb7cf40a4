"""Forgetting attention for PyTorch: forward and backward with adaptive computation pruning."""

from .attention import forgetting_attention, pruned_share
from ._ops import has_cuda_kernels

__all__ = ["forgetting_attention", "has_cuda_kernels", "pruned_share"]
__version__ = "0.1.0"
