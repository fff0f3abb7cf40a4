#!/usr/bin/env python3
"""A training step of the 760M Pro on one sequence of 16k, by several programs in turns.

The official model and its own kernels for norms, shifts and loss, its attention call swapped; and
models/finetune's with the same weights, compiled and deterministic as `./run finetune` has it.
Float32 weights, bf16 autocast, no activation checkpointing, gradient clipping, fused AdamW. Three
heads of four forget, as in the other benchmarks; other weights are as initialised.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial

import torch

import inputs
import official
import calls

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3]))
from models.convert.canonical_config import OFFICIAL_TYPE, parse_config  # noqa: E402
from models.finetune import model as finetune  # noqa: E402
from models.finetune.optimization import make_optimizer, set_arithmetic  # noqa: E402

TOKENS, TURNS = 16384, 10


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer,
         compute_loss: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Trains once and returns the loss."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = compute_loss()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def make_steps(ids: torch.Tensor) -> dict[tuple[str, str], Callable[[], torch.Tensor]]:
    """Training steps by implementation and bound."""
    their = official.new_model().train()
    modeling = importlib.import_module(official.PACKAGE + "modeling_forgetting_transformer")
    ops = {"ours": calls.our_op(), "official": modeling.forgetting_attention}
    config = parse_config({"model_type": OFFICIAL_TYPE, **official.CONFIG}, None)
    with torch.device("cuda"):
        our = finetune.FoxModel(config).train()
    our.load_state_dict(their.state_dict())
    our.set_options(finetune.AttentionOptions(inputs.LOG_TOLERANCE, deterministic=True))
    set_arithmetic(fast=False)
    our.compile_parts()
    # The learning rate is so small that all steps have nearly the same weights.
    of_their, of_our = (make_optimizer(model, 1e-8, 0.1) for model in (their, our))
    text, labels = ids[:, :-1], ids[:, 1:].contiguous()

    def their_step(impl: str, acp: str) -> torch.Tensor:
        set_arithmetic(fast=True)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True  # the default
        modeling.forgetting_attention = ops[impl]
        official.use_bound(their, acp)
        return step(their, of_their, lambda: their(text, labels=labels).loss.mean())

    def our_step() -> torch.Tensor:
        set_arithmetic(fast=False)
        return step(our, of_our, lambda: our(text, labels))

    return {("finetune", "paper"): our_step, **{(impl, acp): partial(their_step, impl, acp)
                                                for impl in ops for acp in ("paper", "off")}}


def main() -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # as finetune's; read once
    arguments, results = inputs.start()
    if not inputs.use_official(arguments.official_repo):
        return
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, official.edited_copy(arguments.official_repo, folder))
        steps = make_steps(torch.randint(0, 50000, (1, TOKENS + 1), device="cuda"))
        losses = {run: call().item() for run, call in steps.items()}  # compiles and allocates
        turns = [{run: inputs.wall_seconds(call, 1, 0) for run, call in steps.items()}
                 for _ in range(TURNS)]
    for (impl, acp), loss in losses.items():
        seconds = [turn[impl, acp] for turn in turns]
        results.row(bench="training_step", impl=impl, acp=acp, tokens=TOKENS, batch_size=1,
                    loss=loss, seconds=statistics.median(seconds), least=min(seconds),
                    most=max(seconds))


if __name__ == "__main__":
    main()
