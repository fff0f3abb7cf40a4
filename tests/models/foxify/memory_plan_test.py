"""The plan of memory against what steps allocate, and what is chosen and refused."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from toy_llama import write_toy  # first: it skips without torch

import torch
from toy_model import TEXT
from torch import Tensor, nn

from models.convert.refusal import Refusal
from models.finetune.process_group import ProcessGroup
from models.finetune.text_tokens import write_tokens
from models.foxify import foxify
from models.foxify import student as student_module
from models.foxify.base_model import Architecture
from models.foxify.memory_plan import Training

WINDOW = 1024
SIZES = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
         "num_attention_heads": 4, "head_dim": 64, "max_position_embeddings": WINDOW}


class _Attention(torch.autograd.Function):
    """An operator that keeps and allocates as the CUDA kernels do, and computes nothing."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, sinks: Tensor) -> Tensor:
        state = torch.empty(*q.shape[:3], 9, dtype=torch.uint8)
        ctx.save_for_backward(q, k, v, log_f, sinks, state)
        return torch.ones_like(q)

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor, ...]:
        torch.empty(d_out.shape, dtype=torch.float32)
        return tuple(torch.zeros_like(x) for x in ctx.saved_tensors[:5])


def attention(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, **flags: Tensor) -> Tensor:
    """forgetting_attention, without its arithmetic."""
    return _Attention.apply(q, k, v, log_f, flags["sinks"])


