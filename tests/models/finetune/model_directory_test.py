"""An exported model loads again, bit for bit, and has the converter's layout."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from toy_model import ROOT, write_toy  # first: it skips without torch

import torch
from safetensors.torch import load_file

from models.finetune.model_directory import Refusal, export_model, load_model

GOLDEN = ROOT / "tests" / "golden"


class ExportTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_golden_checkpoints_round_trip(self) -> None:
        for source in sorted(path.parent for path in GOLDEN.glob("tiny_*/config.json")):
            with self.subTest(source.name):
                out = self.folder / source.name
                loaded = load_model(source, 0)
                export_model(loaded.model, source, out, "bf16", 1 << 40)
                again = load_model(out, 0)
                self.assertEqual(again.config, loaded.config)
                torch.testing.assert_close(again.model.state_dict(), loaded.model.state_dict(),
                                           rtol=0, atol=0)
                config = json.loads((out / "config.json").read_text())
                self.assertEqual(config["model_type"], "forgetting_transformer-project_fox")

    def test_shards_are_small_and_stale_ones_go(self) -> None:
        model = load_model(write_toy(self.folder / "toy"), 3).model
        out = self.folder / "out"
        files = export_model(model, self.folder / "toy", out, "f32", 20_000)
        shards = sorted(out.glob("model-*.safetensors"))
        self.assertGreater(len(shards), 2)
        for shard in shards:
            with self.subTest(shard=shard):
                tensors = load_file(shard)
                size = sum(tensor.numel() * 4 for tensor in tensors.values())
                self.assertTrue(size <= 20_000 or len(tensors) == 1)
        self.assertIn(out / "vocab.json", files)
        torch.testing.assert_close(load_model(out, 0).model.state_dict(), model.state_dict(),
                                   rtol=0, atol=0)
        (out / "fox_gain.json").write_text("{}")
        export_model(model, self.folder / "toy", out, "bf16", 1 << 40)
        self.assertFalse((out / "fox_gain.json").exists())
        self.assertEqual([path.name for path in sorted(out.glob("model*"))], ["model.safetensors"])
        self.assertEqual(list(out.glob(".export.*")), [])
        self.assertEqual(load_file(out / "model.safetensors")["model.norm.weight"].dtype,
                         torch.bfloat16)

    def test_nan_is_not_exported(self) -> None:
        model = load_model(write_toy(self.folder / "toy"), 0).model
        with torch.no_grad():
            model.model.norm.weight[3] = float("nan")
        with self.assertRaisesRegex(Refusal, "NaN"):
            export_model(model, self.folder, self.folder / "out", "bf16", 1 << 40)
        self.assertEqual(list((self.folder / "out").iterdir()), [])


class FromConfigTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_the_seed_decides(self) -> None:
        config = write_toy(self.folder)
        first, same, other = (load_model(config, seed).model.lm_head.weight for seed in (1, 1, 2))
        self.assertTrue(torch.equal(first, same))
        self.assertFalse(torch.equal(first, other))
        self.assertAlmostEqual(first.std().item(), 0.02, delta=0.002)

    def test_constant_gates_start_as_the_paper_says(self) -> None:
        config = write_toy(self.folder, fgate_type="bias_only", fgate_bias_init=True,
                           decay_time_min=2, decay_time_max=128, num_heads=4)
        bias = load_model(config, 0).model.model.layers[1].attn.fgate_bias
        times = -1 / torch.nn.functional.logsigmoid(bias.double())
        self.assertTrue(torch.allclose(times, torch.tensor([2.0, 8, 32, 128]).double(), rtol=1e-4))

    def test_unknown_keys_are_refused(self) -> None:
        with self.assertRaisesRegex(Refusal, "rotary_fraction"):
            load_model(write_toy(self.folder, rotary_fraction=0.5), 0)
