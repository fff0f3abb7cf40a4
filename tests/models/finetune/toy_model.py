"""A toy model with a byte tokenizer, and a toy training, for the tests of models/finetune.

Importing this module ends the process with SKIPPED (77) if the interpreter lacks a package.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # equal bits, and other tests run beside this one
for package in ("torch", "safetensors", "sentencepiece", "tokenizers"):
    if importlib.util.find_spec(package) is None:
        print(f"SKIPPED: {sys.executable} lacks {package}, which ./run test all installs")
        sys.exit(77)

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

LONG = 600  # seconds: other tests run beside this one
BYTES = 257  # vocabulary: all bytes, then the end of text
CONFIG: dict[str, Any] = {
    "model_type": "forgetting_transformer-project_fox", "vocab_size": BYTES, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_heads": 2, "qk_norm": True,
    "use_k_shift": True, "use_v_shift": True, "use_output_gate": True, "use_output_norm": True,
    "log_pruning_tolerance": -10.0, "bos_token_id": 256, "eos_token_id": 256,
    "max_position_embeddings": None,
}
TEXT = "It was a dark and stormy night; the rain fell in torrents, except at intervals. "


def byte_alphabet() -> list[str]:
    """GPT-2's characters for the bytes 0 to 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def write_toy(folder: Path, **changes: Any) -> Path:
    """Writes config.json with `changes`, and a byte tokenizer; returns the config's path."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps({**CONFIG, **changes}))
    vocabulary = {character: i for i, character in enumerate(byte_alphabet())}
    vocabulary["<|endoftext|>"] = 256
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return config


class TrainingCase(unittest.TestCase):
    """A toy training as a user starts it, each run in a process of its own.

    A byte vocabulary, one text; derived classes may change the config and the environment.
    """

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
