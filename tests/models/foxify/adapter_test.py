"""The server's loss of a merged adapter equals the trainer's. FOX_EVAL names fox-eval."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from toy_llama import QWEN3, write_toy  # first: it skips without torch

import torch
import torch.nn.functional as F
from toy_model import TEXT

from models.convert import fox_convert
from models.convert.refusal import Refusal
from models.foxify.adapter import read_adapter, round_as_shipped, write_adapter
from models.foxify.base_model import BaseModel
from models.foxify.student import Student

WINDOW, WINDOWS = 256, 4


class AdapterTest(unittest.TestCase):
    """In float32; heads forget, sinks weigh and caps bind."""

    @unittest.skipUnless(os.environ.get("FOX_EVAL"), "needs FOX_EVAL")
    def test_the_servers_loss_is_the_trainers(self) -> None:
        text = TEXT * 14
        ids = torch.tensor([256, *text.encode()])[: WINDOW * WINDOWS].view(WINDOWS, WINDOW)
        for name, rank, changes in (("llama", 4, {}), ("qwen3", 0, QWEN3)):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder, torch.no_grad():
                place = Path(folder)
                base = BaseModel(write_toy(place / "base", **changes), torch.device("cpu"),
                                 torch.float32)
                torch.manual_seed(0)
                student = Student(base, rank, None)
                student.calibrate(ids)
                student.scale_caps(0.3)
                student.gate_weight.normal_(0, 0.3)
                student.gate_bias.normal_(1, 1)
                student.sinks.add_(1.5)
                for part in student.factors.values():
                    part.add_(torch.randn_like(part) * 0.1)
                round_as_shipped(student)
                loss, other = (F.cross_entropy(
                    base.logits(h[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item()
                    for h in (student(ids)[0], base.hidden(ids)))
                self.assertGreater(abs(loss - other), 0.05)
                (place / "adapter").mkdir()
                write_adapter(student, place / "adapter", 0.125)
                self.assertEqual(0, fox_convert.main(
                    [str(place / "base"), str(place / "merged"), "--adapter",
                     str(place / "adapter")]))
                (place / "text").write_text(text)
                said = subprocess.run(
                    [os.environ["FOX_EVAL"], "perplexity", "--model", str(place / "merged"),
                     "--text", str(place / "text"), "--window", str(WINDOW), "--max-windows",
                     str(WINDOWS), "--dtype", "f32"], check=True, capture_output=True, timeout=300)
                self.assertAlmostEqual(json.loads(said.stdout)["nll"], loss, places=4)

    def test_a_run_starts_from_an_adapter(self) -> None:
        for name, rank, window in (("low rank", 4, None), ("whole", 0, None), ("window", 4, 64)):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder, torch.no_grad():
                base = BaseModel(write_toy(Path(folder) / "base"), torch.device("cpu"),
                                 torch.float32)
                first, second = Student(base, rank, window), Student(base, rank, window)
                for parameter in first.parameters():
                    parameter.normal_()
                round_as_shipped(first)
                write_adapter(first, Path(folder), 0.125)
                read_adapter(second, Path(folder))
                for key, tensor in first.state_dict().items():
                    unused = window and key.startswith("gate")
                    self.assertEqual(torch.equal(tensor, second.state_dict()[key]), not unused, key)
                with self.assertRaisesRegex(Refusal, "at rank"):
                    read_adapter(Student(base, 8, window), Path(folder))

    def test_an_adapter_of_a_window_has_no_gates_to_start_from(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            base = BaseModel(write_toy(Path(folder) / "base"), torch.device("cpu"), torch.float32)
            write_adapter(Student(base, 4, 64), Path(folder), 0.125)
            with self.assertRaisesRegex(Refusal, "fgate_proj.weight is missing"):
                read_adapter(Student(base, 4, None), Path(folder))


if __name__ == "__main__":
    unittest.main()
