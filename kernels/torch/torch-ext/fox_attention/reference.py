"""Forgetting attention and its gradients in plain PyTorch: any device, any floating dtype.

It runs without a GPU, and the CUDA kernels are tested against it in float64. Its largest matrix is
one tile of 128 rows times the sequence's keys; it is not kept between forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from .pruning import PAGE, TILE, cumulative_gates, first_pages


class Sequence(NamedTuple):
    """One sequence: its place, and views of it with heads first, query heads grouped by kv head."""

    row: int
    tokens: slice
    index: int
    q: torch.Tensor  # [kv heads, group, length, head_dim]
    k: torch.Tensor  # [kv heads, 1, length, head_dim]
    v: torch.Tensor
    cum_log_f: torch.Tensor  # [kv heads, group, length], float64


class Tile(NamedTuple):
    """A tile: rows of a sequence, the range of keys that any head sees, and a mask."""

    rows: slice
    keys: slice
    visible: torch.Tensor  # [kv heads, group, rows, keys]


def accumulation_dtype(q: torch.Tensor) -> torch.dtype:
    """The dtype of sums: float64 for float64, float32 for every narrower one."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _grouped(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[length, heads, ...] -> [kv heads, heads of each, length, ...]."""
    return x.transpose(0, 1).unflatten(0, (kv_heads, -1))


def sequence_ranges(k: torch.Tensor, seq_begin: torch.Tensor | None,
                    seq_end: torch.Tensor | None) -> list[tuple[int, int]]:
    """Begin and end of each sequence as integers; waits for the device."""
    if seq_begin is None or seq_end is None:
        return [(0, k.shape[1])] * k.shape[0]
    return list(zip(seq_begin.tolist(), seq_end.tolist()))


def _sequences(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_fgate: torch.Tensor,
               seq_begin: torch.Tensor | None, seq_end: torch.Tensor | None,
               packed: bool) -> Iterator[Sequence]:
    dtype, kv_heads = accumulation_dtype(q), k.shape[2]
    for index, (begin, end) in enumerate(sequence_ranges(k, seq_begin, seq_end)):
        if begin >= end:
            continue
        row, tokens = 0 if packed else index, slice(begin, end)
        yield Sequence(row, tokens, index, *(_grouped(x[row, tokens].to(dtype), kv_heads)
                                             for x in (q, k, v)),
                       _grouped(cumulative_gates(log_fgate[row, tokens]), kv_heads))


def _tiles(sequence: Sequence, pages: torch.Tensor) -> Iterator[Tile]:
    """Tiles of a sequence; `pages` is the result of first_pages for it."""
    length, device = sequence.q.shape[2], sequence.q.device
    pages = pages.unflatten(0, sequence.q.shape[:2])
    for index, begin in enumerate(range(0, length, TILE)):
        rows = slice(begin, min(begin + TILE, length))
        keys = slice(int(pages[..., index].min()) * PAGE, rows.stop)
        row = torch.arange(rows.start, rows.stop, device=device)[:, None]
        key = torch.arange(keys.start, keys.stop, device=device)
        first_key = pages[..., index, None, None] * PAGE
        yield Tile(rows, keys, (key <= row) & (key >= first_key))


