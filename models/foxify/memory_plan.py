"""Plans the GPU memory of a training from config.json alone, and chooses a plan that fits.

The plan adds up the allocations of student.py: memory_plan_test.py counts them on the CPU, and
tests/bench/foxify_scale_parts.py compares the plan with a GPU's peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from models.convert.refusal import Refusal
from models.foxify.base_model import PAGE, Architecture, rows_at_once
from models.foxify.layer_matrices import MATRICES

USABLE = 0.9  # share of the free memory; the rest is for libraries and gaps between allocations
GB = 10**9


class _PerToken(NamedTuple):
    """Bytes of one token in one layer: factors of its sizes, with elements of two bytes."""

    hidden: float
    inner: float
    q: float  # query heads times head size
    kv: float  # kv heads times head size
    heads: float

    def of(self, a: Architecture) -> float:
        """The bytes."""
        sizes = (a.hidden, a.inner, a.heads * a.head_dim, a.kv_heads * a.head_dim, a.heads)
        return sum(factor * size for factor, size in zip(self, sizes))


# Keys: True if the layers are compiled. Values: activations that a layer keeps for its backward
# pass; further buffers of that pass; bytes for each logit in memory at once (8 as compiled for a
# CPU).
_KEPT = {True: _PerToken(12, 6, 6, 8.5, 21), False: _PerToken(16, 14, 8, 13, 41)}
_BACKWARD = {True: _PerToken(2, 4, 0, 0, 0), False: _PerToken(4, 14, 0, 0, 0)}
_LOGIT = {True: 16, False: 35}
_INPUT = _PerToken(2, 0, 0, 0, 0)  # kept of a layer that is recomputed
# Hidden states of both models with their gradient; the norm behind the last layer, beside them.
_HIDDEN, _NORM = _PerToken(10, 0, 0, 0, 0), _PerToken(14, 0, 0, 0, 0)


@dataclass(frozen=True)
class Plan:
    """One choice, and its bytes by part."""

    micro: int  # windows a pass
    recompute: bool
    shards: int  # GPUs that share out the matrices of the base; 1: each has all
    parts: dict[str, float]

    @property
    def bytes(self) -> float:
        """The largest sum at any time."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / GB:.1f}" for name, size in self.parts.items())
        windows = f"{self.micro} windows" if self.micro > 1 else "1 window"
        how = ", activations recomputed" if self.recompute else ""
        if self.shards > 1:
            how += f", the base's layers sharded over {self.shards} GPUs"
        return f"{self.bytes / GB:.1f} GB ({parts}) for {windows} a pass{how}"


