#!/usr/bin/env python3
"""Runs all tests with the label gpu and does not stop at a failure.

The tests of a program are divided into shards, processes that run side by side. Prints a line for
each shard: PASS or FAIL, seconds, name, tests; after a failure, the end of the log. Lines of a test
of the form `[judged] NAME VALUE` are collected for gpu_bench.py, the worst value of each name. With
--sanitize, a few small cases run again under compute-sanitizer, as tests racecheck.NAME and
memcheck.NAME. With --portable the build has no code for Hopper, so that the kernels for older cards
can be tested on a Hopper card.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import gpu_build

JUDGED = re.compile(r"\[judged\] (\S+) (\S+)")
RUNNING = re.compile(r"^\[=+\] Running (\d+) tests? from", re.MULTILINE)
PASSED = re.compile(r"^\[ {7}OK \] ", re.MULTILINE)
SKIPPED = re.compile(r"^\[  SKIPPED \] ([\w./]+)(?:,| \()", re.MULTILINE)
FAILED = re.compile(r"^\[  FAILED  \] ([\w./]+)(?:,| \()", re.MULTILINE)
REPORT = re.compile(r"=+ (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY).*\S")
SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (.*)", re.MULTILINE)
LOG_LINES = 40

# Cases that run under compute-sanitizer, which is slow: small cases of each test file that run its
# kernels and, if the kernel has a ring of tiles, wrap around it.
KERNEL_CASES = {
    # Everything at once; the paper's bound without norms.
    "append_test": ("Setups/AppendTest.MatchesTheCpu/3", "Setups/AppendTest.MatchesTheCpu/7"),
    # Groups32 runs the split and the cluster kernel, a mixed batch only the split kernel.
    "decode_test": ("Cases/DecodeAttentionTest.MatchesFloat64InAnyBatch/Groups32",
                    "Cases/DecodeAttentionTest.MatchesFloat64InAnyBatch/Mixed"),
    "decode_groups_test": (
        "Cases/DecodeAttentionTest.MatchesFloat64InAnyBatch/Together64x9",
        "Cases/DecodeAttentionTest.MatchesFloat64InAnyBatch/TogetherGated128x4"),
    # Windows of two rounds of a cluster.
    "decode_cluster_test": ("Cases/DecodeAttentionTest.MatchesFloat64InAnyBatch/Few64",
                            "Cases/DecodeAttentionTest.MatchesFloat64InAnyBatch/Few128"),
    "sm80_kernel_test": ("Cases/PrefillTest.Sm80MatchesFloat64/StrongGatesOff16",
                         "Cases/PrefillTest.Sm80MatchesFloat64/StrongGatesCertified64"),
    "sm90_kernel_test": ("Cases/PrefillTest.Sm90MatchesFloat64/StrongGatesOff32",
                         "Cases/PrefillTest.Sm90MatchesFloat64/StrongGatesCertified64",
                         "Cases/PrefillTest.Sm90MatchesFloat64/StrongGatesCertified128"),
    "split_keys_test": ("KeySplitsTest.PlanOfManyHeadTiles",
                        "Cases/SplitKeysCaseTest.MatchesFloat64/ChunksCertified64Shift3",
                        "Cases/SplitKeysCaseTest.MatchesFloat64/ChunksCertified128Shift0"),
    "sm80_varlen_test": ("Cases/VarlenPrefillTest.Sm80MatchesFloat64/Edges64",),
    "sm90_varlen_test": ("Cases/VarlenPrefillTest.Sm90MatchesFloat64/Edges64",),
    "backward_sm80_kernel_test": ("Cases/BackwardTest.Sm80MatchesFloat64/Batch64",),
    "backward_sm90_kernel_test": ("Cases/BackwardTest.Sm90MatchesFloat64/Batch64",),
    "prune_boundary_test": ("Modes/PruneBoundaryTest.StrongGates/Certified",
                            "PruneBoundaryPaperTest.DropsNothingWithoutQkNorm"),
    "small_batch_gemm_test": ("In/SmallBatchGemmTest.MatchesFloat64/40",),
    # One row, for which cuBLASLt is not used: racecheck fails with an internal error at kernels of
    # cuBLASLt, even if a filter excludes them.
    "linear_test": ("Rows/LinearRowsTest.Norms/1", "Rows/LinearRowsTest.Gates/1"),
    "cluster_gemm_test": ("Hidden/ClusterGemmNormTest.ADeferredNormIsTheNorm/8",),
    "row_transforms_test": ("NormRowsTest.MatchesFloat64", "GateRowsTest.MatchesFloat64",
                            "DeferNormTest.LeavesRowsAndSumsToTheBit",
                            "EmbedTest.ReplacesSampledTokensAndClamps",
                            "GatherRowsTest.CopiesRows"),
    "page_pool_test": ("PagePoolTest.ATooSmallPoolIsReported",
                       "PagePoolTest.PagesThatComeBackTwiceAreReported"),
    "paging_test": ("PagingTest.LongPrefillEvictsAcrossManyWindows",
                    "PagingTest.ReleaseResetsTheState"),
    "share_device_test": ("ShareDeviceTest.TheStateIsThatOfThePageEnd",),
    "sampling_arithmetic_device_test": ("SamplingArithmeticTest.TheDeviceHasTheHostsBits",),
    "sample_test": ("Vocabularies/SampleTest.SamplesWhatTheSamplerSamples/5",),
    "sequence_device_test": ("Vocabularies/SequenceSamplesTest.AreThoseOfTheSampler/3",
                             "PenaltyStateTest.AreZeroAndThenTheEntries"),
}
# Cases for memcheck alone, as racecheck cannot run them.
MEMCHECK_CASES = {
    # The small-batch kernel for 1 and 4 rows, the cluster kernel for 9 and 32 (elsewhere passes
    # of the small-batch kernel), and cuBLASLt and the gated product for prefill rows.
    "linear_test": ("Rows/LinearRowsTest.Norms/1", "Rows/LinearRowsTest.Gates/4",
                    "Rows/LinearRowsTest.Gates/9", "Rows/LinearRowsTest.Norms/32"),
    "varlen_attention_test": (
        "Kernels/VarlenAttentionTest.AFallingListStaysInsideTheArrays/Fastest",
        "Kernels/VarlenAttentionTest.AFallingListStaysInsideTheArrays/Portable"),
    "engine_device_test": ("Models/DeviceEngineTest.GraphsChangeNoBit/dev_pro_d64_certified",),
}
# Programs of names whose cases are not in cuda_tests.
ENGINE_CASES = dict.fromkeys(("engine_device_test", "sequence_device_test"), "engine_gpu_tests")
SANITIZER_SECONDS = 60  # timeout of one name
SANITIZED_AT_ONCE = 4  # processes at once; none of these tests measures time

TOOLS = {
    "racecheck": [
        # Only kernels of namespace fox::cuda, not cuBLAS.
        "--kernel-name", "kns=3fox4cuda",
        # Kernels of prefill and backward: one lane arrives at a barrier for its warp after a
        # __syncwarp, which racecheck does not follow.
        "--kernel-name-exclude", "kns=Sm90Kernel",
        # Bounds a program of many steps.
        "--launch-count", "1500",
        # Most barriers of a block: two for each of the 16 stages of linear/small_batch_gemm.cu.
        # racecheck does not count barriers that a loop initialises.
        "--num-cuda-barriers", "32",
        # racecheck does not know that a barrier waits for the bytes of a bulk copy, and would
        # report the reads of weights in linear/small_batch_gemm.cu.
        "--check-bulk-copy", "no",
    ],
    "memcheck": [],
}


def finish(what: Command, log: pathlib.Path, build: pathlib.Path, timeout: float) -> str:
    """Runs a command with its output in `log` and ends all its processes. Returns how it failed, or
    ""."""
    shard, shards = what.shard
    # Temporary files of their own, too, so that both builds can be tested at the same time.
    environment = dict(gpu_build.environment(build), GTEST_TOTAL_SHARDS=str(shards),
                       GTEST_SHARD_INDEX=str(shard), TEST_TMPDIR=str(log.parent.resolve()))
    with open(log, "wb") as out:
        try:
            process = subprocess.Popen(what.command, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, cwd=gpu_build.ROOT,
                                       env=environment, start_new_session=True)
        except OSError as error:
            return str(error)
        try:
            code = process.wait(timeout)
            return f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            return "ran past its time"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the sanitizer, servers of a crashed test
            process.wait()


@dataclasses.dataclass
class Command:
    """A process to run. `cases`: the number of tests that it must run; 0: any."""
    name: str
    command: list[str]
    seconds: float
    shard: tuple[int, int] = (0, 1)  # index, number of shards
    cases: int = 0


class Runner:
    """Runs commands of a build and remembers how they ended."""

    def __init__(self, build: pathlib.Path, logs: pathlib.Path, limit: float) -> None:
        self.build, self.logs, self.end = build, logs, time.monotonic() + limit
        self.lock = threading.Lock()
        self.passed = 0  # tests; a program without names of tests counts as one
        self.failed: list[str] = []
        self.skipped: dict[str, int] = {}  # by suite
        self.judged: dict[str, float] = {}  # values for the judged rows of gpu_bench.py
        logs.mkdir(parents=True, exist_ok=True)

    def run_all(self, commands: list[Command], at_once: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            list(pool.map(self.run, commands))

    def run(self, what: Command) -> None:
        left = self.end - time.monotonic()
        if left < 1:
            self.failed.append(what.name)
            print(f"FAIL      -    {what.name}: no time left", flush=True)
            return
        log = self.logs / (what.name + ".log")
        start = time.monotonic()
        why = finish(what, log, self.build, min(what.seconds, left))
        seconds = time.monotonic() - start
        text = log.read_text(encoding="utf-8", errors="replace")
        found = sum(map(int, RUNNING.findall(text)))
        if what.cases and not why and found != what.cases:
            why = f"{found} of {what.cases} cases are there"
        names = list(dict.fromkeys(FAILED.findall(text))) or [what.name]
        with self.lock:
            if why:
                self.failed += names
            for name in SKIPPED.findall(text):
                suite = name.rsplit("/", 1)[0] if name.count("/") > 1 else name
                self.skipped[suite] = self.skipped.get(suite, 0) + 1
            self.passed += len(PASSED.findall(text)) or (0 if why else 1)
            if not what.cases:
                self.judge(text)
        notes = ([why] if why else []) + SUMMARY.findall(text)
        if found and not what.cases:
            notes.append(f"{found} tests")
        line = (f"{'FAIL' if why else 'PASS'} {seconds:7.1f} s  {what.name}"
                f"{': ' if notes else ''}{', '.join(notes)}")
        told = ["    | " + line for line in telling_lines(text)] if why else []
        print("\n".join([line, *told]) + "\n", end="", flush=True)  # whole, beside other threads

    def judge(self, text: str) -> None:
        """Keeps the worst value of each name: the least of names ending in _equal, which should be
        1, and the largest of others."""
        for name, value in JUDGED.findall(text):
            worst = min if name.endswith("_equal") else max
            self.judged[name] = worst(float(value), self.judged.get(name, float(value)))


def telling_lines(log: str) -> list[str]:
    """Lines of a log that explain a failure: the sanitizer's first reports, or else the end."""
    lines = log.splitlines()
    reports = [line for line in lines if REPORT.match(line)]
    return reports[:LOG_LINES] if reports else lines[-LOG_LINES:]


