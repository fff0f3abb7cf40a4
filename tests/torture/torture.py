#!/usr/bin/env python3
"""Runs the parts of fox-torture and other long programs side by side on this machine's cores, and
ends with one table and one JSON file.

    torture.py build/cpu/bin                         all parts, ten minutes at most
    torture.py build/cpu/bin 60 kills soak           an hour of two of them
    torture.py build/cpu/bin fuzz faults sanitizers  campaigns: each builds its own programs; they
                                                     run one after another, after the parts

A part is divided into lanes, processes with seeds of their own. A part ends when its amount is
reached or when the time is over, which breaks no promise; lanes that have not started by then do
not start. The table says how far each part came. The exit status is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHORTEST_S = 5  # least time of a lane
PATIENCE_S = 25  # a lane is killed so long after its time
OVERHEAD_S = 25  # start and end of parts whose --minutes counts the load alone
CORES_OF_A_LANE = 2
CORES = len(os.sched_getaffinity(0))
SERVED = f"--server={{bin}}/fox-server --model={ROOT}/models/demo"


class Part(NamedTuple):
    """One part: the figure that measures its progress, and the target of all its lanes together.

    In the command of a lane {share} is its share of the target.
    """

    goal: str
    amount: int
    lanes: int
    command: str


# Long parts come first.
PARTS = {
    "soak": Part("measured_seconds", 450, 1,
                 f"{{bin}}/fox-torture soak --minutes={{minutes}} --readers=16 {SERVED}"),
    "kills": Part("kills", 1000, 6, f"{{bin}}/fox-torture kills --times={{share}} {SERVED}"),
    "cancels": Part("ended_early", 10**6, 3, "{bin}/fox-torture cancels --calls={share}"),
    "simulation": Part("events", 10**10, 10,
                       "{bin}/fox-simulate --first-seed={seed}000001 --events={share}"),
}
# Commands of each campaign, run in the repository in this order.
CAMPAIGNS = {
    "fuzz": ["./run build fuzz fuzzers",  # needs libFuzzer: libclang-rt-14-dev
             "tests/fuzz/run_fuzzers.sh build/fuzz {minutes}"],
    "faults": ["./run build cpu", "FOX_FAULTS=all build/cpu/bin/executor_faults_tests",
               f"FOX_FAULTS=2000 FOX_FAULT_JOBS={CORES} build/cpu/bin/call_faults_tests"],
    "sanitizers": ["./run build asan", "ctest --test-dir build/asan -LE 'gpu|package|tidy|torch'",
                   "./run build tsan thread_tests",  # GCC's needs addresses that are not random
                   "setarch -R ctest --test-dir build/tsan -L thread --repeat until-fail:20"],
}
# Figures whose worst value of all lanes counts; others are added.
WORST = re.compile(r"_(p50|p99|max|ms|mb|steps|hour|sigma)$|_seconds($|_p50|_max)|^pages")

Report = dict[str, Any]


def run_lane(name: str, number: int, arguments: argparse.Namespace, seconds: float) -> Report:
    """Runs one process. Returns its last line of JSON, or a failure in its form."""
    part = PARTS[name]
    share = part.amount * (number + 1) // part.lanes - part.amount * number // part.lanes
    command = part.command.format(bin=arguments.bin, seed=number + 1, share=share,
                                  minutes=max(0.1, round((seconds - OVERHEAD_S) / 60, 2)))
    command += f" --seconds={int(seconds)}" + f" --seed={number + 1}" * (name != "simulation")
    try:
        ran = subprocess.run(command.split(), capture_output=True, text=True, errors="replace",
                             timeout=seconds + PATIENCE_S, check=False)
        code, out, said = ran.returncode, ran.stdout, ran.stderr
    except subprocess.TimeoutExpired:
        code, out, said = -1, "", "it ran past its time"
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if name == "simulation":
        figures = {key: int(value) for key, value in re.findall(r"^(\w+) +(\d+)$", out, re.M)}
        report = {"figures": figures, "broken": {(out + said)[-2000:]: 1} if code else {}}
    elif lines:
        report = json.loads(lines[-1])
    else:
        report = {"figures": {},
                  "broken": {f"it ended with {code} and no figures: {said[-2000:]}": 1}}
    return {**report, "command": command.replace(f"{ROOT}/", "")}


def merged(reports: list[Report]) -> Report:
    """The figures of all lanes: counts are added, times and sizes are the worst lane's."""
    figures: Report = {}
    for key, value in (item for report in reports for item in report["figures"].items()):
        if not isinstance(value, (int, float)) or key not in figures:
            figures.setdefault(key, value)
        else:
            figures[key] = (max if WORST.search(key) else sum)((figures[key], value))
    return figures


