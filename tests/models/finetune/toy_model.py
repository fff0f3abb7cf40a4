"""A toy model with a byte tokenizer, for the tests of models/finetune.

Importing this module ends the process with SKIPPED (77) if the interpreter lacks a package.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # equal bits, and other tests run beside this one
for package in ("torch", "safetensors", "sentencepiece", "tokenizers"):
    if importlib.util.find_spec(package) is None:
        print(f"SKIPPED: {sys.executable} lacks {package}, which ./run test all installs")
        sys.exit(77)

BYTES = 257  # vocabulary: all bytes, then the end of text
CONFIG: dict[str, Any] = {
    "model_type": "forgetting_transformer-project_fox", "vocab_size": BYTES, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_heads": 2, "qk_norm": True,
    "use_k_shift": True, "use_v_shift": True, "use_output_gate": True, "use_output_norm": True,
    "log_pruning_tolerance": -10.0, "bos_token_id": 256, "eos_token_id": 256,
    "max_position_embeddings": None,
}
TEXT = "It was a dark and stormy night; the rain fell in torrents, except at intervals. "


def byte_alphabet() -> list[str]:
    """GPT-2's characters for the bytes 0 to 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def write_toy(folder: Path, **changes: Any) -> Path:
    """Writes config.json with `changes`, and a byte tokenizer; returns the config's path."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps({**CONFIG, **changes}))
    vocabulary = {character: i for i, character in enumerate(byte_alphabet())}
    vocabulary["<|endoftext|>"] = 256
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return config
