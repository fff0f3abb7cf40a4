"""A toy LLaMA or Qwen3 with a byte tokenizer and chats, for the tests of models/foxify.

Importing this module ends the process with SKIPPED (77) if the interpreter lacks a package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toy_model import byte_alphabet  # first: it skips without torch

import torch
from safetensors.torch import save_file

from models.convert.transformers_config import parse_transformers_config

START, END = "<|im_start|>", "<|im_end|>"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 258,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 512, "tie_word_embeddings": True, "bos_token_id": 256,
    "eos_token_id": 257, "torch_dtype": "float32",
}
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 1,
         "tie_word_embeddings": False}


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of bytes and the two tokens of ChatML."""
    vocabulary = {character: i for i, character in enumerate(byte_alphabet())}
    special = {"normalized": False, "special": True, "single_word": False, "lstrip": False,
               "rstrip": False}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [{"id": 256 + i, "content": token, **special}
                                           for i, token in enumerate((START, END))],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False,
                          "trim_offsets": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False,
                    "trim_offsets": False},
        "model": {"type": "BPE", "vocab": {**vocabulary, START: 256, END: 257}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": START, "eos_token": END}))
    roles = {role: {"prefix": f"{START}{role}\n", "suffix": f"{END}\n"}
             for role in ("system", "user", "assistant")}
    (folder / "chat_format.json").write_text(json.dumps(
        {"bos": "", "default_system": None, "roles": roles,
         "generation_prompt": f"{START}assistant\n"}))


def write_toy(folder: Path, **changes: Any) -> Path:
    """Writes a directory with random weights; returns it."""
    folder.mkdir(parents=True)
    config = {**CONFIG, **changes}
    generator = torch.Generator().manual_seed(1)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    shapes = parse_transformers_config(config).shapes()
    tensors = {name: torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1)
               for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder
