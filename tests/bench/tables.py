#!/usr/bin/env python3
"""Writes the tables of tests/bench/README.md from JSONs of gpu_bench.py: each between the lines
`<!-- NAME-results -->` and `<!-- /NAME-results -->`. Draws results/recall.svg."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import gpu_build
import judge
import memory_parts
import quality_parts
from judge import MODES, Measurements

README = pathlib.Path(__file__).resolve().parent / "README.md"
PEERS = (("official", "off", "official"), ("official", "paper", "official with ACP"),
         ("cudnn", "no gate", "cuDNN without gate"), ("flex", "paper", "FlexAttention with ACP"),
         ("fla-triton", "off", "FLA"))


def shown(value: float | None, scale: float = 1e3) -> str:
    """Three significant digits, or a dash."""
    if value is None:
        return "-"
    value *= scale
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def line(what: str, ours: list[float | None], peers: list[tuple[str, float | None]] | None = None,
         scale: float = 1e3) -> Iterator[str]:
    """A row of the three bounds and of the peers that were measured; none where nothing was."""
    if any(ours):
        beside = "; ".join(f"{name} {shown(seconds)}" for name, seconds in peers or () if seconds)
        yield f"| {what} | " + " | ".join(shown(value, scale) for value in ours) + f" | {beside} |"


def serving(m: Measurements) -> Iterator[str]:
    """Kernel times, the whole model, and the longest prompt, which fits by eviction alone."""
    for heads, head_dim, tokens in ((24, 64, 16384), (16, 128, 16384), (24, 64, 65536)):
        case = dict(kind="prefill", heads=heads, head_dim=head_dim, tokens=tokens)
        yield from line(
            f"attention, {heads} heads of {head_dim}, {tokens // 1024}k",
            [m.seconds(bench="attention", acp=acp, **case) for acp in MODES],
            [(what, m.seconds(bench="peer_attention", peer=peer, acp=acp, **case))
             for peer, acp, what in PEERS])
    lengths = [dict(bench="prefill", length=length) for length in (4096, 16384, 65536)]
    for case in lengths:
        yield from line(f"prefill {case['length'] // 1024}k",
                        [m.seconds(acp=acp, **case) for acp in MODES],
                        [("official with ACP", m.seconds(bench="peer_prefill", acp="paper",
                                                         length=case["length"]))])
    for context in (4096, 16384):
        for batch in (1, 8, 32):
            case = dict(context=context, batch_size=batch)
            yield from line(
                f"decode step B={batch}, {context // 1024}k",
                [m.seconds(bench="decode", graphs=True, acp=acp, **case) for acp in MODES])
    for case in lengths:
        yield from line(f"KV of one sequence at {case['length'] // 1024}k, GB",
                        [m.value("live_bytes", acp=acp, **case) for acp in MODES], scale=1e-9)
    served = m.find(bench="serve", prompt_tokens=judge.LONGEST_PROMPT, completed=1)
    for what, value, scale in (
            ("to the first token", served.get("time_to_first_token", {}).get("p50"), 1e3),
            ("a token behind it", judge.seconds_of_a_token(served), 1e3),
            ("its KV at most, GB", served.get("most_kept_bytes"), 1e-9)):
        yield from line(f"one prompt of {judge.LONGEST_PROMPT:,} tokens, {what}",
                        [None, None, value], scale=scale)


def training(m: Measurements) -> Iterator[str]:
    for name, shape in (("24 heads of 64", judge.D64), ("16 heads of 128", judge.D128)):
        for kind, deterministic in (("forward", False), ("backward", False), ("backward", True)):
            case = dict(bench="training_attention", kind=kind, deterministic=deterministic, **shape)
            yield from line(f"{kind}{', deterministic' if deterministic else ''}, {name}",
                            [m.seconds(impl="ours", acp=acp, **case) for acp in MODES],
                            [(what, m.seconds(impl=impl, acp=acp, **case))
                             for impl, acp, what in PEERS])
    case = dict(bench="training_step")
    yield from line("step, `./run finetune`",
                    [None, m.seconds(impl="finetune", acp="paper", **case), None])
    yield from line("step, official code with our op",
                    [m.seconds(impl="ours", acp=acp, **case) for acp in MODES],
                    [(what, m.seconds(impl=impl, acp=acp, **case)) for impl, acp, what in PEERS])


def judged_lines(rows: Iterable[judge.Row]) -> Iterator[str]:
    for judged in rows:
        sign = {"most": "<= ", "least": ">= ", "is": ""}[judged["at"]]
        must, aim = (f"{sign}{judged[key]:.3g}" if judged[key] is not None else ""
                     for key in ("must", "aim"))
        value = "-" if judged["value"] is None else f"{judged['value']:.3g} {judged['unit']}"
        yield f"| {judged['row']} | {value} | {must} | {aim} | {judged['note']} |"


def memory(m: Measurements) -> Iterator[str]:
    return judged_lines(memory_parts.judged_rows(m))


def quality(m: Measurements) -> Iterator[str]:
    return judged_lines(quality_parts.judged_rows(m))


def tasks(m: Measurements) -> Iterator[str]:
    """Each task of the foxified model beside its base: means in percent, and what Fox keeps."""
    sides = [{r["row"]: r for r in m.all(bench="evaluate", of="fox", first=first)}
             for first in (True, False)]
    for name, base in sides[0].items():
        key = next(k for k in ("acc", "greedy", "recall") if k in base)
        a, b = base[key], sides[1][name][key]
        yield (f"| {name} | {base['questions']} | {100 * a['mean']:.1f} +- {100 * a['error']:.1f}"
               f" | {100 * b['mean']:.1f} +- {100 * b['error']:.1f}"
               f" | {100 * sides[1][name]['certificate']['kept']:.0f}% |")


def curve(m: Measurements) -> Iterator[str]:
    """Kept shares and mean recall by length: the base, its Fox, and students of other shares."""
    names = dict.fromkeys(r["student"] for r in m.all(bench="evaluate", of="student"))
    models = [("the base, all keys", {"of": "fox", "first": True}),
              ("**its Fox**", {"of": "fox", "first": False})]
    models += [(name, {"of": "student", "student": name, "first": False}) for name in names]
    for name, marks in models if names else ():
        cells = []
        for length in quality_parts.LENGTHS:
            rows = quality_parts.recall_rows(m, length, **marks)
            mean, error = quality_parts.mean_recall(rows)
            cells.append(f" {100 * (quality_parts.kept_of(rows) or 0):.1f}%: {100 * mean:.1f} +- "
                         f"{100 * error:.1f} |")
        yield f"| {name} |{''.join(cells)}"


def peers(m: Measurements) -> Iterator[str]:
    """foxserve with and without pruning, then kvpress, best first: means of the recall tasks."""
    sides = [quality_parts.recall_rows(m, quality_parts.PEER_LENGTH, of="fox", first=first)
             for first in (True, False)]
    found = quality_parts.variants(m)
    whole = found.pop(quality_parts.ALL_KEYS, {})
    base = [*whole.values()]
    groups = [("foxserve, the base, all keys", "", sides[0], sides[0]),
              ("**foxserve, its Fox**", "", sides[1], sides[0]),
              ("kvpress, the base, all keys", "", base, base)]
    windowed = m.all(bench="window-student", error=None)
    if windowed:
        groups.append(("a window and sinks, trained on the same data", "", windowed, base))
    groups += sorted(((name, "seen" if seen else "not seen", [*rows.values()], base)
                      for (name, seen), rows in found.items()),
                     key=lambda group: -quality_parts.mean_recall(group[2])[0])
    for name, question, rows, base in groups if whole else ():
        mean, error = quality_parts.mean_recall(rows)
        kept = sum(r["kept"] if "kept" in r else r["certificate"]["kept"] for r in rows) / len(rows)
        masked = any(r.get("cached", 0) > r["kept"] for r in rows if "kept" in r)
        yield (f"| {name} | {question} | {100 * kept:.1f}%{', masked' * masked}"
               f" | {100 * mean:.1f} +- {100 * error:.1f}"
               f" | {shown(judge.ratio(mean, quality_parts.mean_recall(base)[0], 100), 1)}% |")


# The name of a table: its results, its head, its lines.
BOUNDS = "off | paper | certified | peers in the same run |\n|---|---|---|---|---|"
JUDGED = "| what | measured | must | aim | |\n|---|---|---|---|---|"
TABLES = {"gpu": ("h200.json", "| what, ms | " + BOUNDS, serving),
          "memory": ("memory_h200.json", JUDGED, memory),
          "quality": ("quality_h200.json", JUDGED, quality),
          "tasks": ("quality_h200.json", "| task | questions | the base, % | its Fox, % | kept |\n"
                    "|---|---|---|---|---|", tasks),
          "peers": ("quality_h200.json", "| what | question | kept | mean of the recall tasks, % | "
                    "of all keys' |\n|---|---|---|---|---|", peers),
          "curve": ("quality_h200.json", "| kept: mean of the recall tasks, % | "
                    + " | ".join(map(str, quality_parts.LENGTHS)) + " |\n|---|---|---|---|", curve),
          "training": ("h200_training.json", "| what at 16k, ms | " + BOUNDS, training)}


def table(name: str, report: dict[str, Any]) -> str:
    _, head, lines = TABLES[name]
    found = [*lines(Measurements(report))]
    return "\n".join([head, *found]) if found else "Not measured yet."


def rewritten(readme: str) -> str:
    for name, (results, *_) in TABLES.items():
        begin, end = f"<!-- {name}-results -->\n", f"\n<!-- /{name}-results -->"
        report = json.loads((README.parent / "results" / results).read_text(encoding="utf-8"))
        before, rest = readme.split(begin)
        readme = before + begin + table(name, report) + end + rest.split(end)[1]
    return readme


def main() -> int:
    sys.path.insert(0, str(gpu_build.ROOT))
    from models.evaluate import pictures  # needs numpy, which the tables do not

    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
    results = README.parent / "results"
    m = Measurements(json.loads((results / TABLES["tasks"][0]).read_text(encoding="utf-8")))
    sides = [m.all(bench="evaluate", of="fox", first=first) for first in (True, False)]
    drawn = pictures.draw({"sides": [{"name": rows[0]["side"], "rows": rows} for rows in sides]},
                          results)
    print(f"written: {', '.join(str(path) for path in (README, *drawn))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
