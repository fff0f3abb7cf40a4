#!/usr/bin/env python3
"""The HTTP port as its users meet it: the `openai` client and lm-evaluation-harness, on the demo.

    openai_test.py BIN     the folder of fox-server, fox-cli and fox-eval

Both come from PyPI, once, into a Python environment of the build; nothing is fetched while they
run. Skipped, and it says so, where PyPI cannot be reached.
"""

from __future__ import annotations

import array
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import pypi_packages
from fox_server import MODEL, FoxServer, demo

PROMPT = "Once upon a time"
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
]


class OpenAiTest(unittest.TestCase):
    """One server for all cases."""

    programs = pathlib.Path()
    flags: tuple[str, ...] = ()

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = cls.enterClassContext(
            FoxServer(cls.programs, ["--http-port", "0", *cls.flags]))
        cls.url = cls.server.http_url + "/v1"

    def cli(self, *arguments: str) -> Any:
        """What fox-cli says, over gRPC."""
        done = subprocess.run([str(self.programs / "fox-cli"), *arguments, "--target",
                               self.server.target, "--json"], capture_output=True, text=True,
                              timeout=60, check=True)
        return json.loads(done.stdout)

    def score(self, text: str) -> list[float]:
        """fox.v1's log-probabilities of a text's tokens after bos."""
        return [position["token"]["logprob"] for position in self.cli("score", text)["logprobs"]]


