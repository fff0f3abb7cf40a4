#!/usr/bin/env python3
"""Writes the seeds of the corpora: small valid files, and one for each way in which one can be bad.

A seed's name says what it is. What fuzzing has added lies beside the seeds, named by its hash, and
is left alone. Run it again after a change to how a target reads its input.
"""

from __future__ import annotations

import json
import pathlib
import struct
from collections.abc import Iterator

CORPORA = pathlib.Path(__file__).resolve().parent / "corpora"
BETWEEN = b"\n%%\n"
Seeds = Iterator[tuple[str, bytes]]


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header, an object or its text, whatever its length is said to be."""
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype: str, shape: list, begin: object, end: object) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds() -> Seeds:
    """The header and how it fits the data."""
    one = {"a": tensor("F32", [2], 0, 8)}
    eight = bytes(8)
    yield "valid_one", safetensors(one, eight)
    yield "valid_all_types", safetensors(
        {"__metadata__": {"format": "pt"}, "f": tensor("F64", [1], 0, 8),
         "h": tensor("F16", [2], 8, 12), "b": tensor("BF16", [1, 2], 12, 16),
         "i": tensor("I64", [], 16, 24), "u": tensor("U8", [3], 24, 27),
         "t": tensor("BOOL", [1], 27, 28), "e": tensor("F8_E4M3", [2], 28, 30)}, bytes(30))
    yield "valid_padded", safetensors(json.dumps(one) + "    ", eight)
    yield "valid_empty", safetensors({})
    yield "too_short", b"\x02\0\0"
    yield "header_missing", struct.pack("<Q", 64)
    yield "header_past_the_end", safetensors(one, eight, 1 << 20)
    yield "header_too_long", safetensors(one, eight, 100 << 20)
    yield "header_length_wraps", safetensors(one, eight, (1 << 64) - 8)
    yield "header_length_zero", safetensors(one, eight, 0)
    yield "header_not_json", safetensors("{]", eight)
    yield "header_array", safetensors([], eight)
    yield "header_space_in_front", safetensors(" " + json.dumps(one), eight)
    yield "header_bom", safetensors("\ufeff" + json.dumps(one), eight)
    yield "header_bad_utf8", struct.pack("<Q", 9) + b'{"\xff": 1}'
    yield "header_nul", safetensors(json.dumps(one) + "\0", eight)
    yield "header_deep", safetensors('{"a":' + "[" * 200 + "]" * 200 + "}")
    yield "key_twice", safetensors(json.dumps(one)[:-1] + "," + json.dumps(one)[1:], eight)
    yield "metadata_not_object", safetensors({"__metadata__": 1})
    yield "metadata_not_strings", safetensors({"__metadata__": {"a": 1}})
    yield "entry_not_object", safetensors({"a": 1})
    yield "entry_missing_key", safetensors({"a": {"dtype": "F32", "shape": [2]}}, eight)
    yield "entry_extra_key", safetensors({"a": dict(one["a"], more=1)}, eight)
    for name, dtype in (("unknown", "F33"), ("lower_case", "f32"), ("number", 1), ("empty", "")):
        yield f"dtype_{name}", safetensors({"a": tensor(dtype, [2], 0, 8)}, eight)
    shapes = {"zero": [0], "negative": [-2], "float": [2.0], "text": ["2"], "not_array": 2,
              "nine": [1] * 9, "overflow": [1 << 32, 1 << 32], "overflow_max": [(1 << 64) - 1, 2],
              "wrong": [3], "null": None, "wraps_to_right": [1 << 62, 8]}
    for name, shape in shapes.items():
        yield f"shape_{name}", safetensors({"a": tensor("F32", shape, 0, 8)}, eight)
    offsets = {"reversed": (8, 0), "past_the_end": (0, 16), "negative": (-8, 0), "float": (0, 8.0),
               "huge": (0, (1 << 64) - 1), "text": ("0", "8"), "at_the_end": (8, 16)}
    for name, (begin, end) in offsets.items():
        yield f"offsets_{name}", safetensors({"a": tensor("F32", [2], begin, end)}, eight)
    yield "offsets_three", safetensors(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}, eight)
    pair = {"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 4, 8)}
    yield "overlap", safetensors(dict(pair, b=tensor("U8", [4], 3, 7)), eight)
    yield "same_bytes", safetensors(dict(pair, b=tensor("U8", [4], 0, 4)), eight)
    yield "hole", safetensors(dict(pair, b=tensor("U8", [3], 5, 8)), eight)
    yield "hole_in_front", safetensors({"a": tensor("U8", [4], 4, 8)}, eight)
    yield "bytes_behind", safetensors(pair, bytes(9))
    yield "name_empty", safetensors({"": tensor("U8", [8], 0, 8)}, eight)
    yield "name_hostile", safetensors({"\n\x1b[31m" + "n" * 300: 1}, eight)


def tensor_files_seeds() -> Seeds:
    """An index and its shards a and b."""
    a = safetensors({"x": tensor("U8", [2], 0, 2)}, b"12")
    b = safetensors({"y": tensor("U8", [1], 0, 1), "z": tensor("U8", [1], 1, 2)}, b"34")

    def files(weight_map: object, **more: object) -> bytes:
        index = json.dumps(dict({"weight_map": weight_map}, **more)).encode()
        return BETWEEN.join((index, a, b))

    right = {"x": "a", "y": "b", "z": "b"}
    yield "valid", files(right, metadata={"total_size": 4})
    yield "valid_one_shard", files({"x": "a"})
    yield "empty_map", files({})
    yield "map_not_object", files([["x", "a"]])
    yield "map_missing", BETWEEN.join((b"{}", a, b))
    yield "index_array", BETWEEN.join((b"[]", a, b))
    yield "shard_missing", files(dict(right, z="c"))
    yield "shard_lacks_tensor", files(dict(right, w="b"))
    yield "shard_has_more", files({"x": "a", "y": "b"})
    yield "shard_swapped", files({"x": "b", "y": "a", "z": "a"})
    for name, shard in (("parent", "../a"), ("absolute", "/etc/passwd"), ("dot", "."),
                        ("empty", ""),
                        ("nul", "a\0"), ("number", 1), ("null", None), ("self", "./a"),
                        ("itself", "model.safetensors.index.json"), ("long", "a" * 5000)):
        yield f"shard_{name}", files(dict(right, x=shard))
    yield "shard_truncated", BETWEEN.join((json.dumps({"weight_map": right}).encode(), a[:-1], b))


OFFICIAL = {"model_type": "forgetting_transformer-project_fox", "vocab_size": 64, "hidden_size": 16,
            "num_hidden_layers": 2, "num_heads": 2}
FULL = dict(OFFICIAL, num_kv_heads=1, intermediate_size=24, norm_eps=1e-6, hidden_act="silu",
            fgate_type="bias_only", use_output_gate=True, ogate_act="silu", qk_norm=True,
            qk_norm_share_param_across_head=True, use_k_shift=True, use_v_shift=True,
            use_rope=True, rope_base=10000.0, tie_word_embeddings=True, log_pruning_tolerance=-9.5,
            max_position_embeddings=2048, bos_token_id=1, eos_token_id=[2, 3], pad_token_id=-1)


def model_config_seeds() -> Seeds:
    """config.json of both layouts."""
    for name, config in (("official", OFFICIAL), ("full", FULL),
                         ("fla", dict(OFFICIAL, model_type="forgetting_transformer",
                                      use_output_gate=True, window_size=None, hidden_ratio=3))):
        yield f"valid_{name}", json.dumps(config).encode()
    bad = {"model_type": ("llama", 1, None), "vocab_size": (0, -1, 1 << 40, 1.5, "64", None),
           "hidden_size": (15, 0, 1 << 20), "num_heads": (0, 3, 2000), "num_kv_heads": (0, 3),
           "num_hidden_layers": (0, 1 << 31), "hidden_act": ("gelu", 1), "fgate_type": ("half",),
           "intermediate_size": (0, 1 << 62), "hidden_ratio": (-1, 1e300, "4"),
           "norm_eps": (0, -1, 2, None), "rope_base": (0, -1), "log_pruning_tolerance": (0, 1),
           "eos_token_id": (64, -1, [1, "2"], list(range(65)), {}), "bos_token_id": (64, -1, []),
           "pad_token_id": (1 << 40, "x"), "use_rope": (1, "true"), "qk_norm": ("yes",),
           "max_position_embeddings": (0, 1 << 31), "quantization_config": ({},),
           "use_output_norm": (1,)}
    for key, values in bad.items():
        for number, value in enumerate(values):
            yield f"{key}_{number}", json.dumps(dict(OFFICIAL, **{key: value})).encode()
    yield "silu_gate_with_norm", json.dumps(dict(FULL, use_output_norm=True)).encode()
    yield "bias_with_shift", json.dumps(dict(FULL, qkv_bias=True)).encode()
    yield "key_twice", b'{"model_type": "forgetting_transformer", "model_type": "x"}'
    yield "deep", b'{"x":' + b"[" * 80 + b"]" * 80 + b"}"


def checkpoint_seeds() -> Seeds:
    """The first byte chooses how to prune; a config.json, then a model.safetensors."""
    config = {"model_type": "forgetting_transformer-project_fox", "vocab_size": 8, "hidden_size": 8,
              "num_hidden_layers": 1, "num_heads": 2, "intermediate_size": 4, "eos_token_id": None}
    full = dict(config, qk_norm=True, use_k_shift=True, use_v_shift=True, use_output_gate=True,
                use_output_norm=True, use_rope=True, num_kv_heads=1)
    layer = {"attn_norm.weight": [8], "attn.q_proj.weight": [8, 8], "attn.k_proj.weight": [8, 8],
             "attn.v_proj.weight": [8, 8], "attn.fgate_proj.weight": [2, 8],
             "attn.fgate_proj.bias": [2], "attn.o_proj.weight": [8, 8], "mlp_norm.weight": [8],
             "mlp.gate_proj.weight": [8, 8], "mlp.down_proj.weight": [8, 4]}
    more = {"attn.q_norm.weight": [8], "attn.k_norm.weight": [4], "attn.ogate_proj.weight": [8, 8],
            "attn.output_norm.weight": [8]}
    for name in ("k", "v"):
        more[f"attn.{name}_proj.linear.weight"] = [4, 8]
        more[f"attn.{name}_proj.shift_proj.weight"] = [1, 8]

    def files(said: dict, layers: dict, dtype: str = "BF16", value: bytes = b"\x80\x3e",
              drop: str = "", first: int = 2) -> bytes:
        shapes = {"model.embeddings.weight": [8, 8], "model.norm.weight": [8],
                  "lm_head.weight": [8, 8]}
        shapes.update({f"model.layers.0.{name}": shape for name, shape in layers.items()})
        header, data = {}, b""
        for name, shape in shapes.items():
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            if name.endswith(drop) and drop:
                continue
            # Not all alike, so that tokens differ.
            content = b"".join(value[:-2] + bytes((i * 7 % 256,)) + value[-1:]
                               for i in range(count))
            header[name] = tensor(dtype, shape, len(data), len(data) + len(content))
            data += content
        return b"".join((bytes((first,)), json.dumps(said).encode(), BETWEEN,
                         safetensors(header, data)))

    with_more = {k: v for k, v in layer.items() if k[5:] not in ("k_proj.weight", "v_proj.weight")}
    yield "valid", files(config, layer)
    yield "valid_full", files(full, with_more | more, first=1)
    yield "valid_f16", files(config, layer, "F16", b"\x00\x30", first=0)
    yield "valid_f64", files(config, layer, "F64", b"\0" * 6 + b"\x00\x3f")
    yield "large_weights", files(config, layer, value=b"\x80\x7e")
    yield "nan", files(config, layer, value=b"\xc0\x7f")
    yield "tensor_missing", files(config, layer, drop="o_proj.weight")
    yield "tensor_left_over", files(config, layer | {"attn.q_norm.weight": [8]})
    yield "wrong_type", files(config, layer, "I16")
    yield "wrong_shape", files(dict(config, intermediate_size=8), layer)
    yield "wrong_vocabulary", files(dict(config, vocab_size=16), layer)
    yield "many_layers", files(dict(config, num_hidden_layers=1024), layer)


def generation_config_seeds() -> Seeds:
    right = {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "min_p": 0.05, "do_sample": True,
             "repetition_penalty": 1.1, "max_new_tokens": 128, "eos_token_id": [2, 3]}
    yield "valid", json.dumps(right).encode()
    yield "valid_null", json.dumps(dict(right, temperature=None, eos_token_id=7)).encode()
    for key, values in {"temperature": (-1, 101, "1", 1e-320), "top_p": (0, 1.1, -0.0, 1e-46),
                        "top_k": (-1, 1 << 40, 1.5), "min_p": (-0.1, 2, True),
                        "max_new_tokens": (0, 1 << 63, -1), "repetition_penalty": (0, 1e39),
                        "eos_token_id": (-1, 1000, [1.5], [[1]], list(range(65)))}.items():
        for number, value in enumerate(values):
            yield f"{key}_{number}", json.dumps(dict(right, **{key: value})).encode()


def json_reader_seeds() -> Seeds:
    texts = {"values": '{"a": [1, -2, 3.5e-3, true, false, null, "\\u00e9\\ud83d\\ude00"]}',
             "key_twice": '{"a": 1, "b": {"a": 1, "a": 2}}', "comment": "[1] // no",
             "trailing": "[1]]", "lone_surrogate": '"\\ud800"', "nan": "[NaN]", "overflow": "1e999",
             "leading_zero": "01", "control": '"\x01"', "nul": "[1]\0[2]",
             "deep": "[" * 30 + "]" * 30,
             "integers": "[18446744073709551615, -9223372036854775808, 18446744073709551616, -0]"}
    for name, text in texts.items():
        yield name, bytes((20, 200)) + text.encode()
    yield "bad_utf8", bytes((20, 200)) + b'"\xc3\x28 \xed\xa0\x80"'
    yield "few_values", bytes((20, 3)) + b"[1, 2, 3]"
    yield "shallow", bytes((2, 99)) + b"[[[1]]]"


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
    yield "decoder_array", files(dict(main, added_tokens_decoder=[token]))
    yield "added_float", files(main, special, {"<z>": 1.5})
    yield "added_array", files(main, special, [])


def byte_level_seeds(as_json: bool) -> Seeds:
    """Vocabularies and merges: gpt2_files, or tokenizer_json; an odd first byte adds the bytes."""
    text = b"abc ab'll  12 \xc3\xa9\n<|e|>cab"
    role = {"bos_token": "<|e|>", "eos_token": "<|e|>", "unk_token": None}

    def tokenizer(vocab: dict, merges: list, config: object = "", flag: bytes = b"\x01",
                  said: bytes = text, **more: object) -> bytes:
        config_text = b"" if config == "" else json.dumps(config).encode()
        if not as_json:
            lines = "".join(f"{line}\n" for line in ["#version: 0.2"] + merges).encode()
            return flag + BETWEEN.join((json.dumps(vocab).encode(), lines, config_text, said))
        file = {"model": {"type": "BPE", "vocab": vocab, "merges": merges},
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                "decoder": {"type": "ByteLevel"}, "added_tokens": []}
        file.update(more)
        return flag + BETWEEN.join((json.dumps(file).encode(), config_text, said))

    vocab, merges = {"ab": 256, "abc": 257}, ["a b", "ab c"]
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
    yield "merge_no_product", tokenizer({"ab": 256}, merges)
    yield "merge_three", tokenizer(vocab, ["a b c"])
    yield "merge_empty", tokenizer(vocab, [" b"])
    yield "merge_twice", tokenizer(vocab, merges + ["a b"])
    yield "not_utf8_text", tokenizer(vocab, merges, said=b"ab\xff\xc3")
    yield "valid_long", tokenizer({"aa": 256, "aaaa": 257}, ["a a", "aa aa"], said=b"a" * 300)
    if not as_json:
        yield "valid_roles", tokenizer(dict(vocab, **{"<|e|>": 258}), merges, dict(
            role, add_bos_token=True, tokenizer_class="JSONGPT2Tokenizer"))
        yield "role_unknown", tokenizer(vocab, merges, {"bos_token": "<none>"})
        yield "added_strip", tokenizer(vocab, merges, {"added_tokens_decoder": {
            "258": {"content": "ll", "lstrip": True, "rstrip": True, "special": True}}})
        yield "carriage_returns", b"\x01" + BETWEEN.join((b'{"ab":256}', b"a b\r\n", b"", text))
        return
    added = {"id": 258, "content": "<|e|>", "special": True, "normalized": False,
             "lstrip": False, "rstrip": True, "single_word": False}
    template = {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<|e|>"}}, {"Sequence": {"id": "A"}},
        {"SpecialToken": {"id": "<|e|>"}}], "special_tokens": {"<|e|>": {"ids": [258]}}}
    yield "valid_added", tokenizer(vocab, merges, role, added_tokens=[added],
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
    yield "template_index", tokenizer(vocab, merges, post_processor=dict(template, single=[
        {"SpecialToken": {"id": "9" * 30}}], special_tokens=[{"ids": [258]}]))
    yield "template_path", tokenizer(vocab, merges, post_processor=dict(template, single=[
        {"SpecialToken": {"id": "~/x~2"}}]))


def main() -> None:
    from request_seeds import REQUEST_SEEDS  # the other half, kept apart for length

    targets = dict(REQUEST_SEEDS, safetensors=safetensors_seeds(), json_reader=json_reader_seeds(),
                   tensor_files=tensor_files_seeds(), checkpoint=checkpoint_seeds(),
                   model_config=model_config_seeds(),
                   generation_config=generation_config_seeds(),
                   tokenizer_config=tokenizer_config_seeds(),
                   gpt2_files=byte_level_seeds(as_json=False),
                   tokenizer_json=byte_level_seeds(as_json=True))
    for target, seeds in sorted(targets.items()):
        folder = CORPORA / target
        folder.mkdir(parents=True, exist_ok=True)
        sizes = []
        for name, content in seeds:
            (folder / name).write_bytes(content)
            sizes.append(len(content))
        print(f"{target}: {len(sizes)} seeds, {sum(sizes)} bytes")


if __name__ == "__main__":
    main()
