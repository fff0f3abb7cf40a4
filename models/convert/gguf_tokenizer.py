"""The tokenizer of a GGUF file (tokenizer.ggml.*) as the files of a Hugging Face checkpoint."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from refusal import Refusal

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # of tokenizer.ggml.token_type
_IDS = {"bos": "bos", "eos": "eos", "eot": "eot", "unk": "unknown", "pad": "padding"}
_SAMPLING = {"temp": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
             "penalty_repeat": "repetition_penalty"}  # general.sampling.*
_LLAMA_IDS = {"unk": 0, "bos": 1, "eos": 2}  # llama.cpp's, of a `llama` whose file says none
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(digits: str) -> list[dict[str, Any]]:
    pattern = {"Regex": _WORDS.replace("DIGITS", digits)}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return [split, _byte_level(use_regex=False)]


# tokenizer.ggml.pre -> the steps before merging. Files without it are of GPT-2's time.
_GPT2 = [_byte_level(use_regex=True)]
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": [{"type": "Digits", "individual_digits": True}, *_GPT2],
    "llama-bpe": _split("{1,3}"),
    "qwen2": _split(""),
}


def tokenizer_files(
    get: Callable[[str, Any], Any], vocab_size: int
) -> dict[str, dict[str, Any] | bytes]:
    """File name -> content. `get`: a key's value, or the default."""
    model, tokens = get("tokenizer.ggml.model", ""), get("tokenizer.ggml.tokens", [])
    kinds = get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    texts = all(type(token) is str for token in tokens)
    if not 0 < len(tokens) <= vocab_size or len(kinds) != len(tokens) or not texts:
        raise Refusal(f"key tokenizer.ggml.tokens: {len(tokens)} tokens, {len(kinds)} types, and "
                      f"the model has {vocab_size}")
    ids = {}
    for name, key in _IDS.items():
        ids[name] = get(f"tokenizer.ggml.{key}_token_id", None)
        if ids[name] is None and model == "llama" and _is_marked(name, kinds):
            ids[name] = _LLAMA_IDS[name]
        if ids[name] is not None and ids[name] not in range(len(tokens)):
            raise Refusal(f"key tokenizer.ggml.{key}_token_id: {ids[name]} is no token")
    if model == "llama":  # whose words of users are written as pieces
        tokens = [t.replace("\u2581", " ") if kind == _USER_DEFINED else t
                  for t, kind in zip(tokens, kinds)]
    files: dict[str, dict[str, Any] | bytes] = {}
    if model == "gpt2":
        files["tokenizer.json"] = _bpe(get, tokens, kinds, ids["bos"])
    elif model == "llama":
        files["tokenizer.model"] = _sentencepiece(get, tokens, kinds, ids)
    else:
        raise Refusal(f"key tokenizer.ggml.model: {model!r} is not supported; gpt2 and llama are")
    named = {f"{n}_token": tokens[i] for n, i in ids.items() if i is not None and n != "eot"}
    template = get("tokenizer.chat_template", "")
    files["tokenizer_config.json"] = {
        "tokenizer_class": "PreTrainedTokenizerFast" if model == "gpt2" else "LlamaTokenizer",
        "add_bos_token": get("tokenizer.ggml.add_bos_token", model == "llama"),
        **named,
        **({"chat_template": template} if template else {}),
        **({"added_tokens_decoder": _added(tokens, kinds)} if model == "llama" else {}),
    }
    ends = [i for i in (ids["eos"], ids["eot"]) if i is not None]
    files["generation_config.json"] = {
        "bos_token_id": ids["bos"],
        "eos_token_id": list(dict.fromkeys(ends)),
        **_sampling(get),
    }
    return files


