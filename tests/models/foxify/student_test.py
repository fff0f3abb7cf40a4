"""Teacher and student against transformers' models of the same weights."""

from __future__ import annotations

import importlib.util
import json
import tempfile
import unittest
from pathlib import Path

from toy_llama import QWEN3, open_merged, write_toy  # first: it skips without torch

import torch
from safetensors.torch import load_file
from toy_model import ROOT

from models.foxify.base_model import BaseModel
from models.foxify.student import Student, window_attention


def students(folder: Path, rank: int = 4) -> tuple[BaseModel, Student]:
    base = BaseModel(folder, torch.device("cpu"), torch.float32)
    torch.manual_seed(0)
    return base, Student(base, rank, None)


class StudentTest(unittest.TestCase):
    """On the CPU, in float32."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.ids = torch.randint(0, 256, (2, 192), generator=torch.Generator().manual_seed(2))

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "needs transformers")
    def test_with_open_gates_it_is_the_transformers_model(self) -> None:
        from transformers import AutoModelForCausalLM

        for name, changes in (("llama", {}), ("qwen3", QWEN3)):
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
        self.assertEqual(len(folders), 2)
        for folder in folders:
            with self.subTest(folder.name), torch.no_grad():
                ids = json.loads((folder / "expected.json").read_text())["input_ids"]
                (expected,) = load_file(folder / "expected.safetensors").values()
                student = open_merged(folder)
                padded = torch.tensor([ids + [0] * (-len(ids) % 64)])
                logits = student.base.logits(student(padded)[0])[0, : len(ids)]
                error = (logits[-len(expected):] - expected).abs().max() / expected.abs().max()
                self.assertLess(error, 1e-5)

    def test_caps_bound_what_is_stored_and_sinks_start_at_the_logit_of_token_0(self) -> None:
        base, student = students(write_toy(self.folder / "llama"))
        student.calibrate(self.ids)
        student.cap_scale = 0.25
        seen: list[torch.Tensor] = []
        project = base.project
        base.project = lambda *a: seen.append(project(*a)) or seen[-1]
        with torch.no_grad():
            student(self.ids)
            for (q, k, *_), q_cap, k_cap in zip(seen, *student.caps()):
                for name, x, cap in (("q", q, q_cap), ("k", k, k_cap)):
                    largest = x.norm(dim=-1).amax((0, 1))
                    self.assertTrue((largest <= cap * (1 + 1e-5)).all(), name)
                    self.assertTrue((largest > 0.99 * cap).all(), name)
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
        sinks, i = torch.randn(4, generator=g), torch.arange(128)
        logits = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) / 4
        gap = i[:, None] - i
        logits = torch.where((gap >= 0) & (gap < 32), logits, -torch.inf)
        column = sinks[None, :, None, None].expand(1, 4, 128, 1)
        p = torch.cat((logits, column), -1).softmax(-1)[..., :-1]
        expected = torch.einsum("bhij,bjhd->bihd", p, v.repeat_interleave(2, 2))
        torch.testing.assert_close(window_attention(q, k, v, sinks, 32), expected)


if __name__ == "__main__":
    unittest.main()
