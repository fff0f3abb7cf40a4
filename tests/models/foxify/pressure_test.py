"""The rule against a brute-force one in float64, and the controller on a simple plant."""

from __future__ import annotations

import math
import unittest

import toy_llama  # noqa: F401  (first: it skips without torch)

import torch
from torch import Tensor

from models.foxify.pressure import (
    LOG_EPS, Controller, PageTerms, excess, kept_shares, page_terms, penalty)

T, HEADS, KV_HEADS, D, PAGE = 640, 4, 2, 16, 64


def brute_force(k: Tensor, log_f: Tensor, sinks: Tensor, q_cap: Tensor, k_cap: Tensor) -> Tensor:
    """True if page p is kept at the end of page e, [K, n, n], computed token by token."""
    k, log_f, sinks, q_cap, k_cap = (x.double() for x in (k, log_f, sinks, q_cap, k_cap))
    n = T // PAGE
    kept = torch.zeros(KV_HEADS, n, n, dtype=torch.bool)
    for h in range(HEADS):
        g, least = h * KV_HEADS // HEADS, math.inf
        c, keys = log_f[:, g].cumsum(0), k[:, g]
        a = q_cap[h] * keys.norm(dim=-1) / math.sqrt(D)
        for e in range(n):
            end = (e + 1) * PAGE - 1
            weights = (c[end] - c[: end + 1]).exp()
            mean = (weights[:, None] * keys[: end + 1]).sum(0) / weights.sum()
            beta = q_cap[h] * mean.norm() / math.sqrt(D) - weights.sum().log()
            least = min(least, (c[end] + beta).item())
            bound = q_cap[h] * k_cap[g] / math.sqrt(D)
            t = min(least, (c[end] + bound).item(), (c[end] - sinks[h]).item())
            for p in range(e + 1):
                last = (p + 1) * PAGE
                mass = torch.logsumexp(a[:last] - c[:last], 0).item()
                kept[g, e, p] |= mass + t > LOG_EPS or p == e
    return kept


class PressureTest(unittest.TestCase):
    """On random layers."""

    def test_shares_are_those_of_the_brute_force_rule(self) -> None:
        g = torch.Generator().manual_seed(0)
        seen = set()
        for pace, sink, drift in ((0.002, 0.0, 0), (0.05, 3.0, 0), (0.05, -30.0, 0), (1.0, 0.0, 0),
                                  (0.05, -30.0, 10)):  # keys that drift: a bound would rise
            k = torch.randn(1, T, KV_HEADS, D, generator=g)
            k[:, T // 2 :] += drift
            log_f = -pace * torch.rand(1, T, KV_HEADS, generator=g) * torch.tensor([1.0, 4.0])
            log_f[:, T // 2 :] *= drift == 0
            sinks = sink + torch.randn(HEADS, generator=g)
            q_cap = 1 + torch.rand(HEADS, generator=g)
            k_cap = k.norm(dim=-1).amax((0, 1))
            terms = PageTerms(*(x[None] for x in page_terms(k, log_f, q_cap)))
            x = excess(terms, sinks[None], q_cap[None], k_cap[None])
            kept = brute_force(k[0], log_f[0], sinks, q_cap, k_cap)
            n = T // PAGE
            mean, last = kept_shares(x)
            expected = kept.sum((1, 2)) / (n * (n + 1) / 2)
            torch.testing.assert_close(mean[0], expected)
            torch.testing.assert_close(last[0], kept[:, -1].float().mean(-1))
            seen |= {round(s, 2) for s in expected.tolist()}
        self.assertGreater(len(seen), 4)  # heads that keep all, some and next to nothing

    def test_the_penalty_moves_gates_sinks_and_keys_towards_fewer_pages(self) -> None:
        g = torch.Generator().manual_seed(1)
        k = torch.randn(1, T, KV_HEADS, D, generator=g, requires_grad=True)
        log_f = torch.full((1, T, KV_HEADS), -0.01, requires_grad=True)
        sinks = torch.full((1, HEADS), 8.0, requires_grad=True)
        q_cap, k_cap = torch.ones(1, HEADS), torch.full((1, KV_HEADS), 4.0)

        def cost() -> Tensor:
            terms = PageTerms(*(x[None] for x in page_terms(k, log_f, q_cap[0])))
            return penalty(excess(terms, sinks, q_cap, k_cap))

        before = cost()
        before.backward()
        self.assertLess(before.item(), 1)
        self.assertTrue((sinks.grad <= 0).all() and (sinks.grad < 0).any())
        self.assertGreater(log_f.grad.sum().item(), 0)
        with torch.no_grad():
            for x in (k, log_f, sinks):
                x -= 0.01 * x.grad / x.grad.abs().max()
        self.assertLess(cost().item(), before.item())

    def test_the_controller_reaches_the_share_and_holds_it(self) -> None:
        for gain, hold in ((0.3, 0.2), (3.0, 0.02)):  # a plant that closes at a pace of lambda
            controller, share, steps = Controller(0.125, 0.3), 1.0, 700
            for step in range(steps):
                done = step / steps
                controller.update(share, done)
                held = hold / share  # the resistance of the loss
                share = min(1.0, share * math.exp(-0.02 * gain * (controller.weight - held)))
                if done > 0.6:
                    self.assertLess(abs(share / 0.125 - 1), 0.1, (gain, done))


if __name__ == "__main__":
    unittest.main()
