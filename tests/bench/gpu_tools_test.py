#!/usr/bin/env python3
"""The tools around GPU measurements, without a GPU: judged rows, README table, and the runner of
tests on programs made up here."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import gpu_build
import gpu_pack
import judge
import plot_results

HERE = pathlib.Path(__file__).resolve().parent


def step(acp: str, seconds: float, batch: int = 32, context: int = 16384) -> dict:
    """A row of fox-bench decode."""
    return {"bench": "decode", "graphs": True, "batch_size": batch, "context": context,
            "acp": acp, "seconds": {"median": seconds, "min": seconds, "max": seconds}}


class JudgeTest(unittest.TestCase):
    """Rows from measurements."""

    def rows(self, measured: list[dict], tests: dict[str, str]) -> dict[str, judge.Row]:
        """Judged rows by name."""
        parts = {"decode": {"rows": measured}, "broken": {"error": "exit code 1"}}
        return {row["row"]: row for row in judge.judged_rows(parts, tests)}

    def test_limits_hold_on_their_side(self) -> None:
        rows = self.rows([step("off", 0.019), step("paper", 0.0085), step("certified", 0.007)],
                         {"golden_error": "0.03", "graphs_equal": "1"})
        self.assertTrue(rows["decode step B=32 16k, paper or certified"]["ok"])
        gain = rows["tokens/s B=32 16k, ACP over none"]
        self.assertAlmostEqual(gain["value"], 19 / 7)
        self.assertTrue(gain["ok"])
        self.assertFalse(judge.aim_reached(gain))
        self.assertFalse(rows["golden logits against float64, worst"]["ok"])
        self.assertTrue(rows["tokens equal with and without graphs"]["ok"])

    def test_what_was_not_measured_is_neither_met_nor_missed(self) -> None:
        rows = self.rows([step("off", 0.019)], {})
        self.assertTrue(all(row["ok"] is None for row in rows.values()))
        self.assertNotIn("MISSED", judge.as_table(list(rows.values())))


class TableTest(unittest.TestCase):
    """The README's table."""

    def test_it_replaces_what_stands_between_the_marks(self) -> None:
        report = {"parts": {"decode": {"rows": [step(acp, 0.01) for acp in plot_results.MODES]}}}
        with tempfile.TemporaryDirectory() as folder:
            readme = pathlib.Path(folder, "README.md")
            readme.write_text(f"a\n{plot_results.BEGIN}\nold\n{plot_results.END}\nb\n",
                              encoding="utf-8")
            for _ in range(2):
                plot_results.rewrite_readme(readme, plot_results.table(report))
            text = readme.read_text(encoding="utf-8")
        self.assertTrue(text.startswith(f"a\n{plot_results.BEGIN}\n| what"))
        self.assertTrue(text.endswith(f"|\n{plot_results.END}\nb\n"))
        self.assertIn("| decode step B=32, 16k | 10 | 10 | 10 |", text)
        self.assertNotIn("old", text)


class RunnerTest(unittest.TestCase):
    """gpu_test.py on an unpacked build."""

    def test_it_runs_all_and_collects_what_they_say(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder, "build")
            (build / "bin").mkdir(parents=True)
            programs = {"bad": "echo because; exit 3", "good": "echo '[judged] golden_error 0.5'"}
            for name, body in programs.items():
                (build / "bin" / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
                (build / "bin" / name).chmod(0o755)
            (build / gpu_build.TESTS_FILE).write_text(json.dumps(
                [{"name": name, "command": [f"bin/{name}"], "timeout": 10} for name in programs]),
                encoding="utf-8")
            logs = pathlib.Path(folder, "logs")
            ran = subprocess.run([sys.executable, "-B", str(HERE / "gpu_test.py"), str(build),
                                  "--logs", str(logs)], capture_output=True, text=True,
                                 check=False)
            judged = json.loads((logs / "judged.json").read_text(encoding="utf-8"))
        self.assertEqual(ran.returncode, 1)
        self.assertIn("| because", ran.stdout)
        self.assertEqual(ran.stdout.splitlines()[-1], "1 passed, 1 failed")
        self.assertEqual(judged, {"golden_error": "0.5"})


class ModelPackTest(unittest.TestCase):
    """The demo model's way to a tree without it."""

    def test_weights_come_back_where_none_are(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            there, here = root / "there", root / "here"
            there.mkdir()
            here.mkdir()
            pack = root / "model.tar.xz"
            gpu_pack.pack_model(there, pack)
            gpu_build.restore_model(pack, here)
            self.assertFalse(pack.exists())  # no weights, no archive

            weights = {f"model-{i}.safetensors": bytes(range(256)) * (i + 1) for i in range(3)}
            for file, content in weights.items():
                (there / file).write_bytes(content)
            (there / "config.json").write_text("{}", encoding="utf-8")
            gpu_pack.pack_model(there, pack)
            gpu_build.restore_model(pack, here)
            self.assertEqual({file.name: file.read_bytes() for file in here.iterdir()}, weights)

            (here / "model-0.safetensors").write_bytes(b"mine")
            gpu_build.restore_model(pack, here)
            self.assertEqual((here / "model-0.safetensors").read_bytes(), b"mine")
            os.utime(pack, (0, 0))  # older than the weights
            (there / "model-0.safetensors").write_bytes(b"newer")
            gpu_pack.pack_model(there, pack)
            gpu_build.restore_model(pack, root / "third")
            self.assertEqual((root / "third/model-0.safetensors").read_bytes(), b"newer")


if __name__ == "__main__":
    unittest.main()