def _of_rows(sinks: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Reshapes [query heads] to broadcast to [kv heads, group, rows], in the dtype of `rows`."""
    return sinks.to(rows.dtype).view(*rows.shape[:2], 1)


def _logits(sequence: Sequence, tile: Tile, scale: float) -> torch.Tensor:
    """Scaled products plus the decay; -infinity if a row does not see a key."""
    rows, keys = tile.rows, tile.keys
    # Decays relative to the tile's first row: float64 differences before they are rounded.
    cum = sequence.cum_log_f - sequence.cum_log_f[..., rows.start, None]
    decay = (cum[..., rows, None] - cum[..., None, keys]).to(sequence.q.dtype)
    products = sequence.q[..., rows, :] @ sequence.k[..., keys, :].transpose(-1, -2)
    return torch.where(tile.visible, products * scale + decay, -torch.inf)


def _pages(sequence: Sequence, k: torch.Tensor, log_fgate: torch.Tensor,
           threshold: torch.Tensor | None, max_query_norm: torch.Tensor | None, scale: float,
           log_eps: float) -> torch.Tensor:
    row, tokens, index = sequence.row, sequence.tokens, sequence.index
    return first_pages(log_fgate[row, tokens], k[row, tokens],
                       None if threshold is None else threshold[index],
                       None if max_query_norm is None else max_query_norm[index], scale, log_eps)


def reference_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_fgate: torch.Tensor,
                      seq_begin: torch.Tensor | None, seq_end: torch.Tensor | None,
                      packed: bool, threshold: torch.Tensor | None,
                      max_query_norm: torch.Tensor | None, scale: float, log_eps: float,
                      deterministic: bool, max_logit: torch.Tensor | None,
                      sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The output [batch, tokens, query heads, head_dim] and the log-sum-exp of each row.

    Arguments are the operators' (operators.py). The log-sum-exp, [batch, tokens, query
    heads], natural units, holds the row's own decay and the sink; tokens of no sequence have zeros
    in both.
    """
    del deterministic, max_logit  # it always is; maxima of rows are always looked for
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.zeros(q.shape[:3], dtype=accumulation_dtype(q), device=q.device)
    for sequence in _sequences(q, k, v, log_fgate, seq_begin, seq_end, packed):
        out_view = _grouped(out[sequence.row, sequence.tokens], k.shape[2])
        lse_view = _grouped(lse[sequence.row, sequence.tokens], k.shape[2])
        pages = _pages(sequence, k, log_fgate, threshold, max_query_norm, scale, log_eps)
        for tile in _tiles(sequence, pages):
            logits = _logits(sequence, tile, scale)
            row_lse = logits.logsumexp(-1)
            if sinks is not None:
                row_lse = torch.logaddexp(row_lse, _of_rows(sinks, row_lse))
            weights = (logits - row_lse[..., None]).exp()
            out_view[..., tile.rows, :] = (weights @ sequence.v[..., tile.keys, :]).to(out.dtype)
            lse_view[..., tile.rows] = row_lse
    return out, lse


def reference_backward(d_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                       log_fgate: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
                       seq_begin: torch.Tensor | None, seq_end: torch.Tensor | None,
                       packed: bool, threshold: torch.Tensor | None,
                       max_query_norm: torch.Tensor | None, scale: float, log_eps: float,
                       deterministic: bool, sinks: torch.Tensor | None
                       ) -> tuple[torch.Tensor, ...]:
    """Gradients of q, k, v, log_fgate and sinks (empty if None), shapes and dtypes as theirs.

      dS = P (dO V^T - delta),  delta = rowsum(dO O),  dQ = scale dS K,  dK = scale dS^T Q,
      dV = P^T dO,  dc = rowsum(dS) - colsum(dS),  dlog f_t = sum of dc from t on
      dsink = -sum of delta exp(sink - lse) over rows
    """
    del deterministic  # it always is
    dtype, kv_heads = accumulation_dtype(q), k.shape[2]
    grads = [torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v, log_fgate)]
    d_sinks = log_fgate.new_zeros(0) if sinks is None else torch.zeros_like(sinks)
    for sequence in _sequences(q, k, v, log_fgate, seq_begin, seq_end, packed):
        where = sequence.row, sequence.tokens
        d_rows, o_rows = (_grouped(x[where].to(dtype), kv_heads) for x in (d_out, out))
        row_lse = _grouped(lse[where], kv_heads)
        delta = (d_rows * o_rows).sum(-1)
        if sinks is not None:
            of_sink = (_of_rows(sinks, row_lse) - row_lse).exp()
            d_sinks -= (of_sink * delta).sum(-1).flatten()
        dq, dk, dv = (torch.zeros_like(x) for x in (sequence.q, sequence.k, sequence.v))
        dc = torch.zeros_like(sequence.cum_log_f)
        pages = _pages(sequence, k, log_fgate, threshold, max_query_norm, scale, log_eps)
        for tile in _tiles(sequence, pages):
            rows, keys = tile.rows, tile.keys
            weights = (_logits(sequence, tile, scale) - row_lse[..., rows, None]).exp()
            dp = d_rows[..., rows, :] @ sequence.v[..., keys, :].transpose(-1, -2)
            ds = weights * (dp - delta[..., rows, None])
            dq[..., rows, :] = scale * (ds @ sequence.k[..., keys, :])
            dk[..., keys, :] += scale * (ds.transpose(-1, -2) @ sequence.q[..., rows, :]).sum(
                1, keepdim=True)
            dv[..., keys, :] += (weights.transpose(-1, -2) @ d_rows[..., rows, :]).sum(
                1, keepdim=True)
            dc[..., rows] += ds.sum(-1)
            dc[..., keys] -= ds.sum(-2)
        # dc sums to zero, so the sum from t on is minus that before t: the first is exactly 0.
        d_log_f = dc - dc.cumsum(-1)
        for grad, value in zip(grads, (dq, dk, dv, d_log_f)):
            grad[where] = value.flatten(0, 1).transpose(0, 1).to(grad.dtype)
    return *grads, d_sinks
