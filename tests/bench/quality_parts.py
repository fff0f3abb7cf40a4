"""Parts of gpu_bench.py --quality: scoring at the speed of prompts, the tables of ./run evaluate
for a foxified model (--fox) and others of its kind (--students) beside their base (--base), and
heuristics that drop keys of the base."""

from __future__ import annotations

import json
import math
import os
import pathlib
import sys
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import gpu_build
from judge import Measurements, Row, ratio, row, times

if TYPE_CHECKING:
    from gpu_bench import Bench

Part = dict[str, Any]
LENGTHS = (2048, 4096, 7900)
QUESTIONS = 300
SCORE = [sys.executable, "-B", str(gpu_build.ROOT / "tests/bench/score_bench.py")]
PEERS = gpu_build.ROOT / "tests/bench/peers"
TEACHER_CAN = 0.2  # of a task's questions, else its ratio says nothing
PEER_LENGTH = 4096
ALL_KEYS = ("none", False)


def score(bench: Bench) -> Part:
    """Prompts of two lengths, as lm-eval sends them."""
    rows, out = [], bench.scratch / "score.json"
    with bench.server("--http-port", "0", model=bench.arguments.base,
                      device=bench.arguments.device) as server:
        for tokens, prompts, batch in ((767, 320, 16), (767, 3200, 16), (22, 16000, 16),
                                       (22, 16000, 32)):
            with open(out, "wb") as file:
                bench.run([*SCORE, server.address, "--tokens", str(tokens), "--prompts",
                           str(prompts), "--batch", str(batch), "--clients", "16"], 300,
                          stdout=file)
            rows.append({"bench": "score", **json.loads(out.read_text(encoding="utf-8"))})
    return {"model": os.path.basename(bench.arguments.base), "rows": rows[1:]}  # the first warms up


def processor() -> str:
    """The processor's name; matrix units are worth telling."""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = next((line.split(":")[1].strip() for line in text.splitlines()
                 if line.startswith("model name")), "unknown")
    return name + (", AMX" if " amx_bf16" in text else "")


def score_on_two_cores(bench: Bench) -> Part:
    """Prompts on the CPU, in turns with transformers on the same two cores; the better of two."""
    rows: list[Part] = []
    out = bench.scratch / "score.json"
    pinned = ["taskset", "-c", "0,1"]
    for _ in range(2):
        with bench.server("--http-port", "0", "--threads", "2", model=bench.arguments.base,
                          device="cpu", wrap=pinned) as server:
            for what in ([*SCORE, server.address, "--tokens", "767", "--prompts", "16", "--batch",
                          "4", "--clients", "2"],
                         [*pinned, sys.executable, "-B", str(PEERS / "transformers_score.py"),
                          bench.arguments.base, "--threads", "2"]):
                with open(out, "wb") as file:
                    bench.run(what, 300, ours="taskset" not in what, stdout=file)
                rows.append({"bench": "score-cpu", "processor": processor(), "peer": None,
                             **json.loads(out.read_text(encoding="utf-8"))})
    return {"model": os.path.basename(bench.arguments.base), "rows": rows}


def evaluate(of: str, model: Callable[[Bench], str], *flags: str, against: bool = False,
             seconds: float = 500) -> Callable[[Bench], Part]:
    """./run evaluate; each row of its report is a row, marked with `of`."""
    def measure(bench: Bench) -> Part:
        out = gpu_build.ROOT / "build/gpu-bench" / f"evaluation-{of}"  # a run that was cut goes on
        other = ["--against", bench.arguments.base] if against else []
        bench.run([sys.executable, "-B", "-m", "models.evaluate.evaluate", model(bench), *other,
                   "--program", str(bench.build / "bin/fox-server"), "--out", str(out),
                   "--parallel", "32", "--server-flags", f"--device {bench.arguments.device}",
                   *flags], seconds)
        report = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
        rows = [{"bench": "evaluate", "of": of, "side": side["name"], "first": i == 0, **one}
                for i, side in enumerate(report["sides"]) for one in side["rows"]]
        rows += [{"bench": "compared", "of": of, **line} for line in report["compared"]]
        return {"model": report["model"], "against": report["against"], "rows": rows}
    return measure


def curve(bench: Bench) -> Part:
    """The recall tasks of students with other shares, with and without pruning."""
    rows: list[Any] = []
    for student in bench.arguments.students:
        measure = evaluate("student", lambda _, model=student: model, "--tasks", "none",
                           "--lengths", ",".join(map(str, LENGTHS)), "--questions", "100")
        rows += [{"student": os.path.basename(student), **one} for one in measure(bench)["rows"]]
    if not rows:
        raise RuntimeError("needs --students")
    return {"rows": rows}


def recall_rows(m: Measurements, length: int, **marks: Any) -> list[Row]:
    """The rows of all recall tasks of one length."""
    return [r for r in m.all(bench="evaluate", **marks) if r["row"].endswith(f"@{length}")]


def kept_of(rows: Collection[Row]) -> float | None:
    """The mean share of keys and values that was kept."""
    kept = [r["certificate"]["kept"] for r in rows]
    return sum(kept) / len(kept) if kept else None


def kept_by_fox(m: Measurements, length: int) -> float | None:
    return kept_of(recall_rows(m, length, of="fox", first=False))


