#!/usr/bin/env python3
"""Tests of programs for another processor, run by an emulator: the tokens of the demo model are
this machine's, and the demo shows what it shows here.

    emulated_test.py BIN NATIVE_BIN EMULATOR     folders of programs
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from fox_server import MODEL, ROOT, demo

BIN, NATIVE = (pathlib.Path(argument) for argument in sys.argv[1:3])
EMULATOR = sys.argv[3]
IDS = json.loads((ROOT / "tests/golden/dev_books_a/expected.json").read_text())["input_ids"]
# An emulator computes some five tokens a second: a prompt of one page and a half, and answers that
# fill the second; of the demo's prompt these characters.
PROMPT_TOKENS, NEW_TOKENS, PROMPT_CHARACTERS = 96, 32, 900
# Formats of weights and pages. With --plain-gemm a product's rows and sums have one order.
FORMATS: tuple[tuple[str, ...], ...] = (
    ("--dtype", "f64"), ("--dtype", "f32"), ("--dtype", "bf16"), ("--quantization", "q8"),
    ("--quantization", "q4"), ("--dtype", "bf16", "--kv-cache-dtype", "fp8"))


class EmulatedTest(unittest.TestCase):
    """A folder with the emulated programs, as scripts that call the emulator."""

    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.programs = self.folder / "bin"
        self.programs.mkdir()
        for name in ("fox-server", "fox-cli", "fox-eval"):
            script = self.programs / name
            script.write_text(f'#!/bin/sh\nexec {EMULATOR} "{BIN / name}" "$@"\n')
            script.chmod(0o755)

    def greedy(self, programs: pathlib.Path, *flags: str) -> list[int]:
        """The most likely tokens after a text."""
        ids = self.folder / "ids.json"
        ids.write_text(json.dumps(IDS[:PROMPT_TOKENS]))
        ran = subprocess.run(
            [programs / "fox-eval", "greedy", "--model", MODEL, "--ids", ids, "--plain-gemm",
             "--new", str(NEW_TOKENS), *flags], capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        tokens: list[int] = json.loads(ran.stdout)
        return tokens

    def test_tokens_are_this_machine_s(self) -> None:
        for flags in FORMATS:
            with self.subTest(flags):
                tokens = self.greedy(NATIVE, *flags)
                self.assertEqual(len(tokens), NEW_TOKENS)
                self.assertEqual(self.greedy(self.programs, *flags), tokens)

    def test_demo(self) -> None:
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        (model / "prompt_long.txt").write_text(
            (MODEL / "prompt_long.txt").read_text()[:PROMPT_CHARACTERS])
        rows, here = (demo.demonstrate(programs, model, ["--device", "cpu"], 16)
                      for programs in (self.programs, NATIVE))
        for row, native in zip(rows, here, strict=True):
            with self.subTest(row.setting):
                self.assertEqual((row.setting, row.prompt_tokens, row.new_tokens),
                                 (native.setting, native.prompt_tokens, native.new_tokens))
                self.assertEqual(row.evicted_pages > 0, row.setting != "off")
                self.assertLessEqual(row.largest_log_mass, row.log_tolerance)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
