#!/usr/bin/env python3
"""Writes tests/golden/dev_books_a: what a float64 reference answers with the demo model's weights.

The reference is plain numpy, written from the papers and the checkpoint layout (official Pro), and
shares no code with ours: attention over all keys, nothing pruned. The prompt is that of the file
that is there, so a new checkpoint must have the same tokenizer. --check writes nothing, and says
how far the stored answer is from the computed one.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import struct
import sys
from typing import Any

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/golden/dev_books_a"
KEPT_ROWS, GREEDY_TOKENS = 64, 64
QK_NORM_EPSILON = 1e-5  # of the official module, whatever norm_eps is
DTYPES = {"F32": numpy.float32, "F64": numpy.float64}
Array = numpy.ndarray


def read_safetensors(path: pathlib.Path) -> dict[str, Array]:
    """All tensors of one file as float64."""
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            bits = numpy.frombuffer(data[begin:end], "<u2").astype(numpy.uint32) << 16
            values = bits.view(numpy.float32)
        else:
            values = numpy.frombuffer(data[begin:end], DTYPES[entry["dtype"]])
        tensors[name] = values.astype(numpy.float64).reshape(entry["shape"])
    return tensors


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + numpy.tanh(0.5 * x))


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """RMS norm over the last axis."""
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


class Reference:
    """A FoX (Pro) in float64 with a cache of keys, values and cumulative gates."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        expected = {"use_k_shift": True, "use_v_shift": True, "qk_norm": True,
                    "use_output_gate": True, "use_output_norm": True, "use_rope": False,
                    "fgate_type": "full", "ogate_act": "sigmoid", "hidden_act": "swish",
                    "tie_word_embeddings": False, "qk_norm_share_param_across_head": False}
        for key, value in expected.items():
            if (self.config.get(key) or False) != value:
                sys.exit(f"make_demo_answer: {key} is {self.config.get(key)}, not {value}")
        self.weights: dict[str, Array] = {}
        for path in sorted(folder.glob("*.safetensors")):
            self.weights.update(read_safetensors(path))
        self.heads = self.config["num_heads"]
        self.head_dim = self.config["hidden_size"] // self.heads
        self.caches: list[dict[str, Array]] = [{} for _ in range(self.config["num_hidden_layers"])]

    def heads_of(self, x: Array) -> Array:
        """[tokens, hidden] as [tokens, heads, head_dim]."""
        return x.reshape(len(x), self.heads, self.head_dim)

    def shifted(self, x: Array, name: str, cache: dict[str, Array], kind: str) -> Array:
        """Keys or values mixed with those of the token before; the first one has none."""
        raw = self.heads_of(x @ self.weights[name + ".linear.weight"].T)
        share = sigmoid(x @ self.weights[name + ".shift_proj.weight"].T)[..., None]
        last = cache.get("raw_" + kind, numpy.zeros_like(raw[:1]))
        cache["raw_" + kind] = raw[-1:]
        return share * numpy.concatenate([last, raw[:-1]]) + (1 - share) * raw

    def attention(self, x: Array, layer: int) -> Array:
        """The attention block of one layer over the cache and the new tokens."""
        weights, cache = self.weights, self.caches[layer]
        name = f"model.layers.{layer}.attn."
        per_head = (self.heads, self.head_dim)
        q = rms_norm(self.heads_of(x @ weights[name + "q_proj.weight"].T),
                     weights[name + "q_norm.weight"].reshape(per_head), QK_NORM_EPSILON)
        k = rms_norm(self.shifted(x, name + "k_proj", cache, "k"),
                     weights[name + "k_norm.weight"].reshape(per_head), QK_NORM_EPSILON)
        v = self.shifted(x, name + "v_proj", cache, "v")
        gate = x @ weights[name + "fgate_proj.weight"].T + weights[name + "fgate_proj.bias"]
        log_forget = -numpy.logaddexp(0, -gate)
        before = cache["c"][-1:] if "c" in cache else numpy.zeros((1, self.heads))
        for kind, new in (("k", k), ("v", v), ("c", before + numpy.cumsum(log_forget, 0))):
            cache[kind] = numpy.concatenate([cache[kind], new]) if kind in cache else new
        keys, rows = len(cache["k"]), len(x)
        unseen = numpy.arange(keys) > numpy.arange(keys - rows, keys)[:, None]
        out = numpy.empty_like(q)
        for head in range(self.heads):
            c = cache["c"][:, head]
            logits = q[:, head] @ cache["k"][:, head].T / math.sqrt(self.head_dim)
            logits += c[keys - rows:, None] - c
            logits[unseen] = -numpy.inf
            weight = numpy.exp(logits - logits.max(1, keepdims=True))
            out[:, head] = weight @ cache["v"][:, head] / weight.sum(1, keepdims=True)
        out = rms_norm(out, weights[name + "output_norm.weight"].reshape(per_head),
                       self.config["norm_eps"]).reshape(rows, -1)
        out *= sigmoid(x @ weights[name + "ogate_proj.weight"].T)
        return out @ weights[name + "o_proj.weight"].T

    def logits(self, ids: list[int]) -> Array:
        """Logits of the given tokens, which follow those given before."""
        weights, epsilon = self.weights, self.config["norm_eps"]
        x = weights["model.embeddings.weight"][ids]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            x = x + self.attention(rms_norm(x, weights[name + "attn_norm.weight"], epsilon), layer)
            h = rms_norm(x, weights[name + "mlp_norm.weight"], epsilon)
            gate, up = numpy.split(h @ weights[name + "mlp.gate_proj.weight"].T, 2, -1)
            x = x + (gate * sigmoid(gate) * up) @ weights[name + "mlp.down_proj.weight"].T
        return rms_norm(x, weights["model.norm.weight"], epsilon) @ weights["lm_head.weight"].T


