#!/usr/bin/env python3
"""Writes tests/golden/transformers: tiny random models of the classes of transformers that load,
and what transformers 5 answers in float64 on the CPU.

Its code computes norms, softmax and RoPE in float32, whatever the model's type. While a model runs
here, torch.float32 is float64, so that the same code computes all in float64.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).resolve().parent / "transformers"
HEADS, HEAD_DIM, VOCAB, TOKENS, KEPT_ROWS = 3, 16, 64, 150, 16
SIZES = {"vocab_size": VOCAB, "intermediate_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": HEADS, "max_position_embeddings": 512}
# What a class needs besides; a head of Mistral and Qwen3 is not hidden_size / heads.
CLASSES: dict[str, dict[str, Any]] = {
    "Llama": {"hidden_size": HEADS * HEAD_DIM},
    "Mistral": {"hidden_size": 32, "head_dim": HEAD_DIM, "sliding_window": None},
    "Qwen2": {"hidden_size": HEADS * HEAD_DIM},
    "Qwen3": {"hidden_size": 32, "head_dim": HEAD_DIM},
}
# Over 150 positions, llama3 keeps some of the 8 frequencies, mixes one, and divides the others.
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
}
# Class, kv heads, tied embeddings, scaling.
CASES = [("Llama", 3, False, "default"), ("Llama", 1, True, "linear"),
         ("Llama", 1, False, "llama3"), ("Mistral", 1, False, "default"),
         ("Qwen2", 3, True, "llama3"), ("Qwen2", 1, False, "linear"),
         ("Qwen3", 1, True, "default"), ("Qwen3", 3, False, "llama3")]


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights in bf16 with which attention looks at few keys and every parameter matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 2:
                gain = 3 if "q_proj" in name else 1
                weight.copy_(noise if "embed" in name else gain * noise / weight.shape[1] ** 0.5)
            else:
                weight.copy_(0.5 * noise + (1 if "norm" in name else 0))


def make_checkpoint(folder: pathlib.Path, case: tuple[str, int, bool, str], seed: int) -> None:
    name, kv_heads, tied, scaling = case
    config = getattr(transformers, name + "Config")(
        **SIZES, **CLASSES[name], num_key_value_heads=kv_heads, tie_word_embeddings=tied,
        rope_parameters={"rope_theta": 10000.0, **SCALINGS[scaling]})
    model = getattr(transformers, name + "ForCausalLM")(config)
    randomize(model, seed)
    shards = name == "Qwen3" and tied
    model.bfloat16().save_pretrained(folder, max_shard_size="30KB" if shards else "1GB")
    (folder / "generation_config.json").unlink()
    if scaling == "linear":  # as transformers 4 wrote it
        written = json.loads((folder / "config.json").read_text())
        del written["rope_parameters"]
        written.update(rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0})
        (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")


def answer(folder: pathlib.Path, seed: int) -> None:
    """expected.json and expected.safetensors of the checkpoint in `folder`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (TOKENS,), generator=generator)
    narrow = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
        with torch.no_grad():
            logits = model(ids[None]).logits[0, -KEPT_ROWS:].contiguous()
    finally:
        torch.float32, torch.float, torch.Tensor.float = narrow
    assert logits.dtype == torch.float64
    save_file({"logits": logits}, folder / "expected.safetensors")
    expected = {"input_ids": ids.tolist(), "logits": f"last {KEPT_ROWS} positions",
                "transformers": transformers.__version__}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def make(folder: pathlib.Path, case: tuple[str, int, bool, str], seed: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    make_checkpoint(folder, case, seed)
    answer(folder, seed)


if __name__ == "__main__":
    for number, (class_name, kv, is_tied, rope) in enumerate(CASES):
        label = f"{class_name.lower()}_kv{kv}_{rope}{'_tied' if is_tied else ''}"
        make(FOLDER / label, (class_name, kv, is_tied, rope), number)
