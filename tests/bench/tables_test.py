#!/usr/bin/env python3
"""The committed measurements of a GPU have every judged row, and README.md shows them."""

from __future__ import annotations

import json
import re
import unittest

import gpu_bench
import judge
import quality_parts
import tables


class TablesTest(unittest.TestCase):
    def test_every_judged_row_is_measured(self) -> None:
        for name, suite in gpu_bench.SUITES.items():
            path = gpu_bench.RESULTS / suite.results.format(gpu_bench.JUDGED_CARD)
            report = json.loads(path.read_text(encoding="utf-8"))
            rows = suite.judged_rows(judge.Measurements(report))
            self.assertEqual([row["row"] for row in rows if row["value"] is None], [], name)

    def test_the_readme_shows_the_committed_measurements(self) -> None:
        text = tables.README.read_text(encoding="utf-8")
        self.assertEqual(tables.rewritten(text), text)

    def test_a_server_with_pruning_takes_the_longest_sequence_and_no_longer_one(self) -> None:
        text = (gpu_bench.gpu_build.ROOT / "engine/engine_factory.cc").read_text(encoding="utf-8")
        shift, = re.findall(r"kMaxPrunedLen = int64_t\{1\} << (\d+)", text)
        self.assertEqual(judge.LONGEST, 1 << int(shift))

    def test_kvpress_stands_beside_foxserve(self) -> None:
        rows = [{"bench": "evaluate", "of": "fox", "first": first, "row": f"{task}@4096",
                 "recall": {"mean": mean, "error": 0.03}, "certificate": {"kept": kept}}
                for first, mean, kept in ((True, 0.8, 1.0), (False, 0.72, 0.15))
                for task in ("multikey", "tracking")]
        rows += [{"bench": "kvpress", "press": press, "question_seen": seen, "task": task,
                  "recall": {"mean": mean, "error": 0.03}, "kept": kept, "cached": cached}
                 for press, seen, mean, kept, cached in (
                     ("none", False, 0.8, 1.0, 1.0), ("SnapKV", False, 0.1, 0.15, 0.15),
                     ("SnapKV", True, 0.2, 0.15, 0.15), ("KVzip", False, 0.16, 0.15, 1.0))
                 for task in ("multikey", "tracking")]
        rows.append({**rows[-1], "press": "TOVA", "task": "tracking"})  # another task is missing
        rows += [{"bench": "window-student", "task": task, "recall": {"mean": 0.2, "error": 0.03},
                  "kept": 0.15, "cached": 0.15} for task in ("multikey", "tracking")]
        m = judge.Measurements({"parts": {"peers": {"rows": rows}}})
        self.assertEqual(list(tables.peers(m)), [
            "| foxserve, the base, all keys |  | 100.0% | 80.0 +- 2.1 | 100% |",
            "| **foxserve, its Fox** |  | 15.0% | 72.0 +- 2.1 | 90% |",
            "| kvpress, the base, all keys |  | 100.0% | 80.0 +- 2.1 | 100% |",
            "| a window and sinks, trained on the same data |  | 15.0% | 20.0 +- 2.1 | 25% |",
            "| SnapKV | seen | 15.0% | 20.0 +- 2.1 | 25% |",
            "| KVzip | not seen | 15.0%, masked | 16.0 +- 2.1 | 20% |",
            "| SnapKV | not seen | 15.0% | 10.0 +- 2.1 | 12.5% |"])
        judged, = quality_parts.best_peer(m)
        self.assertAlmostEqual(judged["value"], 25)
        self.assertEqual(judged["note"],
                         "SnapKV, which saw the question; of the others KVzip 20 %")
        self.assertEqual(list(tables.peers(judge.Measurements({"parts": {}}))), [])

    def test_students_of_other_shares_stand_below_the_base(self) -> None:
        rows = [{"bench": "evaluate", "first": first, "row": f"multikey@{length}", **marks,
                 "recall": {"mean": mean, "error": 0.01}, "certificate": {"kept": kept}}
                for length in quality_parts.LENGTHS
                for first, mean, kept, marks in (
                    (True, 0.5, 1.0, {"of": "fox"}), (False, 0.45, 0.125, {"of": "fox"}),
                    (True, 0.4, 1.0, {"of": "student", "student": "six"}),
                    (False, 0.3, 0.06, {"of": "student", "student": "six"}))]
        m = judge.Measurements({"parts": {"curve": {"rows": rows}}})
        self.assertEqual(list(tables.curve(m)), [
            "| the base, all keys |" + " 100.0%: 50.0 +- 1.0 |" * 3,
            "| **its Fox** |" + " 12.5%: 45.0 +- 1.0 |" * 3,
            "| six |" + " 6.0%: 30.0 +- 1.0 |" * 3])
        self.assertEqual(list(tables.curve(judge.Measurements({"parts": {}}))), [])


if __name__ == "__main__":
    unittest.main()
