"""Metrics survive kills without doubles, lines are readable, the plot is drawn."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from toy_model import ROOT  # noqa: F401  first: it skips without torch

from models.finetune.progress import (
    MetricsFile, ProgressLine, about, draw_loss, duration, read_metrics)


class ProgressTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = self.folder / "metrics.jsonl"

    def test_resuming_drops_what_the_checkpoint_does_not_know(self) -> None:
        metrics = MetricsFile(self.path, 0)
        for step in (2, 4, 6):
            metrics.add({"step": step, "tokens": step, "loss": 1.0})
        with open(self.path, "a") as file:
            file.write('{"step": 8, "lo')  # a kill in the middle of a line
        MetricsFile(self.path, 4).add({"step": 5, "tokens": 5, "loss": 2.0})
        self.assertEqual([record["step"] for record in read_metrics(self.path)], [2, 4, 5])
        MetricsFile(self.path, 0)
        self.assertEqual(read_metrics(self.path), [])

    def test_line(self) -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            line = ProgressLine()
            record = {"step": 10, "loss": 3.25, "lr": 1e-3, "tokens_per_second": 12345.6,
                      "pruned_share": 0.875}
            line.show(record, 40, 90)
            line.show({**record, "step": 11}, 40, 80)  # too early for another plain line
            line.show({**record, "step": 40, "pruned_share": None}, 40, 0)
        first, last = said.getvalue().splitlines()
        self.assertEqual(first.split("  ")[-6:], ["step 10/40", "loss 3.2500", "lr 1.00e-03",
                                                  "12,346 tokens/s", "pruned 87.5%", "1:30 left"])
        self.assertIn("100.0%  step 40/40", last)
        self.assertNotIn("pruned", last)

    def test_what_takes_long_is_told_once_a_minute(self) -> None:
        said = io.StringIO()
        with (mock.patch("models.finetune.progress.PLAIN_SECONDS", 0.05),
              contextlib.redirect_stderr(said)):
            line = ProgressLine()
            line.doing("step 3: pass 1 of 2")
            end = time.monotonic() + 20
            while said.getvalue().count("\n") < 2 and time.monotonic() < end:
                time.sleep(0.01)
        self.assertEqual(said.getvalue().splitlines()[:2],
                         ["step 3: pass 1 of 2, 0:00 so far"] * 2)

    def test_durations(self) -> None:
        self.assertEqual([duration(s) for s in (-1, 59.6, 3725)], ["0:00", "1:00", "1:02:05"])
        self.assertEqual([about(s) for s in (0, 0.034, 89, 90, 840, 5400, 1e6)],
                         ["0 s", "0.034 s", "89 s", "1.5 min", "14 min", "1.5 h", "278 h"])

    def test_plot(self) -> None:
        picture = self.folder / "loss.svg"
        metrics = MetricsFile(self.path, 0)
        for step in range(1, 30):
            metrics.add({"step": step, "tokens": step * 64, "loss": 5 / step, "pruned_share": 0.5})
        metrics.add({"step": 30, "tokens": 1920, "valid_loss": 1.0})
        has_matplotlib = importlib.util.find_spec("matplotlib") is not None
        self.assertEqual(draw_loss(self.path, picture), has_matplotlib)
        self.assertEqual(picture.exists(), has_matplotlib)
        if has_matplotlib:
            self.assertIn("<svg", picture.read_text())
