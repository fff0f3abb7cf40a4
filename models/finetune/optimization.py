"""AdamW's parameter groups and the learning rate, as in the paper's official configuration, and the
order of sums."""

from __future__ import annotations

import math
import os

import torch
from torch import nn

BETAS = (0.9, 0.95)


def make_optimizer(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW. Matrices and embeddings decay; biases, norms and constant forget gates do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS, fused=parameters[0].is_cuda)


def warmup_steps(wanted: int, total: int) -> int:
    """Steps of warmup: at most a tenth of all, or a short training would not reach its peak."""
    return max(1, min(wanted, total // 10))


def learning_rate(step: int, total: int, warmup: int, peak: float) -> float:
    """The rate of a step: linear over warmup_steps(warmup, total), then a cosine to 0 at `total`.

    `step` counts from 0; the first step has a rate above 0.
    """
    warmup = warmup_steps(warmup, total)
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * 0.5 * (1 + math.cos(math.pi * done))


def set_arithmetic(fast: bool) -> None:
    """Sets how products and sums are computed. Unless `fast`, every run has equal bits."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if not fast:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(not fast)
    torch.utils.deterministic.fill_uninitialized_memory = False
