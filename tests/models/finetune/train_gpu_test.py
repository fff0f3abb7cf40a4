#!/usr/bin/env python3
"""Trainings of a toy on GPUs: equal bits after a kill, compiled or not, on one GPU or two."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest

from toy_model import ROOT  # noqa: F401  first: it skips without torch
from toy_training import TrainingCase

import torch

from models.finetune.attention import HAS_CUDA_KERNELS

if not torch.cuda.is_available() or not HAS_CUDA_KERNELS:
    print("SKIPPED: no GPU, or fox_attention without its kernels (pip install ./kernels/torch)")
    sys.exit(77)

# Two trainings that differ by bf16 rounding (2^-8) in every product; their losses are sums over
# thousands of tokens, so they differ by less than one rounding while the weights are alike. From
# then on small differences grow: a first step of AdamW has one size, however small the gradient.
ROUNDING = 2.0**-8
FEW_STEPS = 4


class TrainGpuTest(TrainingCase):
    """bf16, compiled, heads of 64, deterministic unless told otherwise."""

    config_changes = {"hidden_size": 128, "intermediate_size": 256}
    window = 256

    @classmethod
    def setUpClass(cls) -> None:
        # One cache for all runs, so that each kernel is tuned once.
        cache = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.environment = {**TrainingCase.environment, "TORCHINDUCTOR_CACHE_DIR": cache,
                           "CUDA_VISIBLE_DEVICES": "0"}

    def bits_per_byte(self, out: str) -> float:
        report = self.folder / out / "training" / "report.json"
        return json.loads(report.read_text())["bits_per_byte"]

    def flags(self, steps: int) -> tuple[str, ...]:
        return "--steps", str(steps), "--valid", str(self.text)

    def test_a_killed_run_resumes_bit_for_bit(self) -> None:
        flags = (*self.flags(1500), "--checkpoint-minutes", "0")
        self.run_to_end(self.command("whole", *flags))
        step = self.kill_after_a_checkpoint(self.command("killed", *flags), "killed")
        self.assertLess(step, 1500)
        self.run_to_end(self.command("killed", *flags))
        self.assert_equal_trainings("whole", "killed")
        self.assertLess(self.bits_per_byte("whole"), 4)

    def test_compiled_or_not_fast_or_not(self) -> None:
        self.run_to_end(self.command("plain", *self.flags(FEW_STEPS), "--no-compile"))
        self.run_to_end(self.command("compiled", *self.flags(FEW_STEPS)))
        self.run_to_end(self.command("fast", *self.flags(FEW_STEPS), "--fast"))
        plain = self.bits_per_byte("plain")
        for out in ("compiled", "fast"):
            with self.subTest(out=out):
                self.assertLess(abs(self.bits_per_byte(out) / plain - 1), ROUNDING)

    def test_recomputing_and_documents(self) -> None:
        self.run_to_end(self.command("plain", *self.flags(FEW_STEPS)))
        self.run_to_end(self.command("less", *self.flags(FEW_STEPS), "--recompute"))
        ratio = self.bits_per_byte("less") / self.bits_per_byte("plain")
        self.assertLess(abs(ratio - 1), ROUNDING)
        self.run_to_end(self.command("packed", *self.flags(20), "--packing", "documents"))
        self.assertLess(self.bits_per_byte("packed"), 8)

    @unittest.skipIf(torch.cuda.device_count() < 2, "one GPU")
    def test_two_gpus_equal_one_that_accumulates(self) -> None:
        flags = (*self.flags(60), "--micro-batch", "2")
        self.run_to_end(self.command("one", *flags))
        self.environment = {**self.environment, "CUDA_VISIBLE_DEVICES": "0,1"}
        self.run_to_end(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                         *self.command("two", *flags)])
        ratio = self.bits_per_byte("two") / self.bits_per_byte("one")
        self.assertLess(abs(ratio - 1), ROUNDING)


if __name__ == "__main__":
    unittest.main()
