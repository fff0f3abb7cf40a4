"""CheckpointCase: a test with a scratch directory, the golden checkpoints and a plain reader.

The reader and writer of .safetensors here are independent of the tested ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import tempfile
import unittest
from pathlib import Path
from typing import Any, NamedTuple

from torch_archive import Archive

from models.convert import fox_convert

GOLDEN = Path(os.environ["FOX_SOURCE_DIR"]) / "tests" / "golden"


class Bits(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def load(path: Path) -> dict[str, Bits]:
    blob = path.read_bytes()
    start = 8 + struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8:start])
    header.pop("__metadata__", None)
    result = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = blob[start + begin : start + end]
        result[name] = Bits(entry["dtype"], tuple(entry["shape"]), data)
    return result


def save(path: Path, tensors: dict[str, Bits]) -> None:
    header, position = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        span = [position, position + len(data)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": span}
        position = span[1]
    text = json.dumps(header).encode()
    body = b"".join(bits.data for bits in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


class CheckpointCase(unittest.TestCase):
    """Gives each test a scratch directory, `src` in it, and the path `dst` beside it."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        self.src, self.dst = self.scratch / "src", self.scratch / "dst"
        self.src.mkdir()

    def golden(self, name: str) -> tuple[dict[str, Any], dict[str, Bits]]:
        config = json.loads((GOLDEN / name / "config.json").read_text())
        return config, load(GOLDEN / name / "model.safetensors")

    def put(self, config: dict[str, Any], tensors: dict[str, Bits]) -> None:
        """Makes `src` a HuggingFace-style directory."""
        (self.src / "config.json").write_text(json.dumps(config))
        save(self.src / "model.safetensors", tensors)

    def put_bin(self, config: dict[str, Any], tensors: dict[str, Bits]) -> None:
        (self.src / "config.json").write_text(json.dumps(config))
        archive = Archive()
        state = {name: archive.tensor(*bits) for name, bits in tensors.items()}
        archive.save(self.src / "pytorch_model.bin", state)

    def run_convert(self, *options: Any, dst: bool = True) -> tuple[int, str, str]:
        """Runs the command; returns exit status, stdout and stderr."""
        out, err = io.StringIO(), io.StringIO()
        arguments = [str(self.src), *([str(self.dst)] if dst else []), *map(str, options)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = fox_convert.main(arguments)
            except SystemExit as stop:
                status = int(stop.code or 0)
        return status, out.getvalue(), err.getvalue()

    def convert(self, *options: Any) -> tuple[dict[str, Any], dict[str, Bits]]:
        """Runs the command, which must succeed; returns the written tensors."""
        status, _, err = self.run_convert("--verify", *options)
        self.assertEqual(status, 0, err)
        self.assertEqual([p.name for p in self.scratch.glob(".*")], [])
        config = json.loads((self.dst / "config.json").read_text())
        tensors: dict[str, Bits] = {}
        for path in self.dst.glob("*.safetensors"):
            tensors |= load(path)
        return config, tensors

    def assert_refused(self, *reasons: str, options: tuple[Any, ...] = ()) -> None:
        """Expects a refusal in one line with all `reasons`, and nothing left behind."""
        status, _, err = self.run_convert(*options)
        self.assertEqual(status, 1, err)
        lines = [line for line in err.splitlines() if line.startswith("fox_convert: ")]
        self.assertEqual(len(lines), 1, err)
        for reason in reasons:
            self.assertIn(reason, lines[0])
        self.assertFalse(self.dst.exists())
        self.assertEqual([p.name for p in self.scratch.glob(".*")], [])
