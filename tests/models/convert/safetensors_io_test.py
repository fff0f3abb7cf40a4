"""Tests models/convert/safetensors_io.py: malformed files are refused, written files are exact."""

from __future__ import annotations

import json
import struct
import tempfile
import unittest
from pathlib import Path
from typing import Any

from checkpoint_case import load

from models.convert.refusal import Refusal
from models.convert.safetensors_io import SafetensorsWriter, read_safetensors


def entry(begin: Any, end: Any, dtype: Any = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


class SafetensorsTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = Path(scratch.name) / "model.safetensors"

    def assert_refused(self, header: Any, size: int, reason: str) -> None:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        self.path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
        with self.assertRaisesRegex(Refusal, reason):
            read_safetensors(self.path)

    def test_gaps_overlaps_and_sizes(self) -> None:
        self.assert_refused({"a": entry(0, 8), "b": entry(12, 20)}, 20, "gap or overlap.* b")
        self.assert_refused({"a": entry(0, 8), "b": entry(4, 12)}, 12, "gap or overlap.* b")
        self.assert_refused({"a": entry(0, 8)}, 9, "describes")
        self.assert_refused({"a": entry(0, 8)}, 7, "describes")
        self.assert_refused({"a": entry(0, 4)}, 4, "tensor a: 4 bytes do not fit F32")
        self.assert_refused({"a": entry(8, 0)}, 8, "tensor a")

    def test_malformed_entries(self) -> None:
        self.assert_refused({"a": entry(0, 8, dtype="F8_E4M3")}, 8, "tensor a: dtype F8_E4M3")
        for bad in (entry(0, 8, dtype=1), entry(0, 8, shape=(-2,)), entry(0, 8, shape=(2.0,)),
                    entry(0, 8, shape=None), entry("0", 8), [], None, {"dtype": "F32"}):
            self.assert_refused({"a": bad}, 8, "entry a is malformed")

    def test_malformed_headers(self) -> None:
        self.assert_refused(b"[1]", 0, "not a JSON object")
        self.assert_refused(b"{\xff}", 0, "not valid JSON")
        self.assert_refused(b"[" * 100000, 0, "not valid JSON")
        self.assert_refused(b'{"a":1,"a":2}', 0, "key a stands there twice")
        for blob in (b"", b"\x02", struct.pack("<Q", 1 << 60) + b"{}", b"version https://git-lfs"):
            with self.subTest(blob=blob):
                self.path.write_bytes(blob)
                with self.assertRaisesRegex(Refusal, "not a safetensors file|git-lfs"):
                    read_safetensors(self.path)

    def test_written_file(self) -> None:
        """The header fills up to 8 bytes; close() insists on all announced bytes."""
        writer = SafetensorsWriter(self.path, [("a", "BF16", (2, 1)), ("bcd", "F32", (1,))])
        writer.write(b"\x01\x02\x03\x04")
        with self.assertRaises(RuntimeError):
            writer.close()
        writer.write(b"\x05\x06\x07\x08")
        writer.close()
        self.assertEqual(struct.unpack("<Q", self.path.read_bytes()[:8])[0] % 8, 0)
        got = load(self.path)
        self.assertEqual(got["a"], ("BF16", (2, 1), b"\x01\x02\x03\x04"))
        self.assertEqual(got["bcd"], ("F32", (1,), b"\x05\x06\x07\x08"))
