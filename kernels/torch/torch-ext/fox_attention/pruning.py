"""Pruning: thresholds as the operators expect them, and the first page that each tile sees.

Queries are pruned in tiles of 128 rows, keys in pages of 64, both counted from the beginning of
their sequence. All thresholds are computed on the device of their inputs, without waiting for it.
"""

from __future__ import annotations

import torch

TILE = 128  # rows
PAGE = 64  # keys
# Log gates are clamped to at least this, so that a gate of zero cuts a sequence without NaNs.
LEAST_LOG_GATE = -1024.0
# The rounding of float32 sums in values compared with log_eps (kAcpSlack of kernels/paging/acp.h).
SLACK = 2.0**-8


def cumulative_gates(log_fgate: torch.Tensor) -> torch.Tensor:
    """Sums of a sequence's log gates [length, ...] up to each token, float64."""
    return log_fgate.double().clamp(min=LEAST_LOG_GATE).cumsum(0)


def max_norms(x: torch.Tensor, cu_seqlens: torch.Tensor | None) -> torch.Tensor:
    """The largest Euclidean norm per (sequence, head) of x [batch, tokens, heads, head_dim]."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    norms = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=dtype)
    if cu_seqlens is None:
        return norms.amax(dim=1)
    tokens = torch.arange(x.shape[1], device=x.device, dtype=cu_seqlens.dtype)
    # Tokens outside of all sequences count for the first or the last one; a larger norm only prunes
    # less.
    sequence = torch.searchsorted(cu_seqlens[1:-1], tokens, right=True)
    largest = norms.new_zeros(cu_seqlens.shape[0] - 1, x.shape[2])
    return largest.scatter_reduce(0, sequence[:, None].expand(-1, x.shape[2]), norms[0], "amax")


def auto_threshold(q: torch.Tensor, k: torch.Tensor, scale: float, log_eps: float,
                   cu_seqlens: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """-(2 U + log length) + log_eps and U = max|q| max|k| |scale|, which bounds the logits.

    Both [sequences, query heads], float32.
    """
    group = q.shape[2] // k.shape[2]
    key_norms = max_norms(k, cu_seqlens).repeat_interleave(group, dim=1)
    bound = max_norms(q, cu_seqlens) * key_norms * abs(scale)
    # Lengths as a tensor: math.log would make torch.compile take each length for a constant.
    lengths = (torch.full((1,), k.shape[1], device=k.device) if cu_seqlens is None
               else (cu_seqlens[1:] - cu_seqlens[:-1]).clamp(min=1))
    return log_eps - (2 * bound + lengths.log()[:, None]), bound


def _certified_bounds(cum: torch.Tensor, keys: torch.Tensor,
                      scaled_norm: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E of each page and t of each tile (kernels/docs/acp.md section 2), [heads, pages or tiles].

    Page p may be dropped for a tile's rows when E_p + t <= log_eps. E bounds the log mass of the
    keys up to the page's end. t bounds the inverse of the rows' denominators, by the row's own or
    an earlier key (the last of its terms) or by Jensen's inequality on the keys before the tile.
    `cum` is [heads, length], `keys` [heads, length, head_dim], `scaled_norm` [heads], all float64.
    """
    length = cum.shape[1]
    logits = torch.linalg.vector_norm(keys, dim=-1) * scaled_norm[:, None]
    mass = torch.logcumsumexp(logits - cum, dim=1)[:, PAGE - 1::PAGE]
    own = (cum + logits).cummin(dim=1).values[:, ::TILE]
    count, total = torch.zeros_like(cum[:, 0]), torch.zeros_like(keys[:, 0])
    least = torch.full_like(count, torch.inf)
    rows, before = [], cum[:, 0]
    for begin in range(0, length, TILE):
        rows.append(torch.minimum(least, own[:, begin // TILE]))
        end = cum[:, min(begin + TILE, length) - 1]
        weights = (end[:, None] - cum[:, begin:begin + TILE]).exp()
        decay, before = (end - before).exp(), end
        count = count * decay + weights.sum(1)
        total = total * decay[:, None] + (weights[:, None] @ keys[:, begin:begin + TILE])[:, 0]
        beta = torch.linalg.vector_norm(total, dim=-1) / count * scaled_norm - count.log()
        least = torch.minimum(least, end + beta)
    return mass, torch.stack(rows, dim=1)


def first_pages(log_fgate: torch.Tensor, keys: torch.Tensor, threshold: torch.Tensor | None,
                max_query_norm: torch.Tensor | None, scale: float,
                log_eps: float) -> torch.Tensor:
    """The first page that each tile of one sequence sees, [query heads, tiles], int64.

    `log_fgate` is [length, query heads], `keys` [length, kv heads, head_dim]; `threshold` and
    `max_query_norm` are [query heads], at most one of them given. A threshold drops a page when the
    decay between its last key and the tile's first row is below it. The norms drop it when all keys
    up to its end together weigh at most exp(log_eps) in every row from the tile on.
    """
    length, heads = log_fgate.shape
    tiles = torch.arange(0, length, TILE, device=log_fgate.device)
    cum = cumulative_gates(log_fgate).T.contiguous()  # [heads, length]
    if threshold is not None:
        rising, wanted = -cum[:, PAGE - 1::PAGE], threshold.double()[:, None] - cum[:, tiles]
        pages = torch.searchsorted(rising.contiguous(), wanted.contiguous())
    elif max_query_norm is not None:
        expanded = keys.double().transpose(0, 1).repeat_interleave(heads // keys.shape[1], dim=0)
        mass, rows = _certified_bounds(cum, expanded, max_query_norm.double() * scale)
        pages = torch.searchsorted(mass.contiguous(), log_eps - SLACK - rows, right=True)
    else:
        pages = tiles.new_zeros(heads, tiles.shape[0])
    return torch.minimum(pages, tiles // PAGE)  # a tile keeps its own keys
