"""Parameter groups and the schedule of the paper."""

from __future__ import annotations

import math
import tempfile
import unittest
from pathlib import Path

from toy_model import write_toy  # first: it skips without torch

from models.finetune.model_directory import load_model
from models.finetune.optimization import learning_rate, make_optimizer, warmup_steps


class OptimizationTest(unittest.TestCase):
    def test_what_decays(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            model = load_model(write_toy(Path(folder)), 0).model
        optimizer = make_optimizer(model, 1e-3, 0.1)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        decayed, free = ({names[id(p)] for p in group["params"]} for group in
                         optimizer.param_groups)
        self.assertEqual(decayed | free, set(names.values()))
        self.assertFalse(decayed & free)
        self.assertIn("model.embeddings.weight", decayed)
        self.assertIn("model.layers.0.attn.k_proj.shift_proj.weight", decayed)
        self.assertEqual({name.rsplit(".", 2)[-2] + "." + name.rsplit(".", 1)[-1] for name in free},
                         {"attn_norm.weight", "mlp_norm.weight", "norm.weight", "q_norm.weight",
                          "k_norm.weight", "output_norm.weight", "fgate_proj.bias"})
        self.assertEqual([group["weight_decay"] for group in optimizer.param_groups], [0.1, 0.0])
        self.assertEqual(optimizer.defaults["betas"], (0.9, 0.95))

    def test_learning_rate(self) -> None:
        rates = [learning_rate(step, 110, 10, 2.0) for step in range(111)]
        self.assertEqual(rates[:10], [2.0 * (step + 1) / 10 for step in range(10)])
        self.assertEqual(rates[10], 2.0)
        for step in range(10, 111):
            with self.subTest(step=step):
                self.assertAlmostEqual(rates[step], 1 + math.cos(math.pi * (step - 10) / 100))
        self.assertEqual(learning_rate(500, 110, 10, 2.0), 0.0)

    def test_a_short_training_reaches_its_peak(self) -> None:
        """With every length of warmup, the peak is reached within a tenth of the steps."""
        for total, peak in ((1, 1), (3, 1), (20, 2), (119, 11), (5000, 500), (50000, 1953)):
            with self.subTest(total=total, peak=peak):
                self.assertEqual(warmup_steps(1953, total), peak)
                self.assertEqual(learning_rate(peak - 1, total, 1953, 2.0), 2.0)
