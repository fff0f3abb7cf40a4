"""What seeds are written in: JSON and its variants, sections, protobuf messages by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

BETWEEN = b"\n%%\n"
Seeds = Iterator[tuple[str, bytes]]


def encoded(value: object) -> bytes:
    """Bytes as they are, text in UTF-8, all else as JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def table(entries: dict[str, object], first: bytes = b"") -> Seeds:
    """Each by its name, behind `first`."""
    for name, value in entries.items():
        yield name, first + encoded(value)


def changed(right: dict, changes: dict[str, tuple], first: bytes = b"") -> Seeds:
    """The right object with each value of each key, KEY_0 and so on."""
    for key, values in changes.items():
        for number, value in enumerate(values):
            yield f"{key}_{number}", first + encoded(dict(right, **{key: value}))


def sections(*parts: object, first: bytes = b"") -> bytes:
    """The files of one input."""
    return first + BETWEEN.join(map(encoded, parts))


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


def proto(fields: dict[int, object]) -> bytes:
    """A message: int is a varint, float is 32 bits, dict a message, list a repeated field."""
    out = b""
    for field, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int):
                out += varint(field << 3) + varint(value)
            elif isinstance(value, float):
                out += varint(field << 3 | 5) + struct.pack("<f", value)
            else:
                content = proto(value) if isinstance(value, dict) else encoded(value)
                out += varint(field << 3 | 2) + varint(len(content)) + content
    return out
