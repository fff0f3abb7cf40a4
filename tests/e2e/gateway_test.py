#!/usr/bin/env python3
"""Two fox-servers behind the real gateway, which uses their HTTP port: the openai client gets the
answers of a worker, a cancelled request frees its pages, and a worker that dies or drains costs no
other request. If the packages cannot be had from PyPI, the test says so and is skipped.

    gateway_test.py BIN     the folder of fox-server, fox-cli and fox-bench
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from typing import Any

import fox_server
import pypi_packages
from fox_server import FoxServer, free_port, wait_until

if __name__ == "__main__":
    pypi_packages.enter(pathlib.Path(sys.argv[1]), "gateway_packages", (
        "smg==1.13.0", "openai>=1.60,<4", "grpcio>=1.60,<2", "grpcio-tools>=1.60,<2"))

import grpc  # noqa: E402
import openai  # noqa: E402

INFO_MESSAGES, INFO = grpc.protos_and_services("fox/v1/info.proto")
READY_SECONDS = 30
MODEL = "demo"
CLIENTS = 6
LONG = dict(model=MODEL, prompt="Once upon a time", max_tokens=3000,
            extra_body={"ignore_eos": True})


class Gateway:
    """A gateway on a free port, until the context ends. It reads its workers from a file."""

    def __init__(self, urls: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._file = pathlib.Path(self._folder.name) / "workers.json"
        self._log = pathlib.Path(self._folder.name) / "log"
        self.set_workers(urls)
        self.url = f"http://127.0.0.1:{free_port()}"
        self._command = [
            str(pathlib.Path(sys.prefix) / "bin" / "smg"), "launch", "--host", "127.0.0.1",
            "--port", self.url.rsplit(":", 1)[1], "--prometheus-host", "127.0.0.1",
            "--prometheus-port", str(free_port()), "--policy", "least_load",
            "--worker-startup-check-interval", "1", "--discovery-provider", "file",
            "--discovery-file", str(self._file), "--backend", "vllm"]

    def set_workers(self, urls: list[str]) -> None:
        """Replaces the file of workers atomically."""
        workers = [{"url": url} for url in urls]
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"version": 1, "workers": workers}))
        os.replace(new, self._file)

    def __enter__(self) -> Gateway:
        with open(self._log, "w") as log:
            # Otherwise the gateway would first ask a hub for tokenizers.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1"})
        try:
            self.wait_until(lambda: self._get("/readiness") is not None)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            return None

    def workers(self) -> dict[str, Any]:
        """The gateway's list of workers, by URL."""
        listed = json.loads(self._get("/workers") or "{}").get("workers", [])
        return {worker["url"]: worker for worker in listed}

    def wait_until(self, condition) -> None:
        """Polls the condition; fails if the gateway ends or takes too long."""
        if not wait_until(lambda: self._process.poll() is not None or condition(), READY_SECONDS) \
                or self._process.poll() is not None:
            raise AssertionError("the gateway did not come that far:\n" +
                                 self._log.read_text()[-4000:])


class Worker(FoxServer):
    """A fox-server that tells its load."""

    def __init__(self, programs: pathlib.Path, model: pathlib.Path = fox_server.MODEL) -> None:
        super().__init__(programs, ["--http-port", "0"], model=model)

    def __enter__(self) -> Worker:
        super().__enter__()
        self._info = INFO.InfoStub(grpc.insecure_channel(self.target))
        return self

    def load(self) -> Any:
        return self._info.GetLoad(INFO_MESSAGES.GetLoadRequest())

    def is_idle(self) -> bool:
        """True if no request runs or waits and every page is free."""
        load = self.load()
        return (load.running, load.waiting, load.kept_pages) == (0, 0, 0)


