"""Writes torch.save archives by hand, opcode by opcode: torch is not needed, and a test can write
every archive that an attacker could. The opcodes are of pickle protocol 2, which torch uses.
"""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

STORAGES = {"F64": "DoubleStorage", "F32": "FloatStorage", "F16": "HalfStorage",
            "BF16": "BFloat16Storage", "I64": "LongStorage"}
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}


class Global(NamedTuple):
    module: str
    name: str


class Call(NamedTuple):
    """function(*args), then __setstate__(state) unless that is None."""

    function: Any
    args: tuple[Any, ...]
    state: Any = None


class New(NamedTuple):
    """kind.__new__(kind, *args), then __setstate__(state)."""

    kind: Any
    args: tuple[Any, ...]
    state: Any = None


class Persistent(NamedTuple):
    pid: Any


class Raw(NamedTuple):
    opcodes: bytes


def _scalar(value: Any) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        data = value.to_bytes(9, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return b"X" + struct.pack("<I", len(data)) + data
    if isinstance(value, bytes):
        return b"B" + struct.pack("<I", len(value)) + value
    raise TypeError(type(value))


def encode(value: Any) -> bytes:
    """The opcodes that leave `value` on the stack."""
    if isinstance(value, Raw):
        return value.opcodes
    if isinstance(value, Global):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, (Call, New)):
        opcode = b"R" if isinstance(value, Call) else b"\x81"
        state = b"" if value.state is None else encode(value.state) + b"b"
        return encode(value[0]) + encode(tuple(value.args)) + opcode + state
    if isinstance(value, Persistent):
        return encode(value.pid) + b"Q"
    if isinstance(value, (tuple, list)):
        return b"(" + b"".join(map(encode, value)) + (b"t" if isinstance(value, tuple) else b"l")
    if isinstance(value, dict):
        return b"}(" + b"".join(encode(k) + encode(v) for k, v in value.items()) + b"u"
    return _scalar(value)


@dataclass
class Archive:
    """Collects storages; tensor() gives what torch would pickle for a tensor."""

    storages: list[bytes] = field(default_factory=list)

    def storage(self, dtype: str, data: bytes) -> Persistent:
        self.storages.append(data)
        key, count = str(len(self.storages) - 1), len(data) // SIZES[dtype]
        return Persistent(("storage", Global("torch", STORAGES[dtype]), key, "cpu", count))

    def view(self, storage: Any, offset: int, shape: Any, strides: Any) -> Call:
        hooks = Call(Global("collections", "OrderedDict"), ())
        rebuild = Global("torch._utils", "_rebuild_tensor_v2")
        return Call(rebuild, (storage, offset, tuple(shape), tuple(strides), False, hooks))

    def tensor(self, dtype: str, shape: Any, data: bytes) -> Call:
        """A contiguous tensor with its own storage."""
        strides, step = [], 1
        for extent in reversed(tuple(shape)):
            strides.insert(0, step)
            step *= extent
        return self.view(self.storage(dtype, data), 0, shape, strides)

    def save(self, path: Path, content: Any, byteorder: bytes = b"little",
             compression: int = zipfile.ZIP_STORED) -> None:
        with zipfile.ZipFile(path, "w", compression) as file:
            file.writestr(f"{path.stem}/data.pkl", b"\x80\x02" + encode(content) + b".")
            file.writestr(f"{path.stem}/byteorder", byteorder)
            for key, data in enumerate(self.storages):
                file.writestr(f"{path.stem}/data/{key}", data)
            file.writestr(f"{path.stem}/version", b"3\n")
