#!/usr/bin/env python3
"""Exports and serves foxified models of published shapes, with random weights, on a CPU.

    python3 foxify_shapes.py build/audit meta-llama/Llama-3.2-1B Qwen/Qwen3-8B --json rows.json

For each model: a checkpoint in its shape, an adapter with gates of all strengths as ./run foxify
writes it, the conversion, and a server of the build that answers two prompts. With -DFOX_AUDIT=ON
MassAudit checks every row and ends the server at the first that loses too much. A model needs four
bytes a parameter on disk, and a little more than two in memory.

Exit status: 0 done; 1 a server ended, or a certificate does not hold.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from http.client import HTTPException
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in (
    "", "tests/e2e", "tests/models/foxify", "tests/models/finetune")]

import torch  # noqa: E402
from fox_server import FoxServer  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from toy_llama import write_tokenizer  # noqa: E402

from foxify_scale_parts import like_weights, published  # noqa: E402
from quality_parts import processor  # noqa: E402
from models.convert.transformers_config import parse_transformers_config  # noqa: E402
from models.foxify.adapter import write_adapter  # noqa: E402
from models.foxify.base_model import BaseModel  # noqa: E402
from models.foxify.student import Student  # noqa: E402

FILE_BYTES = 2e9
RANK, KEEP = 8, 0.125
PROMPTS, ANSWER = (700, 1300), 16  # tokens
FLAGS = ("--http-port", "0", "--device", "cpu", "--max-model-len", "2048", "--kv-cache-mb", "600")
ANSWER_SECONDS = 1200


def write_checkpoint(config: str, folder: pathlib.Path) -> int:
    """Writes like_weights in files of at most FILE_BYTES; returns the number of parameters."""
    (folder / "config.json").write_text(config, encoding="utf-8")
    write_tokenizer(folder)
    shapes = parse_transformers_config(json.loads(config)).shapes()
    sizes = {name: torch.Size(shape).numel() for name, shape in shapes.items()}
    files: list[list[str]] = [[]]
    for name, size in sizes.items():
        if 2 * (size + sum(sizes[other] for other in files[-1])) > FILE_BYTES:
            files.append([])
        files[-1].append(name)
    values = torch.randn(1 << 24, generator=torch.Generator().manual_seed(1)).bfloat16()

    def tensor(name: str) -> torch.Tensor:
        repeated = values.roll(zlib.crc32(name.encode())).repeat(sizes[name] // len(values) + 1)
        return like_weights(repeated[:sizes[name]], shapes[name]).view(shapes[name])

    places = {}
    for i, names in enumerate(files):
        save_file({name: tensor(name) for name in names}, folder / f"model-{i}.safetensors")
        places |= dict.fromkeys(names, f"model-{i}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return sum(sizes.values())


@torch.no_grad()
def write_random_adapter(model: pathlib.Path, out: pathlib.Path) -> None:
    """Heads that forget at once, and heads that remember for thousands of tokens."""
    torch.manual_seed(2)
    student = Student(BaseModel(model, torch.device("cpu"), torch.bfloat16), RANK, None)
    for factor in student.factors.values():
        factor.normal_(0, 0.02 * factor.shape[-1] ** -0.5)
    student.gate_weight.normal_(0, student.gate_weight.shape[-1] ** -0.5)
    student.gate_bias.uniform_(-1, 6)
    student.sinks.normal_()
    a = student.base.architecture
    if not a.qk_norm:  # of rows of length sqrt(head_dim)
        for caps in (student.first_q_cap, student.first_k_cap):
            caps.fill_(1.2 * a.head_dim ** 0.5)
    out.mkdir()
    write_adapter(student, out, KEEP)


def answers(programs: pathlib.Path, model: pathlib.Path, vocabulary: int) -> list[dict[str, Any]]:
    """The kept share and the certificate of the answer to each prompt of random tokens."""
    draw, found = random.Random(3), []
    with FoxServer(programs, FLAGS, model=model) as server:
        for tokens in PROMPTS:
            body = {"prompt": [draw.randrange(10, vocabulary) for _ in range(tokens)],
                    "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
            request = urllib.request.Request(
                f"{server.http_url}/v1/completions", json.dumps(body).encode(),
                {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
                    fox = json.load(response)["fox"]
            except (OSError, HTTPException) as error:
                said = [*server.log[-5:], f"{tokens} tokens: {error}"]
                raise SystemExit("\n".join(said)) from None
            mass = fox["max_log_evicted_mass"]  # None: nothing was evicted
            if mass is not None and mass > fox["log_tolerance"]:
                raise SystemExit(f"{tokens} tokens: the certificate does not hold: {fox}")
            found.append({"tokens": tokens, "kept": fox["kv_bytes"] / fox["kv_bytes_unpruned"],
                          "max_log_evicted_mass": mass})
    return found


def measured(name: str, build: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    config, begin = published()[name], time.monotonic()
    base, adapter, fox = (folder / part for part in ("base", "adapter", "fox"))
    base.mkdir()
    parameters = write_checkpoint(config, base)
    write_random_adapter(base, adapter)
    subprocess.run([sys.executable, "-B", "-m", "models.convert.fox_convert", str(base), str(fox),
                    "--adapter", str(adapter)], check=True, cwd=ROOT)
    shutil.rmtree(base)
    found = answers(build / "bin", fox, json.loads(config)["vocab_size"])
    return {"bench": "foxify_shapes", "model": name, "parameters": parameters, "answers": found,
            "seconds": time.monotonic() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="with fox-server and fox-cli in bin/")
    parser.add_argument("models", nargs="+", choices=published(), metavar="MODEL",
                        help="as tests/golden/transformers_configs.json names them")
    parser.add_argument("--json", type=pathlib.Path, required=True, help="gets a row for each")
    parser.add_argument("--scratch", type=pathlib.Path, help="folder with room for the models")
    args = parser.parse_args()
    cache = (args.build / "CMakeCache.txt").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = []
    for name in args.models:
        with tempfile.TemporaryDirectory(prefix="foxify-shapes-", dir=args.scratch) as folder:
            rows.append({**measured(name, args.build, pathlib.Path(folder)),
                         "audited": "FOX_AUDIT:BOOL=ON" in cache})
        print(json.dumps(rows[-1]))
        args.json.write_text(json.dumps({"processor": processor(), "rows": rows}, indent=1) + "\n",
                             encoding="utf-8")


if __name__ == "__main__":
    main()
