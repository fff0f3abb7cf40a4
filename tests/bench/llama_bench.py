#!/usr/bin/env python3
"""fox-bench beside llama.cpp: the same weights, the same cores, in turns within one run. Each
of our formats of weights stands beside the equal one there and beside the fastest one.

    python3 -m venv VENV && VENV/bin/pip install gguf llama-cpp-python    # builds for this CPU
    VENV/bin/python tests/bench/llama_bench.py CHECKPOINT --fox-bench build/cpu/bin/fox-bench

CHECKPOINT: a LLaMA (config.json, model.safetensors). Each round measures both, the least of all
rounds counts, since other programs on the machine only ever add to it. `--json FILE` writes all.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

try:
    import gguf
    import llama_cpp as llama
    import numpy as np
except ImportError as missing:
    raise SystemExit(f"{missing}; {__file__} says how to install it") from None

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
from models.convert import rounding, safetensors_io  # noqa: E402

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight":
         "output_norm.weight", "lm_head.weight": "output.weight"}
# Our formats (--quantization) and llama.cpp's equal ones. Q4_0 has the vocabulary in Q8_0 on both
# sides, as llama-quantize has where rows are no multiple of 256.
FORMATS = {"none": "bf16", "q8": "q8_0", "q4": "q4_0"}
KINDS = ("bf16", "f16", "q8_0", "q4_0")  # of llama.cpp
Rows = dict[tuple[str, int], dict[str, float]]  # (bench, tokens) -> seconds


def gguf_name(name: str) -> str:
    """The name of a LLaMA's tensor in llama.cpp."""
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{NAMES[part.removesuffix('.weight')]}.weight"


