#!/usr/bin/env python3
"""The operators as PyTorch sees them: opcheck, torch.compile, checkpointing, saved memory."""

from __future__ import annotations

import functools
import pathlib
import sys
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from attention_inputs import (AttentionTest, OperatorCalls, gradients,  # noqa: E402
                              random_inputs)

import torch  # noqa: E402
import torch._dynamo.testing  # noqa: E402
from fox_attention import attention, forgetting_attention  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402


def compiled(**options: object) -> object:
    """forgetting_attention with these options, compiled into one graph or refused."""
    torch._dynamo.reset()
    return torch.compile(functools.partial(forgetting_attention, **options), fullgraph=True,
                         backend="aot_eager")


class OperatorsTest(AttentionTest):
    """The reference's operators. CUDA's have the same registration; torch_binding_test.py runs
    them."""

    def test_opcheck(self) -> None:
        inputs = random_inputs(1, 70, 2, 1)
        leaves = [x.requires_grad_() for x in inputs.arguments]
        begin, end = (torch.tensor(x, dtype=torch.int32) for x in ([0, 30], [30, 70]))
        per_head = torch.full((2, 2), -4.0)
        sinks = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        for threshold, norm, logit, sink in (
                (None, None, None, None), (per_head, None, -per_head, None),
                (None, -per_head, None, sinks)):
            rest = (begin, end, True, threshold, norm, 0.3, -10.0, False)
            torch.library.opcheck(torch.ops.fox.reference_forward, (*leaves, *rest, logit, sink))
            out, lse = torch.ops.fox.reference_forward(*leaves, *rest, logit, sink)
            torch.library.opcheck(torch.ops.fox.reference_backward, (
                inputs.d_out, *(x.detach() for x in (*leaves, out, lse)), *rest,
                None if sink is None else sink.detach()))
        torch.library.opcheck(torch.ops.fox.reference_forward, (
            *leaves, None, None, False, None, None, 0.3, -10.0, False, None, None))

    def test_it_compiles_into_one_graph(self) -> None:
        inputs = random_inputs(1, 150, 2, 1, gate=3.0)
        cu_seqlens = torch.tensor([0, 70, 150], dtype=torch.int32)
        for options in ({}, {"adaptive_threshold": -6.0}, {"adaptive_threshold": "auto"},
                        {"adaptive_threshold": torch.tensor([-6.0, -8.0])},
                        {"adaptive_threshold": "auto", "bound": "certified"},
                        {"seq_start": torch.tensor([40])},
                        {"cu_seqlens": cu_seqlens, "adaptive_threshold": "auto"},
                        {"max_logit": 9.0}, {"max_logit": torch.tensor([9.0, 8.0])},
                        {"deterministic": True}):
            with self.subTest(**options):
                eager = functools.partial(forgetting_attention, **options)
                self.assert_near(gradients(compiled(**options), inputs), gradients(eager, inputs))
        sinks = torch.tensor([1.0, -2.0], dtype=torch.float64)
        self.assert_near(gradients(compiled(), inputs, sinks=sinks),
                         gradients(forgetting_attention, inputs, sinks=sinks))

    def test_one_graph_serves_all_lengths(self) -> None:
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        attend = torch.compile(functools.partial(forgetting_attention, adaptive_threshold="auto"),
                               fullgraph=True, backend=counter, dynamic=True)
        graphs = []
        for tokens in (60, 130, 131, 257):
            inputs = random_inputs(2, tokens)
            wanted = forgetting_attention(*inputs.arguments, adaptive_threshold="auto")
            self.assert_near((attend(*inputs.arguments),), (wanted,))
            graphs.append(counter.frame_count)
        self.assertEqual(graphs[0], graphs[-1])

    def test_some_inputs_may_be_constant(self) -> None:
        """Only the inputs that ask for a gradient get one; sinks that do not, do not reach
        backward."""
        inputs, sinks = random_inputs(1, 70), torch.tensor([1.0, -2.0], dtype=torch.float64)
        wanted = gradients(forgetting_attention, inputs, sinks=sinks)
        for asking in ((0,), (1,), (2,), (3,), (4,), (0, 1, 2, 3), (3, 4)):
            leaves = [x.detach().requires_grad_(i in asking)
                      for i, x in enumerate((*inputs.arguments, sinks))]
            with self.subTest(asking=asking):
                with OperatorCalls() as operators:
                    forgetting_attention(*leaves[:4], sinks=leaves[4]).backward(inputs.d_out)
                for i, leaf in enumerate(leaves):
                    self.assertEqual(leaf.grad is not None, i in asking, i)
                    if leaf.grad is not None:
                        self.assertTrue(torch.equal(leaf.grad, wanted[i + 1]), i)
                name, arguments = operators.calls[-1]
                self.assertEqual(name, "reference_backward")
                self.assertEqual(arguments[-1] is not None, 4 in asking)

    def test_second_derivatives_raise(self) -> None:
        """By every way that PyTorch has to ask for them; the first ones stay as they were."""
        inputs = random_inputs(1, 70, 2, 1)
        for index in range(5):  # the fifth: by the gradient of the output, in which it is linear
            leaves = [x.detach().requires_grad_(i == index) for i, x in enumerate(inputs)]
            out = forgetting_attention(*leaves[:4])
            if index == 4:
                leaves[0].requires_grad_()
                out = forgetting_attention(*leaves[:4])
            asked = leaves[0 if index == 4 else index]
            first, = torch.autograd.grad(out, asked, leaves[4], create_graph=True)
            again, = torch.autograd.grad(forgetting_attention(*leaves[:4]), asked, leaves[4])
            self.assert_equal((first.detach(),), (again,))
            with self.subTest(index=index), self.assertRaisesRegex(RuntimeError, "once"):
                torch.autograd.grad(first.square().sum(), leaves[index])

        def loss(q: torch.Tensor) -> torch.Tensor:
            return forgetting_attention(q, *inputs.arguments[1:]).square().sum()

        for ask in (lambda q: torch.autograd.functional.hessian(loss, q),
                    lambda q: torch.func.grad(lambda x: torch.func.grad(loss)(x).sum())(q),
                    lambda q: torch.func.hessian(loss)(q),
                    lambda q: torch.func.jvp(torch.func.grad(loss), (q,), (q,)),
                    lambda q: torch.func.jvp(loss, (q,), (q,))):
            with self.assertRaises(RuntimeError):
                ask(inputs.q)
        with torch.autograd.forward_ad.dual_level():
            for index in range(4):
                duals = [torch.autograd.forward_ad.make_dual(x, x) if i == index else x
                         for i, x in enumerate(inputs.arguments)]
                with self.assertRaisesRegex(RuntimeError, "forward-mode"):
                    forgetting_attention(*duals)

    def test_autocast_casts_as_for_pytorchs_own_attention(self) -> None:
        inputs = random_inputs(1, 70, dtype=torch.float32)
        q, k, v, gates = inputs.arguments
        own = torch.nn.functional.scaled_dot_product_attention
        for dtype in (torch.bfloat16, torch.float16):
            cast = [x.to(dtype) for x in (q, k, v)]
            wanted = forgetting_attention(*cast, gates)
            for mixed in ((q, k, v), (q, *cast[1:]), (cast[0], k, cast[2]), cast):
                with torch.autocast("cpu", dtype):
                    self.assertEqual(own(*mixed).dtype, dtype, [x.dtype for x in mixed])
                    self.assert_equal((forgetting_attention(*mixed, gates),), (wanted,))
                    self.assert_equal((compiled()(*mixed, gates),), (wanted,))
        with torch.autocast("cpu", torch.bfloat16):
            found = gradients(forgetting_attention, inputs)
            double = random_inputs(1, 70)
            self.assertEqual(own(*double[:3]).dtype, torch.float64)
            self.assertEqual(forgetting_attention(*double.arguments).dtype, torch.float64)
            with torch.autocast("cpu", enabled=False):
                self.assertEqual(forgetting_attention(*inputs.arguments).dtype, torch.float32)
        self.assertEqual({x.dtype for x in found[1:]}, {torch.float32})

    def test_autocast_on_cuda_leaves_gates_and_sinks_alone(self) -> None:
        """The dtypes that reach the CUDA operator, without a GPU: fake tensors have no memory.
        torch.autocast would disable itself."""
        self.addCleanup(torch.set_autocast_enabled, "cuda", torch.is_autocast_enabled("cuda"))
        self.addCleanup(torch.set_autocast_dtype, "cuda", torch.get_autocast_dtype("cuda"))
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            with (self.subTest(dtype=dtype), FakeTensorMode(), OperatorCalls() as operators,
                  unittest.mock.patch.object(attention, "HAS_CUDA_KERNELS", True)):
                q, k, v = (torch.empty(1, 70, 2, 64, device="cuda", dtype=dtype) for _ in range(3))
                gates, sinks = (torch.empty(shape, device="cuda") for shape in ((1, 70, 2), (2,)))
                out = forgetting_attention(q, k, v, gates, sinks=sinks)
                self.assertEqual(out.dtype, torch.bfloat16)
                (name, arguments), = operators.calls
                self.assertEqual(name, "forward")
                self.assertEqual([x.dtype for x in (*arguments[:4], arguments[-1])],
                                 [torch.bfloat16] * 3 + [torch.float32] * 2)

    def test_nothing_quadratic_is_saved(self) -> None:
        inputs, sizes = random_inputs(1, 1000), []
        leaves = [x.requires_grad_() for x in inputs.arguments]

        def pack(x: torch.Tensor) -> torch.Tensor:
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            forgetting_attention(*leaves)
        self.assertLess(sum(sizes), 6 * inputs.q.numel())


if __name__ == "__main__":
    unittest.main()
