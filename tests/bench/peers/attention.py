#!/usr/bin/env python3
"""Attention peers on one GPU: alternatives of a PyTorch user, on the same inputs.

cuDNN's SDPA (no forget gate), FlexAttention with the gate as score_mod and, for ACP, a block mask
made from the gates (making it is not counted), flash-linear-attention (fla-core), and the official
Triton kernel with and without ACP. Prefill of 65536 tokens. A row says a time, or why there is
none; an output that differs from the official one is a failure.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable

import torch
import torch._dynamo
from torch.nn.attention.flex_attention import BlockMask, flex_attention

import calls
import inputs

TOKENS = 65536  # of all sequences together
BLOCK = 128  # of FlexAttention's mask
LARGEST_ERROR = 2e-2  # bf16 gives a few 1e-3
# Each case is compiled separately; beyond the limit PyTorch would silently run it uncompiled.
torch._dynamo.config.recompile_limit = 64  # pylint: disable=protected-access
compiled_flex = torch.compile(flex_attention, dynamic=False)


def causal(_b: torch.Tensor, _h: torch.Tensor, row: torch.Tensor, key: torch.Tensor
           ) -> torch.Tensor:
    """FlexAttention's mask inside the blocks on the diagonal."""
    return row >= key


def block_mask(c: torch.Tensor, threshold: float) -> BlockMask:
    """Blocks that hold a kept pair: c falls, so a block's first row and last key decide.

    c: [batch, heads, tokens], cumulative log gates. Blocks below the diagonal need no mask inside:
    pairs that the bound would drop there are merely computed.
    """
    batch, heads, tokens = c.shape
    blocks = tokens // BLOCK
    below = torch.ones(blocks, blocks, dtype=torch.bool, device="cuda").tril(-1)
    decay = c[:, :, ::BLOCK, None] - c[:, :, None, BLOCK - 1::BLOCK]
    full = below.expand(batch, heads, blocks, blocks) & (decay >= threshold)
    diagonal = torch.eye(blocks, dtype=torch.bool, device="cuda").expand_as(full)

    def lists(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = dense.int().argsort(dim=-1, descending=True, stable=True)
        return dense.sum(-1).int(), order.int().contiguous()

    return BlockMask.from_kv_blocks(*lists(diagonal), *lists(full), BLOCK_SIZE=BLOCK,
                                    mask_mod=causal)


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_gates: torch.Tensor,
         threshold: float) -> Callable[[], torch.Tensor]:
    c = log_gates.double().cumsum(-1).float()
    mask = block_mask(c, threshold)

    def decayed(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, row: torch.Tensor,
                key: torch.Tensor) -> torch.Tensor:
        return score + c[b, h, row] - c[b, h, key]

    return lambda: compiled_flex(q, k, v, score_mod=decayed, block_mask=mask)


def fla(*tensors: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A call of FLA's parallel_attn with the gate; it prunes nothing."""
    os.environ["FLA_TILELANG"] = "0"  # read at every call
    parallel_attn = importlib.import_module("fla.ops.attn").parallel_attn
    token_first = [x.transpose(1, 2).contiguous() for x in tensors]
    return lambda: parallel_attn(*token_first).transpose(1, 2)


def checked_seconds(call: Callable[[], torch.Tensor], exact: torch.Tensor | None) -> float:
    """Median seconds of a call, after comparing its output with `exact` if that is given."""
    if exact is not None:
        error = ((call().float() - exact).norm() / exact.norm()).item()
        if not error < LARGEST_ERROR:  # NaN too
            raise ValueError(f"the output differs from the official one by {error:.2g}")
    return inputs.gpu_seconds(call)


def prefill(results: inputs.Results, heads: int, head_dim: int, tokens: int,
            has_official: bool) -> None:
    batch = TOKENS // tokens
    tensors = inputs.attention_inputs(batch, heads, head_dim, tokens)
    threshold = inputs.paper_threshold(head_dim, tokens)
    case = dict(bench="peer_attention", kind="prefill", heads=heads, head_dim=head_dim,
                tokens=tokens, batch_size=batch)

    results.attempt(lambda: inputs.gpu_seconds(lambda: calls.cudnn(*tensors)), **case,
                    peer="cudnn", acp="no gate")
    for acp in ("off", "paper") if has_official else ():
        call = calls.official(acp, threshold)
        results.attempt(lambda call=call: inputs.gpu_seconds(lambda: call(*tensors)),
                        **case, peer="official", acp=acp)
    if tokens > 16384:
        return
    exact = calls.official("off", threshold)(*tensors).float() if has_official else None
    for peer, acp, make in (("flex", "paper", lambda: flex(*tensors, threshold)),
                            ("fla-triton", "off", lambda: fla(*tensors))):
        results.attempt(lambda make=make: checked_seconds(make(), exact), **case, peer=peer,
                        acp=acp)


def main() -> None:
    arguments, results = inputs.start()
    has_official = inputs.use_official(arguments.official_repo)
    if arguments.peer_packages:  # installed packages come first
        sys.path.append(os.path.abspath(arguments.peer_packages))
    with torch.no_grad():
        for heads, head_dim, tokens in ((24, 64, 16384), (16, 128, 16384), (24, 64, 65536)):
            prefill(results, heads, head_dim, tokens, has_official)


if __name__ == "__main__":
    main()
