#!/usr/bin/env python3
"""Writes tests/golden/transformers_sampling.json: the probabilities with which transformers samples
from one row of logits, with penalties of repetition and filters, in the order of vLLM.

A case has its parameters, the tokens that the request has `seen`, and [id, probability] of each
token that may be sampled.
"""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import torch
import transformers
from transformers.generation import (LogitsProcessorList, MinPLogitsWarper,
                                     RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
                                     TopKLogitsWarper, TopPLogitsWarper)

OUT = pathlib.Path(__file__).resolve().parent / "transformers_sampling.json"
VOCABULARY, SEED = 100, 11
SEEN = [3, 0, 3, 41, 99, 17, 58]
OFF = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "repetition_penalty": 1.0}
CASES: list[dict[str, float]] = [
    {}, {"temperature": 0.7}, {"temperature": 3.0}, {"top_p": 0.9}, {"top_p": 0.3},
    {"top_p": 1e-6}, {"min_p": 0.05}, {"min_p": 0.999}, {"top_k": 10}, {"top_k": 1},
    {"top_k": 1000}, {"temperature": 2.0, "top_p": 0.99}, {"top_k": 8, "top_p": 0.5},
    {"min_p": 0.1, "top_p": 0.8}, {"min_p": 0.2, "top_k": 30},
    {"temperature": 1.3, "top_p": 0.8, "min_p": 0.02, "top_k": 40},
    {"repetition_penalty": 1.3}, {"repetition_penalty": 0.7},
    {"repetition_penalty": 1.2, "temperature": 0.8, "top_p": 0.9, "min_p": 0.01, "top_k": 50}]


def probabilities(logits: list[float], case: dict[str, float]) -> list[tuple[int, float]]:
    processors = LogitsProcessorList([
        RepetitionPenaltyLogitsProcessor(case["repetition_penalty"]),
        TemperatureLogitsWarper(case["temperature"])])
    if case["min_p"] > 0:
        processors.append(MinPLogitsWarper(case["min_p"]))
    if case["top_k"] > 0:
        processors.append(TopKLogitsWarper(int(case["top_k"])))
    if case["top_p"] < 1:
        processors.append(TopPLogitsWarper(case["top_p"]))
    scores = torch.tensor([logits], dtype=torch.float64)
    found = torch.softmax(processors(torch.tensor([SEEN]), scores)[0], 0)
    return [(i, float(f"{p:.9g}")) for i, p in enumerate(found.tolist()) if p > 0]


def main() -> None:
    values = random.Random(SEED)
    logits = [round(values.gauss(0, 1.5), 4) for _ in range(VOCABULARY)]
    cases: list[dict[str, Any]] = []
    for changed in CASES:
        case = {**OFF, **changed}
        cases.append({**case, "probabilities": probabilities(logits, case)})
    golden = {"transformers": transformers.__version__, "logits": logits, "seen": SEEN}
    lines = ",\n".join(json.dumps(case) for case in cases)
    OUT.write_text(json.dumps(golden)[:-1] + ', "cases": [\n' + lines + "]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
