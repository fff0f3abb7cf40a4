"""A GGUF file as a Hugging Face checkpoint: configuration, tensors (dequantised), tokenizer files.

Invariant: every tensor and every key of the architecture is used, known to have no effect, or
refused by name. Rows are dequantised in blocks, while they are written. Read gguf_tokenizer.py
next.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from models.convert.gguf_tokenizer import tokenizer_files
from models.convert.refusal import Refusal
from models.convert.rounding import TARGETS, TORCH_NAMES
from models.convert.source_tensor import BLOCK_BYTES, SourceTensor
from models.convert.tensor_plan import Plan, PlannedTensor, Pool

# general.architecture -> the class of the transformers library
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
QUANTISATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
QUANTISATIONS += ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS")
QUANTISATIONS += ("IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4")
WEIGHT_BLOCKS = {"Q8_0": "q8", "Q4_0": "q4"}  # the server's --quantization
_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# llama.cpp reads the two factors in other architectures alone.
_WITHOUT_EFFECT = (
    "rope.scaling.finetuned",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "tensor_data_layout",
)
# LLaMA 3's RoPE scaling: low, high, original context. GGUF stores only the factors that result.
_LLAMA3 = (1.0, 4.0, 8192)


class GgufTensor(SourceTensor):
    """A tensor of a GGUF file, read as float32.

    `kind` is its type in the file, a name of QUANTISATIONS; `order` the rows to take, None for all
    rows in the order of the file.
    """

    def __init__(self, tensor: Any, path: Path) -> None:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        where = int(tensor.data_offset), int(tensor.n_bytes)
        super().__init__(tensor.name, "F32", shape, (), path, *where)
        self.__dict__.update(kind=tensor.tensor_type.name, order=None)

    def in_order(self, order: np.ndarray) -> GgufTensor:
        """The tensor with its rows in another order."""
        assert len(order) == math.prod(self.shape[:-1])
        other = copy.copy(self)
        other.__dict__.update(order=order)
        return other

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields the elements in row-major order as flat arrays of at most BLOCK_BYTES or a row."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        rows, kind, order = math.prod(self.shape[:-1]), GGMLQuantizationType[self.kind], self.order
        size, start = (rows, self.data_bytes // max(1, rows)), self.data_offset
        stored = np.memmap(self.path, dtype=np.uint8, mode="r", offset=start, shape=size)
        step = max(1, BLOCK_BYTES // (4 * self.shape[-1]))
        for first in range(0, len(stored), step):
            some = slice(first, first + step)
            block = np.ascontiguousarray(stored[some if order is None else order[some]])
            yield dequantize(block, kind).reshape(-1)


class _Keys:
    """The metadata of a file, which remembers the architecture's keys that were not read yet."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self.architecture = self.get("general.architecture")
        self._left = {k for k in fields if k.startswith(f"{self.architecture}.")}
        self._left -= {f"{self.architecture}.{key}" for key in _WITHOUT_EFFECT}

    def get(self, key: str, default: Any = None) -> Any:
        """The value of any key. It must have the type of `default`, unless `default` is None."""
        field = self._fields.get(key)
        try:
            value = default if field is None else field.contents()
        except ValueError:
            raise Refusal(f"key {key}: not UTF-8") from None
        if default is not None and type(value) is not type(default):
            raise Refusal(f"key {key}: {value!r} is no {type(default).__name__}")
        return value

    def of_model(self, key: str, kind: type, default: Any = None) -> Any:
        """A number of the architecture. Refusal if it is absent and there is no default."""
        key = f"{self.architecture}.{key}"
        self._left.discard(key)
        value = self.get(key, default)
        if type(value) is not kind or (kind is int and not 0 <= value <= 1 << 31):
            raise Refusal(f"key {key}: {value!r} is no {kind.__name__} of a model")
        # The shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06.
        return float(str(np.float32(value))) if kind is float else value

    def check_empty(self) -> None:
        """Raises Refusal if a key of the architecture was not read."""
        if self._left:
            raise Refusal(f"key {min(self._left)}: not supported")


