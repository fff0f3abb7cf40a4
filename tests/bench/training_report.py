"""The table and the figure of tests/bench/README.md about the training side, from the JSON of
gpu_bench.py --training; plot_results.py puts them there."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import judge
from plot_style import COLOURS, MODES, pyplot, shown

SHAPES = (("24 heads of 64", judge.D64), ("16 heads of 128", judge.D128))
PEERS = (("official", "off", "official"), ("official", "paper", "official with ACP"),
         ("cudnn", "no gate", "cuDNN without gate"), ("flex", "paper", "FlexAttention with ACP"))
PEER_COLOUR = "#bbbbbb"
FIGURE = "gpu_training"


def measurements(report: dict[str, Any]) -> judge.Measurements:
    """The report's rows."""
    return judge.Measurements(report["parts"], report.get("tests", {}))


def attention_seconds(m: judge.Measurements, kind: str, shape: dict[str, int], impl: str,
                      acp: str, deterministic: bool = False) -> float | None:
    """Median of one call's row."""
    return m.seconds(bench="training_attention", kind=kind, impl=impl, acp=acp,
                     deterministic=deterministic, **shape)


def lines(m: judge.Measurements) -> Iterator[str]:
    """Rows of the table: attention, then the whole step."""
    for name, shape in SHAPES:
        for kind, deterministic in (("forward", False), ("backward", False), ("backward", True)):
            ours = [attention_seconds(m, kind, shape, "ours", acp, deterministic) for acp in MODES]
            if not any(ours):
                continue
            peers = [] if deterministic else [
                f"{peer} {shown(seconds)}" for impl, acp, peer in PEERS
                if (seconds := attention_seconds(m, kind, shape, impl, acp))]
            what = kind + (", deterministic" if deterministic else "")
            yield (f"| {what}, {name} | " + " | ".join(shown(value) for value in ours)
                   + f" | {'; '.join(peers)} |")
    ours, official = ([m.seconds(bench="training_step", impl=impl, acp=acp) for acp in MODES]
                      for impl in ("ours", "official"))
    if any(ours):
        yield ("| training step of the official 760M Pro | "
               + " | ".join(shown(value) for value in ours)
               + f" | official {shown(official[0])}, with ACP {shown(official[1])} |")


def table(report: dict[str, Any]) -> str:
    """Markdown: ms, and the figure."""
    return "\n".join([
        "| what at 16k, ms | off | paper | certified | peers in the same run |",
        "|---|---|---|---|---|", *lines(measurements(report)), "",
        f"![Backward attention and a training step](results/{FIGURE}.svg)"])


def bars(axes: Any, values: list[tuple[str, float | None, str]]) -> None:
    """One horizontal bar a value, the first on top, its ms beside it."""
    there = [(name, 1e3 * seconds, colour) for name, seconds, colour in reversed(values) if seconds]
    for place, (_, value, colour) in enumerate(there):
        axes.barh(place, value, 0.7, color=colour)
        axes.text(value, place, f" {value:.3g}", va="center")
    axes.set_yticks(range(len(there)), [name for name, _, _ in there])
    axes.set_xlim(0, 1.15 * max((value for _, value, _ in there), default=1))
    axes.set_xlabel("ms")


def draw(report: dict[str, Any], folder: pathlib.Path) -> None:
    """Backward of both head sizes, and the step, beside the peers."""
    plt = pyplot()
    m = measurements(report)
    figure, all_axes = plt.subplots(1, 3, figsize=(11, 2.8), layout="constrained")
    for axes, (name, shape) in zip(all_axes, SHAPES):
        peers = [(peer, attention_seconds(m, "backward", shape, impl, acp), PEER_COLOUR)
                 for impl, acp, peer in PEERS]
        ours = [(f"ours, {acp}", attention_seconds(m, "backward", shape, "ours", acp),
                 COLOURS[acp]) for acp in MODES]
        bars(axes, peers + ours)
        axes.set_title(f"Backward, {name}, 4 x 16k")
    bars(all_axes[2],
         [(peer, m.seconds(bench="training_step", impl="official", acp=acp), PEER_COLOUR)
          for acp, peer in (("off", "official"), ("paper", "official with ACP"))]
         + [(f"ours, {acp}", m.seconds(bench="training_step", impl="ours", acp=acp), COLOURS[acp])
            for acp in MODES])
    all_axes[2].set_title("Training step, 760M Pro, 16k")
    for axes in all_axes:
        axes.grid(axis="y", visible=False)
    figure.savefig(folder / f"{FIGURE}.svg", metadata={"Date": None})
    plt.close(figure)
