#!/usr/bin/env python3
"""Two fox-servers behind the real gateway, which uses their HTTP port: what the openai client gets
is what fox.v1 gives, what is cancelled is freed, and a worker that dies or drains costs no other
request. Skipped, and it says so, where the packages cannot be had.

    gateway_test.py BIN     the folder of fox-server, fox-cli and fox-bench
"""

from __future__ import annotations

import pathlib
import signal
import sys
import tempfile
import threading
import time
import unittest
from typing import Any

import gateway_process
from fox_server import ROOT, FoxServer, wait_until

if __name__ == "__main__":
    gateway_process.enter_packages(pathlib.Path(sys.argv[1]))

import grpc  # noqa: E402
import openai  # noqa: E402
from grpc_tools import protoc  # noqa: E402

MODEL = "demo"
CLIENTS = 6
LONG = dict(model=MODEL, prompt="Once upon a time", max_tokens=3000,
            extra_body={"ignore_eos": True})


def fox_modules() -> tuple[Any, Any, Any]:
    """fox.v1 as Python modules: messages, Inference, Info."""
    folder = tempfile.mkdtemp()
    sources = [f"fox/v1/{name}.proto" for name in ("acp", "inference", "info")]
    assert protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}",
                        f"--grpc_python_out={folder}", *sources]) == 0
    sys.path.insert(0, folder)
    from fox.v1 import inference_pb2, inference_pb2_grpc, info_pb2, info_pb2_grpc
    info_pb2_grpc.messages = info_pb2
    return inference_pb2, inference_pb2_grpc, info_pb2_grpc


class Worker(FoxServer):
    """A fox-server, and what its own interface says of it."""

    def __init__(self, programs: pathlib.Path) -> None:
        super().__init__(programs, ["--http-port", "0"])

    def __enter__(self) -> Worker:
        super().__enter__()
        channel = grpc.insecure_channel(self.target)
        self.inference = INFERENCE.InferenceStub(channel)
        self._info = INFO.InfoStub(channel)
        return self

    def load(self) -> Any:
        return self._info.GetLoad(INFO.messages.GetLoadRequest())

    def is_idle(self) -> bool:
        """Nothing runs and every page is free."""
        load = self.load()
        return (load.running, load.waiting, load.kept_pages) == (0, 0, 0)


