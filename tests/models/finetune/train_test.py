"""Whole trainings of a toy: learning, kills and resuming bit for bit, processes, messages.

Each run is a process of its own, as a user starts it.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import subprocess
import sys
import time
import unittest
from unittest import mock

from toy_model import write_toy  # first: it skips without torch
from toy_training import LONG, TrainingCase

from models.finetune.progress import read_metrics
from models.finetune.train import Trainer


class TrainTest(TrainingCase):
    """On the CPU, in float32."""

    environment = {**TrainingCase.environment, "CUDA_VISIBLE_DEVICES": ""}

    def test_it_learns_and_a_killed_run_resumes_bit_for_bit(self) -> None:
        flags = ("--steps", "150", "--checkpoint-minutes", "0", "--valid", str(self.text))
        said = self.run_to_end(self.command("whole", *flags))
        self.assertIn("No GPU here", said)
        self.assertIn("peak lr at step 4 of 150\n", said)
        self.assertRegex(said, r"one step takes about [\d.]+ (s|min) here: 150 steps in about ")
        self.assertIn("sample after", said)
        self.assertIn("percent of pairs pruned", said)
        step = self.kill_after_a_checkpoint(self.command("killed", *flags), "killed")
        self.assertLess(step, 150)
        self.assertIn(f"continuing after step {step}",
                      self.run_to_end(self.command("killed", *flags)))
        self.assert_equal_trainings("whole", "killed")
        metrics = read_metrics(self.folder / "killed" / "training" / "metrics.jsonl")
        steps = [record["step"] for record in metrics if "loss" in record]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(steps[-1], 150)
        report = json.loads((self.folder / "whole" / "training" / "report.json").read_text())
        self.assertLess(report["bits_per_byte"], 4)  # 8 before: the text is one sentence
        self.assertEqual(report["steps"], 150)

    def test_a_model_is_tuned_further_and_a_stop_is_asked_for(self) -> None:
        self.run_to_end(self.command("first", "--steps", "4"))
        flags = ("--steps", "100000", "--packing", "documents")
        arguments = self.command("tuned", *flags, model=self.folder / "first")
        process = subprocess.Popen([sys.executable, "-B", *arguments], env=self.environment,
                                   stderr=subprocess.PIPE, text=True)
        metrics, end = self.folder / "tuned" / "training" / "metrics.jsonl", time.monotonic() + LONG
        while not read_metrics(metrics) and time.monotonic() < end:
            time.sleep(0.01)
        process.terminate()
        said = process.communicate(timeout=LONG)[1]
        self.assertEqual(process.returncode, 3, said)
        self.assertIn("sample before", said)
        self.assertIn("\nstopping after this step", said)
        step = self.checkpoint("tuned")["step"]
        self.assertIn(f"stopped after step {step}", said)
        self.assertTrue((self.folder / "tuned" / "config.json").is_file())

    def test_two_processes_equal_one_that_accumulates(self) -> None:
        flags = ("--steps", "6", "--micro-batch", "2")
        self.run_to_end(self.command("one", *flags))
        self.run_to_end(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                         *self.command("two", *flags)])
        self.assert_equal_trainings("one", "two")

    def test_time_is_the_plan_from_the_start_of_the_program(self) -> None:
        began = time.monotonic()
        self.run_to_end(self.command("first", "--steps", "1"))
        # The plan leaves time to train on a machine where PyTorch alone takes half a minute.
        planned = max(30, 4 * (time.monotonic() - began))
        began = time.monotonic()
        said = self.run_to_end(self.command("timed", "--minutes-total", f"{planned / 60:.6f}"))
        self.assertLess(time.monotonic() - began, 4 / 3 * planned)
        self.assertIn("peak lr within a tenth of them\n", said)
        self.assertRegex(said, r"one step takes about .* here: \d+ steps in the \d+ s left")
        self.assertRegex(said, r"\ndone in \d+:")
        # A tenth is reserved for the end; records, which correct the plan, are 2 s apart.
        self.assertLess(abs(self.checkpoint("timed")["seconds"] - 0.9 * planned), 0.1 * planned)
        records = read_metrics(self.folder / "timed" / "training" / "metrics.jsonl")
        last = [record for record in records if "loss" in record][-1]
        self.assertLess(last["lr"], 0.2 * 3e-3)

    def test_a_training_may_get_longer(self) -> None:
        self.run_to_end(self.command("grown", "--steps", "4"))
        said = self.run_to_end(self.command("grown", "--steps", "8"))
        self.assertIn("longer than before (steps was 4 and is now 8): the learning rate", said)
        self.assertEqual(self.checkpoint("grown")["step"], 8)

    def test_mistakes_are_told_before_pytorch_is_imported(self) -> None:
        (self.folder / "torch.py").write_text("raise SystemExit('PyTorch was imported')")
        self.environment = {**self.environment,
                            "PYTHONPATH": f"{self.folder}:{os.environ['PYTHONPATH']}"}
        for flags, said in (("--stps", "--stps"), ("--window=0", "--window: must be at least 1"),
                            ("--valid=gone", "gone: no such directory or file")):
            with self.subTest(flags=flags, said=said):
                told = self.run_to_end(self.command("m", flags), 2)
                self.assertIn(said, told)
                self.assertEqual(told.count("\n"), 1)

    def test_messages(self) -> None:
        (self.folder / "latin.txt").write_bytes(b"caf\xe9")
        latin = self.command("m", "--steps", "2")
        latin[3] = str(self.folder / "latin.txt")
        self.assertIn("finetune: latin.txt: not UTF-8", self.run_to_end(latin, 1))
        self.assertIn("too few for windows of 9999",
                      self.run_to_end(self.command("m", "--window", "9999"), 1))
        self.run_to_end(self.command("m", "--steps", "2"))
        other = self.run_to_end(self.command("m", "--steps", "2", "--seed", "4"), 1)
        self.assertIn("seed was 0 and is now 4", other)
        model = self.command("m", "--steps", "2", model=self.folder / "gone")
        self.assertIn("no such directory", self.run_to_end(model, 2))
        small = write_toy(self.folder / "small", vocab_size=200, bos_token_id=None,
                          eos_token_id=None)
        said = self.run_to_end(self.command("n", model=small), 1)
        self.assertIn("the tokenizer has 257 tokens, the model 200", said)
        parted = self.command("n", "--packing", "documents", model=write_toy(
            self.folder / "parted"))
        (self.folder / "parted" / "tokenizer_config.json").write_text("{}")
        self.assertIn("which the tokenizer does not have", self.run_to_end(parted, 1))
        nan = self.run_to_end(self.command("n", "--steps", "60", "--lr", "1e30"), 1)
        self.assertIn("try a lower --lr", nan)
        late = self.run_to_end(self.command("late", "--minutes-total", "0.001"), 1)
        self.assertRegex(late, r"one step takes about .* here, and 0 s are left of the minutes")


class PlanTest(unittest.TestCase):
    """How many steps --minutes-total makes, by the pace."""

    def steps(self, step: int, planned: int) -> int:
        trainer = Trainer.__new__(Trainer)  # with only the fields that _decide reads
        trainer.args = argparse.Namespace(minutes_total=1.0, minutes=None)
        trainer.device = mock.Mock(type="cpu")
        trainer.step, trainer.total_steps, trainer.stop_asked = step, planned, False
        trainer.pace = collections.deque([(0.0, 0), (10.0, 20)])
        trainer._time_left = lambda: (math.inf, 1.0)  # pylint: disable=protected-access
        return trainer._decide()[0]  # pylint: disable=protected-access

    def test_the_pace_corrects_the_plan_until_it_is_fulfilled(self) -> None:
        self.assertEqual([self.steps(99, 100), self.steps(99, 500), self.steps(100, 100)],
                         [101, 101, 100])