class ClientTest(OpenAiTest):
    """The `openai` client."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        import openai  # noqa: PLC0415
        cls.openai = openai
        cls.client = cls.enterClassContext(
            openai.OpenAI(base_url=cls.url, api_key="none", max_retries=0, timeout=60))
        cls.model = cls.client.models.list().data[0].id

    def complete(self, **fields: Any) -> Any:
        return self.client.completions.create(model=self.model, **fields)

    def test_models(self) -> None:
        self.assertEqual(self.model, "demo")
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")
        with self.assertRaises(self.openai.NotFoundError) as raised:
            self.client.models.retrieve("other")
        self.assertEqual(raised.exception.code, "model_not_found")

    def test_chat_is_told_what_there_is(self) -> None:
        with self.assertRaises(self.openai.NotFoundError) as raised:
            self.client.chat.completions.create(
                model=self.model, messages=[{"role": "user", "content": PROMPT}])
        self.assertIn("no chat here", str(raised.exception))
        self.assertEqual(raised.exception.code, "unknown_url")

    def test_a_stream_joins_to_the_answer(self) -> None:
        for fields in ({"temperature": 0.0}, {"seed": 7, "temperature": 1.0, "top_p": 0.9}):
            whole = self.complete(prompt=PROMPT, max_tokens=40, **fields)
            chunks = list(self.complete(prompt=PROMPT, max_tokens=40, stream=True,
                                        stream_options={"include_usage": True}, **fields))
            text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
            self.assertEqual(text, whole.choices[0].text)
            self.assertEqual(chunks[-1].usage, whole.usage)
            self.assertEqual(whole.usage.completion_tokens, 40)

    def test_many_prompts_and_choices(self) -> None:
        tokens = self.cli("tokenize", PROMPT)["token_ids"]
        answer = self.complete(prompt=[tokens, tokens[:3]], n=2, max_tokens=5, temperature=0)
        texts = [choice.text for choice in answer.choices]
        self.assertEqual(len(texts), 4)
        self.assertEqual(texts[0], texts[1])
        alone = self.complete(prompt=PROMPT, max_tokens=5, temperature=0)
        self.assertEqual(texts[0], alone.choices[0].text)

    def test_stop_and_bias(self) -> None:
        answer = self.complete(prompt=PROMPT, max_tokens=40, temperature=0, stop=[" a"])
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertNotIn(" a", answer.choices[0].text)
        first = self.cli("tokenize", PROMPT)["token_ids"][1]
        forced = self.complete(prompt=PROMPT, max_tokens=3, temperature=0,
                               logit_bias={str(first): 100})
        self.assertEqual(forced.choices[0].text.split(), ["Once"] * 3)

    def test_echoed_log_probabilities_are_those_of_score(self) -> None:
        choice = self.complete(prompt=PROMPT, max_tokens=0, echo=True, logprobs=3).choices[0]
        self.assertEqual(choice.text, PROMPT)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        echoed = array.array("f", choice.logprobs.token_logprobs[1:])
        self.assertEqual(echoed, array.array("f", self.score(PROMPT)))  # to the last bit
        for offset, token in list(zip(choice.logprobs.text_offset, choice.logprobs.tokens))[2:]:
            self.assertTrue(PROMPT[offset:].startswith(token))

    def test_the_certificate_is_that_of_grpc(self) -> None:
        """And pruning may be turned off, or made stricter."""
        fields = {"prompt": TEXT, "max_tokens": 8, "temperature": 0}
        whole = self.complete(**fields).fox
        [*_, last] = self.complete(stream=True, **fields)
        self.assertEqual({**last.fox, "cached_tokens": 0}, {**whole, "cached_tokens": 0})
        told = subprocess.run(
            [str(self.programs / "fox-cli"), "generate", TEXT, "--max-tokens", "8", "--temperature",
             "0", "--stats", "--json", "--target", self.server.target],
            capture_output=True, text=True, timeout=60, check=True)
        acp = demo.flatten(json.loads(told.stdout.splitlines()[-1]))
        self.assertAlmostEqual(whole["max_log_evicted_mass"], acp["max_log_evicted_mass"], places=3)
        self.assertLessEqual(whole["max_log_evicted_mass"], whole["log_tolerance"])
        self.assertAlmostEqual(whole["kv_bytes"] / whole["kv_bytes_unpruned"],
                               1 - int(acp["pages_evicted"]) / int(acp["pages_allocated"]))
        self.assertLess(whole["kv_bytes"], whole["kv_bytes_unpruned"] / 2)
        strict = self.complete(extra_body={"log_tolerance": -20}, **fields).fox
        self.assertLess(strict["max_log_evicted_mass"], -20)
        self.assertGreater(strict["kv_bytes"], whole["kv_bytes"])
        off = self.complete(extra_body={"acp": "off"}, **fields).fox
        self.assertEqual((off["max_log_evicted_mass"], off["log_tolerance"]), (None, None))
        self.assertEqual(off["kv_bytes"], whole["kv_bytes_unpruned"])
        self.assertEqual(off["kv_bytes"], off["kv_bytes_unpruned"])

    def test_fields_of_other_servers_are_refused(self) -> None:
        for name, hint in (("max_new_tokens", "max_tokens"), ("guided_json", "structured output")):
            with self.assertRaisesRegex(self.openai.BadRequestError, hint) as raised:
                self.complete(prompt=PROMPT, extra_body={name: {"a": 1}})
            self.assertEqual(raised.exception.param, name)

    def test_errors_have_their_classes(self) -> None:
        with self.assertRaises(self.openai.BadRequestError) as raised:
            self.complete(prompt=PROMPT, top_p=2)
        self.assertEqual(raised.exception.param, "top_p")
        with self.assertRaises(self.openai.NotFoundError):
            self.client.completions.create(model="other", prompt=PROMPT)
        with self.assertRaises(self.openai.BadRequestError) as raised:
            self.complete(prompt=[5] * 200000)
        self.assertEqual(raised.exception.code, "context_length_exceeded")

    def test_leaving_a_stream_ends_its_request(self) -> None:
        stream = self.complete(prompt=PROMPT, max_tokens=100000, stream=True,
                               extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        for _ in range(200):  # each look takes some 10 ms
            looked = subprocess.run([str(self.programs / "fox-cli"), "info", "--target",
                                     self.server.target], capture_output=True, text=True,
                                    timeout=60, check=True)
            load = demo.read_messages(looked.stdout)[-1]
            if load["running"] == "0":
                break
        self.assertEqual((load["running"], load["requests_cancelled"]), ("0", "1"))


class HarnessTest(OpenAiTest):
    """lm-evaluation-harness, model local-completions, which sends ids without bos."""

    flags = ("--add-bos-to-ids",)

    def evaluate(self, task: dict[str, Any], **model: Any) -> list[dict[str, Any]]:
        """The samples of a task, each with the harness' own log-likelihoods."""
        import lm_eval  # noqa: PLC0415
        arguments = {"model": "demo", "base_url": f"{self.url}/completions",
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
                scored = self.cli("score", f"{question} {choice}", "--no-bos")["logprobs"]
                given = len(self.score(question)) - 1
                without_bos -= sum(position["token"]["logprob"] for position in scored[given:])
        print(f"\nlm-eval {theirs:.3f}, fox-eval {ours:.3f}, without bos {without_bos:.3f}")
        self.assertGreater(abs(without_bos - ours), 0.02 * ours, "the text tells nothing of bos")
        right = sum(sample["acc"] for sample in samples)
        self.assertGreaterEqual(right, 4, "the demo model knows these")

    def loss(self, text: str) -> float:
        """Of all its tokens after bos, by fox-eval."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            tokens = len(self.cli("tokenize", text)["token_ids"])  # with bos; fox-eval adds eos
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

    def test_generation(self) -> None:
        samples = self.evaluate(
            {"task": "fox_generate", "output_type": "generate_until",
             "doc_to_text": "{{question}}", "doc_to_target": "{{choices[answer]}}",
             "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
             "metric_list": [{"metric": "exact_match"}],
             **self.file_of("generate.jsonl", QUESTIONS)}, batch_size=2)
        self.assertTrue(all(sample["filtered_resps"][0].strip() for sample in samples))


if __name__ == "__main__":
    OpenAiTest.programs = pathlib.Path(sys.argv[1])
    pypi_packages.enter(OpenAiTest.programs, "openai_packages",
                        ("openai>=1.60,<4", "lm-eval[api]>=0.4.11,<0.5"))
    del sys.argv[1]
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(HF_HOME=cache, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
                          TOKENIZERS_PARALLELISM="false")
        unittest.main()