def mean_loss(logits: Array, ids: list[int]) -> float:
    """Mean of -log p over all tokens but the first."""
    top = logits.max(1)
    normalizer = top + numpy.log(numpy.exp(logits - top[:, None]).sum(1))
    return float((normalizer[:-1] - logits[numpy.arange(len(ids) - 1), ids[1:]]).mean())


def answer(model: pathlib.Path, ids: list[int]) -> tuple[dict[str, Any], Array]:
    """expected.json and the last logits."""
    reference = Reference(model)
    logits = reference.logits(ids)
    expected: dict[str, Any] = {"input_ids": ids, "greedy": [], "greedy_gaps": []}
    row = logits[-1]
    for _ in range(GREEDY_TOKENS):
        second, best = numpy.argsort(row)[-2:]
        expected["greedy"].append(int(best))
        expected["greedy_gaps"].append(float(row[best] - row[second]))
        row = reference.logits([int(best)])[-1]
    expected["greedy_min_gap"] = min(expected["greedy_gaps"])
    expected["nll"] = mean_loss(logits, ids)
    return expected, logits[-KEPT_ROWS:]


def write_logits(path: pathlib.Path, logits: Array) -> None:
    """float32, as one tensor."""
    data = logits.astype("<f4").tobytes()
    header = json.dumps({"logits_last": {"dtype": "F32", "shape": list(logits.shape),
                                         "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def main() -> int:
    """1 when --check finds the stored answer to be another one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/demo")
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    file = arguments.folder / "expected.json"
    stored = json.loads(file.read_text("utf-8"))
    expected, logits = answer(arguments.model, stored["input_ids"])
    if not arguments.check:
        file.write_text(json.dumps(expected), "utf-8")
        write_logits(arguments.folder / "expected.safetensors", logits)
        print(f"loss {expected['nll']:.6f}, smallest gap {expected['greedy_min_gap']:.4f}")
        return 0
    kept = read_safetensors(arguments.folder / "expected.safetensors")["logits_last"]
    distance = float(numpy.linalg.norm(kept - logits) / numpy.linalg.norm(logits))
    same = expected["greedy"] == stored["greedy"]
    gap = max(abs(a - b) for a, b in zip(expected["greedy_gaps"], stored["greedy_gaps"]))
    print(f"logits: relative distance {distance:.2e}; greedy tokens {'equal' if same else 'differ'}"
          f", their gaps by at most {gap:.2e}; loss by {expected['nll'] - stored['nll']:+.2e}")
    return 0 if same and distance < 2 ** -24 else 1


if __name__ == "__main__":
    sys.exit(main())
