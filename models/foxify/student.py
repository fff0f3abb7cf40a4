"""The model in training: its base with a forget gate a kv head, sinks, norm caps and an adapter.

Every matrix of a layer is W = W0 + B A, rounded once to the base's type, as in the exported model.
A and B are trained in float32 and rounded before they are multiplied, as in the adapter's file. A
rank of 0 trains W itself. Embeddings and norms stay. Read base_model.py first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import (
    AuxRequest, create_block_mask, flex_attention)
from torch.utils.checkpoint import checkpoint

from models.finetune.attention import forgetting_attention
from models.foxify.base_model import BaseModel, Gate, Matrix, largest_norm, rms_norm, wide
from models.foxify.layer_matrices import MATRICES
from models.foxify.pressure import PageTerms, page_terms

FIRST_LOG_GATE = -2e-4  # log f of all gates at the start
CAP_QUANTILE = 0.999  # quantile of the norms at which caps start


@functools.lru_cache
def _window(tokens: int, window: int, device: torch.device) -> tuple[Any, Any]:
    """flex_attention, compiled on a GPU, and its mask."""
    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i - j < window)

    mask = create_block_mask(visible, None, None, tokens, tokens, device=device)
    compiled = torch.compile(flex_attention, dynamic=False) if device.type == "cuda" else None
    return compiled or flex_attention, mask


def window_attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int) -> Tensor:
    """Attention to the last `window` tokens and a sink, the baseline beside forgetting."""
    attend, mask = _window(q.shape[1], window, q.device)
    o, more = attend(*(x.transpose(1, 2) for x in (q, k, v)), block_mask=mask, enable_gqa=True,
                     return_aux=AuxRequest(lse=True))
    o = o * torch.sigmoid(wide(more.lse) - sinks[:, None])[..., None]
    return o.transpose(1, 2).to(v.dtype)


class Student(nn.Module):
    """The trained parameters, on the base's device in float32, and the forward pass."""

    def __init__(self, base: BaseModel, rank: int, window: int | None) -> None:
        super().__init__()
        a, device = base.architecture, base.device
        self.rank, self.window, self.recompute = rank, window, False
        self._base = [base]  # in a list, so not in the state
        self.attend: Callable[..., Tensor] = forgetting_attention  # may be replaced
        single = torch.promote_types(base.dtype, torch.float32)
        place = {"device": device, "dtype": single}
        self.factors = nn.ParameterDict()
        for kind, names in MATRICES.items():
            if rank == 0:
                self.factors[kind] = nn.Parameter(
                    base.matrices.stacked()[kind].to(single, copy=True))
                continue
            for name in names:
                rows, columns = a.shape(name)
                down = torch.empty(a.layers, rank, columns, **place)
                self.factors[f"{name}.lora_A".replace(".", "/")] = nn.Parameter(
                    down.uniform_(-1, 1) * columns**-0.5)
                self.factors[f"{name}.lora_B".replace(".", "/")] = nn.Parameter(
                    torch.zeros(a.layers, rows, rank, **place))
        self.gate_weight = nn.Parameter(torch.zeros(a.layers, a.kv_heads, a.hidden, **place))
        bias = -math.log(math.expm1(-FIRST_LOG_GATE))
        self.gate_bias = nn.Parameter(torch.full((a.layers, a.kv_heads), bias, **place))
        self.sinks = nn.Parameter(torch.zeros(a.layers, a.heads, **place))
        self.register_buffer("first_q_cap", torch.full((a.layers, a.heads), 1e9, **place))
        self.register_buffer("first_k_cap", torch.full((a.layers, a.kv_heads), 1e9, **place))
        self._cap_factor = torch.ones((), **place)  # on the device: a graph of a pass reads it
        self._page_terms = page_terms
        if a.qk_norm:
            for n, (q, k) in enumerate(base.qk_norm):
                self.first_q_cap[n], self.first_k_cap[n] = largest_norm(q), largest_norm(k)

    @property
    def base(self) -> BaseModel:
        """The unchanged model."""
        return self._base[0]

    def compile_parts(self, compiled: Callable[[Any], Any]) -> None:
        """Replaces the parts around attention, of the base too, by `compiled` of them."""
        self.base.compile(compiled)
        self._page_terms = compiled(page_terms)

    def factor(self, name: str, letter: str) -> Tensor:
        """A or B [L, .., ..] of one of MATRICES."""
        return self.factors[f"{name}.lora_{letter}".replace(".", "/")]

    def scale_caps(self, scale: float) -> None:
        """Sets the product of a query's and a key's cap to `scale` of its start. The bounds of
        QK-norm stay."""
        if not self.base.architecture.qk_norm:
            self._cap_factor.fill_(math.sqrt(scale))

    def caps(self) -> tuple[Tensor, Tensor]:
        """Norm caps of queries [L, H] and keys [L, K], at this point of the run."""
        return self.first_q_cap * self._cap_factor, self.first_k_cap * self._cap_factor

    def norms(self) -> tuple[Tensor, Tensor]:
        """The largest norms of rotated queries [L, H] and keys [L, K], at this point of the run."""
        factor = self.base.architecture.rotation.attention_factor
        q_cap, k_cap = self.caps()
        return q_cap * factor, k_cap * factor

    def _adapter(self, kind: str) -> tuple[Tensor, Tensor]:
        """A [L, r, columns] and B [L, rows, r] of all names of a kind, in the base's type.

        Each name has a share of r of its own, so B is block-diagonal.
        """
        names, rank, dtype = MATRICES[kind], self.rank, self.base.dtype
        down = [self.factor(name, "A").to(dtype) for name in names]
        up = [F.pad(self.factor(name, "B").to(dtype), (rank * i, rank * (len(names) - 1 - i)))
              for i, name in enumerate(names)]
        return torch.cat(down, dim=1), torch.cat(up, dim=1)

    def trained(self) -> list[dict[str, tuple[Tensor, ...]]]:
        """A and B, or of rank 0 the matrix, of each layer by kind, in the base's type."""
        stacked = {}
        for kind in MATRICES:
            parts = self._adapter(kind) if self.rank else (
                self.factors[kind].to(self.base.dtype),)
            stacked[kind] = list(zip(*(x.unbind() for x in parts)))
        return [dict(zip(stacked, layer)) for layer in zip(*stacked.values())]

    def matrices(self, n: int, trained: dict[str, tuple[Tensor, ...]]) -> dict[str, Matrix]:
        """The matrices of layer n by kind; `trained` is its part of trained(). Collective if the
        base is sharded."""
        base = self.base.matrices.of(n) if self.rank else {}
        return {kind: Matrix(base[kind], *parts) if self.rank else Matrix(*parts)
                for kind, parts in trained.items()}

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, sinks: Tensor) -> Tensor:
        if self.window is not None:
            return window_attention(q, k, v, sinks, self.window)
        log_f = log_f.repeat_interleave(self.base.architecture.group, 2)
        return self.attend(q, k, v, log_f, sinks=sinks, adaptive_threshold="auto",
                           bound="certified")

    def _layer(self, x: Tensor, n: int, trained: dict[str, tuple[Tensor, ...]],
               caps: tuple[Tensor, Tensor], norms: Tensor) -> tuple[Tensor, ...]:
        base, matrices = self.base, self.matrices(n, trained)
        used = (None, None) if base.architecture.qk_norm or self.window else (
            caps[0][n], caps[1][n])
        gate = Gate(self.gate_weight[n], self.gate_bias[n], *used)
        q, k, v, log_f = base.project(x, base.attn_norm[n], matrices["qkv"], base.bias[n],
                                      base.qk_norm[n], base.rope(x.shape[1]), gate)
        terms = () if self.window else self._page_terms(k, log_f, norms[n])
        o = self._attend(q, k, v, log_f, self.sinks[n])
        x = base.mix(x, o, base.mlp_norm[n],
                     *(matrices[kind] for kind in ("o", "gate_up", "down")))
        return x, *terms

    def forward(self, ids: Tensor) -> tuple[Tensor, PageTerms | None]:
        """Normed last hidden states [B, T, D] and the layers' page terms, None under a window."""
        base, caps, norms = self.base, self.caps(), self.norms()[0]
        x, collected = F.embedding(ids, base.embedding), []
        for layer in enumerate(self.trained()):
            if self.recompute and torch.is_grad_enabled():
                x, *terms = checkpoint(self._layer, x, *layer, caps, norms,
                                       use_reentrant=False)
            else:
                x, *terms = self._layer(x, *layer, caps, norms)
            collected.append(terms)
        terms = None if self.window else PageTerms(*(torch.stack(x) for x in zip(*collected)))
        return rms_norm(x, base.norm, base.architecture.norm_eps).to(x.dtype), terms

    @torch.no_grad()
    def calibrate(self, ids: Tensor) -> None:
        """Sets sinks to the mean logit of token 0 and caps to the norms, both of the base."""
        a, later = self.base.architecture, min(256, ids.shape[1] // 2)

        def see(n: int, q: Tensor, k: Tensor) -> None:
            first = wide(k[:, 0]).repeat_interleave(a.group, 1)
            logit = torch.einsum("bthd,bhd->bth", wide(q[:, later:]), first) * a.head_dim**-0.5
            self.sinks[n] = logit.mean((0, 1))
            if a.qk_norm:
                return
            for cap, y in ((self.first_q_cap, q), (self.first_k_cap, k)):
                norms = torch.linalg.vector_norm(wide(y[:, 1:]), dim=-1).flatten(0, 1)
                cap[n] = norms.kthvalue(math.ceil(CAP_QUANTILE * len(norms)), dim=0).values
                cap[n] /= a.rotation.attention_factor  # caps come before rotation

        self.base.hidden(ids, see)
