#!/usr/bin/env python3
"""The CUDA operators against the float64 reference, and how they behave inside PyTorch. The kernels
themselves are tested in tests/kernels/cuda/attention.

Skipped, and it says so, without a GPU or the compiled library (pip install ./kernels/torch).
Errors are relative, by Euclidean norms. Where the official package forgetting_transformer can be
imported, they are also held to 1.2 times its kernel's.
"""

from __future__ import annotations

import faulthandler
import functools
import pathlib
import sys
import unittest
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from attention_inputs import (BF16_TOLERANCE, NAMES, SKIPPED, AttentionTest,  # noqa: E402
                              Inputs, errors, exact, gradients, random_inputs)

import torch  # noqa: E402
from fox_attention import HAS_CUDA_KERNELS, forgetting_attention, operators  # noqa: E402

try:
    from forgetting_transformer.ops.forgetting_attention import (
        forgetting_attention as official_attention)
except ImportError:
    official_attention = None

bf16_inputs = functools.partial(random_inputs, dtype=torch.bfloat16, device="cuda")


class GpuTest(AttentionTest):
    """Comparisons in bf16."""

    def assert_precise(self, inputs: Inputs, **options: object) -> None:
        """Output and all gradients against the reference with the same options."""
        attend = functools.partial(forgetting_attention, **options)
        found = gradients(attend, inputs)
        wanted = gradients(attend, exact(inputs))
        for name, error in errors(found, wanted).items():
            self.assertLessEqual(error, BF16_TOLERANCE, f"{name} {options}")


class PrecisionTest(GpuTest):
    """Random, ragged and edge shapes."""

    def test_lengths_head_dims_and_groups(self) -> None:
        for tokens, head_dim in ((63, 32), (64, 16), (65, 128), (129, 64), (1000, 128)):
            for heads, kv_heads in ((1, 1), (4, 4), (4, 2), (6, 1)):
                with self.subTest(tokens=tokens, heads=heads, kv_heads=kv_heads):
                    self.assert_precise(bf16_inputs(2, tokens, heads, kv_heads, head_dim))

    def test_sinks(self) -> None:
        """Beside the keys, far above and far below them; packed, tiles with unused rows."""
        sinks = torch.tensor([0.5, 4.0, 60.0, -60.0, 3.0, -1.0], device="cuda")
        cu_seqlens = torch.tensor([0, 1, 70, 70, 400], dtype=torch.int32, device="cuda")
        for head_dim, kv_heads, options in (
                (64, 2, {}), (128, 6, {"max_logit": 20.0}), (32, 1, {"cu_seqlens": cu_seqlens}),
                (64, 2, {"adaptive_threshold": "auto", "bound": "certified"})):
            with self.subTest(head_dim=head_dim, **options):
                inputs = bf16_inputs(1, 400, 6, kv_heads, head_dim, gate=1.0)
                attend = functools.partial(forgetting_attention, **options)
                found = gradients(attend, inputs, sinks=sinks)
                wanted = gradients(attend, exact(inputs), sinks=sinks.double())
                for name, error in errors(found, wanted).items():
                    self.assertLessEqual(error, BF16_TOLERANCE, name)
                self.assert_equal(found[5:], gradients(attend, inputs, sinks=sinks)[5:])

    def test_pruning(self) -> None:
        inputs = bf16_inputs(2, 1500, 4, 2, 64, gate=2.5)
        per_head = torch.tensor([-1e9, -40.0, -8.0, -3.0], device="cuda")
        for options in ({"adaptive_threshold": -6.0}, {"adaptive_threshold": 0.0},
                        {"adaptive_threshold": per_head}, {"adaptive_threshold": "auto"},
                        {"adaptive_threshold": "auto", "bound": "certified"},
                        {"adaptive_threshold": -6.0, "deterministic": True}):
            self.assert_precise(inputs, **options)

    def test_packed_sequences(self) -> None:
        lengths = [1, 63, 0, 64, 65, 500, 129, 2]
        inputs = bf16_inputs(1, sum(lengths) + 10, 4, 2, 64, gate=3.0)
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to("cuda", torch.int32)
        for options in ({}, {"adaptive_threshold": -6.0}, {"adaptive_threshold": "auto"},
                        {"adaptive_threshold": "auto", "bound": "certified"}):
            self.assert_precise(inputs, cu_seqlens=cu_seqlens, **options)
        found = gradients(functools.partial(forgetting_attention, cu_seqlens=cu_seqlens), inputs)
        for name, x in zip(NAMES, found):
            self.assertEqual(x[:, -10:].abs().sum().item(), 0.0, name)

    def test_layouts(self) -> None:
        """Columns of a fused projection, head_first, storage that bulk copies cannot load."""
        fused = bf16_inputs(2, 200, 12, 12, 64).q
        inputs = bf16_inputs(2, 200, 4, 4, 64)
        q, k, v = fused.split(4, dim=2)
        self.assert_precise(inputs._replace(q=q, k=k, v=v))
        shifted = [torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view_as(x)
                   .copy_(x) for x in inputs]
        self.assert_precise(Inputs(*shifted))
        expanded = torch.ones((), dtype=torch.bfloat16, device="cuda").expand(inputs.q.shape)
        self.assert_precise(inputs._replace(d_out=expanded))
        swapped = Inputs(*(x.transpose(1, 2).contiguous() for x in inputs))
        self.assert_precise(swapped, head_first=True)
    @unittest.skipIf(official_attention is None, "the package forgetting_transformer is not here")
    def test_no_gradient_is_much_worse_than_the_official_one(self) -> None:
        for tokens, head_dim, gate in ((1024, 64, 4.0), (1024, 128, 4.0), (4096, 64, 6.0),
                                       (1000, 64, 0.0)):
            inputs = bf16_inputs(1, tokens, 4, 4, head_dim, gate=gate)
            for options in ({}, {"adaptive_threshold": "auto"}):
                with self.subTest(tokens=tokens, head_dim=head_dim, gate=gate, **options):
                    wanted = gradients(functools.partial(forgetting_attention, **options),
                                       exact(inputs))
                    ours, theirs = (
                        errors(gradients(functools.partial(attend, **options), inputs), wanted)
                        for attend in (forgetting_attention, official_attention))
                    for name in NAMES:
                        self.assertLessEqual(ours[name], 1.2 * theirs[name], name)


