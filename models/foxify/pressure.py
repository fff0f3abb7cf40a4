"""The certified rule that evicts pages, differentiable, and the control of its weight in the loss.

At the end of page e page p is kept iff E_p + t_e > log eps for some query head of its kv head; see
kernels/docs/acp.md, whose roundings are left out here. `excess` is E_p + t_e - log eps.
Shapes: L layers, B sequences, n pages, H query heads, K kv heads, d head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from models.foxify.base_model import PAGE, wide

LOG_EPS = -10.0
SOFTNESS = 10.0  # nats of excess with half the penalty; it is concave, so heads close in turn
REACHED_AT = 0.55  # fraction of the run at which the share should be `keep`
PROPORTIONAL, INTEGRAL = 3.0, 25.0  # gains of log lambda per log share; INTEGRAL per run


@dataclass(frozen=True)
class PageTerms:
    """The inputs of the rule, of one layer or of all layers ([L, ..] in front)."""

    mass: Tensor  # [B, n, H] log sum over the page's keys of exp(a_j + decay from its start)
    sums: Tensor  # [B, n, K, d] sum of the page's keys, decayed to its end
    weight: Tensor  # [B, n, K] sum of the page's decays
    fall: Tensor  # [B, n, K] sum of the page's log gates


def page_terms(k: Tensor, log_f: Tensor, q_cap: Tensor) -> tuple[Tensor, ...]:
    """The fields of PageTerms of a layer; k [B, T, K, d] as stored, log_f [B, T, K], q_cap [H]."""
    pages = wide(k).unflatten(1, (-1, PAGE))
    fall = log_f.unflatten(1, (-1, PAGE)).cumsum(2)
    norm = torch.linalg.vector_norm(pages, dim=-1)
    group, scale = q_cap.shape[0] // k.shape[2], k.shape[3] ** -0.5
    a = norm.repeat_interleave(group, -1) * (q_cap * scale)
    mass = (a - fall.repeat_interleave(group, -1)).logsumexp(2)
    weight = (fall[:, :, -1:] - fall).exp()
    return mass, (weight[..., None] * pages).sum(2), weight.sum(2), fall[:, :, -1]


def excess(terms: PageTerms, sinks: Tensor, q_cap: Tensor, k_cap: Tensor,
           log_eps: float = LOG_EPS) -> Tensor:
    """E_p + t_e - log eps [L, B, K, n, n]: last but one dimension e, last p.

    sinks and q_cap [L, H], k_cap [L, K].
    """
    kv_heads, scale = k_cap.shape[1], terms.sums.shape[-1] ** -0.5
    group = q_cap.shape[1] // kv_heads

    def per_head(x: Tensor) -> Tensor:
        return x.repeat_interleave(group, -1)

    def everywhere(x: Tensor) -> Tensor:
        return x[:, None, None]

    c = terms.fall.cumsum(2)
    e_mass = torch.logcumsumexp(terms.mass - per_head(c - terms.fall), 2)
    n = c.shape[2]
    causal = torch.ones(n, n, dtype=torch.bool, device=c.device).tril()[..., None]
    decay = torch.where(causal, c[:, :, :, None] - c[:, :, None], -torch.inf).exp()
    total = torch.einsum("lbepk,lbpk->lbek", decay, terms.weight)
    sums = torch.einsum("lbepk,lbpkd->lbekd", decay, terms.sums)
    mean = torch.linalg.vector_norm(sums / total[..., None], dim=-1)
    c = per_head(c)
    candidate = per_head(mean) * everywhere(q_cap * scale) - per_head(total.log())
    bound = everywhere(q_cap * per_head(k_cap) * scale)
    t = torch.minimum(torch.cummin(c + candidate, 2).values,
                      c - torch.maximum(-bound, everywhere(sinks)))
    x = e_mass[:, :, None] + t[:, :, :, None] - log_eps
    return x.unflatten(-1, (kv_heads, group)).amax(-1).movedim(-1, 2)


def penalty(x: Tensor) -> Tensor:
    """The mean over causal pairs of pages of a smooth, concave stand-in for being kept."""
    n = x.shape[-1]
    open_ = x.relu().tril()
    return (open_ / (open_ + SOFTNESS)).mean() * (2 * n / (n + 1))


def kept_shares(x: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of pages kept [L, K]: the mean over page ends, and at the last one.

    A page is kept at its own end.
    """
    n = x.shape[-1]
    kept = ((x > 0) | torch.eye(n, dtype=torch.bool, device=x.device)).tril().float()
    return kept.sum((-2, -1)).mean(1) / (n * (n + 1) / 2), kept[..., -1, :].mean((1, 3))


class Controller:
    """Dual ascent: the weight of the penalty, so that the share falls to `keep` and stays there.

    The wanted share falls geometrically from the first one; log lambda follows the gap, by a
    proportional part, which damps, and its integral.
    """

    def __init__(self, keep: float, start: float) -> None:
        self.keep, self.integral, self.first = keep, math.log(start), 0.0
        self.weight = start
        self._last = 0.0

    def state(self) -> list[float]:
        """The state, for load()."""
        return [self.integral, self.first, self.weight, self._last]

    def load(self, state: list[float]) -> None:
        """Continues from a state()."""
        self.integral, self.first, self.weight, self._last = state

    def wanted(self, done: float) -> float:
        """The share that is wanted at a fraction of the run."""
        way = min(1.0, done / REACHED_AT)
        return self.first ** (1 - way) * self.keep**way if self.first else 1.0

    def update(self, share: float, done: float) -> None:
        """Moves the weight after a step that kept `share`, at fraction `done` of the run."""
        assert 0 <= done <= 1
        self.first = self.first or max(share, self.keep)
        gap = math.log(max(share, 1e-6) / self.wanted(done))
        self.integral += INTEGRAL * gap * min(0.05, max(0.0, done - self._last))
        self.integral = min(max(self.integral, math.log(1e-3)), math.log(100.0))
        self._last = done
        self.weight = math.exp(min(max(self.integral + PROPORTIONAL * gap, -7.0), math.log(200.0)))
