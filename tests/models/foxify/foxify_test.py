"""Whole trainings of a toy: resuming, several processes, export, refusals."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from toy_llama import write_toy  # first: it skips without torch

import numpy as np
import torch
from safetensors.torch import load_file
from toy_model import ROOT, TEXT

from models.finetune import training_run
from models.finetune.process_group import ProcessGroup
from models.finetune.progress import read_metrics
from models.finetune.training_state import TrainingError
from models.foxify import foxify, measure

WINDOW = 192
NEEDLES = 4
TWO = f"""import sys; from models.foxify import foxify, measure; measure.NEEDLES = {NEEDLES}
sys.exit(foxify.main(foxify.parse_arguments(sys.argv[1:])))"""


class FoxifyTest(unittest.TestCase):
    """On the CPU, in float32."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.model = write_toy(self.folder / "toy")
        self.text = self.folder / "a.txt"
        self.text.write_text(TEXT * 60)
        self.group = ProcessGroup()

    def command(self, *flags: str, model: Path | None = None, out: str = "out") -> list[str]:
        return [str(model or self.model), str(self.text), "--out", str(self.folder / out),
                "--window", str(WINDOW), "--batch-tokens", str(2 * WINDOW), "--workers", "1",
                "--rank", "4", *flags]

    def run_processes(self, *flags: str, out: str = "out") -> str:
        """The output of two processes, started as by torchrun, but without a third process."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                       "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        runs = [subprocess.Popen(
            [sys.executable, "-B", "-c", TWO, *self.command(*flags, out=out)], cwd=ROOT, text=True,
            stderr=subprocess.PIPE, env={**environment, "RANK": rank}) for rank in "01"]
        for run in runs:
            self.addCleanup(run.kill)
        said = [run.communicate(timeout=120)[1] for run in runs]
        self.assertEqual([run.returncode for run in runs], [0, 0], said)
        return "".join(said)

    def run_here(self, *flags: str, status: tuple[int, ...] = (0,), model: Path | None = None,
                 out: str = "out") -> str:
        """The output of a run in this process, because importing torch takes seconds."""
        with tempfile.TemporaryFile("w+") as file, mock.patch("sys.stderr", file):
            try:
                args = foxify.parse_arguments(self.command(*flags, model=model, out=out))
                code = foxify.main(args)
            except SystemExit as end:
                code = end.code
            file.seek(0)
            said = file.read()
        self.assertIn(code, status, said)
        return said

    def assert_equal_runs(self, a: str, b: str) -> None:
        """Expects adapters and metrics that are equal up to the order of sums."""
        one, two = (load_file(self.folder / out / "adapter.safetensors") for out in (a, b))
        for name, tensor in one.items():
            torch.testing.assert_close(tensor, two[name], rtol=0, atol=1e-7, msg=name)
        numbers = [[(r["step"], r["loss"], r["lambda"], r["share"]) for r in read_metrics(
            self.folder / out / "training" / "metrics.jsonl")] for out in (a, b)]
        np.testing.assert_allclose(*numbers, rtol=1e-5)
        self.assertEqual([n[0] for n in numbers[0]], [1, 2, 3, 4, 5])

    def test_a_run_in_parts_and_of_two_processes_equals_an_uninterrupted_one(self) -> None:
        flags = ("--steps", "5", "--checkpoint-minutes", "0")
        valid = self.folder / "valid.txt"
        valid.write_text(TEXT[::-1] * 8)
        measured = ("--valid", str(valid), "--export")
        with mock.patch.object(measure, "NEEDLES", NEEDLES):
            self.run_here(*flags, *measured, str(self.folder / "merged-whole"), out="whole")
        self.assertIn("stopped after step 0", self.run_here(
            *flags, "--minutes", "1e-4", status=(3,), out="parts"))
        with mock.patch.object(training_run, "BEGAN", 0.0):
            trainer = self.trainer(*flags)
            trainer.resume()
            record = trainer._record
            trainer._record = lambda *a: (record(*a), a[0] == 2 and trainer.ask_to_stop())
            trainer.train()  # stops in the middle, as at a signal
            self.assertEqual(trainer.step, 3)
        shutil.copytree(self.folder / "parts", self.folder / "sharded")
        shards = ("--shard", *measured, str(self.folder / "merged-sharded"))
        for out, how in (("parts", ()), ("sharded", shards)):
            with self.subTest(out):
                said = self.run_processes(*flags, *how, out=out)
                self.assertEqual(said.count("continuing after step 3"), 1)
                self.assert_equal_runs("whole", out)
        with self.subTest("what processes with shards measure and export"):
            one, two = (json.loads((self.folder / out / "report.json").read_text())
                        for out in ("whole", "sharded"))
            np.testing.assert_allclose(*([report[model]["loss"] for model in ("teacher", "student")]
                                         for report in (one, two)), rtol=1e-5)
            torch.testing.assert_close(*(load_file(self.folder / f"merged-{out}/model.safetensors")
                                         for out in ("whole", "sharded")), rtol=0, atol=1e-7)
        with self.subTest("one process after two with shards"):
            (self.folder / "sharded/training/checkpoints/step-000000005.pt").unlink()
            self.assertIn("continuing after step 4", self.run_here(*flags, out="sharded"))
            self.assert_equal_runs("whole", "sharded")
        self.assertIn("keep was 0.125 and is now 0.25", self.run_here(
            *flags, "--keep", "0.25", status=(1,), out="parts"))

    def trainer(self, *flags: str) -> foxify.Trainer:
        """A trainer in this process."""
        args = foxify.parse_arguments(self.command(*flags, out="parts"))
        args.precision = "fp32"
        return foxify.Trainer(args, self.group)

    def test_windows_that_processes_cannot_share(self) -> None:
        self.group.size = 3
        with self.assertRaisesRegex(TrainingError, "2 windows cannot be shared by 3 processes"):
            self.trainer("--steps", "1")

    def test_fractions_of_minutes_begin_behind_the_first_steps(self) -> None:
        trainer = self.trainer("--minutes-total", "10")
        with mock.patch.object(foxify.Trainer, "seconds", new_callable=mock.PropertyMock) as now:
            for step, seconds, done, rate in ((0, 50, 0, 0.05), (1, 90, 0, 0.1), (2, 100, 0, 0.15),
                                              (40, 340, 0.5, 1), (70, 484, 0.8, 0.5),
                                              (99, 600, 1, 0)):
                with self.subTest(step=step, seconds=seconds, done=done, rate=rate):
                    now.return_value, trainer.step = seconds, step
                    self.assertAlmostEqual(trainer.done(), done)
                    self.assertAlmostEqual(trainer._rate(done), rate)
        self.assertAlmostEqual(trainer._cap_scale(0.25), 0.75**0.5)
        self.assertEqual(trainer._cap_scale(0.75), 0.75)

    def test_a_run_from_an_adapter_goes_on_where_it_ended(self) -> None:
        self.run_here("--steps", "6", "--lr", "0.01", out="first")
        self.run_here("--steps", "1", "--from", str(self.folder / "first"), out="second")
        first, second = (load_file(self.folder / out / "adapter.safetensors")
                         for out in ("first", "second"))
        moved = 0.0
        # Adam's first step moves a number by the learning rate.
        for name in (n for n in first if n.endswith("lora_B.weight")):
            moved = max(moved, first[name].abs().max().item())
            torch.testing.assert_close(first[name], second[name], rtol=0, msg=name,
                                       atol=1e-3 / foxify.WARMUP_STEPS)
        self.assertGreater(moved, 1e-3)
        report = json.loads((self.folder / "second" / "report.json").read_text())
        self.assertEqual(report["settings"]["from"], "first")
        self.assertIn("no adapter_config.json", self.run_here(
            "--from", str(self.model), status=(2,), out="third"))

    def test_export_of_an_adapter(self) -> None:
        merged = self.folder / "merged"
        self.run_here("--steps", "2", "--export", str(merged))
        tensors = load_file(merged / "model.safetensors")
        self.assertEqual(tensors["model.layers.1.self_attn.fgate_proj.weight"].shape, (2, 64))
        config = json.loads((merged / "config.json").read_text())
        self.assertTrue(config["use_forget_gate"] and config["use_qk_norm_cap"])
        for name in ("tokenizer.json", "chat_format.json"):
            with self.subTest(name=name):
                self.assertTrue((merged / name).is_file())

    def test_an_evaluated_run(self) -> None:
        valid = self.folder / "valid.txt"
        valid.write_text(TEXT[::-1] * 8)
        with mock.patch.object(measure, "NEEDLES", NEEDLES):
            said = self.run_here("--steps", "2", "--valid", str(valid), "--batch-tokens",
                                 str(WINDOW))
        self.assertIn("teacher: loss", said)
        report = json.loads((self.folder / "out" / "report.json").read_text())
        self.assertEqual(len(report["student"]["recall"]["chat"]), 5)
        self.assertAlmostEqual(report["student"]["loss"], report["teacher"]["loss"], delta=1)
        self.assertEqual(len(report["student"]["share_by_layer_and_head"]), 2)
        if importlib.util.find_spec("matplotlib"):
            self.assertTrue((self.folder / "out/training/loss.svg").is_file())

    def test_what_is_refused_before_training(self) -> None:
        config = json.loads((self.model / "config.json").read_text())
        cases = (
            ({"model_type": "gpt2"}, (), "config key model_type: 'gpt2' is not one of llama"),
            ({"rope_scaling": {"rope_type": "dynamic"}}, (), "config key rope_scaling.rope_type"),
            ({"model_type": "mistral", "architectures": None, "sliding_window": 24}, (),
             "max_position_embeddings or sliding_window, 24"),
            ({}, ("--export", str(ROOT / "models")), "exists and is no model directory"),
            ({"use_forget_gate": True}, (), "the model is foxified already"),
            ({"hidden_act": "gelu"}, (), "config key hidden_act"),
            ({"num_hidden_layers": 3}, (), "tensor model.layers.2.input_layernorm.weight: missing"),
            ({"intermediate_size": 95}, (), "shape [96, 64], expected [95, 64]"),
            ({"vocab_size": 100}, (), "the tokenizer has 258 tokens, the model 100"),
            ({}, ("--window", "1024", "--batch-tokens", "1024"),
             "max_position_embeddings or sliding_window, 512"),
            ({}, ("--window-baseline", "64"), "--window-baseline needs a GPU"),
            ({}, ("--shard",), "--shard needs more than one process"),
            ({}, ("--shard", "--no-recompute"), "--shard needs an adapter, not --rank 0, and reco"),
            ({}, ("--window", "100"), "--window must be a multiple of 64"),
            ({}, ("--batch-tokens", "200"), "--batch-tokens must be a multiple of --window"),
            ({}, ("--keep", "0"), "must be above 0 and at most 1"),
            ({}, ("--valid", "absent.txt"), "absent.txt: no such directory or file"),
        )
        for number, (changes, flags, message) in enumerate(cases):
            with self.subTest(message):
                model = self.folder / f"model{number}"
                shutil.copytree(self.model, model)
                (model / "config.json").write_text(json.dumps({**config, **changes}))
                self.assertIn(message, self.run_here(*flags, status=(1, 2), model=model))


if __name__ == "__main__":
    unittest.main()
