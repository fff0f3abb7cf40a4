"""Forgetting attention for PyTorch: forward and backward with adaptive computation pruning."""

from .attention import forgetting_attention, pruned_share
from .operators import HAS_CUDA_KERNELS

__all__ = ["HAS_CUDA_KERNELS", "forgetting_attention", "pruned_share"]
__version__ = "0.2.0"
