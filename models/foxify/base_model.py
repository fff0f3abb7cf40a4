"""The model that foxify starts from: a LLaMA, Mistral, Qwen2 or Qwen3 directory, frozen.

Its layers' mathematics stands here once; the student (student.py) adds gates, sinks and caps to it.
Shapes: B batch, T tokens, D hidden size, H query heads, K kv heads, d head size, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from refusal import Refusal
from safetensors import SafetensorError, safe_open
from safetensors_io import parse_json
from source_directory import read_text
from torch import Tensor

KINDS = ("llama", "mistral", "qwen2", "qwen3")
PAGE = 64  # tokens; kPageSize of the kernels
# The matrices of a layer; those of one row are multiplied at once.
MATRICES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def wide(x: Tensor) -> Tensor:
    """At least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, at least float32."""
    x = wide(x)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def capped(x: Tensor, cap: Tensor) -> Tensor:
    """x [.., heads, d] with norms of at most cap [heads]."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-6)
    return x * (cap[:, None] / norm).clamp(max=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE over the halves of the last dimension; x [B, T, heads, d], cos and sin [T, 1, d / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Gate(NamedTuple):
    """What a student's layer has beyond its base's; caps are None under QK-norm."""

    weight: Tensor  # [K, D]
    bias: Tensor  # [K]
    q_cap: Tensor | None  # [H]
    k_cap: Tensor | None  # [K]


@dataclass(frozen=True)
class Architecture:
    """Sizes and constants of a config.json."""

    layers: int
    hidden: int
    inner: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_base: float
    context: int
    tied: bool
    qk_norm: bool

    @property
    def group(self) -> int:
        """Query heads of a kv head."""
        return self.heads // self.kv_heads

    def shape(self, name: str) -> tuple[int, int]:
        """Rows and columns of one of MATRICES."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {"q": (q, self.hidden), "k": (kv, self.hidden), "v": (kv, self.hidden),
                "o": (self.hidden, q), "gate": (self.inner, self.hidden),
                "up": (self.inner, self.hidden), "down": (self.hidden, self.inner),
                }[name.split(".")[1].removesuffix("_proj")]

    def rope(self, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin [T, 1, d / 2]."""
        half = self.head_dim // 2
        frequency = self.rope_base ** -(torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(tokens, dtype=torch.float64)[:, None, None] * frequency
        return angle.cos().float().to(device), angle.sin().float().to(device)

    def project(self, x: Tensor, norm: Tensor, matrix: Tensor, bias: Tensor | None,
                qk_norm: tuple[Tensor, Tensor] | None, rope: tuple[Tensor, Tensor],
                gate: Gate | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q, k, v [B, T, heads, d] and the log forget gates [B, T, K] of x [B, T, D]."""
        h = rms_norm(x, norm, self.norm_eps).to(x.dtype)
        columns = F.linear(h, matrix, bias)
        kv = self.kv_heads * self.head_dim
        q, k, v = (c.unflatten(-1, (-1, self.head_dim))
                   for c in columns.split((columns.shape[-1] - 2 * kv, kv, kv), dim=-1))
        q, k = wide(q), wide(k)
        if qk_norm is not None:
            q, k = rms_norm(q, qk_norm[0], self.norm_eps), rms_norm(k, qk_norm[1], self.norm_eps)
        if gate is not None and gate.q_cap is not None:
            q, k = capped(q, gate.q_cap), capped(k, gate.k_cap)
        q, k = (rotate(y, *rope).to(x.dtype) for y in (q, k))
        log_f = None if gate is None else F.logsigmoid(F.linear(wide(h), gate.weight, gate.bias))
        return q, k, v.contiguous(), log_f

    def mix(self, x: Tensor, o: Tensor, norm: Tensor, w_o: Tensor, w_gate_up: Tensor,
            w_down: Tensor) -> Tensor:
        """The layer's output from its input x and attention's o [B, T, H, d]."""
        x = x + F.linear(o.flatten(-2), w_o)
        h = rms_norm(x, norm, self.norm_eps).to(x.dtype)
        gate, up = F.linear(h, w_gate_up).chunk(2, dim=-1)
        return x + F.linear((F.silu(wide(gate)) * up).to(x.dtype), w_down)


def read_architecture(directory: Path, foxified: bool = False
                      ) -> tuple[Architecture, dict[str, Any]]:
    """The checked config.json, and its text; `foxified` allows a merged one. Raises Refusal."""
    raw = parse_json(read_text(directory / "config.json"), "config.json")
    kind = raw.get("model_type")
    if kind not in KINDS:
        raise Refusal(f"config key model_type: {kind!r} cannot be foxified; there are "
                      + ", ".join(KINDS))
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise Refusal(f"config key rope_scaling: {rope!r} is not supported by foxify")
    if raw.get("use_forget_gate") and not foxified:
        raise Refusal("config key use_forget_gate: the model is foxified already")
    for key in ("sliding_window", "attention_bias", "mlp_bias"):
        used = raw.get("use_sliding_window", kind == "mistral") or key != "sliding_window"
        if raw.get(key) and used:
            raise Refusal(f"config key {key}: {raw[key]!r} is not supported by foxify")
    if raw.get("hidden_act", "silu") != "silu":
        raise Refusal(f"config key hidden_act: {raw['hidden_act']!r} is not supported by foxify")
    try:
        heads, hidden = raw["num_attention_heads"], raw["hidden_size"]
        base = raw.get("rope_theta") or (raw.get("rope_parameters") or {}).get("rope_theta", 1e4)
        return Architecture(
            layers=raw["num_hidden_layers"], hidden=hidden, inner=raw["intermediate_size"],
            vocab=raw["vocab_size"], heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or hidden // heads,
            norm_eps=raw.get("rms_norm_eps", 1e-6), rope_base=float(base),
            context=raw.get("max_position_embeddings") or 2048,
            tied=bool(raw.get("tie_word_embeddings", False)), qk_norm=kind == "qwen3"), raw
    except KeyError as error:
        raise Refusal(f"config key {error.args[0]}: missing") from None


class _Tensors:
    """The tensors of a directory by name."""

    def __init__(self, directory: Path) -> None:
        self._files: dict[str, Any] = {}
        for path in sorted(directory.glob("model*.safetensors")):
            try:
                file = safe_open(str(path), "pt")
            except SafetensorError as error:
                raise Refusal(f"{path.name}: {error}") from None
            self._files.update(dict.fromkeys(file.keys(), file))
        if not self._files:
            raise Refusal(f"{directory}: no model*.safetensors; ./run convert writes them")

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Raises Refusal where it is missing or has another shape."""
        if name not in self._files:
            raise Refusal(f"tensor {name}: missing")
        tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise Refusal(f"tensor {name}: shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor


class BaseModel:
    """All weights on `device`, matrices in `dtype`, those of all layers in one tensor a kind."""

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype,
                 foxified: bool = False) -> None:
        self.directory, self.device, self.dtype = directory, device, dtype
        a, self.config = read_architecture(directory, foxified)
        self.architecture = a
        tensors = _Tensors(directory)

        def take(name: str, *shape: int, kind: torch.dtype = dtype) -> Tensor:
            return tensors.take(name, shape).to(device, kind)

        def stack(name: str, *shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.stack([take(f"model.layers.{n}.{name}.weight", *shape, kind=kind)
                                for n in range(a.layers)])

        single = torch.float32 if dtype == torch.bfloat16 else dtype
        self.embedding = take("model.embed_tokens.weight", a.vocab, a.hidden)
        self.head = self.embedding if a.tied else take("lm_head.weight", a.vocab, a.hidden)
        self.norm = take("model.norm.weight", a.hidden, kind=single)
        self.attn_norm = stack("input_layernorm", a.hidden, kind=single).unbind()
        self.mlp_norm = stack("post_attention_layernorm", a.hidden, kind=single).unbind()
        self.matrices = {kind: torch.cat([stack(name, *a.shape(name)) for name in names], dim=1)
                         for kind, names in MATRICES.items()}
        self.bias: tuple[Tensor | None, ...] = (None,) * a.layers
        if "model.layers.0.self_attn.q_proj.bias" in tensors:
            self.bias = tuple(
                torch.cat([take(f"model.layers.{n}.{name}.bias", a.shape(name)[0])
                           for name in MATRICES["qkv"]]) for n in range(a.layers))
        self.qk_norm: tuple[tuple[Tensor, Tensor] | None, ...] = (None,) * a.layers
        if a.qk_norm:
            self.qk_norm = tuple(zip(*(
                stack(f"self_attn.{letter}_norm", a.head_dim, kind=single).unbind()
                for letter in "qk")))
        self._rope: tuple[Tensor, Tensor] | None = None
        self.project, self.mix = a.project, a.mix

    def compile(self, compiled: Callable[[Any], Any]) -> None:
        """What lies around attention, as `compiled` returns it."""
        self.project = compiled(self.architecture.project)
        self.mix = compiled(self.architecture.mix)

    def rope(self, tokens: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the first `tokens` positions."""
        if self._rope is None or self._rope[0].shape[0] != tokens:
            self._rope = self.architecture.rope(tokens, self.device)
        return self._rope

    def hidden(self, ids: Tensor,
               see: Callable[[int, Tensor, Tensor], None] = lambda *_: None) -> Tensor:
        """The unchanged model's normed last hidden states [B, T, D] of ids [B, T].

        `see` is shown the number of each layer, its queries and keys.
        """
        x = F.embedding(ids, self.embedding)
        weights = {kind: stacked.unbind() for kind, stacked in self.matrices.items()}
        for n in range(self.architecture.layers):
            q, k, v, _ = self.project(x, self.attn_norm[n], weights["qkv"][n], self.bias[n],
                                      self.qk_norm[n], self.rope(ids.shape[1]), None)
            see(n, q, k)
            o = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)),
                                               is_causal=True, enable_gqa=True)
            x = self.mix(x, o.transpose(1, 2), self.mlp_norm[n],
                         *(weights[kind][n] for kind in ("o", "gate_up", "down")))
        return rms_norm(x, self.norm, self.architecture.norm_eps).to(x.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of normed hidden states, at least float32."""
        return wide(F.linear(hidden, self.head))


def largest_norm(weight: Tensor) -> float:
    """Of what QK-norm with this weight [d] can return."""
    return math.sqrt(weight.numel()) * weight.abs().max().item()
