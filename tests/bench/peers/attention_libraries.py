#!/usr/bin/env python3
"""Attention of libraries that do not come with PyTorch, on prompts of 16k of attention.py's inputs.

One library a process, so that one which fails or hangs ends alone: a row says its time, or why
there is none. A sample of the rows of each output is held against float64 first, and a wrong one
is a failure. What is made once for given inputs (layouts, sums of gates) is not counted.
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import importlib
import os
import sys
from collections.abc import Callable

import torch

import float64_attention
import inputs

LENGTH, BATCH = 16384, 4
SAMPLED_ROWS = 128
LARGEST_ERROR = 2e-2  # bf16 gives a few 1e-3
Call = Callable[[], torch.Tensor]  # gives [batch, heads, tokens, head_dim]
Make = Callable[..., Call]  # of q, k, v and log gates, head first


def cudnn_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_gates: torch.Tensor,
               native: bool) -> Call:
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
    out = torch.empty_like(q)
    tensors = {"q": q, "k": k, "v": v}
    if native:  # which writes these two always
        for name in ("score_max", "score_sum_exp"):
            tensors[name] = torch.empty_like(q[..., :1], dtype=torch.float32)
    else:
        tensors["bias"] = -log_gates.double().cumsum(-1).float()[:, :, None, :]
    described = {name: graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()),
                                    data_type=x.dtype) for name, x in tensors.items()}
    result, _ = graph.sdpa(**described, attn_scale=q.shape[-1] ** -0.5,
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


def fla_call(*given: torch.Tensor) -> Call:
    """FLA's parallel_attn with the gate; it prunes nothing."""
    os.environ["FLA_TILELANG"] = "0"  # read at every call
    parallel_attn = importlib.import_module("fla.ops.attn").parallel_attn
    tensors = [x.transpose(1, 2).contiguous() for x in given]
    return lambda: parallel_attn(*tensors).transpose(1, 2)


# Peers: name, acp ('no gate' where it knows none), and how it is called.
LIBRARIES: dict[str, tuple[tuple[str, str, Make], ...]] = {
    "cudnn-frontend": (
        ("cudnn-native", "no gate", lambda *given: cudnn_call(*given, native=True)),
        ("cudnn-bias", "off", lambda *given: cudnn_call(*given, native=False))),
    "fla": (("fla-triton", "off", fla_call),),
}


def measure(results: inputs.Results, name: str, acp: str, make: Make,
            given: tuple[torch.Tensor, ...]) -> None:
    """The row of one peer on one case."""
    batch, heads, tokens, head_dim = given[0].shape
    shape = dict(heads=heads, head_dim=head_dim, peer=name, acp=acp)

    def seconds() -> float:
        call = make(*given)
        out = call()
        rows = torch.linspace(0, tokens - 1, SAMPLED_ROWS, device=out.device).long()
        exact = float64_attention.output_rows(*given[:3], None if acp == "no gate" else given[3],
                                              rows)
        error = ((out[:, :, rows].double() - exact).norm() / exact.norm()).item()
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
    arguments, results = inputs.start(parser)
    if arguments.peer_packages:  # behind what is installed
        sys.path.append(os.path.abspath(arguments.peer_packages))
    with torch.no_grad():
        for heads, head_dim in ((24, 64), (16, 128)):
            given = inputs.attention_inputs(BATCH, heads, head_dim, LENGTH, LENGTH)
            for peer in LIBRARIES[arguments.library]:
                measure(results, *peer, given)


if __name__ == "__main__":
    main()
