#!/usr/bin/env python3
"""Pruning drops exactly the pages that a threshold names, no more weight than is promised, and
gradients are no further off than acp.md section 5 says."""

from __future__ import annotations

import functools
import math
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from attention_inputs import (AttentionTest, Inputs, definition, gradients,  # noqa: E402
                              random_inputs)

import torch  # noqa: E402
from fox_attention import forgetting_attention, pruned_share, pruning, reference  # noqa: E402


def visible_pairs(inputs: Inputs, threshold: float) -> torch.Tensor:
    """By hand: pairs of a row tile of 128 and a page of 64 keys whose decay, at the tile's first
    row and the page's last key, is not below the threshold. A tile's own keys stay."""
    batch, tokens, heads = inputs.log_fgate.shape
    cum = inputs.log_fgate.cumsum(1)
    visible = torch.ones(batch, heads, tokens, tokens, dtype=torch.bool)
    for row in range(0, tokens, 128):
        for key in range(0, row, 64):
            pruned = cum[:, row] - cum[:, key + 63] < threshold  # [batch, heads]
            visible[:, :, row:row + 128, key:key + 64] &= ~pruned[:, :, None, None]
    return visible


def log_weights(inputs: Inputs) -> torch.Tensor:
    """log of the attention weights without pruning, [batch, heads, rows, keys]."""
    cum = inputs.log_fgate.cumsum(1).transpose(1, 2)
    keys = inputs.k.repeat_interleave(inputs.q.shape[2] // inputs.k.shape[2], dim=2)
    scores = torch.einsum("bihd,bjhd->bhij", inputs.q, keys) * inputs.q.shape[3]**-0.5
    scores = scores + cum[..., :, None] - cum[..., None, :]
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, -torch.inf).log_softmax(-1)


