"""The operators of this package as PyTorch sees them: schemas, shapes and gradients.

    forward, backward                      bfloat16 on CUDA, implemented by the compiled library
    reference_forward, reference_backward  everything else (reference.py)

Both pairs have the same arguments, except `max_logit`, which only forward has. Sequence s holds
tokens [seq_begin[s], seq_end[s]) of batch row s, or of row 0 if `packed`; each is a whole row if
both are None. `threshold` and `max_query_norm` are float32 [sequences, query heads]; at most one of
them is given. `max_logit`, of the same shape or None, is a promise: no |scale q.k| of the head is
larger, so the CUDA kernel need not search the rows' maxima. `sinks` is float32 [query heads] or
None, and then their gradient is empty. `state` passes from a forward call to its backward call:
opaque bytes on CUDA, the rows' log-sum-exp in the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._ops import add_op_namespace_prefix, ops
from .reference import accumulation_dtype, reference_backward, reference_forward

Tensors = tuple[torch.Tensor, ...]

_PRUNING = ("Tensor? seq_begin, Tensor? seq_end, bool packed, Tensor? threshold, "
            "Tensor? max_query_norm, float scale, float log_eps, bool deterministic")
_FORWARD = (f"(Tensor q, Tensor k, Tensor v, Tensor log_fgate, {_PRUNING}, Tensor? max_logit, "
            "Tensor? sinks) -> (Tensor out, Tensor state)")
_BACKWARD = ("(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor log_fgate, Tensor out, "
             f"Tensor state, {_PRUNING}, Tensor? sinks) -> "
             "(Tensor dq, Tensor dk, Tensor dv, Tensor d_log_fgate, Tensor d_sinks)")


def state_bytes(batch: int, tokens: int, heads: int, sequences: int) -> int:
    """Bytes of the state on CUDA; torch_binding.cc has the same formula."""
    tiles = batch * (tokens // 128) + sequences
    return tiles * (heads * 1088 + 32) + 4096


def _forward_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_fgate: torch.Tensor,
                    seq_begin: torch.Tensor | None, *rest: object) -> Tensors:
    del k, v, log_fgate, rest
    batch, tokens, heads = q.shape[:3]
    sequences = batch if seq_begin is None else seq_begin.shape[0]
    size = state_bytes(batch, tokens, heads, sequences)
    return q.new_empty(q.shape), q.new_empty((size,), dtype=torch.uint8)


def _reference_forward_shapes(q: torch.Tensor, *rest: object) -> Tensors:
    del rest
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=accumulation_dtype(q))


def _backward_shapes(d_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                     log_fgate: torch.Tensor, *rest: object) -> Tensors:
    del d_out
    sinks = rest[-1]
    d_sinks = log_fgate.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape)
    return *(x.new_empty(x.shape) for x in (q, k, v, log_fgate)), d_sinks


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...],
          output: Tensors) -> None:
    *tensors, packed, threshold, max_query_norm, scale, log_eps, deterministic, _, sinks = inputs
    ctx.save_for_backward(*tensors[:4], *output, *tensors[4:], threshold, max_query_norm, sinks)
    ctx.packed, ctx.rest = packed, (scale, log_eps, deterministic)


def _refuse_second_derivatives(ctx: torch.autograd.function.FunctionCtx,
                               *d_gradients: torch.Tensor) -> None:
    # Without this formula autograd would take the gradients as constants: wrong second gradients.
    raise RuntimeError("forgetting_attention is differentiable once: its gradients have none")


def _register(prefix: str, forward_shapes: object) -> None:
    forward, backward = (add_op_namespace_prefix(prefix + name) for name in ("forward", "backward"))
    torch.library.define(forward, _FORWARD)
    torch.library.define(backward, _BACKWARD)
    torch.library.register_fake(forward, forward_shapes)
    torch.library.register_fake(backward, _backward_shapes)
    backward_op = getattr(ops, prefix + "backward")

    def differentiate(ctx: torch.autograd.function.FunctionCtx, d_out: torch.Tensor,
                      d_state: None) -> tuple[torch.Tensor | None, ...]:
        del d_state  # autograd does not differentiate the state
        *tensors, seq_begin, seq_end, threshold, max_query_norm, sinks = ctx.saved_tensors
        needed = ctx.needs_input_grad
        # Backward needs sinks for their own gradient alone, whose kernel reads every row. One pass
        # over the pairs computes the other four together.
        *grads, d_sinks = backward_op(d_out, *tensors, seq_begin, seq_end, ctx.packed, threshold,
                                      max_query_norm, *ctx.rest, sinks if needed[-1] else None)
        return tuple(grad if need else None
                     for grad, need in zip((*grads, *(None,) * 9, d_sinks), needed))

    torch.library.register_autograd(forward, differentiate, setup_context=_save)
    torch.library.register_autograd(backward, _refuse_second_derivatives)


def _without_autocast(function: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Wraps `function` without autocast, which would round its products to too few bits."""

    def run(*arguments: Any) -> Tensors:
        device = arguments[0].device.type
        if not torch.amp.is_autocast_available(device):
            return function(*arguments)
        with torch.autocast(device, enabled=False):
            return function(*arguments)

    return run


_register("", _forward_shapes)
_register("reference_", _reference_forward_shapes)
for _function in (reference_forward, reference_backward):
    torch.library.impl(add_op_namespace_prefix(_function.__name__), "CompositeExplicitAutograd",
                       _without_autocast(_function))

# True if the compiled library exists: the package installs without nvcc, too.
HAS_CUDA_KERNELS = torch._C._dispatch_has_kernel_for_dispatch_key(
    add_op_namespace_prefix("forward"), "CUDA")
