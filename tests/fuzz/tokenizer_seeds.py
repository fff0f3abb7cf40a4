"""Seeds of tokenizers: JSON, text and sentencepiece files, and the settings beside them."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterator

from proto_seeds import float32, message, number, varint

BETWEEN = b"\n%%\n"
Seeds = Iterator[tuple[str, bytes]]
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

    def files(first: object, second: object = "", third: object = "") -> bytes:
        return BETWEEN.join(b"" if part == "" else json.dumps(part).encode()
                            for part in (first, second, third))

    yield "valid", files(main, special, {"<z>": 300})
    yield "valid_nothing", files("")
    yield "array", files([])
    yield "role_number", files(dict(main, bos_token=1))
    yield "single_word", files(dict(main, bos_token=dict(token, single_word=True)))
    yield "no_content", files(dict(main, eos_token={"lstrip": True}))
    yield "additional_text", files(dict(main, additional_special_tokens="<x>"))
    yield "additional_number", files(main, {"additional_special_tokens": [1]})
    for key in ("-1", "x", "99999999999", "", " 7", "07"):
        yield f"id_{key.strip() or 'empty'}", files(dict(main, added_tokens_decoder={key: token}))
    flags = dict(token, special=1, lstrip="x")
    yield "valid_nulls", files(dict(main, additional_special_tokens=None, bos_token=flags,
                                    added_tokens_decoder=None, add_bos_token=1))
    yield "decoder_number", files(dict(main, added_tokens_decoder={"7": 1}))
    yield "main_not_json", b"{"
    yield "special_not_json", b"{}" + BETWEEN + b"{"
    yield "decoder_array", files(dict(main, added_tokens_decoder=[token]))
    yield "added_float", files(main, special, {"<z>": 1.5})
    yield "added_array", files(main, special, [])


def gpt2_files(vocab: dict, merges: list, config: object = "", flag: bytes = b"\x01",
               said: bytes = TEXT, last: object = "") -> bytes:
    """An odd first byte adds the 256 bytes to the vocabulary."""
    lines = "".join(f"{line}\n" for line in ["#version: 0.2"] + merges).encode()
    files = [json.dumps(vocab).encode(), lines,
             b"" if config == "" else json.dumps(config).encode(), said]
    if last != "":
        files.append(json.dumps(last).encode())
    return flag + BETWEEN.join(files)


def tokenizer_json(vocab: dict, merges: list, config: object = "", flag: bytes = b"\x01",
                   said: bytes = TEXT, **more: object) -> bytes:
    """As above."""
    file = {"model": {"type": "BPE", "vocab": vocab, "merges": merges},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
            "decoder": {"type": "ByteLevel"}, "added_tokens": []}
    file.update(more)
    config_text = b"" if config == "" else json.dumps(config).encode()
    return flag + BETWEEN.join((json.dumps(file).encode(), config_text, said))


def byte_level_seeds(tokenizer: Writer) -> Seeds:
    """Vocabularies and merges, in the files that `tokenizer` writes."""
    vocab, merges = VOCAB, MERGES
    yield "valid", tokenizer(vocab, merges)
    yield "valid_order", tokenizer({"ab": 256, "bc": 257, "abc": 258, "aba": 259},
                                   ["b c", "a b", "a bc", "ab a", "ab c"], said=b"abcababcbcabab")
    yield "valid_prefix_space", tokenizer(vocab, merges, {"add_prefix_space": True})
    yield "no_bytes", tokenizer(vocab, merges, flag=b"\0")
    yield "id_gap", tokenizer({"ab": 256, "abc": 258}, merges)
    yield "id_twice", tokenizer({"ab": 256, "abc": 256}, merges)
    yield "id_of_a_byte", tokenizer({"ab": 7, "abc": 256}, merges)
    yield "id_negative", tokenizer({"ab": -1}, [])
    yield "id_huge", tokenizer({"ab": 1 << 40}, [])
    yield "merge_unknown", tokenizer(vocab, merges + ["x yz"])
    yield "merge_unknown_left", tokenizer(vocab, merges + ["xy z"])
    yield "merge_no_product", tokenizer({"ab": 256}, merges)
    yield "merge_three", tokenizer(vocab, ["a b c"])
    yield "merge_empty", tokenizer(vocab, [" b"])
    yield "merge_twice", tokenizer(vocab, merges + ["a b"])
    yield "not_utf8_text", tokenizer(vocab, merges, said=b"ab\xff\xc3")
    yield "id_outside", tokenizer({"ab": 5000}, [])
    yield "byte_missing", tokenizer({"ab": 0}, [], flag=b"\0")
    yield "names_alike", tokenizer({"\u0120x": 256, " x": 257}, [])
    yield "valid_contractions", tokenizer(
        vocab, merges, said=b"'s't'm'd're've'll'rx'vx'la'x '  's \n' ")
    yield "valid_space_first", tokenizer(vocab, merges, {"add_prefix_space": True}, said=b" ab")
    yield "valid_text_escapes", tokenizer(vocab, merges,
                                          said='"\\\b\f\r\t\x01\x7f\U0001f600'.encode())
    yield "valid_long", tokenizer({"aa": 256, "aaaa": 257}, ["a a", "aa aa"], said=b"a" * 300)


def gpt2_files_seeds() -> Seeds:
    tokenizer, vocab, merges, text = gpt2_files, VOCAB, MERGES, TEXT
    yield "valid_roles", tokenizer(dict(vocab, **{"<|e|>": 258}), merges, dict(
        ROLES, add_bos_token=True, tokenizer_class="JSONGPT2Tokenizer"))
    yield "role_unknown", tokenizer(vocab, merges, {"bos_token": "<none>"})
    yield "added_strip", tokenizer(vocab, merges, {"added_tokens_decoder": {
        "258": {"content": "ll", "lstrip": True, "rstrip": True, "special": True}}})
    end = {"<|e|>": 258, "<|p|>": 259, "<|x|>": 260}
    named = {"bos_token": "<|e|>", "pad_token": "<|p|>", "additional_special_tokens": ["<|x|>"]}
    yield "valid_end_of_text", tokenizer(dict(vocab, **{"<|endoftext|>": 258}), merges)
    yield "valid_added_file", tokenizer(vocab, merges, named, last=end)
    yield "valid_added_again", tokenizer(vocab, merges, dict(
        named, add_bos_token=True, added_tokens_decoder={
            str(v): {"content": k, "special": k == "<|p|>"} for k, v in end.items()}), last=end)
    yield "added_file_other_id", tokenizer(dict(vocab, **{"<|e|>": 258}), merges, last={
        "<|e|>": 7})
    yield "added_file_id_negative", tokenizer(vocab, merges, last={"<|e|>": -1})
    yield "valid_added_alone", tokenizer(vocab, merges, dict(
        named, pad_token=None, added_tokens_decoder={
            str(v): {"content": k} for k, v in end.items()}))
    yield "added_in_vocab", tokenizer(vocab, merges, {"added_tokens_decoder": {
        "258": {"content": "ab"}}})
    yield "valid_bos_missing", tokenizer(vocab, merges, {"add_bos_token": True, "bos_token": None})
    strips = {"258": {"content": "ll", "lstrip": True, "rstrip": True, "special": True},
              "259": {"content": "<n>", "normalized": True}}
    for name, said in (("front", "  ll"), ("wide", "a\u00a0\u3000ll \u3000"),
                       ("both", "b ll <n>ll"), ("cut", "a<n"), ("whole", "ll"),
                       ("normalized", "<n>x<n>")):
        yield f"valid_strip_{name}", tokenizer(vocab, merges, {"added_tokens_decoder": strips},
                                               said=said.encode())
    for name, lines in (("without_end", b"a b"), ("empty_line", b"\na b\n"), ("one", b"ab\n"),
                        ("half", b"a \n")):
        yield f"merges_{name}", b"\x01" + BETWEEN.join((b'{"ab":256}', lines, b"", text))
    yield "vocab_array", b"\0" + BETWEEN.join((b"[]", b"a b\n", b"", text))
    yield "vocab_not_json", b"\0" + BETWEEN.join((b"{", b"a b\n", b"", text))
    yield "carriage_returns", b"\x01" + BETWEEN.join((b'{"ab":256}', b"a b\r\n", b"", text))


def tokenizer_json_seeds() -> Seeds:
    tokenizer, vocab, merges = tokenizer_json, VOCAB, MERGES
    added = {"id": 258, "content": "<|e|>", "special": True, "normalized": False,
             "lstrip": False, "rstrip": True, "single_word": False}
    template = {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<|e|>"}}, {"Sequence": {"id": "A"}},
        {"SpecialToken": {"id": "<|e|>"}}], "special_tokens": {"<|e|>": {"ids": [258]}}}
    yield "valid_added", tokenizer(vocab, merges, ROLES, added_tokens=[added],
                                   post_processor=template)
    yield "valid_pairs", tokenizer(vocab, [["a", "b"], ["ab", "c"]])
    yield "added_twice", tokenizer(vocab, merges, added_tokens=[added, added])
    yield "added_empty", tokenizer(vocab, merges, added_tokens=[dict(added, content="")])
    yield "added_long", tokenizer(vocab, merges, added_tokens=[dict(added, content="x" * 600)])
    yield "added_no_id", tokenizer(vocab, merges, added_tokens=["<|e|>"])
    yield "template_unknown_id", tokenizer(vocab, merges, post_processor=dict(
        template, special_tokens={"<|e|>": {"ids": [99999]}}))
    yield "template_no_id", tokenizer(vocab, merges, post_processor=dict(
        template, special_tokens={}))
    yield "normalizer", tokenizer(vocab, merges, normalizer={"type": "NFC"})
    yield "pre_tokenizer_null", tokenizer(vocab, merges, pre_tokenizer=None)
    sequence = {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "use_regex": False}]}
    yield "valid_no_regex", tokenizer(vocab, merges, pre_tokenizer=sequence)
    yield "unigram", tokenizer(vocab, merges, model={"type": "Unigram"})
    yield "valid_ignore_merges", tokenizer(vocab, merges, model={
        "vocab": vocab, "merges": merges, "ignore_merges": True, "dropout": None})
    yield "valid_ignore_plain", tokenizer(vocab, merges, model={
        "vocab": dict(vocab, **{" x": 258}), "merges": [], "ignore_merges": True})
    yield "valid_ignore_not", tokenizer(vocab, merges, model={
        "vocab": vocab, "merges": [], "ignore_merges": 1})
    yield "merge_left_empty", tokenizer(vocab, [["", "a"]])
    yield "merge_right_empty", tokenizer(vocab, [["a", ""]])
    yield "file_not_json", b"\0{"
    yield "template_index", tokenizer(vocab, merges, post_processor=dict(template, single=[
        {"SpecialToken": {"id": "9" * 30}}], special_tokens=[{"ids": [258]}]))
    yield "template_path", tokenizer(vocab, merges, post_processor=dict(template, single=[
        {"SpecialToken": {"id": "~/x~2"}}]))


def tokenizer_json_part_seeds() -> Seeds:
    """Each part of a tokenizer.json in its forms, the others right."""
    model = {"type": "BPE", "vocab": {"ab": 256}, "merges": ["a b"]}
    level, other = {"type": "ByteLevel"}, {"type": "Other"}
    special, text = {"SpecialToken": {"id": "<e>"}}, {"Sequence": {"id": "A"}}
    ids = {"<e>": {"ids": [256]}}
    added = {"id": 257, "content": "<e>"}

    def template(single: object, tokens: object = ids) -> dict:
        return {"type": "TemplateProcessing", "single": single, "special_tokens": tokens}

    both = template([special, text])
    parts = {
        "model": {"missing": None, "number": 1, "type": dict(model, type="WordPiece"),
                  "prefix": dict(model, continuing_subword_prefix="##"),
                  "suffix": dict(model, end_of_word_suffix="</w>"),
                  "dropout": dict(model, dropout=0.5), "no_dropout": dict(model, dropout=0),
                  "no_vocab": {"merges": []}, "vocab_array": dict(model, vocab=["ab"]),
                  "vocab_negative": dict(model, vocab={"ab": -1}), "no_merges": {"vocab": {}},
                  "merges_object": dict(model, merges={})},
        "merge": {"one": ["ab"], "three": ["a b c"], "pair_of_one": [["a"]],
                  "pair_number_first": [[1, "b"]], "pair_number": [["a", 1]], "number": [1]},
        "pre_tokenizer": {"no_type": {}, "other": other, "no_list": {"type": "Sequence"},
                          "list_number": {"type": "Sequence", "pretokenizers": 1},
                          "several": {"type": "Sequence", "pretokenizers": [level, level]},
                          "none": {"type": "Sequence", "pretokenizers": []},
                          "other_inside": {"type": "Sequence", "pretokenizers": [other]},
                          "number": 1, "space": dict(level, add_prefix_space=True, use_regex=True)},
        "decoder": {"missing": None, "no_type": {}, "other": other,
                    "several": {"type": "Sequence", "decoders": [level, level]},
                    "valid_sequence": {"type": "Sequence", "decoders": [level]}},
        "normalizer": {"no_type": {}, "number": 1},
        "added_tokens": {"null": None, "number": 1, "valid_text": ["<e>"], "valid": [added],
                         "id_negative": [dict(added, id=-1)],
                         "word": [dict(added, single_word=True)],
                         "no_content": [{"id": 257}], "no_id": [{"content": "<e>"}],
                         "entry_number": [1]},
        "post_processor": {"null": None, "no_type": {}, "other": other, "level": level,
                           "valid": both,
                           "valid_sequence": {"type": "Sequence", "processors": [level, both]},
                           "twice": {"type": "Sequence", "processors": [both, both]},
                           "bad_inside": {"type": "Sequence", "processors": [template(1)]},
                           "no_single": {"type": "TemplateProcessing"}, "single": template(1),
                           "piece_number": template([1]), "piece_empty": template([{}]),
                           "two_texts": template([text, text]), "behind": template([text, special]),
                           "ids_missing": template([special], {"<e>": {}}),
                           "ids_number": template([special], {"<e>": {"ids": 1}}),
                           "ids_negative": template([special], {"<e>": {"ids": [-1]}}),
                           "none_listed": template([special], None)}}
    for part, forms in parts.items():
        for name, form in forms.items():
            file = {"model": model, "pre_tokenizer": level, "decoder": level}
            file.update({"model": dict(model, merges=form)} if part == "merge" else {part: form})
            sections = (json.dumps(file).encode(), b"", b"abc ab")
            yield f"{part}_{name}", b"\x01" + BETWEEN.join(sections)
    yield "file_array", b"\0[]"


NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def piece(text: bytes | str, kind: int = NORMAL, score: float = 0) -> bytes:
    return message(1, message(1, text) + float32(2, score) + number(3, kind))


START = piece("<unk>", UNKNOWN) + piece("<s>", CONTROL) + piece("</s>", CONTROL)
LETTERS = (piece("a", score=-3) + piece("b", score=-4) + piece("ab", score=-1)
           + piece("\u2581", score=-2) + piece("\u2581ab", score=-0.5))
BPE = message(2, number(3, 2))


def raw(model: bytes, text: str | bytes = "ab  abba \u00e9\u2581 <s>x", window: int = 8,
        first: int = 1) -> bytes:
    """A whole model, behind an odd first byte."""
    said = text.encode() if isinstance(text, str) else text
    return bytes((first, window, 2, len(said))) + said + model


def sentencepiece_field_seeds() -> Seeds:
    """Fields that say more, less or something else than those of any trained model."""
    right = START + LETTERS + BPE
    odd = message(1, message(1, "z") + number(1, 5) + message(2, "x") + float32(3, 1)
                  + number(3, 7) + number(3, 0))
    yield "valid_other_types", raw(
        right + odd + message(2, message(3, "x") + message(24, "x") + message(35, "x")
                              + number(44, 1) + number(46, 1) + number(47, 1))
        + message(3, number(2, 1)) + message(5, number(2, 1) + message(3, "x")) + number(1, 5))
    yield "valid_names", raw(right + message(2, message(46, "</s>") + message(47, "<s>")))
    yield "valid_bos_is_a_piece", raw(right + message(2, message(46, "a")))
    yield "valid_without_bos", raw(piece("<unk>", UNKNOWN) + LETTERS + BPE)
    yield "valid_not_added", raw(right, first=3)
    for name, settings in (("no_prefix", number(3, 0)), ("spaces", number(4, 0)),
                           ("plain", number(3, 0) + number(4, 0)), ("unescaped", number(5, 0))):
        yield f"valid_{name}", raw(right + message(3, settings))
        yield f"valid_{name}_space_first", raw(right + message(3, settings), " ab", first=3)
    yield "valid_empty_text", raw(right + message(3, number(4, 0)), "")
    yield "valid_half_known", raw(right + piece("ac"))
    yield "text_bad_utf8", raw(right, b"ab\xff")
    yield "piece_cut", raw(right + message(1, b"\x0a\x05ab"))
    for name, text in (("bracket", "[0x00>"), ("end", "<0x00]"), ("second", "<0x0g>")):
        yield f"byte_{name}", raw(right + piece(text, BYTE))
    users = b"".join(piece(text, USER) for text in ("abc", "abcd", "xb", "xbc"))
    yield "valid_users", raw(right + users, "abcdbcabc")
    nested = b"".join(piece("z" * (i + 1), USER) for i in range(65))
    yield "users_nested", raw(right + nested)
    yield "pieces_many", raw(right + b"".join(
        message(1, message(1, chr(0xC0 + i // 64) + chr(0xC0 + i % 64))) for i in range(300)))
    for name, replacement in (("valid_charsmap", b"x\0"), ("charsmap_bad_utf8", b"\xff\0")):
        yield name, raw(right + message(3, message(2, charsmap(chained(1), replacement))), "aab")


def sentencepiece_seeds() -> Seeds:
    """Whole models; then models that the target puts together."""
    right = START + LETTERS + BPE
    byte_pieces = b"".join(piece(f"<0x{value:02X}>", BYTE) for value in range(256))
    yield "valid_bpe", raw(right)
    yield "valid_unigram", raw(START + LETTERS + message(2, number(3, 1)))
    yield "valid_bytes", raw(right + byte_pieces + message(2, number(35, 1)))
    yield "valid_settings", raw(right + message(3, number(3, 0) + number(4, 0) + number(5, 1)))
    yield "valid_suffix", raw(right + message(2, number(24, 1)) + message(3, number(4, 0)))
    yield "valid_user", raw(right + piece("<sep>", USER) + piece("<se", USER) + piece("x", UNUSED),
                            "a<sep>b<se xab", 3)
    parts = {"ab": -2, "ba": -3, "abab": -6}
    unused = b"".join(piece(text, score=score) for text, score in parts.items())
    yield "valid_unused", raw(START + piece("a", score=-9) + piece("b", score=-9) + unused
                              + piece("bab", UNUSED, -4) + BPE, "abbabababbbabaababab" * 3, 0)
    yield "valid_surface", raw(right + message(2, message(44, " ?")))
    yield "valid_word", raw(START + LETTERS + message(2, number(3, 3)))
    yield "valid_char", raw(START + LETTERS + message(2, number(3, 4)))
    yield "not_a_message", raw(b"\xff" * 20)
    yield "piece_empty", raw(right + piece(""))
    yield "piece_twice", raw(right + piece("a"))
    yield "piece_nul", raw(right + piece(b"a\0b"))
    yield "piece_bad_utf8", raw(right + piece(b"\xc3("))
    yield "piece_long", raw(right + piece("x" * 4097))
    yield "piece_score_nan", raw(right + piece("z", score=float("nan")))
    yield "piece_score_huge", raw(right + piece("z", score=3e38) + piece("zz", score=-3e38))
    yield "unknown_missing", raw(LETTERS + BPE)
    yield "unknown_twice", raw(right + piece("<unk2>", UNKNOWN))
    yield "unknown_only", raw(piece("<unk>", UNKNOWN))
    yield "bytes_few", raw(right + piece("<0x00>", BYTE) + message(2, number(35, 1)))
    yield "bytes_unasked", raw(right + byte_pieces)
    yield "byte_wrong", raw(right + piece("<0xG0>", BYTE))
    yield "surface_bad_utf8", raw(right + message(2, message(44, b"\xff")))
    yield "denormalizer", raw(right + message(5, message(2, b"x")))
    yield "charsmap_short", raw(right + message(3, message(2, b"abc")))
    yield "type_unknown", raw(right + message(2, number(3, 9)))
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
    kept, leaf = KEPT, LEAF

    def packed(units: dict[int, int], texts: bytes, blocks: int = 2, text: bytes = b"aab") -> bytes:
        return bytes((1, len(text))) + text + charsmap(units, texts, blocks)

    a = 256 ^ ord("a")
    valid = {0: 256 << 10, a: (a ^ 0) << 10 | leaf | ord("a"), 256: kept}
    yield "valid", packed({0: 256 << 10, a: (a ^ 512) << 10 | leaf | ord("a"), 512: kept | 0},
                          b"x\0", 3)
    yield "cycle", packed(valid, b"x\0")
    yield "root_outside", packed({0: 4000 << 10}, b"x\0")
    yield "state_outside", packed({0: 256 << 10, a: (1 << 20) << 10 | ord("a")}, b"x\0")
    yield "valid_nested", packed(chained(32), b"x\0", text=b"a" * 40)
    yield "nested_too_deep", packed(chained(33), b"x\0", text=b"a" * 40)
    shared = {0: 256 << 10, 512: kept}
    for letter in b"ab":
        shared[256 ^ letter] = (256 ^ letter ^ 512) << 10 | leaf | letter
    yield "valid_shared", packed(shared, b"x\0", 3)
    yield "header_cut", bytes((1, 0)) + b"abc"
    yield "size_huge", bytes((1, 0)) + struct.pack("<I", 16 << 20) + bytes(100)
    yield "unterminated", packed(valid, b"x")
    yield "replacement_outside", packed(
        {0: 256 << 10, a: (a ^ 512) << 10 | leaf | ord("a"), 512: kept | 77}, b"x\0", 3)
    yield "replacement_long", packed(valid, b"x" * 2000 + b"\0")
    yield "size_odd", bytes((1, 0)) + struct.pack("<I", 1000) + bytes(1002)
    yield "size_zero", bytes((1, 0)) + bytes(8)
    yield "size_past_the_end", bytes((1, 0)) + struct.pack("<I", 1024) + bytes(100)
    yield "composed", bytes((0, 3)) + b"abc" + bytes((1, 1, 0, 1, 20)) + bytes(range(120))
    yield "composed_deep", bytes((0, 5)) + b"aaaaa" + bytes((3, 1, 0, 0, 63)) + bytes(
        (0, 1, 1, 0, 1, 0, 1, 1, 1, 0, 2, 1, 1, 0, 2, 0) * 12)


TOKENIZER_SEEDS: dict[str, Seeds] = {
    "tokenizer_config": tokenizer_config_seeds(),
    "sentencepiece": itertools.chain(sentencepiece_seeds(), sentencepiece_field_seeds()),
    "charsmap": charsmap_seeds(),
    "gpt2_files": itertools.chain(byte_level_seeds(gpt2_files), gpt2_files_seeds()),
    "tokenizer_json": itertools.chain(byte_level_seeds(tokenizer_json), tokenizer_json_seeds(),
                                      tokenizer_json_part_seeds())}
