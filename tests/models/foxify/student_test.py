"""Teacher and student against transformers' models of the same weights."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from toy_llama import QWEN2, QWEN3, write_toy  # first: it skips without torch

import torch
from safetensors.torch import load_file
from torch import Tensor
from toy_model import ROOT

from models.convert import fox_convert
from models.foxify import student as student_module
from models.foxify.adapter import open_merged, round_as_shipped, write_adapter
from models.foxify.base_model import BaseModel, linear
from models.foxify.distillation import distillation
from models.foxify.layer_matrices import MATRICES
from models.foxify.pressure import excess, penalty
from models.foxify.student import Student, window_attention

sys.path.append(str(ROOT / "tests/bench/peers"))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def students(folder: Path, rank: int = 4, dtype: torch.dtype = torch.float32
             ) -> tuple[BaseModel, Student]:
    base = BaseModel(folder, torch.device("cpu"), dtype)
    torch.manual_seed(0)
    return base, Student(base, rank, None)


def dense_window(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int) -> Tensor:
    """window_attention by a matrix of probabilities."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    logits = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    i = torch.arange(q.shape[1])
    gap = i[:, None] - i
    logits = torch.where((gap >= 0) & (gap < window), logits, -torch.inf)
    column = sinks[None, :, None, None].expand(*logits.shape[:3], 1)
    p = torch.cat((logits, column), -1).softmax(-1)[..., :-1]
    return torch.einsum("bhij,bjhd->bihd", p, v)


