#!/usr/bin/env python3
"""Packed sequences against one call for each, and the op under torch.compile against eager.

Both rows say how far outputs and gradients lie apart, as a share of their norm.
"""

from __future__ import annotations

import torch
import torch._dynamo
import torch.nn.functional as F

import inputs
import training_calls as calls

HEADS, HEAD_DIM = 24, 64
LENGTHS = (1, 63, 64, 65, 129, 200, 333, 512, 700, 777, 1000, 1024, 1537, 2048, 3000, 4931)
NAMES = ("out", "dq", "dk", "dv", "d_log_gates")


def differences(given: list[torch.Tensor], wanted: list[torch.Tensor]) -> dict[str, float]:
    """By NAMES, |given - wanted| / |wanted|."""
    return {name: ((a.double() - b.double()).norm() / b.double().norm()).item()
            for name, a, b in zip(NAMES, given, wanted)}


def with_gradients(out: torch.Tensor, tensors: list[torch.Tensor],
                   d_out: torch.Tensor) -> list[torch.Tensor]:
    """The output and the gradients of `tensors`."""
    return [out.detach(), *torch.autograd.grad(out, tensors, d_out)]


def packed(results: inputs.Results, acp: str) -> None:
    """16 sequences of 1 to 4931 tokens."""
    total = sum(LENGTHS)
    tensors, d_out = calls.training_inputs(1, HEADS, HEAD_DIM, total)
    threshold = inputs.paper_threshold(HEAD_DIM, max(LENGTHS))
    ends = torch.tensor(LENGTHS, device="cuda").cumsum(0)
    starts = F.pad(ends, (1, 0)).to(torch.int32)
    once = calls.ours(acp, threshold, cu_seqlens=starts)
    one = calls.ours(acp, threshold)

    def each(*whole: torch.Tensor) -> torch.Tensor:
        parts = zip(*(x.split(LENGTHS, dim=2) for x in whole))
        return torch.cat([one(*part) for part in parts], dim=2)

    row = dict(bench="packed", acp=acp, sequences=len(LENGTHS), tokens=total)
    try:
        apart = differences(with_gradients(once(*tensors), tensors, d_out),
                            with_gradients(each(*tensors), tensors, d_out))
        results.row(**row, differences=apart, seconds=inputs.gpu_seconds(
            lambda: with_gradients(once(*tensors), tensors, d_out), 100),
            seconds_of_calls=inputs.gpu_seconds(
                lambda: with_gradients(each(*tensors), tensors, d_out), 100))
    except Exception as error:  # pylint: disable=broad-except
        results.row(**row, error=f"{type(error).__name__}: {error}"[:300])


def compiled(results: inputs.Results, acp: str) -> None:
    """A function around the op, of operations that compiled code rounds as eager does."""
    tensors, d_out = calls.training_inputs(2, HEADS, HEAD_DIM, 2048)
    op = calls.our_op()
    bound = calls.bound_options(acp, inputs.paper_threshold(HEAD_DIM, 2048))

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
              log_gates: torch.Tensor) -> torch.Tensor:
        return op(-q, -k, 2 * v, log_gates, head_first=True, **bound) * 0.5

    row = dict(bench="compile", acp=acp)
    try:
        torch._dynamo.reset()  # pylint: disable=protected-access
        breaks = torch._dynamo.explain(layer)(*tensors).graph_break_count
        torch._dynamo.reset()  # pylint: disable=protected-access
        whole = torch.compile(layer, fullgraph=True)
        results.row(**row, graph_breaks=breaks, differences=differences(
            with_gradients(whole(*tensors), tensors, d_out),
            with_gradients(layer(*tensors), tensors, d_out)))
    except Exception as error:  # pylint: disable=broad-except
        results.row(**row, error=f"{type(error).__name__}: {error}"[:300])


def main() -> None:
    """Runs everything."""
    arguments = inputs.parse_arguments()
    torch.manual_seed(0)
    results = inputs.Results(arguments.json)
    for acp in ("off", "paper", "certified"):
        packed(results, acp)
    for acp in ("off", "paper"):
        compiled(results, acp)


if __name__ == "__main__":
    main()