class MaxLogitTest(GpuTest):
    """Where the caller bounds the logits, no row's maximum is looked for."""

    def far_apart(self, size: float) -> Inputs:
        """Logits size^2 / 8 for the first 128 keys, their negatives for all others."""
        inputs = bf16_inputs(1, 700, 2, 2, 64, gate=9.0)
        q, k = torch.zeros_like(inputs.q), torch.zeros_like(inputs.k)
        q[..., 0], k[:, :128, :, 0], k[:, 128:, :, 0] = size, size, -size
        return inputs._replace(q=q, k=k)

    def test_it_changes_no_more_than_rounding(self) -> None:
        """Weights and output are bf16, 2^-9 relative each, in both runs."""
        for head_dim, tokens in ((32, 129), (64, 65), (64, 1500), (128, 1000)):
            inputs = bf16_inputs(2, tokens, 4, 2, head_dim, gate=3.0)
            norms = [x.double().norm(dim=-1).amax(1) for x in (inputs.q, inputs.k)]
            bound = norms[0] * norms[1].repeat_interleave(2, dim=1) * head_dim**-0.5
            self.assertLess(bound.max().item(), 22, (head_dim, tokens))
            for options in ({}, {"adaptive_threshold": -8.0},
                            {"adaptive_threshold": "auto", "bound": "certified"}):
                self.assert_precise(inputs, max_logit=bound, **options)
                one, other = (forgetting_attention(*inputs.arguments, max_logit=x, **options)
                              for x in (bound, None))
                self.assertLessEqual(errors((one,), (other,))["out"], 2.0**-7, (head_dim, options))

    def test_logits_may_reach_the_bound(self) -> None:
        """Keys of the largest logit lie left of a diagonal tile of the least. dq, dk and
        d_log_fgate are sums that cancel."""
        inputs = self.far_apart(13.0)
        wanted = gradients(forgetting_attention, exact(inputs))
        found = gradients(functools.partial(forgetting_attention, max_logit=13**2 / 8), inputs)
        ratios = errors(found, wanted)
        for name in ("out", "dv"):
            self.assertLessEqual(ratios[name], BF16_TOLERANCE, name)

    def test_large_bounds_change_no_bit(self) -> None:
        inputs = self.far_apart(60.0)
        wanted = gradients(functools.partial(forgetting_attention, deterministic=True), inputs)
        for bound in (450.0, torch.inf):
            attend = functools.partial(forgetting_attention, deterministic=True, max_logit=bound)
            self.assert_equal(gradients(attend, inputs), wanted)
        auto = forgetting_attention(*inputs.arguments, adaptive_threshold="auto")
        self.assertTrue(torch.equal(auto, wanted[0]))

    def test_the_kernel_of_hopper_relies_on_it(self) -> None:
        """A promise that is broken shows: the bound has reached the kernel."""
        if torch.cuda.get_device_capability()[0] != 9:
            self.skipTest("not Hopper")
        out = forgetting_attention(*self.far_apart(60.0).arguments, max_logit=1.0)
        self.assertFalse(out.isfinite().all())