class StudentTest(unittest.TestCase):
    """On the CPU, in float32."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.ids = torch.randint(0, 256, (2, 192), generator=torch.Generator().manual_seed(2))

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "needs transformers")
    def test_with_open_gates_it_is_the_transformers_model(self) -> None:
        from transformers import AutoModelForCausalLM

        for name, changes in (("llama", {}), ("qwen3", QWEN3),
                              ("yarn", QWEN2 | {"rope_scaling": YARN})):
            with self.subTest(name), torch.no_grad():
                folder = write_toy(self.folder / name, **changes)
                expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(
                    self.ids).logits
                base, student = students(folder)
                student.sinks.fill_(-torch.inf)
                student.gate_bias.fill_(1e9)
                for model, hidden in (("base", base.hidden(self.ids)),
                                      ("student", student(self.ids)[0])):
                    error = (base.logits(hidden) - expected).abs().max() / expected.abs().max()
                    self.assertLess(error, 1e-5, model)

    def test_gates_sinks_and_caps_are_the_servers(self) -> None:
        """The golden models of the server's tests, which other code made."""
        folders = sorted((ROOT / "tests/golden/transformers").glob("*_forgetting"))
        self.assertEqual(len(folders), 4)
        for folder in folders:
            with self.subTest(folder.name), torch.no_grad():
                ids = json.loads((folder / "expected.json").read_text())["input_ids"]
                (expected,) = load_file(folder / "expected.safetensors").values()
                student = open_merged(folder, torch.device("cpu"), torch.float32)
                padded = torch.tensor([ids + [0] * (-len(ids) % 64)])
                logits = student.base.logits(student(padded)[0])[0, : len(ids)]
                error = (logits[-len(expected):] - expected).abs().max() / expected.abs().max()
                self.assertLess(error, 1e-5)

    def test_caps_bound_what_is_stored_and_sinks_start_at_the_logit_of_token_0(self) -> None:
        base, student = students(write_toy(self.folder / "llama", rope_scaling=YARN))
        student.calibrate(self.ids)
        student.scale_caps(0.25)
        seen: list[torch.Tensor] = []
        project = base.project
        base.project = lambda *a: seen.append(project(*a)) or seen[-1]
        with torch.no_grad():
            student(self.ids)
            for (q, k, *_), q_norm, k_norm in zip(seen, *student.norms()):
                for name, x, norm in (("q", q, q_norm), ("k", k, k_norm)):
                    largest = x.norm(dim=-1).amax((0, 1))
                    self.assertTrue((largest <= norm * (1 + 1e-5)).all(), name)
                    self.assertTrue((largest > 0.99 * norm).all(), name)
            q, k, *_ = seen[0]
        self.assertEqual(student.caps()[0][0, 0], student.first_q_cap[0, 0] / 2)
        base.project, seen = project, []
        base.hidden(self.ids, lambda n, q, k: seen.append((q, k)))
        q, k = (x.detach() for x in seen[0])
        logits = (q[:, 96:, 3] * k[:, :1, 1]).sum(-1) / 4
        torch.testing.assert_close(student.sinks[0, 3], logits.mean())

    def test_a_window_with_a_sink(self) -> None:
        g = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(1, 128, heads, 16, generator=g) for heads in (4, 2, 2))
        sinks = torch.randn(4, generator=g)
        torch.testing.assert_close(window_attention(q, k, v, sinks, 32),
                                   dense_window(q, k, v, sinks, 32))

    def loss(self, student: Student) -> Tensor:
        """A number that depends on all hidden states and page terms."""
        g = torch.Generator().manual_seed(3)
        hidden, terms = student(self.ids)
        loss = (hidden * torch.randn(hidden.shape, generator=g, dtype=hidden.dtype)).mean()
        if terms is None:
            return loss
        return loss + penalty(excess(terms, student.sinks, *student.norms()))

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "needs transformers")
    @mock.patch.object(student_module, "window_attention", dense_window)
    def test_kvpress_eval_answers_as_the_window_student(self) -> None:
        """Its adapter on transformers' model of the base: all at once, and token by token."""
        import kvpress_eval
        import transformers

        base, student = students(write_toy(self.folder / "base"))
        student.window = 32
        with torch.no_grad():
            student.calibrate(self.ids)
            for part in student.factors.values():
                part.add_(torch.randn_like(part) * 0.1)
            write_adapter(student, self.folder, 1.0)
            transformers.AttentionInterface.register("causal", kvpress_eval.causal)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                base.directory, dtype=torch.float32, attn_implementation="causal")
            self.assertEqual(kvpress_eval.become(model, self.folder), 32)
            expected = base.logits(student(self.ids)[0])
            first = model(self.ids[:, :100], use_cache=True)
            logits, cache = [first.logits], first.past_key_values
            for i in range(100, self.ids.shape[1]):
                step = model(self.ids[:, i : i + 1], past_key_values=cache, use_cache=True)
                logits.append(step.logits)
            for found in (torch.cat(logits, 1), model(self.ids).logits):
                self.assertLess((found - expected).abs().max() / expected.abs().max(), 1e-5)

    @mock.patch.object(student_module, "window_attention", dense_window)
    def test_gradients_of_factors_are_those_of_the_merged_matrices(self) -> None:
        """In float64: d B = (d W) A^T and d A = B^T (d W), where a student of rank 0 trains W."""
        for name, changes, window, recompute in (
                ("tied llama", {}, None, False), ("biases", QWEN2, None, True),
                ("norms", QWEN3, None, False), ("window", {}, 32, True)):
            with self.subTest(name):
                base, student = students(write_toy(self.folder / name, **changes), 4, torch.float64)
                whole = Student(base, 0, window)
                student.window, student.recompute = window, recompute
                with torch.no_grad():
                    student.calibrate(self.ids)
                    student.gate_weight.normal_(0, 0.3)
                    for part in student.factors.values():
                        part.add_(torch.randn_like(part) * 0.1)
                    own = {k: v for k, v in student.state_dict().items() if "factors" not in k}
                    whole.load_state_dict(own, strict=False)
                    for kind, names in MATRICES.items():
                        whole.factors[kind] += torch.cat([
                            student.factor(name, "B") @ student.factor(name, "A")
                            for name in names], dim=1)
                losses = [self.loss(model) for model in (student, whole)]
                torch.testing.assert_close(*losses)
                for loss in losses:
                    loss.backward()
                for kind, names in MATRICES.items():
                    sizes = [base.architecture.shape(name)[0] for name in names]
                    for name, d_w in zip(names, whole.factors[kind].grad.split(sizes, dim=1)):
                        a, b = (student.factor(name, letter) for letter in "AB")
                        torch.testing.assert_close(b.grad, d_w @ a.mT, msg=name)
                        torch.testing.assert_close(a.grad, b.mT @ d_w, msg=name)
                torch.testing.assert_close(student.sinks.grad, whole.sinks.grad)

    def test_steps_lower_the_loss(self) -> None:
        for rank in (4, 0):
            with self.subTest(rank=rank):
                base, student = students(write_toy(self.folder / str(rank)), rank)
                teacher, marks = base.hidden(self.ids), torch.zeros_like(self.ids)
                before = {kind: matrix.clone() for kind, matrix in base.matrices.stacked().items()}
                optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, weight_decay=0)
                losses = []
                for _ in range(4):
                    _, loss = distillation(student(self.ids)[0], teacher, base.head, self.ids,
                                           marks)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.item())
                self.assertEqual(losses, sorted(losses, reverse=True))
                for kind, matrix in before.items():
                    self.assertTrue(torch.equal(matrix, base.matrices.stacked()[kind]), kind)

    def test_the_backward_pass_keeps_no_matrix_but_the_bases(self) -> None:
        base, student = students(write_toy(self.folder / "llama"))
        matrices = base.matrices.stacked().values()
        own = {x.untyped_storage().data_ptr() for x in matrices}
        sizes = {x[0].numel() for x in matrices}
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            loss = self.loss(student)
        self.assertTrue(any(x.untyped_storage().data_ptr() in own for x in kept))
        for x in kept:
            if x.dim() == 2 and x.numel() in sizes:
                self.assertIn(x.untyped_storage().data_ptr(), own, x.shape)
        loss.backward()
        self.assertTrue(all(x.grad is None for x in matrices))

    def test_in_bf16_it_multiplies_by_the_exported_matrices(self) -> None:
        """Both add in float32, in another order; a sum so near a midpoint that this decides its
        rounding has a chance of about 2 (rank + 1) 2^-24 / 2^-8."""
        folder = self.folder / "base"
        fox_convert.main([str(write_toy(self.folder / "llama")), str(folder), "--dtype", "bf16"])
        base, student = students(folder, 4, torch.bfloat16)
        with torch.no_grad():
            for part in student.factors.values():
                part.add_(torch.randn_like(part) * 0.1)
        trained = [student.matrices(n, parts) for n, parts in enumerate(student.trained())]
        round_as_shipped(student)
        write_adapter(student, self.folder, 0.125)
        fox_convert.main([str(folder), str(self.folder / "merged"), "--adapter", str(self.folder)])
        tensors = load_file(self.folder / "merged/model.safetensors")
        for n, layer in enumerate(trained):
            for kind, names in MATRICES.items():
                exported = torch.cat([tensors[f"model.layers.{n}.{name}.weight"]
                                      for name in names])
                eye = torch.eye(exported.shape[1], dtype=torch.bfloat16)
                used = linear(eye, layer[kind]).t()
                self.assertLess((used != exported).float().mean(), 1e-3, kind)
                torch.testing.assert_close(used, exported, rtol=2**-7, atol=0, msg=kind)
                self.assertGreater((used != base.matrices.of(n)[kind]).float().mean(), 0.5, kind)


if __name__ == "__main__":
    unittest.main()