def open_gguf(path: Path, wanted: str, keep_blocks: bool = False) -> Plan:
    """Opens `path`. `wanted`: f32, bf16, f16, or keep for bf16.

    `keep_blocks`: keep is f16 if tensors are in blocks. The server's q8 and q4 find the codes of
    Q8_0 and Q4_0 again in f16, where bf16 would have changed them. `weight_blocks` in config.json
    is then the one of the two that all matrices of the layers have.
    """
    try:
        import gguf
    except ImportError:
        needs = "gguf (pip install 'foxserve[convert]', or gguf)"
        raise Refusal(f"{path.name}: reading it needs {needs}") from None

    class Reader(gguf.GGUFReader):
        """Refuses to read past the end of the file, so that no array is longer than the file."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *rest: Any, **named: Any) -> Any:
            if isinstance(self.data, np.memmap):
                self.data = np.asarray(self.data)  # a memmap takes twice as long to cut
            if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise ValueError("it ends too early")
            return super()._get(offset, dtype, count, *rest, **named)

    try:
        reader = Reader(path)
    except OSError:
        raise
    except Exception as error:  # GGUFReader checks little: a damaged file can raise any
        raise Refusal(f"{path.name}: not a whole GGUF file ({error}); of other checkpoints SRC is "
                      "the directory") from None
    keys = _Keys(reader.fields)
    if reader.byte_order != "I" or keys.get("split.count", 1) > 1:
        raise Refusal(f"{path.name}: neither big-endian nor split files are supported")
    if keys.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise Refusal(f"architecture {keys.architecture!r}: not supported; there are {known}")
    for tensor in reader.tensors:
        if tensor.tensor_type.name not in QUANTISATIONS:
            known = ", ".join(QUANTISATIONS)
            kind = tensor.tensor_type.name
            raise Refusal(f"tensor {tensor.name}: {kind} is not supported; there are {known}")
    tensors = {t.name: GgufTensor(t, path) for t in reader.tensors}
    config = _config(keys, tensors)
    files = tokenizer_files(keys.get, config["vocab_size"])
    kinds = sorted({t.tensor_type.name for t in reader.tensors})
    if wanted == "keep":
        wanted = "f16" if keep_blocks and not {"F32", "F16", "BF16"}.issuperset(kinds) else "bf16"
    ends = files["generation_config.json"]
    config |= {key: ends[key] for key in ("bos_token_id", "eos_token_id")}
    config["torch_dtype"] = TORCH_NAMES[wanted]
    of_layers = {t.tensor_type.name for t in reader.tensors
                 if t.name.startswith("blk.") and len(t.shape) == 2}
    if keep_blocks and len(of_layers) == 1 and of_layers <= WEIGHT_BLOCKS.keys():
        config["weight_blocks"] = WEIGHT_BLOCKS[of_layers.pop()]
    planned = _Planner(config, tensors, TARGETS[wanted]).model()
    return Plan(f"GGUF, {', '.join(kinds)}", config, planned, files=files)


def _config(keys: _Keys, tensors: dict[str, GgufTensor]) -> dict[str, Any]:
    """config.json."""
    wide, heads = keys.of_model("embedding_length", int), keys.of_model("attention.head_count", int)
    if "token_embd.weight" not in tensors:
        raise Refusal("tensor token_embd.weight: missing")
    head_dim = keys.of_model("attention.key_length", int, wide // max(1, heads))
    if heads == 0 or head_dim == 0 or head_dim % 2 != 0:
        raise Refusal(f"key {keys.architecture}.attention.head_count: {heads} heads of {head_dim}")
    for key, default in (
        ("attention.value_length", head_dim),
        ("rope.dimension_count", head_dim),
        ("vocab_size", tensors["token_embd.weight"].shape[0]),
    ):
        if keys.of_model(key, int, default) != default:
            raise Refusal(f"key {keys.architecture}.{key}: only {default} is supported here")
    config = {
        "architectures": [ARCHITECTURES[keys.architecture]],
        "model_type": keys.architecture,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": wide,
        "intermediate_size": keys.of_model("feed_forward_length", int),
        "num_hidden_layers": keys.of_model("block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.of_model("attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": keys.of_model("attention.layer_norm_rms_epsilon", float),
        "rope_theta": keys.of_model("rope.freq_base", float, 10000.0),
        "rope_scaling": _rope_scaling(keys),
        "max_position_embeddings": keys.of_model("context_length", int),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if "rope_freqs.weight" in tensors:
        config["rope_scaling"] = _llama3_scaling(config, tensors.pop("rope_freqs.weight"))
    keys.check_empty()
    return config


def _rope_scaling(keys: _Keys) -> dict[str, Any] | None:
    """Linear or YaRN RoPE scaling, or None, from the keys of the architecture."""
    kind = keys.of_model("rope.scaling.type", str, "none")
    factor = keys.of_model("rope.scaling.factor", float, 1.0)
    yarn = _yarn_parameters(keys)
    if kind not in ("none", "linear", "yarn"):
        raise Refusal(
            f"key {keys.architecture}.rope.scaling.type: {kind!r} is not supported; there are "
            "none, linear, yarn, and llama3 by the tensor rope_freqs.weight"
        )
    if kind == "none" or (kind == "linear" and factor == 1):
        return None
    return {"rope_type": kind, "factor": factor} | (yarn if kind == "yarn" else {})


def _yarn_parameters(keys: _Keys) -> dict[str, Any]:
    """The parameters of YaRN that the file has, by their names in config.json.

    yarn_log_multiplier is mscale_all_dim beside an mscale of 1.
    """
    if keys.of_model("rope.scaling.attn_factor", float, 1.0) != 1:
        raise Refusal(f"key {keys.architecture}.rope.scaling.attn_factor: only 1 is supported")
    found = {name: keys.of_model(f"rope.scaling.{key}", kind, kind()) for name, key, kind in (
        ("original_max_position_embeddings", "original_context_length", int),
        ("beta_fast", "yarn_beta_fast", float), ("beta_slow", "yarn_beta_slow", float),
        ("mscale_all_dim", "yarn_log_multiplier", float))}
    given = {name: value for name, value in found.items() if value}
    return given | ({"mscale": 1.0} if "mscale_all_dim" in given else {})


def _llama3_scaling(config: dict[str, Any], tensor: GgufTensor) -> dict[str, Any] | None:
    """LLaMA 3's RoPE scaling whose factors `tensor` holds; None if it scales nothing."""
    found = next(tensor.blocks()).astype(np.float64)
    factor = float(np.round(found.max(), 3))
    low, high, original = _LLAMA3
    dim = config["head_dim"]
    turns = original * config["rope_theta"] ** (-np.arange(0, dim, 2) / dim) / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-4, atol=0):
        raise Refusal(f"tensor rope_freqs.weight: not LLaMA 3's scaling of {original} positions")
    if factor == 1:
        return None
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


