"""Seeds of tokenizers: JSON, text and sentencepiece files, and the settings beside them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable

from seed_forms import Seeds, hostile, proto, sections, table

Writer = Callable[..., bytes]
TEXT = b"abc ab'll  12 \xc3\xa9\n<|e|>cab"
VOCAB, MERGES = {"ab": 256, "abc": 257}, ["a b", "ab c"]
ROLES = {"bos_token": "<|e|>", "eos_token": "<|e|>", "unk_token": None}


def gpt2_files(vocab: dict, merges: list, config: object = "", flag: bytes = b"\x01",
               said: bytes = TEXT, *last: object) -> bytes:
    """An odd first byte adds the 256 bytes to the vocabulary."""
    lines = "".join(f"{line}\n" for line in ["#version: 0.2"] + merges)
    return sections(vocab, lines, config, said, *last, first=flag)


def tokenizer_json(vocab: dict, merges: list, config: object = "", flag: bytes = b"\x01",
                   said: bytes = TEXT, **more: object) -> bytes:
    """As above."""
    file = {"model": {"type": "BPE", "vocab": vocab, "merges": merges},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
            "decoder": {"type": "ByteLevel"}, "added_tokens": []}
    return sections({**file, **more}, config, said, first=flag)


def byte_level_seeds(tokenizer: Writer) -> Seeds:
    """Vocabularies and merges, in the files that `tokenizer` writes."""
    vocab, merges = VOCAB, MERGES
    for name, (words, rules) in {
            "valid": (vocab, merges), "id_of_a_byte": ({"ab": 7, "abc": 256}, merges),
            "merge_twice": (vocab, [*merges, "a b"]),
            "names_alike": ({"\u0120x": 256, " x": 257}, [])}.items():
        yield name, tokenizer(words, rules)
    yield "valid_order", tokenizer({"ab": 256, "bc": 257, "abc": 258, "aba": 259},
                                   ["b c", "a b", "a bc", "ab a", "ab c"], said=b"abcababcbcabab")
    yield "valid_long", tokenizer({"aa": 256, "aaaa": 257}, ["a a", "aa aa"], said=b"a" * 300)
    yield "valid_prefix_space", tokenizer(vocab, merges, {"add_prefix_space": True})
    yield "valid_space_first", tokenizer(vocab, merges, {"add_prefix_space": True}, said=b" ab")
    yield "no_bytes", tokenizer(vocab, merges, flag=b"\0")
    yield "byte_missing", tokenizer({"ab": 0}, [], flag=b"\0")
    for name, said in (("not_utf8", b"ab\xff\xc3"),
                       ("valid_escapes", '"\\\b\f\r\t\x01\x7f\U0001f600'.encode()),
                       ("valid_contractions", b"'s't'm'd're've'll'rx'vx'la'x '  's \n' ")):
        yield name, tokenizer(vocab, merges, said=said)


def gpt2_files_seeds() -> Seeds:
    """The files beside vocab.json and merges.txt."""
    end = {"<|e|>": 258, "<|p|>": 259, "<|x|>": 260}
    token = {"content": "<|e|>", "lstrip": True, "rstrip": False, "normalized": False,
             "single_word": False, "special": True}
    named = {"bos_token": "<|e|>", "pad_token": "<|p|>", "additional_special_tokens": ["<|x|>"]}
    listed = {str(v): {"content": k} for k, v in end.items()}
    strips = {"258": {"content": "ll", "lstrip": True, "rstrip": True, "special": True},
              "259": {"content": "<n>", "normalized": True}}

    def beside(config: object, added: object = "", special: object = "", said: bytes = TEXT,
               vocab: dict = VOCAB) -> bytes:
        return gpt2_files(vocab, MERGES, config, b"\1", said, added, special)

    yield from table({
        "valid_roles": beside(dict(ROLES, add_bos_token=True, tokenizer_class="JSONGPT2Tokenizer"),
                              vocab={**VOCAB, "<|e|>": 258}),
        "valid_end_of_text": beside("", vocab={**VOCAB, "<|endoftext|>": 258}),
        "valid_added_file": beside(named, end), "valid_special": beside("{}", end, named),
        "valid_added_again": beside(dict(named, add_bos_token=True, added_tokens_decoder=listed),
                                    end),
        "valid_added_alone": beside(dict(named, pad_token=None, added_tokens_decoder=listed))})
    for number, said in enumerate((TEXT, "  ll", "a\u00a0\u3000ll \u3000", "b ll <n>ll", "a<n",
                                   "<n>x<n>")):
        yield f"valid_strip_{number}", beside({"added_tokens_decoder": strips}, said=said)
    config = dict(named, add_bos_token=True, add_prefix_space=False, bos_token=token,
                  added_tokens_decoder={"258": token}, tokenizer_class="GPT2Tokenizer")
    for name, content in hostile(config, bos_token=(dict(token, single_word=True), "<none>"),
                                 added_tokens_decoder=tuple({key: token} for key in (
                                     "-1", "x", "99999999999", "", " 7", "07"))):
        yield f"config_{name}", beside(content)
    for number, lines in enumerate((b"a b", b"\na b\n", b"ab\n", b"a \n", b"a b\r\n")):
        yield f"merges_{number}", sections({"ab": 256}, lines, "", TEXT, first=b"\1")


def tokenizer_json_seeds() -> Seeds:
    """A file with every part, and each part in its forms, the others right."""
    token = {"id": 258, "content": "<|e|>", "special": True, "normalized": False, "lstrip": False,
             "rstrip": True, "single_word": False}
    end, text, level = ({"SpecialToken": {"id": "<|e|>"}}, {"Sequence": {"id": "A"}},
                        {"type": "ByteLevel"})
    model = {"type": "BPE", "vocab": VOCAB, "merges": MERGES}

    def sequence(key: str, *parts: object) -> dict:
        return {"type": "Sequence", key: list(parts)}

    def template(single: object, ids: object) -> dict:
        return {"type": "TemplateProcessing", "single": single, "special_tokens": ids}

    def split(kind: str, pattern: str, **options: object) -> dict:
        return {"type": "Split", "pattern": {kind: pattern}, "behavior": "Isolated", **options}

    post = template([end, text, end], {"<|e|>": {"ids": [258]}})
    whole = {"model": model, "pre_tokenizer": dict(level, add_prefix_space=False), "decoder": level,
             "normalizer": None, "added_tokens": [token], "post_processor": post}
    yield "valid_whole", sections(whole, ROLES, TEXT, first=b"\1")
    yield from table({"file_not_json": b"\0{", "file_array": b"\0[]"})
    replaced = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    fallback = {**model, "byte_fallback": True,
                "vocab": {**{f"<0x{byte:02X}>": byte for byte in range(256)}, "a": 256, "b": 257,
                          "ab": 259}, "merges": ["a b"]}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "split": False}
    yield "valid_fallback", sections(
        {"model": fallback, "added_tokens": [token], "pre_tokenizer": metaspace,
         "decoder": sequence("decoders", replaced, {"type": "ByteFallback"}, {"type": "Fuse"})},
        "", TEXT, first=b"\1")
    parts = {
        "model": tuple(dict(model, **{key: value}) for key, value in (
            ("merges", [["a", "b"]]), ("merges", [["", "a"]]), ("ignore_merges", True))),
        "pre_tokenizer": (sequence("pretokenizers", level), sequence("pretokenizers"),
                          sequence("pretokenizers", level, level), {"type": "Other"},
                          dict(level, add_prefix_space=True, use_regex=True),
                          *(sequence("pretokenizers", step, level) for step in (
                              {"type": "Digits", "individual_digits": True}, {"type": "Split"},
                              split("String", "b"), split("String", "b", invert=True),
                              split("Regex", r"\s*[^\p{L}]|(?i:b)(?!c)"),
                              split("Regex", r"\h"), split("Regex", "(a|b)+$"),
                              *(split("Regex", "b", behavior=behavior) for behavior in (
                                  "Removed", "MergedWithPrevious", "MergedWithNext",
                                  "Contiguous", "Other"))))),
        "decoder": (sequence("decoders", level, level), sequence("decoders", level)),
        "normalizer": ({"type": "NFC"}, sequence("normalizers", {"type": "NFC"})),
        "added_tokens": ([token, token], [dict(token, content="x" * 600)],
                         *([dict(token, **{key: value})] for key, value in (
                             ("id", -1), ("content", ""), ("single_word", True)))),
        "post_processor": (level, sequence("processors", level, post),
                           sequence("processors", post, post), *(
                               template(single, {"<|e|>": {"ids": [256]}}) for single in (
                                   1, [1], [{}], [text, text], [text, end],
                                   [{"SpecialToken": {"id": "~/x~2" + "9" * 30}}])),
                           *(template([end], ids) for ids in (
                               None, {}, {"<|e|>": {}}, {"<|e|>": {"ids": [99999]}},
                               {"<|e|>": {"ids": [-1]}})))}
    for name, file in hostile(whole, **parts):
        yield f"part_{name}", sections(file, ROLES, "abc ab", first=b"\1")


NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def piece(text: bytes | str, kind: int = NORMAL, score: float = 0) -> bytes:
    return proto({1: {1: text, 2: float(score), 3: kind}})


def pieces(*texts: str, kind: int = NORMAL) -> bytes:
    return b"".join(piece(text, kind) for text in texts)


START = piece("<unk>", UNKNOWN) + piece("<s>", CONTROL) + piece("</s>", CONTROL)
LETTERS = (piece("a", score=-3) + piece("b", score=-4) + piece("ab", score=-1)
           + piece("\u2581", score=-2) + piece("\u2581ab", score=-0.5))
BPE = proto({2: {3: 2}})
RIGHT = START + LETTERS + BPE


def raw(model: bytes, text: str | bytes = "ab  abba \u00e9\u2581 <s>x", window: int = 8,
        first: int = 1) -> bytes:
    """A whole model, behind an odd first byte."""
    said = text.encode() if isinstance(text, str) else text
    return bytes((first, window, 2, len(said))) + said + model


def sentencepiece_seeds() -> Seeds:
    """Whole models; then models that the target puts together."""
    byte_pieces = pieces(*(f"<0x{value:02X}>" for value in range(256)), kind=BYTE)
    for number, kind in enumerate((1, 3, 4, 9)):
        yield f"kind_{number}", raw(START + LETTERS + proto({2: {3: kind}}))
    unused = b"".join(piece(text, score=score)
                      for text, score in (("ab", -2), ("ba", -3), ("abab", -6)))
    yield "valid_unused", raw(START + piece("a", score=-9) + piece("b", score=-9) + unused
                              + piece("bab", UNUSED, -4) + BPE, "abbabababbbabaababab" * 3, 0)
    yield "valid_user", raw(RIGHT + pieces("<sep>", "<se", kind=USER) + piece("x", UNUSED),
                            "a<sep>b<se xab", 3)
    yield "valid_users", raw(RIGHT + pieces("abc", "abcd", "xb", "xbc", kind=USER), "abcdbcabc")
    yield "valid_without_bos", raw(piece("<unk>", UNKNOWN) + LETTERS + BPE)
    yield "valid_not_added", raw(RIGHT, first=3)
    yield "valid_empty_text", raw(RIGHT + proto({3: {4: 0}}), "")
    yield "text_bad_utf8", raw(RIGHT, b"ab\xff")
    yield "unknown_missing", raw(LETTERS + BPE)
    yield "unknown_only", raw(piece("<unk>", UNKNOWN))
    for name, settings in (("no_prefix", {3: 0}), ("spaces", {4: 0}), ("plain", {3: 0, 4: 0}),
                           ("unescaped", {5: 0}), ("escaped", {3: 0, 4: 0, 5: 1})):
        yield f"valid_{name}", raw(RIGHT + proto({3: settings}))
        yield f"valid_{name}_space_first", raw(RIGHT + proto({3: settings}), " ab", first=3)
    odd = proto({1: {1: ["z", 5], 2: ["x", 1.0], 3: [7, 0]}})  # fields of other types, too
    for name, more in {
            "valid_bpe": b"", "valid_bytes": byte_pieces + proto({2: {35: 1}}),
            "valid_suffix": proto({2: {24: 1}, 3: {4: 0}}), "valid_surface": proto({2: {44: " ?"}}),
            "valid_names": proto({2: {46: "</s>", 47: "<s>"}}),
            "valid_bos_is_a_piece": proto({2: {46: "a"}}), "valid_half_known": piece("ac"),
            "valid_other_types": odd + proto({2: {3: "x", 24: "x", 35: "x", 44: 1, 46: 1, 47: 1},
                                              3: {2: 1}, 5: {2: 1, 3: "x"}, 1: 5}),
            "valid_charsmap": proto({3: {2: charsmap(chained(1), b"x\0")}}),
            "piece_score_huge": piece("z", 1, 3e38) + piece("zz", 1, -3e38),
            "pieces_many": pieces(*(chr(0xC0 + i // 64) + chr(0xC0 + i % 64) for i in range(300))),
            **{f"byte_{i}": piece(text, BYTE)
               for i, text in enumerate(("[0x00>", "<0x00]", "<0x0g>", "<0xG0>"))}}.items():
        yield name, raw(RIGHT + more, "aab" if "charsmap" in name else "ab  abba \u00e9\u2581 <s>x")
    yield "composed", bytes(range(0, 250, 2))
    yield "composed_bytes", bytes((0, 30, 1, 9)) + b"a ab\xe2\x96\x81 " + bytes(range(1, 200))


KEPT, LEAF = 1 << 31, 1 << 8  # of a unit: a value, there is a value


def charsmap(units: dict[int, int], texts: bytes, blocks: int = 2) -> bytes:
    """A double array and its replacements."""
    values = [units.get(i, KEPT) for i in range(256 * blocks)]
    return struct.pack("<I", 1024 * blocks) + struct.pack(f"<{len(values)}I", *values) + texts


def chained(depth: int) -> dict[int, int]:
    """States of one letter each, and a replacement on each way there."""
    units = {0: 256 << 10}
    for i in range(depth):
        at = (256 + i) ^ ord("a")
        units[at] = (at ^ (257 + i)) << 10 | LEAF | ord("a")
    return units


def charsmap_seeds() -> Seeds:
    a, root = 256 ^ ord("a"), {0: 256 << 10}

    def to(state: int, *letters: int) -> dict[int, int]:
        return {256 ^ c: (256 ^ c ^ state) << 10 | LEAF | c for c in letters or (ord("a"),)}

    cycle = {**root, **to(0), 256: KEPT}
    for name, (units, texts, blocks) in {
            "valid": ({**root, **to(512), 512: KEPT}, b"x\0", 3), "cycle": (cycle, b"x\0", 2),
            "valid_shared": ({**root, **to(512, *b"ab"), 512: KEPT}, b"x\0", 3),
            "root_outside": ({0: 4000 << 10}, b"x\0", 2),
            "state_outside": ({**root, a: (1 << 20) << 10 | ord("a")}, b"x\0", 2),
            "unterminated": (cycle, b"x", 2), "replacement_long": (cycle, b"x" * 2000 + b"\0", 2),
            "replacement_outside": ({**root, **to(512), 512: KEPT | 77}, b"x\0", 3)}.items():
        yield name, b"\1\3aab" + charsmap(units, texts, blocks)
    for depth in (32, 33):
        yield f"nested_{depth}", b"\1\x28" + b"a" * 40 + charsmap(chained(depth), b"x\0")
    yield "header_cut", b"\1\0abc"
    for size, rest in ((16 << 20, 100), (1000, 1002), (0, 4), (1024, 100)):
        yield f"size_{size}", b"\1\0" + struct.pack("<I", size) + bytes(rest)
    yield "composed", b"\0\3abc\1\1\0\1\x14" + bytes(range(120))
    yield "composed_deep", b"\0\5aaaaa\3\1\0\0\x3f" + b"\0\1\1\0\1\0\1\1\1\0\2\1\1\0\2\0" * 12


TOKENIZER_SEEDS: dict[str, Seeds] = {
    "sentencepiece": sentencepiece_seeds(),
    "charsmap": charsmap_seeds(),
    "gpt2_files": itertools.chain(byte_level_seeds(gpt2_files), gpt2_files_seeds()),
    "tokenizer_json": itertools.chain(byte_level_seeds(tokenizer_json), tokenizer_json_seeds())}