def cases_of(tool: str) -> dict[str, tuple[str, ...]]:
    return KERNEL_CASES | (MEMCHECK_CASES if tool == "memcheck" else {})


def sharded(build: pathlib.Path, only: str) -> list[list[Command]]:
    programs = []
    for test in gpu_build.tests_of(build):
        if not re.search(only, test["name"]):
            continue
        program, *rest = test["command"]
        shards = test["shards"]
        programs.append([Command(f"{test['name']}.{i}" if shards > 1 else test["name"],
                                 [str(build / program), *rest], test["timeout"], (i, shards))
                         for i in range(shards)])
    return programs


def sanitized(build: pathlib.Path, only: str) -> list[Command]:
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(sanitizer, os.X_OK):
        print("compute-sanitizer is not here: not run")
        return []

    return [Command(f"{tool}.{name}",
                    [sanitizer, "--tool", tool, "--error-exitcode", "99", "--print-limit", "20",
                     *TOOLS[tool], str(build / "bin" / ENGINE_CASES.get(name, "cuda_tests")),
                     "--gtest_filter=" + ":".join(cases)], SANITIZER_SECONDS, cases=len(cases))
            for tool in TOOLS for name, cases in cases_of(tool).items()
            if re.search(only, f"{tool}.{name}")]


def main() -> int:
    """Prints `N passed, N skipped, N failed` last; 1 when a test failed."""
    parser = argparse.ArgumentParser(prog="./run gpu-test", description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="filled in by ./run")
    parser.add_argument("--portable", action="store_true",
                        help="test a build for compute capability 8.0, which older cards run")
    parser.add_argument("--only", default="", metavar="REGEX",
                        help="programs whose name matches: ^(racecheck|memcheck) for the "
                        "sanitizer alone")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--limit", type=float, default=540, help="seconds for all tests together")
    parser.add_argument("--logs", type=pathlib.Path, help="default: build/gpu-test, or with "
                        "--portable build/gpu-test-portable")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for the results")
    arguments = parser.parse_args()
    build, start = arguments.build.resolve(), time.monotonic()
    logs = arguments.logs or gpu_build.ROOT / (
        "build/gpu-test" + ("-portable" if arguments.portable else ""))
    runner = Runner(build, logs, arguments.limit)
    for commands in sharded(build, arguments.only):
        runner.run_all(commands, len(commands))
    if arguments.sanitize:
        runner.run_all(sanitized(build, arguments.only), SANITIZED_AT_ONCE)
    judged = logs / "judged.json"
    known = json.loads(judged.read_text(encoding="utf-8")) if judged.is_file() else {}
    judged.write_text(json.dumps({**known, **runner.judged}, indent=1), encoding="utf-8")
    if arguments.out:
        arguments.out.write_text(json.dumps(
            {"device": gpu_build.device(), "portable": arguments.portable,
             "sanitized": arguments.sanitize, "seconds": round(time.monotonic() - start, 1),
             "passed": runner.passed, "failed": runner.failed,
             "skipped": dict(sorted(runner.skipped.items())), "judged": runner.judged,
             "source": gpu_build.source(build)},
            indent=1) + "\n", encoding="utf-8")
    if runner.failed:
        print("failed: " + " ".join(runner.failed))
    print(f"{runner.passed} passed, {sum(runner.skipped.values())} skipped, "
          f"{len(runner.failed)} failed")
    return 1 if runner.failed or not runner.passed else 0


if __name__ == "__main__":
    sys.exit(main())