class GatewayTest(unittest.TestCase):
    """Two servers and a gateway for all cases."""

    programs = pathlib.Path()

    @classmethod
    def setUpClass(cls) -> None:
        cls.workers = [cls.enterClassContext(Worker(cls.programs)) for _ in range(2)]
        cls.gateway = cls.enterClassContext(gateway_process.Gateway(
            [worker.http_url for worker in cls.workers]))
        cls.gateway.wait_until(lambda: len(cls.gateway.workers()) == 2)
        cls.client = openai.OpenAI(base_url=cls.gateway.url + "/v1", api_key="none", max_retries=0,
                                   timeout=60)

    def tearDown(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                self.assertTrue(wait_until(worker.is_idle), worker.load())

    def fox(self, prompt: str, sampling: dict[str, Any], **stopping: Any) -> Any:
        """What fox.v1 answers."""
        return self.workers[0].inference.Generate(MESSAGES.GenerateRequest(
            text=prompt, sampling=sampling, stopping=stopping, output=dict(text=True, logprobs=0)))

    def test_text_is_that_of_fox_v1(self) -> None:
        book = (ROOT / "models" / "demo" / "prompt_long.txt").read_text()
        prompts = ["There was a", "“Déjà vu” — 日本 🦊 said the fox.\n\nThe",
                   "  spaces on both sides  ", "a\tb\n\n\nc ==== aaaaaaaa", book[700:1300],
                   book[5000:8000]]
        for number, prompt in enumerate(prompts):
            for temperature in (0, 0.9):
                stop = [[], ["\n"], ["the", " said"]][number % 3]
                asked = dict(model=MODEL, prompt=prompt, max_tokens=24, seed=number,
                             temperature=temperature)
                if stop:
                    asked["stop"] = stop
                own = self.fox(prompt, dict(temperature=temperature, seed=number), max_tokens=24,
                               stop=stop)
                whole = self.client.completions.create(**asked)
                pieces = list(self.client.completions.create(
                    **asked, stream=True, stream_options={"include_usage": True}))
                streamed = "".join(c.text for piece in pieces for c in piece.choices)
                with self.subTest(prompt=prompt[:20], temperature=temperature):
                    self.assertEqual(whole.choices[0].text, own.completions[0].text)
                    self.assertEqual(streamed, own.completions[0].text)
                    self.assertEqual(whole.usage.prompt_tokens, own.prompt.prompt_tokens)
                    self.assertEqual(pieces[-1].usage.prompt_tokens, own.prompt.prompt_tokens)
                    used = own.completions[0].finish.usage.completion_tokens
                    self.assertEqual(whole.usage.completion_tokens, used)
                    self.assertEqual(pieces[-1].usage.completion_tokens, used)
                    reason = {MESSAGES.STOP: "stop", MESSAGES.LENGTH: "length"}
                    self.assertEqual(whole.choices[0].finish_reason,
                                     reason[own.completions[0].finish.reason])

    def test_several_completions(self) -> None:
        own = self.fox("There was a", dict(temperature=0.9, seed=5, n=3), max_tokens=16)
        asked = dict(model=MODEL, prompt="There was a", max_tokens=16, temperature=0.9, seed=5, n=3)
        whole = self.client.completions.create(**asked)
        streamed = ["", "", ""]
        for piece in self.client.completions.create(**asked, stream=True):
            for choice in piece.choices:
                streamed[choice.index] += choice.text
        expected = [completion.text for completion in own.completions]
        self.assertEqual([choice.text for choice in whole.choices], expected)
        self.assertEqual(streamed, expected)
        self.assertEqual(len(set(expected)), 3)

    def test_the_certificate_and_log_probabilities_pass_through(self) -> None:
        answer = self.client.completions.create(
            model=MODEL, prompt="There was a", max_tokens=6, temperature=0, logprobs=2,
            extra_body={"acp": "off"})
        own = self.fox("There was a", dict(temperature=0), max_tokens=6)
        for given, position in zip(answer.choices[0].logprobs.token_logprobs,
                                   own.completions[0].logprobs, strict=True):
            self.assertAlmostEqual(given, position.token.logprob, places=3)
        self.assertIn(" man", answer.choices[0].logprobs.top_logprobs[0])
        self.assertEqual(answer.model_extra["fox"]["kv_bytes"],
                         answer.model_extra["fox"]["kv_bytes_unpruned"])

    def test_refusals_are_the_clients_and_shut_no_worker_out(self) -> None:
        refusals: list[dict[str, Any]] = [
            dict(max_tokens=0), dict(temperature=200), dict(prompt="word " * 200000),
            dict(extra_body={"json_schema": '{"type": "object"}'})]
        for _ in range(12):  # ten in a row would open the gateway's breaker
            for change in refusals:
                with self.assertRaises(openai.BadRequestError):
                    self.client.completions.create(
                        **{"model": MODEL, "prompt": "a", "max_tokens": 2, **change})
        self.assertTrue(self.client.completions.create(model=MODEL, prompt="a").choices[0].text)

    def running(self) -> int:
        return sum(worker.load().running for worker in self.workers)

    def ended_early(self) -> int:
        loads = [worker.load() for worker in self.workers]
        return sum(load.requests_cancelled + load.requests_aborted for load in loads)

    def test_a_stream_that_is_left_frees_its_pages(self) -> None:
        before = self.ended_early()
        stream = self.client.completions.create(**LONG, stream=True)
        next(iter(stream))
        self.assertEqual(self.running(), 1)
        stream.close()
        self.assertTrue(wait_until(lambda: self.running() == 0))
        self.assertEqual(self.ended_early(), before + 1)

    def test_an_answer_that_nobody_waits_for_frees_its_pages(self) -> None:
        before = self.ended_early()
        impatient = self.client.with_options(timeout=1)
        with self.assertRaises(openai.APITimeoutError):
            impatient.completions.create(**LONG)
        self.assertTrue(wait_until(lambda: self.running() == 0))
        self.assertEqual(self.ended_early(), before + 1)


class Users:
    """Clients that ask on and on, every other time for a stream."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._client = client
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.results: list[tuple[float, float, bool, str]] = []  # begin, end, stream, error
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(CLIENTS)]

    def __enter__(self) -> Users:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        while not self._stop.is_set():
            number += 1
            begin, stream, error = time.monotonic(), number % 2 == 0, ""
            asked = dict(model=MODEL, prompt=f"{number} times upon a time", max_tokens=24,
                         extra_body={"ignore_eos": True})
            try:
                if stream:
                    ends = [choice.finish_reason for piece in self._client.completions.create(
                        **asked, stream=True) for choice in piece.choices]
                    error = "" if ends and ends[-1] == "length" else f"ends with {ends[-1:]}"
                else:
                    self._client.completions.create(**asked)
            except openai.OpenAIError as failure:
                error = repr(failure)
            with self._lock:
                self.results.append((begin, time.monotonic(), stream, error))

    def count(self) -> int:
        with self._lock:
            return len(self.results)


class GatewayFaultTest(unittest.TestCase):
    """Workers that come, die and drain under load."""

    programs = pathlib.Path()

    def test_kill_discovery_and_drain(self) -> None:
        with Worker(self.programs) as doomed, Worker(self.programs) as drained, \
                Worker(self.programs) as fresh, \
                gateway_process.Gateway([doomed.http_url, drained.http_url]) as gateway:
            gateway.wait_until(lambda: len(gateway.workers()) == 2)
            client = openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0,
                                   timeout=60)
            with Users(client) as users:
                self.assertTrue(wait_until(lambda: doomed.load().requests_finished > 4 and
                                           drained.load().requests_finished > 4))
                self.assertTrue(wait_until(lambda: doomed.load().running > 1))
                killed = time.monotonic()
                doomed.end(signal.SIGKILL)
                # Found in the file, used at once.
                gateway.set_workers([drained.http_url, fresh.http_url])
                self.assertTrue(wait_until(lambda: fresh.load().requests_finished > 4),
                                gateway.workers())
                self.assertTrue(wait_until(lambda: drained.load().running > 0))
                self.assertEqual(drained.end(signal.SIGTERM), 0)
                after = users.count() + 2 * CLIENTS
                self.assertTrue(wait_until(lambda: users.count() > after), gateway.workers())
            failed = [result for result in users.results if result[3]]
            for begin, end, stream, error in failed:
                # What had begun to stream on the killed worker; all else was asked again elsewhere.
                self.assertTrue(stream and begin < killed < end,
                                (begin - killed, end - killed, error))
            self.assertLessEqual(len(failed), CLIENTS)
            self.assertTrue(wait_until(fresh.is_idle), fresh.load())


if __name__ == "__main__":
    programs = pathlib.Path(sys.argv.pop(1))
    for case in (GatewayTest, GatewayFaultTest):
        case.programs = programs
    MESSAGES, INFERENCE, INFO = fox_modules()
    unittest.main()