class _Planner:
    """The tensors of a checkpoint, by the names of the transformers library."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, GgufTensor], dtype: str) -> None:
        self._config, self._pool, self._dtype = config, Pool(tensors), dtype
        self._planned: list[PlannedTensor] = []

    def _add(self, name: str, source: str, shape: tuple[int, ...], heads: int = 0) -> None:
        """Plans a tensor. `heads`: moves the rows of each head's RoPE pairs half a head apart.

        GGUF stores the two rows of a pair side by side, transformers half a head apart.
        """
        part = self._pool.take(source, shape)
        if heads:
            order = np.arange(shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
            part = part.in_order(order)
        self._planned.append(PlannedTensor(name, self._dtype, shape, (part,)))

    def model(self) -> list[PlannedTensor]:
        """Plans all tensors of the model."""
        c = self._config
        table = (c["vocab_size"], c["hidden_size"])
        self._add("model.embed_tokens.weight", "token_embd.weight", table)
        for index in range(c["num_hidden_layers"]):
            self._layer(index)
        self._add("model.norm.weight", "output_norm.weight", table[1:])
        if not c["tie_word_embeddings"]:
            self._add("lm_head.weight", "output.weight", table)
        self._pool.check_empty()
        return self._planned

    def _layer(self, index: int) -> None:
        c, kind = self._config, self._config["model_type"]
        wide, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
        queries, keys = dim * c["num_attention_heads"], dim * c["num_key_value_heads"]
        paired = kind == "llama"

        def add(stem: str, *shape: int, end: str = "weight", heads: int = 0) -> None:
            name = f"model.layers.{index}.{_MODULES[stem]}.{end}"
            self._add(name, f"blk.{index}.{stem}.{end}", shape, heads if paired else 0)

        add("attn_norm", wide)
        add("attn_q", queries, wide, heads=c["num_attention_heads"])
        add("attn_k", keys, wide, heads=c["num_key_value_heads"])
        add("attn_v", keys, wide)
        if kind == "qwen2":
            for stem, height in (("attn_q", queries), ("attn_k", keys), ("attn_v", keys)):
                add(stem, height, end="bias")
        if kind == "qwen3":
            add("attn_q_norm", dim)
            add("attn_k_norm", dim)
        add("attn_output", wide, queries)
        add("ffn_norm", wide)
        add("ffn_gate", inner, wide)
        add("ffn_up", inner, wide)
        add("ffn_down", wide, inner)