class IntegrationTest(GpuTest):
    """Streams, graphs, compilation, determinism."""

    def setUp(self) -> None:
        self.inputs = bf16_inputs(2, 900, 4, 2, 64, gate=3.0)

    def test_torch_may_ask_for_determinism(self) -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            found = gradients(forgetting_attention, self.inputs)
        finally:
            torch.use_deterministic_algorithms(False)
        wanted = functools.partial(forgetting_attention, deterministic=True)
        self.assert_equal(found, gradients(wanted, self.inputs))

    def test_the_current_stream_is_used(self) -> None:
        """Inputs appear on another stream late: work on any other would read zeros."""
        attend = functools.partial(forgetting_attention, adaptive_threshold="auto",
                                   deterministic=True)
        wanted = gradients(attend, self.inputs)
        late = Inputs(*(torch.zeros_like(x) for x in self.inputs))
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(200_000_000)
            for target, source in zip(late, self.inputs):
                target.copy_(source)
            found = gradients(attend, late)
            torch.cuda.current_stream().synchronize()
        self.assert_equal(found, wanted)

    def test_nothing_waits_for_the_device(self) -> None:
        packed = bf16_inputs(1, 900, 4, 2, 64)
        cu_seqlens = torch.tensor([0, 400, 900], device="cuda", dtype=torch.int32)
        starts = torch.tensor([0, 5], device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            for bound in ("paper", "certified"):
                options = {"adaptive_threshold": "auto", "bound": bound}
                gradients(functools.partial(forgetting_attention, cu_seqlens=cu_seqlens,
                                            **options), packed)
                gradients(functools.partial(forgetting_attention, seq_start=starts, **options),
                          self.inputs)
            gradients(functools.partial(forgetting_attention, adaptive_threshold=-8.0),
                      self.inputs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def test_a_cuda_graph_replays_it(self) -> None:
        attend = functools.partial(forgetting_attention, adaptive_threshold="auto",
                                   deterministic=True)
        other = bf16_inputs(2, 900, 4, 2, 64, gate=3.0, seed=1)
        static = Inputs(*(x.clone() for x in self.inputs))
        with torch.cuda.stream(torch.cuda.Stream()):
            gradients(attend, static)  # warm up
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = gradients(attend, static)
        for inputs in (self.inputs, other):
            for target, source in zip(static, inputs):
                target.copy_(source)
            graph.replay()
            torch.cuda.synchronize()
            self.assert_equal(found, gradients(attend, inputs))

    def test_compiling_changes_nothing(self) -> None:
        for options in ({}, {"adaptive_threshold": -8.0}, {"adaptive_threshold": "auto"}):
            with self.subTest(**options):
                torch._dynamo.reset()
                attend = functools.partial(forgetting_attention, deterministic=True, **options)
                compiled = torch.compile(attend, fullgraph=True)
                self.assert_equal(gradients(compiled, self.inputs),
                                  gradients(attend, self.inputs))

    def test_opcheck(self) -> None:
        q, k, v, gates, d_out = bf16_inputs(1, 300, 4, 2, 64)
        leaves = [x.clone().requires_grad_() for x in (q, k, v, gates)]
        begin, end = (torch.tensor(x, dtype=torch.int32, device="cuda")
                      for x in ([0, 130], [130, 300]))
        per_head = torch.full((2, 4), -20.0, device="cuda")
        packed, whole = (begin, end, True), (None, None, False)
        sinks = torch.zeros(4, device="cuda")
        for ranges, threshold, norm, logit, sink in (
                (packed, None, None, None, None), (packed, per_head, None, -per_head, None),
                (packed, None, -per_head, None, sinks), (whole, None, None, None, None)):
            rest = (*ranges, threshold, norm, 0.125, -10.0, True)
            # Not test_aot_dispatch_dynamic, which compares outputs: some bytes of the state are
            # never written. test_compiling_changes_nothing takes its place.
            torch.library.opcheck(torch.ops.fox.forward, (*leaves, *rest, logit, sink), test_utils=(
                "test_schema", "test_autograd_registration", "test_faketensor"))
            out, state = torch.ops.fox.forward(q, k, v, gates, *rest, logit, sink)
            torch.library.opcheck(torch.ops.fox.backward,
                                  (d_out, q, k, v, gates, out, state, *rest, sink))

    def test_other_dtypes(self) -> None:
        half = [x.half() for x in self.inputs[:3]]
        with self.assertRaisesRegex(TypeError, "cast q, k and v to torch.bfloat16"):
            forgetting_attention(*half, self.inputs.log_fgate)
        wide = Inputs(*(x.float() for x in self.inputs))
        for name, error in errors(gradients(forgetting_attention, wide),
                                  gradients(forgetting_attention, exact(self.inputs))).items():
            self.assertLessEqual(error, 1e-3, name)  # products in TF32 at worst

    def test_autocast_reaches_the_kernels(self) -> None:
        """Float32 tensors, as QK-norm makes them, would take the slow reference."""
        wide = Inputs(*(x.float() for x in self.inputs))
        attend = functools.partial(forgetting_attention, deterministic=True)
        with torch.autocast("cuda", torch.bfloat16):
            found = attend(*wide.arguments)
        self.assert_equal((found,), (attend(*self.inputs.arguments),))

    def test_a_refused_launch_raises_and_blames_no_other_kernel(self) -> None:
        """More heads than a grid has rows; a runtime that PyTorch shares would report them again
        behind its own next kernel, if the error stayed."""
        heads = 65_536
        q, k, v, gates, d_out = bf16_inputs(1, 1, heads, heads, 32)
        state = torch.empty(operators.state_bytes(1, 1, heads, 1), dtype=torch.uint8, device="cuda")
        refusal = "fox_attention backward: invalid (configuration )?argument"  # by the runtime
        with self.assertRaisesRegex(RuntimeError, refusal):
            torch.ops.fox.backward(d_out, q, k, v, gates, q, state, None, None, False, None, None,
                                   0.125, -10.0, False, None)
        self.assertEqual(torch.ones(3, device="cuda").sum().item(), 3.0)

    def test_sinks_without_a_gradient_change_no_other(self) -> None:
        """Backward then does not get them: it has them from the state."""
        sinks = torch.tensor([3.0, 0.0, -1.0, 5.0], device="cuda")
        attend = functools.partial(forgetting_attention, deterministic=True)
        wanted = gradients(attend, self.inputs, sinks=sinks)
        found = gradients(functools.partial(attend, sinks=sinks), self.inputs)
        self.assert_equal(found, wanted[:5])

    def test_second_derivatives_raise(self) -> None:
        leaves = [x.detach().requires_grad_() for x in self.inputs.arguments]
        out = forgetting_attention(*leaves)
        first, = torch.autograd.grad(out, leaves[0], self.inputs.d_out, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "once"):
            torch.autograd.grad(first.float().sum(), leaves[1])

    def test_the_library_checks_for_itself(self) -> None:
        """Invalid arguments of the operator give an error, not a fault."""
        q, k, v, gates, _ = bf16_inputs(1, 64, 2, 2, 64)
        begin, end = (torch.tensor([x], dtype=torch.int32, device="cuda") for x in (0, 64))
        call: Callable[..., object] = torch.ops.fox.forward
        for broken in ((q[:, :32], k, v, gates), (q, k[..., :32], v, gates),
                       (q, k, v, gates.double()), (q, k, v, gates[..., :1]),
                       (q.half(), k, v, gates), (q, k.cpu(), v, gates)):
            with self.assertRaises(RuntimeError):
                call(*broken, begin, end, False, None, None, 0.125, -10.0, False, None, None)
        for ranges in ((begin, None, False), (None, None, True), (begin.cpu(), end, False),
                       (begin.long(), end, False), (begin[:0], end[:0], False)):
            with self.assertRaises(RuntimeError):
                call(q, k, v, gates, *ranges, None, None, 0.125, -10.0, False, None, None)
        for logit in (torch.ones(1, 1, device="cuda"), torch.ones(1, 2),
                      torch.ones(1, 2, device="cuda", dtype=torch.float64)):
            with self.assertRaises(RuntimeError):
                call(q, k, v, gates, begin, end, False, None, None, 0.125, -10.0, False, logit,
                     None)
        for sink in (torch.ones(1, device="cuda"), torch.ones(2),
                     torch.ones(2, device="cuda", dtype=torch.float64)):
            with self.assertRaises(RuntimeError):
                call(q, k, v, gates, begin, end, False, None, None, 0.125, -10.0, False, None, sink)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("SKIPPED: there is no GPU")
        sys.exit(SKIPPED)
    if not HAS_CUDA_KERNELS:
        print("SKIPPED: fox_attention has no CUDA kernels (pip install ./kernels/torch)")
        sys.exit(SKIPPED)
    faulthandler.enable()  # a fault in the library says in which test
    unittest.main()
