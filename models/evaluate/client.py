"""A fox-server as the judge of a model: tokens, log-probabilities and answers over OpenAI's API."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from models.convert.refusal import Refusal
from models.finetune.progress import ProgressLine, duration

_line = ProgressLine()  # one for the process: its thread repeats the last text until the end

T = TypeVar("T")
R = TypeVar("R")
Ids = list[int]

HTTP_ADDRESS, GRPC_ADDRESS = "listening for HTTP on", "listening on"  # in the server's log
START_SECONDS = 600  # a large model is read from a slow disk
REQUEST_SECONDS = 3600
RETRIES = 2000  # of refused requests, 0.1 s apart at least


@dataclasses.dataclass(frozen=True)
class Setting:
    """How the server prunes: `acp` and `log_tolerance` as in a request; None: the server's own."""

    name: str
    fields: dict[str, Any]


SETTINGS = {"served": Setting("served", {}), "off": Setting("off", {"acp": "off"})}


@dataclasses.dataclass(frozen=True)
class Scored:
    """The log-probability of the last tokens of a prompt, in nats, and its certificate."""

    log_probability: float
    greedy: bool  # each of the tokens was the likeliest one
    certificate: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Answer:
    text: str
    certificate: dict[str, Any]


class Client:
    """Sends requests from several threads. Its methods may be called by any thread."""

    def __init__(self, address: str, parallel: int = 16, batch: int = 16) -> None:
        self.address, self._parallel, self._batch = address, parallel, batch
        self._idle: list[http.client.HTTPConnection] = []
        self._tokens: dict[str, tuple[int, ...]] = {}
        served = self._request("GET", "/v1/models")["data"][0]
        self.model = str(served["id"])
        self.max_model_len = int(served["max_model_len"])
        self.chats = bool(served.get("chat", False))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        while self._idle:
            self._idle.pop().close()

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The parsed answer. A busy server is asked again; any other refusal raises Refusal."""
        for _ in range(RETRIES):
            was_idle = True
            try:
                connection = self._idle.pop()
            except IndexError:
                was_idle = False
                connection = http.client.HTTPConnection(self.address, timeout=REQUEST_SECONDS)
            try:
                connection.request(method, path, None if body is None else json.dumps(body),
                                   {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if was_idle:  # the server may have closed it meanwhile
                    continue
                raise Refusal(f"{self.address}: {error or type(error).__name__}") from None
            self._idle.append(connection)
            if response.status == 200:
                return json.loads(text)
            if response.status not in (429, 503):
                raise Refusal(f"{self.address}{path}: {response.status} {text[:300]!r}")
            time.sleep(max(0.1, float(response.getheader("Retry-After") or 0)))
        raise Refusal(f"{self.address}{path}: the server stays busy")

    def fingerprint(self) -> str:
        """The server's `system_fingerprint`: it changes with version, build, type and device."""
        answer = self._request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        return str(answer["system_fingerprint"])

    def tokens(self, text: str) -> tuple[int, ...]:
        """The ids of a text without special tokens."""
        found = self._tokens.get(text)
        if found is None:
            found = tuple(self._request("POST", "/tokenize", {
                "prompt": text, "add_special_tokens": False})["tokens"])
            self._tokens[text] = found
        return found

    def beginning(self) -> tuple[int, ...]:
        """The ids that the tokenizer puts in front of each text, as bos."""
        whole = self._request("POST", "/tokenize", {"prompt": "a", "add_special_tokens": True})
        own = self.tokens("a")
        return tuple(whole["tokens"][:len(whole["tokens"]) - len(own)])

    def turn(self, text: str) -> Ids:
        """The ids of a user's message, up to the place where the assistant begins to answer."""
        return list(self._request("POST", "/tokenize", {
            "messages": [{"role": "user", "content": text}],
            "add_generation_prompt": True})["tokens"])

    def score(self, prompts: Sequence[tuple[Ids, int]], setting: Setting,
              what: str) -> list[Scored]:
        """For each (ids, count) the log-probability of the last `count` ids."""
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i][0]))
        groups = [order[i:i + self._batch] for i in range(0, len(order), self._batch)]
        results: list[Scored | None] = [None] * len(prompts)

        def work(group: list[int]) -> None:
            answer = self._request("POST", "/v1/completions", {
                "prompt": [prompts[i][0] for i in group], "max_tokens": 0, "echo": True,
                "logprobs": 1, **setting.fields})
            for choice in answer["choices"]:
                i = group[choice["index"]]
                results[i] = _scored(choice["logprobs"], prompts[i][1], answer["fox"])

        self.each(work, groups, what)
        return [scored for scored in results if scored is not None]

    def answer(self, ids: Ids, max_tokens: int, setting: Setting) -> Answer:
        """The greedy answer, up to the end of its line."""
        reply = self._request("POST", "/v1/completions", {
            "prompt": ids, "max_tokens": max_tokens, "temperature": 0, "stop": ["\n"],
            **setting.fields})
        return Answer(reply["choices"][0]["text"], reply["fox"])

    def each(self, work: Callable[[T], R], items: Sequence[T], what: str) -> list[R]:
        """work(item) of all items, several at a time, with progress on stderr."""
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self._parallel) as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                for done, _ in enumerate(concurrent.futures.as_completed(futures), 1):
                    left = (time.monotonic() - begin) / done * (len(items) - done)
                    _line.doing(f"{what}: {done} of {len(items)}, {duration(left)} left")
                return [future.result() for future in futures]
            finally:
                for future in futures:  # after the first error
                    future.cancel()


def _scored(logprobs: dict[str, Any], count: int, certificate: dict[str, Any]) -> Scored:
    """The sum over the last `count` tokens of one choice."""
    own = logprobs["token_logprobs"][-count:]
    best = [max(top.values()) for top in logprobs["top_logprobs"][-count:]]
    return Scored(sum(own), all(x >= y for x, y in zip(own, best)), certificate)


class NotStarted(RuntimeError):
    """A server ended, or its time passed, before it listened; str() has the end of its log."""


@contextlib.contextmanager
def running(command: Sequence[str], listening: str, seconds: float,
            **process: Any) -> Iterator[tuple[str, str, subprocess.Popen[bytes]]]:
    """The address of a server on a free port, its log until then, and its process, which ends with
    the context.

    `listening`: the words before the address in the log. `process`: arguments of Popen.
    """
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8", errors="replace") as log, \
            subprocess.Popen(command, stdout=log, stderr=log, **process) as server:
        try:
            end = time.monotonic() + seconds
            while True:
                said = Path(log.name).read_text(encoding="utf-8", errors="replace")
                if found := re.search(listening + r" (\S+)\n", said):
                    break
                if server.poll() is not None or time.monotonic() > end:
                    raise NotStarted(f"the server did not start: {said.strip()[-500:]}")
                time.sleep(0.02)
            yield found.group(1), said, server
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()


@contextlib.contextmanager
def serving(program: Path, model: str, flags: Sequence[str]) -> Iterator[str]:
    """The address of a fox-server for `model` on a free port, which ends with the context.

    `model` may be HOST:PORT of a server that runs already.
    """
    if re.fullmatch(r"[\w.-]+:\d+", model) and not Path(model).exists():
        yield model
        return
    if not Path(model).is_dir():
        raise Refusal(f"'{model}' is neither a checkpoint's directory nor HOST:PORT of a server")
    command = [str(program), "--model", model, "--grpc-port", "0", "--http-port", "0", *flags]
    try:
        with running(command, HTTP_ADDRESS, START_SECONDS) as (address, _, _):
            yield address
    except NotStarted as error:
        raise Refusal(str(error)) from None
