"""The function that models call: checks arguments, computes thresholds, selects the operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch.autograd import forward_ad

from ._ops import ops
from .operators import HAS_CUDA_KERNELS
from .pruning import PAGE, TILE, auto_threshold, first_pages, max_norms
from .reference import sequence_ranges

Threshold = Literal["auto"] | float | torch.Tensor | None


def _require(condition: bool, error: type[Exception], message: Callable[[], str]) -> None:
    """Raises unless `condition`. The message is made only then: torch.compile would specialise on
    its sizes."""
    if not condition:
        raise error(message())


def _refuse_tangents(*tensors: torch.Tensor) -> None:
    """Refuses forward-mode gradients: the operators have none, and PyTorch would take tangents as
    zeros."""
    if torch.compiler.is_compiling():  # which cannot trace forward mode
        return
    _require(all(forward_ad.unpack_dual(x).tangent is None for x in tensors), RuntimeError,
             lambda: "forgetting_attention has no forward-mode derivatives (jvp): use backward()")


def _check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                   log_fgate: torch.Tensor, sinks: torch.Tensor | None = None) -> None:
    """The arguments, with heads as the last but one dimension."""
    _refuse_tangents(q, k, v, log_fgate, *(() if sinks is None else (sinks,)))
    for name, x in (("q", q), ("k", k), ("v", v)):
        _require(x.ndim == 4, ValueError,
                 lambda: f"{name} must have 4 dimensions, but has {x.ndim}")
        _require(x.is_floating_point(), TypeError,
                 lambda: f"{name} must be floating point, not {x.dtype}")
        _require(x.dtype == q.dtype and x.device == q.device, TypeError,
                 lambda: "q, k and v must agree in dtype and device, but q is "
                 f"{q.dtype} on {q.device} and {name} is {x.dtype} on {x.device}")
    _require(k.shape == v.shape, ValueError,
             lambda: f"k and v must have one shape, but have {tuple(k.shape)} and {tuple(v.shape)}")
    _require(q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3], ValueError,
             lambda: "q, k and v must agree in batch and head size, but q has shape "
             f"{tuple(q.shape)} and k {tuple(k.shape)}")
    _require(k.shape[2] > 0 and q.shape[2] % k.shape[2] == 0, ValueError,
             lambda: f"the number of query heads ({q.shape[2]}) must be a multiple of the number "
             f"of kv heads ({k.shape[2]})")
    _require(q.shape[1] <= k.shape[1], ValueError,
             lambda: f"q must not be longer than k, but has {q.shape[1]} tokens, not {k.shape[1]}")
    gates = (k.shape[0], k.shape[1], q.shape[2])
    _require(log_fgate.shape == gates, ValueError,
             lambda: "log_fgate must have a gate for each key and query head, (batch, tokens, "
             f"heads) = {gates}, but has shape {tuple(log_fgate.shape)} (order without head_first)")
    allowed = (torch.float32, torch.float64) if q.dtype == torch.float64 else (torch.float32,)
    _require(log_fgate.dtype in allowed, TypeError,
             lambda: f"log_fgate must be torch.float32, not {log_fgate.dtype}; cast before "
             "logsigmoid, torch.nn.functional.logsigmoid(logits.float())")
    _require(log_fgate.device == q.device, TypeError,
             lambda: f"log_fgate is on {log_fgate.device}, q on {q.device}")
    if sinks is None:
        return
    _require(sinks.shape == (q.shape[2],), ValueError,
             lambda: f"sinks must have shape ({q.shape[2]},), one per query head, not "
             f"{tuple(sinks.shape)}")
    _require(sinks.dtype == log_fgate.dtype and sinks.device == q.device, TypeError,
             lambda: f"sinks must be {log_fgate.dtype} on {q.device}, as log_fgate, but is "
             f"{sinks.dtype} on {sinks.device}")


def _check_sequences(q: torch.Tensor, k: torch.Tensor, seq_start: torch.Tensor | None,
                     cu_seqlens: torch.Tensor | None) -> None:
    if seq_start is not None:
        _require(cu_seqlens is None, ValueError,
                 lambda: "seq_start and cu_seqlens exclude each other")
        _require(seq_start.shape == (q.shape[0],), ValueError,
                 lambda: f"seq_start must have shape ({q.shape[0]},), not {tuple(seq_start.shape)}")
        _require(not seq_start.is_floating_point(), TypeError,
                 lambda: f"seq_start must hold integers, not {seq_start.dtype}")
    if cu_seqlens is None:
        return
    _require(cu_seqlens.dtype == torch.int32 and cu_seqlens.ndim == 1 and
             cu_seqlens.shape[0] >= 2, ValueError,
             lambda: "cu_seqlens must be int32 of shape (sequences + 1,), not "
             f"{cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}")
    _require(cu_seqlens.device == q.device, TypeError,
             lambda: f"cu_seqlens is on {cu_seqlens.device}, q on {q.device}")
    _require(q.shape[0] == 1, ValueError,
             lambda: f"with cu_seqlens the batch must be 1, not {q.shape[0]}: sequences are packed "
             "one behind the other")
    _require(q.shape[1] == k.shape[1], ValueError, lambda: "with cu_seqlens q must be as long as k")


def _sequences(k: torch.Tensor, seq_start: torch.Tensor | None,
               cu_seqlens: torch.Tensor | None
               ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Begin and end of each sequence, int32 [sequences], on the device; None: whole rows."""
    if cu_seqlens is not None:
        return cu_seqlens[:-1], cu_seqlens[1:]
    if seq_start is None:
        return None, None
    begin = seq_start.to(device=k.device, dtype=torch.int32).clamp(0, k.shape[1])
    return begin, torch.full_like(begin, k.shape[1])


