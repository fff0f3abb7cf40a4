"""The judged rows of the training side, in the form of judge.py, from gpu_bench.py --training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from judge import D64, D128, Measurements, Row, ms, ratio, row, times

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
        peers = [r["errors"][name] for r in official.values()]
        yield row(f"error of {name} against float64, worst case and head",
                  max((r["errors"][name] for r in measured), default=None), "of its norm", "most",
                  1e-2, None, f"official {max(peers):.2e}" if peers else "")
        pairs = [(r["mean_errors"][name], official[r["case"]]["mean_errors"][name]) for r in both]
        yield row(f"error of {name} over the official kernel's, all cases",
                  ratio(root_mean_square([a for a, _ in pairs]),
                        root_mean_square([b for _, b in pairs])), "x", "most", 1.2)
        yield row(f"error of {name} over the official kernel's, worst case",
                  max((a / b for a, b in pairs if b), default=None), "x", "most", None)
    failed = sum("errors" not in r for r in ours)
    yield row("gradient cases that failed", failed if ours else None, "cases", "is", 0)


def forward(m: Measurements) -> Iterator[Row]:
    """Forward calls that keep what the backward needs."""
    for name, shape in SHAPES:
        case = dict(bench="training_attention", kind="forward", tokens=16384, **shape)
        peers = (f"official {ms(m.seconds(impl='official', acp='paper', **case))}, "
                 f"FlexAttention {ms(m.seconds(impl='flex', acp='paper', **case))}")
        yield row(f"training forward {name} 16k, paper",
                  times(m.seconds(impl="ours", acp="paper", **case), 1e3), "ms", "most", 2.15, 2.0,
                  peers)
        yield row(f"training forward {name} 16k, certified",
                  times(m.seconds(impl="ours", acp="certified", **case), 1e3), "ms", "most", None,
                  2.15)
        yield row(f"training forward {name} 16k, off",
                  times(m.seconds(impl="ours", acp="off", **case), 1e3), "ms", "most", None, None,
                  f"official {ms(m.seconds(impl='official', acp='off', **case))}, cuDNN without "
                  f"gate {ms(m.seconds(impl='cudnn', **case))}")


def backward(m: Measurements) -> Iterator[Row]:
    """Gradients of all inputs, without pruning and with it."""
    def seconds(shape: Row, impl: str, acp: str, deterministic: bool = False) -> float | None:
        return m.seconds(bench="training_attention", kind="backward", tokens=16384, impl=impl,
                         acp=acp, deterministic=deterministic, **shape)

    def teraflops(shape: Row, impl: str, acp: str) -> float | None:
        flops = m.value("flops", bench="training_attention", kind="backward", impl=impl, acp=acp,
                        **shape)
        return ratio(flops, seconds(shape, impl, acp), 1e-12)

    for (name, shape), least, aim in zip(SHAPES, (1.7, 1.25), (440, 580)):
        off = seconds(shape, "ours", "off")
        official, cudnn = seconds(shape, "official", "off"), seconds(shape, "cudnn", "no gate")
        yield row(f"backward {name} 16k, off, over the official kernel", ratio(official, off), "x",
                  "least", least, None, f"official {ms(official)}")
        peer = teraflops(shape, "cudnn", "no gate")
        yield row(f"backward {name} 16k, off", teraflops(shape, "ours", "off"), "TFLOP/s",
                  "least", None, aim,
                  "" if peer is None else f"cuDNN without gate {peer:.0f} TFLOP/s")
        yield row(f"backward {name} 16k, off, over cuDNN without gate", ratio(cudnn, off), "x",
                  "least", None, 1.0, f"cuDNN {ms(cudnn)}")
        official = seconds(shape, "official", "paper")
        flex = seconds(shape, "flex", "paper")
        limits = (9.2, 6.0) if name == "d64" else (None, None)
        yield row(f"backward {name} 16k, paper", times(seconds(shape, "ours", "paper"), 1e3), "ms",
                  "most", *limits, f"official {ms(official)}, FlexAttention {ms(flex)}")
        yield row(f"backward {name} 16k, certified",
                  times(seconds(shape, "ours", "certified"), 1e3), "ms", "most", None, limits[1])
        for acp in ("off", "paper"):
            yield row(f"backward {name} 16k, {acp}, speed of deterministic over fast",
                      ratio(seconds(shape, "ours", acp), seconds(shape, "ours", acp, True)), "x",
                      "least", 0.8, 0.92)
    equal = [r["equal"] for r in m.all(bench="determinism")]
    yield row("deterministic: equal bits in three runs", int(all(equal)) if equal else None,
              "bool", "is", 1)


def step(m: Measurements) -> Iterator[Row]:
    """A step of the official 760M Pro with the attention call swapped."""
    def seconds(impl: str, acp: str) -> float | None:
        return m.seconds(bench="training_step", impl=impl, acp=acp)

    ours = seconds("ours", "paper")
    official = {acp: seconds("official", acp) for acp in ("paper", "off")}
    yield row("training step 760M Pro, 16k, our op, paper", ours, "s", "most", 0.351, 0.27,
              f"official {ms(official['paper'])} with ACP, {ms(official['off'])} without")
    yield row("training step 760M Pro, 16k, our op, certified", seconds("ours", "certified"), "s",
              "most", None, 0.27)
    yield row("training step 760M Pro, 16k, our op told U by the caller, paper",
              seconds("ours, told U", "paper"), "s", "most", None, 0.27)
    for acp, name, must in (("paper", "with ACP", 1.0), ("off", "without ACP", None)):
        yield row(f"training step 760M Pro, 16k, over official {name}",
                  ratio(official[acp], ours), "x", "least", must)
    losses = [m.value("loss", bench="training_step", impl=impl, acp="paper")
              for impl in ("ours", "official")]
    apart = None if None in losses else abs(losses[0] - losses[1]) / losses[1]
    yield row("training step 760M Pro, difference of the first loss from official", apart,
              "of the loss", "most", ROUNDING)


def equalities(m: Measurements) -> Iterator[Row]:
    """Ways to say the same thing, which must agree."""
    def worst(bench: str) -> float | None:
        return max((max(r["differences"].values()) for r in m.all(bench=bench)
                    if "differences" in r), default=None)

    packed = m.find(bench="packed", acp="paper") or {}
    yield row("16 packed sequences against 16 calls, outputs and gradients", worst("packed"),
              "of their norm", "most", ROUNDING)
    yield row("16 packed sequences over 16 calls, speed, paper",
              ratio(packed.get("seconds_of_calls"), packed.get("seconds")), "x", "least", None, 1)
    yield row("torch.compile against eager, outputs and gradients", worst("compile"),
              "of their norm", "most", ROUNDING)
    breaks = [r.get("graph_breaks", 1) for r in m.all(bench="compile")]
    yield row("graph breaks under torch.compile", max(breaks, default=None), "breaks", "is", 0)
    tried = m.all(bench="packed") + m.all(bench="compile")
    failed = sum("differences" not in r for r in tried)
    yield row("packed or compiled cases that failed", failed if tried else None, "cases", "is", 0)
    yield row("two GPUs by torchrun against one, losses", m.value("loss_gap", bench="two_gpus"),
              "nats", "most", 1e-2)
    yield row("perplexity of a model fine-tuned here, fox-eval against PyTorch",
              m.value("difference", bench="finetuned_perplexity"), "of it", "most", 1e-3)


def judged_rows(parts: dict[str, Any], tests: dict[str, str]) -> list[Row]:
    """All rows, missing measurements included."""
    m = Measurements(parts, tests)
    return [r for rows in (gradients, forward, backward, step, equalities) for r in rows(m)]
