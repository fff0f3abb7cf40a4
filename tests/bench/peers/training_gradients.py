#!/usr/bin/env python3
"""Gradients of our op and of the official kernel against float64, in sequences longer than those of
the kernels' tests: an error of the gates' gradients grows with the length."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import calls
import inputs
from float64_attention import NAMES, attention_gradients, relative_errors

# Name, batch, heads, tokens, head_dim, gate logits (None: three heads of four forget; "open": log
# gates are zero).
CASES = (("random 2048 d64", 2, 8, 2048, 64, None), ("random 2048 d128", 2, 8, 2048, 128, None),
         ("random 4096 d64", 2, 4, 4096, 64, None), ("16k d64", 2, 4, 16384, 64, None),
         ("16k d128", 2, 4, 16384, 128, None),
         ("16k d64, no head forgets", 2, 4, 16384, 64, inputs.GLOBAL_GATE),
         ("gates open", 2, 4, 2048, 64, "open"))


def measure(results: inputs.Results, name: str, batch: int, heads: int, tokens: int,
            head_dim: int, gates: float | str | None, has_official: bool) -> None:
    """Rows of one case: the errors of every call, of the worst head and their root mean square."""
    tensors, d_out = calls.training_inputs(batch, heads, head_dim, tokens)
    with torch.no_grad():
        if gates == "open":
            tensors[3].zero_()
        elif gates is not None:
            tensors[3].copy_(F.logsigmoid(torch.randn_like(tensors[3]) + gates))
    exact = attention_gradients(*(x.detach() for x in tensors), d_out)
    threshold = inputs.paper_threshold(head_dim, tokens)
    wanted = [("official", "off", False)] * has_official
    wanted += [("ours", acp, False) for acp in ("off", "paper", "certified")]
    wanted += [("ours", acp, True) for acp in ("off", "paper")]
    for impl, acp, deterministic in wanted:
        row = dict(bench="gradients", case=name, impl=impl, acp=acp, deterministic=deterministic)
        try:
            call = (calls.official(acp, threshold) if impl == "official" else
                    calls.ours(acp, threshold, deterministic=deterministic))
            out = call(*tensors)
            errors = relative_errors(
                dict(zip(NAMES, (out.detach(), *torch.autograd.grad(out, tensors, d_out)))), exact)
            worst = {key: error.max().item() for key, error in errors.items()}
            mean = {key: error.square().mean().sqrt().item() for key, error in errors.items()}
            finite = all(error < float("inf") for error in worst.values())
            results.row(**row, **(dict(errors=worst, mean_errors=mean) if finite else
                                  {"error": f"{worst}"}))
        except Exception as error:  # pylint: disable=broad-except
            results.row(**row, error=f"{type(error).__name__}: {error}"[:300])
    del tensors, d_out, exact
    torch.cuda.empty_cache()


def main() -> None:
    """Runs everything."""
    arguments, results = inputs.start()
    has_official = inputs.use_official(arguments.official_repo)
    for case in CASES:
        measure(results, *case, has_official)


if __name__ == "__main__":
    main()
