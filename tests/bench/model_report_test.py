#!/usr/bin/env python3
"""The report of a model: whether the demo model's is that of its JSON, and what would be said of a
worse one."""

from __future__ import annotations

import copy
import json
import pathlib
import unittest

import model_report

DEMO = pathlib.Path(__file__).resolve().parents[2] / "models/demo"
REPORT = json.loads((DEMO / "report/report.json").read_text(encoding="utf-8"))


class ModelReportTest(unittest.TestCase):
    """What stands in the text."""

    def test_the_report_of_the_demo_model_is_that_of_its_json(self) -> None:
        self.assertEqual((DEMO / "REPORT.md").read_text(encoding="utf-8"),
                         model_report.wrapped(model_report.text_of(REPORT)))

    def test_a_loss_beyond_rounding_is_not_hidden(self) -> None:
        self.assertIn("no loss beyond float noise", model_report.text_of(REPORT))
        loss = REPORT["acp"]["loss"]
        unit = loss["nll"]["off"] * 2 ** -24
        for key, value in (("largest", 1.01 * loss["difference"]["rounding"]["largest"]),
                           ("mean", 1.01 * unit), ("mean", -1.01 * unit)):
            worse = copy.deepcopy(REPORT)
            worse["acp"]["loss"]["difference"]["certified"][key] = value
            self.assertNotIn("no loss beyond", model_report.text_of(worse), (key, value))


if __name__ == "__main__":
    unittest.main()
