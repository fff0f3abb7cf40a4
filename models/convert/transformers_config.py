"""TransformersConfig: config.json of a LLaMA, Mistral, Qwen2 or Qwen3, and the tensors it names.

Invariant: it accepts the files that the server accepts (models/checkpoint/model_config.cc) and
reads the same values, but refuses keys that none of these classes reads.
tests/golden/transformers_configs.json holds both readers to the values that transformers reads.
Read tensor_plan.py next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from models.convert.canonical_config import (
    LEAST_NORM_EPS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INT,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_VOCAB,
    WITHOUT_EFFECT,
    check_token_ids,
)
from models.convert.refusal import Refusal
from models.convert.source_tensor import NOT_QUANTIZED

CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
           "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_MISSING = object()
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
          "num_attention_heads")
_DEFAULT_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}
_ROPES = ("rope_scaling", "rope_parameters")
_REFUSED = {
    "quantization_config": NOT_QUANTIZED, "quantization": NOT_QUANTIZED,  # the second is MLX's
    "transformers_weights": "not supported: name that file model.safetensors, and remove the key"}
_KNOWN = WITHOUT_EFFECT | frozenset((*_SIZES, *_ROPES, *_REFUSED)) | frozenset(
    """
    num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps rope_theta
    partial_rotary_factor original_max_position_embeddings attention_bias mlp_bias layer_types
    sliding_window use_sliding_window max_window_layers is_causal tie_word_embeddings bos_token_id
    eos_token_id pad_token_id use_forget_gate use_attention_sink use_qk_norm_cap
    log_pruning_tolerance weight_blocks
    attention_dropout hidden_dropout embd_pdrop resid_pdrop attn_pdrop pretraining_tp
    is_llama_config transformers.js_config unsloth_version unsloth_fixed name_or_path
    model_max_length max_sequence_length
    use_mrope neftune_noise_alpha ignore_index num_labels
    """.split()
)


class _Reader:
    """Typed reads of one object, as KeyReader of models/checkpoint/json_reader.h does them."""

    def __init__(self, raw: dict[str, Any], place: str = "") -> None:
        self.raw, self._place = raw, place

    def refuse(self, key: str, problem: str) -> Refusal:
        return Refusal(f"config key {self._place}{key}: {problem}")

    def integer(self, key: str, default: int | None, low: int, high: int) -> int:
        """The default of an absent key. Refusal if the key is required."""
        value = self.raw.get(key, default)
        if value is None:
            raise self.refuse(key, "missing" if default is None else "null is not an integer")
        if type(value) is not int or not low <= value <= high:
            raise self.refuse(key, f"{value!r} is not an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None) -> float | None:
        value = self.raw.get(key, _MISSING)
        if value is _MISSING:
            return default
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.refuse(key, f"{value!r} is not a number")
        return float(value)

    def above_0(self, key: str, default: float | None) -> float:
        value = self.number(key, default)
        if value is None or not value > 0:
            raise self.refuse(key, "missing" if value is None else f"{value!r} is not above 0")
        return value

    def flag(self, key: str) -> bool:
        value = self.raw.get(key, False)
        if not isinstance(value, bool):
            raise self.refuse(key, f"{value!r} is not a boolean")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.raw.get(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, f"{value!r} is not a text")
        return value


@dataclass(frozen=True)
class Rope:
    """RoPE's base and scaling, as RopeScaling of model_config.h; `factor` 1: no scaling."""

    base: float
    factor: float = 1.0
    low: float = 0.0
    high: float = 1.0
    context: int = 0
    by_number: bool = False
    attention_factor: float = 1.0

    def frequencies(self, head_dim: int) -> list[float]:
        """The angles per position, head_dim / 2."""
        result = []
        for m in range(head_dim // 2):
            plain = self.base ** (-2.0 * m / head_dim)
            turns = self.context * plain / (2 * math.pi)
            x = m if self.by_number else turns
            kept = min(1.0, max(0.0, (x - self.low) / (self.high - self.low)))
            result.append(plain * (kept + (1 - kept) / self.factor))
        return result


@dataclass(frozen=True)
class TransformersConfig:
    """The architecture. Sizes are named as in models/checkpoint/model_config.h."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    max_position_embeddings: int | None  # after linear and yarn scaling
    sliding_window: int | None
    tied: bool
    forgets: bool
    has_sinks: bool
    has_caps: bool

    @property
    def context(self) -> int:
        """The longest sequence."""
        longest = self.max_position_embeddings or 2048
        return min(longest, self.sliding_window or longest)

    @property
    def qk_norm(self) -> bool:
        """True if queries and keys have norms."""
        return self.model_type == "qwen3"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All tensors but a tied lm_head.weight, by name."""
        wide = self.hidden_size
        result = {"model.embed_tokens.weight": (self.vocab_size, wide)}
        for n in range(self.num_layers):
            result |= {f"model.layers.{n}.{name}": shape for name, shape in self._layer().items()}
        result["model.norm.weight"] = (wide,)
        if not self.tied:
            result["lm_head.weight"] = (self.vocab_size, wide)
        return result

    def _layer(self) -> dict[str, tuple[int, ...]]:
        wide, inner, heads = self.hidden_size, self.intermediate_size, self.num_heads
        q, kv = heads * self.head_dim, self.num_kv_heads * self.head_dim
        result: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (wide,), "post_attention_layernorm.weight": (wide,),
            "self_attn.q_proj.weight": (q, wide), "self_attn.k_proj.weight": (kv, wide),
            "self_attn.v_proj.weight": (kv, wide), "self_attn.o_proj.weight": (wide, q),
            "mlp.gate_proj.weight": (inner, wide), "mlp.up_proj.weight": (inner, wide),
            "mlp.down_proj.weight": (wide, inner)}
        if self.model_type == "qwen2":
            result |= {f"self_attn.{name}_proj.bias": (size,)
                       for name, size in (("q", q), ("k", kv), ("v", kv))}
        if self.qk_norm:
            result |= {f"self_attn.{name}_norm.weight": (self.head_dim,) for name in "qk"}
        if self.forgets:
            result["self_attn.fgate_proj.weight"] = (self.num_kv_heads, wide)
            result["self_attn.fgate_proj.bias"] = (self.num_kv_heads,)
        if self.has_sinks:
            result["self_attn.sinks"] = (heads,)
        if self.has_caps:
            result |= {"self_attn.q_cap": (heads,), "self_attn.k_cap": (self.num_kv_heads,)}
        return result


