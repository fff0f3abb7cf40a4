"""The judged rows of the training side, in the form of judge.py, from gpu_bench.py --training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from judge import D64, D128, Measurements, Row, ratio, row, times

GRADIENTS = ("dq", "dk", "dv", "d_log_gates")
SHAPES = (("d64", D64), ("d128", D128))
ROUNDING = 2.0**-8  # the largest relative error of one rounding to bf16


def root_mean_square(values: list[float]) -> float | None:
    """Of one or more values."""
    return math.sqrt(sum(x * x for x in values) / len(values)) if values else None


def gradients(m: Measurements) -> Iterator[Row]:
    """Errors against float64 over all cases and bounds, and how they compare with the official.

    Compared is the root mean square over the cases that both ran: a head's error of d log f is
    that of a few long sums, so between two kernels of equal rounding the worst of many single
    ratios is far from one.
    """
    rows = m.all(bench="gradients")
    ours = [r for r in rows if r["impl"] == "ours"]
    measured = [r for r in ours if "errors" in r]
    official = {r["case"]: r for r in rows if r["impl"] == "official" and "errors" in r}
    both = [r for r in measured if r["case"] in official]
    for name in GRADIENTS:
        yield row(f"error of {name} against float64, worst case and head",
                  max((r["errors"][name] for r in measured), default=None), "of its norm", "most",
                  1e-2)
        yield row(f"error of {name} over the official kernel's, all cases",
                  ratio(*(root_mean_square([r["mean_errors"][name] for r in some])
                          for some in (both, [official[r["case"]] for r in both]))),
                  "x", "most", 1.2)
    failed = sum("errors" not in r for r in ours)
    yield row("gradient cases that failed", failed if ours else None, "cases", "is", 0)


def attention(m: Measurements) -> Iterator[Row]:
    """Forward calls that keep what the backward needs, and gradients of all inputs."""
    for (name, shape), least, aim in zip(SHAPES, (1.7, 1.25), (440, 580)):
        def seconds(kind: str, impl: str, acp: str, deterministic: bool = False,
                    shape: Row = shape) -> float | None:
            return m.seconds(bench="training_attention", kind=kind, tokens=16384, impl=impl,
                             acp=acp, deterministic=deterministic, **shape)

        for acp, must, wanted in (("paper", 2.15, 2.0), ("certified", None, 2.15)):
            yield row(f"training forward {name} 16k, {acp}",
                      times(seconds("forward", "ours", acp), 1e3), "ms", "most", must, wanted)
        off = seconds("backward", "ours", "off")
        flops = m.value("flops", bench="training_attention", kind="backward", impl="ours",
                        acp="off", **shape)
        yield row(f"backward {name} 16k, off, over the official kernel",
                  ratio(seconds("backward", "official", "off"), off), "x", "least", least)
        yield row(f"backward {name} 16k, off", ratio(flops, off, 1e-12), "TFLOP/s", "least", None,
                  aim)
        yield row(f"backward {name} 16k, off, over cuDNN without gate",
                  ratio(seconds("backward", "cudnn", "no gate"), off), "x", "least", None, 1.0)
        if name == "d64":
            for acp, must in (("paper", 9.2), ("certified", None)):
                yield row(f"backward {name} 16k, {acp}",
                          times(seconds("backward", "ours", acp), 1e3), "ms", "most", must, 6.0)
        for acp in ("off", "paper"):
            yield row(f"backward {name} 16k, {acp}, speed of deterministic over fast",
                      ratio(seconds("backward", "ours", acp),
                            seconds("backward", "ours", acp, True)), "x", "least", 0.8, 0.92)


def step(m: Measurements) -> Iterator[Row]:
    """A step of the official 760M Pro with the attention call swapped."""
    ours, official = (m.find(bench="training_step", impl=impl, acp="paper")
                      for impl in ("ours", "official"))
    yield row("training step 760M Pro, 16k, our op, paper", ours.get("seconds"), "s", "most",
              0.351, 0.27)
    yield row("training step 760M Pro, 16k, our op, certified",
              m.seconds(bench="training_step", impl="ours", acp="certified"), "s", "most", None,
              0.27)
    yield row("training step 760M Pro, 16k, over official with ACP",
              ratio(official.get("seconds"), ours.get("seconds")), "x", "least", 1.0)
    losses = [found.get("loss") for found in (ours, official)]
    yield row("training step 760M Pro, difference of the first loss from official",
              None if None in losses else abs(losses[0] - losses[1]) / losses[1], "of the loss",
              "most", ROUNDING)


def judged_rows(m: Measurements) -> list[Row]:
    """All rows, missing measurements included."""
    return [judged for rows in (gradients, attention, step) for judged in rows(m)]
