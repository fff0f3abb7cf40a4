#!/usr/bin/env python3
"""Runs the fuzz targets of a build with libFuzzer, in parallel, and reports the results.

    run_fuzzers.py build/fuzz/bin --minutes 10        all processors, every target in turn
    run_fuzzers.py build/fuzz/bin --runs 1e9 --minutes 120
    run_fuzzers.py build/fuzz/bin --pack fuzz.tar.xz  for a machine where nothing can be built:
                                                      python3 fuzz/run_fuzzers.py fuzz/bin ..

On a crash, a leak or an input that needs more than 5 s or 2 GiB, the target ends, the input is
written to OUT/findings, and the exit status is 1. --runs counts executions; targets that load a
whole tokenizer are slow and run a hundredth of that.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SUFFIX = "_fuzzer"
SLOW = {"charsmap", "checkpoint", "gpt2_files", "sentencepiece", "server_flags", "tensor_files",
        "tokenizer_json"}
SLICE_S = 60  # at most; less where time is short, so that every target has its turn
LIMITS = ["-timeout=5", "-rss_limit_mb=2048", "-malloc_limit_mb=1024", "-max_len=4096"]
# The C and C++ runtimes are the target's own.
LEFT_OUT = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s))"
                      r"\.so(\..*)?$")


@dataclasses.dataclass
class Target:
    """One fuzz target and what its slices have told so far."""

    name: str
    goal: float
    executions: int = 0
    seconds: float = 0
    running: int = 0
    coverage: int = 0
    features: int = 0
    slowest_s: int = 0
    peak_mb: int = 0
    findings: int = 0

    def progress(self) -> float:
        """Of the goal, slices that run counted as if they had ended; without one, of a year."""
        seconds = self.seconds + self.running * SLICE_S
        if self.goal == math.inf:
            return seconds / (365 * 86400)
        rate = self.executions / self.seconds if self.seconds else 1000
        return rate * seconds / self.goal


class Session:
    """The folders of one run and the processes in it."""

    def __init__(self, binaries: pathlib.Path, out: pathlib.Path) -> None:
        self.binaries, self.out, self.corpora = binaries, out, binaries.parent / "corpora"
        self.environment = dict(os.environ)
        self.environment.setdefault("ASAN_OPTIONS", "abort_on_error=0:detect_leaks=1")
        self.environment.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")
        # Sanitizers of clang 14 cannot place their memory under strong address randomisation.
        plain = ["setarch", "-R"]
        works = shutil.which("setarch") and subprocess.run([*plain, "true"], check=False,
                                                           stderr=subprocess.DEVNULL)
        self.prefix = plain if works and works.returncode == 0 else []
        libraries = binaries.parent / "lib"
        if libraries.is_dir():
            self.environment["LD_LIBRARY_PATH"] = str(libraries)

    def folder(self, *names: str) -> pathlib.Path:
        path = self.out.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def run(self, name: str, arguments: list[str]) -> str:
        """Output of a target; it ends by itself, well before the limit."""
        command = [*self.prefix, str(self.binaries / (name + SUFFIX)), *arguments]
        done = subprocess.run(command, env=self.environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, check=False, cwd=self.out)
        return done.stderr.decode(errors="replace")

    def fuzz(self, target: Target, seed: int, seconds: float, runs: float) -> None:
        """One slice."""
        findings = self.folder("findings", target.name)
        known = set(findings.iterdir())
        arguments = [*LIMITS, f"-seed={seed}", f"-max_total_time={max(1, round(seconds))}",
                     f"-runs={int(runs)}", "-print_final_stats=1", f"-artifact_prefix={findings}/"]
        dictionary = HERE / "dictionaries" / (target.name + ".dict")
        if dictionary.is_file():
            arguments.append(f"-dict={dictionary}")
        started = time.monotonic()
        log = self.run(target.name, arguments + [str(self.folder("work", target.name)),
                                                 str(self.corpora / target.name)])
        target.seconds += time.monotonic() - started
        new = set(findings.iterdir()) - known
        self.read(target, log)
        if new or "stat::number_of_executed_units" not in log:
            target.findings += max(1, len(new))
            (findings / f"log-{seed}").write_text(log[-20000:], encoding="utf-8")

    @staticmethod
    def read(target: Target, log: str) -> None:
        """The numbers at the end of a slice's output."""
        def last(pattern: str) -> int:
            found = re.findall(pattern, log)
            return int(found[-1]) if found else 0

        target.executions += last(r"stat::number_of_executed_units:\s*(\d+)") or last(r"#(\d+)\s")
        target.slowest_s = max(target.slowest_s, last(r"stat::slowest_unit_time_sec:\s*(\d+)"))
        target.peak_mb = max(target.peak_mb, last(r"stat::peak_rss_mb:\s*(\d+)"))
        target.coverage = max(target.coverage, last(r" cov: (\d+)"))
        target.features = max(target.features, last(r" ft: (\d+)"))

    def merge(self, target: Target) -> int:
        """What was found beside the corpus, as few files as cover the same; how many they are."""
        merged = self.folder("merged", target.name)
        for seed in (self.corpora / target.name).iterdir():
            shutil.copy(seed, merged / seed.name)
        seeds = len(list(merged.iterdir()))
        self.run(target.name, ["-merge=1", *LIMITS, str(merged),
                               str(self.folder("work", target.name))])
        return len(list(merged.iterdir())) - seeds


