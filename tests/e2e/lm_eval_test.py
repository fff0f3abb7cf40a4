#!/usr/bin/env python3
"""lm-evaluation-harness over the HTTP port of a fox-server on the demo model, with its model
local-completions, which sends ids without bos: its numbers equal those of fox-eval and of
./run evaluate.

    lm_eval_test.py BIN     the folder of fox-server, fox-cli and fox-eval

The harness is installed once from PyPI into a Python environment of the build; nothing is fetched
while it runs. If PyPI cannot be reached, the test says so and is skipped.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest.mock
from typing import Any

import fox_server
import pypi_packages
from fox_server import MODEL

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from models.evaluate import downstream  # noqa: E402
from models.evaluate.client import SETTINGS, Client  # noqa: E402

TEXT = (MODEL / "prompt_long.txt").read_text()[:6000]
# Log-probabilities are sums of some thousand float32 terms.
RELATIVE = 1e-5
QUESTIONS = [
    {"question": "Once upon a", "choices": ["time", "table", "seven"], "answer": 0},
    {"question": "The sun rises in the", "choices": ["spoon", "east", "of"], "answer": 1},
    {"question": "She opened the door and went", "choices": ["into the room", "yellow the"],
     "answer": 0},
    {"question": "He said that he would", "choices": ["window", "be very glad"], "answer": 1},
    {"question": "Good morning, my dear", "choices": ["Rose", "because"], "answer": 0},
    # By its characters I is likelier with the space before it, of which acc_norm knows nothing.
    {"question": "and then", "choices": ["I", "yellow"], "answer": 0},
]


# Of two texts that differ before their common end, the likelier one.
CONTEXTS = [
    {"contexts": ["The dog was tired, so the dog", "The dog was tired, so the river"],
     "end": " lay down and slept.", "answer": 0},
    {"contexts": ["The cup fell from the table because the sky",
                  "The cup fell from the table because the boy"], "end": " had pushed it.",
     "answer": 1}]
LAST_WORDS = [("Once upon a time there", " was"), ("He shook his", " head"),
              ("The king and the", " elephants")]


class LmEvalTest(fox_server.Case):
    """One server for all cases."""

    flags = ("--http-port", "0", "--add-bos-to-ids")

    def ask(self, *arguments: str) -> Any:
        """Runs fox-cli over gRPC and returns its JSON."""
        return json.loads(self.cli(*arguments, "--json").stdout)

    def evaluate(self, task: dict[str, Any], **model: Any) -> list[dict[str, Any]]:
        """Runs a task; its samples with the log-likelihoods of the harness."""
        import lm_eval  # noqa: PLC0415
        arguments = {"model": "demo", "base_url": f"{self.server.http_url}/v1/completions",
                     "tokenizer_backend": "remote", "num_concurrent": 2, "max_retries": 1,
                     "max_length": 131071, **model}
        results = lm_eval.simple_evaluate(model="local-completions", model_args=arguments,
                                          tasks=[task], bootstrap_iters=0, log_samples=True)
        return results["samples"][task["task"]]

    def file_of(self, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        path = pathlib.Path(os.environ["HF_HOME"]) / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}},
                "test_split": "test"}

    def test_multiple_choice(self) -> None:
        samples = self.evaluate(
            {"task": "fox_choice", "output_type": "multiple_choice",
             "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
             "doc_to_target": "answer", "metric_list": [{"metric": "acc"}],
             **self.file_of("questions.jsonl", QUESTIONS)})
        self.assertEqual(len(samples), len(QUESTIONS))
        theirs = ours = without_bos = 0.0
        for sample in samples:
            question = sample["doc"]["question"]
            begin = self.loss(question)
            for choice, response in zip(sample["doc"]["choices"], sample["filtered_resps"]):
                loss = self.loss(f"{question} {choice}") - begin
                self.assertAlmostEqual(-response[0], loss, delta=RELATIVE * (loss + begin))
                theirs, ours = theirs - response[0], ours + loss
                scored = self.ask("score", f"{question} {choice}", "--no-bos")["logprobs"]
                given = len(self.ask("score", question)["logprobs"]) - 1
                without_bos -= sum(position["token"]["logprob"] for position in scored[given:])
        print(f"\nlm-eval {theirs:.3f}, fox-eval {ours:.3f}, without bos {without_bos:.3f}")
        self.assertGreater(abs(without_bos - ours), 0.02 * ours, "the text tells nothing of bos")
        right = sum(sample["acc"] for sample in samples)
        self.assertGreaterEqual(right, 4, "the demo model knows these")

    def grades(self, rows: list[tuple[int, str, str, int, Any]]) -> dict[str, list[float]]:
        """The grades of ./run evaluate for (question, context, continuation, index, label)."""
        path = pathlib.Path(os.environ["HF_HOME"]) / "requests.jsonl.gz"
        with gzip.open(path, "wt", encoding="utf-8") as out:
            for question, context, continuation, index, label in rows:
                out.write(json.dumps({
                    "doc_id": question, "idx": index, "label": label,
                    "request": {"context": context, "continuation": continuation}}) + "\n")
        with unittest.mock.patch.object(downstream, "requests_of", lambda _: path), \
                Client(self.server.http_url.removeprefix("http://")) as client:
            return downstream.judge("piqa", client, SETTINGS["served"], 0)["grades"]

    def test_evaluate_grades_alike(self) -> None:
        choices = {"output_type": "multiple_choice",
                   "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}
        samples = self.evaluate({
            "task": "fox_continuations", "doc_to_text": "{{question}}", **choices,
            "doc_to_choice": "choices", "doc_to_target": "answer",
            **self.file_of("continuations.jsonl", QUESTIONS)})
        ours = self.grades([(i, q["question"], " " + choice, k, q["answer"])
                            for i, q in enumerate(QUESTIONS)
                            for k, choice in enumerate(q["choices"])])
        self.assertEqual(ours["acc"], [sample["acc"] for sample in samples])
        self.assertEqual(ours["acc_per_char"], [sample["acc_norm"] for sample in samples])
        samples = self.evaluate({
            "task": "fox_contexts", **choices, "target_delimiter": "", "doc_to_text": "answer",
            "doc_to_choice": "contexts", "doc_to_target": "{{end}}",
            **self.file_of("contexts.jsonl", CONTEXTS)})
        ours = self.grades([(i, context, q["end"], k, q["answer"])
                            for i, q in enumerate(CONTEXTS)
                            for k, context in enumerate(q["contexts"])])
        self.assertEqual(ours["acc"], [sample["acc"] for sample in samples])
        samples = self.evaluate({
            "task": "fox_last_word", "output_type": "loglikelihood", "target_delimiter": "",
            "doc_to_text": "{{context}}", "doc_to_target": "{{last}}",
            "metric_list": [{"metric": "acc"}],
            **self.file_of("last_words.jsonl", [{"context": context, "last": last}
                                                for context, last in LAST_WORDS])})
        ours = self.grades([(i, context, last, 0, [last.strip()])
                            for i, (context, last) in enumerate(LAST_WORDS)])
        self.assertEqual(ours["greedy"], [sample["acc"] for sample in samples])
        for (_, last), bits, sample in zip(LAST_WORDS, ours["bits_per_byte"], samples):
            [[loglikelihood, _]] = sample["filtered_resps"]
            self.assertAlmostEqual(bits * len(last.encode()),
                                   -loglikelihood / 0.6931471805599453, 4, msg=last)

    def loss(self, text: str) -> float:
        """The loss of all tokens after bos, by fox-eval."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            tokens = len(self.ask("tokenize", text)["token_ids"])  # with bos; fox-eval adds eos
            done = subprocess.run(
                [str(self.programs / "fox-eval"), "perplexity", "--model", str(MODEL), "--text",
                 file.name, "--window", str(tokens), "--max-windows", "1"],
                capture_output=True, text=True, timeout=60, check=True)
        said = json.loads(done.stdout)
        self.assertEqual(said["tokens"], tokens - 1)
        return said["nll"] * said["tokens"]

    def test_perplexity(self) -> None:
        samples = self.evaluate(
            {"task": "fox_perplexity", "output_type": "loglikelihood_rolling",
             "doc_to_text": "", "doc_to_target": "{{text}}",
             "metric_list": [{"metric": "word_perplexity"}],
             **self.file_of("text.jsonl", [{"text": TEXT}])})
        [sample] = samples
        [loglikelihood] = sample["filtered_resps"]
        self.assertAlmostEqual(-loglikelihood, self.loss(TEXT), delta=RELATIVE * abs(loglikelihood))


if __name__ == "__main__":
    pypi_packages.enter(pathlib.Path(sys.argv[1]), "lm_eval_packages",
                        ("lm-eval[api]>=0.4.11,<0.5",))
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(HF_HOME=cache, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
                          TOKENIZERS_PARALLELISM="false")
        fox_server.main()
