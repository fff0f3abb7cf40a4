#!/usr/bin/env python3
"""Draws measurements over time: each committed version of a result file is one point.

    series.py tests/bench/results/h200.json [REGEX]    the rows whose name matches; default: all
    series.py tests/bench/results/cpu.json 'decode 8192'

Rows are the judged rows of gpu_bench.py's files, and the medians of fox-bench's files. Versions
come from the git history of the file, so nothing is stored twice.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import gpu_bench
import judge

BARS = "▁▂▃▄▅▆▇█"
KEYS = ("bench", "length", "context", "batch_size", "acp")  # name a row of fox-bench


def values_of(report: dict[str, Any], name: str) -> dict[str, float]:
    """The values of a report by row. `name`: its file's name, which tells the suite."""
    if "parts" not in report:
        return {" ".join(str(row[key]) for key in KEYS if key in row): row["seconds"]["median"]
                for row in report.get("rows", []) if "seconds" in row}
    rows = [row for suite in gpu_bench.SUITES.values()
            if re.fullmatch(suite.results.replace("{}", r"[a-z]+\d+"), name)
            for row in suite.judged_rows(judge.Measurements(report))]
    return {f"{row['row']} ({row['unit']})": row["value"] for row in rows
            if row["value"] is not None}


def versions(path: pathlib.Path) -> list[tuple[str, dict[str, float]]]:
    """Date and values of each committed version, the oldest first; equal neighbours once."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(path.parent), *arguments], check=True,
                              capture_output=True, text=True).stdout

    out: list[tuple[str, dict[str, float]]] = []
    for line in reversed(git("log", "--format=%h %cs", "--", path.name).splitlines()):
        commit, date = line.split()
        try:
            values = values_of(json.loads(git("show", f"{commit}:./{path.name}")), path.name)
        except (subprocess.CalledProcessError, ValueError, KeyError, TypeError):
            continue  # deleted, or in another format
        if values and (not out or out[-1][1] != values):
            out.append((f"{date} {commit}", values))
    return out


def drawn(values: list[float | None]) -> str:
    """A bar for each value, from the least to the largest; a space: it was not measured."""
    known = [value for value in values if value is not None]
    low, span = min(known), (max(known) - min(known)) or 1
    return "".join(" " if value is None else BARS[int((value - low) / span * (len(BARS) - 1))]
                   for value in values)


def main(path: str, pattern: str = "") -> int:
    """Prints a line for each row: first and last value, bars, name."""
    found = versions(pathlib.Path(path).resolve())
    names = [name for name in (found[-1][1] if found else {}) if re.search(pattern, name)]
    if not names:
        print(f"{path}: no row matches")
        return 1
    print(f"{len(found)} versions from {found[0][0]} to {found[-1][0]}")
    for name in names:
        values = [version.get(name) for _, version in found]
        first = next(value for value in values if value is not None)
        print(f"{first:>10.4g} {values[-1]:>10.4g}  {drawn(values)}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
