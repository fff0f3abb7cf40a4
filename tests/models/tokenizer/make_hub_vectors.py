#!/usr/bin/env python3
"""Writes hub_vectors.json: the results of transformers for model directories as on the hub.

The directories hold the demo's tokenizer.model, or the tests' GPT-2 vocab.json and merges.txt, and
the small files that are written here. Needs transformers 4.57.3 and sentencepiece: later versions
read a tokenizer.model by rules that differ from sentencepiece's own. Usage: make_hub_vectors.py
"""

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import transformers
from hub_texts import texts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BASES = {"demo": ["models/demo/tokenizer.model"],
         "gpt2": ["tests/models/tokenizer/gpt2/vocab.json",
                  "tests/models/tokenizer/gpt2/merges.txt"],
         "small": ["tests/models/tokenizer/small_tokenizer.json"]}
JSON = "tokenizer.json"


def token(content: str, special: bool = True, **options: Any) -> dict[str, Any]:
    """An entry of added_tokens_decoder."""
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": not special,
            "single_word": False, "special": special, **options}


LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
         "unk_token": "<unk>"}
PIECES = {"0": token("<unk>"), "1": token("<s>"), "2": token("</s>")}
CHATML = {**PIECES, "8192": token("<|im_start|>"), "8193": token("<|im_end|>"),
          "8194": token("word", special=False)}
OPTIONS = {**PIECES, "8192": token("[INST]", lstrip=True), "8193": token("[/INST]", rstrip=True),
           "8195": token("word", special=False, normalized=False, single_word=True)}
QWEN = {"50256": token("<|endoftext|>"), "50257": token("<|im_start|>"),
        "50258": token("<|im_end|>"), "50259": token("word", special=False, single_word=True)}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("demo", "legacy", {"tokenizer_config.json": {**LLAMA, "legacy": True}}),
    ("demo", "legacy, chatml", {"tokenizer_config.json": {
        **LLAMA, "legacy": True, "eos_token": "<|im_end|>", "added_tokens_decoder": CHATML}}),
    ("demo", "chatml", {"tokenizer_config.json": {
        **LLAMA, "legacy": False, "eos_token": "<|im_end|>", "added_tokens_decoder": CHATML}}),
    ("demo", "options", {"tokenizer_config.json": {
        **LLAMA, "legacy": False, "added_tokens_decoder": OPTIONS}}),
    ("demo", "three files", {
        "tokenizer_config.json": {**LLAMA, "add_bos_token": False, "add_eos_token": True},
        "special_tokens_map.json": {"eos_token": "<|im_end|>", "pad_token": "[PAD]",
                                    "additional_special_tokens": ["<|im_start|>"]},
        "added_tokens.json": {"<|im_end|>": 8193, "<|im_start|>": 8192}}),
    ("gpt2", "gpt2", {"tokenizer_config.json": {
        "tokenizer_class": "GPT2Tokenizer", "pad_token": "[PAD]", "add_bos_token": True}}),
    ("gpt2", "qwen2", {"tokenizer_config.json": {
        "tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "unk_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "added_tokens_decoder": QWEN}}),
    ("gpt2", "qwen2 by its model", {
        "config.json": {"model_type": "qwen2"},
        "tokenizer_config.json": {"additional_special_tokens": ["<|im_start|>"]}}),
    ("small", "post_processor before flags", {"tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        "add_prefix_space": True, "add_bos_token": False, "add_eos_token": False}}),
]


def vectors(base: str, files: dict[str, Any], samples: list[str]) -> dict[str, Any]:
    """The results of AutoTokenizer for a directory."""
    with tempfile.TemporaryDirectory() as folder:
        for path in BASES[base]:
            name = Path(path).name
            shutil.copy(ROOT / path,
                        Path(folder) / (JSON if name.endswith(JSON) else name))
        model_type = "llama" if base == "demo" else "gpt2"
        for name, content in {"config.json": {"model_type": model_type}, **files}.items():
            (Path(folder) / name).write_text(json.dumps(content))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        size = len(tokenizer)
        encode = [[text, tokenizer.encode(text, add_special_tokens=False)] for text in samples]
        rng = random.Random(7)
        ids = [row[1] for row in encode[::4] if row[1]]
        ids += [[rng.randrange(size) for _ in range(rng.randint(1, 8))] for _ in range(30)]
        decode = [[row, *(tokenizer.decode(row, skip_special_tokens=skip,
                                           clean_up_tokenization_spaces=False)
                          for skip in (True, False))] for row in ids]
        return {"files": files, "base": BASES[base], "size": size, "eos": tokenizer.eos_token_id,
                "around": tokenizer.encode("a"), "encode": encode, "decode": decode}


def main() -> None:
    if transformers.__version__ != "4.57.3":
        raise SystemExit(f"transformers 4.57.3, not {transformers.__version__}")
    lines = []
    for base, name, files in CASES:
        rows = vectors(base, files, texts(60, seed=3))
        parts = [f"{json.dumps(key)}: " + ("[\n" + ",\n".join(map(json.dumps, value)) + "]"
                                           if key in ("encode", "decode") else json.dumps(value))
                 for key, value in rows.items()]
        lines.append(json.dumps(f"{base}: {name}") + ": {\n" + ",\n".join(parts) + "}")
    (HERE / "hub_vectors.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