def _sampling(get: Callable[[str, Any], Any]) -> dict[str, Any]:
    """What the model's maker recommends, by the names of the transformers library."""
    found = {name: get(f"general.sampling.{key}", None) for key, name in _SAMPLING.items()}
    # The shortest decimal that is the same float32: 0.2, not 0.20000000298023224.
    return {
        name: value if isinstance(value, int) else float(str(np.float32(value)))
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _is_marked(name: str, kinds: list[int]) -> bool:
    """Whether the token that _LLAMA_IDS gives is no text. Today's converter calls `<unk>` CONTROL,
    as every token that tokenizer_config.json calls special."""
    at = _LLAMA_IDS.get(name, len(kinds))
    return at < len(kinds) and kinds[at] in (_UNKNOWN, _CONTROL)


def _added(tokens: list[str], kinds: list[int]) -> dict[str, dict[str, Any]]:
    """added_tokens_decoder of a `llama`: what is found in a text before sentencepiece reads it."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        str(i): {"content": token, **flags, "special": kind != _USER_DEFINED}
        for i, (token, kind) in enumerate(zip(tokens, kinds))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    }


def _bpe(
    get: Callable[[str, Any], Any], tokens: list[str], kinds: list[int], bos: int | None
) -> dict[str, Any]:
    """tokenizer.json."""
    pre = get("tokenizer.ggml.pre", "gpt-2")
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise Refusal(f"key tokenizer.ggml.pre: {pre!r} is not supported; there are {known}")
    steps = PRE_TOKENIZERS[pre]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": token, **flags, "special": kind == _CONTROL}
        for i, (token, kind) in enumerate(zip(tokens, kinds))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    after = _byte_level(use_regex=True)
    if bos is not None and get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        name = tokens[bos]
        first, text = {"SpecialToken": {"id": name, "type_id": 0}}, {"id": "A", "type_id": 0}
        second = {"Sequence": {"id": "B", "type_id": 1}}
        single = [first, {"Sequence": text}]
        special = {name: {"id": name, "ids": [bos], "tokens": [name]}}
        both = [*single, {"SpecialToken": {"id": name, "type_id": 1}}, second]
        template = {"type": "TemplateProcessing", "single": single, "pair": both}
        after = {"type": "Sequence", "processors": [after, {**template, "special_tokens": special}]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence",
                                                           "pretokenizers": steps},
        "post_processor": after,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": get("tokenizer.ggml.merges", []),
        },
    }


def _field(number: int, value: bytes | float | int | bool) -> bytes:
    """A field of a protocol buffer, of the type of `value`."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*result, value))


def _sentencepiece(
    get: Callable[[str, Any], Any], tokens: list[str], kinds: list[int], ids: dict[str, int | None]
) -> bytes:
    """tokenizer.model, a sentencepiece ModelProto; its types of pieces are those of GGUF."""
    scores = get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens):
        raise Refusal(f"key tokenizer.ggml.scores: {len(scores)} of them, {len(tokens)} tokens")
    if ids["unk"] is None:
        raise Refusal("key tokenizer.ggml.unknown_token_id: missing, and token 0 is a text")
    # Sentencepiece has one unknown piece; the others that are called so are never in a text.
    kinds = [_CONTROL if kind == _UNKNOWN else kind for kind in kinds]
    kinds[ids["unk"]] = _UNKNOWN
    pieces = b"".join(
        _field(1, _field(1, token.encode()) + _field(2, float(score)) + _field(3, kind))
        for token, score, kind in zip(tokens, scores, kinds)
    )
    trainer = _field(3, 2) + _field(35, 6 in kinds)  # BPE, with fallback to bytes
    for number, name in ((40, "unk"), (41, "bos"), (42, "eos")):
        trainer += _field(number, (1 << 64) - 1 if ids[name] is None else ids[name])  # -1: none
    prefix = get("tokenizer.ggml.add_space_prefix", True)
    normalizer = _field(1, b"identity") + _field(3, prefix) + _field(4, False) + _field(5, True)
    return pieces + _field(2, trainer) + _field(3, normalizer)
