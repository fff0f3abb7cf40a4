#!/usr/bin/env python3
"""Forgetting attention forward and backward at 16k, ours beside its peers, in one process.

Forward means with what the backward needs kept. --flex measures FlexAttention instead, which takes
a minute to compile: ACP as a block mask (making it is not counted), the gate without a gradient.
"""

from __future__ import annotations

import argparse

import torch

import inputs
import training_calls as calls
from attention import flex

BATCH, TOKENS = 4, 16384
HEADS = {64: 24, 128: 16}
TILE, PAGE = 128, 64  # rows and keys that are pruned together


def pruned_share(log_gates: torch.Tensor, threshold: float) -> float:
    """Of the causal pairs of row tile and key page, those whose decay is below the threshold."""
    c = log_gates.detach().double().cumsum(-1)
    first_rows, last_keys = c[..., ::TILE], c[..., PAGE - 1::PAGE]
    causal = (torch.arange(last_keys.shape[-1], device=c.device)[None, :] * PAGE
              < (torch.arange(first_rows.shape[-1], device=c.device)[:, None] + 1) * TILE)
    pruned = causal & (first_rows[..., :, None] - last_keys[..., None, :] < threshold)
    return pruned.sum().item() / (causal.sum().item() * c[..., 0].numel())


def peaks(results: inputs.Results) -> None:
    """What the device reaches in this process: bf16 products, and copies read and written."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    results.row(bench="peaks", flops_per_second=2 * 8192**3 / inputs.gpu_seconds(lambda: a @ b))
    x = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    results.row(bench="peaks",
                bytes_per_second=4 * x.numel() / inputs.gpu_seconds(lambda: y.copy_(x)))


class Measurement:
    """The inputs of one head_dim, and rows of what runs on them."""

    def __init__(self, results: inputs.Results, head_dim: int) -> None:
        heads = HEADS[head_dim]
        self.results = results
        self.threshold = inputs.paper_threshold(head_dim, TOKENS)
        self.tensors, self.d_out = calls.training_inputs(BATCH, heads, head_dim, TOKENS)
        self.flops = 4 * BATCH * heads * head_dim * TOKENS * TOKENS / 2
        self.case = dict(bench="training_attention", heads=heads, head_dim=head_dim,
                         tokens=TOKENS, batch_size=BATCH)
        self.pruned = pruned_share(self.tensors[3], self.threshold)

    def attempt(self, impl: str, acp: str, make: calls.Callable[[], calls.Call],
                kinds: str = "forward backward", wanted: int = 4,
                deterministic: bool = False) -> None:
        """Times what `make` gives; rows say why not when it fails."""
        case = dict(self.case, impl=impl, acp=acp, deterministic=deterministic,
                    **({"pruned": self.pruned} if acp == "paper" else {}))
        if "forward" in kinds:
            self.results.attempt(lambda: calls.forward_seconds(make(), self.tensors), **case,
                                 kind="forward", flops=self.flops)
        self.results.attempt(
            lambda: calls.backward_seconds(make(), self.tensors, self.d_out, wanted), **case,
            kind="backward", flops=2.5 * self.flops)


def main() -> None:
    """Peers between ours, so that a drift of the clock meets both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head-dim", type=int, choices=HEADS, default=64)
    parser.add_argument("--flex", action="store_true")
    arguments = inputs.parse_arguments(parser)
    torch.manual_seed(0)
    results = inputs.Results(arguments.json)
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
    peaks(results)


if __name__ == "__main__":
    main()
