#!/usr/bin/env python3
"""Runs all tests labelled gpu one by one and never stops at the first failure.

One line a test: PASS or FAIL, seconds, name; the log's end where it failed. Lines that a test
prints as `[judged] NAME VALUE` are collected for gpu_bench.py. With --sanitize, a few small cases
of each run again under compute-sanitizer, as tests racecheck.NAME and memcheck.NAME; and
limit.NAME, which passes as long as racecheck reports what is no race.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import gpu_build

JUDGED = re.compile(r"\[judged\] (\S+) (\S+)")
RUNNING = re.compile(r"^\[=+\] Running (\d+) tests? from", re.MULTILINE)
REPORT = re.compile(r"=+ (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY).*\S")
SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (.*)", re.MULTILINE)
LOG_LINES = 40

# What runs under compute-sanitizer, which is slow: of each program small cases that reach its
# kernels and, where there are rings of tiles, go around them.
KERNEL_CASES = {
    "mbarrier_test": ("MbarrierTest.EachLaneArrives",),
    "append_test": ("AppendTest.EverythingAtOnce", "AppendTest.PaperWithoutNorm"),
    # The kernel of splits and, after it, that of clusters; mixed batches have only the former.
    "decode_test": ("HeadDim/DecodeShapesTest.GroupsOfQueryHeads/32",
                    "HeadDim/DecodeShapesTest.PrunedWindowsOfAllWidths/128",
                    "DecodeAttentionTest.MixedBatch"),
    "decode_groups_test": ("Shapes/DecodeGroupsTest.MatchesFloat64/64x9",
                           "Shapes/DecodeGroupsTest.WindowsWithoutQkNorm/128x4"),
    # Windows of two rounds of a cluster.
    "decode_cluster_test": ("HeadDim/DecodeClusterShapesTest.PrunedWindows/128",
                            "DecodeClusterTest.BesideOtherSequences"),
    "sm80_kernel_test": ("Cases/PrefillSm80Test.MatchesFloat64/StrongGatesOff16",
                         "Cases/PrefillSm80Test.MatchesFloat64/StrongGatesCertified64"),
    "sm90_kernel_test": ("Cases/PrefillSm90Test.MatchesFloat64/StrongGatesOff32",
                         "Cases/PrefillSm90Test.MatchesFloat64/StrongGatesCertified64",
                         "Cases/PrefillSm90Test.MatchesFloat64/StrongGatesCertified128"),
    "split_keys_test": ("KeySplitsTest.PlanOfManyWalks",
                        "Cases/KeySplitsCaseTest.MatchesFloat64/ChunksCertified64Shift3",
                        "Cases/KeySplitsCaseTest.MatchesFloat64/ChunksCertified128Shift0"),
    "sm80_dense_test": ("Cases/DensePrefillSm80Test.MatchesFloat64/Edges64",),
    "sm90_dense_test": ("Cases/DensePrefillSm90Test.MatchesFloat64/Edges64",),
    "backward_sm80_kernel_test": ("Cases/BackwardSm80Test.MatchesFloat64/Edges64",),
    "backward_sm90_kernel_test": ("Cases/BackwardSm90Test.MatchesFloat64/Edges64",),
    "prune_boundary_test": ("Modes/PruneBoundaryTest.StrongGates/Certified",
                            "HeadDim/MeasuredBoundaryTest.TilesSkipWhatTheirQueriesAllow/64"),
    "small_batch_gemm_test": ("In/SmallBatchGemmTest.MatchesFloat64/40",),
    # One row, which cuBLASLt never multiplies: racecheck ends by an error of its own at kernels of
    # cuBLASLt's that a filter leaves out.
    "linear_test": ("Rows/LinearTransformTest.RmsNorm/1",
                    "Rows/LinearTransformTest.GatedActAndConversion/1"),
    "cluster_gemm_family_test": ("Weights/ClusterGemmFamilyTest.NormedRows/65x40",),
    "embed_test": ("EmbedTest.ReplacesSampledTokensAndClamps", "GatherRowsTest.CopiesRows"),
    "input_transform_test": ("TransformRowsTest.RmsNorm",
                             "TransformRowsTest.GatedActAndConversion"),
    "page_pool_test": ("PagePoolTest.ATooSmallPoolIsReported",
                       "PagePoolTest.PagesThatComeBackTwiceAreReported"),
    "paging_test": ("PagingTest.LongPrefillEvictsAcrossManyWindows",
                    "PagingTest.ReleaseResetsTheState"),
    "share_device_test": ("ShareDeviceTest.TheStateIsThatOfThePageEnd",),
    "swap_device_test": ("Shapes/SwapDeviceTest.AllComesBackIntoAnotherSlot/0",),
    "sampling_arithmetic_device_test": ("SamplingArithmeticTest.TheDeviceHasTheHostsBits",),
    "sample_test": ("Vocabularies/SampleTest.SamplesWhatTheSamplerSamples/5",),
    "sequence_device_test": ("Vocabularies/SequenceSamplesTest.AreThoseOfTheSampler/3",
                             "PenaltyStateTest.AreZeroAndThenTheEntries"),
}
# More than racecheck can run.
MEMCHECK_CASES = {
    # The small-batch kernel for 1 and 4 rows, the cluster kernel for 6 and 32 (before Hopper the
    # skinny one for 6), and cuBLASLt for prefill rows; for gated ones see prefill_gemm_test.
    "linear_test": ("Rows/LinearTransformTest.RmsNorm/1",
                    "Rows/LinearTransformTest.GatedActAndConversion/4",
                    "Rows/LinearTransformTest.GatedActAndConversion/6",
                    "Rows/LinearTransformTest.GatedActAndConversion/32"),
    "engine_device_test": ("Models/DeviceEngineTest.GraphsChangeNoBit/dev_pro_d64_certified",),
}
# Racecheck does not follow a lane that arrives at a barrier for its warp, behind a __syncwarp.
LIMIT_CASES = {"mbarrier_test": ("MbarrierTest.OneLaneArrivesForItsWarp",)}
SANITIZER_SECONDS = 60  # for one program
REPORTED = 99  # exit code
SANITIZED_AT_ONCE = 4  # no test measures a time there

TOOLS = {
    "racecheck": [
        # Kernels of namespace fox::cuda; cuBLAS answers for its own.
        "--kernel-name", "kns=3fox4cuda",
        # Of prefill and backward: one lane announces what its warp has written (LIMIT_CASES).
        "--kernel-name-exclude", "kns=Sm90Kernel",
        # Bounds a program of many steps.
        "--launch-count", "1500",
        # Of a block, at most: two for each of the 16 stages of linear/small_batch_gemm.cu. Barriers
        # that a loop initialises are not counted automatically.
        "--num-cuda-barriers", "32",
        # That a barrier waits for the bytes of a bulk copy is not modelled: what
        # linear/small_batch_gemm.cu reads of its weights would be reported.
        "--check-bulk-copy", "no",
    ],
    "memcheck": [],
}


def finish(command: list[str], log: pathlib.Path, build: pathlib.Path, timeout: float) -> str:
    """Runs a command into a log; says how it failed, if it did. Leaves no process behind."""
    with open(log, "wb") as out:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, cwd=gpu_build.ROOT,
                                       env=gpu_build.environment(build), start_new_session=True)
        except OSError as error:
            return str(error)
        try:
            code = process.wait(timeout)
            return f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            return "ran past its time"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # the sanitizer and what it runs
                process.wait()


class Runner:
    """Runs commands of a build and remembers how they ended."""

    def __init__(self, build: pathlib.Path, logs: pathlib.Path, limit: float) -> None:
        self.build, self.logs, self.end = build, logs, time.monotonic() + limit
        self.passed: list[str] = []
        self.failed: list[str] = []
        self.judged: dict[str, str] = {}  # what whole tests say for the table of judged rows
        logs.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, command: list[str], timeout: float, cases: int = 0,
            wanted: str = "") -> None:
        """Runs one command, which must run `cases` cases if that is not 0, and end as is `wanted`
        (as finish says it); prints its line."""
        left = self.end - time.monotonic()
        if left < 1:
            self.failed.append(name)
            print(f"FAIL      -    {name}: no time left", flush=True)
            return
        log = self.logs / (name + ".log")
        start = time.monotonic()
        why = finish(command, log, self.build, min(timeout, left))
        seconds = time.monotonic() - start
        text = log.read_text(encoding="utf-8", errors="replace")
        found = sum(map(int, RUNNING.findall(text)))
        if not cases:
            self.judged.update(JUDGED.findall(text))
        elif not why and found != cases:
            why = f"{found} of {cases} cases are there"
        if wanted:
            why = "" if why == wanted else f"not {wanted}: {why or 'exit code 0'}"
        (self.failed if why else self.passed).append(name)
        notes = ([why] if why else []) + SUMMARY.findall(text)
        line = (f"{'FAIL' if why else 'PASS'} {seconds:7.1f} s  {name}"
                f"{': ' if notes else ''}{', '.join(notes)}")
        told = ["    | " + line for line in telling_lines(text)] if why else []
        print("\n".join([line, *told]) + "\n", end="", flush=True)  # whole, whoever prints beside


def telling_lines(log: str) -> list[str]:
    """What a log says about a failure: the sanitizer's first reports, else the log's end."""
    lines = log.splitlines()
    reports = [line for line in lines if REPORT.match(line)]
    return reports[:LOG_LINES] if reports else lines[-LOG_LINES:]


def cases_of(tool: str) -> dict[str, tuple[str, ...]]:
    """What runs under a tool."""
    return KERNEL_CASES | (MEMCHECK_CASES if tool == "memcheck" else {})


def sanitized_runs(build: pathlib.Path) -> list[tuple[str, list[str], int, str]]:
    """Names, commands, numbers of cases and ends: of each tool, then its limits."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(sanitizer, os.X_OK):
        print("compute-sanitizer is not here: not run")
        return []

    def command(tool: str, program: str, cases: tuple[str, ...]) -> list[str]:
        return [sanitizer, "--tool", tool, "--error-exitcode", str(REPORTED), "--print-limit", "20",
                *TOOLS[tool], str(build / "bin" / program), "--gtest_filter=" + ":".join(cases)]

    return [(f"{tool}.{program}", command(tool, program, cases), len(cases), "")
            for tool in TOOLS for program, cases in cases_of(tool).items()] + [
            (f"limit.{program}", command("racecheck", program, cases), len(cases),
             f"exit code {REPORTED}") for program, cases in LIMIT_CASES.items()]