def parse_transformers_config(raw: dict[str, Any]) -> TransformersConfig:
    """Checks and reads config.json; Refusal names the first key at fault."""
    keys = _Reader(raw)
    model_type = raw.get("model_type")
    if model_type not in CLASSES:
        raise keys.refuse("model_type", f"{model_type!r} is not one of {', '.join(CLASSES)}")
    _check_known(keys, model_type)
    vocab, hidden, inner, layers, heads = (
        keys.integer(key, None, 1, most) for key, most in zip(
            _SIZES, (MAX_VOCAB, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, MAX_HEADS)))
    kv_heads, head_dim = _heads(keys, model_type, hidden, heads)
    context = raw.get("max_position_embeddings")
    if context is not None:
        context = keys.integer("max_position_embeddings", None, 1, MAX_INT)
    eps = keys.number("rms_norm_eps", 1e-6)
    if not LEAST_NORM_EPS <= eps <= 1:
        raise keys.refuse("rms_norm_eps", f"{eps!r} is not from {LEAST_NORM_EPS} to 1")
    if keys.text("hidden_act", "silu") not in ("silu", "swish"):
        raise keys.refuse("hidden_act", f"{raw['hidden_act']!r} is not supported")
    window = _sliding_window(keys, model_type, layers)
    rope, context = _rope(keys, context, head_dim)
    check_token_ids(raw, vocab)
    config = TransformersConfig(
        model_type, vocab, hidden, inner, layers, heads, kv_heads, head_dim, eps,
        rope, context, window, keys.flag("tie_word_embeddings"),
        keys.flag("use_forget_gate"), keys.flag("use_attention_sink"),
        keys.flag("use_qk_norm_cap"))
    if config.has_caps and (config.qk_norm or not config.forgets):
        raise keys.refuse("use_qk_norm_cap", "needs use_forget_gate and no QK-norm")
    tolerance = raw.get("log_pruning_tolerance")
    if tolerance is not None and not keys.number("log_pruning_tolerance", None) < 0:
        raise keys.refuse("log_pruning_tolerance", f"{tolerance!r} is not negative")
    return config


