"""CanonicalConfig: the keys of an official or FLA config.json, checked and in one form.

Invariant: every key of the source is understood, known to have no effect, or refused by name.
to_json() writes the official keys, plus num_kv_heads and qkv_bias, which the official configuration
lacks. Read tensor_plan.py next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from models.convert.refusal import Refusal

OFFICIAL_TYPE = "forgetting_transformer-project_fox"
FLA_TYPE = "forgetting_transformer"
ORDINARY_TYPES = ("llama", "mistral", "qwen2", "qwen3")  # read by transformers_config.py
# The bounds of models/checkpoint/model_config.cc.
MAX_VOCAB, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS = 1 << 24, 65536, 1 << 20, 1024
MAX_HEADS, MAX_HEAD_DIM, MAX_RATIO, MAX_EOS, MAX_INT = 1024, 256, 1024, 64, (1 << 31) - 1
LEAST_NORM_EPS = 1e-30

# Keys that neither model reads, or that concern only training, generation and display.
WITHOUT_EFFECT = frozenset(
    """
    _target_ model_type architectures auto_map transformers_version dtype torch_dtype use_cache
    initializer_range elementwise_affine fuse_norm fuse_cross_entropy fuse_swiglu use_l2warp
    fuse_linear_cross_entropy output_hidden_states output_attentions return_dict
    return_dict_in_generate chunk_size_feed_forward is_encoder_decoder is_decoder id2label label2id
    problem_type _name_or_path _commit_hash _attn_implementation_autoset _attn_implementation
    attn_implementation _flash_attn_2_enabled use_flash_attn gradient_checkpointing
    add_cross_attention cross_attention_hidden_size tie_encoder_decoder pruned_heads finetuning_task
    task_specific_params tokenizer_class prefix torchscript use_bfloat16 tf_legacy_loss sep_token_id
    decoder_start_token_id max_length min_length do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
    output_scores forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens max_new_tokens
    min_new_tokens min_p stop_strings renormalize_logits guidance_scale cache_implementation
    penalty_alpha epsilon_cutoff eta_cutoff
    """.split()
)
_COMMON = frozenset(
    """
    vocab_size hidden_size hidden_ratio intermediate_size num_hidden_layers num_heads num_kv_heads
    hidden_act window_size max_position_embeddings norm_eps pad_token_id bos_token_id eos_token_id
    tie_word_embeddings use_output_gate qk_norm qkv_bias log_pruning_tolerance
    """.split()
)
_OFFICIAL_ONLY = frozenset(
    """
    attention_bias rope_base use_rope ogate_act fgate_type fgate_bias_init decay_time_min
    decay_time_max use_output_norm qk_norm_share_param_across_head use_k_shift use_v_shift
    """.split()
)
_FLA_ONLY = frozenset({"attnres_block_size"})


@dataclass
class CanonicalConfig:
    """The architecture. Sizes are named as in models/checkpoint/model_config.h."""

    fla: bool  # the source's tensor layout
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    norm_eps: float
    hidden_act: str
    fgate_type: str
    use_output_gate: bool
    ogate_act: str
    use_output_norm: bool
    qk_norm: bool
    qk_norm_shared: bool
    use_k_shift: bool
    use_v_shift: bool
    qkv_bias: bool
    tied: bool
    log_pruning_tolerance: float | None
    passed_on: dict[str, Any] = field(default_factory=dict)  # keys copied as they are

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        """Width of the keys (and values) of all kv heads."""
        return self.num_kv_heads * self.head_dim

    def to_json(self) -> dict[str, Any]:
        """The canonical config.json."""
        grouped = self.num_kv_heads != self.num_heads
        return {
            "architectures": ["ForgettingTransformerForCausalLM"],
            "model_type": OFFICIAL_TYPE,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads if grouped else None,
            "hidden_act": self.hidden_act,
            "norm_eps": self.norm_eps,
            "fgate_type": self.fgate_type,
            "use_output_gate": self.use_output_gate,
            "ogate_act": self.ogate_act,
            "use_output_norm": self.use_output_norm,
            "qk_norm": self.qk_norm,
            "qk_norm_share_param_across_head": self.qk_norm_shared,
            "use_k_shift": self.use_k_shift,
            "use_v_shift": self.use_v_shift,
            "tie_word_embeddings": self.tied,
            "log_pruning_tolerance": self.log_pruning_tolerance,
            **({"qkv_bias": True} if self.qkv_bias else {}),
            **self.passed_on,
        }


class _Keys:
    """Typed access to the source's keys, with the reference's defaults; null means the default."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self._raw = raw

    def integer(self, key: str, default: int | None, most: int) -> int:
        """A positive integer of at most `most`."""
        value = self._raw.get(key)
        value = default if value is None else value
        if value is None:
            raise Refusal(f"config key {key}: missing")
        if type(value) is not int or not 0 < value <= most:
            raise Refusal(f"config key {key}: {value!r} is not an integer from 1 to {most}")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number, or `default` when absent."""
        value = self._raw.get(key)
        value = default if value is None else value
        if isinstance(value, str):  # YAML reads 1e-6 (without a dot) as text
            try:
                value = float(value)
            except ValueError:
                raise Refusal(f"config key {key}: {value!r} is not a number") from None
        if type(value) not in (int, float) or not math.isfinite(value):
            raise Refusal(f"config key {key}: {value!r} is not a number")
        return value

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None when absent."""
        return None if self._raw.get(key) is None else self.number(key, 0.0)

    def flag(self, key: str) -> bool:
        """A boolean, false when absent."""
        value = self._raw.get(key)
        if not (value is None or isinstance(value, bool)):
            raise Refusal(f"config key {key}: {value!r} is not a boolean")
        return bool(value)

    def choice(self, key: str, allowed: Iterable[str], default: str) -> str:
        """One of `allowed`."""
        value = self._raw.get(key)
        value = default if value is None else value
        if not isinstance(value, str) or value not in allowed:
            raise Refusal(f"config key {key}: {value!r} is not supported")
        return value


