#!/usr/bin/env python3
"""Draws the plots of tests/bench/README.md and writes its GPU tables from JSONs of gpu_bench.py.

A table replaces what stands between the lines `<!-- gpu-results -->` and `<!-- /gpu-results -->`
there; those of h200_training.json and memory_h200.json (if they are there) what stands between
those of training-results and memory-results. Plots are small SVG files beside the JSON. Without
matplotlib only the tables are made.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import judge
import judge_memory
import training_report
from plot_style import COLOURS, MODES, pyplot, shown

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = ROOT / "tests/bench/README.md"
RESULTS = ROOT / "tests/bench/results/h200.json"
TRAINING_RESULTS = ROOT / "tests/bench/results/h200_training.json"
BEGIN, END = "<!-- gpu-results -->", "<!-- /gpu-results -->"
MEMORY_RESULTS = ROOT / "tests/bench/results/memory_h200.json"
MEMORY_BEGIN, MEMORY_END = "<!-- memory-results -->", "<!-- /memory-results -->"
TRAINING_BEGIN, TRAINING_END = "<!-- training-results -->", "<!-- /training-results -->"


def length_name(tokens: int) -> str:
    """16384 as 16k."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def values_of(report: dict[str, Any], bench: str, key: str) -> list[Any]:
    """The values of a key among a benchmark's rows, ascending."""
    return sorted({row[key] for part in report["parts"].values() for row in part.get("rows", [])
                   if row.get("bench") == bench and key in row})


def attention_lines(m: judge.Measurements) -> Iterator[str]:
    """Kernel times beside the peers'."""
    for heads, head_dim, tokens in ((24, 64, 16384), (16, 128, 16384), (24, 64, 65536)):
        case = dict(kind="prefill", heads=heads, head_dim=head_dim, tokens=tokens)
        ours = [m.seconds(bench="attention", acp=acp, **case) for acp in MODES]
        if ours[0] is None:
            continue
        peers = [m.seconds(bench="peer_attention", peer=peer, acp=acp, **case) for peer, acp in
                 (("official", "off"), ("official", "paper"), ("cudnn", "no gate"),
                  ("flex", "paper"))]
        others = [(what, m.seconds(bench="peer_attention", peer=peer, acp=acp, **case))
                  for peer, acp, what in judge.LIBRARIES]
        yield (f"| attention, {heads} heads of {head_dim}, {length_name(tokens)} | "
               + " | ".join(shown(value) for value in ours)
               + f" | official {shown(peers[0])}, with ACP {shown(peers[1])}; cuDNN without gate "
               + f"{shown(peers[2])}; FlexAttention with ACP {shown(peers[3])}"
               + "".join(f"; {what} {shown(seconds)}" for what, seconds in others if seconds)
               + " |")


def model_lines(report: dict[str, Any], m: judge.Measurements) -> Iterator[str]:
    """Prefill, decode and memory of the whole model."""
    for length in values_of(report, "prefill", "length"):
        ours = [m.seconds(bench="prefill", length=length, acp=acp) for acp in MODES]
        official = m.seconds(bench="peer_prefill", length=length, acp="paper")
        yield (f"| prefill {length_name(length)} | " + " | ".join(shown(value) for value in ours)
               + f" | official with ACP {shown(official)} |")
    for context in values_of(report, "decode", "context"):
        for batch in values_of(report, "decode", "batch_size"):
            ours = [m.seconds(bench="decode", graphs=True, context=context, batch_size=batch,
                              acp=acp) for acp in MODES]
            if ours[0] is None:
                continue
            peer = m.seconds(bench="peer_decode", context=context, batch_size=batch)
            yield (f"| decode step B={batch}, {length_name(context)} | "
                   + " | ".join(shown(value) for value in ours)
                   + f" | {'torch.compile ' + shown(peer) if peer else ''} |")
    for length in values_of(report, "prefill", "length"):
        ours = [m.value("live_bytes", bench="prefill", length=length, acp=acp) for acp in MODES]
        yield (f"| KV of one sequence at {length_name(length)}, GB | "
               + " | ".join(shown(value, 1e-9) for value in ours) + " | |")


def million_lines(m: judge.Measurements) -> Iterator[str]:
    """The longest prompt, which fits by eviction alone."""
    served = m.find(bench="serve", prompt_tokens=judge.MILLION, completed=1)
    if served is None:
        return
    for what, value, scale in (
            ("to the first token", served["time_to_first_token"]["p50"], 1e3),
            ("a token behind it", judge.seconds_of_a_token(served), 1e3),
            ("its KV at most, GB", served["most_kept_bytes"], 1e-9)):
        yield (f"| one prompt of {judge.MILLION:,} tokens, {what} | - | - | "
               f"{shown(value, scale)} | |")


