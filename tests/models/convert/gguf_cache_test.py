"""Tests models/convert/gguf_cache.py: what a start of a GGUF file makes and finds."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import gguf
import numpy as np
from checkpoint_case import load
from gguf_source_test import MATRICES, NAMES, GgufCase

from models.convert import gguf_cache


class Said(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


class CacheTest(GgufCase):
    def setUp(self) -> None:
        super().setUp()
        self.cache = self.scratch / "xdg" / "foxserve" / "gguf"
        environment = {"XDG_CACHE_HOME": str(self.scratch / "xdg")}
        self.enterContext(mock.patch.dict(os.environ, environment))
        self.stored = self.tensors("llama")
        self.write("llama", self.keys("llama"), self.stored)

    def call(self, path: Path | None = None) -> Said:
        """Runs the command in this process."""
        out, err = io.StringIO(), io.StringIO()
        arguments = ["gguf_cache", str(path or self.src)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), \
                mock.patch.object(sys, "argv", arguments):
            code = gguf_cache.main()
        return Said(code, out.getvalue().rstrip(), err.getvalue())

    def touch(self, seconds: int) -> None:
        """Makes the file one of another time."""
        os.utime(self.src, (seconds, seconds))

    def models(self) -> list[Path]:
        """All directories that look whole."""
        return [path.parent for path in self.cache.glob("*/*/config.json")]

    def test_converts_once(self) -> None:
        first = self.call()
        self.assertEqual(first.code, 0, first)
        self.assertIn("==> Converting model.gguf, once", first.err)
        model = Path(first.out)
        self.assertEqual((model.name, model.parents[1]), ("model", self.cache))
        written = load(model / "model.safetensors")
        for name, wide in self.expected(self.stored).items():
            with self.subTest(name):
                halves = np.frombuffer(wide, "<f4").astype("<f2")
                self.assertEqual(written[name], ("F16", written[name].shape, halves.tobytes()))
        self.assertEqual(self.call(), Said(0, first.out, ""))

    def test_blocks_come_through_with_their_codes(self) -> None:
        """What the file has in Q8_0 and Q4_0, and what quantize makes of the model's tensors."""
        written = load(Path(self.call().out) / "model.safetensors")
        stems: dict[str, list[str]] = {"Q8_0": [], "Q4_0": []}
        for name, (data, kind) in self.stored.items():
            if kind not in stems:
                continue
            stems[kind].append(name)
            _, layer, stem, _ = name.split(".")
            tensor = written[f"model.layers.{layer}.{NAMES[stem]}.weight"]
            values = np.frombuffer(tensor.data, "<f2").astype("f").reshape(tensor.shape)
            again = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
            blocks = [rows.reshape(-1, {"Q8_0": 34, "Q4_0": 18}[kind]) for rows in (data, again)]
            np.testing.assert_array_equal(blocks[0][:, 2:], blocks[1][:, 2:], name)
            scales = [rows[:, :2].copy().view("<u2").astype(int) for rows in blocks]
            self.assertLessEqual(np.max(np.abs(scales[0] - scales[1])), 1, name)  # last places
        self.assertTrue(all(stems.values()), stems)

    def test_the_server_is_told_which_blocks_all_layers_have(self) -> None:
        for kind, told in (("Q8_0", "q8"), ("Q4_0", "q4"), ("Q4_1", None), ("F16", None)):
            with self.subTest(kind):
                self.stored = self.tensors("llama")
                for name in self.stored:
                    if name.startswith("blk.") and (stem := name.split(".")[2]) in MATRICES:
                        self.stored[name] = self.quantised(MATRICES[stem], kind)
                self.write("llama", self.keys("llama"), self.stored)
                said = self.call()
                self.assertEqual(said.code, 0, said)
                config = json.loads((Path(said.out) / "config.json").read_text())
                self.assertEqual(config.get("weight_blocks"), told)

    def test_the_server_is_told_of_no_mixture_of_blocks(self) -> None:
        config = json.loads((Path(self.call().out) / "config.json").read_text())
        self.assertNotIn("weight_blocks", config)

    def test_a_file_without_blocks_becomes_bf16(self) -> None:
        self.stored = {name: (gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]), "F32")
                       for name, (data, kind) in self.stored.items()}
        self.write("llama", self.keys("llama"), self.stored)
        written = load(Path(self.call().out) / "model.safetensors")
        self.assertEqual({tensor.dtype for tensor in written.values()}, {"BF16"})

    def test_another_content_is_another_model(self) -> None:
        first = self.call()
        old = self.src.stat()
        content = bytearray(self.src.read_bytes())
        content[-1] ^= 1
        self.src.write_bytes(content)
        os.utime(self.src, ns=(old.st_atime_ns, old.st_mtime_ns))
        second = self.call()
        self.touch(1)
        third = self.call()
        self.assertEqual(len({first.out, second.out, third.out}), 3)
        self.assertEqual(len(self.models()), 3)

    def test_the_models_used_last_stay(self) -> None:
        kept: list[str] = []
        for seconds in range(gguf_cache.MOST + 1):
            self.touch(seconds)
            kept.append(self.call().out)
            self.touch(0)
            self.assertEqual(self.call().out, kept[0], seconds)  # a use, no conversion
        self.assertEqual({str(path) for path in self.models()}, {kept[0], *kept[2:]})

    def test_an_interrupted_conversion_is_not_taken_for_a_model(self) -> None:
        model = Path(self.call().out)
        whole = sorted(path.name for path in model.iterdir())
        model.rename(model.with_name(".model.0.partial"))
        (model.with_name(".model.0.partial") / "model.safetensors").unlink()
        self.assertEqual(Path(self.call().out), model)
        self.assertEqual(sorted(path.name for path in model.iterdir()), whole)
        self.assertEqual(list(model.parent.iterdir()), [model])

    def test_two_starts_at_once_convert_once(self) -> None:
        command = [sys.executable, "-B", "-m", "models.convert.gguf_cache", str(self.src)]
        starts = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True) for _ in range(3)]
        said = [start.communicate(timeout=120) for start in starts]
        self.assertEqual([start.returncode for start in starts], [0, 0, 0], said)
        self.assertEqual(len({out for out, _ in said}), 1)
        self.assertEqual(sum("==> Converting" in err for _, err in said), 1, said)

    def test_refusals(self) -> None:
        other = self.scratch / "text.gguf"
        other.write_text("GGML")
        absent = self.scratch / "absent.gguf"
        for path, line in ((other, "neither a model directory nor a GGUF file"),
                           (absent, "No such file or directory")):
            with self.subTest(line):
                self.assertEqual(self.call(path), Said(1, "", f"gguf: {path}: {line}\n"))
        self.write("mamba", self.keys("mamba"), self.stored)
        refused = self.call()
        self.assertEqual((refused.code, refused.out), (1, ""))
        self.assertIn("fox_convert: architecture 'mamba': not supported", refused.err)
        self.assertEqual([path.name for path in self.cache.iterdir()], ["lock"])

    def test_a_full_disk_is_one_line_and_leaves_nothing(self) -> None:
        full = shutil.disk_usage(self.scratch)._replace(free=0)
        with mock.patch("shutil.disk_usage", return_value=full):
            refused = self.call()
        self.assertEqual((refused.code, refused.out), (1, ""))
        self.assertRegex(refused.err, r"\A==> .*\nfox_convert: .* MiB needed, 0 MiB free\n\Z")
        with mock.patch("models.convert.output_directory.write_file",
                        side_effect=OSError(28, "No space left on device", "config.json")):
            refused = self.call()
        self.assertEqual(refused.code, 1)
        self.assertIn("fox_convert: config.json: No space left on device\n", refused.err)
        self.assertEqual([path.name for path in self.cache.iterdir()], ["lock"])

    def test_where_it_is(self) -> None:
        for base, expected in (("/x", "/x"), ("", "/u/.cache"), ("x", "/u/.cache")):
            with self.subTest(base), mock.patch.dict(
                    os.environ, {"XDG_CACHE_HOME": base, "HOME": "/u"}):
                self.assertEqual(gguf_cache.cache_folder(), Path(expected, "foxserve", "gguf"))
