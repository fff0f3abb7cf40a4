#!/usr/bin/env python3
"""Runs all tests labelled gpu one by one and never stops at the first failure.

One line a test: PASS or FAIL, seconds, name; the log's end where it failed. Lines that a test
prints as `[judged] NAME VALUE` are collected for gpu_bench.py. With --sanitize, tests that were
quick run again under compute-sanitizer.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import gpu_build

JUDGED = re.compile(r"\[judged\] (\S+) (\S+)")
TOOLS = ("memcheck", "racecheck")
TAIL_LINES = 40


class Runner:
    """Runs commands of a build and remembers how they ended."""

    def __init__(self, build: pathlib.Path, logs: pathlib.Path, limit: float) -> None:
        self.build, self.logs, self.end = build, logs, time.monotonic() + limit
        self.passed: list[str] = []
        self.failed: list[str] = []
        self.seconds: dict[str, float] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, command: list[str], timeout: float) -> None:
        """Runs one command and prints its line."""
        left = self.end - time.monotonic()
        if left < 1:
            self.failed.append(name)
            print(f"FAIL      -    {name}: no time left", flush=True)
            return
        log = self.logs / (name + ".log")
        start = time.monotonic()
        why = ""
        with open(log, "wb") as out:
            try:
                code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out,
                                      stderr=subprocess.STDOUT, cwd=gpu_build.ROOT,
                                      env=gpu_build.environment(self.build),
                                      timeout=min(timeout, left), check=False).returncode
                why = f"exit code {code}" if code else ""
            except subprocess.TimeoutExpired:
                why = "ran past its time"
            except OSError as error:
                why = str(error)
        self.seconds[name] = time.monotonic() - start
        (self.failed if why else self.passed).append(name)
        print(f"{'FAIL' if why else 'PASS'} {self.seconds[name]:7.1f} s  {name}"
              f"{': ' + why if why else ''}", flush=True)
        if why:
            text = log.read_text(encoding="utf-8", errors="replace").splitlines()
            print("\n".join("    | " + line for line in text[-TAIL_LINES:]), flush=True)

    def judged(self) -> dict[str, str]:
        """What the tests' logs say for the table of judged rows."""
        values = {}
        for name in self.passed + self.failed:
            log = self.logs / (name + ".log")
            if log.is_file():
                values.update(JUDGED.findall(log.read_text(encoding="utf-8", errors="replace")))
        return values


def sanitize(runner: Runner, tests: list[dict], at_most: float) -> None:
    """The quick tests again under compute-sanitizer's tools."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(sanitizer, os.X_OK):
        print("compute-sanitizer is not here: not run")
        return
    for tool in TOOLS:
        for test in tests:
            if runner.seconds.get(test["name"], at_most + 1) > at_most:
                continue
            runner.run(f"{tool}.{test['name']}",
                       [sanitizer, "--tool", tool, "--error-exitcode", "1",
                        "--print-limit", "20", *test["command"]], 300)


def main() -> int:
    """Prints `N passed, N failed` last; 1 when a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--sanitize-seconds", type=float, default=5,
                        help="tests that took longer are not run under the sanitizer")
    parser.add_argument("--limit", type=float, default=540, help="seconds for all tests together")
    parser.add_argument("--logs", type=pathlib.Path, default=gpu_build.ROOT / "build/gpu-test")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    tests = [test for test in gpu_build.tests_of(build) if re.search(arguments.only, test["name"])]
    for test in tests:
        test["command"][0] = str(build / test["command"][0])
    runner = Runner(build, arguments.logs, arguments.limit)
    for test in tests:
        runner.run(test["name"], test["command"], float(test["timeout"]))
    if arguments.sanitize:
        sanitize(runner, tests, arguments.sanitize_seconds)
    judged = arguments.logs / "judged.json"
    known = json.loads(judged.read_text(encoding="utf-8")) if judged.is_file() else {}
    judged.write_text(json.dumps({**known, **runner.judged()}, indent=1), encoding="utf-8")
    if runner.failed:
        print("failed: " + " ".join(runner.failed))
    print(f"{len(runner.passed)} passed, {len(runner.failed)} failed")
    return 1 if runner.failed or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
