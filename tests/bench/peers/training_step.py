#!/usr/bin/env python3
"""A training step of the official 760M Pro on one sequence of 16k, its attention call swapped.

The official model and its own kernels for norms, shifts and loss; float32 weights, bf16 autocast,
no activation checkpointing, gradient clipping, fused AdamW. Weights are freshly initialised except
for the forget gates: biases such that three heads of four forget, as in the other benchmarks.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from typing import Any

import torch

import inputs
import official
import calls

TOKENS = 16384
# What attends, under which bound.
RUNS = (("ours", "paper"), ("official", "paper"), ("ours", "certified"), ("official", "off"),
        ("ours", "off"))


def certified_op(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    """Our op as the model calls it, the certified bound in place of the paper's."""
    return calls.our_op()(*tensors, **{**options, **calls.bound_options("certified", None)})


def measure(results: inputs.Results, folder: str) -> None:
    """Seconds, first loss and memory of every run; `folder` is that of the official copy."""
    sys.path.insert(0, folder)
    model = official.new_model().train()
    modeling = importlib.import_module(official.PACKAGE + "modeling_forgetting_transformer")
    official_op = modeling.forgetting_attention
    # So small a rate that every run meets the same weights.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-8, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    ids = torch.randint(0, 50000, (1, TOKENS + 1), device="cuda")

    def step() -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(ids[:, :-1], labels=ids[:, 1:].contiguous()).loss.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for impl, acp in RUNS:
        row = dict(bench="training_step", impl=impl, acp=acp, tokens=TOKENS, batch_size=1)
        try:
            modeling.forgetting_attention = (
                official_op if impl == "official" else
                certified_op if acp == "certified" else calls.our_op())
            official.use_bound(model, "off" if acp == "off" else "paper")
            torch.cuda.reset_peak_memory_stats()
            loss = step().item()
            results.row(**row, loss=loss, seconds=inputs.wall_seconds(step, 5, 1),
                        memory_bytes=torch.cuda.max_memory_allocated())
        except Exception as error:  # pylint: disable=broad-except
            results.row(**row, error=f"{type(error).__name__}: {error}"[:300])
            optimizer.zero_grad(set_to_none=True)


def main() -> None:
    arguments, results = inputs.start()
    if not inputs.use_official(arguments.official_repo):
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(results, official.edited_copy(arguments.official_repo, folder))


if __name__ == "__main__":
    main()