class Twin(ProcessGroup):
    """One of two processes, alone: it takes the other one's numbers to be its own."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 2

    def barrier(self) -> None:
        pass

    def least(self, value: float) -> float:
        return value

    def from_first(self, values: list) -> list:
        return values

    def mean(self, value: Tensor) -> Tensor:
        return value.clone()

    def same(self, model: nn.Module) -> None:
        pass

    def gather(self, part: Tensor) -> tuple[Tensor, mock.Mock]:
        return part.repeat(self.size), mock.Mock()


def architecture(layers: int, hidden: int, inner: int, vocab: int, heads: int, kv_heads: int,
                 head_dim: int, tied: bool = False) -> Architecture:
    return Architecture(layers, hidden, inner, vocab, heads, kv_heads, head_dim, 1e-5, None, 8192,
                        tied, False)


LLAMA_1B = architecture(16, 2048, 8192, 128256, 32, 8, 64, tied=True)
QWEN_8B = architecture(36, 4096, 12288, 151936, 32, 8, 128)
QWEN_32B = architecture(64, 5120, 25600, 151936, 64, 8, 128)


class MemoryPlanTest(unittest.TestCase):
    """Uncompiled, on the CPU."""

    def peak(self, group: ProcessGroup, *flags: str) -> tuple[int, Architecture]:
        """The most bytes that two steps, and what is made before them, have at once."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "a.txt").write_text(TEXT * 200)
        model = write_toy(folder / "toy", vocab_size=512, **SIZES)
        # Before the profiler starts, whose threads a forked encoder would not have.
        write_tokens([folder / "a.txt"], model, folder / "a.tokens", 1)
        args = foxify.parse_arguments([
            str(model), str(folder / "a.tokens"),
            "--out", str(folder / "out"), "--window", str(WINDOW), "--batch-tokens",
            str(4 * WINDOW), "--micro-batch", "2", "--steps", "2", "--workers", "1", *flags])
        args.precision = "bf16"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                                    profile_memory=True) as profile:
            trainer = foxify.Trainer(args, group)
            trainer.resume()
            for _ in range(2):
                trainer._one_step(0.1)
        profile.export_chrome_trace(str(folder / "trace.json"))
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        events = sorted((event["ts"], event["args"]["Total Allocated"], event["args"]["Bytes"])
                        for event in events if event.get("name") == "[memory]")
        _, first, size = events[0]
        return max(total for _, total, _ in events) - (first - size), trainer.architecture

    @mock.patch.object(student_module, "forgetting_attention", attention)
    def test_the_plan_is_within_a_tenth_of_the_peak(self) -> None:
        for rank, how, group in ((32, "--no-recompute", ProcessGroup()),
                                 (32, "--recompute", ProcessGroup()), (32, "--shard", Twin()),
                                 (0, "--recompute", ProcessGroup())):
            with self.subTest(rank=rank, how=how):
                peak, sizes = self.peak(group, "--rank", str(rank), how)
                training = Training(sizes, rank, WINDOW, 4 // group.size, group.size,
                                    compiled=False)
                plan = training.plan(2, how != "--no-recompute",
                                     group.size if how == "--shard" else 1)
                self.assertAlmostEqual(plan.bytes / peak, 1, delta=0.1, msg=f"{plan}, {peak}")

    def test_the_choice_is_the_fastest_that_fits(self) -> None:
        cases = (  # a model, GB free, --micro-batch, --recompute; windows a pass, recomputation
            (LLAMA_1B, 20, None, None, 1, False), (LLAMA_1B, 80, None, None, 4, False),
            (LLAMA_1B, 80, None, True, 8, True), (LLAMA_1B, 80, 3, None, 2, False),
            (QWEN_8B, 39.9, None, None, 2, True), (QWEN_8B, 139.8, None, None, 2, False),
            (QWEN_8B, 139.8, 8, None, 8, True), (QWEN_32B, 139.8, 1, None, 1, True))
        for sizes, free, micro, recompute, *expected in cases:
            with self.subTest(layers=sizes.layers, free=free, micro=micro, recompute=recompute):
                training = Training(sizes, 32, 8192, 8)
                plan = training.fitting(free * 1e9, micro, recompute)
                self.assertEqual([plan.micro, plan.recompute], expected)
                self.assertLess(plan.bytes, free * 1e9)

    def test_shards_are_chosen_where_nothing_else_fits(self) -> None:
        cases = (  # a model, GB free, GPUs, --shard; windows a pass, recomputation, shards
            (QWEN_8B, 84, 4, None, 1, False, 1), (QWEN_8B, 84, 4, True, 2, True, 4),
            (QWEN_8B, 24, 4, None, 2, True, 4), (QWEN_32B, 84, 4, None, 2, True, 4),
            (QWEN_32B, 139.8, 2, None, 4, True, 1), (QWEN_32B, 139.8, 2, True, 4, True, 2))
        for sizes, free, processes, shard, *expected in cases:
            with self.subTest(layers=sizes.layers, free=free, shard=shard):
                plan = Training(sizes, 32, 8192, 8 // processes, processes).fitting(
                    free * 1e9, shard=shard)
                self.assertEqual([plan.micro, plan.recompute, plan.shards], expected)

    def test_a_gpu_holds_its_share_of_the_layers_and_two_layers(self) -> None:
        """Qwen3-32B's card: 32.8e9 parameters, 31.2e9 of them in its 64 layers."""
        whole, sharded = (Training(QWEN_32B, 32, 8192, 2, 4).plan(1, True, shards).parts["model"]
                          for shards in (1, 4))
        self.assertAlmostEqual(whole / 1e9, 2 * 32.8, delta=0.1)
        self.assertAlmostEqual(sharded / 1e9, 2 * (1.6 + 31.2 * (1 / 4 + 2 / 64)), delta=0.2)

    def test_what_does_not_fit_is_refused_with_what_would(self) -> None:
        cases = (  # a model, its rank, GB free, --micro-batch, --recompute; advice
            (QWEN_8B, 32, 39.9, 8, None, "without --micro-batch it needs "),
            (QWEN_8B, 32, 39.9, None, False, "with --recompute it needs "),
            (QWEN_8B, 0, 80, None, None, "with --rank 32 it needs "),
            (QWEN_8B, 32, 24.5, None, None, "with --window 4096 it needs "),
            (QWEN_32B, 32, 39.9, None, None, "it needs a GPU with 88 GB free; on 4 such GPUs each"),
            (QWEN_32B, 32, 84, None, None, "on 2 such GPUs each needs 59.3 GB"))
        for sizes, rank, free, micro, recompute, advice in cases:
            with self.subTest(advice):
                with self.assertRaises(Refusal) as refused:
                    Training(sizes, rank, 8192, 8).fitting(free * 1e9, micro, recompute)
                self.assertIn(advice, str(refused.exception))
                self.assertIn(f"{free:.1f} GB are free", str(refused.exception))

    def test_a_run_plans_before_it_reads_weights(self) -> None:
        """On a GPU that a mock stands for."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        model = write_toy(folder / "toy")
        (model / "model.safetensors").write_bytes(b"")
        for group, flags, message in (
                (ProcessGroup(), (), "GB free$"), (Twin(), (), "sharded over 2 GPUs; it needs"),
                (Twin(), ("--no-shard",), "activations recomputed; it needs")):
            args = foxify.parse_arguments([str(model), str(model / "config.json"), "--out",
                                           str(folder / "out"), "--window", "512", *flags])
            args.precision, group.device = "bf16", torch.device("cuda", 0)
            with self.subTest(message), mock.patch.object(
                    foxify, "HAS_CUDA_KERNELS", True), mock.patch.object(
                    foxify, "free_bytes", return_value=1e6), self.assertRaisesRegex(
                    Refusal, f"too little memory: 0.0 GB are free.*{message}"):
                foxify.Trainer(args, group)


if __name__ == "__main__":
    unittest.main()
