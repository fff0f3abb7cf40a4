"""SourceTensor: one tensor of a checkpoint file, described but not read.

Invariant: bytes are mapped only inside blocks(), one tensor at a time, so memory stays bounded by
the largest tensor of the model. Dtypes carry their safetensors names; bfloat16
has no numpy type and travels as uint16 bits (see rounding.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.convert.refusal import Refusal

# safetensors name -> the little-endian numpy type that holds its bits
NUMPY_TYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("u1"),
}

NOT_QUANTIZED = ("quantized weights are not supported: take the model's repository in bf16, or a "
                 "GGUF file")
BLOCK_BYTES = 16 << 20
MAX_DIMENSIONS = 8


def unsupported(name: str, dtype: str) -> Refusal:
    """The error of a tensor of integers or 8 bits, as formats of quantized weights have."""
    return Refusal(f"tensor {name}: dtype {dtype}: {NOT_QUANTIZED}")


@dataclass(frozen=True)
class SourceTensor:
    """A strided view of `path`: element (i, j, ..) lies at offset + itemsize * sum(i_k * stride_k).

    `data_bytes` bytes from `data_offset` on belong to the tensor's storage; check() proves that no
    element lies outside them.
    """

    name: str  # as the source file calls it
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    path: Path
    data_offset: int  # of the storage, in bytes
    data_bytes: int  # of the storage
    first_element: int = 0  # within the storage

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def check(self) -> None:
        """Raises Refusal unless every element lies within the storage."""
        if self.dtype not in NUMPY_TYPES:
            raise unsupported(self.name, self.dtype)
        dims_ok = len(self.shape) == len(self.strides) <= MAX_DIMENSIONS
        numbers = (*self.shape, *self.strides, self.first_element)
        if not dims_ok or any(type(n) is not int or n < 0 for n in numbers):
            raise Refusal(f"tensor {self.name}: shape, strides or offset are malformed")
        if self.size == 0:
            return
        steps = sum((n - 1) * s for n, s in zip(self.shape, self.strides))
        last = self.first_element + steps
        if (last + 1) * NUMPY_TYPES[self.dtype].itemsize > self.data_bytes:
            raise Refusal(f"tensor {self.name}: reaches beyond its storage")

    def _map(self) -> np.ndarray:
        """The tensor as a view of mapped memory, at least one-dimensional."""
        kind = NUMPY_TYPES[self.dtype]
        shape, strides = self.shape or (1,), self.strides or (1,)
        steps = sum((n - 1) * s for n, s in zip(shape, strides))
        start = self.data_offset + self.first_element * kind.itemsize
        # check() has refused other tensors.
        assert (self.first_element + steps + 1) * kind.itemsize <= self.data_bytes, self.name
        flat = np.memmap(self.path, dtype=kind, mode="r", offset=start, shape=(steps + 1,))
        byte_strides = tuple(s * kind.itemsize for s in strides)
        return np.lib.stride_tricks.as_strided(flat, shape, byte_strides, writeable=False)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields the elements in row-major order as flat arrays of at most BLOCK_BYTES or a row."""
        if self.size == 0:
            return
        view = self._map()
        row_bytes = max(1, math.prod(view.shape[1:]) * view.dtype.itemsize)
        rows = max(1, BLOCK_BYTES // row_bytes)
        for first in range(0, view.shape[0], rows):
            yield np.ascontiguousarray(view[first : first + rows]).reshape(-1)
