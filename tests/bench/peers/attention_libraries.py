#!/usr/bin/env python3
"""Attention of libraries that do not come with PyTorch, on prompts of 16k of attention.py's inputs.

One library a process, so that one which fails or hangs ends alone: a row says its time, or why
there is none. A sample of the rows of each output is held against float64 first, and a wrong one
is a failure. What is made once for given inputs (layouts, sums of gates, block masks) is not
counted.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import glob
import importlib
import os
import sys
from collections.abc import Callable

import torch

import float64_attention
import inputs
from attention import TOKENS, flex

LENGTH = 16384
SAMPLED_ROWS = 128
LARGEST_ERROR = 2e-2  # bf16 gives a few 1e-3
NEVER = -1e30  # for libraries that want a threshold
Call = Callable[[], torch.Tensor]  # gives [batch, heads, tokens, head_dim]


@dataclasses.dataclass(frozen=True)
class Tensors:
    """One case's inputs, head first, and the decay below which the paper prunes."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    log_gates: torch.Tensor
    threshold: float

    def token_first(self) -> tuple[torch.Tensor, ...]:
        """q, k, v and log gates with tokens before heads."""
        return tuple(x.transpose(1, 2).contiguous()
                     for x in (self.q, self.k, self.v, self.log_gates))


@dataclasses.dataclass(frozen=True)
class Peer:
    """One way to call a library; `acp` is 'no gate' where it knows none."""

    name: str
    acp: str
    needs: tuple[str, ...]  # modules, the one that is hardest to have first
    make: Callable[[Tensors], Call]


def cudnn_call(given: Tensors, native: bool) -> Call:
    """cuDNN by its frontend: its open-source Hopper kernel, or its engines with the gate as a bias.

    The row's own decay cancels in the softmax: what stays is a bias for each key.
    """
    cudnn = importlib.import_module("cudnn")
    packages = os.path.dirname(os.path.dirname(torch.__file__))  # where it does not look for NVRTC
    for library in glob.glob(os.path.join(packages, "nvidia", "*", "lib", "libnvrtc.so.1?")):
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16,
                          intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT)
    out = torch.empty_like(given.q)
    tensors = {"q": given.q, "k": given.k, "v": given.v}
    if native:  # which writes these two always
        for name in ("score_max", "score_sum_exp"):
            tensors[name] = torch.empty_like(given.q[..., :1], dtype=torch.float32)
    else:
        tensors["bias"] = -given.log_gates.double().cumsum(-1).float()[:, :, None, :]
    described = {name: graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()),
                                    data_type=x.dtype) for name, x in tensors.items()}
    result, _ = graph.sdpa(**described, attn_scale=given.q.shape[-1] ** -0.5,
                           use_causal_mask=True, generate_stats=False)
    result.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride()))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.OPENSOURCE] if native else
                                 [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    workspace = torch.empty(max(graph.get_workspace_size(), 16), device=out.device,
                            dtype=torch.uint8)
    bound = {described[name]: x for name, x in tensors.items()} | {result: out}

    def call() -> torch.Tensor:
        graph.execute(bound, workspace)
        return out

    return call


def flash_call(given: Tensors, acp: str) -> Call:
    """FlexAttention with the gate as score_mod, by FlashAttention-4."""
    return flex(given.q, given.k, given.v, given.log_gates,
                given.threshold if acp == "paper" else None, "FLASH")


def fla_call(given: Tensors, backend: str) -> Call:
    """FLA's parallel_attn with the gate; it prunes nothing."""
    os.environ["FLA_TILELANG"] = "1" if backend == "tilelang" else "0"  # read at every call
    backends = importlib.import_module("fla.ops.attn.backends")
    if backend == "tilelang" and not backends.AttnTileLangBackend.is_available():
        raise RuntimeError("FLA does not accept this TileLang: no nvcc")
    parallel_attn = importlib.import_module("fla.ops.attn").parallel_attn
    tensors = given.token_first()
    return lambda: parallel_attn(*tensors).transpose(1, 2)


def flag_call(given: Tensors, acp: str) -> Call:
    """FlagAttention's forgetting attention, which always has a threshold."""
    attention = importlib.import_module("flag_attn.forgetting_attention").forgetting_attention
    tensors = given.token_first()
    threshold = given.threshold if acp == "paper" else NEVER

    def call() -> torch.Tensor:
        with torch.inference_mode():
            return attention(*tensors, adaptive_threshold=threshold).transpose(1, 2)

    return call


LIBRARIES: dict[str, tuple[Peer, ...]] = {
    "cudnn-frontend": (
        Peer("cudnn-native", "no gate", ("cudnn",), lambda given: cudnn_call(given, True)),
        Peer("cudnn-bias", "off", ("cudnn",), lambda given: cudnn_call(given, False))),
    "fla": (
        Peer("fla-triton", "off", ("fla.ops.attn",), lambda given: fla_call(given, "triton")),
        Peer("fla-tilelang", "off", ("tilelang", "fla.ops.attn"),
             lambda given: fla_call(given, "tilelang"))),
    "flash-attention-4": tuple(
        Peer("flex-flash", acp, ("cutlass", "flash_attn.cute"),
             lambda given, acp=acp: flash_call(given, acp)) for acp in ("paper", "off")),
    "flag-attention": tuple(
        Peer("flag", acp, ("triton.experimental.tle", "flag_attn.forgetting_attention"),
             lambda given, acp=acp: flag_call(given, acp)) for acp in ("paper", "off")),
}


def against_float64(out: torch.Tensor, given: Tensors, gated: bool) -> float:
    """|out - exact| / |exact| over a sample of rows of every head."""
    rows = torch.linspace(0, out.shape[2] - 1, SAMPLED_ROWS, device=out.device).long()
    exact = float64_attention.output_rows(given.q, given.k, given.v,
                                          given.log_gates if gated else None, rows)
    return ((out[:, :, rows].double() - exact).norm() / exact.norm()).item()


def measure(results: inputs.Results, peer: Peer, given: Tensors) -> None:
    """The row of one peer on one case."""
    batch, heads, tokens, head_dim = given.q.shape
    shape = dict(heads=heads, head_dim=head_dim, peer=peer.name, acp=peer.acp)

    def seconds() -> float:
        for module in peer.needs:
            importlib.import_module(module)
        call = peer.make(given)
        error = against_float64(call(), given, peer.acp != "no gate")
        results.row(bench="peer_check", **shape, against_float64=error)
        if not error < LARGEST_ERROR:  # NaN too
            raise ValueError(f"the output differs from float64 by {error:.2g}")
        return inputs.gpu_seconds(call)

    results.attempt(seconds, bench="peer_attention", kind="prefill", tokens=tokens,
                    batch_size=batch, **shape)


def main() -> None:
    """All ways to call one library, both head dimensions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=LIBRARIES, required=True)
    arguments = inputs.parse_arguments(parser)
    if arguments.peer_packages:  # behind what is installed
        sys.path.append(os.path.abspath(arguments.peer_packages))
    torch.manual_seed(0)
    results = inputs.Results(arguments.json)
    with torch.no_grad():
        for heads, head_dim in ((24, 64), (16, 128)):
            given = Tensors(*inputs.attention_inputs(TOKENS // LENGTH, heads, head_dim, LENGTH,
                                                     LENGTH),
                            inputs.paper_threshold(head_dim, LENGTH))
            for peer in LIBRARIES[arguments.library]:
                measure(results, peer, given)


if __name__ == "__main__":
    main()
