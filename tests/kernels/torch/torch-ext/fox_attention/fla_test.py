#!/usr/bin/env python3
"""flash-linear-attention with this package as its back end, against FLA's own definition.

Skipped, and it says so, without fla-core. Without a GPU the reference takes the kernels' place in
calls of FLA's functions; sums over tokens, which FLA computes by a Triton kernel, are PyTorch's.
"""

from __future__ import annotations

import functools
import importlib
import pathlib
import sys
import unittest
import warnings
from collections.abc import Callable
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from attention_inputs import (BF16_TOLERANCE, SKIPPED, AttentionTest, errors,  # noqa: E402
                              exact, gradients, random_inputs)

import torch  # noqa: E402
from fox_attention import HAS_CUDA_KERNELS, operators  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

warnings.filterwarnings("ignore", "Triton is not supported")  # FLA's, without a GPU
warnings.filterwarnings("ignore", "fox_attention was built without")
try:
    import fla.ops.attn.parallel as fla_parallel
    from fla.ops.attn import naive_parallel_attn, parallel_attn
    from fla.ops.forgetting_attn import parallel_forgetting_attn
    from fla.ops.utils.constant import RCP_LN2
    from fla.ops.utils.cumsum import chunk_global_cumsum_scalar_kernel
except ImportError as error:
    print(f"SKIPPED: {sys.executable} cannot import fla-core, which ./run test all installs: "
          f"{error}")
    sys.exit(SKIPPED)
from fox_attention import fla as backend  # noqa: E402


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_fgate: torch.Tensor, *,
          lengths: tuple[int, ...] = (), scale: float | None = None,
          sinks: torch.Tensor | None = None) -> torch.Tensor:
    """FLA's definition, for packed sequences one by one."""
    parts = zip(*(x.split(lengths or (x.shape[1],), dim=1) for x in (q, k, v, log_fgate)))
    return torch.cat([naive_parallel_attn(*part[:3], scale, g=part[3], sink_bias=sinks)[0]
                      for part in parts if part[0].shape[1]], dim=1)


def dispatched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_fgate: torch.Tensor, *,
               lengths: tuple[int, ...] = (), scale: float | None = None,
               sinks: torch.Tensor | None = None) -> torch.Tensor:
    """FLA's attention, which selects a back end."""
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(q.device) if lengths else None
    return parallel_attn(q, k, v, log_fgate, scale, cu_seqlens=bounds, sink_bias=sinks)


