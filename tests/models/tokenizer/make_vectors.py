#!/usr/bin/env python3
"""Writes vectors.json and *_tokenizer.json: the results of the reference implementations.

References: the PyPI packages `tokenizers` (byte-level BPE) and `sentencepiece`. Needs both; the
tests themselves only read the files. Usage: make_vectors.py (any directory)
"""

import json
import random
from pathlib import Path

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

HERE = Path(__file__).resolve().parent
SEED = 20250401
BOS_GPT2 = 50256

FIXED = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n ", "\t\tx", "a  b", "a   b", " a", "a ", "a  ",
    "Hello, world!", "Once upon a time, in a small village by the sea.",
    "I'm you're he's we've they'll I'd can't", "'s't're've'm'll'd", "''s '' 'S 'RE", "' s", "x's",
    "!'s", "1's", "12345 67", " 1 22 333", "\u0661\u0662\u0663 \u2167 \u00bd \u4e00\u4e8c",
    "caf\u00e9 na\u00efve", "e\u0301 a\u0300\u0302", "\u65e5\u672c\u8a9e\u306e\u6587",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643", "\u05e9\u05dc\u05d5\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\U0001f600\U0001f44d\U0001f3fd",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 ok", "\U0001f1e9\U0001f1ea",
    "\x00\x01\x1b\x7f\x80\x85\x9f", "\x1c\x1d\x1e\x1f a", "a\u00a0b\u2003c\u3000d\u2028e\u200bf",
    "\ufeffbom", "\ufffd", "\ufffe\uffff", "\U0010ffff", "\ue000", "\r\n\r\n  x\r",
    "def f(x):\n    return x**2  # ok\n", '{"a": [1, 2.5e-3, null]}', "\\u00e9 \\n \\", '"\\"/',
    "http://example.org/?q=a%20b&c=d#e", "\u2581\u2581 x\u2581y", "<s></s><unk><0x41>",
    "a" * 100, "^" * 70, "ab" * 60, "\u00e9" * 60, "\U0001f600" * 30, " " * 60 + "x", "\n" * 60,
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>",
    "<|endoftext", "<<|endoftext|>>", "\u00e9<|endoftext|>\n\U0001f600",
]
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABC xyz 012 .,!?'", " \t\n\r\x0b\x0c\u00a0\u2003\u3000",
    "'stremvdl ", "\u00e0\u00e9\u00ee\u00f5\u00fc\u00df\u0153", "\u0300\u0301\u0308\u20dd",
    "\u4e00\u4e8c\u4e09\u3042\u30ab\uac00", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\U0001f600\U0001f680\U0001f3fd\u200d\ufe0f\u2764", "\u0661\u0967\u2160\u00b2\u3007\u0be7",
    "\x00\x07\x1b\x1f\x7f\u0085\u200b\u2060", "<|>endoftxs/", '\\"/bfnrtu0123d8e',
]


def random_character(rng: random.Random) -> str:
    """A random code point that is not a surrogate, from the lower planes more often."""
    while True:
        code_point = rng.randrange(rng.choice([0x250, 0x3000, 0x10000, 0x20000, 0x110000]))
        if not 0xD800 <= code_point < 0xE000:
            return chr(code_point)


def texts(rng: random.Random) -> list[str]:
    """The fixed texts, mixtures of alphabets, and random code points."""
    out = list(FIXED)
    for _ in range(150):
        parts = []
        for _ in range(rng.randrange(1, 8)):
            alphabet = rng.choice(ALPHABETS)
            parts.append("".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 9))))
        out.append("".join(parts))
    for _ in range(60):
        out.append("".join(random_character(rng) for _ in range(rng.randrange(1, 24))))
    return out


