"""Tests the refusals and exit statuses of models/convert/fox_convert.py, and that a failed or
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

from checkpoint_case import Bits, CheckpointCase

from models.convert import fox_convert

TWO = Bits("BF16", (2,), bytes(4))
RESIDUAL = Bits("BF16", (64,), bytes(128))
LAYER = "model.layers.1."
# A golden checkpoint; tensors that are replaced, added or (None) removed in it; the message.
TENSORS: tuple[tuple[str, dict[str, Bits | None], str], ...] = (
    ("tiny_rope", {"lm_head.weight": None}, "tensor lm_head.weight: missing"),
    ("tiny_rope", {"model.layers.2.attn_norm.weight": TWO}, "layers.2.attn_norm.weight: left over"),
    ("tiny_rope", {LAYER + "attn.q_proj.bias": TWO}, "q_proj.bias: left over"),
    ("tiny_rope", {"model.norm.weight": TWO}, "model.norm.weight: shape [2], expected [64]"),
    ("tiny_rope", {"module.lm_head.weight": TWO}, "lm_head.weight: present twice"),
    ("tiny_fla", {LAYER + "mlp.up_proj.weight": None}, LAYER + "mlp.up_proj.weight: missing"),
    ("tiny_rope", {"model.norm.weight": Bits("I64", (64,), bytes(512))},
     "tensor model.norm.weight: dtype I64: quantized weights are not supported: take the model's"),
    ("tiny_rope", {"model.norm.weight": Bits("F8_E4M3", (64,), bytes(64))},
     "tensor model.norm.weight: dtype F8_E4M3: quantized weights are not supported"),
    ("tiny_fla", {LAYER + "mlp.up_proj.weight": Bits("F32", (96, 64), bytes(4 * 96 * 64))},
     f"tensor {LAYER}mlp.gate_proj.weight: its parts have different dtypes"),
    ("tiny_fla", {LAYER + "attn_res_proj.weight": RESIDUAL}, "attention residuals"),
    ("tiny_fla", {"model.res_norm.weight": RESIDUAL}, "model.res_norm.weight: attention residuals"),
)
# Refused values of configuration keys of tiny_fla, and of tiny_rope.
FLA_KEYS = (("window_size", 128), ("attnres_block_size", 4), ("hidden_act", "powlu"),
            ("use_rope", True))
ROPE_KEYS = (("model_type", "gpt2"), ("model_type", None), ("ogate_act", "silu"),
             ("fgate_type", "input"), ("hidden_act", "gelu"), ("qkv_bias", True),
             ("quantization_config", {"bits": 4}), ("novel", 1), ("num_heads", 3),
             ("num_kv_heads", 3), ("hidden_size", "64"), ("hidden_size", True),
             ("num_hidden_layers", 0), ("norm_eps", "small"), ("norm_eps", float("nan")),
             ("norm_eps", 0), ("use_rope", 1), ("eos_token_id", "x"), ("eos_token_id", [2, 1.5]),
             ("eos_token_id", [2] * 65), ("bos_token_id", True), ("rope_base", 0),
             ("vocab_size", 1 << 25), ("norm_eps", 1e-31),
             ("log_pruning_tolerance", 1.5), ("hidden_act", ["swish"]),
             ("max_position_embeddings", -1))


class RefusalTest(CheckpointCase):
    def check(self, name: str, keys: dict[str, Any], tensors: dict[str, Bits | None],
              reason: str) -> None:
        """Golden `name` with these changes must be refused."""
        config, right = self.golden(name)
        self.put(config | keys, {k: bits for k, bits in (right | tensors).items() if bits})
        self.assert_refused(reason)

    def test_tensors(self) -> None:
        for name, tensors, reason in TENSORS:
            with self.subTest(tensors=tensors.keys()):
                self.check(name, {}, tensors, reason)

    def test_keys(self) -> None:
        for name, keys in (("tiny_fla", FLA_KEYS), ("tiny_rope", ROPE_KEYS)):
            for key, value in keys:
                with self.subTest(key=key, value=value):
                    self.check(name, {key: value}, {}, f"config key {key}:")

    def test_types_and_overflow(self) -> None:
        config, tensors = self.golden("tiny_rope")
        large = Bits("F32", (64,), bytes.fromhex("0000a047") * 64)  # 81920
        self.put(config, tensors | {"model.norm.weight": large})
        self.assert_refused("tensor model.norm.weight: 64 finite values overflow F16",
                            options=("--dtype", "f16"))
        self.put(config, tensors | {"model.norm.weight": Bits("F64", (64,), bytes(512))})
        self.assert_refused("dtype F64 does not become bf16", options=("--dtype", "bf16"))
        self.assertEqual(self.convert()[1]["model.norm.weight"], ("F32", (64,), bytes(256)))

    def test_ignored_key(self) -> None:
        config, tensors = self.golden("tiny_rope")
        self.put(config | {"novel": 1}, tensors)
        self.assertNotIn("novel", self.convert("--ignore-key", "novel")[0])

    def test_keys_of_transformers(self) -> None:
        for key, value, reason in (
            ("quantization_config", {"bits": 4}, "quantized weights are not supported"),
            ("transformers_weights", "alt.safetensors", "name that file model.safetensors"),
        ):
            with self.subTest(key):
                config, tensors = self.golden("transformers/qwen2_kv1_linear")
                self.put(config | {key: value}, tensors)
                self.assert_refused(f"config key {key}:", reason, options=("--ignore-key", key))

    def test_an_adapter_alone_or_beside_a_model(self) -> None:
        (self.src / "adapter_config.json").write_text("{}")
        reason = "adapter_config.json: SRC has an adapter"
        self.assert_refused(reason)
        self.put(*self.golden("tiny_rope"))
        self.assert_refused(reason)

    def test_files(self) -> None:
        self.assert_refused("neither config.json nor config.yaml")
        (self.src / "config.json").write_text("{}")
        self.assert_refused("model.safetensors: missing")
        (self.src / "config.json").write_text("{")
        self.assert_refused("config.json: not valid JSON")


class CommandTest(CheckpointCase):
    def setUp(self) -> None:
        super().setUp()
        self.put(*self.golden("tiny_fla"))

    def test_dry_run(self) -> None:
        status, out, _ = self.run_convert("--dry-run", dst=False)
        self.assertEqual(status, 0)
        self.assertIn("source: FLA layout, model.safetensors\n", out)
        self.assertIn("config: num_kv_heads = 2\n", out)
        self.assertIn(f"tensor: {LAYER}mlp.gate_proj.weight BF16 [192, 64] <- "
                      f"{LAYER}mlp.gate_proj.weight BF16 + {LAYER}mlp.up_proj.weight", out)
        self.assertEqual([*self.scratch.iterdir()], [self.src])

    def test_usage(self) -> None:
        for options in (("--dtype", "f8"), ("--max-shard-size", "0"), ("--max-shard-size", "x"),
                        ("--verify-only", "--force"), ("--unknown",)):
            with self.subTest(options=options):
                self.assertEqual(self.run_convert(*options)[0], fox_convert.EXIT_USAGE)
        self.assertEqual(self.run_convert(dst=False)[0], fox_convert.EXIT_USAGE)
        self.assertEqual(self.run_convert("--version")[:2], (0, "fox_convert 0.2.0\n"))
        self.assertIn("examples:", self.run_convert("--help")[1])

    def test_destination(self) -> None:
        self.dst.mkdir()
        self.convert()
        text = (self.dst / "config.json").read_text()
        self.assertEqual(json.loads(text)["model_type"], "forgetting_transformer-project_fox")
        self.assertTrue(text.endswith("}\n"))
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
        with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=1 << 20)):
            self.assert_refused("16 MiB needed, 1 MiB free")

    def test_a_failure_keeps_the_old_destination(self) -> None:
        before = self.convert()
        with mock.patch("models.convert.output_directory.write_file",
                        side_effect=OSError(28, "No space left")):
            status, _, err = self.run_convert("--force", "--dtype", "f32")
        self.assertEqual((status, "No space left" in err), (1, True))
        self.assertEqual(self.convert("--force"), before)
        self.assertEqual(sorted(path.name for path in self.scratch.iterdir()), ["dst", "src"])

    def test_interrupted_run_leaves_nothing(self) -> None:
        """SIGTERM while tensors are being written, in a process of its own."""
        slow = ("import sys, time; from models.convert import fox_convert, output_directory as o; "
                "w = o._write_tensor; o._write_tensor = lambda *a: (time.sleep(0.2), w(*a)); "
                "sys.exit(fox_convert.main(sys.argv[1:]))")
        command = [sys.executable, "-B", "-c", slow, self.src, self.dst]
        process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True,
                                   env=os.environ)
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
