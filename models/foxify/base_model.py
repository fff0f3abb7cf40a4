"""The model that foxify starts from: a LLaMA, Mistral, Qwen2 or Qwen3 directory, frozen.

This file has the mathematics of its layers; the student (student.py) adds gates, sinks and caps.
Shapes: B batch, T tokens, D hidden size, H query heads, K kv heads, d head size, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.convert.refusal import Refusal
from models.convert.safetensors_io import parse_json
from models.convert.source_directory import open_source, read_text
from models.convert.tensor_plan import Plan, checked, plan_as_it_is
from models.convert.transformers_config import Rope, parse_transformers_config
from models.finetune.process_group import ProcessGroup
from models.foxify.layer_matrices import MATRICES, LayerMatrices

PAGE = 64  # tokens of a page; kPageTokens of the kernels
LOGIT_BYTES = 5 << 27  # of the float32 logits in memory at once


def rows_at_once(vocab: int) -> int:
    """Rows of logits of LOGIT_BYTES at most: a power of two, so that windows have whole parts."""
    return 1 << (max(1, LOGIT_BYTES // (4 * vocab)).bit_length() - 1)


def wide(x: Tensor) -> Tensor:
    """Widens to at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, at least float32."""
    x = wide(x)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def capped(x: Tensor, cap: Tensor) -> Tensor:
    """x [.., heads, d], shortened to norms of at most cap [heads]."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-6)
    return x * (cap[:, None] / norm).clamp(max=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE over the halves of the last dimension; x [B, T, heads, d], cos and sin [T, 1, d / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Matrix(NamedTuple):
    """A matrix of a layer, W + up down, rounded to the type of W; without factors W."""

    weight: Tensor  # W [rows, columns]
    down: Tensor | None = None  # [r, columns]
    up: Tensor | None = None  # [rows, r]


class _Adapted(torch.autograd.Function):
    """x (W + up down)^T + bias, whose backward pass makes no gradient of W, only of the factors.

    The forward pass multiplies by the sum, which is rounded as in the exported model. The sum lives
    no longer than that product: the backward pass multiplies by W and by the factors.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, down: Tensor, up: Tensor,
                bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, down, up)
        return F.linear(x, torch.addmm(weight, up, down), bias)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Any, ...]:
        x, weight, down, up = ctx.saved_tensors
        rows, d_rows = x.flatten(0, -2), d_y.flatten(0, -2)
        d_z = d_rows @ up
        d_x = torch.addmm(d_rows @ weight, d_z, down)
        return d_x.view_as(x), None, d_z.t() @ rows, d_rows.t() @ F.linear(rows, down), None


def linear(x: Tensor, matrix: Matrix, bias: Tensor | None = None) -> Tensor:
    """x [.., columns] times the transposed matrix, plus the bias [rows]."""
    if matrix.down is None:
        return F.linear(x, matrix.weight, bias)
    return _Adapted.apply(x, *matrix, bias)


class Gate(NamedTuple):
    """The additions of a student's layer to its base; the caps are None under QK-norm."""

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
    rotation: Rope
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
        """RoPE's cos and sin [T, 1, d / 2], times the attention factor."""
        frequency = torch.tensor(self.rotation.frequencies(self.head_dim), dtype=torch.float64)
        angle = torch.arange(tokens, dtype=torch.float64)[:, None, None] * frequency
        cos, sin = (self.rotation.attention_factor * x for x in (angle.cos(), angle.sin()))
        return cos.float().to(device), sin.float().to(device)

    def project(self, x: Tensor, norm: Tensor, matrix: Matrix, bias: Tensor | None,
                qk_norm: tuple[Tensor, Tensor] | None, rope: tuple[Tensor, Tensor],
                gate: Gate | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q, k, v [B, T, heads, d] and the log forget gates [B, T, K] of x [B, T, D]."""
        h = rms_norm(x, norm, self.norm_eps).to(x.dtype)
        columns = linear(h, matrix, bias)
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

    def mix(self, x: Tensor, o: Tensor, norm: Tensor, w_o: Matrix, w_gate_up: Matrix,
            w_down: Matrix) -> Tensor:
        """The layer's output from its input x and attention's o [B, T, H, d]."""
        x = x + linear(o.flatten(-2), w_o)
        h = rms_norm(x, norm, self.norm_eps).to(x.dtype)
        gate, up = linear(h, w_gate_up).chunk(2, dim=-1)
        return x + linear((F.silu(wide(gate)) * up).to(x.dtype), w_down)


def read_architecture(directory: Path, foxified: bool = False
                      ) -> tuple[Architecture, dict[str, Any]]:
    """The config.json, checked as in the server, and its text. Raises Refusal.

    `foxified` allows the config.json of a merged model.
    """
    raw = parse_json(read_text(directory / "config.json"), "config.json")
    config = parse_transformers_config(raw)
    if config.forgets and not foxified:
        raise Refusal("config key use_forget_gate: the model is foxified already")
    return Architecture(
        layers=config.num_layers, hidden=config.hidden_size, inner=config.intermediate_size,
        vocab=config.vocab_size, heads=config.num_heads, kv_heads=config.num_kv_heads,
        head_dim=config.head_dim, norm_eps=config.norm_eps, rotation=config.rope,
        context=config.context, tied=config.tied,
        qk_norm=config.qk_norm), raw


class Tensors:
    """The tensors of a directory by name, exactly the ones that its config.json names."""

    def __init__(self, directory: Path, raw: dict[str, Any]) -> None:
        plan: Plan = checked(plan_as_it_is(raw, open_source(directory, None).tensors, "f32"))
        self._planned = {tensor.name: tensor for tensor in plan.tensors}

    def __contains__(self, name: str) -> bool:
        return name in self._planned

    def take(self, name: str, shape: tuple[int, ...], part: slice = slice(None)) -> Tensor:
        """A part of a tensor's elements [n] in float32; Refusal if it has another shape.

        A part that ends at 0 is not read.
        """
        planned = self._planned[name]
        if planned.shape != shape:
            raise Refusal(f"tensor {name}: shape {list(planned.shape)}, expected {list(shape)}")
        if part.stop == 0:
            return torch.empty(0)
        return torch.from_numpy(np.concatenate([block for block, _, _ in planned.blocks()])[part])


class BaseModel:
    """All weights on `device`, matrices in `dtype`; of the layers' matrices only this process's
    part, if they are sharded over a group."""

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype,
                 foxified: bool = False, shards: ProcessGroup | None = None) -> None:
        self.directory, self.device, self.dtype = directory, device, dtype
        a, self.config = read_architecture(directory, foxified)
        self.architecture = a
        tensors = Tensors(directory, self.config)

        single = torch.float32 if dtype == torch.bfloat16 else dtype

        def take(name: str, *shape: int, kind: torch.dtype = dtype) -> Tensor:
            return tensors.take(name, shape).view(shape).to(device, kind)

        def norms(name: str, size: int) -> tuple[Tensor, ...]:
            return tuple(take(f"model.layers.{n}.{name}.weight", size, kind=single)
                         for n in range(a.layers))

        names = ["model.embed_tokens.weight", "lm_head.weight"]  # tied ones: one may be missing
        matrices = [take(name, a.vocab, a.hidden) for name in names if name in tensors]
        self.embedding, self.head = matrices[0], matrices[-1]
        self.norm = take("model.norm.weight", a.hidden, kind=single)
        self.attn_norm = norms("input_layernorm", a.hidden)
        self.mlp_norm = norms("post_attention_layernorm", a.hidden)
        self.matrices = LayerMatrices(a, device, dtype, shards)
        self.matrices.fill(tensors.take)
        self.bias: tuple[Tensor | None, ...] = (None,) * a.layers
        if "model.layers.0.self_attn.q_proj.bias" in tensors:
            self.bias = tuple(
                torch.cat([take(f"model.layers.{n}.{name}.bias", a.shape(name)[0])
                           for name in MATRICES["qkv"]]) for n in range(a.layers))
        self.qk_norm: tuple[tuple[Tensor, Tensor] | None, ...] = (None,) * a.layers
        if a.qk_norm:
            self.qk_norm = tuple(zip(*(norms(f"self_attn.{letter}_norm", a.head_dim)
                                       for letter in "qk")))
        self._rope: tuple[Tensor, Tensor] | None = None
        self.project, self.mix = a.project, a.mix

    def compile(self, compiled: Callable[[Any], Any]) -> None:
        """Replaces the parts around attention by `compiled` of them."""
        self.project = compiled(self.architecture.project)
        self.mix = compiled(self.architecture.mix)

    def rope(self, tokens: int) -> tuple[Tensor, Tensor]:
        """RoPE's cos and sin of the first `tokens` positions."""
        if self._rope is None or self._rope[0].shape[0] != tokens:
            self._rope = self.architecture.rope(tokens, self.device)
        return self._rope

    def _layer(self, x: Tensor, n: int, see: Callable[[int, Tensor, Tensor], None]) -> Tensor:
        weights = {kind: Matrix(weight) for kind, weight in self.matrices.of(n).items()}
        q, k, v, _ = self.project(x, self.attn_norm[n], weights["qkv"], self.bias[n],
                                  self.qk_norm[n], self.rope(x.shape[1]), None)
        see(n, q, k)
        o = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)),
                                           is_causal=True, enable_gqa=True)
        return self.mix(x, o.transpose(1, 2), self.mlp_norm[n],
                        *(weights[kind] for kind in ("o", "gate_up", "down")))

    def hidden(self, ids: Tensor,
               see: Callable[[int, Tensor, Tensor], None] = lambda *_: None) -> Tensor:
        """The unchanged model's normed last hidden states [B, T, D] of ids [B, T].

        Calls `see` with the number of each layer, its queries and its keys.
        """
        x = F.embedding(ids, self.embedding)
        for n in range(self.architecture.layers):
            x = self._layer(x, n, see)
        return rms_norm(x, self.norm, self.architecture.norm_eps).to(x.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of normed hidden states, at least float32."""
        return wide(F.linear(hidden, self.head))


def largest_norm(weight: Tensor) -> float:
    """The largest norm that QK-norm with this weight [d] can return."""
    return math.sqrt(weight.numel()) * weight.abs().max().item()