def without_unknown(raw: dict[str, Any], ignored: frozenset[str]) -> dict[str, Any]:
    """`raw` without the keys of `ignored` that no class reads."""
    return {key: value for key, value in raw.items() if key in _KNOWN or key not in ignored}


def _check_known(keys: _Reader, model_type: str) -> None:
    for key, problem in _REFUSED.items():
        if keys.raw.get(key) is not None:
            raise keys.refuse(key, problem)
    given = keys.raw.get("architectures") or CLASSES[model_type]
    for name in given if isinstance(given, list) else [given]:
        # Forks and trainers rename the class; one with code of its own may be another model, unless
        # the code is modeling_fox.py.
        renamed = "auto_map" not in keys.raw and str(name).endswith("ForCausalLM")
        if name not in (CLASSES[model_type], f"Fox{CLASSES[model_type]}") and not renamed:
            raise keys.refuse("architectures", f"{name!r} is not {CLASSES[model_type]}")
    for key, value in keys.raw.items():
        if key not in _KNOWN and value not in (None, False):
            raise keys.refuse(key, f"unknown; --ignore-key {key} if it has no effect")


def _heads(keys: _Reader, model_type: str, hidden: int, heads: int) -> tuple[int, int]:
    """The number of kv heads, and the size of a head."""
    kv_heads = keys.raw.get("num_key_value_heads", _DEFAULT_KV_HEADS.get(model_type))
    if kv_heads is None:
        kv_heads = heads
    elif "num_key_value_heads" in keys.raw:
        kv_heads = keys.integer("num_key_value_heads", None, 1, MAX_HEADS)
    if heads % kv_heads != 0:
        raise keys.refuse("num_key_value_heads", f"{kv_heads} does not divide {heads}")
    head_dim = keys.raw.get("head_dim")
    if model_type == "qwen3":
        head_dim = keys.integer("head_dim", 128, 1, MAX_HEAD_DIM)
    elif head_dim is not None:
        head_dim = keys.integer("head_dim", None, 1, MAX_HEAD_DIM)
    elif hidden % heads != 0 or hidden // heads > MAX_HEAD_DIM:
        raise keys.refuse("num_attention_heads", f"{heads} heads of {hidden / heads:g}")
    else:
        head_dim = hidden // heads
    if head_dim % 2 != 0:
        raise keys.refuse("head_dim", f"{head_dim} is odd")
    return kv_heads, head_dim


def _sliding_window(keys: _Reader, model_type: str, layers: int) -> int | None:
    """How many tokens some layers attend to. Refuses biases and attention to later tokens."""
    for key, types in (("attention_bias", ("llama", "qwen3")), ("mlp_bias", ("llama",))):
        if model_type in types and keys.flag(key):
            raise keys.refuse(key, "is not supported")
    if keys.raw.get("is_causal", True) is not True:
        raise keys.refuse("is_causal", f"{keys.raw['is_causal']!r} is not supported: tokens would "
                          "attend to later ones, as in a model of embeddings")
    qwen = model_type in ("qwen2", "qwen3")
    slides = model_type == "mistral" or (qwen and keys.flag("use_sliding_window"))
    kinds = keys.raw.get("layer_types")
    if kinds is not None:
        kinds = kinds if isinstance(kinds, list) else [kinds]
        for kind in kinds:
            if kind != "full_attention" and not (slides and kind == "sliding_attention"):
                raise keys.refuse("layer_types", f"{kind!r} is not supported")
        slides = slides and ("sliding_attention" in kinds or not qwen)
    elif qwen and slides:
        slides = keys.integer("max_window_layers", 28, 0, MAX_INT) < layers
    if not slides:
        return None
    if keys.raw.get("sliding_window", 4096) is None:
        if qwen and kinds is not None:
            raise keys.refuse("sliding_window", "null, and layer_types names layers that slide")
        return None
    return keys.integer("sliding_window", 4096, 1, MAX_INT)


