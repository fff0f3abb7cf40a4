#!/usr/bin/env python3
"""A training step of the 760M Pro on one sequence of 16k, by several programs in turns.

The official model and its own kernels for norms, shifts and loss, its attention call swapped; and
models/finetune's with the same weights, compiled and deterministic as `./run finetune` has it.
Float32 weights, bf16 autocast, no activation checkpointing, gradient clipping, fused AdamW.
Weights are freshly initialised except for the forget gates: biases such that three heads of four
forget, as in the other benchmarks.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial

import torch

import inputs
import official
import calls

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "models/finetune"))
import model as finetune  # noqa: E402
from canonical_config import OFFICIAL_TYPE, parse_config  # noqa: E402
from optimization import make_optimizer, set_arithmetic  # noqa: E402

TOKENS, TURNS = 16384, 10
# What trains, under which bound.
RUNS = (("ours", "paper"), ("official", "paper"), ("finetune", "paper"), ("ours", "off"),
        ("official", "off"))
Loss = Callable[[], torch.Tensor]


def step(optimizer: torch.optim.Optimizer, compute_loss: Loss, as_finetune: bool) -> torch.Tensor:
    """Trains once and returns the loss."""
    set_arithmetic(fast=not as_finetune)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = not as_finetune
    optimizer.zero_grad(set_to_none=True)  # also of a step that failed
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = compute_loss()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups
                                    for p in group["params"]], 1.0)
    optimizer.step()
    return loss.detach()


def losses(ids: torch.Tensor) -> Callable[[str, str], tuple[torch.nn.Module, Loss]]:
    """The model and the loss of a run."""
    their = official.new_model().train()
    modeling = importlib.import_module(official.PACKAGE + "modeling_forgetting_transformer")
    official_op, labels = modeling.forgetting_attention, ids[:, 1:].contiguous()
    config = parse_config({"model_type": OFFICIAL_TYPE, **official.CONFIG}, None)
    with torch.device("cuda"):
        our = finetune.FoxModel(config).train()
    our.load_state_dict(their.state_dict())
    our.set_options(finetune.AttentionOptions(inputs.LOG_TOLERANCE, deterministic=True))
    set_arithmetic(fast=False)
    our.compile_parts()

    def their_loss(impl: str, acp: str) -> torch.Tensor:
        modeling.forgetting_attention = official_op if impl == "official" else calls.our_op()
        official.use_bound(their, acp)
        return their(ids[:, :-1], labels=labels).loss.mean()

    return lambda impl, acp: ((our, lambda: our(ids[:, :-1], labels)) if impl == "finetune"
                              else (their, partial(their_loss, impl, acp)))


def measure(results: inputs.Results, folder: str) -> None:
    """First loss and seconds of every run; `folder` is that of the official copy."""
    sys.path.insert(0, folder)
    loss_of = losses(torch.randint(0, 50000, (1, TOKENS + 1), device="cuda"))
    # So small a rate that every step meets the same weights.
    optimizer_of = cache(lambda model: make_optimizer(model, 1e-8, 0.1))
    rows, seconds = {}, {run: [] for run in RUNS}
    for turn in range(1 + TURNS):
        for run in RUNS:
            model, compute_loss = loss_of(*run)
            call = partial(step, optimizer_of(model), compute_loss, run[0] == "finetune")
            if turn == 0:  # compiles and allocates
                rows[run] = dict(bench="training_step", impl=run[0], acp=run[1], tokens=TOKENS,
                                 batch_size=1, loss=call().item())
            else:
                seconds[run].append(inputs.wall_seconds(call, 1, 0))
    for run, row in rows.items():
        results.row(**row, seconds=statistics.median(seconds[run]), least=min(seconds[run]),
                    most=max(seconds[run]))


def main() -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # as finetune's; read once
    arguments, results = inputs.start()
    if not inputs.use_official(arguments.official_repo):
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(results, official.edited_copy(arguments.official_repo, folder))


if __name__ == "__main__":
    main()