def fuzz_all(session: Session, targets: list[Target], jobs: int, minutes: float) -> None:
    """Slices of whichever target is furthest from its goal, until time or goals are reached."""
    end, seed, pending = time.monotonic() + 60 * minutes, 0, {}
    slice_s = min(SLICE_S, 60 * minutes * jobs / len(targets))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        while True:
            left = end - time.monotonic()
            open_targets = [t for t in targets if t.progress() < 1 and not t.findings]
            while len(pending) < jobs and open_targets and left > 1:
                target = min(open_targets, key=Target.progress)
                seed += 1
                target.running += 1
                runs = max(1.0, min(target.goal - target.executions, 1e12))
                work = pool.submit(session.fuzz, target, seed, min(slice_s, left), runs)
                pending[work] = target
                open_targets = [t for t in open_targets if t.progress() < 1]
            if not pending:
                return
            done, _ = concurrent.futures.wait(pending, return_when="FIRST_COMPLETED")
            for work in done:
                pending.pop(work).running -= 1
                work.result()


def report(targets: list[Target], merged: dict[str, int]) -> None:
    """A table, one row a target."""
    print("| target | executions | a second | coverage | features | new inputs | peak MiB "
          "| slowest s | findings |\n|---|---|---|---|---|---|---|---|---|")
    for t in targets:
        rate = t.executions / t.seconds if t.seconds else 0
        print(f"| {t.name} | {t.executions:,} | {rate:,.0f} | {t.coverage} | {t.features} | "
              f"{merged.get(t.name, 0)} | {t.peak_mb} | {t.slowest_s} | {t.findings} |")
    print(f"{sum(t.executions for t in targets):,} executions, "
          f"{sum(t.findings for t in targets)} findings")


def pack(binaries: pathlib.Path, names: list[str], out: pathlib.Path) -> None:
    """An archive of the programs, stripped, their libraries, the corpora and this program."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("bin", "lib"):
            pathlib.Path(folder, part).mkdir()
        for name in names:
            binary = binaries / (name + SUFFIX)
            subprocess.run(["strip", "-o", f"{folder}/bin/{binary.name}", str(binary)], check=True)
            listing = subprocess.run(["ldd", str(binary)], check=True, capture_output=True,
                                     text=True).stdout
            for library, path in re.findall(r"\s*(\S+) => (/\S+)", listing):
                if not LEFT_OUT.match(library):
                    shutil.copy(pathlib.Path(path).resolve(), f"{folder}/lib/{library}")
        with tarfile.open(out, "w:xz", preset=6) as archive:
            for part in ("bin", "lib"):
                archive.add(pathlib.Path(folder, part), f"fuzz/{part}")
            for part in (binaries.parent / "corpora", HERE / "dictionaries",
                         pathlib.Path(__file__)):
                archive.add(part, f"fuzz/{part.name}")
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="build/fuzz/bin")
    parser.add_argument("--minutes", type=float, default=10, help="of the whole run, at most [10]")
    parser.add_argument("--runs", type=float, default=math.inf,
                        help="executions of each target [any]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--targets", default="", help="comma-separated names [all that are built]")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("fuzz-out"))
    parser.add_argument("--pack", type=pathlib.Path, help="only write this archive")
    arguments = parser.parse_args()
    binaries = arguments.binaries.resolve()
    names = sorted(path.name.removesuffix(SUFFIX) for path in binaries.glob("*" + SUFFIX))
    if arguments.targets:
        names = arguments.targets.split(",")
    if not names:
        sys.exit(f"there are no fuzz targets in {binaries}")
    if arguments.pack:
        pack(binaries, names, arguments.pack)
        return 0
    session = Session(binaries, arguments.out.resolve())
    session.folder()
    targets = [Target(name, max(1, arguments.runs / (100 if name in SLOW else 1)))
               for name in names]
    fuzz_all(session, targets, arguments.jobs, arguments.minutes)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        merged = dict(zip(names, pool.map(session.merge, targets)))
    report(targets, merged)
    (session.out / "report.json").write_text(
        json.dumps([{k: v for k, v in dataclasses.asdict(t).items() if k not in ("goal", "running")}
                    for t in targets], indent=1), encoding="utf-8")
    return 1 if any(t.findings for t in targets) else 0


if __name__ == "__main__":
    sys.exit(main())
