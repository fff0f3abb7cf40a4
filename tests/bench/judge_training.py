"""The judged rows of gpu_bench.py --training, in the form of judge.py."""

from __future__ import annotations

from collections.abc import Iterator

from judge import D64, D128, Measurements, Row, ratio, row, times

SHAPES = (("d64", D64), ("d128", D128))
ROUNDING = 2.0**-8  # the largest relative error of one rounding to bf16


def attention(m: Measurements) -> Iterator[Row]:
    """Forward calls that keep tensors for the backward, and gradients of all inputs."""
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
    """A training step of the 760M Pro: official code with our attention call, and our trainer."""
    ours, official, finetune = (m.find(bench="training_step", impl=impl, acp="paper")
                                for impl in ("ours", "official", "finetune"))
    yield row("training step 760M Pro, 16k, ./run finetune", finetune.get("seconds"), "s", "most",
              0.265, 0.24)
    yield row("training step 760M Pro, 16k, official code with our op", ours.get("seconds"), "s",
              "most", 0.351, 0.27)
    yield row("training step 760M Pro, 16k, over official with ACP",
              ratio(official.get("seconds"), ours.get("seconds")), "x", "least", 1.0)
    losses = [found.get("loss") for found in (official, ours, finetune)]
    yield row("training step 760M Pro, difference of the first losses from official",
              None if None in losses else (max(losses) - min(losses)) / losses[0], "of the loss",
              "most", ROUNDING)


def judged_rows(m: Measurements) -> list[Row]:
    return [judged for rows in (attention, step) for judged in rows(m)]