class PruningTest(AttentionTest):
    """Gates of about 0.88, so a page fades by some 14."""

    def test_a_threshold_prunes_the_pages_it_names(self) -> None:
        inputs = random_inputs(tokens=600, heads=4, kv_heads=2, gate=3.0)
        for threshold in (-200.0, -20.0, -5.0, 0.0, 5.0):
            with self.subTest(threshold=threshold):
                visible = visible_pairs(inputs, threshold)
                pruned = functools.partial(forgetting_attention, adaptive_threshold=threshold)
                self.assert_near(gradients(pruned, inputs),
                                 gradients(functools.partial(definition, visible=visible), inputs))
                causal = torch.ones(600, 600, dtype=torch.bool).tril()
                share = (causal & ~visible).sum((0, 2, 3)) / (2 * causal.sum())
                found = pruned_share(*inputs.arguments[:2], inputs.log_fgate,
                                     adaptive_threshold=threshold)
                torch.testing.assert_close(found, share.double(), rtol=1e-6, atol=0)
        self.assertGreater(found.min().item(), 0.3)

    def test_auto_is_the_formula_of_the_paper(self) -> None:
        inputs = random_inputs(3, 100, 4, 2)
        threshold, bound = pruning.auto_threshold(inputs.q, inputs.k, 0.7, -10.0, None)
        for row in range(3):
            for head in range(4):
                largest = [x[row, :, index].norm(dim=-1).max().item()
                           for x, index in ((inputs.q, head), (inputs.k, head // 2))]
                logit = 0.7 * largest[0] * largest[1]
                self.assertAlmostEqual(bound[row, head].item(), logit, delta=1e-4)
                wanted = -(2 * logit + math.log(100)) - 10
                self.assertAlmostEqual(threshold[row, head].item(), wanted, delta=1e-4)
        torch.testing.assert_close(
            (threshold, bound), pruning.auto_threshold(inputs.q, inputs.k, -0.7, -10.0, None))

    def test_no_row_loses_more_than_is_promised(self) -> None:
        """Both bounds; the certified one prunes at least as much, and both prune something."""
        for seed in range(3):
            inputs = random_inputs(1, 900, 4, 2, gate=1.0 + seed, seed=seed)
            weights = log_weights(inputs)[0].exp()
            shares = {}
            for bound in ("paper", "certified"):
                auto = pruning.auto_threshold(inputs.q, inputs.k, 8**-0.5, -10.0, None)[0][0]
                norm = pruning.max_norms(inputs.q, None)[0]
                pages = pruning.first_pages(
                    inputs.log_fgate[0], inputs.k[0], auto if bound == "paper" else None,
                    norm if bound == "certified" else None, 8**-0.5, -10.0)
                self.assertTrue((pages.diff(dim=1) >= 0).all(), bound)
                first_key = pages.repeat_interleave(128, dim=1)[:, :900] * 64
                lost = (weights * (torch.arange(900) < first_key[..., None])).sum(-1)
                self.assertLessEqual(lost.max().item(), math.exp(-10), bound)
                shares[bound] = pruned_share(inputs.q, inputs.k, inputs.log_fgate, bound=bound)
            self.assertGreater(shares["paper"].max().item(), 0.0, seed)
            self.assertTrue((shares["certified"] >= shares["paper"]).all(), seed)

def seen_pairs(inputs: Inputs, *, adaptive_threshold: float | str, bound: str = "paper",
               log_eps: float = -10.0) -> torch.Tensor:
    """The mask of the keys that the rows of a batch of one see, [heads, rows, keys]."""
    scale, threshold, norm = inputs.q.shape[3]**-0.5, None, None
    if bound == "certified":
        norm = pruning.max_norms(inputs.q, None)[0]
    elif adaptive_threshold == "auto":
        threshold = pruning.auto_threshold(inputs.q, inputs.k, scale, log_eps, None)[0][0]
    else:
        threshold = torch.full(inputs.q.shape[2:3], adaptive_threshold)
    pages = pruning.first_pages(inputs.log_fgate[0], inputs.k[0], threshold, norm, scale, log_eps)
    tokens = inputs.q.shape[1]
    first_key = pages.repeat_interleave(128, dim=1)[:, :tokens] * 64
    return torch.arange(tokens) >= first_key[..., None]


def errors_over_bounds(inputs: Inputs, seen: torch.Tensor,
                       found: tuple[torch.Tensor, ...]) -> list[float]:
    """The errors of dq, dk, dv and d_log_fgate in `found` against the whole function's, relative to
    the bounds of acp.md 5 for the mass that rows lose. Rounding in float64 is allowed, too."""
    mass = log_weights(inputs)[0].exp().masked_fill(seen, 0).sum(-1)
    lost = mass * inputs.d_out[0].norm(dim=-1).T  # [heads, rows]
    of_keys = lost.unflatten(0, (inputs.k.shape[2], -1)).sum((1, 2))
    q, k, v = (x.norm(dim=-1).max() for x in inputs[:3])
    scale = inputs.q.shape[3]**-0.5
    bounds = (4 * scale * k * v * lost, 4 * scale * q * v * of_keys, 2 * of_keys,
              2 * v * lost.flip(1).cumsum(1).flip(1))  # of all rows from each on

    def sizes(dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor,
              d_log_fgate: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (dq[0].norm(dim=-1).T, dk[0].norm(dim=-1).sum(0), dv[0].norm(dim=-1).sum(0),
                d_log_fgate[0].abs().T)

    wanted = gradients(definition, inputs)[1:]
    errors = sizes(*(one - other for one, other in zip(found[1:], wanted)))
    return [(error / (bound + 1e-12 * exact.max())).max().item()
            for error, bound, exact in zip(errors, bounds, sizes(*wanted))]


def opposed_inputs(heads: int, decay: float) -> Inputs:
    """Inputs that pruning changes most: keys and values turn round where the second tile begins,
    queries see no difference, and all output gradients lie along the values."""
    inputs = random_inputs(1, 256, heads, 1, 4)
    q, k, v, gates, d_out = (torch.zeros_like(x) for x in inputs)
    q[..., 0], k[..., 1], v[..., 2], d_out[:, 128:, :, 2] = 3.0, 2.0, 1.5, 0.5
    k[:, :128], v[:, :128], gates[:, 128] = -k[:, :128], -v[:, :128], -decay
    return Inputs(q, k, v, gates, d_out)


class GradientTest(AttentionTest):
    """Errors of gradients against their bounds, where rows lose from e^-30 to nearly all."""

    def check(self, inputs: Inputs, **pruned: object) -> list[float]:
        """The ratios of errors and bounds, at most 1."""
        found = gradients(functools.partial(forgetting_attention, **pruned), inputs)
        ratios = errors_over_bounds(inputs, seen_pairs(inputs, **pruned), found)
        self.assertLessEqual(max(ratios), 1.0, pruned)
        return ratios

    def test_random_heads_keep_within_the_bounds(self) -> None:
        for seed, (heads, kv_heads) in enumerate([(1, 1), (2, 1), (4, 2)] * 3):
            inputs = random_inputs(1, 300 + 50 * seed, heads, kv_heads, gate=2.5, seed=seed)
            inputs = inputs._replace(q=inputs.q / 4**(seed % 3))
            for pruned in ({"adaptive_threshold": -0.5}, {"adaptive_threshold": -6.0},
                           {"adaptive_threshold": "auto", "log_eps": -0.1},
                           {"adaptive_threshold": "auto", "log_eps": -0.1, "bound": "certified"}):
                self.assertGreater(min(self.check(inputs, **pruned)), 1e-3, (seed, pruned))

    def test_opposed_keys_reach_the_bounds(self) -> None:
        for heads in (1, 2):
            for decay in (1.0, 4.0, 8.0, 14.0):
                ratios = self.check(opposed_inputs(heads, decay), adaptive_threshold=0.5 - decay)
                if decay >= 8:  # less than 0.05 is lost, so as much is missing
                    self.assertGreater(min(ratios), 0.95, decay)

    def test_a_backward_pass_that_prunes_more_breaks_them(self) -> None:
        inputs = random_inputs(1, 400, gate=3.0)
        thresholds = [torch.full((1, 2), value) for value in (-20.0, -10.0)]
        rest = (8**-0.5, -10.0, False)
        out, lse = reference.reference_forward(*inputs.arguments, None, None, False, thresholds[0],
                                               None, *rest, None, None)
        seen = seen_pairs(inputs, adaptive_threshold=-20.0)
        for threshold, breaks in zip(thresholds, (False, True)):
            found = reference.reference_backward(inputs.d_out, *inputs.arguments, out, lse, None,
                                                 None, False, threshold, None, *rest, None)
            ratios = errors_over_bounds(inputs, seen, (out, *found[:4]))
            self.assertEqual([ratio > 1 for ratio in ratios], [breaks] * 4, ratios)


if __name__ == "__main__":
    unittest.main()
