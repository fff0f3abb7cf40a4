"""The Forgetting Transformer in PyTorch: the mathematics of models/fox_model.cc, differentiable.

Parameters carry the names and shapes of the official checkpoint, so a state dict is a checkpoint.
Shapes: B batch, T tokens, D hidden size, H query heads, K kv heads, d head size, V vocabulary.
Norms, gates and the loss are computed in float32 under autocast; in float64 everything is float64.
train.py trains it; model_directory.py loads and exports it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.convert.canonical_config import CanonicalConfig
from models.finetune.attention import forgetting_attention, pruned_share

QK_NORM_EPS = 1e-5  # not norm_eps: kQkNormEps of models/checkpoint/model_config.h
LOGITS_AT_ONCE = 1 << 30  # elements; the loss of more logits is computed in parts
# Bound on the growth of query-key products by up to three roundings to bf16, 2^-8 each, of queries
# and of keys (kProductInflation of kernels/paging/acp.h).
PRODUCT_INFLATION = 1 + 2.0**-5
COLUMN_MULTIPLE = 64  # product outputs are padded to it: rows stay aligned for tensor cores


@dataclass(frozen=True)
class AttentionOptions:
    """How attention is computed; the model's function is set by the config."""

    log_tolerance: float | None = None  # log eps of pruning; None: nothing is pruned
    bound: str = "paper"  # or certified
    deterministic: bool = False  # equal bits in every run


