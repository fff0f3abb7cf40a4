"""Checkpoints are whole or absent, and a damaged one is passed over."""

from __future__ import annotations

import contextlib
import io
import resource
import tempfile
import unittest
from argparse import Namespace
from pathlib import Path
from unittest import mock

from toy_model import ROOT  # noqa: F401  first: it skips without torch

import torch
from safetensors.torch import save_file

from models.finetune.training_run import run_to_end
from models.finetune.training_state import (
    TrainingError, check_settings, load_checkpoint, random_states, restore_random_states,
    save_checkpoint)


class CheckpointTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory())) / "checkpoints"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def test_the_newest_counts_and_two_are_kept(self) -> None:
        self.assertIsNone(load_checkpoint(self.folder))
        for step in (9, 10, 2_000_000_000):
            save_checkpoint(self.folder, {"step": step, "x": torch.full((3,), step)})
        self.assertEqual(self.names(), ["step-000000010.pt", "step-2000000000.pt"])
        state = load_checkpoint(self.folder)
        self.assertEqual(state["step"], 2_000_000_000)
        self.assertEqual(state["x"].tolist(), [2_000_000_000] * 3)

    def test_an_interrupted_write_leaves_the_old_one(self) -> None:
        save_checkpoint(self.folder, {"step": 1})

        def half(state: object, file: io.BufferedWriter) -> None:
            file.write(b"half")
            raise KeyboardInterrupt

        with mock.patch("torch.save", half), self.assertRaises(KeyboardInterrupt):
            save_checkpoint(self.folder, {"step": 2})
        self.assertEqual(load_checkpoint(self.folder)["step"], 1)
        save_checkpoint(self.folder, {"step": 3})
        self.assertEqual(self.names(), ["step-000000001.pt", "step-000000003.pt"])

    def test_a_full_disk_is_told_and_leaves_the_old_one(self) -> None:
        """Both of torch.save's writes fail: its records by OSError, its end by RuntimeError."""
        save_checkpoint(self.folder, {"step": 1})
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, limit)
        for size in (0, 100, 5000, 1 << 16, (1 << 18) - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
            with self.subTest(size=size):
                with self.assertRaisesRegex(TrainingError, r"02.pt cannot be .*File too large"):
                    save_checkpoint(self.folder, {"step": 2, "x": torch.zeros(1 << 16)})
                self.assertEqual(self.names(), ["step-000000001.pt"])

    def test_a_full_disk_at_the_export_is_told_in_a_line(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, limit)

        def export(*_: object) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
            save_file({"x": torch.zeros(1000)}, self.folder.parent / "model.safetensors")

        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(run_to_end("finetune", export, Namespace(precision="fp32")), 1)
        self.assertRegex(said.getvalue(), r"^\nfinetune: .*File too large.*\n$")

    def test_a_damaged_one_is_passed_over(self) -> None:
        for step in (1, 2):
            save_checkpoint(self.folder, {"step": step, "x": torch.zeros(1000)})
        path = self.folder / "step-000000002.pt"
        path.write_bytes(path.read_bytes()[:-500])
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(load_checkpoint(self.folder)["step"], 1)
        self.assertIn("step-000000002.pt cannot be read", said.getvalue())

    def test_random_states_return(self) -> None:
        state = random_states()
        first = torch.rand(5)
        restore_random_states(state)
        self.assertTrue(torch.equal(torch.rand(5), first))

    def test_other_settings_are_named(self) -> None:
        saved = {"lr": 1e-3, "model": {"hidden_size": 32, "num_heads": 2}}
        check_settings(saved, {"lr": 1e-3, "model": {"hidden_size": 32, "num_heads": 2}}, Path("m"))
        with self.assertRaisesRegex(
            TrainingError, "lr was 0.001 and is now 0.002; model.num_heads was 2 and is now 4"
        ):
            now = {"lr": 2e-3, "model": {"hidden_size": 32, "num_heads": 4}}
            check_settings(saved, now, Path("m"))

    def test_a_training_may_get_longer(self) -> None:
        saved = {"steps": 20, "epochs": 1.0, "minutes_total": None, "lr": 1e-3}
        self.assertEqual(check_settings(saved, dict(saved), Path("m")), "")
        self.assertEqual(check_settings(saved, {**saved, "steps": 30}, Path("m")),
                         "steps was 20 and is now 30")
        for changed in ({"steps": 10}, {"steps": None, "minutes_total": 5.0},
                        {"steps": 30, "lr": 2e-3}):
            with self.subTest(changed=changed):
                with self.assertRaises(TrainingError):
                    check_settings(saved, {**saved, **changed}, Path("m"))
