#!/usr/bin/env python3
"""Writes tests/golden/dev_books_a: the demo model's answer in float64 without pruning.

The reference is the PyTorch model of models/finetune, whose logits equal the official
implementation's (tests/models/finetune/model_test.py). The prompt is taken from the existing file,
so a new checkpoint must have the same tokenizer. Greedy tokens take half an hour; --check
writes nothing, takes a minute, and says how far the stored answer is from the computed one.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from models.finetune.model_directory import load_model  # noqa: E402

FOLDER = ROOT / "tests/golden/dev_books_a"
KEPT_ROWS, GREEDY_TOKENS = 64, 64


@torch.no_grad()
def main() -> int:
    """Returns 1 if --check finds that the stored answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/demo")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    file = FOLDER / "expected.json"
    stored = json.loads(file.read_text("utf-8"))
    prompt, ids = stored["input_ids"], stored["input_ids"] + stored["greedy"]
    model = load_model(arguments.model, 0).model.double()
    if not arguments.check:
        ids = list(prompt)
        for _ in range(GREEDY_TOKENS):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    rows = model(torch.tensor([ids]))[0]
    logits = rows[:len(prompt)]
    (best, second), tokens = (part.T for part in rows[len(prompt) - 1:-1].topk(2))
    expected = {"input_ids": prompt, "greedy": tokens[0].tolist(),
                "greedy_gaps": (best - second).tolist(),
                "greedy_min_gap": (best - second).min().item(),
                "nll": torch.nn.functional.cross_entropy(
                    logits[:-1], torch.tensor(prompt[1:])).item()}
    kept = logits[-KEPT_ROWS:]
    if not arguments.check:
        file.write_text(json.dumps(expected), "utf-8")
        save_file({"logits_last": kept.float().contiguous()}, FOLDER / "expected.safetensors")
        print(f"loss {expected['nll']:.6f}, smallest gap {expected['greedy_min_gap']:.4f}")
        return 0
    there = load_file(FOLDER / "expected.safetensors")["logits_last"].double()
    distance = ((there - kept).norm() / kept.norm()).item()
    same = expected["greedy"] == stored["greedy"]
    gap = max(abs(a - b) for a, b in zip(expected["greedy_gaps"], stored["greedy_gaps"]))
    print(f"logits: relative distance {distance:.2e}; greedy tokens {'equal' if same else 'differ'}"
          f", their gaps by at most {gap:.2e}; loss by {expected['nll'] - stored['nll']:+.2e}")
    return 0 if same and distance < 2**-24 else 1


if __name__ == "__main__":
    sys.exit(main())
