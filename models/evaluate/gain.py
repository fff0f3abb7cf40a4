"""The gain of a model: how far the log-probability of the next token moves for each unit of
attention mass that rows lose, to first order. ./run gain; kernels/docs/acp.md has the proof.

A sample is a window of text and a token drawn from the model's distribution behind it. Its gain is

    G = sum over layers, rows and heads of || d log p / d o || 2 max || v ||,

with o [d] attention's output of the row and head, before any output norm, and the largest value of
the row's keys. The report has quantiles of G over samples. It also measures how far log p falls if
each row loses a mass of exp(LOG_MASS) in the direction that is worst to first order.
Shapes: T tokens, H query heads, K kv heads, d head size, V vocabulary.
"""

from __future__ import annotations

from models.evaluate.gain_options import parse_arguments

# Before PyTorch is imported, so that a mistake is reported at once.
COMMAND_LINE = parse_arguments(None) if __name__ == "__main__" else None

import json  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from argparse import Namespace  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from models.convert.canonical_config import ORDINARY_TYPES  # noqa: E402
from models.convert.output_directory import write_file  # noqa: E402
from models.convert.refusal import Refusal  # noqa: E402
from models.convert.safetensors_io import parse_json  # noqa: E402
from models.convert.source_directory import read_text  # noqa: E402
from models.finetune.attention import forgetting_attention  # noqa: E402
from models.finetune.model_directory import load_model  # noqa: E402
from models.finetune.progress import ProgressLine  # noqa: E402
from models.finetune.text_tokens import (  # noqa: E402
    TextError, Windows, open_tokens, write_tokens)
from models.foxify.adapter import open_merged  # noqa: E402

LOG_MASS = -10.0  # the server's default promise
QUANTILE = 0.99
Move = Callable[[Tensor, Tensor], Tensor]


class GainModel:
    """A model whose attention can be moved; its weights have no gradients."""

    def __init__(self, model: nn.Module, attending: Sequence[nn.Module],
                 last_logits: Callable[[Tensor], Tensor]) -> None:
        """`attending`: the modules with an `attend`. last_logits: ids [1, T] to logits [V]."""
        model.requires_grad_(False)
        self._attending, self._last_logits = attending, last_logits

    def log_probabilities(self, ids: Tensor, move: Move) -> Tensor:
        """Log-probabilities [V] of the token after ids [T], of attention without pruning.

        `move` gets the output [1, T, H, d] and the values [1, T, K, d] of each layer in turn; its
        result replaces the output.
        """
        def attend(q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, *,
                   sinks: Tensor | None = None, **pruning: Any) -> Tensor:
            del pruning
            return move(forgetting_attention(q, k, v, log_fgate, sinks=sinks), v)

        for module in self._attending:
            module.attend = attend
        return self._last_logits(ids[None]).log_softmax(-1)


def open_model(directory: Path, dtype: torch.dtype = torch.float32) -> GainModel:
    """Opens any checkpoint with forget gates that the server loads; raises Refusal."""
    config = parse_json(read_text(directory / "config.json"), "config.json")
    if config.get("model_type") in ORDINARY_TYPES:
        student = open_merged(directory, torch.device("cpu"), dtype)
        return GainModel(student, [student],
                         lambda ids: student.base.logits(student(ids)[0][0, -1]))
    model = load_model(directory, 0).model.to(dtype)
    if model.config.fgate_type == "none":
        raise Refusal(f"{directory}: the model has no forget gates, so nothing is pruned")
    return GainModel(model, [layer.attn for layer in model.model.layers],
                     lambda ids: model(ids)[0, -1])


@dataclass(frozen=True)
class Sample:
    """The gain of one token."""

    gain: float
    by_layer: Tensor  # parts of the gain, float64
    last_row: float  # its part of the gain
    fall: float  # of log p, if each row loses exp(LOG_MASS) in the worst direction