def describe(reports: dict[str, list[Report]], arguments: argparse.Namespace) -> Report:
    """The results of all parts so far, also written to --out."""
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    out: Report = {
        "machine": {"cpu": model[1] if model else "unknown", "cores": CORES,
                    "kernel": platform.release()},
        "minutes": arguments.minutes, "date": datetime.date.today().isoformat(), "parts": {}}
    for name, lanes in reports.items():
        part = PARTS[name]
        out["parts"][name] = {
            "passed": not any(report.get("broken") for report in lanes), "goal": part.goal,
            "reached": sum(report["figures"].get(part.goal, 0) for report in lanes),
            "of": part.amount, "lanes": [len(lanes), part.lanes], "figures": merged(lanes),
            "seconds": max((report.get("seconds", 0) for report in lanes), default=0),
            "broken": [report["broken"] for report in lanes if report.get("broken")],
            "commands": [report["command"] for report in lanes]}
    if arguments.out:
        arguments.out.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    return out["parts"]


def run_parts(names: list[str], arguments: argparse.Namespace) -> bool:
    """Starts lanes in order as cores become free and prints a table. True if all promises held.

    Results are written after each lane, so that an interrupted run keeps them.
    """
    end = time.monotonic() + 60 * arguments.minutes
    reports: dict[str, list[Report]] = {name: [] for name in names}
    lock = threading.Lock()

    def run(name: str, number: int) -> None:
        left = end - time.monotonic()
        if left < SHORTEST_S and any(reports.values()):
            return
        report = run_lane(name, number, arguments, max(SHORTEST_S, left))
        with lock:
            reports[name].append(report)
            print(f"== {name} {number}: {report.get('broken') or 'passed'}", flush=True)
            describe(reports, arguments)

    with ThreadPoolExecutor(max(1, CORES // CORES_OF_A_LANE)) as pool:
        for done in [pool.submit(run, name, number) for name in names
                     for number in range(PARTS[name].lanes)]:
            done.result()
    results = describe(reports, arguments)
    print("\n| part | reached | of | lanes | passed | figures |\n|---|---|---|---|---|---|")
    for name, part in results.items():
        shown = ", ".join(f"{key} {round(value, 3) if isinstance(value, float) else value}"
                          for key, value in part["figures"].items())
        lanes = "%d of %d" % tuple(part["lanes"])
        print(f"| {name} | {part['reached']:,.0f} | {part['of']:,} | {lanes} "
              f"| {part['passed'] if part['lanes'][0] else 'out of time'} | {shown} |")
    return all(part["passed"] for part in results.values())


def run_campaign(name: str, minutes: float) -> bool:
    """Runs the commands until one fails. True if none failed."""
    for command in CAMPAIGNS[name]:
        print(f"== {name}: {command}", flush=True)
        if subprocess.run(command.format(minutes=minutes), shell=True, check=False,
                          cwd=ROOT).returncode != 0:
            print(f"== {name}: BROKEN", flush=True)
            return False
    return True


def main() -> int:
    """Parses the command line and runs parts, then campaigns."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path, help="folder of the programs")
    parser.add_argument("words", nargs="*", metavar="MINUTES|PART",
                        help=f"minutes for all parts [10]; {', '.join([*PARTS, *CAMPAIGNS])}")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file")
    arguments = parser.parse_intermixed_args()
    numbers = [word for word in arguments.words if re.fullmatch(r"\d+(\.\d*)?", word)]
    arguments.minutes = float(numbers[-1]) if numbers else 10.0
    asked = [word for word in arguments.words if word not in numbers]
    unknown = set(asked) - set(PARTS) - set(CAMPAIGNS)
    if unknown:
        parser.error(f"no such part: {' '.join(sorted(unknown))}")
    names = [name for name in PARTS if name in asked or not asked]
    passed = run_parts(names, arguments) if names else True
    for name in asked:
        if name in CAMPAIGNS:
            passed = run_campaign(name, arguments.minutes) and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
