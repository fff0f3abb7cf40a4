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
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHORTEST_S = 5  # least time of a lane
PATIENCE_S = 25  # a lane is killed so long after its time
OVERHEAD_S = 25  # start and end of parts whose --minutes counts the load alone
SERVED = ["--server={bin}/fox-server", "--model={model}"]


@dataclasses.dataclass
class Part:
    """One part: its goal, its lanes and the command of a lane."""

    name: str
    goal: str  # the figure that measures progress
    amount: float  # its target, summed over all lanes
    lanes: int
    cores: float  # of one lane
    command: list[str]  # {share}: a lane's share of the amount
    reports: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def reached(self) -> float:
        """The goal's figure, summed over all lanes."""
        return sum(report["figures"].get(self.goal, 0) for report in self.reports)


def fox(part: str, *flags: str) -> list[str]:
    """A lane's command."""
    return ["{bin}/fox-torture", part, "--seed={seed}", "--seconds={seconds}", *flags]


# Long parts, and parts that need a quiet machine, come first.
PARTS = (
    Part("soak", "measured_seconds", 450, 1, 3,
         fox("soak", "--minutes={minutes}", "--readers=16", *SERVED)),
    Part("overload", "offered", 100000, 1, 2, fox("overload", "--minutes={minutes}")),
    Part("kills", "kills", 1000, 6, 1.5, fox("kills", "--times={share}", *SERVED)),
    Part("streams", "streams", 20000, 1, 2, fox("streams", "--open={share}", "--generating=5000")),
    Part("cancels", "ended_early", 1e6, 3, 2, fox("cancels", "--calls={share}")),
    Part("simulation", "events", 1e10, 10, 1,
         ["{bin}/fox-simulate", "--first-seed={seed}000001", "--events={share}",
          "--seconds={seconds}"]),
)


# Commands of each campaign, run in the repository in this order.
CAMPAIGNS = {
    "fuzz": ["./run build fuzz fuzzers",  # needs libFuzzer: libclang-rt-14-dev
             "tests/fuzz/run_fuzzers.sh build/fuzz {minutes}"],
    "faults": ["./run build cpu", "FOX_FAULTS=all build/cpu/bin/executor_faults_tests",
               f"FOX_FAULTS=2000 FOX_FAULT_JOBS={os.cpu_count()} build/cpu/bin/call_faults_tests"],
    "sanitizers": ["./run build asan", "ctest --test-dir build/asan -LE 'gpu|package|tidy|torch'",
                   "./run build tsan thread_tests",  # GCC's needs addresses that are not random
                   "setarch -R ctest --test-dir build/tsan -L thread --repeat until-fail:20"],
}


def share(amount: int, lanes: int, number: int) -> int:
    """A lane's share, at least 1; the shares of all lanes add up to the amount."""
    return max(1, amount * (number + 1) // lanes - amount * number // lanes)


class Lane:
    """One process."""

    def __init__(self, part: Part, number: int, arguments: argparse.Namespace,
                 folder: pathlib.Path, seconds: float) -> None:
        self.part, self.number = part, number
        values = {"bin": str(arguments.bin), "model": str(arguments.model), "seed": number + 1,
                  "seconds": int(seconds),
                  "minutes": max(0.1, round((seconds - OVERHEAD_S) / 60, 2)),
                  "share": share(int(part.amount * arguments.scale), part.lanes, number)}
        command = [word.format(**values) for word in part.command]
        self.command = " ".join(command)
        self.limit = time.monotonic() + seconds + PATIENCE_S
        self.out = folder / f"{part.name}-{number}.out"
        self.log = folder / f"{part.name}-{number}.log"
        with self.out.open("w") as out, self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=out, stderr=log)

    def ended(self) -> bool:
        """True if the process has ended. Kills it when its time is over."""
        if self.process.poll() is not None:
            return True
        if time.monotonic() > self.limit:
            self.process.kill()
            self.process.wait()
            return True
        return False

    def report(self) -> dict[str, Any]:
        """The line of JSON that the process printed last, or a failure in its form."""
        text = self.out.read_text(encoding="utf-8", errors="replace")
        code = self.process.returncode
        if self.part.name == "simulation":
            figures = {key: int(value) for key, value in re.findall(r"^(\w+) +(\d+)$", text, re.M)}
            broken = {} if code == 0 else {text[-2000:]: 1}
            return {"part": "simulation", "passed": code == 0, "figures": figures, "broken": broken}
        lines = [line for line in text.splitlines() if line.startswith("{")]
        if lines:
            return json.loads(lines[-1])
        said = self.log.read_text(encoding="utf-8", errors="replace")[-2000:]
        return {"part": self.part.name, "passed": False, "figures": {},
                "broken": {f"it ended with {code} and no figures: {said}": 1}}

    def last_word(self) -> str:
        """The last line of the log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else ""


def any_ended(parts: list[Part]) -> bool:
    """True if a lane has ended."""
    return any(part.reports for part in parts)


def run(parts: list[Part], arguments: argparse.Namespace, folder: pathlib.Path) -> None:
    """Starts lanes in order as cores become free. Writes the file after each lane, so that an
    interrupted run keeps its results."""
    end = time.monotonic() + 60 * arguments.minutes
    waiting = [(part, number) for part in parts for number in range(part.lanes)]
    running: list[Lane] = []
    reported = time.monotonic()
    while waiting or running:
        busy = sum(lane.part.cores for lane in running)
        if end - time.monotonic() < SHORTEST_S and (running or any_ended(parts)):
            waiting.clear()  # too little time is left
        while waiting and (not running or busy + waiting[0][0].cores <= arguments.cores):
            part, number = waiting.pop(0)
            running.append(Lane(part, number, arguments, folder,
                                max(SHORTEST_S, end - time.monotonic())))
            busy += part.cores
        time.sleep(0.2)
        for lane in [lane for lane in running if lane.ended()]:
            running.remove(lane)
            report = lane.report()
            report["command"] = lane.command.replace(str(ROOT) + "/", "")
            lane.part.reports.append(report)
            print(f"== {lane.part.name} {lane.number}: "
                  f"{'passed' if report['passed'] else 'BROKEN'} {report.get('broken', '')}",
                  flush=True)
            write(parts, arguments)
        if time.monotonic() - reported > 30:
            reported = time.monotonic()
            for lane in running:
                print(f"   [{lane.number}] {lane.last_word()}", flush=True)


WORST = re.compile(r"_(p50|p99|max|ms|mb|steps|hour|sigma)$|_seconds($|_p50|_max)"
                   r"|^bytes_per|^pages$|^pages_free")


def merged(part: Part) -> dict[str, Any]:
    """The figures of all lanes: counts are added, times and sizes are the worst lane's."""
    figures: dict[str, Any] = {}
    for report in part.reports:
        for key, value in report["figures"].items():
            if not isinstance(value, (int, float)) or key not in figures:
                figures.setdefault(key, value)
            elif WORST.search(key):
                figures[key] = max(figures[key], value)
            elif key == "goodput_of_peak":
                figures[key] = min(figures[key], value)
            else:
                figures[key] += value
    return figures