def _check_known(raw: dict[str, Any], fla: bool, ignored: frozenset[str]) -> None:
    """Refuses unknown keys, and missing values (`???`) of training configs."""
    known = _COMMON | WITHOUT_EFFECT | (_FLA_ONLY if fla else _OFFICIAL_ONLY) | ignored
    for key, value in raw.items():
        if value == "???":
            raise Refusal(f"config key {key}: missing (???)")
        if key not in known and value not in (None, False):
            raise Refusal(f"config key {key}: unknown; --ignore-key {key} if it has no effect")
    if fla:
        for key in ("window_size", "attnres_block_size"):
            if raw.get(key) is not None:
                raise Refusal(f"config key {key}: {raw[key]!r} is not supported")


def _layout(raw: dict[str, Any]) -> bool:
    """True for an FLA configuration, False for an official one."""
    kind = raw.get("model_type")
    if kind in ORDINARY_TYPES:
        raise Refusal(f"config key model_type: {kind!r} is not a FoX; ./run foxify trains it to be")
    if kind not in (OFFICIAL_TYPE, FLA_TYPE):
        known = ", ".join((OFFICIAL_TYPE, FLA_TYPE, *ORDINARY_TYPES))
        raise Refusal(f"config key model_type: {kind!r} is not supported; there are {known}")
    return kind == FLA_TYPE


