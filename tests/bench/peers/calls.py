"""The attention calls that benchmarks compare, behind one signature.

A call takes q, k, v [batch, heads, tokens, head_dim] and log gates [batch, heads, tokens].
"""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import inputs

# An op that was built in place is found, too; an installed package comes first.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "kernels/torch/torch-ext"))
Call = Callable[..., torch.Tensor]


def our_op() -> Call:
    return importlib.import_module("fox_attention").forgetting_attention


def bound_options(acp: str, threshold: float | torch.Tensor | None) -> dict[str, Any]:
    """Our op's arguments for off, paper or certified."""
    return {"off": {}, "paper": {"adaptive_threshold": threshold},
            "certified": {"adaptive_threshold": "auto", "bound": "certified"}}[acp]


def ours(acp: str, threshold: float, **options: Any) -> Call:
    """Our op under a bound, told the largest logit of the inputs below; `options` are its own."""
    op, options = our_op(), {**options, **bound_options(acp, threshold)}
    return lambda q, k, v, log_gates: op(q, k, v, log_gates, head_first=True,
                                         max_logit=inputs.max_logit(q.shape[-1]), **options)


def official(acp: str, threshold: float, **options: Any) -> Call:
    """The official kernel, whose package must be importable (inputs.use_official)."""
    op = importlib.import_module("forgetting_transformer.ops.forgetting_attention"
                                 ).forgetting_attention
    bound = threshold if acp == "paper" else None
    return lambda q, k, v, log_gates: op(q, k, v, log_gates, head_first=True,
                                         adaptive_threshold=bound, **options)


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
          _log_gates: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
