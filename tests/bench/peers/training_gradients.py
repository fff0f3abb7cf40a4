#!/usr/bin/env python3
"""Gradients of our op and of the official kernel against float64, and whether deterministic is.

Random, ragged and edge shapes; few tokens come with many sequences, so that an error is a mean over
thousands of rows. The official kernel runs on kinds of shapes that it compiles once: whether batch,
heads or tokens are one or divisible by 16 costs it half a minute each.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F

import inputs
import calls
from float64_attention import NAMES, attention_gradients, relative_errors, worst_and_mean


@dataclasses.dataclass(frozen=True)
class Case:
    """One set of inputs."""
    name: str
    batch: int
    heads: int
    tokens: int
    head_dim: int = 64
    kv_heads: int | None = None
    gates: str = "model"  # three heads of four forget; "long": none does; "open": log f is zero
    left_padded: bool = False
    official: bool = False

    def make(self) -> tuple[list[torch.Tensor], torch.Tensor, list[int] | None]:
        """Inputs that want gradients, the output's gradient, seq_start."""
        (q, k, v, log_gates), d_out = calls.training_inputs(self.batch, self.heads, self.head_dim,
                                                            self.tokens)
        with torch.no_grad():
            if self.gates == "long":
                log_gates.copy_(F.logsigmoid(torch.randn_like(log_gates) + inputs.GLOBAL_GATE))
            elif self.gates == "open":
                log_gates.zero_()
        group = self.heads // (self.kv_heads or self.heads)
        k, v = (x.detach()[:, ::group].contiguous().requires_grad_() for x in (k, v))
        if not self.left_padded:
            return [q, k, v, log_gates], d_out, None
        starts = [(37 * b * b + 5 * b) % self.tokens for b in range(self.batch)]
        for b, start in enumerate(starts):
            d_out[b, :, :start] = 0
        return [q, k, v, log_gates], d_out, starts


CASES = (
    Case("random 2048 d64", 2, 8, 2048, official=True),
    Case("random 2048 d128", 2, 8, 2048, 128, official=True),
    Case("random 4096 d64", 2, 4, 4096, official=True),
    Case("16k d64", 2, 4, 16384, official=True),
    Case("16k d128", 2, 4, 16384, 128, official=True),
    Case("16k d64, no head forgets", 2, 4, 16384, gates="long", official=True),
    Case("gates open", 2, 4, 2048, gates="open", official=True),
    Case("ragged 1001 d64", 4, 4, 1001, official=True),
    Case("63 tokens", 24, 4, 63, official=True),
    Case("65 tokens", 24, 4, 65, official=True),
    Case("127 tokens", 24, 4, 127, official=True),
    Case("129 tokens", 24, 4, 129, official=True),
    Case("one head, 191 tokens", 24, 1, 191),
    Case("left-padded 1001", 4, 4, 1001, left_padded=True),
    Case("ragged 1537 d128", 2, 4, 1537, 128),
    Case("64 tokens", 24, 4, 64),
    Case("128 tokens d128", 24, 4, 128, 128),
    Case("1 token", 256, 4, 1),
    Case("2 tokens", 256, 4, 2),
    Case("random 1024 d32", 2, 8, 1024, 32),
    Case("ragged 333 d32", 8, 4, 333, 32),
    Case("grouped heads 8 of 2, 1024", 2, 8, 1024, kv_heads=2),
    Case("grouped heads 8 of 2, 777 d128", 2, 8, 777, 128, kv_heads=2),
)


def gradients(call: calls.Call, tensors: list[torch.Tensor], d_out: torch.Tensor,
              starts: list[int] | None) -> dict[str, torch.Tensor]:
    """Output and gradients by NAMES; what stands before a sequence's start counts as nothing."""
    out = call(*tensors)
    values = [out.detach().clone(), *torch.autograd.grad(out, tensors, d_out)]
    for b, start in enumerate(starts or []):
        for value in values:
            value[b, :, :start] = 0
    return dict(zip(NAMES, values))


def measure(results: inputs.Results, case: Case, has_official: bool) -> None:
    """Rows of one case: the errors of every call."""
    tensors, d_out, starts = case.make()
    exact = attention_gradients(*(x.detach() for x in tensors), d_out, starts)
    threshold = inputs.paper_threshold(case.head_dim, case.tokens)
    options = {} if starts is None else {"seq_start": torch.tensor(starts, device="cuda")}
    wanted = [("official", "off", False)] * (case.official and has_official)
    wanted += [("ours", acp, False) for acp in ("off", "paper", "certified")]
    wanted += [("ours", acp, True) for acp in ("off", "paper")]
    for impl, acp, deterministic in wanted:
        row = dict(bench="gradients", case=case.name, impl=impl, acp=acp,
                   deterministic=deterministic)
        try:
            call = (calls.official(acp, threshold, **options) if impl == "official" else
                    calls.ours(acp, threshold, deterministic=deterministic, **options))
            errors = worst_and_mean(relative_errors(gradients(call, tensors, d_out, starts), exact))
            finite = all(error < float("inf") for error in errors["errors"].values())
            results.row(**row, **(errors if finite else {"error": f"{errors['errors']}"}))
        except Exception as error:  # pylint: disable=broad-except
            results.row(**row, error=f"{type(error).__name__}: {error}"[:300])
    del tensors, d_out, exact
    torch.cuda.empty_cache()


def determinism(results: inputs.Results) -> None:
    """Whether three backward runs over a busy device give the same bits."""
    tensors, d_out = calls.training_inputs(2, 24, 64, 8192)
    for acp in ("off", "paper"):
        call = calls.ours(acp, inputs.paper_threshold(64, 8192), deterministic=True)
        runs = [gradients(call, tensors, d_out, None) for _ in range(3)]
        results.row(bench="determinism", acp=acp, equal=all(
            torch.equal(run[name], runs[0][name]) for run in runs for name in NAMES))


def main() -> None:
    """Runs everything."""
    arguments, results = inputs.start()
    has_official = inputs.use_official(arguments.official_repo)
    for case in CASES:
        measure(results, case, has_official)
    determinism(results)


if __name__ == "__main__":
    main()
