"""Reading and writing of .safetensors files, without the safetensors package.

Grammar: u64 little-endian N; N bytes of JSON {name: {dtype, shape, data_offsets}, __metadata__};
then the data, which the offsets cover without gap or overlap. Read source_tensor.py next.
"""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

from models.convert.refusal import Refusal
from models.convert.source_tensor import MAX_DIMENSIONS, NUMPY_TYPES, SourceTensor, unsupported

MAX_HEADER_BYTES = 100 << 20
LFS_POINTER = b"version https://git-lfs"


def reject_pointer(path: Path, head: bytes) -> None:
    """Raises Refusal if `head`, the first bytes of `path`, begin a git-lfs pointer."""
    if head.startswith(LFS_POINTER):
        raise Refusal(f"{path.name}: is a git-lfs pointer, not the file itself (git lfs pull)")


def parse_json(text: bytes, what: str) -> dict[str, Any]:
    """Parses a JSON object; refuses duplicate keys and other top-level values."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise Refusal(f"{what}: key {key} stands there twice")
            result[key] = value
        return result

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{what}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise Refusal(f"{what}: not a JSON object")
    return value


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _tensor(name: str, entry: Any, path: Path, data_start: int) -> SourceTensor:
    """One header entry as a tensor; the span is checked against shape and dtype."""
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise Refusal(f"{path.name}: entry {name} is malformed") from None
    numbers = (*shape, begin, end)
    is_small = isinstance(dtype, str) and len(shape) <= MAX_DIMENSIONS
    if not is_small or any(type(n) is not int or n < 0 for n in numbers):
        raise Refusal(f"{path.name}: entry {name} is malformed")
    if dtype not in NUMPY_TYPES:
        raise unsupported(name, dtype)
    if end - begin != math.prod(shape) * NUMPY_TYPES[dtype].itemsize:
        raise Refusal(f"tensor {name}: {end - begin} bytes do not fit {dtype} {list(shape)}")
    strides = _contiguous_strides(shape)
    return SourceTensor(name, dtype, shape, strides, path, data_start + begin, end - begin)


def read_safetensors(path: Path) -> dict[str, SourceTensor]:
    """Describes the tensors of one file. Nothing but the header is read."""
    total = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(8)
        reject_pointer(path, head + file.read(32))
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, total - 8):
            raise Refusal(f"{path.name}: not a safetensors file (header length {length})")
        file.seek(8)
        header = parse_json(file.read(length), path.name)
    header.pop("__metadata__", None)
    start = 8 + length
    tensors = {name: _tensor(name, entry, path, start) for name, entry in header.items()}
    position = start
    for tensor in sorted(tensors.values(), key=lambda t: (t.data_offset, t.data_bytes)):
        if tensor.data_offset != position:
            raise Refusal(f"{path.name}: gap or overlap before tensor {tensor.name}")
        position += tensor.data_bytes
    if position != total:
        raise Refusal(f"{path.name}: {total} bytes, but the header describes {position}")
    return tensors


class SafetensorsWriter:
    """Writes one file: the header for all `entries` at once, then the data in that order."""

    def __init__(self, path: Path, entries: list[tuple[str, str, tuple[int, ...]]]) -> None:
        """`entries`: (name, dtype, shape) of every tensor, in the order write() will follow."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for name, dtype, shape in entries:
            end = position + math.prod(shape) * NUMPY_TYPES[dtype].itemsize
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
            position = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        assert len(text) % 8 == 0  # so wide elements of the data are aligned
        self._missing = position
        self._file: BinaryIO = open(path, "wb")
        self._file.write(struct.pack("<Q", len(text)) + text)

    def write(self, data: memoryview | bytes) -> None:
        """Appends the next bytes of the data."""
        self._missing -= self._file.write(data)
        assert self._missing >= 0

    def close(self) -> None:
        """Flushes to the disk. All announced bytes must have been written."""
        if self._missing != 0:
            raise RuntimeError(f"{self._missing} bytes were announced but not written")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Closes the file as it is."""
        self._file.close()
