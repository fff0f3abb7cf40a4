#!/usr/bin/env python3
"""The committed measurements of a GPU have every judged row, and README.md shows them."""

from __future__ import annotations

import json
import unittest

import gpu_bench
import judge
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


if __name__ == "__main__":
    unittest.main()
