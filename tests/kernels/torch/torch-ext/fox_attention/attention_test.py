#!/usr/bin/env python3
"""The arguments of forgetting_attention: their meaning, and their refusals.

Official: forgetting_transformer.ops.forgetting_attention (adaptive-computation-pruning version).
"""

from __future__ import annotations

import functools
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from attention_inputs import (AttentionTest, Inputs, OperatorCalls, definition,  # noqa: E402
                              gradients, random_inputs)

import torch  # noqa: E402
from fox_attention import forgetting_attention  # noqa: E402


class LayoutTest(AttentionTest):
    """Where the arguments lie."""

    def test_head_first(self) -> None:
        inputs = random_inputs()
        swapped = type(inputs)(*(x.transpose(1, 2) for x in inputs))
        found = gradients(functools.partial(forgetting_attention, head_first=True), swapped)
        self.assert_equal([x.transpose(1, 2) for x in found],
                          gradients(forgetting_attention, inputs))

    def test_fewer_queries_are_the_last(self) -> None:
        inputs = random_inputs()
        inputs = inputs._replace(q=inputs.q[:, 130:], d_out=inputs.d_out[:, 130:])
        for head_first in (False, True):
            with self.subTest(head_first=head_first):
                def attend(*tensors: torch.Tensor) -> torch.Tensor:
                    if not head_first:
                        return forgetting_attention(*tensors)
                    swapped = (x.transpose(1, 2) for x in tensors)
                    return forgetting_attention(*swapped, head_first=True).transpose(1, 2)
                self.assert_near(gradients(attend, inputs), gradients(definition, inputs))

    def test_nothing_in_nothing_out(self) -> None:
        for tokens, batch in ((0, 2), (5, 0)):
            inputs = random_inputs(batch, tokens)
            out = forgetting_attention(*inputs.arguments, adaptive_threshold="auto")
            self.assertEqual(out.shape, inputs.q.shape, (tokens, batch))


class SequencesTest(AttentionTest):
    """Left padding and packed sequences."""

    def test_seq_start_hides_what_comes_before(self) -> None:
        inputs = random_inputs(4, 140)
        starts = [0, 1, 70, 139]
        found = gradients(functools.partial(forgetting_attention, seq_start=torch.tensor(starts)),
                          inputs)
        for row, start in enumerate(starts):
            alone = type(inputs)(*(x[row:row + 1, start:] for x in inputs))
            self.assert_near([x[row:row + 1, start:] for x in found],
                             gradients(forgetting_attention, alone))
            for x in found:
                self.assertEqual(x[row, :start].abs().sum().item(), 0.0, f"row {row}")

    def test_packed_sequences_are_separate_calls(self) -> None:
        lengths = [1, 63, 0, 64, 65, 200]
        inputs = random_inputs(1, sum(lengths), 4, 2, gate=3.0)
        cu_seqlens = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        for options in ({}, {"adaptive_threshold": -4.0}, {"adaptive_threshold": "auto"},
                        {"adaptive_threshold": "auto", "bound": "certified"},
                        {"sinks": torch.tensor([0.0, 1.0, -3.0, 5.0], dtype=torch.float64)}):
            with self.subTest(**options):
                attend = functools.partial(forgetting_attention, **options)
                found = gradients(functools.partial(attend, cu_seqlens=cu_seqlens), inputs)
                for begin, length in zip(cu_seqlens.tolist(), lengths):
                    alone = type(inputs)(*(x[:, begin:begin + length] for x in inputs))
                    self.assert_near([x[:, begin:begin + length] for x in found],
                                     gradients(attend, alone))

class MaxLogitTest(AttentionTest):
    """A bound of the logits: how it reaches the operator, that it is no mathematics."""

    def given_to_the_operator(self, inputs: Inputs, **options: object) -> torch.Tensor | None:
        """The operator's last argument but one."""
        with torch.no_grad(), OperatorCalls() as operators:
            forgetting_attention(*inputs.arguments, **options)
        (name, arguments), = operators.calls
        self.assertEqual(name, "reference_forward")
        return arguments[-2]

    def test_it_is_broadcast_to_sequences_and_heads(self) -> None:
        inputs = random_inputs(3, 20, 4, 2)
        for value in (9, 9.0, torch.tensor(9.0), torch.full((4,), 9.0, dtype=torch.float64),
                      torch.full((3, 1), 9.0, requires_grad=True)):
            found = self.given_to_the_operator(inputs, max_logit=value)
            self.assertTrue(found.is_contiguous(), value)
            torch.testing.assert_close(found, torch.full((3, 4), 9.0))
        packed = type(inputs)(*(x[:1] for x in inputs))
        cu_seqlens = torch.tensor([0, 5, 20], dtype=torch.int32)
        found = self.given_to_the_operator(packed, cu_seqlens=cu_seqlens,
                                           max_logit=torch.tensor([[1.0], [2.0]]))
        torch.testing.assert_close(found, torch.tensor([[1.0] * 4, [2.0] * 4]))