def table(report: dict[str, Any]) -> str:
    """Markdown: ms unless said otherwise."""
    m = judge.Measurements(report["parts"], report.get("tests", {}))
    return "\n".join([
        "| what, ms | off | paper | certified | peers in the same run |", "|---|---|---|---|---|",
        *attention_lines(m), *model_lines(report, m), *million_lines(m)])


def rewrite_readme(path: pathlib.Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Puts `text` between the two marker lines."""
    readme = path.read_text(encoding="utf-8")
    if readme.count(begin) != 1 or readme.count(end) != 1:
        sys.exit(f"plot_results: {path.name} needs the lines {begin} and {end} once each")
    before, rest = readme.split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def draw_lines(axes: Any, m: judge.Measurements, lengths: list[int], key: str | None,
               scale: float) -> None:
    """One line a bound over prompt lengths: seconds, or the key's value."""
    for acp in MODES:
        points = [(length, m.seconds(bench="prefill", length=length, acp=acp) if key is None else
                   m.value(key, bench="prefill", length=length, acp=acp)) for length in lengths]
        points = [(length, scale * value) for length, value in points if value is not None]
        if points:
            axes.plot(*zip(*points), marker="o", label=acp, color=COLOURS[acp])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [length_name(length) for length in lengths])


def draw_decode(axes: Any, report: dict[str, Any], m: judge.Measurements) -> None:
    """Groups of three bars: a step by batch and context."""
    labels, place = [], 0
    for context in values_of(report, "decode", "context"):
        for batch in values_of(report, "decode", "batch_size"):
            for i, acp in enumerate(MODES):
                seconds = m.seconds(bench="decode", graphs=True, context=context,
                                    batch_size=batch, acp=acp)
                if seconds is not None:
                    axes.bar(place + 0.27 * (i - 1), 1e3 * seconds, 0.25, color=COLOURS[acp],
                             label=acp if place == 0 else None)
            labels.append(f"B={batch}\n{length_name(context)}")
            place += 1
    axes.set_xticks(range(place), labels)
    axes.set_yscale("log")


def draw(report: dict[str, Any], folder: pathlib.Path) -> None:
    """Three figures."""
    plt = pyplot()
    m = judge.Measurements(report["parts"], report.get("tests", {}))
    lengths = values_of(report, "prefill", "length")
    figures = (
        ("gpu_prefill", "Prefill of one prompt", "ms",
         lambda axes: draw_lines(axes, m, lengths, None, 1e3)),
        ("gpu_decode", "One decode step by batch and context", "ms",
         lambda axes: draw_decode(axes, report, m)),
        ("gpu_kv", "KV cache of one sequence", "GB",
         lambda axes: draw_lines(axes, m, lengths, "live_bytes", 1e-9)))
    for name, title, unit, fill in figures:
        figure, axes = plt.subplots(figsize=(4.6, 3.0), layout="constrained")
        fill(axes)
        axes.set_title(title)
        axes.set_ylabel(unit)
        axes.legend(frameon=False)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


def main() -> int:
    """Reads the JSONs; writes tables and plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=pathlib.Path, nargs="?", default=RESULTS)
    parser.add_argument("--training", type=pathlib.Path, default=TRAINING_RESULTS)
    parser.add_argument("--memory", type=pathlib.Path, default=MEMORY_RESULTS)
    parser.add_argument("--readme", type=pathlib.Path, default=README)
    parser.add_argument("--print", action="store_true", help="prints tables, changes no README")
    arguments = parser.parse_args()
    for path, marks, make_table, make_figures in (
            (arguments.json, (BEGIN, END), table, draw),
            (arguments.training, (TRAINING_BEGIN, TRAINING_END), training_report.table,
             training_report.draw),
            (arguments.memory, (MEMORY_BEGIN, MEMORY_END), judge_memory.table, None)):
        if path != arguments.json and not path.is_file():
            continue
        report = json.loads(path.read_text(encoding="utf-8"))
        if arguments.print:
            print(make_table(report))
        else:
            rewrite_readme(arguments.readme, make_table(report), *marks)
        try:
            if make_figures is not None:
                make_figures(report, path.parent)
        except ImportError:
            print("no matplotlib here: no plots", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