def main() -> int:
    """Prints `N passed, N failed` last; 1 when a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="", metavar="REGEX",
                        help="tests whose name matches: ^(racecheck|memcheck|limit) for the "
                        "sanitizer alone")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--limit", type=float, default=540, help="seconds for all tests together")
    parser.add_argument("--logs", type=pathlib.Path, default=gpu_build.ROOT / "build/gpu-test")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    runner = Runner(build, arguments.logs, arguments.limit)
    for test in gpu_build.tests_of(build):
        if re.search(arguments.only, test["name"]):
            program, *rest = test["command"]
            runner.run(test["name"], [str(build / program), *rest], float(test["timeout"]))
    sanitized = [run for run in (sanitized_runs(build) if arguments.sanitize else [])
                 if re.search(arguments.only, run[0])]
    with concurrent.futures.ThreadPoolExecutor(SANITIZED_AT_ONCE) as pool:
        list(pool.map(lambda run: runner.run(*run[:2], SANITIZER_SECONDS, *run[2:]), sanitized))
    judged = arguments.logs / "judged.json"
    known = json.loads(judged.read_text(encoding="utf-8")) if judged.is_file() else {}
    judged.write_text(json.dumps({**known, **runner.judged}, indent=1), encoding="utf-8")
    if runner.failed:
        print("failed: " + " ".join(runner.failed))
    print(f"{len(runner.passed)} passed, {len(runner.failed)} failed")
    return 1 if runner.failed or not runner.passed else 0


if __name__ == "__main__":
    sys.exit(main())