def reach_of(v: Tensor, heads: int) -> Tensor:
    """How far a row's output moves at most for each unit of lost mass, [1, T, H, 1]: the kept keys'
    mean of values moves to that of all keys, each of which is at most max || v || long."""
    largest = torch.linalg.vector_norm(v, dim=-1, keepdim=True).cummax(1).values
    return 2 * largest.repeat_interleave(heads // v.shape[2], 2)


def _finite(x: Tensor) -> Tensor:
    if not x.isfinite().all():
        raise Refusal("log-probabilities or their gradients are not finite: do the weights hold "
                      "NaN, infinity or too large values?")
    return x


def measure(model: GainModel, ids: Tensor, generator: torch.Generator) -> Sample:
    """Draws a token behind ids [T], and measures its gain by one backward pass."""
    shifts: list[Tensor] = []
    reaches: list[Tensor] = []

    def watch(o: Tensor, v: Tensor) -> Tensor:
        reaches.append(reach_of(v.detach(), o.shape[2]))
        shifts.append(torch.zeros_like(o, requires_grad=True))
        return o + shifts[-1]

    log_p = _finite(model.log_probabilities(ids, watch))
    token = int(torch.multinomial(log_p.detach().exp(), 1, generator=generator))
    gradients = torch.autograd.grad(log_p[token], shifts)
    slopes = [torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in gradients]
    parts = _finite(torch.cat([a * b for a, b in zip(slopes, reaches)]).double())
    falls = iter([x / slope.clamp(min=1e-30) * reach * math.exp(LOG_MASS)
                  for x, slope, reach in zip(gradients, slopes, reaches)])
    with torch.no_grad():
        moved = _finite(model.log_probabilities(ids, lambda o, v: o - next(falls)))[token]
    return Sample(float(parts.sum()), parts.sum((1, 2, 3)), float(parts[:, -1].sum()),
                  float(log_p[token].detach() - moved))


def summarize(samples: Sequence[Sample], args: Namespace) -> dict[str, Any]:
    """The report. Quantiles are values of samples, rounded up. Raises Refusal if nothing moves."""
    def quantile(values: list[float], share: float) -> float:
        return sorted(values)[math.ceil(share * len(values)) - 1]

    gains, falls = [sample.gain for sample in samples], [sample.fall for sample in samples]
    if not quantile(gains, QUANTILE) > 0:
        raise Refusal("log-probabilities do not depend on attention")
    return {
        "gain": quantile(gains, QUANTILE), "quantile": QUANTILE,
        "median": quantile(gains, 0.5), "mean": sum(gains) / len(gains), "largest": max(gains),
        "samples": len(samples), "window": args.window, "seed": args.seed,
        "texts": [path.name for path in args.texts],
        "last_row_share": sum(sample.last_row for sample in samples) / sum(gains),
        "mean_by_layer": torch.stack([x.by_layer for x in samples]).mean(0).tolist(),
        "fall": {"log_mass": LOG_MASS, "quantile": quantile(falls, QUANTILE),
                 "median": quantile(falls, 0.5), "largest": max(falls)}}


def sentences(directory: Path, report: dict[str, Any]) -> str:
    """The report in words."""
    mass, fall, share = math.exp(LOG_MASS), report["fall"], f"{100 * QUANTILE:g}%"
    layers = ", ".join(f"{x:.3g}" for x in report["mean_by_layer"])
    return (
        f"{directory}: rows that lose a mass of W move log p of the next token by at most G W, to "
        f"first order; calibrated: G = {report['gain']:,.0f} in {share} of {report['samples']} "
        f"samples of {report['window']} tokens (median {report['median']:,.0f}, largest "
        f"{report['largest']:,.0f}).\n"
        f"At W = e^{LOG_MASS:g} that is {report['gain'] * mass:.2g} nats (median "
        f"{report['median'] * mass:.2g}, largest {report['largest'] * mass:.2g}); moved so in the "
        f"worst direction, log p fell by {fall['quantile']:.2g} (median {fall['median']:.2g}, "
        f"largest {fall['largest']:.2g}).\n"
        f"The last row has {100 * report['last_row_share']:.0f}% of G. Mean by layer: {layers}")


def _run(args: Namespace) -> None:
    line = ProgressLine()
    line.doing("reading the model")
    model = open_model(args.model)
    with tempfile.TemporaryDirectory() as folder:
        line.doing("reading the texts")
        path = Path(folder) / "texts.tokens"
        write_tokens(args.texts, args.model, path, os.cpu_count() or 1)
        windows = Windows(open_tokens(path)[0], args.window, args.seed)
        generator, samples = torch.Generator().manual_seed(args.seed), []
        for index in range(args.samples):
            line.doing(f"sample {index + 1} of {args.samples}")
            ids = torch.from_numpy(windows.window(index)[: args.window])
            samples.append(measure(model, ids, generator))
    report = summarize(samples, args)
    partial = args.out.with_name(args.out.name + ".partial")
    write_file(partial, report)
    partial.replace(args.out)
    line.say(f"{args.out} is written")
    print(sentences(args.model, report))


def main(args: Namespace) -> int:
    """The command; returns the exit status."""
    try:
        _run(args)
        return 0
    except (Refusal, TextError) as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename or 'input/output'}: {error.strerror or error}"
    except KeyboardInterrupt:
        message = "interrupted; nothing is written"
    print(f"gain: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(COMMAND_LINE))