def _intermediate_size(keys: _Keys, raw: dict[str, Any], hidden_size: int) -> int:
    """The MLP's width: given, or 2/3 of ratio * D rounded up to a multiple of 256."""
    if raw.get("intermediate_size") is not None:
        return keys.integer("intermediate_size", None, MAX_INTERMEDIATE)
    ratio = keys.number("hidden_ratio", 4)
    if not 0 < ratio <= MAX_RATIO:
        raise Refusal(f"config key hidden_ratio: {ratio!r} is not above 0 and at most {MAX_RATIO}")
    size = 256 * ((int(hidden_size * ratio * 2 / 3) + 255) // 256)
    if not 0 < size <= MAX_INTERMEDIATE:
        raise Refusal(f"config key hidden_ratio: {ratio!r} makes the intermediate size {size}")
    return size


def check_token_ids(raw: dict[str, Any], vocab_size: int) -> None:
    """The ids of the special tokens: an id, null, or, for eos, a list of ids.

    An id outside the vocabulary (-1 is common) stands for no token.
    """
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = raw.get(key)
        ids = value if key == "eos_token_id" and isinstance(value, list) else [value]
        for item in [] if value is None else ids:
            if type(item) is not int or not -MAX_INT - 1 <= item <= MAX_INT:
                raise Refusal(f"config key {key}: {item!r} is not an id")
        if sum(item is not None and 0 <= item < vocab_size for item in ids) > MAX_EOS:
            raise Refusal(f"config key {key}: more than {MAX_EOS} entries")


def _token_ids(raw: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """The keys of the special tokens; an absent key takes its default."""
    check_token_ids(raw, vocab_size)
    defaults = (("bos_token_id", 1), ("eos_token_id", 2), ("pad_token_id", vocab_size))
    return {key: raw.get(key, default if default < vocab_size else None)
            for key, default in defaults}


def _passed_on(raw: dict[str, Any], keys: _Keys, fla: bool, vocab_size: int) -> dict[str, Any]:
    """Copies the keys that the conversion does not interpret."""
    position = raw.get("max_position_embeddings", 2048)
    if position is not None:
        keys.integer("max_position_embeddings", 2048, MAX_INT)
    return {
        "use_rope": False if fla else keys.flag("use_rope"),
        "rope_base": keys.number("rope_base", 500000.0),
        "max_position_embeddings": position,
        **_token_ids(raw, vocab_size),
    }


def _output_gate_act(keys: _Keys) -> str:
    """Checks keys that only a model with an output gate reads."""
    return keys.choice("ogate_act", ("sigmoid", "silu"), "sigmoid")


def _check_combinations(config: CanonicalConfig) -> None:
    """Refuses a configuration that models/checkpoint/model_config.cc would refuse to load."""
    if config.use_output_norm and config.ogate_act == "silu":
        raise Refusal("config key ogate_act: silu together with use_output_norm does not exist")
    if config.qkv_bias and (config.use_k_shift or config.use_v_shift):
        raise Refusal("config key qkv_bias: not supported together with use_k_shift or use_v_shift")
    if config.head_dim > MAX_HEAD_DIM:
        raise Refusal(f"config key num_heads: makes a head larger than {MAX_HEAD_DIM}")
    if config.passed_on["use_rope"] and config.head_dim % 2 != 0:
        raise Refusal("config key use_rope: needs an even head size")
    if config.passed_on["use_rope"] and not config.passed_on["rope_base"] > 0:
        raise Refusal("config key rope_base: not above 0")
    if not LEAST_NORM_EPS <= config.norm_eps <= 1:
        raise Refusal(f"config key norm_eps: {config.norm_eps!r} is not from 1e-30 to 1")
    tolerance = config.log_pruning_tolerance
    if tolerance is not None and not -math.inf < tolerance < 0:
        raise Refusal(f"config key log_pruning_tolerance: {tolerance!r} is not negative")


def parse_config(
    raw: dict[str, Any], tolerance: float | None, ignored: frozenset[str] = frozenset()
) -> CanonicalConfig:
    """Checks `raw` and normalises it. `tolerance` overrides log_pruning_tolerance unless None."""
    fla = _layout(raw)
    _check_known(raw, fla, ignored)
    keys = _Keys(raw)
    hidden_size = keys.integer("hidden_size", 2048, MAX_HIDDEN)
    num_heads = keys.integer("num_heads", 32, MAX_HEADS)
    num_kv_heads = keys.integer("num_kv_heads", num_heads, MAX_HEADS)
    if hidden_size % num_heads != 0:
        raise Refusal(
            f"config key num_heads: {num_heads} does not divide hidden_size {hidden_size}"
        )
    if num_heads % num_kv_heads != 0:
        raise Refusal(f"config key num_kv_heads: {num_kv_heads} does not divide {num_heads}")
    act = keys.choice("hidden_act", ["swish", "silu"] + ([] if fla else ["sigmoid"]), "swish")
    qk_norm, gated = keys.flag("qk_norm"), keys.flag("use_output_gate")
    vocab_size = keys.integer("vocab_size", 32000, MAX_VOCAB)
    config = CanonicalConfig(
        fla=fla,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(keys, raw, hidden_size),
        num_layers=keys.integer("num_hidden_layers", 24, MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        norm_eps=keys.number("norm_eps", 1e-6),
        hidden_act="swish" if act == "silu" else act,
        fgate_type=keys.choice("fgate_type", ("full", "bias_only", "fixed", "none"), "full"),
        use_output_gate=gated,
        ogate_act=_output_gate_act(keys) if gated else "sigmoid",
        use_output_norm=keys.flag("use_output_norm"),
        qk_norm=qk_norm,
        qk_norm_shared=qk_norm and keys.flag("qk_norm_share_param_across_head"),
        use_k_shift=keys.flag("use_k_shift"),
        use_v_shift=keys.flag("use_v_shift"),
        qkv_bias=keys.flag("qkv_bias"),
        tied=keys.flag("tie_word_embeddings"),
        log_pruning_tolerance=(
            keys.optional_number("log_pruning_tolerance") if tolerance is None else tolerance
        ),
        passed_on=_passed_on(raw, keys, fla, vocab_size),
    )
    _check_combinations(config)
    return config
