#!/usr/bin/env python3
"""Writes tests/golden/transformers_configs.json: config.json files of LLaMA, Mistral, Qwen2 and
Qwen3 in many forms, and what transformers 5 makes of each: sizes, tensors, RoPE's frequencies.

A case is `served` if the server computes what transformers does (models/README.md); then it names
what transformers read, in `readings` and `shapes`, which many cases share. KEPT_OUT are the cases
that transformers loads and the server refuses on purpose.

Cases with a `model` are published files, entered by hand: `config` as text or as an object, the
`source` that it was compared with, and `refused`, the key at fault, if the server must refuse it.
The script keeps them and adds what transformers reads.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any

import torch
import transformers

OUT = pathlib.Path(__file__).resolve().parent / "transformers_configs.json"
TYPES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
SOME = ("llama", "qwen3")  # RoPE is read by one code
BASE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5}
GIVEN = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
         "num_attention_heads")
ABSENT: Any = object()
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 128, "factor": 4.0}
NAN, INFINITY = float("nan"), float("inf")


def old(parameters: dict[str, Any]) -> dict[str, Any]:
    """RoPE parameters with the type's key of transformers 4.44 and earlier."""
    return {"type": parameters["rope_type"],
            **{key: value for key, value in parameters.items() if key != "rope_type"}}


