#!/usr/bin/env python3
"""The tools around measurements, without a GPU: judged rows, tables, the demo model's report,
packs."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import unittest

import gpu_bench
import gpu_build
import gpu_pack
import judge
import model_report
import tables

HERE = pathlib.Path(__file__).resolve().parent


def rows(measured: list[dict], suite: str = "serving", **tests: str) -> dict[str, judge.Row]:
    """Judged rows by name."""
    report = {"parts": {"some": {"rows": measured}, "broken": {"error": "exit code 1"}},
              "tests": tests}
    return {row["row"]: row
            for row in gpu_bench.SUITES[suite].judged_rows(judge.Measurements(report))}


class JudgeTest(unittest.TestCase):
    """Rows from measurements."""

    def test_the_committed_measurements_give_the_committed_rows(self) -> None:
        for suite in gpu_bench.SUITES.values():
            path = gpu_bench.RESULTS / suite.results.format(gpu_bench.JUDGED_CARD)
            report = json.loads(path.read_text(encoding="utf-8"))
            self.assertEqual(suite.judged_rows(judge.Measurements(report)), report["judged"])
            self.assertTrue(all(row["value"] is not None for row in report["judged"]))

    def test_one_answer_that_differs_is_a_miss(self) -> None:
        def ways(differ: int, count: int = 8, requests: int = 64) -> bool | None:
            way = {"bench": "invariance", "requests": requests, "bits_differ": 0}
            found = rows([way] * (count - 1) + [{**way, "bits_differ": differ}])
            return next(row["ok"] for name, row in found.items() if name.startswith("64 requests"))

        # The third ended early, the fourth is another run than the row's.
        self.assertEqual((ways(0), ways(1), ways(1, 5), ways(0, requests=24)),
                         (True, False, None, None))

    def test_the_report_of_the_demo_model_is_that_of_its_json(self) -> None:
        demo = HERE.parents[1] / "models/demo"
        report = json.loads((demo / "report/report.json").read_text(encoding="utf-8"))
        self.assertEqual((demo / "REPORT.md").read_text(encoding="utf-8"),
                         model_report.wrapped(model_report.text_of(report)))
        self.assertIn("no loss beyond float noise", model_report.text_of(report))
        report["acp"]["loss"]["difference"]["certified"]["mean"] = 1e-6
        self.assertNotIn("no loss beyond", model_report.text_of(report))

    def test_the_tables_are_those_of_the_committed_measurements(self) -> None:
        text = tables.README.read_text(encoding="utf-8")
        self.assertEqual(tables.rewritten(text), text)


class ModelPackTest(unittest.TestCase):
    """The demo model's way to a tree without it."""

    def test_weights_come_back_where_none_are(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            there, here, pack = (pathlib.Path(name, part) for part in ("there", "here", "model.xz"))
            there.mkdir()
            here.mkdir()
            gpu_pack.pack_model(there, pack)
            self.assertFalse(pack.exists())  # no weights, no archive

            weights = {f"model-{i}.safetensors": bytes(range(256)) * (i + 1) for i in range(3)}
            for file, content in weights.items():
                (there / file).write_bytes(content)
            (there / "config.json").write_text("{}", encoding="utf-8")
            gpu_pack.pack_model(there, pack)
            gpu_build.restore_model(pack, here)
            self.assertEqual({file.name: file.read_bytes() for file in here.iterdir()}, weights)

            (here / "model-0.safetensors").write_bytes(b"mine")
            os.utime(pack, (0, 0))  # older than the weights
            (there / "model-0.safetensors").write_bytes(b"newer")
            gpu_pack.pack_model(there, pack)
            for folder, found in ((here, b"mine"), (pathlib.Path(name, "third"), b"newer")):
                gpu_build.restore_model(pack, folder)
                self.assertEqual((folder / "model-0.safetensors").read_bytes(), found)


if __name__ == "__main__":
    unittest.main()
