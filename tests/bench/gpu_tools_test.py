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

    def test_the_tables_are_those_of_the_committed_measurements(self) -> None:
        text = tables.README.read_text(encoding="utf-8")
        self.assertEqual(tables.rewritten(text), text)


if __name__ == "__main__":
    unittest.main()
