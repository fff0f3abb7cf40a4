#!/usr/bin/env python3
"""A training step of the 760M Pro on one sequence of 16k, in turns by several programs.

The official model and its own kernels for norms, shifts and loss, its attention call swapped; and
the model of models/finetune with the same weights, compiled and deterministic as `./run finetune`
has it. Float32 weights, bf16 autocast, no activation checkpointing, gradient clipping, fused AdamW.
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
from typing import Any

import torch

import inputs
import official
import calls

TOKENS, TURNS = 16384, 9
# What trains, under which bound.
RUNS = (("ours", "paper"), ("official", "paper"), ("finetune", "paper"), ("ours", "certified"),
        ("official", "off"), ("ours", "off"))
Step = Callable[[], torch.Tensor]


def certified_op(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    """Our op as the model calls it, the certified bound in place of the paper's."""
    return calls.our_op()(*tensors, **{**options, **calls.bound_options("certified", None)})


def make_step(model: torch.nn.Module, compute_loss: Step) -> Step:
    """A step that returns its loss; so small a rate that every step meets the same weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-8, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)  # also of a step that failed
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compute_loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def official_steps(model: torch.nn.Module, ids: torch.Tensor) -> Callable[[str, str], Step]:
    """Steps of the official model by implementation and bound of the attention call."""
    modeling = importlib.import_module(official.PACKAGE + "modeling_forgetting_transformer")
    official_op = modeling.forgetting_attention
    labels = ids[:, 1:].contiguous()
    step = make_step(model, lambda: model(ids[:, :-1], labels=labels).loss.mean())

    def under(impl: str, acp: str) -> Step:
        def swapped() -> torch.Tensor:
            modeling.forgetting_attention = (
                official_op if impl == "official" else
                certified_op if acp == "certified" else calls.our_op())
            official.use_bound(model, "off" if acp == "off" else "paper")
            return step()

        return swapped

    return under


def finetune_step(weights: dict[str, torch.Tensor], ids: torch.Tensor) -> Step:
    """A step of models/finetune's model with these weights, as its train.py takes it."""
    finetune, optimization, config = (
        importlib.import_module(name) for name in ("model", "optimization", "canonical_config"))
    raw = {"model_type": config.OFFICIAL_TYPE, **official.CONFIG}
    with torch.device("cuda"):
        model = finetune.FoxModel(config.parse_config(raw, None)).train()
    model.load_state_dict(weights)
    model.set_options(finetune.AttentionOptions(inputs.LOG_TOLERANCE, "paper", True))
    model.compile_parts()
    step = make_step(model, lambda: model(ids[:, :-1], ids[:, 1:]))

    def as_trained() -> torch.Tensor:
        optimization.set_arithmetic(fast=False)
        try:
            return step()
        finally:  # PyTorch's defaults, for the official model
            torch.use_deterministic_algorithms(False)
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True

    return as_trained


def measure(results: inputs.Results, folder: str) -> None:
    """First loss and seconds of every run; `folder` is that of the official copy."""
    sys.path.insert(0, folder)
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "models/finetune"))
    ids = torch.randint(0, 50000, (1, TOKENS + 1), device="cuda")
    model = official.new_model().train()
    under = official_steps(model, ids)
    steps: dict[tuple[str, str], tuple[dict[str, Any], Step]] = {}
    for impl, acp in RUNS:
        row = dict(bench="training_step", impl=impl, acp=acp, tokens=TOKENS, batch_size=1)
        try:
            step = (finetune_step(model.state_dict(), ids) if impl == "finetune"
                    else under(impl, acp))
            steps[impl, acp] = {**row, "loss": step().item()}, step
        except Exception as error:  # pylint: disable=broad-except
            results.row(**row, error=f"{type(error).__name__}: {error}"[:300])
    seconds = {run: [] for run in steps}
    for _ in range(1 + TURNS):
        for run, (_, step) in steps.items():
            seconds[run].append(inputs.wall_seconds(step, 1, 0))
    for run, (row, _) in steps.items():
        of_turns = sorted(seconds[run][1:])  # the first one allocates
        results.row(**row, seconds=statistics.median(of_turns), least=of_turns[0],
                    most=of_turns[-1])


def main() -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # as finetune's; read once
    arguments, results = inputs.start()
    if not inputs.use_official(arguments.official_repo):
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(results, official.edited_copy(arguments.official_repo, folder))


if __name__ == "__main__":
    main()
