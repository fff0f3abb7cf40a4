#!/usr/bin/env python3
"""The reference against the definition, its gradients against autograd and finite differences."""

from __future__ import annotations

import functools
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from attention_inputs import AttentionTest, definition, gradients, random_inputs  # noqa: E402

import torch  # noqa: E402
from fox_attention import forgetting_attention  # noqa: E402


class ReferenceTest(AttentionTest):
    """Everything in float64 unless a case says otherwise."""

    def test_it_is_the_definition_at_the_edges_of_tiles_and_pages(self) -> None:
        for tokens in (1, 2, 63, 64, 65, 127, 128, 129, 300):
            with self.subTest(tokens=tokens):
                inputs = random_inputs(tokens=tokens)
                self.assert_near(gradients(forgetting_attention, inputs),
                                 gradients(definition, inputs))

    def test_query_heads_share_keys(self) -> None:
        for heads, kv_heads in ((1, 1), (3, 1), (4, 2)):
            with self.subTest(heads=heads, kv_heads=kv_heads):
                inputs = random_inputs(1, 150, heads, kv_heads)
                self.assert_near(gradients(forgetting_attention, inputs),
                                 gradients(definition, inputs))

    def test_strong_gates_and_the_scale(self) -> None:
        inputs = random_inputs(gate=-6.0)
        self.assert_near(gradients(functools.partial(forgetting_attention, sm_scale=1.3), inputs),
                         gradients(functools.partial(definition, scale=1.3), inputs))

    def test_sinks(self) -> None:
        """Beside logits of a few units; sinks of 60 hide all keys, sinks of -60 none."""
        inputs = random_inputs(2, 150, 4, 2, gate=1.0)
        for value in (torch.tensor([0.5, -2.0, 3.0, 60.0]), torch.full((4,), -60.0)):
            sinks = value.double()
            found = gradients(forgetting_attention, inputs, sinks=sinks)
            self.assertEqual(len(found), 6, value)
            self.assert_near(found, gradients(definition, inputs, sinks=sinks))
        self.assert_near(found[:5], gradients(forgetting_attention, inputs))

    def test_finite_differences(self) -> None:
        inputs = random_inputs(1, 6, 2, 1, 3)
        leaves = [x.requires_grad_() for x in inputs.arguments]
        self.assertTrue(torch.autograd.gradcheck(forgetting_attention, leaves))
        sinks = torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True)
        self.assertTrue(torch.autograd.gradcheck(
            lambda *x: forgetting_attention(*x[:4], sinks=x[4]), (*leaves, sinks)))

    def test_the_first_gate_has_no_gradient(self) -> None:
        inputs = random_inputs()
        grad = gradients(forgetting_attention, inputs)[4]
        self.assertEqual(grad[:, 0].abs().max().item(), 0.0)
        self.assertGreater(grad[:, 1].abs().min().item(), 0.0)

    def test_narrow_dtypes_are_computed_in_float32(self) -> None:
        """Only inputs and outputs are rounded: half an ulp, and delta from a rounded output."""
        for dtype, ulp in ((torch.float32, 2.0**-23), (torch.float16, 2.0**-10),
                           (torch.bfloat16, 2.0**-7)):
            with self.subTest(dtype=dtype):
                inputs = random_inputs(dtype=dtype)
                exact = type(inputs)(*(x.double() for x in inputs))
                found = gradients(forgetting_attention, inputs)
                self.assertEqual([x.dtype for x in found], [dtype] * 4 + [torch.float32])
                self.assert_near(found, gradients(definition, exact),
                                 max(8 * ulp, 200 * 2.0**-23))

    def test_a_gate_of_zero_cuts_the_sequence(self) -> None:
        """What lies before log f = -infinity weighs nothing, and nothing is NaN."""
        inputs = random_inputs(1, 200)
        gates = inputs.log_fgate.clone()
        gates[:, 100] = -torch.inf
        found = gradients(forgetting_attention, inputs._replace(log_fgate=gates))
        self.assertFalse(any(x.isnan().any() for x in found))
        for part in (slice(0, 100), slice(100, 200)):
            alone = type(inputs)(*(x[:, part] for x in inputs))
            self.assert_near([x[:, part] for x in found], gradients(forgetting_attention, alone))


if __name__ == "__main__":
    unittest.main()