def token_sums(x: torch.Tensor, reverse: bool = False, cu_seqlens: torch.Tensor | None = None,
               scale: float | None = None) -> torch.Tensor:
    """FLA's chunk_global_cumsum in float64."""
    bounds = [0, x.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    parts = x.double().split([end - begin for begin, end in zip(bounds, bounds[1:])], dim=1)
    if reverse:
        parts = tuple(part.flip(1).cumsum(1).flip(1) for part in parts)
    else:
        parts = tuple(part.cumsum(1) for part in parts)
    return torch.cat(parts, dim=1) * (1.0 if scale is None else scale)


class ReferenceOperators:
    """The reference with a state of bytes, as the kernels have."""

    @staticmethod
    def forward(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = torch.ops.fox.reference_forward(*arguments)
        return out, lse.view(torch.uint8)

    @staticmethod
    def backward(*arguments: object) -> tuple[torch.Tensor, ...]:
        *tensors, state = arguments[:7]
        return torch.ops.fox.reference_backward(*tensors, state.view(torch.float64),
                                                *arguments[7:])


class ReferenceTest(AttentionTest):
    """FLA's autograd function and dispatcher, float64 on the CPU."""

    # FLA's 1 / ln 2 is 1.3e-8 off, of log gates that sum to 40; a weight's relative error is twice
    # as large as its logit's. float32 sinks and their gradient: 2^-24.
    TOLERANCE = 2e-6

    def setUp(self) -> None:
        for patch in (mock.patch.object(backend, "ops", ReferenceOperators),
                      mock.patch.object(backend, "_refusal", lambda *_: None),
                      mock.patch.object(fla_parallel, "chunk_global_cumsum", token_sums)):
            patch.start()
            self.addCleanup(patch.stop)

    def test_output_and_gradients(self) -> None:
        sinks = torch.tensor([0.5, 4.0, -3.0, 40.0], dtype=torch.float64)
        packed = (1, 63, 0, 64, 65, 0)
        for options in ({}, {"kv_heads": 2}, {"scale": 0.7}, {"sinks": sinks},
                        {"lengths": packed}, {"lengths": packed, "sinks": sinks, "kv_heads": 1}):
            with self.subTest(**options):
                kv_heads = options.pop("kv_heads", 4)
                lengths, sinks_here = options.get("lengths", ()), options.pop("sinks", None)
                inputs = random_inputs(1 if lengths else 2, sum(lengths) or 200, 4, kv_heads)
                # Multiples of 2^-6: FLA's definition adds gates in float32.
                inputs = inputs._replace(log_fgate=(64 * inputs.log_fgate).round() / 64)
                found, wanted = (gradients(functools.partial(attend, **options), inputs,
                                           sinks=sinks_here) for attend in (dispatched, naive))
                self.assert_near(found, wanted, self.TOLERANCE)

    def test_gates_from_their_sums(self) -> None:
        """A difference across sequences would be as large as a whole sum, and cost the kernels'
        float32 sums of gates their precision."""
        lengths = (1, 63, 0, 64, 65, 0)
        gates = random_inputs(1, sum(lengths)).log_fgate
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        found = backend._log_gates(token_sums(gates, cu_seqlens=bounds, scale=RCP_LN2), bounds)
        wanted = gates.clone()
        wanted[:, [0, 1, 64, 128]] = 0
        torch.testing.assert_close(found, wanted, rtol=0, atol=self.TOLERANCE)

    def test_far_keys_are_pruned_in_both_passes(self) -> None:
        """Of the last row's weights, at e^-1 a token, the first page has less than e^-300."""
        inputs = random_inputs(1, 400)
        inputs = inputs._replace(log_fgate=torch.full_like(inputs.log_fgate, -1.0),
                                 d_out=inputs.d_out * (torch.arange(400) == 399)[:, None, None])
        found, wanted = (gradients(attend, inputs) for attend in (dispatched, naive))
        self.assert_near(found, wanted, self.TOLERANCE)
        for name, one, other in zip(("dk", "dv"), found[2:4], wanted[2:4]):
            self.assertEqual(one[:, :64].abs().max().item(), 0, name)
            self.assertGreater(other[:, :64].abs().max().item(), 0, name)


class SelectionTest(unittest.TestCase):
    """Which calls are served: fake tensors, there need be no GPU."""

    def test_forward(self) -> None:
        def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16,
                   device: str = "cuda") -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        with FakeTensorMode(), mock.patch.object(backend, "HAS_CUDA_KERNELS", True):
            call = {"q": tensor(2, 9, 4, 64), "k": tensor(2, 9, 2, 64), "v": tensor(2, 9, 2, 64),
                    "g_cumsum": tensor(2, 9, 4, dtype=torch.float32), "sink_bias": None,
                    "scale": 0.125, "window_size": None, "cu_seqlens": None, "chunk_indices": None}
            for reason, changes in (
                    (None, {}), (None, {"sink_bias": tensor(4)}),
                    (None, {"cu_seqlens": tensor(3, dtype=torch.int64)}),
                    (None, {x: tensor(2, 9, 4, 32) for x in "qkv"}),
                    (None, {x: tensor(2, 9, 4, 128) for x in "qkv"}),
                    ("no gate", {"g_cumsum": None}),
                    ("a window", {"window_size": 4096}),
                    ("bfloat16 on CUDA", {"v": tensor(2, 9, 2, 64, dtype=torch.float16)}),
                    ("float32 on cuda", {x: tensor(2, 9, 4, 64, dtype=torch.float32)
                                         for x in "qkv"}),
                    ("on cpu", {x: tensor(2, 9, 4, 64, device="cpu") for x in "qkv"}),
                    ("head sizes", {x: tensor(2, 9, 4, 96) for x in "qkv"}),
                    ("head sizes", {"v": tensor(2, 9, 2, 128)}),
                    ("scale", {"scale": -0.125}),
                    ("tokens", {x: tensor(2, 0, 4, 64) for x in "qkv"})):
                served, found = backend.FoxAttentionBackend().verify(
                    "parallel_attn_fwd", **{**call, **changes})
                with self.subTest(changes=changes):
                    self.assertEqual(served, reason is None, found)
                    self.assertIn(reason or "", found or "")

    def test_backward_follows_forward(self) -> None:
        x = torch.zeros(1)
        for state, wanted in ((torch.zeros(9, dtype=torch.uint8), True), (x, False)):
            served, _ = backend.FoxAttentionBackend().verify(
                "parallel_attn_bwd", q=x, k=x, v=x, o=x, g_cumsum=x, lse=state, do=x, of_0_7=None)
            self.assertEqual(served, wanted)

    def test_import_says_what_is_missing(self) -> None:
        self.addCleanup(importlib.reload, backend)
        with mock.patch.dict(sys.modules, {"fla.backends": None}):
            with self.assertRaisesRegex(ImportError, "needs fla-core 0.6 or later"):
                importlib.reload(backend)
        with mock.patch.object(operators, "HAS_CUDA_KERNELS", False):
            with self.assertWarnsRegex(UserWarning, "built without its CUDA kernels"):
                importlib.reload(backend)
        with self.subTest("then FLA serves all"):
            self.assertRegex(backend._refusal(*(None,) * 6), "without its CUDA kernels")


@unittest.skipUnless(torch.cuda.is_available() and HAS_CUDA_KERNELS, "no GPU or no kernels")
class KernelTest(AttentionTest):
    """The kernels in FLA's calls, bf16."""

    @classmethod
    def setUpClass(cls) -> None:
        # FLA tries 48 configurations of its sums for each shape: half a minute.
        del chunk_global_cumsum_scalar_kernel.fn.configs[1:]

    def setUp(self) -> None:
        self.served = []
        for name in ("parallel_attn_fwd", "parallel_attn_bwd"):
            method = getattr(backend.FoxAttentionBackend, name)

            def call(*arguments: object, own: Callable[..., object] = method, **options: object
                     ) -> object:
                self.served.append(own.__name__)
                return own(*arguments, **options)

            patch = mock.patch.object(backend.FoxAttentionBackend, name, call)
            patch.start()
            self.addCleanup(patch.stop)

    def test_output_and_gradients(self) -> None:
        ragged = (1, 63, 0, 64, 65, 1000)
        sinks = torch.tensor([0.5, 4.0, 60.0, -60.0], device="cuda")
        for head_dim, kv_heads, tokens, options in (
                (64, 4, 1, {}), (64, 2, 63, {}), (128, 4, 64, {}), (128, 1, 65, {}),
                (32, 4, 1000, {"scale": 0.3}), (64, 4, 1000, {}), (128, 2, 1000, {}),
                (64, 2, sum(ragged), {"lengths": ragged}),
                (128, 4, sum(ragged), {"lengths": ragged}), (64, 2, 300, {"sinks": sinks})):
            with self.subTest(head_dim=head_dim, kv_heads=kv_heads, tokens=tokens, **options):
                inputs = random_inputs(1 if options.get("lengths") else 2, tokens, 4, kv_heads,
                                       head_dim, dtype=torch.bfloat16, device="cuda")
                sinks_here = options.pop("sinks", None)
                found = gradients(functools.partial(dispatched, **options), inputs,
                                  sinks=sinks_here)
                self.assertEqual(self.served, ["parallel_attn_fwd", "parallel_attn_bwd"])
                self.served.clear()
                wanted = gradients(functools.partial(naive, **options), exact(inputs),
                                   sinks=None if sinks_here is None else sinks_here.double())
                for name, error in errors(found, wanted).items():
                    self.assertLessEqual(error, BF16_TOLERANCE, name)

    def test_forgetting_attention_of_fla(self) -> None:
        """The function of FLA's Forgetting Transformer, one gate per token and head."""
        inputs = random_inputs(1, 129, 4, 4, 64, dtype=torch.bfloat16, device="cuda")
        found, wanted = (gradients(parallel_forgetting_attn, inputs),
                         gradients(naive, exact(inputs)))
        self.assertEqual(self.served, ["parallel_attn_fwd", "parallel_attn_bwd"])
        for name, error in errors(found, wanted).items():
            self.assertLessEqual(error, BF16_TOLERANCE, name)

    def test_other_calls_are_as_without_the_back_end(self) -> None:
        inputs = random_inputs(1, 300, 4, 2, 64, dtype=torch.bfloat16, device="cuda")

        def without_gate(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                         _: torch.Tensor) -> torch.Tensor:
            return parallel_attn(q, k, v)

        for attend, outputs in ((without_gate, 4),
                                (functools.partial(parallel_attn, window_size=100), 5)):
            found = gradients(attend, inputs)[:outputs]
            with mock.patch.object(backend.FoxAttentionBackend, "is_enabled", lambda _: False):
                wanted = gradients(attend, inputs)[:outputs]
            self.assert_equal(found, wanted)
        self.assertEqual(self.served, [])


if __name__ == "__main__":
    unittest.main()
