"""A back end of flash-linear-attention (FLA): `import fox_attention.fla` registers it.

FLA dispatches the two passes of its attention (parallel_attn, parallel_forgetting_attn, the layers
and models above) one by one. This back end serves the calls with a gate that the CUDA kernels can
serve, pruned by the certified bound (kernels/docs/acp.md); FLA's own kernels serve all others.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch.nn.functional import pad

from ._ops import ops
from .operators import HAS_CUDA_KERNELS
from .pruning import max_norms

try:
    from fla.backends import BaseBackend, register
except ImportError as error:
    raise ImportError("fox_attention.fla needs fla-core 0.6 or later with Triton, pip install "
                      f"'fla-core[cuda]>=0.6': {error}") from error

HEAD_DIMS = (32, 64, 128)
LN_2 = math.log(2)
# Logarithm of the attention mass that a row may lose to pruning: forgetting_attention's default.
LOG_EPS = -10.0


def _refusal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g_cumsum: torch.Tensor | None,
             scale: float, window_size: int | None) -> str | None:
    """Why the kernels cannot serve a forward call; None if they can."""
    if not HAS_CUDA_KERNELS:
        return "fox_attention was built without its CUDA kernels"
    if g_cumsum is None:
        return "there is no gate"
    if window_size is not None:
        return "there is a window"
    if not q.is_cuda or {x.dtype for x in (q, k, v)} != {torch.bfloat16}:
        return f"q, k and v must be bfloat16 on CUDA, not {q.dtype} on {q.device}"
    if q.shape[3] not in HEAD_DIMS or k.shape != v.shape:
        return f"head sizes must be equal and one of {HEAD_DIMS}, not {q.shape[3]}, {v.shape[3]}"
    if scale <= 0 or q.numel() == 0:
        return "the scale must be positive and there must be tokens"
    return None


def _log_gates(g_cumsum: torch.Tensor, cu_seqlens: torch.Tensor | None) -> torch.Tensor:
    """The gates' logarithms [batch, tokens, heads], from FLA's sums of them in log2 units.

    Each sequence has sums of its own, so the difference across its beginning means nothing; but no
    logit contains its first gate. Rounded sums lose no more here than in FLA, because sums of
    differences are differences of the sums.
    """
    # One more token behind the last: there may be empty sequences that begin there.
    gates = pad(g_cumsum.diff(dim=1) * LN_2, (0, 0, 1, 1))
    if cu_seqlens is not None:
        gates.index_fill_(1, cu_seqlens[:-1].long(), 0)
    return gates[:, :-1]


def _sum_gradients(d_log_fgate: torch.Tensor) -> torch.Tensor:
    """The gradients of FLA's sums, natural units: log f_t is the sum at t minus that at t - 1.

    Gradients of a sequence's first gate are 0, so no sequence reaches into the one before.
    """
    return d_log_fgate - pad(d_log_fgate[:, 1:], (0, 0, 0, 1))


def _options(q: torch.Tensor, cu_seqlens: torch.Tensor | None, scale: float) -> tuple[object, ...]:
    """The operators' arguments (operators.py) from seq_begin to deterministic."""
    begin = end = None
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.int()
        begin, end = cu_seqlens[:-1], cu_seqlens[1:]
    return (begin, end, cu_seqlens is not None, None, max_norms(q, cu_seqlens), float(scale),
            LOG_EPS, torch.are_deterministic_algorithms_enabled())


def _sinks(sink_bias: torch.Tensor | None) -> torch.Tensor | None:
    """Converts FLA's logits, in log2 units, for the operators."""
    return None if sink_bias is None else sink_bias.float() * LN_2


@register("attn")
class FoxAttentionBackend(BaseBackend):
    """FLA calls these methods with the arguments of its own functions of these names.

    The operators' state takes the place of the rows' log-sum-exp, which FLA hands from forward to
    backward and reads nowhere else. So a backward call is served here if and only if its forward
    call was.
    """

    backend_type = "fox_attention"
    priority = 0  # before FLA's others

    def parallel_attn_fwd_verifier(
            self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
            g_cumsum: torch.Tensor | None, sink_bias: torch.Tensor | None, scale: float,
            window_size: int | None = None, cu_seqlens: torch.Tensor | None = None,
            chunk_indices: torch.Tensor | None = None) -> tuple[bool, str | None]:
        """True if the call is served, else False and the reason, which FLA logs once."""
        del sink_bias, cu_seqlens, chunk_indices  # served, whatever they are
        reason = _refusal(q, k, v, g_cumsum, scale, window_size)
        return reason is None, reason

    def parallel_attn_fwd(
            self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g_cumsum: torch.Tensor,
            sink_bias: torch.Tensor | None, scale: float, window_size: int | None = None,
            cu_seqlens: torch.Tensor | None = None, chunk_indices: torch.Tensor | None = None
            ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output [batch, tokens, heads, head_dim], and the state, bytes [size]."""
        del window_size, chunk_indices
        return ops.forward(q, k, v, _log_gates(g_cumsum, cu_seqlens),
                           *_options(q, cu_seqlens, scale), None, _sinks(sink_bias))

    def parallel_attn_bwd_verifier(
            self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
            g_cumsum: torch.Tensor | None, lse: torch.Tensor, *arguments: object,
            **options: object) -> tuple[bool, str | None]:
        """True if `lse` is a state. Other arguments may be any, so that no future one of FLA's
        sends a state to its kernels."""
        del q, k, v, o, g_cumsum, arguments, options
        return lse.dtype == torch.uint8, "another back end served the forward pass"

    def parallel_attn_bwd(
            self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
            g_cumsum: torch.Tensor, lse: torch.Tensor, do: torch.Tensor,
            sink_bias: torch.Tensor | None, scale: float, window_size: int | None = None,
            chunk_size: int = 128, cu_seqlens: torch.Tensor | None = None,
            chunk_indices: torch.Tensor | None = None
            ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k, v, the sums of gates and the sinks; None if there are no sinks."""
        del window_size, chunk_size, chunk_indices
        dq, dk, dv, d_log_fgate, d_sinks = ops.backward(
            do, q, k, v, _log_gates(g_cumsum, cu_seqlens), o, lse,
            *_options(q, cu_seqlens, scale), _sinks(sink_bias))
        return dq, dk, dv, _sum_gradients(d_log_fgate), None if sink_bias is None else d_sinks


if not HAS_CUDA_KERNELS:
    warnings.warn("fox_attention was built without its CUDA kernels: FLA's own serve every call",
                  stacklevel=2)
