#!/usr/bin/env python3
"""Writes the corpora of the fuzz targets: small valid files, and one for each way to be bad.

    make_seeds.py FOLDER    writes FOLDER/TARGET/SEED; the build runs it

A seed's name says what it is. An input that fuzzing has found becomes a seed.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import shutil
import struct
import sys
from collections.abc import Iterator

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
    for key in one["a"]:
        yield f"entry_other_{key}", safetensors(
            {"a": {k if k != key else "x": v for k, v in one["a"].items()}}, eight)
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
    yield "offsets_object", safetensors(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": {"begin": 0, "end": 8}}}, eight)
    yield "offsets_three", safetensors(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}, eight)
    pair = {"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 4, 8)}
    yield "overlap", safetensors(dict(pair, b=tensor("U8", [4], 3, 7)), eight)
    yield "same_bytes", safetensors(dict(pair, b=tensor("U8", [4], 0, 4)), eight)
    yield "hole", safetensors(dict(pair, b=tensor("U8", [3], 5, 8)), eight)
    yield "hole_in_front", safetensors({"a": tensor("U8", [4], 4, 8)}, eight)
    yield "bytes_behind", safetensors(pair, bytes(9))
    yield "name_empty", safetensors({"": tensor("U8", [8], 0, 8)}, eight)
    yield "name_delete", safetensors({"\x7f": 1}, eight)
    yield "name_hostile", safetensors({"\n\x1b[31m" + "n" * 300: 1}, eight)


def tensor_files_seeds() -> Seeds:
    """Which files there are, then an index and its shards a and b."""
    a = safetensors({"x": tensor("U8", [2], 0, 2)}, b"12")
    b = safetensors({"y": tensor("U8", [1], 0, 1), "z": tensor("U8", [1], 1, 2)}, b"34")

    def folder(index: object, form: int = 0, first: bytes = a) -> bytes:
        return bytes((form,)) + BETWEEN.join((json.dumps(index).encode(), first, b))

    def files(weight_map: object, **more: object) -> bytes:
        return folder(dict({"weight_map": weight_map}, **more))

    right = {"x": "a", "y": "b", "z": "b"}
    yield "valid", files(right, metadata={"total_size": 4})
    yield "valid_one_shard", files({"x": "a"})
    yield "empty_map", files({})
    yield "map_not_object", files([["x", "a"]])
    yield "map_missing", folder({})
    yield "index_array", folder([])
    yield "index_not_json", b"\0{" + BETWEEN + a
    yield "shard_missing", files(dict(right, z="c"))
    yield "shard_lacks_tensor", files(dict(right, w="b"))
    yield "shard_has_more", files({"x": "a", "y": "b"})
    yield "shard_swapped", files({"x": "b", "y": "a", "z": "a"})
    for name, shard in (("parent", "../a"), ("absolute", "/etc/passwd"), ("dot", "."),
                        ("empty", ""),
                        ("nul", "a\0"), ("number", 1), ("null", None), ("self", "./a"),
                        ("itself", "model.safetensors.index.json"), ("long", "a" * 5000)):
        yield f"shard_{name}", files(dict(right, x=shard))
    yield "shard_truncated", folder({"weight_map": right}, first=a[:-1])
    yield "valid_single", folder({}, 1)
    yield "index_is_a_folder", folder({}, 16)
    yield "single_truncated", folder({}, 1, a[:-1])
    yield "single_is_a_folder", folder({}, 8)
    yield "nothing_there", folder({}, 2)
    yield "other_program", folder({}, 6)


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
    fits = {"vocab_size_one": {"vocab_size": 1}, "bos_null": {"bos_token_id": None},
            "eos_null": {"eos_token_id": None}, "eos_one": {"eos_token_id": 5},
            "pad": {"pad_token_id": 5}, "pad_outside": {"pad_token_id": 64},
            "bias": {"qkv_bias": True},
            "output_norm": {"use_output_norm": True, "use_output_gate": True},
            "sizes_default": {"hidden_ratio": None},
            "gate_full": {"fgate_type": "full"}, "gate_fixed": {"fgate_type": "fixed"},
            "gate_none": {"fgate_type": "none"}, "sigmoid": {"hidden_act": "sigmoid"},
            "output_gate": {"use_output_gate": True, "ogate_act": "sigmoid"},
            "rope": {"use_rope": True}}
    clashes = {"size_beyond_int64": {"hidden_size": (1 << 64) - 1},
               "size_negative": {"hidden_size": -16}, "head_large": {"hidden_size": 1024},
               "ratio_large": {"hidden_size": 4096, "num_heads": 16, "hidden_ratio": 1024},
               "ratio_tiny": {"hidden_ratio": 1e-9},
               "output_gate_unknown": {"use_output_gate": True, "ogate_act": "tanh"},
               "bias_with_value_shift": {"qkv_bias": True, "use_v_shift": True},
               "rope_base_zero": {"use_rope": True, "rope_base": 0},
               "rope_odd_head": {"use_rope": True, "hidden_size": 18},
               "two_mistakes": {"norm_eps": 0, "quantization_config": {}},
               "type_missing": {"model_type": None}}
    for name, keys in fits.items():
        yield f"valid_{name}", json.dumps(dict(OFFICIAL, **keys)).encode()
    for name, keys in clashes.items():
        yield name, json.dumps(dict(OFFICIAL, **keys)).encode()
    fla = dict(OFFICIAL, model_type="forgetting_transformer")
    for key, value in (("window_size", 512), ("attnres_block_size", 4), ("hidden_act", "sigmoid"),
                       ("use_output_gate", 1)):
        yield f"fla_{key}", json.dumps(dict(fla, **{key: value})).encode()
    yield "valid_defaults", json.dumps({"model_type": OFFICIAL["model_type"]}).encode()
    yield "array", b"[]"
    yield "nothing", b"{}"
    yield "not_json", b"{"
    for key, values in bad.items():
        for number, value in enumerate(values):
            yield f"{key}_{number}", json.dumps(dict(OFFICIAL, **{key: value})).encode()
    yield "silu_gate_with_norm", json.dumps(dict(FULL, use_output_norm=True)).encode()
    yield "bias_with_shift", json.dumps(dict(FULL, qkv_bias=True)).encode()
    yield "key_twice", b'{"model_type": "forgetting_transformer", "model_type": "x"}'
    yield "deep", b'{"x":' + b"[" * 80 + b"]" * 80 + b"}"


SMALL = {"model_type": "forgetting_transformer-project_fox", "vocab_size": 8, "hidden_size": 8,
         "num_hidden_layers": 1, "num_heads": 2, "intermediate_size": 4, "eos_token_id": None}
LAYER = {"attn_norm.weight": [8], "attn.q_proj.weight": [8, 8], "attn.k_proj.weight": [8, 8],
         "attn.v_proj.weight": [8, 8], "attn.fgate_proj.weight": [2, 8],
         "attn.fgate_proj.bias": [2], "attn.o_proj.weight": [8, 8], "mlp_norm.weight": [8],
         "mlp.gate_proj.weight": [8, 8], "mlp.down_proj.weight": [8, 4]}


def checkpoint(said: dict, layers: dict, dtype: str = "BF16", value: bytes = b"\x80\x3e",
               drop: str = "", first: int = 2, change: str = "") -> bytes:
    """The first byte chooses how to prune; a config.json, then a model.safetensors."""
    shapes = {"model.embeddings.weight": [8, 8], "model.norm.weight": [8], "lm_head.weight": [8, 8]}
    shapes.update({f"model.layers.0.{name}": shape for name, shape in layers.items()})
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        if name.endswith(drop) and drop:
            continue
        # Not all alike, so that tokens differ.
        content = b"".join(value[:-2] + bytes((i * 7 % 256,)) + value[-1:] for i in range(count))
        if name == change:
            content = content[::-1]
        header[name] = tensor(dtype, shape, len(data), len(data) + len(content))
        data += content
    return b"".join((bytes((first,)), json.dumps(said).encode(), BETWEEN,
                     safetensors(header, data)))


def checkpoint_seeds() -> Seeds:
    """Tensors that fit their configuration, and some that do not."""
    full = dict(SMALL, qk_norm=True, qk_norm_share_param_across_head=True, use_k_shift=True,
                use_v_shift=True, use_output_gate=True, use_output_norm=True, use_rope=True,
                num_kv_heads=1)
    more = {"attn.q_norm.weight": [4], "attn.k_norm.weight": [4], "attn.ogate_proj.weight": [8, 8],
            "attn.output_norm.weight": [8]}
    for name in ("k", "v"):
        more[f"attn.{name}_proj.linear.weight"] = [4, 8]
        more[f"attn.{name}_proj.shift_proj.weight"] = [1, 8]
    with_more = {k: v for k, v in LAYER.items() if k[5:] not in ("k_proj.weight", "v_proj.weight")}
    yield "valid", checkpoint(SMALL, LAYER)
    yield "valid_full", checkpoint(full, with_more | more, first=1)
    yield "valid_f16", checkpoint(SMALL, LAYER, "F16", b"\x00\x30", first=0)
    yield "valid_f64", checkpoint(SMALL, LAYER, "F64", b"\0" * 6 + b"\x00\x3f")
    yield "large_weights", checkpoint(SMALL, LAYER, value=b"\x80\x7e")
    yield "nan", checkpoint(SMALL, LAYER, value=b"\xc0\x7f")
    yield "tensor_missing", checkpoint(SMALL, LAYER, drop="o_proj.weight")
    yield "tensor_left_over", checkpoint(SMALL, LAYER | {"attn.q_norm.weight": [8]})
    yield "wrong_type", checkpoint(SMALL, LAYER, "I16")
    yield "wrong_shape", checkpoint(dict(SMALL, intermediate_size=8), LAYER)
    yield "wrong_vocabulary", checkpoint(dict(SMALL, vocab_size=16), LAYER)
    yield "many_layers", checkpoint(dict(SMALL, num_hidden_layers=1024), LAYER)
    tied = dict(SMALL, tie_word_embeddings=True)
    yield "valid_tied", checkpoint(tied, LAYER, drop="lm_head.weight")
    yield "valid_tied_twice", checkpoint(tied, LAYER)
    yield "tied_head_differs", checkpoint(tied, LAYER, change="lm_head.weight")
    biases = {f"attn.{name}_proj.bias": [8] for name in "qkv"}
    yield "valid_bias", checkpoint(dict(SMALL, qkv_bias=True), LAYER | biases)
    norms = {"attn.q_norm.weight": [8], "attn.k_norm.weight": [8]}
    yield "valid_norms", checkpoint(dict(SMALL, qk_norm=True), LAYER | norms)


def checkpoint_gate_seeds() -> Seeds:
    """The kinds of forget gates, and the names of both layouts."""
    without = {k: v for k, v in LAYER.items() if "fgate" not in k}
    bias = {"attn.fgate_bias": [2]}
    yield "valid_gate_bias", checkpoint(dict(SMALL, fgate_type="bias_only"), without | bias)
    yield "valid_gate_fixed", checkpoint(dict(SMALL, fgate_type="fixed"), without | bias)
    yield "valid_gate_none", checkpoint(dict(SMALL, fgate_type="none"), without)
    fla = dict(SMALL, model_type="forgetting_transformer")
    rest = without | {"mlp.gate_proj.weight": [4, 8], "mlp.up_proj.weight": [4, 8]}
    gate = {"attn.f_proj.weight": [2, 8], "attn.f_proj.bias": [2]}
    output = {"attn.g_proj.weight": [8, 8]}
    yield "valid_fla", checkpoint(fla, rest | gate)
    yield "valid_fla_gate", checkpoint(dict(fla, use_output_gate=True), rest | gate | output)
    yield "valid_fla_of_a_day", checkpoint(fla, rest | {"attn.g_proj.weight": [2, 8],
                                                        "attn.g_proj.bias": [2]})
    yield "fla_without_gate", checkpoint(fla, rest)
    yield "fla_output_gate_alone", checkpoint(dict(fla, use_output_gate=True), rest | output)


def generation_config_seeds() -> Seeds:
    right = {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "min_p": 0.05, "do_sample": True,
             "repetition_penalty": 1.1, "max_new_tokens": 128, "eos_token_id": [2, 3]}
    yield "valid", json.dumps(right).encode()
    yield "valid_null", json.dumps(dict(right, temperature=None, eos_token_id=7)).encode()
    for key, values in {"temperature": (-1, 101, "1", 1e-320), "top_p": (0, 1.1, -0.0, 1e-46),
                        "top_k": (-1, 1 << 40, 1.5, (1 << 64) - 1), "min_p": (-0.1, 2, True),
                        "max_new_tokens": (0, 1 << 63, -1), "repetition_penalty": (0, 1e39),
                        "eos_token_id": (-1, 1000, [1.5], [[1]], list(range(65)))}.items():
        for number, value in enumerate(values):
            yield f"{key}_{number}", json.dumps(dict(right, **{key: value})).encode()
    yield "valid_nothing", b"{}"
    yield "array", b"[]"
    yield "not_json", b"{"


def json_reader_seeds() -> Seeds:
    texts = {"values": '{"a": [1, -2, 3.5e-3, true, false, null, "\\u00e9\\ud83d\\ude00"]}',
             "key_twice": '{"a": 1, "b": {"a": 1, "a": 2}}', "comment": "[1] // no",
             "trailing": "[1]]", "lone_surrogate": '"\\ud800"', "nan": "[NaN]", "overflow": "1e999",
             "leading_zero": "01", "control": '"\x01"', "nul": "[1]\0[2]",
             "deep": "[" * 30 + "]" * 30,
             "integers": "[18446744073709551615, -9223372036854775808, 18446744073709551616, -0]"}
    for name, text in texts.items():
        yield name, bytes((255, 20, 200)) + text.encode()
    yield "too_large", bytes((1, 20, 200)) + b"[" + b" " * 40 + b"]"
    for name in ("null", "true", "7", "-7", "0.5"):
        yield f"root_{name}", bytes((255, 20, 0)) + name.encode()
    yield "no_values", bytes((255, 20, 0)) + b"{}"
    yield "bad_utf8", bytes((255, 20, 200)) + b'"\xc3\x28 \xed\xa0\x80"'
    yield "few_values", bytes((255, 20, 3)) + b"[1, 2, 3]"
    yield "shallow", bytes((255, 2, 99)) + b"[[[1]]]"


def main() -> None:
    from proto_seeds import PROTO_SEEDS  # the others, kept apart for length
    from request_seeds import REQUEST_SEEDS
    from tokenizer_seeds import TOKENIZER_SEEDS

    targets = dict(PROTO_SEEDS, **REQUEST_SEEDS, **TOKENIZER_SEEDS,
                   safetensors=safetensors_seeds(), json_reader=json_reader_seeds(),
                   tensor_files=tensor_files_seeds(),
                   checkpoint=itertools.chain(checkpoint_seeds(), checkpoint_gate_seeds()),
                   model_config=model_config_seeds(),
                   generation_config=generation_config_seeds())
    for target, seeds in sorted(targets.items()):
        folder = pathlib.Path(sys.argv[1], target)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in seeds:
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