def _rope(keys: _Reader, longest: int | None, head_dim: int) -> tuple[Rope, int | None]:
    """RoPE, and the longest sequence under it.

    rope_scaling unless it is empty, else rope_parameters; the base may stand beside it.
    """
    place, parameters = keys, _Reader({})
    for name in _ROPES:
        found = keys.raw.get(name)
        if found is not None and not isinstance(found, dict):
            raise keys.refuse(name, f"{found!r} is not an object")
        if found:
            parameters = _Reader(found, f"{name}.")
            break
    for key, value in parameters.raw.items():
        if isinstance(value, dict):
            raise parameters.refuse(key, "one RoPE serves all layers")
    place = parameters if "rope_theta" in parameters.raw else keys
    base = place.above_0("rope_theta", 10000.0)
    for place in (parameters, keys):
        if place.raw.get("partial_rotary_factor", 1) not in (1, None):
            raise place.refuse("partial_rotary_factor", "must be 1")
        if "partial_rotary_factor" in place.raw:
            break
    kind = parameters.text("rope_type", parameters.text("type", "default")
                           if "rope_type" not in parameters.raw else "default")
    if kind == "default":
        return Rope(base), longest
    if kind in ("dynamic", "longrope", "su"):
        raise parameters.refuse("rope_type", f"{kind!r} is not supported: a longer text would need "
                                "other frequencies for the keys in the cache")
    if kind not in ("linear", "llama3", "yarn"):
        raise parameters.refuse("rope_type", f"{kind!r} is not default, linear, llama3 or yarn")
    factor = parameters.number("factor", 0.0)
    if not factor >= 1:
        raise parameters.refuse("factor", f"{factor!r} is not at least 1")
    if kind == "linear":
        rope = Rope(base, factor)
    else:
        trained = _trained_context(parameters, keys, longest)
        if kind == "llama3":
            return _llama3(parameters, base, factor, trained), longest
        rope, longest = _yarn(parameters, base, factor, trained, head_dim), trained
    # As vLLM reads it, this is the length before scaling.
    return rope, None if longest is None else int(min(longest * factor, MAX_INT))


def _trained_context(parameters: _Reader, keys: _Reader, longest: int | None) -> int:
    """In config.json, else among RoPE's parameters, else the model's length."""
    name = "original_max_position_embeddings"
    place = keys if keys.raw.get(name) is not None else parameters
    trained = longest if place.raw.get(name) is None else place.integer(name, None, 1, MAX_INT)
    if trained is None:
        raise parameters.refuse(name, "missing")
    return trained


def _llama3(parameters: _Reader, base: float, factor: float, trained: int) -> Rope:
    low, high = parameters.above_0("low_freq_factor", None), parameters.number(
        "high_freq_factor", 0.0)
    if not high > low:
        raise parameters.refuse("high_freq_factor", f"{high!r} is not above low_freq_factor")
    return Rope(base, factor, low, high, trained)


def _yarn(parameters: _Reader, base: float, factor: float, trained: int, head_dim: int) -> Rope:
    """As transformers 5 computes it, where 0 and null stand for a default, too."""
    def number(key: str, default: float) -> float:
        return (0.0 if parameters.raw.get(key) is None else parameters.number(key, None)) or default

    def number_of_frequency(turns: float) -> float:
        return head_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    def growth(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1

    fast, slow = number("beta_fast", 32), number("beta_slow", 1)
    if not 0 < slow <= fast <= 1e6:
        raise parameters.refuse("beta_slow", f"{slow:g} is not above 0, or beta_fast, {fast:g}, "
                                "is not from there to 1e6")
    if not base > 1:
        raise parameters.refuse("rope_theta", "must be above 1 under yarn")
    truncate = "truncate" not in parameters.raw or parameters.flag("truncate")
    high, low = number_of_frequency(fast), number_of_frequency(slow)
    if truncate:
        high, low = math.floor(high), math.ceil(low)
    high, low = max(high, 0), min(low, head_dim - 1)
    scale, scale_all = number("mscale", 0), number("mscale_all_dim", 0)
    attention = growth(scale) / growth(scale_all) if scale and scale_all else growth(1)
    if parameters.raw.get("attention_factor") is not None:
        attention = parameters.number("attention_factor", None)
    if not 0.1 <= attention <= 10:
        raise parameters.refuse("attention_factor", f"{attention:g} is not from 0.1 to 10")
    return Rope(base, factor, low + 0.001 if low == high else low, high, trained, True, attention)
