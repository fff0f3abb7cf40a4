"""Pictures of a report: score and kept share against length, and recall by depth and length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from models.finetune.progress import find_pyplot

NEEDLE = "single_noise"  # the easy mode of the paper's needle in a haystack
DEPTH_BINS = 10


def _by_length(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """The rows of recall tasks by tokens of their prompts."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if "@" in row["row"]:
            found.setdefault(int(row["row"].split("@")[1]), []).append(row)
    return dict(sorted(found.items()))


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Draws the report and returns the files; none without matplotlib or recall tasks."""
    pyplot = find_pyplot()
    lengths = [*_by_length(report["sides"][0]["rows"])]
    if pyplot is None or not lengths:
        return []
    paths = [_draw_recall(report["sides"], folder, pyplot)]
    if any(row.startswith(NEEDLE + "@") for row in report.get("depths", ())):
        paths.append(_draw_needle(report, lengths, folder, pyplot))
    return paths


def _draw_recall(sides: list[dict[str, Any]], folder: Path, pyplot: Any) -> Path:
    """Score and kept share of each side against length."""
    figure, (scores, kept) = pyplot.subplots(2, 1, figsize=(7, 6), sharex=True,
                                             layout="constrained")
    for side in sides:
        lengths, at = zip(*_by_length(side["rows"]).items())
        scores.plot(lengths, [100 * np.mean([r["recall"]["mean"] for r in some]) for some in at],
                    marker="o", label=side["name"])
        kept.plot(lengths, [100 * np.mean([r["certificate"]["kept"] for r in some])
                            for some in at], marker="o", label=side["name"])
    scores.set(ylabel="recall, mean of the tasks (%)", ylim=(0, None))
    kept.set(ylabel="keys and values kept (%)", xlabel="tokens of the prompt", xscale="log",
             ylim=(0, 105))
    kept.set_xticks(lengths, [f"{length:,}" for length in lengths])
    kept.minorticks_off()
    for axis in (scores, kept):
        axis.grid(alpha=0.3)
    kept.legend()
    path = folder / "recall.svg"
    figure.savefig(path)
    pyplot.close(figure)
    return path


def _draw_needle(report: dict[str, Any], lengths: list[int], folder: Path, pyplot: Any) -> Path:
    """A map of the needle's recall for each side."""
    figure, axes = pyplot.subplots(1, len(report["sides"]), figsize=(5 * len(report["sides"]), 4),
                                   layout="constrained", squeeze=False)
    for axis, side in zip(axes[0], report["sides"]):
        table = np.full((DEPTH_BINS, len(lengths)), np.nan)
        for column, length in enumerate(lengths):
            row = f"{NEEDLE}@{length}"
            bins = np.minimum((np.asarray(report["depths"][row]) * DEPTH_BINS).astype(int),
                              DEPTH_BINS - 1)
            grades = np.asarray(report["grades"][side["name"]][row]["recall"])
            for place in range(DEPTH_BINS):
                if (bins == place).any():
                    table[place, column] = grades[bins == place].mean()
        image = axis.imshow(table, vmin=0, vmax=1, aspect="auto", cmap="RdYlGn",
                            interpolation="nearest")
        axis.set(title=side["name"], xlabel="tokens of the prompt", ylabel="depth (%)",
                 xticks=range(len(lengths)), xticklabels=lengths,
                 yticks=range(0, DEPTH_BINS, 2), yticklabels=range(0, 100, 20))
    figure.colorbar(image, ax=axes[0].tolist(), label="recall")
    path = folder / "needle.svg"
    figure.savefig(path)
    pyplot.close(figure)
    return path
