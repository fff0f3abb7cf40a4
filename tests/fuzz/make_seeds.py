#!/usr/bin/env python3
"""Writes the corpora of the fuzz targets: small valid inputs, each of their keys with hostile
values, and what no key says.

    make_seeds.py FOLDER    replaces FOLDER by FOLDER/TARGET/SEED; the build runs it

Each valid_... is replayed cut short at every byte, too. An input that fuzzing has found becomes a
seed with a telling name.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import struct
import sys

from request_seeds import REQUEST_SEEDS
from seed_forms import Seeds, encoded, hostile, sections, table
from tokenizer_seeds import TOKENIZER_SEEDS


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header, an object or a text, and with any stated length."""
    text = encoded(header)
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype: object, shape: object, begin: object, end: object) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds() -> Seeds:
    """The header and how it fits the data."""
    entry, eight = tensor("F32", [2], 0, 8), bytes(8)
    one = json.dumps({"a": entry})
    pair = {"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 4, 8)}
    yield "valid_all_types", safetensors(
        {"__metadata__": {"format": "pt"}, "f": tensor("F64", [1], 0, 8),
         "h": tensor("F16", [2], 8, 12), "b": tensor("BF16", [1, 2], 12, 16),
         "i": tensor("I64", [], 16, 24), "u": tensor("U8", [3], 24, 27),
         "t": tensor("BOOL", [1], 27, 28), "e": tensor("F8_E4M3", [2], 28, 30)}, bytes(30))
    yield from table({"valid_empty": safetensors({}), "header_missing": struct.pack("<Q", 64),
                      "bytes_behind": safetensors(pair, bytes(9))})
    for name, header in {
            "valid_padded": one + "    ", "deep": '{"a":' + "[" * 200 + "]" * 200 + "}",
            "name": {"\n\x1b[31m\x7f" + "n" * 300: 1}, "entry": {"a": 1},
            **{f"pair_{i}": dict(pair, b=tensor("U8", shape, begin, end)) for i, (shape, begin, end)
               in enumerate((([4], 3, 7), ([4], 0, 4), ([3], 5, 8)))}}.items():
        yield name, safetensors(header, eight)
    for name, changed in hostile(
            entry, dtype=("F33", "f32"), shape=([0], [2.0], [1] * 9, [1 << 32] * 2, [1 << 62, 8],
                                                [(1 << 64) - 1, 2], [3]),
            data_offsets=([8, 0], [0, 16], [-8, 0], [0, 8.0], [0, (1 << 64) - 1], [8, 16],
                          [0, 8, 8])):
        yield name, safetensors(b'{"a": ' + changed + b"}", eight)


def tensor_files_seeds() -> Seeds:
    """Which files there are, then an index and its shards a and b."""
    a = safetensors({"x": tensor("U8", [2], 0, 2)}, b"12")
    b = safetensors({"y": tensor("U8", [1], 0, 1), "z": tensor("U8", [1], 1, 2)}, b"34")
    right = {"x": "a", "y": "b", "z": "b"}
    for name, weight_map in {
            "valid_one_shard": {"x": "a"}, "swapped": {"x": "b", "y": "a", "z": "a"},
            "has_more": {"x": "a", "y": "b"}, "shard_odd": dict(right, x="./a")}.items():
        yield name, sections({"weight_map": weight_map}, a, b, first=b"\0")
    for name, (form, index, shard) in {
            "valid": (0, {"weight_map": right, "metadata": {"total_size": 4}}, a),
            "shard_truncated": (0, {"weight_map": right}, a[:-1]), "valid_single": (1, {}, a),
            "single_is_a_folder": (8, {}, a), "index_is_a_folder": (16, {}, a)}.items():
        yield name, sections(index, shard, b, first=bytes((form,)))


OFFICIAL = {"model_type": "forgetting_transformer-project_fox", "vocab_size": 64, "hidden_size": 16,
            "num_hidden_layers": 2, "num_heads": 2}
FULL = dict(OFFICIAL, num_kv_heads=1, intermediate_size=24, norm_eps=1e-6, hidden_act="silu",
            fgate_type="bias_only", use_output_gate=True, ogate_act="silu", qk_norm=True,
            qk_norm_share_param_across_head=True, use_k_shift=True, use_v_shift=True,
            use_rope=True, rope_base=10000.0, tie_word_embeddings=True, log_pruning_tolerance=-9.5,
            max_position_embeddings=2048, bos_token_id=1, eos_token_id=[2, 3], pad_token_id=-1)
FLA = dict(OFFICIAL, model_type="forgetting_transformer", use_output_gate=True, window_size=None,
           hidden_ratio=3)
LLAMA = {"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2,
         "num_attention_heads": 2, "intermediate_size": 24, "rope_theta": 1e5}


def model_config_seeds() -> Seeds:
    """config.json of every layout."""
    yield from table({
        "valid_official": OFFICIAL, "valid_full": FULL, "valid_fla": FLA, "array": [],
        "not_json": "{", "key_twice": '{"model_type": "forgetting_transformer", "model_type": "x"}',
        "deep": '{"x":' + "[" * 80 + "]" * 80 + "}", "bias_with_shift": dict(FULL, qkv_bias=True)})
    for name, keys in {
            "valid_output_norm": {"use_output_norm": True, "use_output_gate": True},
            "valid_output_gate": {"use_output_gate": True, "ogate_act": "sigmoid"},
            "head_large": {"hidden_size": 1024},
            "rope_odd_head": {"use_rope": True, "hidden_size": 18},
            "ratio_large": {"hidden_size": 4096, "num_heads": 16, "hidden_ratio": 1024}}.items():
        yield name, encoded(dict(OFFICIAL, **keys))
    yield from hostile(FULL, model_type=("llama",), hidden_act=("gelu", "sigmoid"),
                       fgate_type=("full", "fixed", "none"), ogate_act=("tanh",), num_heads=(3,),
                       log_pruning_tolerance=(-9.0,), eos_token_id=(64, [1, "2"]),
                       hidden_ratio=(1e-9,), use_output_norm=(True,), quantization_config=(),
                       attnres_block_size=())
    for name, content in hostile(FLA, window_size=(512,)):
        yield f"fla_{name}", content
    linear, llama3 = {"type": "linear", "factor": 4.0}, {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    for name, content in hostile(
            LLAMA, model_type=("mistral", "qwen2", "qwen3"), head_dim=(0, 3, 8, 257),
            num_key_value_heads=(1, 3), mlp_bias=(True,), layer_types=(["x"],),
            architectures=(["LlamaForCausalLM"], ["LlamaModel"]), use_forget_gate=(True,),
            use_attention_sink=(True, 1), use_qk_norm_cap=(True,),
            rope_scaling=(linear, llama3, dict(llama3, high_freq_factor=1.0), yarn,
                          dict(yarn, beta_slow=0.5, truncate=False, attention_factor=None),
                          dict(yarn, mscale=1.0, mscale_all_dim=0.5),
                          dict(linear, factor=0)),
            rope_parameters=(dict(llama3, rope_theta=1e6), {"partial_rotary_factor": 0.5})):
        yield f"llama_{name}", content


SMALL = {"model_type": "forgetting_transformer-project_fox", "vocab_size": 8, "hidden_size": 8,
         "num_hidden_layers": 1, "num_heads": 2, "intermediate_size": 4, "eos_token_id": None}
LAYER = {"attn_norm.weight": [8], "attn.q_proj.weight": [8, 8], "attn.k_proj.weight": [8, 8],
         "attn.v_proj.weight": [8, 8], "attn.fgate_proj.weight": [2, 8],
         "attn.fgate_proj.bias": [2], "attn.o_proj.weight": [8, 8], "mlp_norm.weight": [8],
         "mlp.gate_proj.weight": [8, 8], "mlp.down_proj.weight": [8, 4]}


def checkpoint(said: dict, layers: dict = LAYER, dtype: str = "BF16", value: bytes = b"\x80\x3e",
               drop: str = "", first: int = 2) -> bytes:
    """The first byte chooses how to prune; a config.json, then a model.safetensors."""
    shapes = {"model.embeddings.weight": [8, 8], "model.norm.weight": [8], "lm_head.weight": [8, 8]}
    shapes.update({f"model.layers.0.{name}": shape for name, shape in layers.items()})
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        if name.endswith(drop) and drop:
            continue
        # Different values, so that tokens differ.
        content = b"".join(value[:-2] + bytes((i * 7 % 256,)) + value[-1:] for i in range(count))
        header[name] = tensor(dtype, shape, len(data), len(data) + len(content))
        data += content
    return sections(said, safetensors(header, data), first=bytes((first,)))


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
    tied = dict(SMALL, tie_word_embeddings=True)
    without = {k: v for k, v in LAYER.items() if "fgate" not in k}
    fla = dict(SMALL, model_type="forgetting_transformer")
    rest = without | {"mlp.gate_proj.weight": [4, 8], "mlp.up_proj.weight": [4, 8]}
    yield from table({
        "valid": checkpoint(SMALL), "valid_full": checkpoint(full, with_more | more, first=1),
        "valid_f16": checkpoint(SMALL, LAYER, "F16", b"\x00\x30", first=0),
        "valid_f64": checkpoint(SMALL, LAYER, "F64", b"\0" * 6 + b"\x00\x3f"),
        "large_weights": checkpoint(SMALL, value=b"\x80\x7e"),
        "valid_tied": checkpoint(tied, drop="lm_head.weight"),
        "valid_bias": checkpoint(dict(SMALL, qkv_bias=True), LAYER | {
            f"attn.{name}_proj.bias": [8] for name in "qkv"}),
        "valid_gate_bias": checkpoint(dict(SMALL, fgate_type="bias_only"),
                                      without | {"attn.fgate_bias": [2]}),
        "valid_gate_none": checkpoint(dict(SMALL, fgate_type="none"), without),
        "valid_fla": checkpoint(fla, rest | {"attn.f_proj.weight": [2, 8],
                                             "attn.f_proj.bias": [2]}),
        "valid_fla_of_a_day": checkpoint(fla, rest | {"attn.g_proj.weight": [2, 8],
                                                      "attn.g_proj.bias": [2]}),
        "fla_without_gate": checkpoint(fla, rest)})


def generation_config_seeds() -> Seeds:
    right = {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "min_p": 0.05, "do_sample": True,
             "repetition_penalty": 1.1, "max_new_tokens": 128, "eos_token_id": [2, 3]}
    yield from table({"valid": right, "array": [], "not_json": "{"})
    yield from hostile(right, temperature=(101, 1e-320), top_p=(1.1, -0.0, 1e-46), top_k=(-1,),
                       repetition_penalty=(1e39,), eos_token_id=(7, 1000, [1.5]))


def chat_format_seeds() -> Seeds:
    """The format, then the messages of the user and of the assistant."""
    turn = {"prefix": "<s>user\n", "suffix": "<t>\n", "trim": True}
    right = {"bos": "<|endoftext|>", "default_system": "S", "generation_prompt": "a", "end": "<s>",
             "alternate": True, "tools": {"call": "<c>", "arguments": '"'},
             "thinking": {"prefix": "<t>\n", "suffix": "\n<s>\n", "response_start": "x"},
             "roles": {"system": turn, "user": turn, "assistant": turn, "tool": turn}}
    for name, content in {"plain": " ab", "hostile": "<s><t>\n<|endoftext|>", "cut": "s>",
                          "bad_utf8": b"\xff"}.items():
        yield f"valid_{name}", sections(right, content, content)
    yield "valid_marks_join", sections({"roles": {"user": {"suffix": "<"},
                                                  "assistant": {"prefix": "t>"}}}, "<", "s>")
    yield from hostile(right, roles=({"user": turn, "assistant": {}},))


def json_reader_seeds() -> Seeds:
    """The first three bytes choose the limits."""
    yield from table({
        "valid": '{"a": [1, -2, 3.5e-3, true, false, null, "\\u00e9\\ud83d\\ude00"]}',
        "key_twice": '{"a": 1, "b": {"a": 1, "a": 2}}', "comment": "[1] // no", "trailing": "[1]]",
        "lone_surrogate": '"\\ud800"', "nan": "[NaN]", "overflow": "1e999", "leading_zero": "01",
        "control": '"\x01"', "nul": "[1]\0[2]", "deep": "[" * 30 + "]" * 30,
        "integers": "[18446744073709551615, -9223372036854775808, 18446744073709551616, -0]",
        "bad_utf8": b'"\xc3\x28 \xed\xa0\x80"'}, bytes((255, 20, 200)))
    yield "too_large", bytes((1, 20, 200)) + b"[" + b" " * 40 + b"]"
    yield "few_values", bytes((255, 20, 3)) + b"[1, 2, 3]"
    yield "shallow", bytes((255, 2, 99)) + b"[[[1]]]"


def main() -> None:
    targets = dict(REQUEST_SEEDS, **TOKENIZER_SEEDS, safetensors=safetensors_seeds(),
                   json_reader=json_reader_seeds(), tensor_files=tensor_files_seeds(),
                   checkpoint=checkpoint_seeds(), model_config=model_config_seeds(),
                   generation_config=generation_config_seeds(), chat_format=chat_format_seeds())
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    for target, seeds in sorted(targets.items()):
        folder = pathlib.Path(sys.argv[1], target)
        folder.mkdir(parents=True)
        for name, content in seeds:
            with (folder / name).open("xb") as file:  # a name is given once
                file.write(content)


if __name__ == "__main__":
    main()