class GatewayTest(fox_server.Case):
    """Two servers and a gateway for all cases."""

    @classmethod
    def setUpClass(cls) -> None:
        model = fox_server.chat_model(pathlib.Path(
            cls.enterClassContext(tempfile.TemporaryDirectory())))
        cls.workers = [cls.enterClassContext(Worker(cls.programs, model)) for _ in range(2)]
        cls.gateway = cls.enterClassContext(Gateway(
            [worker.http_url for worker in cls.workers]))
        cls.gateway.wait_until(lambda: len(cls.gateway.workers()) == 2)
        cls.client = openai.OpenAI(base_url=cls.gateway.url + "/v1", api_key="none", max_retries=0,
                                   timeout=60)

    def tearDown(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                self.assertTrue(wait_until(worker.is_idle), worker.load())

    def test_answers_are_those_of_a_worker(self) -> None:
        own = openai.OpenAI(base_url=self.workers[0].http_url + "/v1", api_key="none")
        book = (fox_server.MODEL / "prompt_long.txt").read_text()
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?"},
                 {"role": "assistant", "content": "<s>I."}, {"role": "user", "content": "日本 🦊"}]
        usage = {"stream_options": {"include_usage": True}}
        for number, prompt in enumerate((
                "“Déjà vu” — 日本 🦊 said the fox.\n\nThe", "  spaces on both sides  ",
                "a\tb\n\n\nc ==== aaaaaaaa", book[5000:8000], turns)):
            asked = dict(model=MODEL, max_tokens=24, seed=number, temperature=number % 2 * 0.9,
                         stop=["the", " said"])
            chats = prompt is turns
            asked["messages" if chats else "prompt"] = prompt
            direct, through = ((one.chat.completions if chats else one.completions).create
                               for one in (own, self.client))
            want, got = direct(**asked), through(**asked)
            pieces = list(through(**asked, stream=True, **usage))
            text = "".join((c.delta.content or "") if chats else c.text
                           for piece in pieces for c in piece.choices)
            with self.subTest(prompt=prompt[:20]):
                self.assertEqual(got.choices, want.choices)
                first = want.choices[0]
                self.assertEqual(text, first.message.content if chats else first.text)
                for used in (got.usage, pieces[-1].usage):
                    self.assertEqual((used.prompt_tokens, used.completion_tokens),
                                     (want.usage.prompt_tokens, want.usage.completion_tokens))
        with self.assertRaisesRegex(openai.BadRequestError, "messages: .* tokens > "):
            self.client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "word " * 200000}])

    def test_refusals_are_the_clients_and_shut_no_worker_out(self) -> None:
        refusals: list[dict[str, Any]] = [
            dict(max_tokens=0), dict(temperature=200), dict(prompt="word " * 200000),
            dict(extra_body={"json_schema": '{"type": "object"}'})]
        for _ in range(12):  # ten failures in a row would open the gateway's breaker
            for change in refusals:
                with self.assertRaises(openai.BadRequestError):
                    self.client.completions.create(
                        **{"model": MODEL, "prompt": "a", "max_tokens": 2, **change})
        self.assertTrue(self.client.completions.create(model=MODEL, prompt="a").choices[0].text)

    def running(self, *_: str) -> int:
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

class Users:
    """Clients that send requests until the context ends, every other one for a stream."""

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


class GatewayFaultTest(fox_server.Case):
    """Workers that are added, killed and drained under load."""

    flags = None

    def test_kill_discovery_and_drain(self) -> None:
        with Worker(self.programs) as doomed, Worker(self.programs) as drained, \
                Worker(self.programs) as fresh, \
                Gateway([doomed.http_url, drained.http_url]) as gateway:
            gateway.wait_until(lambda: len(gateway.workers()) == 2)
            client = openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0,
                                   timeout=60)
            with Users(client) as users:
                self.assertTrue(wait_until(lambda: doomed.load().requests_finished > 4 and
                                           drained.load().requests_finished > 4))
                self.assertTrue(wait_until(lambda: doomed.load().running > 1))
                killed = time.monotonic()
                doomed.end(signal.SIGKILL)
                # The gateway finds the new worker in the file and uses it at once.
                gateway.set_workers([drained.http_url, fresh.http_url])
                self.assertTrue(wait_until(lambda: fresh.load().requests_finished > 4),
                                gateway.workers())
                self.assertTrue(wait_until(lambda: drained.load().running > 0))
                self.assertEqual(drained.end(signal.SIGTERM), 0)
                after = users.count() + 2 * CLIENTS
                self.assertTrue(wait_until(lambda: users.count() > after), gateway.workers())
            failed = [result for result in users.results if result[3]]
            for begin, end, stream, error in failed:
                # Only streams that had begun on the killed worker fail; the gateway sent all other
                # requests again to another worker.
                self.assertTrue(stream and begin < killed < end,
                                (begin - killed, end - killed, error))
            self.assertLessEqual(len(failed), CLIENTS)
            self.assertTrue(wait_until(fresh.is_idle), fresh.load())


if __name__ == "__main__":
    fox_server.main()
