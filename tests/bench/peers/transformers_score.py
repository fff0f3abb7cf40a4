#!/usr/bin/env python3
"""Scores prompts with transformers on the CPU: log-probabilities of the prompts' own tokens.

    taskset -c 0,1 python3 transformers_score.py MODEL --threads 2 --tokens 767 --prompts 16

Prints one JSON object with the tokens a second of the fastest of the dtypes and batch sizes tried.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import transformers

BATCHES = (1, 4)
DTYPES = ("bfloat16", "float32")


def seconds_of(model: torch.nn.Module, ids: torch.Tensor, batch: int) -> float:
    """The time to score all prompts [prompts, tokens], `batch` at a time."""
    begin = time.monotonic()
    for rows in ids.split(batch):
        logits = model(rows).logits[:, :-1].float()
        own = logits.log_softmax(-1).gather(-1, rows[:, 1:, None])
        own.sum().item()
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=767)
    parser.add_argument("--prompts", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = {}
    with torch.inference_mode():
        for dtype in DTYPES:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                arguments.model, dtype=getattr(torch, dtype))
            ids = torch.randint(model.config.vocab_size, (arguments.prompts, arguments.tokens))
            seconds_of(model, ids[:1], 1)
            for batch in BATCHES:
                results[f"{dtype}, {batch} at a time"] = (
                    ids.numel() / seconds_of(model, ids, batch))
    print(json.dumps({"peer": f"transformers {transformers.__version__}, torch "
                      + torch.__version__, "tokens_of_a_prompt": arguments.tokens,
                      "threads": arguments.threads, "tokens_per_second": max(results.values()),
                      "tried": results}))


if __name__ == "__main__":
    main()
