"""The matrices of a base model's layers: whole, or in each process an equal part of every layer.

A process that has parts gathers a layer's matrices before they are used, the next layer's in the
meantime. torch's fully_shard does so for the parameters of modules with one order of use; these
have no gradient, and a step goes through them three times, in two models and both directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.finetune.process_group import ProcessGroup

if TYPE_CHECKING:
    from models.foxify.base_model import Architecture

# The matrices of a layer; the matrices in one row are multiplied at once.
MATRICES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}

Take = Callable[[str, tuple[int, int], slice], Tensor]


class LayerMatrices:
    """A layer is one row of numbers, its matrices one behind the other; a part is a piece of it."""

    def __init__(self, architecture: Architecture, device: torch.device, dtype: torch.dtype,
                 group: ProcessGroup | None) -> None:
        """Allocates the parts of the group's processes, or without one the whole."""
        a, self._group = architecture, group
        self._shapes = {name: a.shape(name) for names in MATRICES.values() for name in names}
        self._joined = {kind: (sum(a.shape(name)[0] for name in names), a.shape(names[0])[1])
                        for kind, names in MATRICES.items()}
        count, index = (1, 0) if group is None else (group.size, group.rank)
        # The last part may reach beyond the layer's end.
        share = math.ceil(sum(map(math.prod, self._shapes.values())) / count)
        self._first = index * share
        self._own = torch.empty(a.layers, share, device=device, dtype=dtype)
        self._whole = [self._split(row) for row in self._own] if group is None else []
        self._gathered: dict[int, tuple[Tensor, Any]] = {}  # by layer: the two near the last one
        self._last = 0

    def fill(self, take: Take) -> None:
        """Reads this process's part: `take` returns a slice of the elements of a matrix by its
        name and shape. One matrix at a time is in memory beside the part."""
        for n, own in enumerate(self._own):
            start = -self._first
            for name, shape in self._shapes.items():
                end = start + math.prod(shape)
                low, high = (min(max(edge, 0), len(own)) for edge in (start, end))
                part = slice(low - start, high - start) if low < high else slice(0)
                own[low:high].copy_(take(f"model.layers.{n}.{name}.weight", shape, part))
                start = end

    def _split(self, rows: Tensor) -> dict[str, Tensor]:
        """Views of the matrices [.., rows, columns] by kind; `rows` [.., numbers] are whole."""
        sizes = [math.prod(shape) for shape in self._joined.values()]
        parts = rows[..., : sum(sizes)].split(sizes, dim=-1)
        return {kind: part.unflatten(-1, shape)
                for (kind, shape), part in zip(self._joined.items(), parts)}

    def stacked(self) -> dict[str, Tensor]:
        """The matrices of all layers [L, rows, columns] by kind, which must be whole."""
        assert self._group is None
        return self._split(self._own)

    def of(self, n: int) -> dict[str, Tensor]:
        """The matrices [rows, columns] of layer n by kind. Collective if there are parts.

        The next layer is expected on the same side as this one is of the last; another one waits.
        """
        if self._group is None:
            return self._whole[n]
        downwards = n == self._last - 1 or n == self._last > 0
        near, self._last = (n, n - 1 if downwards else n + 1), n
        self._gathered = {m: both for m, both in self._gathered.items() if m in near}
        for m in near:
            if m not in self._gathered and 0 <= m < len(self._own):
                self._gathered[m] = self._group.gather(self._own[m])
        whole, work = self._gathered[n]
        work.wait()
        return self._split(whole)