# Changes that are tried with every class.
ROPE: list[dict[str, Any]] = [
    {}, {"rope_theta": 5e5}, {"rope_theta": 500000}, {"rope_scaling": None},
    {"rope_scaling": {}}, {"rope_parameters": {}}, {"rope_parameters": None},
    {"rope_scaling": {}, "rope_parameters": {}},
    {"rope_scaling": {}, "rope_theta": 3e4},
    {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    {"rope_parameters": {"rope_theta": 5e5}},
    {"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 7e3},
    {"rope_parameters": {"rope_type": "default"}, "rope_theta": 7e3},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    {"rope_parameters": {"type": "default", "rope_theta": 5e5}},
    {"rope_scaling": {"rope_type": "default"}, "rope_theta": 2e4},
    {"rope_scaling": {"type": "default"}},
    {"rope_scaling": {"rope_theta": 9e4}},
    {"rope_scaling": {"factor": 4.0}},
    {"rope_scaling": LINEAR}, {"rope_scaling": old(LINEAR), "rope_theta": 3e4},
    {"rope_scaling": {"rope_type": "linear", "factor": 2}},
    {"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 2.0}},
    {"rope_scaling": {"type": "default", "rope_type": "linear", "factor": 2.0}},
    {"rope_parameters": {**LINEAR, "rope_theta": 5e5}}, {"rope_parameters": LINEAR},
    {"rope_scaling": LLAMA3, "rope_theta": 5e5}, {"rope_scaling": old(LLAMA3)},
    {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    {"rope_scaling": LLAMA3, "rope_parameters": LLAMA3},
    {"rope_scaling": LLAMA3, "rope_parameters": {**LINEAR, "rope_theta": 5e5}},
    {"rope_scaling": LINEAR, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}, "rope_theta": 2e4},
    {"rope_scaling": {}, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    {"rope_scaling": {**LLAMA3, "rope_theta": 5e5}, "rope_theta": 1e4},
    {"rope_scaling": {**LINEAR, "partial_rotary_factor": 1.0}},
    {"partial_rotary_factor": 1.0}, {"rope_scaling": {**LINEAR, "unread": 3}},
    {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
    {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 128}},
    {"rope_scaling": {key: value for key, value in LLAMA3.items() if "orig" not in key}},
    {"rope_scaling": LLAMA3, "original_max_position_embeddings": 256},
    {"rope_scaling": LINEAR, "original_max_position_embeddings": 256},
    {"rope_scaling": YARN}, {"rope_scaling": old(YARN)}, {"rope_parameters": YARN},
    {"rope_parameters": {**YARN, "rope_theta": 5e5}}, {"rope_scaling": {**YARN, "factor": 1}},
    {"rope_scaling": {**YARN, "factor": 40, "original_max_position_embeddings": 4096}},
    {"rope_scaling": {**YARN, "original_max_position_embeddings": 32768}, "rope_theta": 1e6,
     "head_dim": 128},
    {"rope_scaling": {"rope_type": "yarn", "factor": 2.5}},  # of max_position_embeddings
    {"rope_scaling": YARN, "original_max_position_embeddings": 256},
    {"rope_scaling": {**YARN, "original_max_position_embeddings": 1}},  # all frequencies kept
    {"rope_scaling": {**YARN, "original_max_position_embeddings": 2**31 - 1}, "rope_theta": 1.5},
    {"rope_scaling": {**YARN, "attention_factor": 1.0}},
    {"rope_scaling": {**YARN, "attention_factor": 0.75}},
    {"rope_scaling": {**YARN, "attention_factor": None}},
    {"rope_scaling": {**YARN, "attention_factor": 2, "mscale": 1.0, "mscale_all_dim": 0.5}},
    {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    {"rope_scaling": {**YARN, "mscale": 1, "mscale_all_dim": 1}},
    {"rope_scaling": {**YARN, "mscale": 0.707}}, {"rope_scaling": {**YARN, "mscale_all_dim": 0.7}},
    {"rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.0}},
    {"rope_scaling": {**YARN, "attn_factor": 0.8782, "extrapolation_factor": 0.5}},  # unread
    {"rope_scaling": {**YARN, "beta_fast": 16, "beta_slow": 2.5}},
    {"rope_scaling": {**YARN, "beta_fast": 0, "beta_slow": None}},
    {"rope_scaling": {**YARN, "beta_fast": 1.0, "beta_slow": 1.0}},
    {"rope_scaling": {**YARN, "beta_fast": 1.0, "beta_slow": 1.0, "truncate": False}},
    {"rope_scaling": {**YARN, "truncate": False}}, {"rope_scaling": {**YARN, "truncate": True}},
    {"rope_scaling": {**YARN, "beta_fast": -1.0}}, {"rope_scaling": YARN, "rope_theta": 1.0},
    {"rope_scaling": {**YARN, "attention_factor": "1"}}, {"rope_scaling": {**YARN, "factor": "4"}},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, {"rope_scaling": LONG},
    {"rope_scaling": {"rope_type": "su"}}, {"rope_scaling": {"rope_type": None}},
    {"rope_scaling": {"rope_type": "linear"}}, {"rope_scaling": {**LINEAR, "factor": None}},
    {"rope_scaling": {**LLAMA3, "low_freq_factor": None}},
    {"rope_scaling": {**LINEAR, "partial_rotary_factor": 0.5}},
    {"rope_parameters": {"full_attention": LINEAR}},
    {"rope_theta": None}, {"rope_scaling": {"rope_theta": None}}, {"rope_theta": "1e4"},
]
SIZES: list[dict[str, Any]] = [
    {"head_dim": ABSENT}, {"head_dim": None}, {"head_dim": 32}, {"head_dim": 128},
    {"num_key_value_heads": ABSENT}, {"num_key_value_heads": None}, {"num_key_value_heads": 3},
    {"num_key_value_heads": ABSENT, "num_attention_heads": 32, "head_dim": 8, "hidden_size": 64},
    {"num_key_value_heads": ABSENT, "num_attention_heads": 8, "head_dim": 8},
    {"num_key_value_heads": None, "num_attention_heads": 8, "head_dim": 8},
    {"num_key_value_heads": ABSENT, "head_dim": ABSENT, "num_attention_heads": 16,
     "hidden_size": 64},
    {"rms_norm_eps": ABSENT}, {"rms_norm_eps": 1e-3},
    {"max_position_embeddings": ABSENT}, {"tie_word_embeddings": True},
    {"tie_word_embeddings": None}, {"hidden_act": "swish"}, {"hidden_act": "silu"},
    {"hidden_act": "gelu"}, {"hidden_act": "relu"}, {"hidden_act": None},
    {"attention_bias": True}, {"attention_bias": False}, {"mlp_bias": True}, {"mlp_bias": False},
    {"hidden_size": "48"}, {"hidden_size": 48.0}, {"num_attention_heads": True},
    {"hidden_size": ABSENT}, {"vocab_size": ABSENT}, {"num_hidden_layers": ABSENT},
    {"sliding_window": 128}, {"sliding_window": None}, {"use_sliding_window": True},
    {"sliding_window": ABSENT},
    {"use_sliding_window": False, "sliding_window": 128},
    {"use_sliding_window": True, "sliding_window": None},
    {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2},
    {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 28},
    {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1},
    {"use_sliding_window": True, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 0,
     "layer_types": ["full_attention"] * 2},
    {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2,
     "layer_types": ["full_attention", "sliding_attention"]},
    {"use_sliding_window": True, "sliding_window": None,
     "layer_types": ["full_attention", "sliding_attention"]},
    {"layer_types": ["full_attention"] * 2}, {"layer_types": None},
    {"architectures": ABSENT}, {"architectures": None},
    {"architectures": ["LLaMAForCausalLM"]}, {"architectures": ["FSDPQwen2ForCausalLM"]},
    {"bos_token_id": -1}, {"eos_token_id": -1}, {"eos_token_id": [1, -1, 64]},
    {"bos_token_id": 64}, {"eos_token_id": 64}, {"eos_token_id": [3, 5]}, {"eos_token_id": None},
    {"bos_token_id": None}, {"bos_token_id": ABSENT, "eos_token_id": ABSENT},
    {"is_causal": True}, {"is_causal": False}, {"is_causal": None},
    {"pad_token_id": -1}, {"length_penalty": INFINITY}, {"unread": NAN},
    {"unread": [-INFINITY, "NaN, \\\" Infinity"]}, {"rms_norm_eps": NAN},
    {"unread": {"deep": [1, None]}}, {"pretraining_tp": 2}, {"use_cache": False},
    {"attention_dropout": 0.1}, {"torch_dtype": "float16"}, {"dtype": "bfloat16"},
]
# Changes that transformers accepts and the server refuses, as it would compute another model.
KEPT_OUT: list[dict[str, Any]] = [
    {"architectures": ["LlamaForSequenceClassification"]}, {"architectures": ["LlamaModel"]},
    {"architectures": ["OtherForCausalLM"],
     "auto_map": {"AutoModelForCausalLM": "modeling_other.OtherForCausalLM"}},
    {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    {"quantization_config": {"quant_method": "fp8"}},
    {"quantization": {"group_size": 64, "bits": 4}},  # mlx
    {"partial_rotary_factor": 0.5}, {"rope_scaling": {**LINEAR, "factor": 0.5}},
    {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}},
    {"rope_scaling": {**LLAMA3, "low_freq_factor": 0.0}},
    {"rope_parameters": {"sliding_attention": LINEAR, "rope_theta": 1e4}},
    {"rope_scaling": {**YARN, "factor": 0.5}}, {"rope_scaling": {**YARN, "factor": None}},
    {"rope_scaling": {**YARN, "beta_fast": 1, "beta_slow": 32}},
    {"rope_scaling": {**YARN, "attention_factor": 0.0}},
    {"rope_scaling": {**YARN, "attention_factor": -1.0}},
    {"rope_scaling": {**YARN, "attention_factor": 11.0}},
    {"rope_scaling": {**YARN, "mscale": -20.0, "mscale_all_dim": 1.0}},
    {"rope_scaling": {**YARN, "truncate": None}}, {"rope_scaling": YARN, "rope_theta": 0.5},
]


def is_disputed(model_type: str, changes: dict[str, Any]) -> bool:
    """True if transformers 4 and 5 disagree about the config; the server follows the one that
    loads it."""
    return (model_type == "mistral" and (changes.get("num_key_value_heads", 1) is None
                                         or "layer_types" in changes)
            or model_type == "qwen2" and changes.get("head_dim", 1) is None)


def text_of(model_type: str, changes: dict[str, Any]) -> str:
    """A config.json; Python's NaN and Infinity stay in it."""
    config = {"model_type": model_type, "architectures": [TYPES[model_type] + "ForCausalLM"],
              **BASE, **({"sliding_window": None} if model_type == "mistral" else {}), **changes}
    return json.dumps({key: value for key, value in config.items() if value is not ABSENT})


def frequencies(model: Any) -> tuple[list[float], float]:
    """RoPE's frequencies in float64, and the factor of cos and sin."""
    narrow = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        rotary = type(model.model.rotary_emb)(model.config)
    finally:
        torch.float32, torch.float, torch.Tensor.float = narrow
    return rotary.inv_freq.tolist(), float(rotary.attention_scaling)


def compute(model: Any) -> None:
    """A forward pass of a model that has no weights yet."""
    model = model.to_empty(device="cpu").float()
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(0.01)
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
        model(torch.tensor([[1, 2, 3]]))


def read(text: str) -> dict[str, Any]:
    """Sizes, tensors and RoPE that transformers reads, after a forward pass; or `refused`."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(text)
        try:
            config = transformers.AutoConfig.from_pretrained(folder)
            config._attn_implementation = "eager"
            with torch.device("meta"):
                model = transformers.AutoModelForCausalLM.from_config(config)
            inv_freq, rope_factor = frequencies(model)
            if model.num_parameters() < 1e8:  # a published model need not compute
                compute(model)
        except Exception as error:  # noqa: BLE001  (of many kinds)
            return {"refused": type(error).__name__}
    attention = model.model.layers[0].self_attn
    eos = config.eos_token_id
    return {
        "shapes": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
        "heads": config.num_attention_heads,
        "kv_heads": config.num_attention_heads // attention.num_key_value_groups,
        "head_dim": attention.head_dim, "inv_freq": inv_freq, "rope_factor": rope_factor,
        "norm_eps": model.model.norm.variance_epsilon,
        "tied": bool(config.tie_word_embeddings),
        "act": type(model.model.layers[0].mlp.act_fn).__name__,
        "window": max((getattr(layer.self_attn, "sliding_window", None)
                       or (getattr(config, "sliding_window", None)
                           if config.model_type == "mistral" else None) or 0
                       for layer in model.model.layers), default=0),
        "bos": config.bos_token_id, "eos": eos if isinstance(eos, list) else [eos],
    }


def is_served(text: str, reading: dict[str, Any]) -> bool:
    """True if the server computes this model."""
    raw = json.loads(text)
    if "refused" in reading or any(raw.get(key) is None for key in GIVEN):
        return False
    biases = {name.split(".", 3)[-1] for name in reading["shapes"] if name.endswith("bias")}
    qkv = {f"self_attn.{letter}_proj.bias" for letter in "qkv"}
    return (raw["model_type"] in TYPES
            and biases == (qkv if raw["model_type"] == "qwen2" else set())
            and reading["act"].startswith("SiLU")
            and raw.get("is_causal", True)  # transformers/masking_utils.py
            and (reading["window"] or "sliding_attention" not in (raw.get("layer_types") or ()))
            and rope_is_static(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
            and len(reading["inv_freq"]) * 2 == reading["head_dim"]
            and reading["norm_eps"] == reading["norm_eps"])


def rope_is_static(parameters: dict[str, Any]) -> bool:
    """False where frequencies change with the length, and for RoPE by layer kind."""
    return (parameters.get("rope_type") not in ("dynamic", "longrope")
            and not any(isinstance(value, dict) for value in parameters.values()))


def number_of(value: Any, known: list[Any]) -> int:
    """The index of `value` in `known`, to which it is appended if it is missing."""
    if value not in known:
        known.append(value)
    return known.index(value)


def main() -> None:
    transformers.logging.set_verbosity_error()
    published = [case for case in json.loads(OUT.read_text())["cases"] if "model" in case]
    cases: list[dict[str, Any]] = []
    readings: list[Any] = []
    shapes: list[Any] = []
    for model_type in TYPES:
        for kept_out, group in ((False, ROPE if model_type in SOME else []), (False, SIZES),
                                (True, KEPT_OUT if model_type in SOME else [])):
            for changes in group:
                if is_disputed(model_type, changes):
                    continue
                text = text_of(model_type, changes)
                reading = read(text)
                case: dict[str, Any] = {"config": text}
                if not kept_out and is_served(text, reading):
                    first = {name: shape for name, shape in reading.pop("shapes").items()
                             if ".layers.1." not in name}
                    case |= {"shapes": number_of(first, shapes),
                             "reading": number_of(reading, readings)}
                cases.append(case)
    for case in published:
        if not isinstance(case["config"], str):
            case["config"] = json.dumps(case["config"])
        if "refused" not in case:
            reading = read(case["config"])
            assert is_served(case["config"], reading), case["model"]
            del reading["shapes"]
            case["reading"] = number_of(reading, readings)
        cases.append(case)
    tables = {"cases": cases, "readings": readings, "shapes": shapes}
    lines = [f'"{name}": [\n' + ",\n".join(map(json.dumps, table)) + "\n]"
             for name, table in tables.items()]
    OUT.write_text(f'{{"transformers": "{transformers.__version__}",\n' + ",\n".join(lines) + "}\n")
    print(f"{len(cases)} cases, {sum('reading' in case for case in cases)} served")


if __name__ == "__main__":
    main()
