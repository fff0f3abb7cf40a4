"""The tokenizer of a GGUF file (tokenizer.ggml.*) as the files of a Hugging Face checkpoint."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from models.convert.refusal import Refusal

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # values of tokenizer.ggml.token_type
_IDS = {"bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unk": "unknown", "pad": "padding"}
# Special tokens that end a text, whichever ids the file names (special_eog_ids of llama.cpp).
_ENDS = frozenset(
    """<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT]
    [EOS] <|end_of_text|> <end_of_utterance> <eos> <\uff5cend\u2581of\u2581sentence\uff5c>
    """.split()
)
_SAMPLING = {"temp": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
             "penalty_repeat": "repetition_penalty"}  # general.sampling.*
_LLAMA_IDS = {"unk": 0, "bos": 1, "eos": 2}  # llama.cpp's defaults
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[UPPER]*[LOWER]+|[^\r\n\p{L}\p{N}]?[UPPER]+[LOWER]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
).replace("UPPER", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}").replace("LOWER", r"\p{Ll}\p{Lm}\p{Lo}\p{M}")
# Classes of characters of DeepSeek: letters with upper and lower case, signs, Asian letters.
_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-"
    "\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20"
    "-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc"
    "\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6"
    "-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-"
    "\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-"
    "\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-"
    "\U000118df\U0001e900-\U0001e943"
)
_SIGNS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_CJK = "\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff"


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(*patterns: str) -> list[dict[str, Any]]:
    """Splits a text by the first pattern, the pieces by the second, and so on."""
    splits = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
               "invert": False} for pattern in patterns]
    return [*splits, _byte_level(use_regex=False)]


# tokenizer.ggml.pre -> the steps before merging, by the names and patterns of llama.cpp's
# llama-vocab.cpp. Files that are older than this key are `default`.
_GPT2 = [_byte_level(use_regex=True)]
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0")
_QWEN2 = ("qwen2", "deepseek-r1-qwen")  # text is in NFC
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "a.x-4.0", "gigachat", "mellum", "exaone4", "jais", "mpt",
                     "olmo", "trillion", "granite-docling"), _GPT2),
    "default": _split(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone",
                     "minerva-7b"), [{"type": "Digits", "individual_digits": True}, *_GPT2]),
    **dict.fromkeys((*_LLAMA3, "smaug-bpe", "dbrx"), _split(_WORDS.replace("DIGITS", "{1,3}"))),
    **dict.fromkeys((*_QWEN2, "megrez", "kormo", "stablelm2"),
                    _split(_WORDS.replace("DIGITS", ""))),
    "seed-coder": _split(_WORDS.replace("DIGITS", "").replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+")),
    "viking": _split(" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", r"\p{N}"),
    "deepseek-llm": _split(r"[\r\n]", rf"\s?[{_LETTERS}]+", rf"\s?[{_SIGNS}]+", r"\s+$",
                           f"[{_CJK}]+", r"\p{N}+"),
    "deepseek-coder": _split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"[{_CJK}]+", r"\p{N}"),
    "tekken": _split(_TEKKEN),
}
# Tokenizers that do not merge a piece that is a whole token, and add bos by default.
_WHOLE = (*_LLAMA3, "tekken")


def tokenizer_files(
    get: Callable[[str, Any], Any], vocab_size: int
) -> dict[str, dict[str, Any] | bytes]:
    """The tokenizer's files: name -> content. `get(key, default)` returns the value of a key."""
    model, tokens = get("tokenizer.ggml.model", ""), get("tokenizer.ggml.tokens", [])
    kinds = get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    texts = all(type(token) is str for token in tokens)
    if not 0 < len(tokens) <= vocab_size or len(kinds) != len(tokens) or not texts:
        raise Refusal(f"key tokenizer.ggml.tokens: {len(tokens)} tokens, {len(kinds)} types, and "
                      f"the model has {vocab_size}")
    ids = {}
    for name, key in _IDS.items():
        ids[name] = get(f"tokenizer.ggml.{key}_token_id", None)
        if ids[name] not in range(len(tokens)):  # no token; some files have -1
            ids[name] = None
        if ids[name] is None and model == "llama" and _is_marked(name, kinds):
            ids[name] = _LLAMA_IDS[name]
    if model == "llama":  # its user-defined tokens are written like pieces
        tokens = [t.replace("\u2581", " ") if kind == _USER_DEFINED else t
                  for t, kind in zip(tokens, kinds)]
    files: dict[str, dict[str, Any] | bytes] = {}
    if model == "gpt2":
        files["tokenizer.json"] = _bpe(get, tokens, kinds, ids)
    elif model == "llama":
        files["tokenizer.model"] = _sentencepiece(get, tokens, kinds, ids)
    else:
        raise Refusal(f"key tokenizer.ggml.model: {model!r} is not supported; gpt2 and llama are")
    ends = [ids[name] for name in ("eos", "eot", "eom")] + [
        i for i, (token, kind) in enumerate(zip(tokens, kinds))
        if token in _ENDS and kind in (_CONTROL, _USER_DEFINED)]
    named = {f"{n}_token": tokens[i] for n, i in ids.items()
             if i is not None and n not in ("eot", "eom")}
    template = get("tokenizer.chat_template", "")
    with_tools = get("tokenizer.chat_template.tool_use", "")
    if template and with_tools:
        template = [{"name": "default", "template": template},
                    {"name": "tool_use", "template": with_tools}]
    files["tokenizer_config.json"] = {
        "tokenizer_class": "PreTrainedTokenizerFast" if model == "gpt2" else "LlamaTokenizer",
        "add_bos_token": _adds_bos(get),
        **({"add_eos_token": True} if _adds_eos(get) else {}),
        **named,
        **({"chat_template": template} if template else {}),
        **({"added_tokens_decoder": _added(tokens, kinds)} if model == "llama" else {}),
    }
    files["generation_config.json"] = {
        "bos_token_id": ids["bos"],
        "eos_token_id": list(dict.fromkeys(i for i in ends if i is not None)),
        **_sampling(get),
    }
    return files