def machine() -> dict[str, Any]:
    """The machine that this runs on."""
    model = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(memory / 1e9), "kernel": platform.release(),
            "python": platform.python_version()}


def write(parts: list[Part], arguments: argparse.Namespace) -> dict[str, Any]:
    """Collects the results so far, writes them to --out if it is given, and returns the parts."""
    out: dict[str, Any] = {"machine": machine(), "minutes": arguments.minutes,
                           "date": datetime.date.today().isoformat(), "parts": {}}
    for part in parts:
        out["parts"][part.name] = {
            "passed": all(report["passed"] for report in part.reports),
            "goal": part.goal, "reached": part.reached(), "of": part.amount * arguments.scale,
            "lanes": [len(part.reports), part.lanes], "figures": merged(part),
            "seconds": max((r.get("seconds", 0) for r in part.reports), default=0),
            "broken": [r["broken"] for r in part.reports if r.get("broken")],
            "commands": [r["command"] for r in part.reports]}
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    return out["parts"]


def print_table(parts: list[Part], arguments: argparse.Namespace) -> bool:
    """Prints the table. True if all promises held."""
    results = write(parts, arguments)
    print("\n| part | reached | of | lanes | passed | figures |\n|---|---|---|---|---|---|")
    for name, part in results.items():
        shown = ", ".join(f"{key} {round(value, 3) if isinstance(value, float) else value}"
                          for key, value in part["figures"].items())
        lanes = "%d of %d" % tuple(part["lanes"])
        print(f"| {name} | {part['reached']:,.0f} | {part['of']:,.0f} | {lanes} "
              f"| {part['passed'] if part['lanes'][0] else 'out of time'} | {shown} |")
    return all(part["passed"] for part in results.values())


def run_parts(parts: list[Part], arguments: argparse.Namespace) -> bool:
    """Runs the parts and prints their table. True if all promises held."""
    with tempfile.TemporaryDirectory() as folder:
        logs = arguments.logs or pathlib.Path(folder, "logs")
        logs.mkdir(parents=True, exist_ok=True)
        run(parts, arguments, logs)
        return print_table(parts, arguments)


def campaign(name: str, minutes: float) -> bool:
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
    names = [part.name for part in PARTS]
    parser.add_argument("words", nargs="*", metavar="MINUTES|PART",
                        help=f"minutes for all parts [10]; {', '.join([*names, *CAMPAIGNS])}")
    parser.add_argument("--scale", type=float, default=1, help="factor of all amounts [1]")
    parser.add_argument("--cores", type=float, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "demo")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file")
    parser.add_argument("--logs", type=pathlib.Path, help="keep the lanes' output here")
    arguments = parser.parse_intermixed_args()
    numbers = [word for word in arguments.words if re.fullmatch(r"\d+(\.\d*)?", word)]
    arguments.minutes = float(numbers[-1]) if numbers else 10.0
    asked = [word for word in arguments.words if word not in numbers]
    unknown = set(asked) - set(names) - set(CAMPAIGNS)
    if unknown:
        parser.error(f"no such part: {' '.join(sorted(unknown))}")
    campaigns = [word for word in asked if word in CAMPAIGNS]
    passed = True
    if not asked or len(campaigns) < len(asked):
        passed = run_parts([part for part in PARTS if not asked or part.name in asked], arguments)
    for name in campaigns:
        passed = campaign(name, arguments.minutes) and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