def write_gguf(checkpoint: pathlib.Path, path: pathlib.Path, kind: str) -> None:
    """Writes the weights, of a kind of KINDS, without a tokenizer. llama.cpp needs norms in f32."""
    config = json.loads((checkpoint / "config.json").read_text())
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    for name, tensor in safetensors_io.read_safetensors(checkpoint / "model.safetensors").items():
        bits = np.concatenate([block.reshape(-1) for block in tensor.blocks()])
        values = (rounding.bf16_to_f32(bits) if tensor.dtype == "BF16" else bits).reshape(
            tensor.shape)
        for part, count in (("q_proj", heads), ("k_proj", kv)):  # RoPE of adjacent pairs
            if part in name:
                halves = values.reshape(count, 2, -1, values.shape[-1])
                values = halves.swapaxes(1, 2).reshape(values.shape)
        if len(tensor.shape) == 1:
            writer.add_tensor(gguf_name(name), values.astype(np.float32))
        elif kind == "f16":
            writer.add_tensor(gguf_name(name), values.astype(np.float16))
        else:
            wide = np.ascontiguousarray(values, np.float32)
            vocabulary = kind == "q4_0" and name in WHOLE
            stored = gguf.GGMLQuantizationType["Q8_0" if vocabulary else kind.upper()]
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(wide, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Llama:
    """A model of llama.cpp with its defaults, a context of `tokens`."""

    def __init__(self, path: pathlib.Path, tokens: int, threads: int) -> None:
        self._log = llama.llama_log_callback(lambda *_: None)
        llama.llama_log_set(self._log, ctypes.c_void_p())
        self._model = llama.llama_load_model_from_file(str(path).encode(),
                                                       llama.llama_model_default_params())
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = tokens, threads, threads
        self._context = llama.llama_new_context_with_model(self._model, params)
        if not self._context:
            raise SystemExit("llama.cpp: no context")
        self._batch = params.n_batch
        self._vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))

    def run(self, ids: list[int]) -> np.ndarray:
        """Feeds ids and returns the logits after the last one."""
        for at in range(0, len(ids), self._batch):
            part = (llama.llama_token * len(ids[at:at + self._batch]))(*ids[at:at + self._batch])
            if llama.llama_decode(self._context, llama.llama_batch_get_one(part, len(part))):
                raise SystemExit("llama.cpp: decode failed")
        return np.ctypeslib.as_array(llama.llama_get_logits_ith(self._context, -1), (self._vocab,))

    def log_probability(self, ids: list[int]) -> float:
        """Sum over all ids but the first of log P(id | ids before it), in nats. At most n_batch
        ids, 2,048; forgets what was fed before."""
        self.clear()
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for at, token in enumerate(ids):
            batch.token[at], batch.pos[at], batch.logits[at] = token, at, 1
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
        failed = llama.llama_decode(self._context, batch)
        llama.llama_batch_free(batch)
        if failed:
            raise SystemExit("llama.cpp: decode failed")
        logits = np.ctypeslib.as_array(llama.llama_get_logits(self._context),
                                       (len(ids), self._vocab))
        total = 0.0
        for row, token in zip(logits, ids[1:]):
            wide = row.astype(np.float64) - row.max()
            total += wide[token] - np.log(np.exp(wide).sum())
        return float(total)

    def clear(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds and processor seconds of a call."""
    start, cpu_start = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - cpu_start


def measure_llama(model: Llama, ids: list[int], flags: argparse.Namespace) -> Rows:
    rows: Rows = {}
    for length in flags.lengths:
        model.clear()
        seconds, cpu = timed(functools.partial(model.run, ids[:length]))
        rows["prefill", length] = {"seconds": seconds, "cpu_seconds": cpu}
    for context in flags.contexts:
        model.clear()
        model.run(ids[:context])
        steps = [timed(functools.partial(model.run, ids[:1])) for _ in range(flags.steps)][3:]
        cpu = sum(cpu for _, cpu in steps) / len(steps)
        rows["decode", context] = {"seconds": min(steps)[0], "cpu_seconds": cpu}
    return rows


def measure_fox(flags: argparse.Namespace, folder: pathlib.Path, quantization: str,
                model: pathlib.Path, acp: str) -> Rows:
    rows: Rows = {}
    for bench, *lists in (("prefill", "--lengths", flags.lengths),
                          ("decode", "--batch-sizes", [1], "--contexts", flags.contexts)):
        out = folder / "fox.json"
        command = [flags.fox_bench, bench, "--model", model, "--modes", acp,
                   "--device", "cpu", "--quantization", quantization,
                   "--repeat", 1 if bench == "prefill" else flags.steps // 4,
                   "--buffer-mib", 64, "--matmul-size", 256, "--text", flags.text, "--json", out,
                   *(",".join(map(str, x)) if isinstance(x, list) else x for x in lists)]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        for row in json.loads(out.read_text())["rows"]:
            size = row["length"] if bench == "prefill" else row["context"]
            cpu = row["cpu_seconds"]
            rows[bench, size] = {"seconds": row["seconds"]["min"],
                                 "cpu_seconds": cpu["min"] if bench == "prefill" else cpu}
    return rows


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--fox-bench", default=str(ROOT / "build/cpu/bin/fox-bench"))
    parser.add_argument("--foxified", type=pathlib.Path, help="what ./run foxify made of it, too")
    parser.add_argument("--text", default=str(ROOT / "models/demo/prompt_long.txt"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=64, help="of decoding, a round")
    parser.add_argument("--lengths", type=numbers, default=[2048, 8192])
    parser.add_argument("--contexts", type=numbers, default=[512, 8192])
    parser.add_argument("--formats", default=",".join(FORMATS), help="of our weights")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of llama.cpp's weights")
    parser.add_argument("--json", type=pathlib.Path)
    flags = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    config = json.loads((flags.checkpoint / "config.json").read_text())
    ids = np.random.default_rng(0).integers(3, config["vocab_size"], 1 << 14).tolist()
    size = max(flags.lengths + flags.contexts) + flags.steps + 1
    least: dict[str, Rows] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        calls: dict[str, Callable[[], Rows]] = {
            f"fox {name}": functools.partial(measure_fox, flags, folder, name, flags.checkpoint,
                                             "off")
            for name in flags.formats.split(",")}
        if flags.foxified:
            calls |= {f"foxified {name}": functools.partial(measure_fox, flags, folder, name,
                                                            flags.foxified, "certified")
                      for name in flags.formats.split(",")}
        for kind in flags.kinds.split(","):
            write_gguf(flags.checkpoint, folder / f"{kind}.gguf", kind)
            model = Llama(folder / f"{kind}.gguf", size, threads)
            calls[f"llama.cpp {kind}"] = functools.partial(measure_llama, model, ids, flags)
        for number in range(flags.rounds):
            for name, call in calls.items():
                for key, row in call().items():
                    old = least.setdefault(name, {}).setdefault(key, row)
                    least[name][key] = {what: min(old[what], row[what]) for what in row}
            print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
            report(least)
    if flags.json:
        flags.json.write_text(json.dumps(summary(least, flags, threads), indent=1) + "\n")


def report(least: dict[str, Rows]) -> None:
    """Prints the times of all, and how many times as fast each of our formats is."""
    for key in next(iter(least.values())):
        for what in ("seconds", "cpu_seconds"):
            times = {name: rows[key][what] for name, rows in least.items()}
            print(f"{key[0]:8} {key[1]:6} {what:12}" +
                  ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in times.items()))
            peers = {name.split()[1]: time for name, time in times.items() if "llama" in name}
            best = min(peers, key=lambda kind: peers[kind])
            for name, ours in times.items():
                if (equal := FORMATS.get(name.split()[1], "")) in peers:
                    print(f"    {name}: {peers[equal] / ours:.2f}x {equal}, "
                          f"{peers[best] / ours:.2f}x the fastest, {best}", flush=True)


def summary(least: dict[str, Rows], flags: argparse.Namespace, threads: int) -> dict[str, Any]:
    rows = [{"bench": bench, "tokens": tokens, "impl": name, **row}
            for name, of_name in least.items() for (bench, tokens), row in of_name.items()]
    return {"model": flags.checkpoint.name, "threads": threads, "rounds": flags.rounds,
            "llama_cpp_python": llama.__version__,
            "llama_cpp": llama.llama_print_system_info().decode().strip(), "rows": rows}


if __name__ == "__main__":
    main()
