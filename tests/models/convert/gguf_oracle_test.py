"""Tokenizers of GGUF files as today's llama.cpp converter writes them, against transformers,
sentencepiece and llama.cpp's patterns. Skipped, with a message, if one of the packages is missing.

The forms follow `_create_vocab_sentencepiece` of convert_hf_to_gguf.py; ids of special tokens are
chosen by the gguf package, which that program uses, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import unittest
from pathlib import Path
from typing import Any

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
for _package in ("gguf", "sentencepiece", "tokenizers", "transformers"):
    if importlib.util.find_spec(_package) is None:
        print(f"SKIPPED: {sys.executable} lacks {_package}, which ./run test all installs")
        sys.exit(SKIPPED)

import gguf  # noqa: E402
import gguf_source_test  # noqa: E402
import sentencepiece  # noqa: E402
import transformers  # noqa: E402
from tokenizers import Regex, pre_tokenizers  # noqa: E402

from models.convert.gguf_tokenizer import PRE_TOKENIZERS  # noqa: E402

CORPUS = Path(os.environ["FOX_SOURCE_DIR"]) / "models" / "demo" / "prompt_long.txt"
PIECES, ROWS = 400, 416
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ADDED = {"<unk>": (0, True), "<s>": (1, True), "</s>": (2, True), "<|im_start|>": (PIECES, True),
         "<|im_end|>": (PIECES + 1, True), "<tool call>": (PIECES + 2, False)}
TEXTS = ("Once upon a time", " two  spaces ", "a</s>b", "<s>x<unk>y", "", "<0x41>",
         "<|im_start|>user\nHi<|im_end|>", "\u00fc \u6f22 \U0001f98a", "call <tool call> now",
         "\tif (x):\n\n\n  y")


def converted_vocabulary(model: sentencepiece.SentencePieceProcessor,
                         decoder: dict[str, dict[str, Any]]) -> tuple[list[str], ...]:
    """Tokens, scores and types."""
    tokens = [f"[PAD{i}]" for i in range(ROWS)]
    scores, kinds = [-10000.0] * ROWS, [UNUSED] * ROWS
    for i in range(model.vocab_size()):
        tokens[i], scores[i], kinds[i] = model.id_to_piece(i), model.get_score(i), NORMAL
        for asked, kind in ((model.is_unknown, UNKNOWN), (model.is_control, CONTROL),
                            (model.is_unused, UNUSED), (model.is_byte, BYTE)):
            kinds[i] = kind if asked(i) else kinds[i]
    for key, data in decoder.items():
        special = data["special"]
        kinds[int(key)] = CONTROL if special else USER
        tokens[int(key)] = data["content"] if special else data["content"].replace(" ", "\u2581")
        scores[int(key)] = -1000.0
    return tokens, scores, kinds


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
CASES = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
WORDS = CASES + (r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
                 r"|\s+")
# The patterns of src/llama-vocab.cpp in llama.cpp, for each type one of its names; each splits the
# pieces of the one before.
PATTERNS = {
    "llama-bpe": [WORDS % r"\p{N}{1,3}"], "smaug-bpe": [WORDS % r"\p{N}{1,3}"],
    "qwen2": [WORDS % r"\p{N}"], "megrez": [WORDS % r"\p{N}"],
    "seed-coder": [CASES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
                   r"|\s+(?!\S)|\s+"],
    "gpt-2": [GPT2], "a.x-4.0": [GPT2], "trillion": [GPT2], "mellum": [GPT2],
    "smollm": [r"\p{N}", GPT2], "refact": [r"\p{N}", GPT2], "minerva-7b": [r"\p{N}", GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "viking": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", r"\p{N}"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+",
                       "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"],
}
PRE_TEXTS = ("don't DON'T", "12345 1234567", " two  spaces \n\n  x", "a+b=c; $5 <tag> ^~|`",
             "x\r\n", "\u7528\u6237\u3002\u4f60 \u0661\u0662\u0663\u0664 \u2153",
             "e\u0301t\u00e9\u2026 ok!?(no)", "...\n\n//")


class PreTokenizerTest(unittest.TestCase):
    def test_pieces_are_those_of_llama_cpp(self) -> None:
        for pre, patterns in PATTERNS.items():
            steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
            right = pre_tokenizers.Sequence(steps)
            ours = json.dumps({"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]})
            found = pre_tokenizers.Sequence([])
            found.__setstate__(ours.encode())
            for text in PRE_TEXTS:
                with self.subTest(pre=pre, text=text):
                    self.assertEqual(found.pre_tokenize_str(text), right.pre_tokenize_str(text))


class SentencepieceTest(gguf_source_test.GgufCase):
    def setUp(self) -> None:
        super().setUp()
        self.hub = self.scratch / "hub"
        self.hub.mkdir()
        sentencepiece.SentencePieceTrainer.train(
            input=str(CORPUS), model_prefix=str(self.hub / "tokenizer"), vocab_size=PIECES,
            model_type="bpe", byte_fallback=True, minloglevel=2, normalization_rule_name="identity",
            remove_extra_whitespaces=False, max_sentence_length=1 << 20)
        self.model = sentencepiece.SentencePieceProcessor(str(self.hub / "tokenizer.model"))

    def describe(self, with_config: bool, with_ids: bool) -> dict[str, dict[str, Any]]:
        """The other files of the checkpoint; returns its added tokens."""
        flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
        decoder = {str(i): {"content": text, "special": special, **flags}
                   for text, (i, special) in ADDED.items()}
        ids = {"bos_token_id": 1, "eos_token_id": 2} if with_ids else {}
        (self.hub / "config.json").write_text(json.dumps({"model_type": "llama", **ids}))
        config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
                  "unk_token": "<unk>", "add_bos_token": True, "added_tokens_decoder": decoder}
        path = self.hub / "tokenizer_config.json"
        path.unlink(missing_ok=True)
        if with_config:
            path.write_text(json.dumps(config))
        return decoder if with_config else {}

    def write_gguf(self, decoder: dict[str, dict[str, Any]], legacy: bool) -> None:
        tokens, scores, kinds = converted_vocabulary(self.model, decoder)
        arch = self.keys("llama")
        keys = {k: v for k, v in arch.items() if "tokenizer" not in k}
        keys |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default",
                 "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores,
                 "tokenizer.ggml.token_type": kinds}
        special = gguf.SpecialVocab(self.hub, n_vocab=ROWS)
        keys |= {f"tokenizer.ggml.{gguf_name(kind)}_token_id": number
                 for kind, number in special.special_token_ids.items()}
        keys |= {f"tokenizer.ggml.add_{kind}_token": value
                 for kind, value in special.add_special_token.items()}
        if legacy:
            keys["tokenizer.ggml.unknown_token_id"] = 0
        self.rows = ROWS
        self.write("llama", keys, self.tensors("llama"))

    def test_ids_are_those_of_transformers(self) -> None:
        for with_config in (True, False):
            for with_ids in (True, False):
                for legacy in (True, False):
                    with self.subTest(with_config=with_config, with_ids=with_ids, legacy=legacy):
                        self.write_gguf(self.describe(with_config, with_ids), legacy)
                        self.convert("--force")
                        self.compare(with_config)

    def compare(self, with_config: bool) -> None:
        got = sentencepiece.SentencePieceProcessor(str(self.dst / "tokenizer.model"))
        self.assertEqual((got.unk_id(), got.bos_id(), got.eos_id()), (0, 1, 2))
        plain = [text for text in TEXTS if "<" not in text]
        self.assertEqual([got.encode(text) for text in plain],
                         [self.model.encode(text) for text in plain])
        wanted, found = (transformers.AutoTokenizer.from_pretrained(folder)
                         for folder in (self.hub, self.dst))
        if not with_config:
            return  # transformers then takes no token of a text for a special one
        for text in TEXTS:
            for marks in (True, False):
                self.assertEqual(found(text, add_special_tokens=marks).input_ids,
                                 wanted(text, add_special_tokens=marks).input_ids, text)
        for number in (*range(0, PIECES, 7), *(number for number, _ in ADDED.values())):
            with self.subTest(number=number):
                self.assertEqual(found.decode([5, number, 9]), wanted.decode([5, number, 9]))


def gguf_name(kind: str) -> str:
    """Values by the names of GGUFWriter's methods."""
    return {"unk": "unknown", "pad": "padding", "sep": "seperator"}.get(kind, kind)


if __name__ == "__main__":
    unittest.main()
