"""Plots of a training from its metrics: loss, and the share that each kv head keeps.

    python -m models.foxify.plots metrics.jsonl FOLDER

draws loss.svg and shares.svg; needs matplotlib.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from models.finetune.progress import find_pyplot, read_metrics


def draw(metrics: Path, folder: Path) -> bool:
    """Draws the plots. False without matplotlib."""
    pyplot = find_pyplot()
    if pyplot is None:
        return False
    every = read_metrics(metrics)
    figure, (axis, below) = pyplot.subplots(2, 1, figsize=(8, 7), sharex=True,
                                            layout="constrained")
    records = every[:: 1 + len(every) // 1000]  # an SVG holds every point
    steps = [r["step"] for r in records]
    axis.plot(steps, [r["loss"] for r in records], label="KL to the teacher", linewidth=0.8)
    axis.set(ylabel="nats per token", yscale="log")
    below.plot(steps, [100 * r["share"] for r in records], label="kept")
    below.plot(steps, [100 * r["wanted"] for r in records], "--", label="wanted")
    below.set(xlabel="step", ylabel="pages kept (%)", yscale="log")
    right = below.twinx()
    right.plot(steps, [r["lambda"] for r in records], color="gray", linewidth=0.8)
    right.set(ylabel="lambda", yscale="log")
    for one in (axis, below):
        one.grid(alpha=0.3)
        one.legend(loc="upper right")
    figure.savefig(folder / "loss.svg")
    pyplot.close(figure)
    detailed = [r for r in every if "share_by_layer_and_head" in r]
    if detailed:
        table = np.asarray([r["share_by_layer_and_head"] for r in detailed])
        figure, axis = pyplot.subplots(figsize=(8, 9), layout="constrained")
        image = axis.imshow(table.reshape(len(table), -1).T, aspect="auto", vmin=0, vmax=1,
                            interpolation="nearest",
                            extent=(detailed[0]["step"], detailed[-1]["step"] + 1,
                                    table.shape[1] - 0.5, -0.5))
        axis.set(xlabel="step", ylabel="layer, its kv heads below each other")
        figure.colorbar(image, label="share of pages kept")
        figure.savefig(folder / "shares.svg")
        pyplot.close(figure)
    return True


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: plots METRICS.jsonl FOLDER")
    if not draw(Path(sys.argv[1]), Path(sys.argv[2])):
        sys.exit("plots: matplotlib is missing")
