"""Forget gates, sinks and norm caps in LLaMA, Mistral, Qwen2 and Qwen3, for transformers 5:

    AutoModelForCausalLM.from_pretrained(DIRECTORY, trust_remote_code=True)

The converter writes this file beside the weights. Row i weighs key j by exp(s_ij + D_ij), where
D_ij sums the log gates of tokens j + 1 to i; a sink is one more key, without a value, that does
not decay. No key is evicted here: an answer differs from the server's by what its certificate says.
Shapes: B sequences, n queries, m keys, H query heads, K kv heads, d head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

try:
    from fox_attention import HAS_CUDA_KERNELS, forgetting_attention
except ImportError:
    HAS_CUDA_KERNELS = False

ROWS = 1024  # queries whose weights are in memory at once
LIMBS = 3  # columns of the cached keys that add up to a log gate, so that bf16 keeps it exactly


def wide(x: Tensor) -> Tensor:
    """Widens to at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def capped(x: Tensor, cap: Tensor) -> Tensor:
    """x [B, n, heads, d], shortened to norms of at most cap [heads]."""
    norm = torch.linalg.vector_norm(wide(x), dim=-1, keepdim=True).clamp(min=1e-6)
    return (wide(x) * (cap[:, None] / norm).clamp(max=1)).to(x.dtype)


def with_limbs(k: Tensor, log_f: Tensor) -> Tensor:
    """Keys [B, K, m, d] and their log gates [B, K, m], side by side in one tensor for the cache."""
    columns, rest = [k], log_f
    for _ in range(LIMBS):
        columns.append(rest[..., None].to(k.dtype))
        rest = rest - columns[-1][..., 0]
    return torch.cat(columns, dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, sinks: Tensor | None,
           mask: Tensor | None, scaling: float) -> Tensor:
    """Outputs [B, H, n, d] for the last n of m keys; v and k [B, H, m, d], log_f [B, H, m].

    mask [B or 1, 1, n, m]: True or 0 where a key is visible; None: all earlier ones and its own.
    """
    n, m, outputs = q.shape[2], k.shape[2], []
    fall = log_f.double().cumsum(-1)
    for first in range(0, n, ROWS):
        rows = slice(first, min(n, first + ROWS))
        at = torch.arange(m - n + rows.start, m - n + rows.stop, device=q.device)
        logits = scaling * wide(q[:, :, rows]) @ wide(k).mT
        logits = logits + (fall[:, :, at, None] - fall[:, :, None]).to(logits.dtype)
        visible = torch.arange(m, device=q.device) <= at[:, None]
        if mask is not None:
            part = mask[:, :, rows, :m]
            visible = visible & (part if part.dtype == torch.bool else part == 0)
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        if sinks is not None:
            column = sinks[:, None, None].to(logits.dtype).expand(*logits.shape[:-1], 1)
            logits = torch.cat([logits, column], dim=-1)
        outputs.append(logits.softmax(-1)[..., :m].to(v.dtype) @ v)
    return torch.cat(outputs, dim=2)


class ForgettingAttention(nn.Module):
    """Placed before a class's attention, whose projections and norms it uses."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.gated = getattr(config, "use_forget_gate", False)
        if self.gated:
            self.fgate_proj = nn.Linear(config.hidden_size, kv_heads)
        self.sinks = self.q_cap = self.k_cap = None
        if getattr(config, "use_attention_sink", False):
            self.sinks = nn.Parameter(torch.zeros(heads))
        if getattr(config, "use_qk_norm_cap", False):
            self.q_cap, self.k_cap = (nn.Parameter(torch.ones(n)) for n in (heads, kv_heads))

    def log_gates(self, x: Tensor) -> Tensor:
        """[B, K, n] of normed inputs x [B, n, D]; zeros without gates."""
        if not self.gated:
            kv_heads = self.config.num_key_value_heads
            return wide(x).new_zeros(x.shape[0], kv_heads, x.shape[1])
        gate = self.fgate_proj
        kind = torch.promote_types(x.dtype, gate.weight.dtype)
        return F.logsigmoid(F.linear(x.to(kind), gate.weight.to(kind), gate.bias.to(kind))).mT

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor],
                attention_mask: Tensor | None = None, cache: Any = None,
                past_key_values: Any = None, **_: Any) -> tuple[Tensor, None]:
        """As the class's attention, but for gates, sinks and caps; weights are not returned."""
        cache = past_key_values if cache is None else cache
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (project(hidden_states).view(shape) for project in (
            self.q_proj, self.k_proj, self.v_proj))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        if self.q_cap is not None:
            q, k = capped(q, self.q_cap), capped(k, self.k_cap)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        log_f = self.log_gates(hidden_states)
        if cache is not None:
            length = int(cache.get_seq_length(self.layer_idx)) + q.shape[2]
            stored, v = (x[:, :, :length] for x in cache.update(  # a static cache has room behind
                with_limbs(k, log_f), v, self.layer_idx))
            k, log_f = stored[..., : -LIMBS], wide(stored[..., -LIMBS:]).sum(-1)
        group = q.shape[1] // k.shape[1]
        per_head = log_f.repeat_interleave(group, 1)
        whole = attention_mask is None and q.shape[2] == k.shape[2]
        if HAS_CUDA_KERNELS and whole and q.is_cuda and q.dtype == torch.bfloat16:
            o = forgetting_attention(q, k.contiguous(), v, per_head, head_first=True,
                                     sinks=self.sinks)
        else:
            o = attend(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), per_head,
                       self.sinks, attention_mask, self.scaling)
        return self.o_proj(o.transpose(1, 2).flatten(-2)), None


class Forgetting:
    """Placed before a class of models: its layers get ForgettingAttention."""

    _supports_flash_attn = _supports_flex_attn = False
    _keep_in_fp32_modules_strict = {"sinks", "q_cap", "k_cap", "fgate_proj"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for n, layer in enumerate(self.model.layers):
            kind = type(layer.self_attn)
            layer.self_attn = type(f"Forgetting{kind.__name__}", (ForgettingAttention, kind), {})(
                config, n)
        self.post_init()


class FoxLlamaForCausalLM(Forgetting, LlamaForCausalLM):
    """LLaMA."""


class FoxMistralForCausalLM(Forgetting, MistralForCausalLM):
    """Mistral."""


class FoxQwen2ForCausalLM(Forgetting, Qwen2ForCausalLM):
    """Qwen2."""


class FoxQwen3ForCausalLM(Forgetting, Qwen3ForCausalLM):
    """Qwen3."""
