"""A toy training as a user starts it, each run in a process of its own; tests derive from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from toy_model import TEXT, write_toy  # first: it skips without torch

import torch
from safetensors.torch import load_file

LONG = 600  # seconds: other tests run beside this one


class TrainingCase(unittest.TestCase):
    """A byte vocabulary, one text; derived classes may change the config and the environment."""

    config_changes: dict[str, object] = {}
    window = 32
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.config = write_toy(self.folder / "toy", **self.config_changes)
        self.text = self.folder / "a.txt"
        self.text.write_text(TEXT * 60 + "\n\0\n" + TEXT[::-1] * 40)

    def command(self, out: str, *flags: str, model: Path | None = None) -> list[str]:
        return ["-m", "models.finetune.train", str(model or self.config), str(self.text), "--out",
                str(self.folder / out), "--window", str(self.window), "--batch-tokens",
                str(4 * self.window), "--warmup-tokens", str(16 * self.window), "--lr", "3e-3",
                "--dtype", "f32", "--sample-tokens", "4", "--workers", "1", *flags]

    def run_to_end(self, arguments: list[str], status: int = 0) -> str:
        run = subprocess.run([sys.executable, "-B", *arguments], capture_output=True, text=True,
                             env=self.environment, timeout=LONG, check=False)
        self.assertEqual(run.returncode, status, run.stderr)
        return run.stderr

    def checkpoint(self, out: str) -> dict:
        newest = sorted((self.folder / out / "training" / "checkpoints").glob("step-*.pt"))[-1]
        return torch.load(newest, weights_only=True)

    def assert_equal_trainings(self, a: str, b: str) -> None:
        """Expects equal exported weights, and equal weights and moments in the last checkpoints."""
        one, two = ([load_file(self.folder / out / "model.safetensors"), last["step"],
                     last["model"], last["optimizer"]["state"]]
                    for out in (a, b) for last in (self.checkpoint(out),))
        torch.testing.assert_close(one, two, rtol=0, atol=0)

    def kill_after_a_checkpoint(self, arguments: list[str], out: str) -> int:
        """Runs, and kills without warning once there is a checkpoint; returns its step."""
        process = subprocess.Popen([sys.executable, "-B", *arguments], env=self.environment,
                                   stderr=subprocess.DEVNULL)
        folder, end = self.folder / out / "training" / "checkpoints", time.monotonic() + LONG
        while not list(folder.glob("step-*.pt")) and time.monotonic() < end:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        self.assertEqual(process.wait(), -signal.SIGKILL, "it ended before it was killed")
        return self.checkpoint(out)["step"]
