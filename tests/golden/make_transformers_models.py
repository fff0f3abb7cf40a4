#!/usr/bin/env python3
"""Writes tests/golden/transformers: tiny random models of the classes of transformers that load,
and what transformers 5 answers in float64 on the CPU; some of them with forget gates, sinks and
norm caps, whose attention is written here.

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
from safetensors.torch import load_file, save_file

FOLDER = pathlib.Path(__file__).resolve().parent / "transformers"
HEADS, HEAD_DIM, VOCAB, TOKENS, KEPT_ROWS = 3, 16, 64, 150, 16
SIZES = {"vocab_size": VOCAB, "intermediate_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": HEADS, "max_position_embeddings": 512}
# Config keys of each class; in Mistral and Qwen3 head_dim is not hidden_size / heads.
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
    # Keeps one frequency, mixes two; attention factor 1.139.
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}
# Class, kv heads, tied embeddings, scaling, forget gates.
CASES = [("Llama", 3, False, "default", False), ("Llama", 1, True, "linear", False),
         ("Llama", 1, False, "llama3", False), ("Mistral", 1, False, "default", False),
         ("Qwen2", 3, True, "llama3", False), ("Qwen2", 1, False, "linear", False),
         ("Qwen3", 1, True, "default", False), ("Qwen3", 3, False, "llama3", False),
         ("Llama", 1, True, "default", True), ("Qwen3", 1, False, "default", True),
         ("Qwen2", 1, False, "yarn", False), ("Qwen3", 3, True, "yarn", False),
         ("Llama", 1, False, "yarn", True), ("Qwen3", 1, False, "yarn", True)]


def forgetting_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: object, scaling: float, **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention over all keys and the sink, straight from the definition."""
    if hasattr(module, "q_cap"):  # rotation has kept the norms, but for the attention factor
        query, key = (x * torch.clamp(module.rope_factor * cap[:, None, None]
                                      / x.norm(dim=-1, keepdim=True), max=1)
                      for x, cap in ((query, module.q_cap), (key, module.k_cap)))
    log_gate = torch.nn.functional.logsigmoid(module.fgate_proj(module.input))
    group = query.shape[1] // key.shape[1]
    key, value, decay = (x.repeat_interleave(group, dim=1)
                         for x in (key, value, log_gate.cumsum(1).transpose(1, 2)))
    logits = scaling * query @ key.mT + decay[..., None] - decay[..., None, :]
    logits = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -torch.inf)
    sinks = module.sinks[:, None, None].expand(*logits.shape[:-1], 1)
    weights = torch.cat([logits, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    return (weights @ value).transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register("forgetting", forgetting_attention)


def add_gates(model: Any) -> None:
    """Adds forget gates for each kv head; the attention module keeps their input."""
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.fgate_proj = torch.nn.Linear(
            model.config.hidden_size, model.config.num_key_value_heads)
        attention.register_forward_pre_hook(
            lambda module, _, inputs: setattr(module, "input", inputs["hidden_states"]),
            with_kwargs=True)


def add_sinks_and_caps(model: Any, seed: int) -> None:
    """Caps that about half of the rows exceed, unless there is QK-norm; all in float32."""
    generator = torch.Generator().manual_seed(seed)
    kv_heads = model.config.num_key_value_heads
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.sinks = torch.nn.Parameter(2 * torch.randn(HEADS, generator=generator))
        attention.rope_factor = model.model.rotary_emb.attention_scaling
        for name, heads, norm in ("q_cap", HEADS, 12), ("k_cap", kv_heads, 4):
            cap = norm * torch.exp(0.2 * torch.randn(heads, generator=generator))
            if not hasattr(attention, "q_norm"):
                setattr(attention, name, torch.nn.Parameter(cap))


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Sets bf16 weights so that attention concentrates on few keys and every parameter matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 2:
                gain = 3 if "q_proj" in name else 1
                weight.copy_(noise if "embed" in name else gain * noise / weight.shape[1] ** 0.5)
            else:
                weight.copy_(0.5 * noise + (1 if "norm" in name else 0))


def make_checkpoint(
    folder: pathlib.Path, case: tuple[str, int, bool, str, bool], seed: int
) -> None:
    name, kv_heads, tied, scaling, forgetting = case
    config = getattr(transformers, name + "Config")(
        **SIZES, **CLASSES[name], num_key_value_heads=kv_heads, tie_word_embeddings=tied,
        rope_parameters={"rope_theta": 10000.0, **SCALINGS[scaling]})
    model = getattr(transformers, name + "ForCausalLM")(config)
    if forgetting:
        add_gates(model)
    randomize(model, seed)
    model.bfloat16()
    if forgetting:
        add_sinks_and_caps(model, seed)
    shards = name == "Qwen3" and tied
    model.save_pretrained(folder, max_shard_size="30KB" if shards else "1GB")
    (folder / "generation_config.json").unlink()
    written = json.loads((folder / "config.json").read_text())
    if scaling == "linear":  # as transformers 4 wrote it
        del written["rope_parameters"]
        written.update(rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0})
    if forgetting:
        written.update(use_forget_gate=True, use_attention_sink=True,
                       use_qk_norm_cap=name != "Qwen3", log_pruning_tolerance=-10.0)
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")


def answer(folder: pathlib.Path, seed: int, forgetting: bool) -> None:
    """Writes expected.json and expected.safetensors of the checkpoint in `folder`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="forgetting" if forgetting else "eager")
    if forgetting:
        add_gates(model)
        add_sinks_and_caps(model, seed)
        extra = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        assert set(extra.missing_keys) <= {"lm_head.weight"} and not extra.unexpected_keys, extra
        model.double()
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


def make(case: tuple[str, int, bool, str, bool], seed: int) -> None:
    name, kv_heads, tied, scaling, forgetting = case
    suffix = ("_tied" if tied else "") + ("_forgetting" if forgetting else "")
    folder = FOLDER / f"{name.lower()}_kv{kv_heads}_{scaling}{suffix}"
    shutil.rmtree(folder, ignore_errors=True)
    make_checkpoint(folder, case, seed)
    answer(folder, seed, forgetting)


if __name__ == "__main__":
    for number, one in enumerate(CASES):
        make(one, number)