def gpt2() -> Tokenizer:
    """GPT-2's tokenizer with its one special token."""
    tokenizer = Tokenizer(
        models.BPE.from_file(str(HERE / "gpt2/vocab.json"), str(HERE / "gpt2/merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def small() -> Tokenizer:
    """A small byte-level BPE that uses many options of tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator([text for text in FIXED if "<" not in text] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken("[\u00e9]", lstrip=True), "<mask>", "<mask><mask>"])
    tokenizer.add_tokens(
        ["\u65e5\u672c", "upon", AddedToken("sea", normalized=False, rstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[
            ("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))])
    return tokenizer


SMALL_EXTRA = [
    "a [\u00e9] b", "[\u00e9][\u00e9]", "by the sea  side",
    "x<mask> <mask><mask>y<mask><mask><mask>",
    "upon upon", "\u65e5\u672c\u8a9e", "<s>hi</s>", "sea\n\tsea", " \u3000[\u00e9]", "supon",
]


FALLBACK_EXTRA = [
    "</s> a<s>b <s>", "upon a  sea \tupon a", "sea a", " <unk>sea", "<0x41>\u2581<0x",
    "a two words b", "two words", "two words two words", "sea\t\t\t", " \t\t x\t\tsea \t\tsea",
    "a\u4e00\u4e8c" * 9000, " " * 40000 + "in a",
]


def random_ids(rng: random.Random, size: int) -> list[int]:
    return [rng.randrange(size) for _ in range(rng.randrange(1, 12))]


def bpe_vectors(tokenizer: Tokenizer, samples: list[str], rng: random.Random) -> dict:
    """Encodings without and with special tokens, decodings with and without them."""
    decode = []
    for _ in range(80):
        ids = random_ids(rng, tokenizer.get_vocab_size())
        decode.append([ids, tokenizer.decode(ids, skip_special_tokens=True),
                       tokenizer.decode(ids, skip_special_tokens=False)])
    return {
        "encode": [[s, tokenizer.encode(s, add_special_tokens=False).ids] for s in samples],
        "encode_special": [[s, tokenizer.encode(s).ids] for s in samples[:20]],
        "decode": decode,
    }


def longcrawl64_vectors(tokenizer: Tokenizer, samples: list[str]) -> dict:
    """JSONGPT2Tokenizer: GPT-2 over the inside of a JSON string, bos in front."""
    return {
        "escape": [[s, json.dumps(s)[1:-1]] for s in samples],
        "encode_special": [
            [s, [BOS_GPT2] + tokenizer.encode(json.dumps(s)[1:-1]).ids] for s in samples],
    }


def sentencepiece_vectors(samples: list[str], rng: random.Random) -> dict:
    """The demo model, bos in front; decoding of pieces and of whole characters in bytes."""
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(HERE.parents[2] / "models/demo/tokenizer.model"))
    decode = []
    for _ in range(120):
        ids: list[int] = []
        for _ in range(rng.randrange(1, 8)):
            if rng.random() < 0.3:
                character = random_character(rng)
                ids += [processor.piece_to_id(f"<0x{b:02X}>") for b in character.encode()]
            else:
                ids += [i for i in random_ids(rng, processor.vocab_size())
                        if not processor.is_byte(i)]
        decode.append([ids, processor.decode(ids)])
    return {
        # The library knows no control tokens in text, which models on the hub have.
        "encode_special": [[s, [processor.bos_id()] + processor.encode(s)] for s in samples
                           if not any(token in s for token in ("<s>", "</s>", "<unk>"))],
        "decode": decode,
    }


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
             r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
             r"\s*[\r\n]+|\s+(?!\S)|\s+")


def in_sequence(*steps: object, regex: bool = False) -> pre_tokenizers.PreTokenizer:
    """The steps, regular expressions as Splits, then ByteLevel."""
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(step), "isolated") if isinstance(step, str) else step
        for step in steps] + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)])


NEIGHBOURS = "a1 !'"


def edges() -> Tokenizer:
    """A byte-level BPE whose only merges are of a byte beyond ASCII with one of NEIGHBOURS, so that
    its ids show where a character was cut off."""
    letters = bytes_to_letters()
    merges = [pair for byte in range(0x80, 0x100) for near in NEIGHBOURS.encode()
              for pair in ((letters[byte], letters[near]), (letters[near], letters[byte]))]
    vocab = {token: number for number, token in
             enumerate(letters + [left + right for left, right in merges])}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def bytes_to_letters() -> list[str]:
    """GPT-2's byte alphabet, by byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def pretokenizer_vectors(samples: list[str]) -> list[list]:
    """For each pre-tokenizer, FNV-1a of the ids of the samples and of every code point with other
    characters around it, up to the last assigned one before the tags."""
    points = [chr(c) for c in range(0x32400) if not 0xD800 <= c < 0xE000]
    blocks = ["".join(f"a{c}1{c}!{c} {c}'{c}\u0316a" for c in points[at:at + 64])
              for at in range(0, len(points), 64)]
    rows = []
    for steps, normalizer in (
            (in_sequence(pre_tokenizers.Digits(True), regex=True), None),  # SmolLM2
            (in_sequence(LLAMA3), None),
            (in_sequence(LLAMA3.replace("{1,3}", "")), normalizers.NFC()),  # Qwen2
            (in_sequence(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3),
             None),
            (pre_tokenizers.ByteLevel(add_prefix_space=True), None)):
        tokenizer = edges()
        tokenizer.pre_tokenizer = steps
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        rows.append(hashed(tokenizer, samples + blocks))
    return rows


def hashed(tokenizer: Tokenizer, samples: list[str], decoded: bool = False) -> list:
    """FNV-1a of the ids of the samples and of the texts that they decode to."""
    value = 0xCBF29CE484222325
    for text in samples:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        for number in ids + list(tokenizer.decode(ids).encode() if decoded else b""):
            value = (value ^ number) * 0x100000001B3 % 2**64
    state = json.loads(tokenizer.to_str())
    return [state["pre_tokenizer"], state["normalizer"], value]


SPACE = "\u2581"


def fallback() -> Tokenizer:
    """A small BPE with byte_fallback, as LLaMA-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, limit_alphabet=40)
    tokenizer.train_from_iterator([text for text in FIXED if "<" not in text] * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    control = ["<unk>", "<s>", "</s>"]
    tokens = control + [f"<0x{byte:02X}>" for byte in range(256)] + list(model["vocab"])
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges,
                                     unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken("upon a", normalized=False, lstrip=True),
                          AddedToken("sea", normalized=False, rstrip=True),
                          AddedToken("\t\t", normalized=False, lstrip=True, rstrip=True),
                          AddedToken("two words", normalized=True)])
    return tokenizer


def fallback_vectors(tokenizer: Tokenizer, samples: list[str]) -> list[list]:
    """The result of hashed() for LLaMA-2's tokenizer, Gemma's and each Metaspace."""
    visible = normalizers.Replace(" ", SPACE)
    rows = []
    for normalizer, steps in (
            (normalizers.Sequence([normalizers.Prepend(SPACE), visible]), None),
            (visible, pre_tokenizers.Split(" ", "merged_with_previous")),
            *((None, pre_tokenizers.Metaspace(SPACE, scheme, split))
              for split in (False, True) for scheme in ("never", "first", "always")),
            (None, pre_tokenizers.Sequence([pre_tokenizers.Metaspace(SPACE, "first", split=False),
                                            pre_tokenizers.Digits(True)]))):
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, steps
        rows.append(hashed(tokenizer, samples, decoded=True))
    return rows


def main() -> None:
    rng = random.Random(SEED)
    samples = texts(rng)
    large, little = gpt2(), small()
    little.save(str(HERE / "small_tokenizer.json"), pretty=False)
    vectors = {
        "gpt2": bpe_vectors(large, samples, rng),
        "small": bpe_vectors(little, SMALL_EXTRA + samples, rng),
        "longcrawl64": longcrawl64_vectors(large, samples),
        "sentencepiece": sentencepiece_vectors(samples, rng),
    }
    pretokenizers = [json.dumps(row) for row in pretokenizer_vectors(samples)]
    lines = ['"pretokenizers": [\n' + ",\n".join(pretokenizers) + "]"]
    bytewise = fallback()
    bytewise.save(str(HERE / "fallback_tokenizer.json"), pretty=False)
    rows = [json.dumps(row) for row in fallback_vectors(bytewise, samples + FALLBACK_EXTRA)]
    lines.append('"fallback": [\n' + ",\n".join(rows) + "]")
    for name, groups in vectors.items():
        body = ",\n".join(
            json.dumps(group) + ": [\n"
            + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]"
            for group, rows in groups.items())
        lines.append(json.dumps(name) + ": {\n" + body + "}")
    edges().save(str(HERE / "edges_tokenizer.json"), pretty=False)
    (HERE / "vectors.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