class RefusalTest(unittest.TestCase):
    """Each message names the wrong argument. The official function asserts, or its kernel fails."""

    def refuses(self, error: type[Exception], message: str, *, shape: dict[str, int] | None = None,
                dtype: torch.dtype = torch.bfloat16, **changes: object) -> None:
        inputs = random_inputs(**{"tokens": 8, **(shape or {})}, dtype=dtype)._asdict()
        del inputs["d_out"]
        options = {name: changes.pop(name) for name in list(changes) if name not in inputs}
        inputs.update(changes)
        with self.assertRaisesRegex(error, message):
            forgetting_attention(*inputs.values(), **options)

    def test_sinks(self) -> None:
        self.refuses(ValueError, r"sinks must have shape \(2,\)", sinks=torch.zeros(1))
        self.refuses(TypeError, "sinks must be torch.float32", sinks=torch.zeros(2).bfloat16())

    def test_gates(self) -> None:
        gates = torch.zeros(2, 8, 2)
        self.refuses(TypeError, "log_fgate must be torch.float32", log_fgate=gates.bfloat16())
        self.refuses(TypeError, "log_fgate must be torch.float32", log_fgate=gates.double())
        self.refuses(ValueError, "log_fgate must have a gate for each key", log_fgate=gates[:, :7])
        self.refuses(ValueError, "log_fgate must have a gate for each key",
                     log_fgate=gates.transpose(1, 2))

    def test_shapes_and_dtypes(self) -> None:
        x = torch.zeros(2, 8, 2, 8, dtype=torch.bfloat16)
        self.refuses(ValueError, "k and v must have one shape", v=x[:, :7])
        self.refuses(ValueError, "agree in batch and head size", q=x[..., :4])
        self.refuses(ValueError, "q must not be longer than k", q=torch.cat([x, x], dim=1))
        self.refuses(ValueError, "multiple of the number of kv", shape={"heads": 3, "kv_heads": 2})
        self.refuses(ValueError, "q must have 4 dimensions", q=x[0])
        self.refuses(TypeError, "must agree in dtype", k=x.float(), v=x.float())
        self.refuses(TypeError, "must be floating point", q=x.int(), k=x.int(), v=x.int())

    def test_thresholds_and_bounds(self) -> None:
        self.refuses(ValueError, "adaptive_threshold must be None", adaptive_threshold="yes")
        self.refuses(RuntimeError, "adaptive_threshold must be broadcastable",
                     adaptive_threshold=torch.zeros(3))
        for shape in ((3,), (2, 1, 1), (2, 8)):
            self.refuses(RuntimeError, "max_logit must be broadcastable",
                         max_logit=torch.zeros(shape))
        self.refuses(RuntimeError, "max_logit must be broadcastable", shape={"batch": 1},
                     cu_seqlens=torch.tensor([0, 4, 8], dtype=torch.int32),
                     max_logit=torch.zeros(3, 2))
        self.refuses(ValueError, 'bound must be "paper"', bound="loose")
        self.refuses(ValueError, "must be None or \"auto\"", bound="certified",
                     adaptive_threshold=-10.0)
        self.refuses(ValueError, "log_eps must be below 0", bound="certified",
                     adaptive_threshold="auto", log_eps=0.0)

    def test_sequences(self) -> None:
        cu_seqlens = torch.tensor([0, 8], dtype=torch.int32)
        self.refuses(ValueError, "batch must be 1", cu_seqlens=cu_seqlens)
        self.refuses(ValueError, "must be int32", shape={"batch": 1}, cu_seqlens=cu_seqlens.long())
        self.refuses(ValueError, "must be int32", shape={"batch": 1}, cu_seqlens=cu_seqlens[:1])
        self.refuses(ValueError, "seq_start must have shape", seq_start=torch.zeros(3))
        self.refuses(TypeError, "seq_start must hold integers", seq_start=torch.zeros(2))
        self.refuses(ValueError, "exclude each other", shape={"batch": 1}, cu_seqlens=cu_seqlens,
                     seq_start=torch.zeros(1, dtype=torch.long))


if __name__ == "__main__":
    unittest.main()
