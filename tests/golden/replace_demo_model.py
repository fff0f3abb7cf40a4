#!/usr/bin/env python3
"""Puts another checkpoint into models/demo, and makes anew what depends on its weights.

In this order: the weights and config.json; tests/golden/dev_books_a (make_demo_answer.py); the part
`books` of tests/bench/results/h200.json and the rows judged by it. Sizes and tokenizer must be
those of the model that is there: the ids of prompts and the shapes that tests name stay. What is
left to people is listed at the end.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "models/demo"
SAME = ("model_type", "num_heads", "num_kv_heads", "norm_eps", "hidden_act", "use_rope",
        "fgate_type", "ogate_act", "log_pruning_tolerance", "bos_token_id", "eos_token_id")
WEIGHTS = ("*.safetensors", "model.safetensors.index.json")
REMAINS = """
Left to do by hand:
- models/demo/README.md and LICENSE: data, recipe, loss, how to make it again; REPORT.md and its
  JSON by the commands at its end, on a text not trained on.
- On a quiet machine: `./run demo` for the table in README.md; `./run bench --json
  tests/bench/results/cpu.json` for the table in tests/bench/README.md.
- `./run test`, and `./run gpu-pack` and `./run gpu-test` where there is a GPU.
- A row `demo model, ...` in the table above that is not ok is about this model: either its heads
  are less local, or the bounds got worse; tests/bench/results/h200.json shows the old values."""


def shapes(folder: pathlib.Path) -> dict[str, list[int]]:
    """Names and shapes of all tensors."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
        found.update({name: entry["shape"] for name, entry in header.items()
                      if name != "__metadata__"})
    return found


def check(new: pathlib.Path) -> None:
    """Ends the program when the checkpoint is of another kind."""
    ours, theirs = (json.loads((folder / "config.json").read_text(encoding="utf-8"))
                    for folder in (DEMO, new))
    for key in SAME:
        if (ours.get(key) or None) != (theirs.get(key) or None):
            sys.exit(f"replace_demo_model: {key} is {theirs.get(key)}, not {ours.get(key)}")
    if (DEMO / "tokenizer.model").read_bytes() != (new / "tokenizer.model").read_bytes():
        sys.exit("replace_demo_model: another tokenizer.model")
    for name in sorted((mine := shapes(DEMO)).keys() | (other := shapes(new)).keys()):
        if mine.get(name) != other.get(name):
            sys.exit(f"replace_demo_model: {name} is {other.get(name)}, not {mine.get(name)}")


def install(new: pathlib.Path) -> None:
    """Weights and config."""
    for pattern in WEIGHTS:
        for old in DEMO.glob(pattern):
            old.unlink()
        for file in new.glob(pattern):
            shutil.copyfile(file, DEMO / file.name)
    shutil.copyfile(new / "config.json", DEMO / "config.json")


def main() -> int:
    """Runs every step; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("new", type=pathlib.Path, help="checkpoint directory, canonical layout")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu")
    arguments = parser.parse_args()
    check(arguments.new)
    install(arguments.new)
    build = str(arguments.build.resolve())
    for command in (["tests/golden/make_demo_answer.py"],
                    ["tests/bench/gpu_bench.py", build, "--only", "books", "--out",
                     "tests/bench/results/h200.json"]):
        print("==> " + " ".join(command), flush=True)
        subprocess.run([sys.executable, "-B", *command], cwd=ROOT, check=True)
    print(REMAINS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
