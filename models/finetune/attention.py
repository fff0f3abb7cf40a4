"""Finds fox_attention: the package with its kernels if it is installed, else the reference that
kernels/torch has in PyTorch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("fox_attention") is None:
    _ROOT = Path(__file__).resolve().parents[2]
    sys.path.append(str(_ROOT / "kernels" / "torch" / "torch-ext"))

from fox_attention import (  # noqa: E402
    HAS_CUDA_KERNELS, forgetting_attention, pruned_share)

__all__ = ["HAS_CUDA_KERNELS", "forgetting_attention", "pruned_share"]
