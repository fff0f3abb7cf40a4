#!/usr/bin/env python3
"""What is pruned: exactly the pages that a threshold names, and no more weight than is promised."""

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
from fox_attention import forgetting_attention, pruned_share, pruning  # noqa: E402


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

    def test_a_threshold_of_each_head_and_sequence(self) -> None:
        inputs = random_inputs(tokens=400, gate=3.0)
        per_head = torch.tensor([-1e9, -6.0])
        both = forgetting_attention(*inputs.arguments, adaptive_threshold=per_head)
        for head, threshold in enumerate((None, -6.0)):
            one = forgetting_attention(*inputs.arguments, adaptive_threshold=threshold)
            self.assert_near((both[:, :, head],), (one[:, :, head],))
        per_row = torch.tensor([[-6.0], [-1e9]])
        both = forgetting_attention(*inputs.arguments, adaptive_threshold=per_row)
        for row, threshold in enumerate((-6.0, None)):
            one = forgetting_attention(*inputs.arguments, adaptive_threshold=threshold)
            self.assert_near((both[row],), (one[row],))

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

    def test_auto_of_packed_sequences_is_that_of_each(self) -> None:
        inputs = random_inputs(1, 300, 4, 2)
        cu_seqlens = torch.tensor([0, 100, 100, 101, 300], dtype=torch.int32)
        found = pruning.auto_threshold(inputs.q, inputs.k, 0.7, -10.0, cu_seqlens)
        for index, (begin, end) in enumerate(((0, 100), (100, 100), (100, 101), (101, 300))):
            if begin < end:
                q, k = inputs.q[:, begin:end], inputs.k[:, begin:end]
                wanted = pruning.auto_threshold(q, k, 0.7, -10.0, None)
                for one, other in zip(found, wanted):
                    torch.testing.assert_close(one[index], other[0])

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
            self.assertGreater(shares["paper"].max().item(), 0.0)
            self.assertTrue((shares["certified"] >= shares["paper"]).all())

    def test_a_looser_promise_prunes_more(self) -> None:
        inputs = random_inputs(1, 900, gate=2.0)
        for bound in ("paper", "certified"):
            shares = [pruned_share(inputs.q, inputs.k, inputs.log_fgate, bound=bound,
                                   log_eps=log_eps).sum().item() for log_eps in (-30.0, -2.0)]
            self.assertLess(*shares)


if __name__ == "__main__":
    unittest.main()