def _per_head(name: str, value: float | torch.Tensor, q: torch.Tensor,
              cu_seqlens: torch.Tensor | None) -> torch.Tensor:
    """Converts `value` for the operators: float32 [sequences, query heads] on the device of q."""
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (sequences, q.shape[2])
    if not isinstance(value, torch.Tensor):
        return torch.full(shape, float(value), device=q.device)
    value = value.detach().to(device=q.device, dtype=torch.float32)
    try:
        return value.broadcast_to(shape).contiguous()
    except RuntimeError as error:
        raise RuntimeError(f"{name} must be broadcastable to (sequences, query heads) = {shape}, "
                           f"but has shape {tuple(value.shape)}") from error


def _pruning(q: torch.Tensor, k: torch.Tensor, scale: float, adaptive_threshold: Threshold,
             cu_seqlens: torch.Tensor | None, bound: str, log_eps: float
             ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """threshold and max_query_norm for the operators, and max_logit if a threshold computed it."""
    _require(bound in ("paper", "certified"), ValueError,
             lambda: f'bound must be "paper" or "certified", not {bound!r}')
    if isinstance(adaptive_threshold, str):
        _require(adaptive_threshold == "auto", ValueError,
                 lambda: 'adaptive_threshold must be None, "auto", a float or a tensor, not '
                 f"{adaptive_threshold!r}")
    if adaptive_threshold is None:
        return None, None, None
    if bound == "certified":
        _require(isinstance(adaptive_threshold, str), ValueError,
                 lambda: 'with bound="certified" adaptive_threshold must be None or "auto": what a '
                 "row may lose is exp(log_eps)")
        _require(log_eps < 0, ValueError, lambda: f"log_eps must be below 0, not {log_eps}")
        return None, max_norms(q, cu_seqlens), None
    if isinstance(adaptive_threshold, str):
        threshold, largest = auto_threshold(q, k, scale, log_eps, cu_seqlens)
        return threshold, None, largest
    return _per_head("adaptive_threshold", adaptive_threshold, q, cu_seqlens), None, None


def _uses_kernels(q: torch.Tensor) -> bool:
    """True if the CUDA kernels serve these tensors; raises if the reference must not either."""
    if q.device.type != "cuda" or q.dtype in (torch.float32, torch.float64):
        return False
    _require(q.dtype == torch.bfloat16, TypeError,
             lambda: f"{q.dtype} has no CUDA kernel here: cast q, k and v to torch.bfloat16")
    _require(HAS_CUDA_KERNELS, RuntimeError,
             lambda: "fox_attention was built without its CUDA kernels (no nvcc was found); "
             "install it again where nvcc is, or use float32 for the slow reference")
    _require(q.shape[3] in (16, 32, 64, 128), ValueError,
             lambda: f"head_dim must be 16, 32, 64 or 128 on CUDA, not {q.shape[3]}")
    return True


def _as_autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Casts the tensors as torch.autocast does for PyTorch's own attention: all except float64.

    The gates are not cast, because sums of thousands of them need float32.
    """
    device = tensors[0].device.type
    # Not torch.amp.is_autocast_available, which torch.compile of PyTorch 2.11 cannot trace.
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x
                 for x in tensors)


def forgetting_attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_fgate: torch.Tensor, *,
        head_first: bool = False, seq_start: torch.Tensor | None = None,
        sm_scale: float | None = None, adaptive_threshold: Threshold = None,
        cu_seqlens: torch.Tensor | None = None, bound: Literal["paper", "certified"] = "paper",
        deterministic: bool = False, log_eps: float = -10.0,
        max_logit: float | torch.Tensor | None = None,
        sinks: torch.Tensor | None = None) -> torch.Tensor:
    """softmax(sm_scale q k^T + decay) v, causal, with decay_ij = sum of log_fgate over (j, i].

    Source: Lin et al., "Forgetting Transformer" (ICLR 2025) and "Adaptive Computation Pruning for
    the Forgetting Transformer". Differentiable once in q, k, v, log_fgate and sinks (second
    and forward-mode derivatives raise). Nothing waits for the device; PyTorch's current stream.

    q: [batch, queries, heads, head_dim]; with head_first [batch, heads, queries, head_dim], and so
      for the others. bfloat16 on CUDA, head_dim 16, 32, 64 or 128; float32 and float64 anywhere,
      float16 on the CPU, by a reference that is slow on long inputs. torch.autocast casts q, k, v.
    k, v: [batch, tokens, kv_heads, head_dim], kv_heads a divisor of heads. If there are fewer
      queries than tokens, they belong to the last tokens; that costs as much as all queries.
    log_fgate: float32 [batch, tokens, heads], logarithms of the gates, at most 0; gate t lies
      between keys t - 1 and t. Values below -1024, -infinity included, count as -1024.
    seq_start: integers [batch]; row b begins at token seq_start[b] (left padding). Earlier tokens
      get zeros.
    sm_scale: 1 / sqrt(head_dim) if None.
    adaptive_threshold: None prunes nothing. "auto" prunes what `bound` allows. A float, or a tensor
      broadcastable to (batch, heads), is the decay below which tiles of pairs are skipped ("paper"
      only). Skipped pairs get no gradient.
    cu_seqlens: int32 [sequences + 1] on the device of q, from 0 to tokens, not falling: sequences
      packed one after the other in a batch of 1. Thresholds are then per (sequence, head).
    bound: "paper": decays below -(2 max|q| max|k| sm_scale + log tokens) + log_eps are skipped.
      "certified": key pages whose total weight in every row that skips them is at most
      exp(log_eps), for any queries; it skips more for the same promise.
    deterministic: equal bits in every run, also when torch.use_deterministic_algorithms is set.
    max_logit: a float, or a tensor broadcastable to (batch, heads), with cu_seqlens to (sequences,
      heads): the caller's promise that no |sm_scale q.k| of the head is larger, as the weights of
      QK-norm give one; rounding to bfloat16 need not be counted. Up to 22 the forward kernel of
      Hopper is faster because it does not search rows' maxima; a row's largest weight is then
      rounded, too, and gradients err some 6% more, log_fgate's 16%. A larger bound changes
      nothing. If a logit breaks the promise, the output may be infinite or NaN. None: unknown,
      except that "auto" of "paper" computes it.
    sinks: float32 [heads], a logit per head: the softmax has one more term exp(sinks[h]), of a key
      without a value, which does not decay. With sinks pruning loses no more than without.

    Returns [batch, queries, heads, head_dim], or as q with head_first. Raises TypeError, ValueError
    or RuntimeError, before anything is enqueued, if arguments do not fit.
    """
    if head_first:
        q, k, v, log_fgate = (x.transpose(1, 2) for x in (q, k, v, log_fgate))
    q, k, v = _as_autocast(q, k, v)
    _check_tensors(q, k, v, log_fgate, sinks)
    _check_sequences(q, k, seq_start, cu_seqlens)
    uses_kernels = _uses_kernels(q)
    head_dim, missing = q.shape[3], k.shape[1] - q.shape[1]
    scale = 1 / math.sqrt(head_dim) if sm_scale is None else float(sm_scale)
    adaptive_threshold = adaptive_threshold if k.shape[1] else None
    if missing:
        q = torch.nn.functional.pad(q, (0, 0, 0, 0, missing, 0))
    threshold, max_query_norm, largest = _pruning(q, k, scale, adaptive_threshold, cu_seqlens,
                                                  bound, log_eps)
    if max_logit is not None:
        largest = _per_head("max_logit", max_logit, q, cu_seqlens)
    begin, end = _sequences(k, seq_start, cu_seqlens)
    if uses_kernels and head_dim == 16:
        q, k, v = (torch.nn.functional.pad(x, (0, 16)) for x in (q, k, v))
    operator = ops.forward if uses_kernels else ops.reference_forward
    out, _ = operator(q, k, v, log_fgate, begin, end, cu_seqlens is not None, threshold,
                      max_query_norm, scale, float(log_eps),
                      deterministic or torch.are_deterministic_algorithms_enabled(), largest, sinks)
    out = out[:, missing:, :, :head_dim]
    return out.transpose(1, 2) if head_first else out


@torch.no_grad()
def pruned_share(q: torch.Tensor, k: torch.Tensor, log_fgate: torch.Tensor, *,
                 head_first: bool = False, seq_start: torch.Tensor | None = None,
                 sm_scale: float | None = None, adaptive_threshold: Threshold = "auto",
                 cu_seqlens: torch.Tensor | None = None,
                 bound: Literal["paper", "certified"] = "paper",
                 log_eps: float = -10.0) -> torch.Tensor:
    """The share of causal pairs that forgetting_attention skips, per query head, float64 [heads].

    The arguments are as in forgetting_attention, with as many queries as keys. For reports only,
    because it waits for the device.
    """
    if head_first:
        q, k, log_fgate = (x.transpose(1, 2) for x in (q, k, log_fgate))
    q, k = _as_autocast(q, k)
    _check_tensors(q, k, k, log_fgate)
    _check_sequences(q, k, seq_start, cu_seqlens)
    _require(q.shape[1] == k.shape[1], ValueError, lambda: "q must be as long as k")
    scale = 1 / math.sqrt(q.shape[3]) if sm_scale is None else float(sm_scale)
    threshold, norm, _ = _pruning(q, k, scale, adaptive_threshold, cu_seqlens, bound, log_eps)
    begin, end = _sequences(k, seq_start, cu_seqlens)
    skipped = torch.zeros(q.shape[2], dtype=torch.float64, device=q.device)
    pairs = 0
    for index, (first, last) in enumerate(sequence_ranges(k, begin, end)):
        length = last - first
        if length <= 0:
            continue
        row, tokens = index if cu_seqlens is None else 0, slice(first, last)
        pages = first_pages(log_fgate[row, tokens], k[row, tokens],
                            None if threshold is None else threshold[index],
                            None if norm is None else norm[index], scale, log_eps)
        rows = (length - torch.arange(0, length, TILE, device=q.device)).clamp(max=TILE)
        skipped += (pages * rows).sum(1) * PAGE
        pairs += length * (length + 1) // 2
    return skipped / max(pairs, 1)