@dataclass(frozen=True)
class Training:
    """The model and the settings of a training, without the choice that a Plan makes."""

    architecture: Architecture
    rank: int
    window: int  # tokens
    share: int  # windows of a step in this process
    processes: int = 1
    element: int = 2  # bytes of the base's type
    compiled: bool = True

    def _weights(self) -> tuple[float, float]:
        """Numbers of the base's parameters, and of its matrices'."""
        a = self.architecture
        matrices = a.layers * sum(rows * columns for rows, columns in self._shapes())
        return matrices + a.vocab * a.hidden * (1 if a.tied else 2), matrices

    def _shapes(self) -> Iterator[tuple[int, int]]:
        for names in MATRICES.values():
            yield from (self.architecture.shape(name) for name in names)

    def _trained(self, passes: int, graph: bool) -> tuple[float, float]:
        """Bytes of what is trained: while activations are kept, and at the end of the backward
        pass, when all gradients exist. A `graph` keeps activations reserved and gradients to the
        end of the step, so there the first ones count all."""
        a, element = self.architecture, self.element
        if self.rank == 0:
            parameters = used = self._weights()[1]
            widest = max(rows * columns for rows, columns in self._shapes()) * 2 * a.layers
        else:
            parameters = a.layers * self.rank * sum(map(sum, self._shapes()))
            used = a.layers * self.rank * sum(
                a.shape(name)[1] + len(names) * a.shape(name)[0]
                for names in MATRICES.values() for name in names)
            widest = 0
        parameters += a.layers * a.kv_heads * a.hidden
        state = 12 * parameters + element * used
        gathered = 8 * parameters if self.processes > 1 else 0
        at_end = state + 4 * parameters + max(element * (used + widest), gathered)
        kept = 4 * parameters if passes > 1 or graph else 0
        return state + kept + (gathered if graph else 0), at_end

    def _model(self, shards: int) -> float:
        """Bytes of the base: the layers' part, two layers gathered, the embeddings whole."""
        whole, matrices = self._weights()
        if shards > 1:
            whole += matrices / shards + 2 * matrices / self.architecture.layers - matrices
        return whole * self.element

    def plan(self, micro: int, recompute: bool, shards: int = 1) -> Plan:
        """The memory of passes of `micro` windows."""
        a, tokens, pages = self.architecture, micro * self.window, self.window // PAGE

        def of(factors: _PerToken) -> float:
            return factors.of(a) * self.element / 2 * tokens

        layer, largest = of(_KEPT[self.compiled]), of(_BACKWARD[self.compiled])
        activations = a.layers * (of(_INPUT) if recompute else layer) + of(_HIDDEN)
        logits = _LOGIT[self.compiled] * min(tokens, rows_at_once(a.vocab)) * a.vocab
        pruning = 4 * a.layers * micro * pages**2 * (3 * a.heads + 8 * a.kv_heads)
        largest = max(largest + recompute * layer, of(_NORM), logits, pruning)
        trained, at_end = self._trained(self.share // micro, self.compiled and not recompute)
        parts = {"model": self._model(shards), "trained": trained,
                 "activations": activations, "one layer or the loss": largest}
        if at_end > sum(list(parts.values())[1:]):
            parts = {"model": parts["model"], "trained, with gradients": at_end}
        return Plan(micro, recompute, shards, parts)

    def choices(self, micro: int | None = None, recompute: bool | None = None,
                shard: bool | None = None) -> list[Plan]:
        """The plans that flags leave open, fastest first: without recomputation, with it, then
        with shards, each with most windows first. A step consists of whole passes.

        Shards always recompute, or a pass would keep all layers that it gathers. They take no
        gradients, so they need an adapter.
        """
        windows = [n for n in range(micro or self.share, 0, -1) if self.share % n == 0]
        ways = [(False, 1), (True, 1)]
        if self.processes > 1 and self.rank > 0:
            ways.append((True, self.processes))
        return [self.plan(n, again, shards) for again, shards in ways
                if recompute in (None, again) and shard in (None, shards > 1)
                for n in (windows[:1] if micro else windows)]

    def _advice(self, free: float, micro: int | None, recompute: bool | None,
                shard: bool | None) -> str:
        """The first change of a flag that fits into `free` bytes, and the fewest GPUs that do."""
        changes: list[tuple[str, Training, int | None, bool | None, bool | None]] = [
            ("without --micro-batch", self, None, recompute, shard),
            ("with --recompute", self, micro, True, shard),
            ("with --recompute and without --micro-batch", self, None, True, shard),
            ("without --no-shard", self, micro, None, None),
            *((f"with --rank {rank}", replace(self, rank=rank), None, None, None)
              for rank in (32, 8) if rank < self.rank or self.rank == 0),
            *((f"with --window {tokens}", replace(self, window=tokens), None, None, None)
              for tokens in (4096, 2048, 1024) if tokens < self.window)]
        least = min(plan.bytes for plan in self.choices())
        advice = [f"it needs a GPU with {least / USABLE / GB:.0f} GB free"]
        for words, training, windows, again, sharded in changes:
            fits = [plan for plan in training.choices(windows, again, sharded)
                    if plan.bytes <= free]
            if fits:
                advice = [f"{words} it needs {fits[0]}"]
                break
        step = self.share * self.processes
        for count in (n for n in range(self.processes + 1, step + 1) if step % n == 0):
            training = replace(self, processes=count, share=step // count)
            fits = [plan for plan in training.choices() if plan.bytes <= free]
            if fits:
                return "; ".join([*advice, f"on {count} such GPUs each needs {fits[0]}"])
        return advice[0]

    def fitting(self, free: float, micro: int | None = None, recompute: bool | None = None,
                shard: bool | None = None) -> Plan:
        """The fastest plan that fits into `free` bytes. Refusal if none does.

        Flags that are None leave their choice open.
        """
        plans = self.choices(micro, recompute, shard)
        for plan in plans:
            if plan.bytes <= USABLE * free:
                return plan
        raise Refusal(f"too little memory: {free / GB:.1f} GB are free, a tenth of which is spare, "
                      f"but training needs {plans[-1]}; "
                      + self._advice(USABLE * free, micro, recompute, shard))


def free_bytes() -> float:
    """Free memory of the current GPU, within this process's limit."""
    free, total = torch.cuda.mem_get_info()
    return min(free, torch.cuda.get_per_process_memory_fraction() * total)
