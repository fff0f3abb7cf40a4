#!/usr/bin/env python3
"""Runs the fuzz targets of a build with libFuzzer, in parallel, and reports the results.

    run_fuzzers.py build/fuzz --minutes 10        all processors, each target its share
    run_fuzzers.py build/fuzz --runs 1e9 --minutes 120

On a crash, a leak or an input that needs more than 5 s or 2 GiB, the target ends, the input is
written to OUT/findings, and the exit status is 1. --runs counts executions; targets that load a
whole tokenizer are slow and run a hundredth of that.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SLOW = {"charsmap", "checkpoint", "gpt2_files", "sentencepiece", "tensor_files", "tokenizer_json"}
LIMITS = ["-timeout=5", "-rss_limit_mb=2048", "-malloc_limit_mb=1024", "-max_len=4096"]
ENVIRONMENT = {"ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1",
               "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1", **os.environ}
NUMBERS = {"executions": r"stat::number_of_executed_units:\s*(\d+)", "coverage": r" cov: (\d+)",
           "peak_mb": r"stat::peak_rss_mb:\s*(\d+)"}


def fixed_addresses() -> list[str]:
    """Sanitizers of clang 14 cannot place their memory under strong address randomisation."""
    prefix = ["setarch", "-R"]
    works = shutil.which(prefix[0]) and subprocess.run([*prefix, "true"], check=False,
                                                       stderr=subprocess.DEVNULL).returncode == 0
    return prefix if works else []


def fuzz(corpus: pathlib.Path, out: pathlib.Path, seconds: float, runs: float) -> dict:
    """The numbers of one target."""
    name = corpus.name
    findings, work = out / "findings" / name, out / "work" / name
    for folder in (findings, work):
        folder.mkdir(parents=True, exist_ok=True)
    known = set(findings.iterdir())
    dictionary = HERE / "dictionaries" / f"{name}.dict"
    runs = max(1, runs / (100 if name in SLOW else 1))
    arguments = [*LIMITS, f"-max_total_time={max(1, round(seconds))}", "-print_final_stats=1",
                 f"-runs={int(min(runs, 1e12))}", f"-artifact_prefix={findings}/",
                 *([f"-dict={dictionary}"] if dictionary.is_file() else []),
                 str(work), str(corpus)]
    started = time.monotonic()
    log = subprocess.run([*fixed_addresses(), str(corpus.parents[1] / "bin" / "fuzzers"),
                          *arguments], env={**ENVIRONMENT, "FUZZ_TARGET": name}, cwd=out,
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                         check=False).stderr.decode(errors="replace")
    found = {key: int((re.findall(pattern, log) or [0])[-1]) for key, pattern in NUMBERS.items()}
    new = len(set(findings.iterdir()) - known)
    if new or "stat::number_of_executed_units" not in log:
        new = max(1, new)
        (findings / "log").write_text(log[-20000:], encoding="utf-8")
    return {"name": name, "seconds": round(time.monotonic() - started), **found, "findings": new}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="build/fuzz")
    parser.add_argument("--minutes", type=float, default=10, help="of the whole run, at most [10]")
    parser.add_argument("--runs", type=float, default=1e12, help="executions of each target [any]")
    parser.add_argument("--targets", default="", help="comma-separated names [all that are built]")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("fuzz-out"))
    arguments = parser.parse_args()
    chosen = set(filter(None, arguments.targets.split(",")))
    corpora = [path for path in sorted(arguments.build.resolve().glob("corpora/*/"))
               if path.is_dir() and (not chosen or path.name in chosen)]
    if not corpora or len(corpora) < len(chosen):
        sys.exit(f"not all fuzz targets are in {arguments.build}")
    out = arguments.out.resolve()
    rounds = -(-len(corpora) // os.cpu_count())
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda corpus: fuzz(
            corpus, out, 60 * arguments.minutes / rounds, arguments.runs), corpora))
    print("| " + " | ".join(results[0]) + " |\n" + "|---" * len(results[0]) + "|")
    for result in results:
        print("| " + " | ".join(map(str, result.values())) + " |")
    (out / "report.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    findings = sum(result["findings"] for result in results)
    print(f"{sum(result['executions'] for result in results):,} executions, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
