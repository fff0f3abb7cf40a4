#!/usr/bin/env python3
"""Tests docker/OPERATIONS.md: its formulae agree with the memory plan, it names every metric, exit
code and status, and no flag that does not exist.

    OPERATIONS_test.py BUILD     a build tree with fox-server
"""

from __future__ import annotations

import json
import math
import re
import sys
import unittest

import loud_skips
from loud_skips import ROOT
from server_command import default_of, printed

GUIDE = (ROOT / "docker" / "OPERATIONS.md").read_text()
DEMO = ROOT / "models" / "demo"


def formula(what: str) -> str:
    """The expression in backticks in a row of the sizing table."""
    row = re.search(rf"(?m)^\| {what} \| `([^`]+)`", GUIDE)
    assert row is not None, what
    return row.group(1)


class GuideTest(unittest.TestCase):
    """The guide against the sources and the server itself."""

    def test_formulae(self) -> None:
        length, sequences, mib = 5000, 24, 256
        plan = printed("--check-model", str(DEMO), "--max-model-len", str(length),
                           "--max-num-seqs", str(sequences), "--kv-cache-mb", str(mib))
        config = json.loads((DEMO / "config.json").read_text())
        heads = config["num_heads"]
        names = {"layers": config["num_hidden_layers"], "heads": heads, "kv_heads": heads,
                 "head_dim": config["hidden_size"] // heads, "e": 2 if "dtype: bf16" in plan else 4,
                 "tokens": length, "max_model_len": length, "max_num_seqs": sequences,
                 "ceil": math.ceil}

        def value(what: str) -> float:
            return eval(formula(what), {"__builtins__": {}}, names)  # noqa: S307

        pages = int(re.search(r"\((\d+) pages of", plan).group(1))
        self.assertEqual(pages, int(mib * 2**20 // value("one page")))
        unpruned = int(re.search(r"pool holds (\d+) tokens unpruned", plan).group(1))
        self.assertEqual(unpruned, pages // (names["layers"] * heads) * 64)
        tables = float(re.search(r"KV tables +([\d.]+) MiB", plan).group(1))
        self.assertAlmostEqual(tables, value("tables") / 2**20, delta=0.051)
        # The two examples below the formulae.
        for row, example in (("demo, 25M", (10, 6)), ("FoX Pro, 760M", (24, 24))):
            with self.subTest(row=row, example=example):
                names.update(layers=example[0], heads=example[1], kv_heads=example[1], head_dim=64,
                             e=2, tokens=16384)
                page = value("one page")
                sequence = value("one sequence, unpruned") * page
                told = next(line for line in GUIDE.splitlines() if line.startswith(f"| {row}"))
                cells = [cell.strip() for cell in told.split("|")[2:6]]
                self.assertEqual(cells, [str(example[0] * example[1]), f"{page:,.0f} bytes",
                                         f"{sequence / 16384:,.0f} bytes",
                                         f"{sequence / 1e9:.3f} GB"])

    def test_flags_exist(self) -> None:
        known = set(re.findall(r"(?m)^  --([a-z0-9-]+)", printed("--help", "all")))
        # Flags of other programs.
        known |= {"target", "rates", "compare", "text", "gpus", "now", "tls"}
        named = set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", GUIDE))
        named |= {name.lower().replace("_", "-") for name in re.findall(r"\bFOX_([A-Z_]+)", GUIDE)}
        self.assertEqual(sorted(named - known), [])
        # The defaults in the table of flags.
        for flag, default in re.findall(r"`(--[a-z-]+)` \((\d[\d.]*)\)", GUIDE):
            self.assertEqual(default_of(flag), default, flag)

    def test_exit_codes(self) -> None:
        text = (ROOT / "server" / "process" / "process_end.h").read_text()
        ended = GUIDE.split("### The process ended")[1].split("###")[0]
        codes = re.findall(r"constexpr int kExit\w+ = (\d+);", text)
        self.assertEqual(len(codes), 2)
        for code in codes:
            with self.subTest(code=code):
                self.assertRegex(ended, rf"(?m)^\| {code} \|")

    def test_statuses(self) -> None:
        answered = GUIDE.split("### A client gets a status")[1].split("###")[0]
        made = set()
        for folder in ("engine", "server/calls", "server/http", "server/rpc"):
            for source in (ROOT / folder).rglob("*.cc"):
                if source.parent.name == "store":  # then the prompt is computed
                    continue
                made.update(re.findall(r"\babsl::([A-Z]\w+)Error\(", source.read_text()))
        for name in sorted(made):
            with self.subTest(name=name):
                self.assertIn(re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper(), answered)

    def test_metrics(self) -> None:
        made = set(re.findall(r'"((?:fox|process)_[a-z_]+)"', loud_skips.METRICS))
        section = GUIDE.split("## Metrics")[1].split("\n## ")[0]
        named = set(re.findall(r"`((?:fox|process)_[a-z_]+)`", section))
        self.assertEqual(sorted(made), sorted(named))


if __name__ == "__main__":
    sys.exit(loud_skips.main())