def peers(bench: Bench) -> Part:
    """kvpress's heuristics on the base, with the share of keys and values that Fox kept."""
    keep = kept_by_fox(Measurements(bench.report), PEER_LENGTH)
    if keep is None:
        raise RuntimeError("needs the rows of the part fox in the same file")
    return bench.peer("kvpress_eval.py", 1500, bench.arguments.base, "--length", str(PEER_LENGTH),
                      "--keep", f"{keep:.4f}", "--device", bench.arguments.device, "--workers",
                      str(max(1, len(os.sched_getaffinity(0)) - 2)))


def window(bench: Bench) -> Part:
    """A student that was trained for a window of as many bytes, in kvpress's pipeline."""
    student = bench.arguments.window_student
    if student is None:
        raise RuntimeError("needs --window-student")
    return bench.peer("kvpress_eval.py", 600, bench.arguments.base, "--length", str(PEER_LENGTH),
                      "--window-student", student, "--device", bench.arguments.device,
                      "--workers", "9")  # one a task


PARTS: dict[str, Callable[[Bench], Part]] = {
    "score": score,
    "score-cpu": score_on_two_cores,
    "fox": evaluate("fox", lambda bench: bench.arguments.fox, "--lengths",
                    ",".join(map(str, LENGTHS)), "--questions", str(QUESTIONS), against=True,
                    seconds=2400),
    "peers": peers,
    "window": window,
    "curve": curve,
}


def judged_rows(m: Measurements) -> list[Row]:
    return list(_rows(m))


def _rows(m: Measurements) -> Iterator[Row]:
    yield row("scoring prompts of 767 tokens",
              best(m, "tokens_per_second", tokens_of_a_prompt=767), "tokens/s", "least", 150_000,
              300_000)
    yield row("scoring prompts of 22 tokens", best(m, "prompts_per_second", tokens_of_a_prompt=22),
              "prompts/s", "least", 4_000, 8_000)
    ours = best(m, "tokens_per_second", bench="score-cpu", peer=None)
    peers = [r["tokens_per_second"] for r in m.all(bench="score-cpu") if r["peer"]]
    yield row("scoring on two cores, over transformers", ratio(ours, max(peers, default=None)),
              "x", "least", 1, 1.5)
    worst: list[float] = []
    for length in LENGTHS:
        compared = m.all(bench="compared", of="fox", **{"mean of": f"recall@{length}"})
        interval = compared[-1]["ratio"] if compared else None
        yield row(f"recall at {length}: Fox over its teacher, lower end of 95%",
                  times(interval and interval["low"], 100), "%", "least", 92, 96)
        worst += shares(m, f"@{length}")
    yield row("worst recall task, Fox over its teacher", times(min(worst, default=None), 100), "%",
              "least", 80, 90)
    compared = m.all(bench="compared", of="fox", **{"mean of": "downstream"})
    yield row("mean of the downstream tasks, Fox less its teacher",
              times(compared[-1]["difference"]["value"], 100) if compared else None, "points",
              "least", -0.5, 0)
    yield row(f"keys and values kept at {LENGTHS[-1]}", times(kept_by_fox(m, LENGTHS[-1]), 100),
              "%", "most", 12.5)
    yield from best_peer(m)


def variants(m: Measurements) -> dict[tuple[str, bool], dict[str, Row]]:
    """By heuristic and whether it saw the question: its rows by task. None that lacks a task."""
    found: dict[tuple[str, bool], dict[str, Row]] = {}
    for one in m.all(bench="kvpress", error=None):
        found.setdefault((one["press"], one["question_seen"]), {})[one["task"]] = one
    tasks = found.get(ALL_KEYS, {}).keys()
    return {name: rows for name, rows in found.items() if rows.keys() == tasks}


def mean_recall(rows: Collection[Row]) -> tuple[float, float]:
    """The mean over tasks and its standard error."""
    error = math.hypot(*(one["recall"]["error"] for one in rows))
    return sum(one["recall"]["mean"] for one in rows) / len(rows), error / len(rows)


def best_peer(m: Measurements) -> Iterator[Row]:
    """The best heuristic over all keys in the same harness; none before there is one."""
    means = {name: mean_recall(rows.values())[0] for name, rows in variants(m).items()}
    whole = means.pop(ALL_KEYS, None)
    if means:
        best_of = {seen: max((n for n in means if seen or not n[1]), key=means.__getitem__)
                   for seen in (True, False)}
        note = best_of[True][0]
        if best_of[True][1]:
            unseen = best_of[False]
            share = ratio(means[unseen], whole, 100)
            note += f", which saw the question; of the others {unseen[0]} {share or 0:.3g} %"
        yield row("best kvpress heuristic at equal bytes over all keys",
                  ratio(means[best_of[True]], whole, 100), "%", "least", None, note=note)


def best(m: Measurements, key: str, bench: str = "score", **marks: Any) -> float | None:
    return max((r[key] for r in m.all(bench=bench, **marks)), default=None)


def shares(m: Measurements, suffix: str) -> Iterator[float]:
    """Fox's recall over its teacher's, of the tasks that the teacher can do."""
    sides = [{r["row"]: r["recall"]["mean"]
              for r in m.all(bench="evaluate", of="fox", first=first) if r["row"].endswith(suffix)}
             for first in (True, False)]
    for name, teacher in sides[0].items():
        if teacher >= TEACHER_CAN:
            yield sides[1][name] / teacher
