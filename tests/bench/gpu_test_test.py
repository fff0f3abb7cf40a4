#!/usr/bin/env python3
"""The runner of GPU tests, without a GPU: on programs made up here."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

import gpu_build
import gpu_test

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class RunnerTest(unittest.TestCase):
    def run_tests(self, programs: dict[str, str], *arguments: str,
                  shards: int = 1) -> tuple:
        """Exit code, output and judged values of a run on programs with these shell bodies."""
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder, "build")
            for name, body in programs.items():
                script = build / "bin" / name
                script.parent.mkdir(parents=True, exist_ok=True)
                script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
                script.chmod(0o755)
            (build / gpu_build.TESTS_FILE).write_text(json.dumps(
                [{"name": name, "command": [f"bin/{name}"], "timeout": 10, "shards": shards}
                 for name in programs]), encoding="utf-8")
            logs = pathlib.Path(folder, "logs")
            ran = subprocess.run([sys.executable, "-B", str(HERE / "gpu_test.py"), str(build),
                                  "--logs", str(logs), *arguments], capture_output=True, text=True,
                                 check=False)
            judged = json.loads((logs / "judged.json").read_text(encoding="utf-8"))
        return ran.returncode, ran.stdout, judged

    def test_shards_share_a_program_and_all_run_and_the_worst_is_kept(self) -> None:
        body = """test "$GTEST_TOTAL_SHARDS" = 3 || exit 9
echo "[==========] Running $((GTEST_SHARD_INDEX + 2)) tests from 1 test suite."
echo "[       OK ] ATest.Works (3 ms)"
test "$GTEST_SHARD_INDEX" != 2 || echo "[  SKIPPED ] Cases/CTest.Waits/1 (3 ms)"
echo "[judged] golden_error 0.$GTEST_SHARD_INDEX"
echo "[judged] graphs_equal $((1 - GTEST_SHARD_INDEX / 2))"
test "$GTEST_SHARD_INDEX" = 1 || exit 0
echo "[  FAILED  ] ATest.Breaks (3 ms)"
echo "[  FAILED  ] Cases/BTest.Breaks/1, where GetParam() = 4 (3 ms)"
echo "[  FAILED  ] 2 tests, listed below:"
echo "[  FAILED  ] ATest.Breaks"
exit 1
"""
        code, output, judged = self.run_tests({"cuda_tests": body, "bad": "echo because; exit 3"},
                                              shards=3)
        self.assertEqual(code, 1)
        self.assertEqual(sorted(line.split()[3] for line in output.splitlines()
                                if line.startswith(("PASS", "FAIL"))),
                         [f"{name}.{i}:" for name in ("bad", "cuda_tests") for i in range(3)])
        self.assertIn("| because", output)
        self.assertEqual(output.splitlines()[-2].split(": ")[1].split()[:2],
                         ["ATest.Breaks", "Cases/BTest.Breaks/1"])
        self.assertEqual(output.splitlines()[-1], "3 passed, 1 skipped, 5 failed")
        self.assertEqual(judged, {"golden_error": 0.2, "graphs_equal": 0})

    def test_the_cases_for_the_sanitizer_exist(self) -> None:
        sources = "".join(path.read_text(encoding="utf-8")
                          for path in (ROOT / "tests").rglob("*_test.c[cu]"))
        known = {".".join(names) for names in
                 re.findall(r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", sources, re.MULTILINE)}
        for program, cases in gpu_test.cases_of("memcheck").items():
            for case in cases:
                with self.subTest(program=program, case=case):
                    # Prefix/Suite.Name/Parameter
                    self.assertIn(re.search(r"\w+\.\w+", case).group(), known)

    def test_a_program_ends_with_its_children(self) -> None:
        for end, said in {"wait": "ran past its time", "kill -ABRT $$": "exit code -6"}.items():
            with self.subTest(end), tempfile.TemporaryDirectory() as folder:
                log = pathlib.Path(folder, "log")
                why = gpu_test.finish(
                    gpu_test.Command("", ["sh", "-c", f"sleep 60 & echo $!; {end}"], 60), log,
                    pathlib.Path(folder), 0.5)
                child = int(log.read_text(encoding="utf-8"))
                self.assertEqual(why, said)
                for _ in range(100):
                    try:
                        stat = pathlib.Path(f"/proc/{child}/stat").read_text(encoding="utf-8")
                    except OSError:
                        break  # gone
                    if stat.split()[2] == "Z":
                        break  # dead, though not collected yet
                    time.sleep(0.05)
                else:
                    self.fail(f"process {child} lives on")


if __name__ == "__main__":
    unittest.main()
