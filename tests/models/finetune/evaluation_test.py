"""Losses equal their definition, samples repeat, shares are right for known gates."""

from __future__ import annotations

import math
import tempfile
import unittest
from pathlib import Path

from toy_model import TEXT, write_toy  # first: it skips without torch

import numpy as np
import torch

from models.finetune.evaluation import pruned_shares, sample, shares_table, text_loss
from models.finetune.model import AttentionOptions
from models.finetune.model_directory import load_model
from models.finetune.text_tokens import TextTokenizer


class EvaluationTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.model = load_model(write_toy(self.folder), 5).model.train()

    def test_text_loss(self) -> None:
        tokens = np.random.default_rng(0).integers(0, 257, 1000).astype(np.uint16)
        loss = text_loss(self.model, tokens, 1.25, 50, 4, torch.float32)
        self.assertEqual((loss.windows, loss.window, loss.spacing), (4, 50, 250))
        nats = []
        with torch.no_grad():
            for begin in (0, 250, 500, 750):
                ids = torch.from_numpy(tokens[begin : begin + 50].astype(np.int64))[None]
                log_p = self.model.double()(ids).log_softmax(-1)[0, :-1]
                nats += (-log_p.gather(1, ids[0, 1:, None])).flatten().tolist()
        self.assertEqual(len(nats), 4 * 49)
        # Sums of float32 logarithms near 5.5, a window at a time.
        self.assertAlmostEqual(loss.nats_per_token, np.mean(nats), delta=5.5 * 2**-24 * 49)
        self.assertAlmostEqual(loss.bits_per_byte, loss.nats_per_token / math.log(2) / 1.25)
        self.assertTrue(self.model.training)

    def test_short_texts(self) -> None:
        tokens = np.arange(70, dtype=np.uint16)
        loss = text_loss(self.model, tokens, 1, 50, 16, torch.float32)
        self.assertEqual((loss.windows, loss.spacing), (2, 50))

    def test_samples_repeat_and_leave_random_states_alone(self) -> None:
        tokenizer = TextTokenizer(self.folder)
        torch.manual_seed(1)
        before = torch.get_rng_state()
        shown: list[int] = []
        first = sample(self.model, tokenizer, TEXT, 12, torch.float32, shown.append)
        self.assertEqual(shown[:3], [0, 1, 2])
        self.assertTrue(torch.equal(torch.get_rng_state(), before))
        self.assertTrue(first.startswith(TEXT))
        self.assertGreater(len(first), len(TEXT))
        self.assertEqual(sample(self.model, tokenizer, TEXT, 12, torch.float32), first)

    def test_pruned_shares(self) -> None:
        ids = np.arange(1024) % 257
        with torch.no_grad():
            for index, layer in enumerate(self.model.model.layers):
                layer.attn.fgate_proj.weight.zero_()
                layer.attn.fgate_proj.bias.copy_(torch.tensor([-5.0, 60.0]))
        self.model.set_options(AttentionOptions(-10.0))
        shares = pruned_shares(self.model, ids, torch.float32)
        self.assertEqual(tuple(shares.shape), (2, 2))
        self.assertGreater(shares[:, 0].min().item(), 0.7)
        self.assertEqual(shares[:, 1].tolist(), [0, 0])
        table = shares_table(shares)
        self.assertIn("0 to 20%: 2", table)
        self.assertIn(f"mean {50 * shares[:, 0].mean().item():.1f}%", table)
