"""Our grades against lm-evaluation-harness: the same questions, the same server, its own program.

Skipped if lm-eval with its API models or the package of the questions is missing.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from models.convert.refusal import Refusal
from models.evaluate import downstream
from models.evaluate.client import SETTINGS, Client, serving

QUESTIONS = 50
TASKS = ("piqa", "arc_easy", "winogrande", "lambada")

YAML = """\
task: fox_{task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
target_delimiter: ""
{form}
"""
# Several continuations of one text; the likeliest of several texts; one continuation.
CHOICES = """\
output_type: multiple_choice
doc_to_text: "{{contexts[0]}}"
doc_to_choice: choices
doc_to_target: label
metric_list: [{metric: acc}, {metric: acc_norm}]"""
CONTEXTS = """\
output_type: multiple_choice
doc_to_text: label
doc_to_choice: contexts
doc_to_target: "{{choices[0]}}"
metric_list: [{metric: acc}]"""
ALONE = """\
output_type: loglikelihood
doc_to_text: "{{contexts[0]}}"
doc_to_target: "{{choices[0]}}"
metric_list: [{metric: acc}]"""


def questions_of(task: str) -> list[dict[str, Any]]:
    questions: dict[int, dict[str, Any]] = {}
    with gzip.open(downstream.requests_of(task), "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["doc_id"] >= QUESTIONS:
                continue
            label = row["label"] if isinstance(row["label"], int) else 0
            question = questions.setdefault(row["doc_id"],
                                            {"contexts": [], "choices": [], "label": label})
            question["contexts"].append(row["request"]["context"])
            question["choices"].append(row["request"]["continuation"])
    return list(questions.values())


def write_task(task: str, folder: Path) -> None:
    questions = questions_of(task)
    data = folder / f"{task}.json"
    data.write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")
    one_context = all(len(set(question["contexts"])) == 1 for question in questions)
    form = (ALONE if len(questions[0]["choices"]) == 1 else CHOICES if one_context else CONTEXTS)
    (folder / f"{task}.yaml").write_text(YAML.format(task=task, data=data, form=form))


class LmEvalTest(unittest.TestCase):
    def test_the_same_accuracies(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for task in TASKS:
            write_task(task, folder)
        program, model = Path(os.environ["FOX_SERVER"]), os.environ["FOX_DEMO"]
        with serving(program, model, ["--add-bos-to-ids", "--device", "cpu"]) as address:
            with Client(address) as client:
                ours = {task: downstream.judge(task, client, SETTINGS["served"], QUESTIONS)
                        for task in TASKS}
            subprocess.run(
                [sys.executable, "-m", "lm_eval", "--model", "local-completions",
                 "--tasks", ",".join(f"fox_{task}" for task in TASKS),
                 "--include_path", folder, "--output_path", folder / "out", "--model_args",
                 f"model=demo,base_url=http://{address}/v1/completions,num_concurrent=8,"
                 "max_length=8191,tokenizer_backend=remote"],
                check=True, env={**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1",
                                 "HF_HOME": str(folder / "home")})
        report, = (folder / "out").rglob("results_*.json")
        theirs = json.loads(report.read_text())["results"]
        for task in TASKS:
            names = {"acc": "acc", "acc_per_char": "acc_norm", "greedy": "acc"}
            for measure, grades in ours[task]["grades"].items():
                key = f"{names.get(measure)},none"
                if key not in theirs[f"fox_{task}"]:
                    continue
                with self.subTest(task, measure=measure):
                    self.assertAlmostEqual(sum(grades) / len(grades), theirs[f"fox_{task}"][key],
                                           places=6)


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, _: str | None
               ) -> unittest.TestSuite:
    try:
        downstream.requests_of("piqa")
        found = all(importlib.util.find_spec(name) for name in ("lm_eval", "aiohttp", "tenacity"))
    except Refusal:
        found = False
    if not found:
        print(f"needs lm-eval[api] and {downstream.PACKAGE}")
        sys.exit(77)
    return tests


if __name__ == "__main__":
    unittest.main()
