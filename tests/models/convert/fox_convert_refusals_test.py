"""Tests what models/convert/fox_convert.py refuses, its exit statuses, and that a failed or
interrupted run leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import fox_convert
from checkpoint_case import Bits, CheckpointCase


class TensorRefusalTest(CheckpointCase):
    def check(self, name: str, changes: dict[str, Bits | None], reason: str) -> None:
        """Golden `name` with tensors replaced, added or (None) removed must be refused."""
        config, tensors = self.golden(name)
        changed = {key: bits for key, bits in (tensors | changes).items() if bits is not None}
        self.put(config, changed)
        self.assert_refused(reason)

    def test_missing_left_over_and_misshaped(self) -> None:
        some = Bits("BF16", (2,), bytes(4))
        self.check("tiny_rope", {"lm_head.weight": None}, "tensor lm_head.weight: missing")
        self.check(
            "tiny_rope",
            {"model.layers.2.attn_norm.weight": some},
            "tensor model.layers.2.attn_norm.weight: left over",
        )
        self.check("tiny_rope", {"model.layers.0.attn.q_proj.bias": some}, "q_proj.bias: left over")
        self.check(
            "tiny_rope",
            {"model.norm.weight": some},
            "tensor model.norm.weight: shape [2], expected [64]",
        )
        self.check(
            "tiny_fla",
            {"model.layers.1.mlp.up_proj.weight": None},
            "tensor model.layers.1.mlp.up_proj.weight: missing",
        )
        self.check("tiny_rope", {"module.lm_head.weight": some}, "lm_head.weight: present twice")

    def test_dtypes(self) -> None:
        self.check(
            "tiny_rope",
            {"model.norm.weight": Bits("I64", (64,), bytes(512))},
            "tensor model.norm.weight: dtype I64 is not supported",
        )
        self.check(
            "tiny_rope",
            {"model.norm.weight": Bits("F64", (64,), bytes(512))},
            "dtype F64 is not supported, use --dtype f32",
        )
        wide = Bits("F32", (96, 64), bytes(4 * 96 * 64))
        self.check(
            "tiny_fla",
            {"model.layers.0.mlp.up_proj.weight": wide},
            "tensor model.layers.0.mlp.gate_proj.weight: its parts have different dtypes",
        )

    def test_overflow(self) -> None:
        config, tensors = self.golden("tiny_rope")
        large = Bits("F32", (64,), bytes.fromhex("0000a047") * 64)  # 81920
        self.put(config, tensors | {"model.norm.weight": large})
        self.assert_refused(
            "tensor model.norm.weight: 64 finite values overflow F16", options=("--dtype", "f16")
        )

    def test_untied_head_of_a_tied_model(self) -> None:
        self.check(
            "tiny_norm_no_gate_tied",
            {"lm_head.weight": Bits("BF16", (128, 64), bytes(16384))},
            "tensor lm_head.weight: differs from the embeddings",
        )

    def test_attention_residuals(self) -> None:
        some = Bits("BF16", (64,), bytes(128))
        for name in ("model.layers.0.attn_res_proj.weight", "model.res_norm.weight"):
            self.check("tiny_fla", {name: some}, f"tensor {name}: attention residuals")


class ConfigRefusalTest(CheckpointCase):
    def check(self, name: str, changes: dict[str, Any], reason: str) -> None:
        """Golden `name` with configuration keys changed must be refused."""
        config, tensors = self.golden(name)
        self.put(config | changes, tensors)
        self.assert_refused(reason)

    def test_unsupported(self) -> None:
        for name, key, value in (
            ("tiny_fla", "window_size", 128),
            ("tiny_fla", "attnres_block_size", 4),
            ("tiny_fla", "hidden_act", "powlu"),
            ("tiny_fla", "use_rope", True),
            ("tiny_rope", "model_type", "llama"),
            ("tiny_rope", "model_type", None),
            ("tiny_rope", "ogate_act", "silu"),
            ("tiny_rope", "fgate_type", "input"),
            ("tiny_rope", "hidden_act", "gelu"),
            ("tiny_rope", "qkv_bias", True),
            ("tiny_rope", "quantization_config", {"bits": 4}),
            ("tiny_rope", "novel", 1),
            ("tiny_rope", "num_heads", 3),
            ("tiny_rope", "num_kv_heads", 3),
            ("tiny_rope", "hidden_size", "64"),
            ("tiny_rope", "hidden_size", True),
            ("tiny_rope", "num_hidden_layers", 0),
            ("tiny_rope", "norm_eps", "small"),
            ("tiny_rope", "norm_eps", float("nan")),
            ("tiny_rope", "use_rope", 1),
            ("tiny_rope", "eos_token_id", "x"),
            ("tiny_rope", "eos_token_id", [2, 128]),
            ("tiny_rope", "bos_token_id", -1),
            ("tiny_rope", "norm_eps", 0),
            ("tiny_rope", "log_pruning_tolerance", 1.5),
            ("tiny_rope", "hidden_act", ["swish"]),
            ("tiny_rope", "max_position_embeddings", -1),
        ):
            with self.subTest(key=key, value=value):
                self.check(name, {key: value}, f"config key {key}:")

    def test_ignored_key(self) -> None:
        config, tensors = self.golden("tiny_rope")
        self.put(config | {"novel": 1}, tensors)
        written = self.convert("--ignore-key", "novel")[0]
        self.assertNotIn("novel", written)

    def test_files(self) -> None:
        self.assert_refused("neither config.json nor config.yaml")
        (self.src / "config.json").write_text("{}")
        self.assert_refused("model.safetensors: missing")
        (self.src / "config.json").write_text("{")
        self.assert_refused("config.json: not valid JSON")


class CommandTest(CheckpointCase):
    def test_dry_run(self) -> None:
        self.put(*self.golden("tiny_fla"))
        status, out, _ = self.run_convert("--dry-run", dst=False)
        self.assertEqual(status, 0)
        self.assertIn("source: FLA layout, model.safetensors\n", out)
        self.assertIn("config: num_kv_heads = 2\n", out)
        self.assertIn(
            "tensor: model.layers.1.mlp.gate_proj.weight BF16 [192, 64] <- "
            "model.layers.1.mlp.gate_proj.weight BF16 + model.layers.1.mlp.up_proj.weight",
            out,
        )
        self.assertEqual([*self.scratch.iterdir()], [self.src])

    def test_usage(self) -> None:
        for options in (
            ("--dtype", "f8"),
            ("--max-shard-size", "0"),
            ("--max-shard-size", "x"),
            ("--verify-only", "--force"),
            ("--unknown",),
        ):
            self.assertEqual(self.run_convert(*options)[0], fox_convert.EXIT_USAGE)
        self.assertEqual(self.run_convert(dst=False)[0], fox_convert.EXIT_USAGE)
        self.assertEqual(self.run_convert("--version")[:2], (0, "fox_convert 0.1.0\n"))
        self.assertIn("examples:", self.run_convert("--help")[1])

    def test_destination(self) -> None:
        self.put(*self.golden("tiny_fla"))
        self.dst.mkdir()
        self.convert()
        status, _, err = self.run_convert()
        self.assertEqual((status, "exists (--force" in err), (1, True))
        (self.dst / "stale.txt").touch()
        self.convert("--force")
        self.assertFalse((self.dst / "stale.txt").exists())
        (self.dst / "photographs").mkdir()
        status, _, err = self.run_convert("--force")
        self.assertEqual((status, "no model directory" in err), (1, True))
        self.dst = self.src
        self.assertIn("same directory", self.run_convert("--force")[2])
        self.dst = self.scratch / "absent" / "dst"
        self.assertIn("not a directory", self.run_convert()[2])

    def test_full_disk(self) -> None:
        self.put(*self.golden("tiny_fla"))
        with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=1 << 20)):
            self.assert_refused("16 MiB needed, 1 MiB free")

    def test_a_failure_keeps_the_old_destination(self) -> None:
        self.put(*self.golden("tiny_fla"))
        before = self.convert()
        with mock.patch("output_directory.write_json", side_effect=OSError(28, "No space left")):
            status, _, err = self.run_convert("--force", "--dtype", "f32")
        self.assertEqual((status, "No space left" in err), (1, True))
        self.assertEqual(self.convert("--force"), before)
        self.assertEqual(sorted(path.name for path in self.scratch.iterdir()), ["dst", "src"])

    def test_interrupted_run_leaves_nothing(self) -> None:
        """SIGTERM while tensors are being written, in a process of its own."""
        self.put(*self.golden("tiny_fla"))
        slow = (
            "import sys, time; sys.path.insert(0, sys.argv.pop(1)); import fox_convert, "
            "output_directory as o; w = o._write_tensor; "
            "o._write_tensor = lambda *a: (time.sleep(0.2), w(*a)); "
            "sys.exit(fox_convert.main(sys.argv[1:]))"
        )
        folder = Path(fox_convert.__file__).parent
        command = [sys.executable, "-B", "-c", slow, folder, self.src, self.dst]
        process = subprocess.Popen(
            [*map(str, command)], stderr=subprocess.PIPE, text=True, env=os.environ
        )
        deadline = time.monotonic() + 30
        while not [*self.scratch.glob(".dst.*.partial/model.safetensors")]:
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=30)[1]
        self.assertEqual(process.returncode, 1)
        self.assertIn("interrupted, nothing was written", err)
        self.assertEqual([*self.scratch.iterdir()], [self.src])

    def test_written_config_is_plain_json(self) -> None:
        self.put(*self.golden("tiny_fla"))
        self.convert()
        text = (self.dst / "config.json").read_text()
        self.assertTrue(text.endswith("}\n"))
        self.assertEqual(json.loads(text)["model_type"], "forgetting_transformer-project_fox")
