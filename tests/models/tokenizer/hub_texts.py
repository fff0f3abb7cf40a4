"""Texts that tell tokenizers apart: scripts, white space, controls, emoji, marks, and special
tokens in all places. Used by make_hub_vectors.py and hub_tokenizer_test.py."""

import random

FIXED = [
    "", "a", " ", "  ", "\n", "\r\n", "\t", "\n\n\n", "Hello world", " Hello", "  Hello", "Hello  ",
    "don't DON'T don\u2019t can'T 'LL", "1234567890", "3.14159 1,000,000", "a1b2c3",
    "\u0661\u0662\u0663\u0664 \u2153 \u216b \u00b2\u00b3", "\u7528\u6237 \u4f60\u597d\uff0c\u4e16",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8", "\ud55c\uad6d\uc5b4", "\u0e44\u0e17\u0e22",
    "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627", "\u0939\u093f\u0928\u094d\u0926",
    "e\u0301 \u00e9", "\u212b \u00c5 A\u030a", "\ufb01 \ufb02", "\uff26\uff35\uff2c\uff2c\u3000x",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd",
    "\u200b\u200d\ufeff x", "\u00a0nbsp\u2003em\u3000ideo", "tab\tsep\t\ttwo", "x\x00y", "\x7f\x80",
    "\u2581",
    "\u2581\u2581a", "a\u2581b", "\u2581 \u2581", "def f(x):\n    return x  # ok\n",
    '{"a": [1, 2]}', "a" * 100, "ab" * 60, " " * 70, "\n" * 40, "." * 100, "\u0344",
    "q\u0307\u0323",
    "\u1100\u1161\u11a8", "a \n b", "\n\ta", "'s 't 're", "12345678901234567890", "<0x0A>",
    "<0x41>",
    "\U0001d518\U0001d52b \U0001d7d8", "\ue000\U000f0000", "\x1b[0m", "\u202eRTL\u202c",
    "[INST] Hello[/INST]", "[INST] Hello [/INST]", "a</s>b", "<s>", "</s>", "<unk>", "<s></s>",
    "<|im_start|>user\nHi<|im_end|>", "<|im_start|><|im_end|> a", " <|im_end|> ", "x <|im_end|>",
    "<|endoftext|>x", "word wordword", "a word", "aword ", "[PAD]", "a[PAD]b",
]
MARKS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "[INST]", "[/INST]", "[PAD]",
         "<|endoftext|>", "<|eot_id|>", "word", " ", "\n", "a", " b", "\u2581"]


def texts(count: int, seed: int) -> list[str]:
    """The fixed texts, and `count` random mixtures of these, of marks, and of any characters."""
    rng = random.Random(seed)
    out = list(FIXED)
    short = [text for text in FIXED if len(text) < 24]
    for _ in range(count // 2):
        out.append("".join(rng.choices(short + MARKS * 3, k=rng.randint(2, 6))))
    while len(out) < len(FIXED) + count:
        ranges = [(0x20, 0x250), (0x250, 0x3000), (0x3000, 0xD800), (0xE000, 0x32000)]
        out.append("".join(chr(rng.randrange(*rng.choice(ranges)))
                           for _ in range(rng.randint(1, 10))))
    return out
