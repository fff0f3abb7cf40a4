"""Shared by the peers: inputs as in fox-bench, timing, and results as lines of JSON.

Three heads of four forget (gate logits N(1, 1)), one remembers (N(9, 1)); queries and keys have
unit RMS. Every result is written the moment it exists, so a peer that runs out of time keeps what
it has measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

LOCAL_GATE, GLOBAL_GATE = 1.0, 9.0
LOG_TOLERANCE = -10.0


class Results:
    """Prints rows and appends them to a file."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        if path:
            open(path, "w", encoding="utf-8").close()

    def row(self, **values: Any) -> None:
        line = json.dumps(values)
        print(line, flush=True)
        if self._path:
            with open(self._path, "a", encoding="utf-8") as out:
                out.write(line + "\n")

    def attempt(self, measure: Callable[[], float], **values: Any) -> None:
        """Keeps the seconds that `measure` returns, or its error."""
        try:
            self.row(**values, seconds=measure())
        except Exception as error:  # pylint: disable=broad-except
            self.row(**values, error=f"{type(error).__name__}: {error}"[:300])
        gc.collect()
        torch.cuda.empty_cache()


def start(parser: argparse.ArgumentParser | None = None) -> tuple[argparse.Namespace, Results]:
    """Sets seeds, parses the common flags and those of `parser`, and opens the results."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--json", help="where to write rows, one a line")
    parser.add_argument("--official-repo", help="a checkout of zhixuan-lin/forgetting-transformer")
    parser.add_argument("--peer-packages", help="a folder to import fla-core or kvpress from")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    return arguments, Results(arguments.json)


def use_official(repo: str | None) -> bool:
    """Makes the official package importable; False when there is no checkout."""
    if not repo or not os.path.isdir(os.path.join(repo, "src", "forgetting_transformer")):
        print("no checkout of the official repository: --official-repo", file=sys.stderr)
        return False
    sys.path.insert(0, os.path.join(repo, "src"))
    return True


def gpu_seconds(call: Callable[[], Any], repeat_ms: int = 150) -> float:
    """Median seconds of one call, by events, the L2 cache flushed before each."""
    from triton.testing import do_bench
    return do_bench(call, warmup=25, rep=repeat_ms, return_mode="median") / 1e3


def wall_seconds(call: Callable[[], Any], runs: int, warm_ups: int = 2) -> float:
    """Median wall seconds of a call with many kernels, for which events would cost too much."""
    seconds = []
    for run in range(warm_ups + runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if run >= warm_ups:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def gate_bias(heads: int) -> torch.Tensor:
    bias = torch.full((heads,), LOCAL_GATE, device="cuda")
    bias[3::4] = GLOBAL_GATE
    return bias


def attention_inputs(batch: int, heads: int, head_dim: int,
                     tokens: int) -> tuple[torch.Tensor, ...]:
    """q, k and v [batch, heads, tokens, head_dim] bf16, log gates [batch, heads, tokens] f32."""
    q, k, v = torch.randn(3, batch, heads, tokens, head_dim, device="cuda")
    q, k = (x / x.pow(2).mean(-1, keepdim=True).sqrt() for x in (q, k))
    gates = torch.randn(batch, heads, tokens, device="cuda") + gate_bias(heads)[None, :, None]
    return *(x.to(torch.bfloat16) for x in (q, k, v)), F.logsigmoid(gates)


def paper_threshold(head_dim: int, tokens: int) -> float:
    """Decay below which the paper prunes attention_inputs."""
    return -(2 * max_logit(head_dim) + math.log(tokens)) + LOG_TOLERANCE


def max_logit(head_dim: int) -> float:
    """U of attention_inputs: queries and keys of norm sqrt(head_dim), scaled by its inverse."""
    return math.sqrt(head_dim)


# The FoX Pro of 760M parameters.
LAYERS, HIDDEN, HEADS, VOCABULARY = 24, 1536, 24, 50277