def _sampling(get: Callable[[str, Any], Any]) -> dict[str, Any]:
    """The sampling that the model's maker recommends, by the names of the transformers library."""
    found = {name: get(f"general.sampling.{key}", None) for key, name in _SAMPLING.items()}
    # The shortest decimal that is the same float32: 0.2, not 0.20000000298023224.
    return {
        name: value if isinstance(value, int) else float(str(np.float32(value)))
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _adds_bos(get: Callable[[str, Any], Any]) -> bool:
    by_default = get("tokenizer.ggml.model", "") == "llama" or get(
        "tokenizer.ggml.pre", "default") in _WHOLE
    return bool(get("tokenizer.ggml.add_bos_token", by_default))


def _adds_eos(get: Callable[[str, Any], Any]) -> bool:
    return bool(get("tokenizer.ggml.add_eos_token", False))


def _is_marked(name: str, kinds: list[int]) -> bool:
    """True if the token with the id of _LLAMA_IDS is a special one.

    llama.cpp's converter now gives `<unk>` the type CONTROL, as it does to every token that
    tokenizer_config.json calls special.
    """
    at = _LLAMA_IDS.get(name, len(kinds))
    return at < len(kinds) and kinds[at] in (_UNKNOWN, _CONTROL)


def _added(tokens: list[str], kinds: list[int]) -> dict[str, dict[str, Any]]:
    """added_tokens_decoder of a `llama`: tokens found in a text before sentencepiece reads it."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        str(i): {"content": token, **flags, "special": kind != _USER_DEFINED}
        for i, (token, kind) in enumerate(zip(tokens, kinds))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    }


def _bpe(
    get: Callable[[str, Any], Any], tokens: list[str], kinds: list[int], ids: dict[str, int | None]
) -> dict[str, Any]:
    """tokenizer.json."""
    pre = get("tokenizer.ggml.pre", "default")
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
    first, last = ([i] if i is not None and adds else [] for i, adds in (
        (ids["bos"], _adds_bos(get)), (ids["eos"], _adds_eos(get))))
    if first or last:
        text = [{"Sequence": {"id": letter, "type_id": 0}} for letter in "AB"]
        before, behind = ([{"SpecialToken": {"id": tokens[i], "type_id": 0}} for i in some]
                          for some in (first, last))
        special = {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]}
                   for i in first + last}
        template = {"type": "TemplateProcessing", "single": [*before, text[0], *behind],
                    "pair": [*before, *text, *behind], "special_tokens": special}
        after = {"type": "Sequence", "processors": [after, template]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre in _QWEN2 else None,
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
            "ignore_merges": pre in _WHOLE,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": get("tokenizer.ggml.merges", []),
        },
    }


def _field(number: int, value: bytes | float | int | bool) -> bytes:
    """Encodes a field of a protocol buffer; the type of `value` decides the wire type."""
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
    """tokenizer.model, a sentencepiece ModelProto, whose types of pieces have GGUF's numbers."""
    scores = get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens):
        raise Refusal(f"key tokenizer.ggml.scores: {len(scores)} of them, {len(tokens)} tokens")
    if ids["unk"] is None:
        raise Refusal("key tokenizer.ggml.unknown_token_id: missing, and token 0 is a text")
    # Sentencepiece has one unknown piece; other pieces of that type never occur in a text.
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
