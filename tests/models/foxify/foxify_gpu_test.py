#!/usr/bin/env python3
"""A training of a toy on a GPU: its passes as a graph, and launched one by one."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from toy_llama import write_toy  # first: it skips without torch

import numpy as np
import torch
from toy_model import TEXT

from models.finetune.attention import HAS_CUDA_KERNELS
from models.finetune.process_group import ProcessGroup
from models.finetune.progress import read_metrics
from models.foxify import foxify
from models.foxify.pass_graph import PassGraph

if not torch.cuda.is_available() or not HAS_CUDA_KERNELS:
    print("SKIPPED: no GPU, or fox_attention without its kernels (pip install ./kernels/torch)")
    sys.exit(77)


class PassGraphTest(unittest.TestCase):
    def test_it_computes_what_was_captured_from_new_inputs(self) -> None:
        weight = torch.randn(64, 64, device="cuda", requires_grad=True)
        factor = torch.ones((), device="cuda")
        inputs = torch.randint(-3, 4, (5, 8, 64), device="cuda").float()

        def work(x: torch.Tensor) -> torch.Tensor:
            loss = (x @ weight).square().mean() * factor
            loss.backward()
            return loss.detach()[None]

        def all_of(run: Any) -> list[torch.Tensor]:
            weight.grad = torch.zeros_like(weight)
            numbers = []
            for i, x in enumerate(inputs):
                factor.fill_(i + 1)
                numbers.append(run(x))
            return [torch.cat(numbers), weight.grad]

        expected = all_of(work)
        weight.grad = torch.zeros_like(weight)
        graph = PassGraph(work, inputs[0])
        self.assertEqual(weight.grad.abs().max().item(), 0, "capturing runs nothing")
        kept = weight.grad
        numbers = []
        for i, x in enumerate(inputs):
            factor.fill_(i + 1)
            numbers.append(graph(x))
        torch.testing.assert_close([torch.cat(numbers), kept], expected)


class FoxifyGpuTest(unittest.TestCase):
    def test_a_run_with_a_graph_is_the_run_without(self) -> None:
        """In bf16, compiled, two passes a step. Gradients differ by the order of atomic sums, which
        is less than one rounding to bf16, 2^-8, while the weights are alike."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        model = write_toy(folder / "toy", hidden_size=128, intermediate_size=256, head_dim=64,
                          num_attention_heads=2, num_key_value_heads=1)
        text = folder / "a.txt"
        text.write_text(TEXT * 60)
        losses = []
        for graphs in (True, False):
            out = folder / str(graphs)
            args = foxify.parse_arguments([
                str(model), str(text), "--out", str(out), "--window", "256", "--batch-tokens",
                "1024", "--micro-batch", "2", "--workers", "1", "--rank", "4", "--steps", "8"])
            args.precision = "bf16"
            run = foxify.Trainer(args, ProcessGroup())
            self.assertTrue(run.keeps_gradients, graphs)
            run.keeps_gradients = graphs
            run.resume()
            with mock.patch.object(foxify, "PassGraph", wraps=PassGraph) as captured:
                run.train()
            self.assertEqual(captured.call_count, int(graphs), graphs)
            losses.append([row["loss"] for row in read_metrics(out / "training/metrics.jsonl")])
        self.assertEqual(len(losses[0]), 8)
        np.testing.assert_allclose(*losses, rtol=2.0**-8)


if __name__ == "__main__":
    unittest.main()
