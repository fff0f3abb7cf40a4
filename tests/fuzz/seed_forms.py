"""The forms of seeds: JSON and its variants, sections, protobuf messages by hand."""

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


# Values that a key may not expect, or only just accepts.
HOSTILE = (None, True, -1, 0, 1, 1.5, 1e300, 1 << 31, 1 << 40, (1 << 64) - 1, "", "x", "a\0b", [],
           [1], ["x"], [-1], [[]], list(range(65)), {}, {"x": 1}, {"7": 1e39})


def hostile(right: dict, first: bytes = b"", **more: tuple) -> Seeds:
    """The object with each of its keys missing, hostile, or as `more` has it: KEY_0 and so on."""
    for key in dict(right, **more):
        yield f"{key}_none", first + encoded({k: v for k, v in right.items() if k != key})
        for number, value in enumerate((*HOSTILE, *more.get(key, ()))):
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
