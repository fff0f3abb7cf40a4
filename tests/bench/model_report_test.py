#!/usr/bin/env python3
"""The report of a model: what it says of numbers made up here, and whether the demo model's is that
of its JSON."""

from __future__ import annotations

import copy
import json
import pathlib
import tempfile
import unittest

import model_report

ROOT = pathlib.Path(__file__).resolve().parents[2]


def head(layer: int, index: int, paper: float, certified: float) -> dict:
    """One head; the arguments are its pruned shares."""
    def trace(share: float) -> dict:
        return {"mean_window": 100 * (1 - share), "pruned_share": share, "kept_pages": 1,
                "kept_pages_at_end": 1, "first_live": [0, 1, 2]}

    return {"layer": layer, "head": index, "forgets": paper > 0, "paper": trace(paper),
            "certified": trace(certified)}


def bound(share: float, certificate: float | None) -> dict:
    """Totals of one bound."""
    return {"skipped_share": share, "evicted_share": share + 0.1, "nll": 3.0,
            "max_log_evicted_mass": certificate, "histogram": [1, 0, 0, 0, 0, 0, 0, 0, 1, 2]}


def point(log_tolerance: float, change: float) -> dict:
    """One point of the sweep."""
    both = {"skipped_share": 0.5, "evicted_share": 0.6, "max_log_evicted_mass": log_tolerance,
            "nll": 3.0, "nll_difference": change / 10, "largest_difference": change}
    return {"log_tolerance": log_tolerance, "paper": both, "certified": both}


def small_report() -> dict:
    """Two layers of two heads."""
    difference = {"paper": {"mean": 0, "largest": 0},
                  "certified": {"mean": 1e-8, "largest": 1e-6},
                  "rounding": {"mean": -3e-8, "largest": 2e-6}}
    acp = {"dtype": "f32", "tokens": 192, "log_tolerance": -10.0, "page_tokens": 64,
           "off": bound(0, None), "paper": bound(0.6, -10.5), "certified": bound(0.7, -10.01),
           "mean_window_forgetting": {"paper": 90.4, "certified": 45.2},
           "loss": {"window": 192, "tokens": 382, "difference": difference,
                    "nll": {"off": 3.0, "paper": 3.0, "certified": 3.0},
                    "by_position": [{"first": 0, "end": 96, "off": 3.5, "paper": 3.5,
                                     "certified": 3.5},
                                    {"first": 96, "end": 192, "off": 3, "paper": 3,
                                     "certified": 3}]},
           "sweep": [point(-1, 1e-3), point(-20, 0)],
           "heads": [head(0, 0, 0.9, 0.95), head(0, 1, 0.7, 0.85), head(1, 0, 0, 0),
                     head(1, 1, 0.8, 0.9)]}
    perplexity = {"nll": 3.0662, "bits_per_byte": 1.17264, "windows": 172, "window": 8192,
                  "bytes_per_token": 3.7723, "acp": "certified", "dtype": "f32"}
    return {"text": {"name": "valid.txt", "sha256": "ab" * 32}, "device": "cpu", "acp": acp,
            "perplexity": perplexity}


class ModelReportTest(unittest.TestCase):
    """What stands in the text."""

    def test_it_says_what_was_measured(self) -> None:
        lines = model_report.text_of(small_report())
        for said in ("3.0662 nats a token, 1.1726 bits per byte",
                     "| certified | 70.0% | 80.0% | 45 | -10.0100 |",
                     "| off | 0.0% | 10.0% | 144 | none |",
                     "under the paper bound 2 lose at least 80% of their pages, 1 less than 10%, "
                     "1 lie between",
                     "| -1 | 50.0% | 50.0% | +1.0e-04 | +1.0e-04 | 1.0e-03 | 1.0e-03 |",
                     "2 windows of 192 tokens"):
            self.assertIn(said, lines)

    def test_a_loss_beyond_rounding_is_not_hidden(self) -> None:
        report = small_report()
        self.assertIn("no loss beyond float noise", model_report.text_of(report))
        for key, value in (("largest", 2.1e-6), ("mean", 3.1 * 2 ** -24), ("mean", -2e-7)):
            worse = copy.deepcopy(report)
            worse["acp"]["loss"]["difference"]["certified"][key] = value
            self.assertNotIn("no loss beyond", model_report.text_of(worse), (key, value))

    def test_prose_is_wrapped_and_nothing_is_lost(self) -> None:
        text = model_report.text_of(small_report())
        wrapped = model_report.wrapped(text)
        self.assertEqual(wrapped.split(), text.split())
        for line in wrapped.split("\n"):
            self.assertTrue(len(line) <= 100 or line.startswith(("|", " ", "!")), line)

    def test_plots_are_drawn(self) -> None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("no matplotlib here")
        with tempfile.TemporaryDirectory() as name:
            model_report.draw(small_report(), pathlib.Path(name))
            sizes = {file.name: file.stat().st_size for file in pathlib.Path(name).iterdir()}
        self.assertEqual(set(sizes), {"heads.svg", "boundaries.svg", "bounds.svg", "sweep.svg",
                                      "loss.svg"})
        self.assertLess(max(sizes.values()), 100_000)

    def test_the_report_of_the_demo_model_is_that_of_its_json(self) -> None:
        folder = ROOT / "models/demo"
        report = json.loads((folder / "report/report.json").read_text(encoding="utf-8"))
        self.assertEqual((folder / "REPORT.md").read_text(encoding="utf-8"),
                         model_report.wrapped(model_report.text_of(report)))


if __name__ == "__main__":
    unittest.main()
