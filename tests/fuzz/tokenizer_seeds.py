"""Seeds of tokenizers: JSON, text and sentencepiece files, and the settings beside them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable

from seed_forms import Seeds, changed, proto, sections, table, varint

Writer = Callable[..., bytes]
TEXT = b"abc ab'll  12 \xc3\xa9\n<|e|>cab"
VOCAB, MERGES = {"ab": 256, "abc": 257}, ["a b", "ab c"]
ROLES = {"bos_token": "<|e|>", "eos_token": "<|e|>", "unk_token": None}


def tokenizer_config_seeds() -> Seeds:
    token = {"content": "<s>", "lstrip": True, "rstrip": False, "normalized": False,
             "single_word": False, "special": True}
    main = {"tokenizer_class": "JSONGPT2Tokenizer", "add_bos_token": True, "bos_token": token,
            "add_prefix_space": False, "unk_token": None, "additional_special_tokens": ["<x>"],
            "added_tokens_decoder": {"7": token, "258": dict(token, content="<y>")}}
    special = {"bos_token": "<b>", "eos_token": "</s>", "additional_special_tokens": [token]}
    for name, files in {
            "valid": (main, special, {"<z>": 300}), "valid_nothing": ("",), "array": ([],),
            "additional_number": (main, {"additional_special_tokens": [1]}),
            "main_not_json": ("{",), "special_not_json": ("{}", "{"),
            "added_float": (main, special, {"<z>": 1.5}), "added_array": (main, special, []),
            "valid_nulls": (dict(
                main, additional_special_tokens=None, added_tokens_decoder=None, add_bos_token=1,
                bos_token=dict(token, special=1, lstrip="x")),)}.items():
        yield name, sections(*files, *[""] * (3 - len(files)))
    ids = ("-1", "x", "99999999999", "", " 7", "07")
    for name, content in changed(main, {
            "bos_token": (1, dict(token, single_word=True)), "eos_token": ({"lstrip": True},),
            "additional_special_tokens": ("<x>",),
            "added_tokens_decoder": ({"7": 1}, [token], *({key: token} for key in ids))}):
        yield name, sections(content, "", "")


def gpt2_files(vocab: dict, merges: list, config: object = "", flag: bytes = b"\x01",
               said: bytes = TEXT, last: object = "") -> bytes:
    """An odd first byte adds the 256 bytes to the vocabulary."""
    lines = "".join(f"{line}\n" for line in ["#version: 0.2"] + merges)
    return sections(vocab, lines, config, said, *filter(None, [last]), first=flag)


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
            "valid": (vocab, merges), "id_gap": ({"ab": 256, "abc": 258}, merges),
            "id_twice": ({"ab": 256, "abc": 256}, merges),
            "id_of_a_byte": ({"ab": 7, "abc": 256}, merges), "id_negative": ({"ab": -1}, []),
            "id_huge": ({"ab": 1 << 40}, []), "id_outside": ({"ab": 5000}, []),
            "merge_unknown": (vocab, [*merges, "x yz"]), "merge_three": (vocab, ["a b c"]),
            "merge_unknown_left": (vocab, [*merges, "xy z"]), "merge_empty": (vocab, [" b"]),
            "merge_no_product": ({"ab": 256}, merges), "merge_twice": (vocab, [*merges, "a b"]),
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
    tokenizer, vocab, merges, text = gpt2_files, VOCAB, MERGES, TEXT
    end = {"<|e|>": 258, "<|p|>": 259, "<|x|>": 260}
    named = {"bos_token": "<|e|>", "pad_token": "<|p|>", "additional_special_tokens": ["<|x|>"]}
    listed = {str(v): {"content": k} for k, v in end.items()}
    yield "valid_roles", tokenizer({**vocab, "<|e|>": 258}, merges, dict(
        ROLES, add_bos_token=True, tokenizer_class="JSONGPT2Tokenizer"))
    yield "valid_end_of_text", tokenizer({**vocab, "<|endoftext|>": 258}, merges)
    yield "valid_added_file", tokenizer(vocab, merges, named, last=end)
    yield "valid_added_again", tokenizer(vocab, merges, dict(
        named, add_bos_token=True, added_tokens_decoder={
            k: dict(v, special=k == "259") for k, v in listed.items()}), last=end)
    yield "added_file_other_id", tokenizer({**vocab, "<|e|>": 258}, merges, last={"<|e|>": 7})
    yield "added_file_id_negative", tokenizer(vocab, merges, last={"<|e|>": -1})
    for name, config in {
            "role_unknown": {"bos_token": "<none>"},
            "added_in_vocab": {"added_tokens_decoder": {"258": {"content": "ab"}}},
            "valid_added_alone": dict(named, pad_token=None, added_tokens_decoder=listed),
            "valid_bos_missing": {"add_bos_token": True, "bos_token": None}}.items():
        yield name, tokenizer(vocab, merges, config)
    strips = {"258": {"content": "ll", "lstrip": True, "rstrip": True, "special": True},
              "259": {"content": "<n>", "normalized": True}}
    for number, said in enumerate((TEXT, "  ll", "a\u00a0\u3000ll \u3000", "b ll <n>ll", "a<n",
                                   "ll", "<n>x<n>")):
        yield f"valid_strip_{number}", tokenizer(vocab, merges, {"added_tokens_decoder": strips},
                                                 said=said)
    for number, lines in enumerate((b"a b", b"\na b\n", b"ab\n", b"a \n", b"a b\r\n")):
        yield f"merges_{number}", sections({"ab": 256}, lines, "", text, first=b"\1")
    for number, words in enumerate(("[]", "{")):
        yield f"vocab_{number}", sections(words, "a b\n", "", text, first=b"\0")


def tokenizer_json_seeds() -> Seeds:
    tokenizer, vocab, merges = tokenizer_json, VOCAB, MERGES
    added = {"id": 258, "content": "<|e|>", "special": True, "normalized": False,
             "lstrip": False, "rstrip": True, "single_word": False}
    end = {"SpecialToken": {"id": "<|e|>"}}
    template = {"type": "TemplateProcessing", "single": [end, {"Sequence": {"id": "A"}}, end],
                "special_tokens": {"<|e|>": {"ids": [258]}}}
    yield "valid_added", tokenizer(vocab, merges, ROLES, added_tokens=[added],
                                   post_processor=template)
    for name, rules in {"valid_pairs": [["a", "b"], ["ab", "c"]], "merge_left_empty": [["", "a"]],
                        "merge_right_empty": [["a", ""]]}.items():
        yield name, tokenizer(vocab, rules)
    sequence = {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "use_regex": False}]}
    for part, forms in {
            "added_tokens": ([added, added], [dict(added, content="")],
                             [dict(added, content="x" * 600)], ["<|e|>"]),
            "post_processor": (
                dict(template, special_tokens={"<|e|>": {"ids": [99999]}}),
                dict(template, special_tokens={}),
                dict(template, single=[{"SpecialToken": {"id": "9" * 30}}],
                     special_tokens=[{"ids": [258]}]),
                dict(template, single=[{"SpecialToken": {"id": "~/x~2"}}])),
            "normalizer": ({"type": "NFC"},), "pre_tokenizer": (None, sequence),
            "model": ({"type": "Unigram"}, {"vocab": vocab, "merges": merges,
                                            "ignore_merges": True, "dropout": None},
                      {"vocab": {**vocab, " x": 258}, "merges": [], "ignore_merges": True},
                      {"vocab": vocab, "merges": [], "ignore_merges": 1})}.items():
        for number, form in enumerate(forms):
            yield f"{part}_{number}", tokenizer(vocab, merges, **{part: form})
    yield "file_not_json", b"\0{"
    yield "file_array", b"\0[]"


def tokenizer_json_part_seeds() -> Seeds:
    """Each part of a tokenizer.json in its forms, the others right."""
    model = {"type": "BPE", "vocab": {"ab": 256}, "merges": ["a b"]}
    level, other = {"type": "ByteLevel"}, {"type": "Other"}
    special, text = {"SpecialToken": {"id": "<e>"}}, {"Sequence": {"id": "A"}}
    added = {"id": 257, "content": "<e>"}

    def sequence(key: str, value: object) -> dict:
        return {"type": "Sequence", key: value}

    def template(single: object, ids: object) -> dict:
        return {"type": "TemplateProcessing", "single": single, "special_tokens": ids}

    def post(single: object) -> dict:
        return template(single, {"<e>": {"ids": [256]}})

    def split(kind: str, pattern: str, **options: object) -> dict:
        return {"type": "Split", "pattern": {kind: pattern}, "behavior": "Isolated", **options}

    both = post([special, text])
    models = [dict(model, **{key: value}) for key, value in (
        ("type", "WordPiece"), ("continuing_subword_prefix", "##"), ("end_of_word_suffix", "</w>"),
        ("dropout", 0.5), ("dropout", 0), ("vocab", ["ab"]), ("vocab", {"ab": -1}), ("merges", {}),
        ("merges", ["ab"]), ("merges", ["a b c"]), ("merges", [["a"]]), ("merges", [[1, "b"]]),
        ("merges", [["a", 1]]), ("merges", [1]))]
    right = {"model": model, "pre_tokenizer": level, "decoder": level}
    for name, file in changed(right, {
            "model": (None, 1, {"merges": []}, {"vocab": {}}, *models),
            "pre_tokenizer": ({}, other, sequence("x", 1), sequence("pretokenizers", 1), 1,
                              sequence("pretokenizers", [level, level]),
                              sequence("pretokenizers", []), sequence("pretokenizers", [other]),
                              dict(level, add_prefix_space=True, use_regex=True),
                              *(sequence("pretokenizers", [step, level]) for step in (
                                  {"type": "Digits", "individual_digits": True}, {"type": "Split"},
                                  split("String", "b"), split("String", "b", invert=True),
                                  split("Regex", r"\s*[^\p{L}]|(?i:b)(?!c)"),
                                  split("Regex", r"\h"), split("Regex", "(a|b)+$"),
                                  *(split("Regex", "b", behavior=behavior) for behavior in (
                                      "Removed", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous", "Other"))))),
            "decoder": (None, {}, other, sequence("decoders", [level, level]),
                        sequence("decoders", [level])),
            "normalizer": ({}, 1, {"type": "NFC"}, sequence("normalizers", [{"type": "NFC"}])),
            "added_tokens": (None, 1, ["<e>"], [added], [dict(added, id=-1)],
                             [dict(added, single_word=True)], [{"id": 257}], [{"content": "<e>"}],
                             [1]),
            "post_processor": (
                None, {}, other, level, both, sequence("processors", [level, both]),
                sequence("processors", [both, both]), sequence("processors", [post(1)]),
                {"type": "TemplateProcessing"}, *map(post, (1, [1], [{}], [text, text],
                                                            [text, special])),
                *(template([special], ids) for ids in (
                    {"<e>": {}}, {"<e>": {"ids": 1}}, {"<e>": {"ids": [-1]}}, None)))}):
        yield f"part_{name}", sections(file, "", "abc ab", first=b"\1")


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
            "charsmap_bad_utf8": proto({3: {2: charsmap(chained(1), b"\xff\0")}}),
            "charsmap_short": proto({3: {2: b"abc"}}), "not_a_message": b"\xff" * 20,
            "piece_empty": piece(""), "piece_twice": piece("a"), "piece_nul": piece("a\0b"),
            "piece_bad_utf8": piece(b"\xc3("), "piece_long": piece("x" * 4097),
            "piece_cut": proto({1: b"\x0a\x05ab"}), "piece_score_nan": piece("z", 1, float("nan")),
            "piece_score_huge": piece("z", 1, 3e38) + piece("zz", 1, -3e38),
            "pieces_many": pieces(*(chr(0xC0 + i // 64) + chr(0xC0 + i % 64) for i in range(300))),
            "users_nested": pieces(*("z" * (i + 1) for i in range(65)), kind=USER),
            "unknown_twice": piece("<unk2>", UNKNOWN), "bytes_unasked": byte_pieces,
            "bytes_few": piece("<0x00>", BYTE) + proto({2: {35: 1}}),
            "surface_bad_utf8": proto({2: {44: b"\xff"}}), "denormalizer": proto({5: {2: b"x"}}),
            **{f"byte_{i}": piece(text, BYTE)
               for i, text in enumerate(("[0x00>", "<0x00]", "<0x0g>", "<0xG0>"))}}.items():
        yield name, raw(RIGHT + more, "aab" if "charsmap" in name else "ab  abba \u00e9\u2581 <s>x")
    yield "composed", bytes(range(0, 250, 2))
    yield "composed_bytes", bytes((0, 30, 1, 9)) + b"a ab\xe2\x96\x81 " + bytes(range(1, 200))


def proto_wire_seeds() -> Seeds:
    yield from table({
        "valid": proto({1: 300, 2: b"ab\x08\x01", 3: 1.5}),
        "valid_fixed64": varint(1 << 3 | 1) + bytes(8) + proto({1 << 28: 1}),
        "group": varint(1 << 3 | 3) + proto({2: 1}) + varint(1 << 3 | 4), "field_zero": b"\0\1",
        "varint_long": b"\x08" + b"\xff" * 10 + b"\x01", "varint_cut": b"\x08\x80",
        "varint_eleven": b"\x08" + b"\x80" * 10 + b"\x00", "varint_of_64_bits": proto({1: -1}),
        "tag_of_seven_bytes": b"\x88\x80\x80\x80\x80\x80\x00\x01",
        "tag_of_35_bits": b"\xf8\xff\xff\xff\x7f\x00",
        "length_of_six_bytes": b"\x12\x80\x80\x80\x80\x80\x00",
        "length_huge": b"\x12" + varint(1 << 63), "length_past_the_end": b"\x12\x05abc",
        "wire_type": b"\x0e\x00"})


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
    "tokenizer_config": tokenizer_config_seeds(), "sentencepiece": sentencepiece_seeds(),
    "charsmap": charsmap_seeds(), "proto_wire": proto_wire_seeds(),
    "gpt2_files": itertools.chain(byte_level_seeds(gpt2_files), gpt2_files_seeds()),
    "tokenizer_json": itertools.chain(byte_level_seeds(tokenizer_json), tokenizer_json_seeds(),
                                      tokenizer_json_part_seeds())}
