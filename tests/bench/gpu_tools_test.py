#!/usr/bin/env python3
"""The tools around measurements, without a GPU: judged rows and tables."""

from __future__ import annotations

import json
import unittest

import gpu_bench
import judge
import tables


def rows(measured: list[dict], suite: str = "serving", **tests: str) -> dict[str, judge.Row]:
    report = {"parts": {"some": {"rows": measured}, "broken": {"error": "exit code 1"}},
              "tests": tests}
    return {row["row"]: row
            for row in gpu_bench.SUITES[suite].judged_rows(judge.Measurements(report))}


class JudgeTest(unittest.TestCase):
    def test_the_committed_measurements_give_the_committed_rows(self) -> None:
        for name, suite in gpu_bench.SUITES.items():
            path = gpu_bench.RESULTS / suite.results.format(gpu_bench.JUDGED_CARD)
            report = json.loads(path.read_text(encoding="utf-8"))
            self.assertEqual(suite.judged_rows(judge.Measurements(report)), report["judged"])
            missing = sum(row["value"] is None for row in report["judged"])
            self.assertEqual(missing, 0)

    def test_one_answer_that_differs_is_a_miss(self) -> None:
        def ways(differ: int, count: int = 8, requests: int = 64) -> bool | None:
            way = {"bench": "invariance", "requests": requests, "bits_differ": 0}
            found = rows([way] * (count - 1) + [{**way, "bits_differ": differ}])
            return next(row["ok"] for name, row in found.items() if name.startswith("64 requests"))

        # The third ended early, the fourth is another run than the row's.
        self.assertEqual((ways(0), ways(1), ways(1, 5), ways(0, requests=24)),
                         (True, False, None, None))

    def test_a_foxified_model_is_judged_by_its_last_adapter(self) -> None:
        run = {"bench": "trained", "keep": 0.125, "rank": 32, "window_baseline": None, "loss": 3.28,
               "recall_mean": 0.5, "chat_kl": 0.06, "share": 0.12,
               "teacher": {"loss": 3.25, "recall_mean": 0.55}}
        others = [{**run, "loss": 9}, run, {**run, "loss": 9, "rank": 0}, {**run, "keep": 0.25},
                  {**run, "window_baseline": 512, "loss": 3.3, "recall_mean": 0.6}]
        found = rows([*others, {"bench": "import", "loss": 3.4}, {"bench": "audit", "chats": 200,
                                                                  "breaches": 1}], "foxify")
        judged = {name: row["ok"] for name, row in found.items() if "0.25" not in name}
        # Equal to the limits: loss and recall; missed: KL, recall of the window, the audit.
        self.assertEqual(list(judged.values()),
                         [True, True, True, True, False, True, False, None, None, False])

    def test_the_tables_are_those_of_the_committed_measurements(self) -> None:
        text = tables.README.read_text(encoding="utf-8")
        self.assertEqual(tables.rewritten(text), text)


if __name__ == "__main__":
    unittest.main()
