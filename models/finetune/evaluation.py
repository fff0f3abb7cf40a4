"""Evaluation of a model: bits per byte of a text, a sample, and each head's pruned share.

Evaluation compiles nothing, and leaves the random states of the training as they are.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.finetune.model import FoxModel
from models.finetune.text_tokens import TextTokenizer

SAMPLE_TEMPERATURE, SAMPLE_TOP_K = 0.8, 40


@contextlib.contextmanager
def evaluating(model: FoxModel, precision: torch.dtype) -> Iterator[torch.device]:
    """A context without gradients and compiling, with autocast; yields the model's device."""
    device = next(model.parameters()).device
    training, strict = model.training, torch.are_deterministic_algorithms_enabled()
    model.eval()
    torch.use_deterministic_algorithms(False)  # sums of statistics have no deterministic form
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), torch.autocast(
            device.type, precision, enabled=precision != torch.float32
        ):
            yield device
    finally:
        torch.use_deterministic_algorithms(strict)
        model.train(training)


@dataclass(frozen=True)
class TextLoss:
    """The loss of a text over windows that begin every `spacing` tokens."""

    nats_per_token: float
    bits_per_byte: float
    windows: int
    window: int
    spacing: int


def text_loss(model: FoxModel, tokens: np.ndarray, bytes_per_token: float, window: int,
              max_windows: int, precision: torch.dtype) -> TextLoss:
    """The loss over at most `max_windows` windows, spread evenly, each from an empty context.

    The first token of a window is context only. `fox-eval perplexity` measures the same with
    --window, --step (the spacing) and --max-windows as they stand in the result.
    """
    spacing = max(window, len(tokens) // max_windows)
    nats, scored, windows = 0.0, 0, 0
    with evaluating(model, precision) as device:
        for begin in range(0, len(tokens) - 1, spacing)[:max_windows]:
            ids = torch.from_numpy(tokens[begin : begin + window].astype(np.int64)).to(device)[None]
            nats += float(model(ids[:, :-1], ids[:, 1:])) * (ids.shape[1] - 1)
            scored += ids.shape[1] - 1
            windows += 1
    loss = nats / scored
    return TextLoss(loss, loss / math.log(2) / bytes_per_token, windows, window, spacing)


def sample(model: FoxModel, tokenizer: TextTokenizer, prompt: str, new_tokens: int,
           precision: torch.dtype, show: Callable[[int], None] = lambda _: None) -> str:
    """The prompt and the model's continuation; equal weights give equal text.

    Calls `show` before each new token, with the number of tokens made so far.
    """
    ids = tokenizer.encode(prompt)
    if tokenizer.bos is not None:
        ids = [tokenizer.bos, *ids]
    generator = torch.Generator().manual_seed(0)
    with evaluating(model, precision) as device:
        for made in range(new_tokens):
            show(made)
            logits = model(torch.tensor([ids], device=device))[0, -1].float().cpu()
            best = torch.topk(logits / SAMPLE_TEMPERATURE, min(SAMPLE_TOP_K, len(logits)))
            weights = torch.softmax(best.values, -1)
            chosen = int(best.indices[torch.multinomial(weights, 1, generator=generator)])
            if chosen == tokenizer.eos:
                break
            ids.append(chosen)
    return tokenizer.decode(ids)


def pruned_shares(model: FoxModel, ids: np.ndarray, precision: torch.dtype) -> Tensor:
    """The share of (query, key) pairs that each head prunes on one window, [layers, heads]."""
    shares: list[Tensor] = []
    with evaluating(model, precision) as device:
        model(torch.from_numpy(ids.astype(np.int64)).to(device)[None], shares=shares)
    return torch.stack(shares).double().cpu()


def shares_table(shares: Tensor) -> str:
    """A table of pruned percent, a row for each layer, and a histogram over the heads."""
    lines = ["percent of pairs pruned, by layer (rows) and head"]
    for layer, row in enumerate(shares.tolist()):
        lines.append(f"{layer:4d}  " + " ".join(f"{100 * share:4.0f}" for share in row))
    counts = torch.histc(shares.float(), bins=5, min=0, max=1).long().tolist()
    bands = [f"{20 * i} to {20 * i + 20}%: {count}" for i, count in enumerate(counts)]
    lines.append(f"mean {100 * shares.mean().item():.1f}%; heads by share " + ", ".join(bands))
    return "\n".join(lines)
