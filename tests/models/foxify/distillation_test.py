"""The loss and its hand-made gradient against autograd's."""

from __future__ import annotations

import unittest
from unittest import mock

import toy_llama  # noqa: F401  (first: it skips without torch)

import torch
import torch.nn.functional as F

from models.foxify import base_model, distillation


class DistillationTest(unittest.TestCase):
    """In float64, in parts of four rows."""

    def test_value_and_gradient(self) -> None:
        g = torch.Generator().manual_seed(0)
        student, teacher = (torch.randn(2, 9, 6, generator=g, dtype=torch.float64)
                            for _ in range(2))
        student.requires_grad_()
        head = torch.randn(11, 6, generator=g, dtype=torch.float64)
        ids = torch.randint(0, 11, (2, 9), generator=g)
        marks = torch.randint(0, 3, (2, 9), generator=g)
        marks[:, 0] = distillation.RECALLED  # predicted by no token
        with mock.patch.object(base_model, "LOGIT_BYTES", 4 * 11 * 5):
            kl, loss = distillation.distillation(student, teacher, head, ids, marks)
        (gradient,) = torch.autograd.grad(3 * loss, student)
        log_s, log_t = (F.linear(x, head).log_softmax(-1) for x in (student, teacher))
        each = (log_t.exp() * (log_t - log_s)).sum(-1)
        expected = 0
        for b in range(2):
            for t in range(9):  # predicts the next
                mark = marks[b, t + 1] if t < 8 else distillation.PLAIN
                expected = expected + distillation.KL_WEIGHT[mark] * each[b, t]
                if mark == distillation.RECALLED:
                    truth = log_s[b, t, ids[b, t + 1]]
                    expected = expected - distillation.TRUTH_WEIGHT[mark] * truth
        torch.testing.assert_close(kl, each.mean().detach())
        torch.testing.assert_close(loss, expected / 18)
        torch.testing.assert_close(gradient, torch.autograd.grad(3 * expected / 18, student)[0])


if __name__ == "__main__":
    unittest.main()