def _wide(x: Tensor) -> Tensor:
    """Widens to at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RmsNorm(nn.Module):
    """x / rms(x) * weight over the last dimension.

    The weight, [H * d] or [d] shared by all heads, applies to x [.., H, d].
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Returns at least float32."""
        wide = _wide(x)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return scaled * self.weight.view(-1, x.shape[-1]).squeeze(0)


class ShiftLinear(nn.Module):
    """The weights of a projection whose output is mixed with the previous token's."""

    def __init__(self, wide: int, out: int, heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(wide, out, bias=False)
        self.shift_proj = nn.Linear(wide, heads, bias=False)


def token_shift(x: Tensor, shift_logit: Tensor, starts: Tensor | None) -> Tensor:
    """alpha * previous + (1 - alpha) * x, alpha = sigmoid(shift_logit); nothing precedes a start.

    x [B, T, K, d], shift_logit [B, T, K], starts [B, T] bool or None (every row is one sequence).
    """
    alpha = torch.sigmoid(_wide(shift_logit)).unsqueeze(-1)
    previous = F.pad(x, (0, 0, 0, 0, 1, 0))[:, :-1]
    if starts is not None:
        previous = previous.masked_fill(starts[..., None, None], 0)
    return (alpha * previous + (1 - alpha) * x).to(x.dtype)


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """RoPE over the halves of the last dimension; x [B, T, H, d], positions [B, T] or [T]."""
    half = x.shape[-1] // 2
    exponent = torch.arange(half, device=x.device, dtype=torch.float64) / half
    angle = positions.to(torch.float64).unsqueeze(-1) * base**-exponent
    wide = _wide(x)
    cos = angle.cos().to(wide.dtype).unsqueeze(-2)
    sin = angle.sin().to(wide.dtype).unsqueeze(-2)
    a, b = wide.split(half, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class FoxAttention(nn.Module):
    """Projections, forget gates, forgetting attention and the gated output."""

    def __init__(self, c: CanonicalConfig) -> None:
        super().__init__()
        self.config = c
        self.options = AttentionOptions()
        self.attend: Callable[..., Tensor] = forgetting_attention  # may be replaced
        wide = c.hidden_size
        self.q_proj = nn.Linear(wide, wide, bias=c.qkv_bias)
        for name, shifted in (("k_proj", c.use_k_shift), ("v_proj", c.use_v_shift)):
            plain = nn.Linear(wide, c.kv_size, bias=c.qkv_bias)
            self.add_module(
                name, ShiftLinear(wide, c.kv_size, c.num_kv_heads) if shifted else plain
            )
        self.o_proj = nn.Linear(wide, wide, bias=False)
        if c.fgate_type == "full":
            self.fgate_proj = nn.Linear(wide, c.num_heads)
        elif c.fgate_type == "bias_only":
            self.fgate_bias = nn.Parameter(torch.zeros(c.num_heads))
        elif c.fgate_type == "fixed":
            self.register_buffer("fgate_bias", torch.zeros(c.num_heads))
        if c.use_output_gate:
            self.ogate_proj = nn.Linear(wide, wide, bias=False)
        if c.use_output_norm:
            self.output_norm = RmsNorm(wide, c.norm_eps)
        if c.qk_norm:
            self.q_norm = RmsNorm(c.head_dim if c.qk_norm_shared else wide, QK_NORM_EPS)
            self.k_norm = RmsNorm(c.head_dim if c.qk_norm_shared else c.kv_size, QK_NORM_EPS)

    def _project(self, x: Tensor) -> dict[str, Tensor]:
        """All projections of x [B, T, D] as one matrix product: small ones alone waste the GPU."""
        c = self.config
        plain = {"k": self.k_proj, "v": self.v_proj}
        linears: dict[str, nn.Linear] = {"q": self.q_proj}
        for letter, module in plain.items():
            linears[letter] = module.linear if isinstance(module, ShiftLinear) else module
        if c.use_output_gate:
            linears["ogate"] = self.ogate_proj
        for letter, module in plain.items():
            if isinstance(module, ShiftLinear):
                linears[letter + "_shift"] = module.shift_proj
        if c.fgate_type == "full":
            linears["fgate"] = self.fgate_proj
        weights = [linear.weight for linear in linears.values()]
        sizes = [weight.shape[0] for weight in weights]
        padding = -sum(sizes) % COLUMN_MULTIPLE
        fused = torch.cat([*weights, weights[0].new_zeros(padding, c.hidden_size)])
        columns = F.linear(x, fused).split([*sizes, padding], dim=-1)
        return dict(zip(linears, columns))

    def _log_fgate(self, logit: Tensor | None, like: Tensor) -> Tensor:
        """Log forget gates [B, T, H], at most 0. `like` [B, T, ..]: the shape of constant ones."""
        c = self.config
        shape = (*like.shape[:2], c.num_heads)
        if c.fgate_type == "none":
            dtype = torch.promote_types(like.dtype, torch.float32)
            return torch.zeros(shape, dtype=dtype, device=like.device)
        if c.fgate_type == "full":
            return F.logsigmoid(_wide(logit) + self.fgate_proj.bias)
        return F.logsigmoid(_wide(self.fgate_bias)).expand(shape)

    @torch.no_grad()
    def _max_logit(self) -> Tensor | None:
        """U [H], the largest |logit| that the weights of QK-norm allow; None without QK-norm."""
        c = self.config
        if not c.qk_norm:
            return None
        q_weight = self.q_norm.weight.view(-1, c.head_dim).abs().amax(-1)
        k_weight = self.k_norm.weight.view(-1, c.head_dim).abs().amax(-1)
        group = c.num_heads // c.num_kv_heads
        k_weight = k_weight.expand(c.num_kv_heads).repeat_interleave(group)
        scale = PRODUCT_INFLATION * math.sqrt(c.head_dim)
        return (q_weight.expand(c.num_heads) * k_weight * scale).float()

    def _threshold(self, max_logit: Tensor | None, tokens: int) -> Tensor | str | None:
        """The paper's threshold, log eps - (2U + ln T), [H].

        "auto" if the kernel is to find U in the batch; None without pruning.
        """
        log_tolerance = self.options.log_tolerance
        if log_tolerance is None or self.config.fgate_type == "none":
            return None
        if self.options.bound == "certified" or max_logit is None:
            return "auto"
        return log_tolerance - 2 * max_logit - math.log(tokens)

    def forward(
        self,
        x: Tensor,
        starts: Tensor | None,
        cu_seqlens: Tensor | None,
        positions: Tensor | None,
        shares: list[Tensor] | None,
    ) -> Tensor:
        """x [B, T, D], normed; returns [B, T, D]."""
        c = self.config
        columns = self._project(x)
        heads = {}
        for letter, count in (("q", c.num_heads), ("k", c.num_kv_heads), ("v", c.num_kv_heads)):
            column = columns[letter]
            if c.qkv_bias:
                bias = getattr(self, letter + "_proj").bias
                column = (_wide(column) + bias).to(column.dtype)
            heads[letter] = column.unflatten(-1, (count, c.head_dim))
        q, k, v = heads["q"], heads["k"], heads["v"]
        if c.use_k_shift:
            k = token_shift(k, columns["k_shift"], starts)
        if c.use_v_shift:
            v = token_shift(v, columns["v_shift"], starts)
        if c.qk_norm:
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        if positions is not None:
            base = c.passed_on["rope_base"]
            q, k = rotate(q, positions, base), rotate(k, positions, base)
        log_fgate = self._log_fgate(columns.get("fgate"), q)
        o = self._attend(q, k, v, log_fgate, cu_seqlens, shares)
        return self.o_proj(self._gated(o, columns.get("ogate")))

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_fgate: Tensor,
        cu_seqlens: Tensor | None,
        shares: list[Tensor] | None,
    ) -> Tensor:
        """Forgetting attention, pruned as the options say; [B, T, H, d]."""
        dtype = v.dtype
        if q.is_cuda and dtype == torch.float32:  # the type that the kernels read
            q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
        max_logit = self._max_logit()
        pruning: dict[str, Any] = {
            "adaptive_threshold": self._threshold(max_logit, q.shape[1]),
            "cu_seqlens": cu_seqlens,
            "bound": self.options.bound,
        }
        if self.options.log_tolerance is not None:
            pruning["log_eps"] = self.options.log_tolerance
        if shares is not None:
            shares.append(pruned_share(q, k, log_fgate, **pruning))
        deterministic = self.options.deterministic
        o = self.attend(
            q, k, v, log_fgate, deterministic=deterministic, max_logit=max_logit, **pruning
        )
        return o.to(dtype)

    def _gated(self, o: Tensor, ogate: Tensor | None) -> Tensor:
        """Applies output norm and output gate as the config has them; o [B, T, H, d]."""
        c, dtype = self.config, o.dtype
        if c.use_output_norm:
            o = self.output_norm(o)
        o = o.flatten(-2)
        if ogate is not None:
            act = F.silu if c.ogate_act == "silu" else torch.sigmoid
            o = o * act(_wide(ogate))
        return o.to(dtype)


class FoxMlp(nn.Module):
    """act(gate) * up, with gate and up computed as one product."""

    def __init__(self, c: CanonicalConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, 2 * c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)
        self.act = torch.sigmoid if c.hidden_act == "sigmoid" else F.silu

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D], normed; returns [B, T, D]."""
        gate, up = self.gate_proj(x).chunk(2, dim=-1)
        return self.down_proj((self.act(_wide(gate)) * up).to(up.dtype))


class FoxBlock(nn.Module):
    """One layer on the residual stream, which stays in at least float32."""

    def __init__(self, c: CanonicalConfig) -> None:
        super().__init__()
        self.attn_norm = RmsNorm(c.hidden_size, c.norm_eps)
        self.attn = FoxAttention(c)
        self.mlp_norm = RmsNorm(c.hidden_size, c.norm_eps)
        self.mlp = FoxMlp(c)

    def forward(self, x: Tensor, *sequences: Any) -> Tensor:
        """x [B, T, D]; `sequences` as in FoxAttention."""
        x = x + self.attn(self.attn_norm(x), *sequences)
        return x + self.mlp(self.mlp_norm(x))


class FoxModel(nn.Module):
    """Token ids to logits, or to the loss."""

    def __init__(self, c: CanonicalConfig) -> None:
        super().__init__()
        self.config = c
        self.recompute = False  # activations in the backward pass again: less memory
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList(FoxBlock(c) for _ in range(c.num_layers))
        self.model.norm = RmsNorm(c.hidden_size, c.norm_eps)
        if not c.tied:
            self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    @torch.no_grad()
    def initialize(self, std: float, decay_times: tuple[float, float] | None) -> None:
        """Draws random weights as the official model does, from torch's default generator.

        `decay_times`: shortest and longest e-folding time of constant forget gates, in tokens.
        """
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.weight.normal_(0, std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
            if isinstance(module, FoxAttention) and decay_times is not None:
                low, high = (math.log(time) for time in decay_times)
                time = torch.linspace(low, high, self.config.num_heads).exp()
                module.fgate_bias.copy_(-torch.log(torch.expm1(1 / time)))

    def set_options(self, options: AttentionOptions) -> None:
        """Sets the options of all layers."""
        for layer in self.model.layers:
            layer.attn.options = options

    def compile_parts(self, **settings: Any) -> None:
        """torch.compile of the repeated parts, so that 24 layers compile as fast as one."""
        from torch._inductor import config

        # If kernels were chosen by timing, two runs could sum in different orders.
        config.deterministic = torch.are_deterministic_algorithms_enabled()
        self._embed = torch.compile(self._embed, **settings)
        for layer in self.model.layers:
            layer.compile(**settings)
        self._loss = torch.compile(self._loss, **settings)

    def _embed(self, ids: Tensor) -> Tensor:
        return self.model.embeddings(ids)

    def _logits(self, x: Tensor) -> Tensor:
        weight = (self.model.embeddings if self.config.tied else self.lm_head).weight
        missing = -len(weight) % COLUMN_MULTIPLE
        padded = F.pad(weight, (0, 0, 0, missing)) if missing else weight
        return F.linear(self.model.norm(x), padded)[..., : len(weight)]

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Sum of -log p(target) in nats; x [rows, D], targets [rows]."""
        return F.cross_entropy(_wide(self._logits(x)), targets, reduction="sum")

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        shares: list[Tensor] | None = None,
    ) -> Tensor:
        """Logits [B, T, V], or with targets [B, T] the mean loss in nats per token.

        cu_seqlens [count + 1] int32: the beginnings of sequences packed into one row (B = 1), then
        the end of the last one. `shares` receives, for each layer, the share of pairs that its
        heads prune, [H].
        """
        starts = positions = None
        if cu_seqlens is not None:
            starts = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
            starts[0, cu_seqlens[:-1].long()] = True
        if self.config.passed_on["use_rope"]:
            positions = torch.arange(ids.shape[1], device=ids.device)
            if starts is not None:
                positions = positions - (positions * starts).cummax(-1).values
        x = self._embed(ids)
        for layer in self.model.layers:
            arguments = (x, starts, cu_seqlens, positions, shares)
            if self.recompute and self.training:
                x = checkpoint(layer, *arguments, use_reentrant=False)
            else:
                x = layer(*arguments)
        if targets is None:
            return self._logits(x)
        x, targets = x.flatten(0, 1), targets.flatten()
        rows = max(1, LOGITS_AT_ONCE // self.config.vocab_size)
        if len(x) <= rows:
            return self._loss(x, targets) / len(x)
        parts = [
            checkpoint(self._loss, x[i : i + rows], targets[i : i + rows], use_reentrant=False)
            for i in range(0, len(x), rows)
        ]
        return torch.stack(parts).sum() / len(x)
