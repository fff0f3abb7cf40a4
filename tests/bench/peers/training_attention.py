#!/usr/bin/env python3
"""Forgetting attention forward and backward at 16k, ours beside its peers, in one process.

The forward call keeps tensors for the backward. --flex measures FlexAttention instead, which takes
a minute to compile: ACP is a block mask (made outside the timed call), the gate has no gradient.
"""

from __future__ import annotations

import argparse

import torch

import inputs
import calls
from attention import flex

BATCH, TOKENS = 4, 16384
HEADS = {64: 24, 128: 16}


class Measurement:
    """The inputs of one head_dim, and the rows measured on them."""

    def __init__(self, results: inputs.Results, head_dim: int) -> None:
        heads = HEADS[head_dim]
        self.results = results
        self.threshold = inputs.paper_threshold(head_dim, TOKENS)
        self.tensors = [x.requires_grad_()
                        for x in inputs.attention_inputs(BATCH, heads, head_dim, TOKENS)]
        self.d_out = torch.randn_like(self.tensors[0])
        self.flops = 4 * BATCH * heads * head_dim * TOKENS * TOKENS / 2
        self.case = dict(bench="training_attention", heads=heads, head_dim=head_dim,
                         tokens=TOKENS, batch_size=BATCH)

    def attempt(self, impl: str, acp: str, make: calls.Callable[[], calls.Call],
                kinds: str = "forward backward", wanted: int = 4,
                deterministic: bool = False) -> None:
        """Times the call that `make` returns, or keeps its error. `wanted`: the number of inputs
        whose gradients are computed, into new tensors."""
        case = dict(self.case, impl=impl, acp=acp, deterministic=deterministic)

        def backward() -> float:
            out = make()(*self.tensors)
            return inputs.gpu_seconds(lambda: torch.autograd.grad(
                out, self.tensors[:wanted], self.d_out, retain_graph=True))

        def forward() -> float:
            call = make()
            return inputs.gpu_seconds(lambda: call(*self.tensors))

        if "forward" in kinds:
            self.results.attempt(forward, **case, kind="forward", flops=self.flops)
        self.results.attempt(backward, **case, kind="backward", flops=2.5 * self.flops)


def main() -> None:
    """Measures peers between our calls, so that a drift of the clock affects both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head-dim", type=int, choices=HEADS, default=64)
    parser.add_argument("--flex", action="store_true")
    arguments, results = inputs.start(parser)
    measure = Measurement(results, arguments.head_dim)
    if arguments.flex:
        # The mask and the gate's terms are made once, outside the timed call.
        fixed = flex(*measure.tensors[:3], measure.tensors[3].detach(), measure.threshold)
        measure.attempt("flex", "paper", lambda: lambda *_: fixed(), wanted=3)
        return
    has_official = inputs.use_official(arguments.official_repo)
    for acp in ("paper", "off"):
        measure.attempt("ours", acp, lambda acp=acp: calls.ours(acp, measure.threshold))
        if has_official:
            measure.attempt("official", acp,
                            lambda acp=acp: calls.official(acp, measure.threshold))
        measure.attempt("ours", acp, lambda acp=acp: calls.ours(
            acp, measure.threshold, deterministic=True), "backward", deterministic=True)
    measure.attempt("cudnn", "no gate", lambda: calls.cudnn, wanted=3)
    measure.attempt("ours", "certified", lambda: calls.ours("certified", measure.threshold))


if __name__ == "__main__":
    main()
