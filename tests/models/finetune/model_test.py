"""The PyTorch model against the golden logits of the reference implementations, in float64."""

from __future__ import annotations

import json
import math
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from toy_model import ROOT, write_toy  # first: it skips without torch

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from models.finetune.model import (
    AttentionOptions, FoxModel, forgetting_attention, token_shift)
from models.finetune.model_directory import load_model

from fox_attention import pruning  # behind models.finetune, which finds it

GOLDEN = ROOT / "tests" / "golden"
# Logits of a few layers in float64: every sum has fewer than 2^10 terms of relative error 2^-53.
FLOAT64_ERROR = 2.0**-53 * 2**10


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative error in the norm; NaN counts as infinite."""
    error = ((got - want).norm() / want.norm()).item()
    return error if error == error else float("inf")


class GoldenTest(unittest.TestCase):
    def test_logits(self) -> None:
        folders = sorted(path.parent for path in GOLDEN.glob("*/config.json"))
        self.assertGreaterEqual(len(folders), 13)
        for folder in folders:
            with self.subTest(folder.name):
                ids = json.loads((folder / "expected.json").read_text())["input_ids"]
                model = load_model(folder, 0).model.double()
                with torch.no_grad():
                    logits = model(torch.tensor([ids]))[0]
                for name, want in load_file(folder / "expected.safetensors").items():
                    first = name == "logits_first"
                    got = logits[: len(want)] if first else logits[-len(want):]
                    self.assertEqual(want.dtype, torch.float64, name)
                    self.assertLess(relative_error(got, want), FLOAT64_ERROR, name)


class ModelTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        torch.manual_seed(0)

    def toy(self, **changes: object) -> FoxModel:
        return load_model(write_toy(self.folder, **changes), 0).model.double()

    def test_packed_sequences_equal_single_ones(self) -> None:
        for rope in (False, True):
            with self.subTest(rope=rope):
                model = self.toy(use_rope=rope)
                ids = torch.randint(0, 257, (1, 100))
                borders = [0, 1, 33, 97, 100]
                packed = model(ids, cu_seqlens=torch.tensor(borders, dtype=torch.int32))
                alone = [model(ids[:, a:b]) for a, b in zip(borders, borders[1:])]
                self.assertLess(relative_error(packed, torch.cat(alone, 1)), FLOAT64_ERROR)

    def test_loss_in_parts_equals_the_whole(self) -> None:
        model = self.toy()
        ids = torch.randint(0, 257, (2, 41))
        whole = model(ids[:, :-1], ids[:, 1:])
        whole.backward()
        wanted = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        with unittest.mock.patch("models.finetune.model.LOGITS_AT_ONCE", 257 * 7):
            parts = model(ids[:, :-1], ids[:, 1:])
        parts.backward()
        self.assertLess(abs(parts.item() / whole.item() - 1), FLOAT64_ERROR)
        for (name, parameter), want in zip(model.named_parameters(), wanted):
            with self.subTest(name):
                self.assertLess(relative_error(parameter.grad, want), FLOAT64_ERROR)

    def test_recomputing_changes_no_bit(self) -> None:
        gradients = []
        for recompute in (False, True):
            model = self.toy()
            model.recompute = recompute
            ids = torch.arange(66)[None]
            model(ids[:, :-1], ids[:, 1:]).backward()
            gradients.append([p.grad for p in model.parameters()])
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(*gradients)))

    def test_pruning_loses_no_more_than_it_may(self) -> None:
        model = self.toy()
        with torch.no_grad():
            for layer in model.model.layers:
                layer.attn.fgate_proj.bias.fill_(1.0)
        ids = torch.randint(0, 257, (1, 1500))
        exact = model(ids)
        shares: list[torch.Tensor] = []
        model.set_options(AttentionOptions(-10.0))
        pruned = model(ids, shares=shares)
        self.assertEqual(len(shares), 2)
        self.assertGreater(torch.stack(shares).min().item(), 0.5)
        self.assertFalse(torch.equal(pruned, exact))
        # Each row of each head loses at most exp(-10) of its mass, so its output changes by at most
        # twice that share of the values; the gated norm and two layers keep the order.
        self.assertLess(relative_error(pruned, exact), 2 * 2 * 4.54e-5)

    def test_logits_keep_within_what_attention_is_told(self) -> None:
        """QK-norm whose weights differ by head or are shared, grouped heads, RoPE; and none."""
        for changes in ({}, {"num_heads": 4, "num_kv_heads": 2}, {"use_rope": True},
                        {"qk_norm_share_param_across_head": True}, {"qk_norm": False}):
            with self.subTest(**changes):
                model = self.toy(**changes)
                attend = unittest.mock.Mock(wraps=forgetting_attention)
                for block in model.model.layers:
                    block.attn.attend = attend
                    if model.config.qk_norm:
                        torch.nn.init.normal_(block.attn.q_norm.weight)
                        torch.nn.init.normal_(block.attn.k_norm.weight)
                model(torch.randint(0, 257, (2, 60)))
                self.assertEqual(attend.call_count, 2)
                for layer, call in enumerate(attend.call_args_list):
                    q, k, told = *call.args[:2], call.kwargs["max_logit"]
                    if not model.config.qk_norm:
                        self.assertIsNone(told, layer)
                        continue
                    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
                    logits = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[3])
                    largest = logits.abs().amax((0, 2, 3))
                    self.assertEqual(told.shape, largest.shape, layer)
                    self.assertTrue((largest <= told).all(), layer)
                    # The bound is not empty: some logit comes within a factor of ten.
                    self.assertGreater((largest / told).min().item(), 0.1, layer)

    def test_weights_of_qk_norm_bound_what_rounded_rows_lose(self) -> None:
        """Norm weights that bf16 rounds up by half an ulp; old keys along all queries, a row's own
        key against its query, and one gate that just passes the threshold."""
        tokens, d, first = 1024, 16, 896  # the first row of the last tile
        for size in (1.0, 2.0, 4.0, 8.0):
            with self.subTest(size=size):
                model = self.toy(num_hidden_layers=1)
                attention = model.model.layers[0].attn
                for norm in (attention.q_norm, attention.k_norm):
                    torch.nn.init.constant_(norm.weight, size * (1 + 2.0**-8 + 2.0**-16))
                model.set_options(AttentionOptions(-10.0))
                attention.attend = unittest.mock.Mock(wraps=forgetting_attention)
                model(torch.zeros(1, tokens, dtype=torch.long))
                told = attention.attend.call_args.kwargs
                threshold, max_logit = told["adaptive_threshold"], told["max_logit"]
                ones = torch.ones(tokens, 2, d)
                q = attention.q_norm(ones).bfloat16().double().detach()
                k = attention.k_norm(ones).bfloat16().double().detach()
                k[first:] *= -1
                logit = (q[0] * k[0]).sum(-1) / math.sqrt(d)
                self.assertTrue((logit <= max_logit).all())
                gates = torch.zeros(tokens, 2, dtype=torch.float64)
                gates[first] = threshold.double() * (1 + 2.0**-40)
                pages = pruning.first_pages(gates, k, threshold, None, d**-0.5, -10.0)
                self.assertEqual(pages[:, -1].tolist(), [first // 64] * 2)
                lost = 2 * logit + gates[first] + math.log(first)  # relative to the row's own
                self.assertTrue((lost.exp() / (1 + lost.exp()) <= math.exp(-10)).all())
                # The threshold pays for the rounding, and for the keys that are not lost.
                self.assertGreater((lost + 10).min().item(), -0.14 - logit.max().item() / 16)

    def test_nothing_precedes_a_start(self) -> None:
        x, logit = torch.randn(1, 4, 1, 2), torch.zeros(1, 4, 1)
        starts = torch.tensor([[True, False, True, False]])
        shifted = token_shift(x, logit, starts)
        self.assertTrue(torch.equal(shifted[:, 0], x[:, 0] / 2))
        self.assertTrue(torch.equal(shifted[:, 2], x[:, 2] / 2))
        self.assertTrue(torch.allclose(shifted[:, 3], (x[:, 2] + x[:, 3]) / 2))

    def test_rows_of_products_are_aligned(self) -> None:
        with unittest.mock.patch("torch.nn.functional.linear", wraps=F.linear) as linear:
            self.toy()(torch.zeros(1, 4, dtype=torch.long))
        self.assertEqual({len(call.args[1]) % 16 for call in linear.call_args_list}, {0})

    def test_one_graph_for_all_layers(self) -> None:
        import torch._dynamo.utils

        model = self.toy(num_hidden_layers=4).float()
        ids = torch.randint(0, 257, (2, 65))
        plain = model(ids[:, :-1], ids[:, 1:])
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model.compile_parts(fullgraph=True, backend="aot_eager")
        compiled = model(ids[:, :-1], ids[:, 1:])
        compiled.backward()
        self.assertTrue(torch.equal(plain, compiled))
        # Embedding, layer, loss.
        self.assertEqual(torch._dynamo.utils.counters["stats"]["unique_graphs"], 3)
