#!/usr/bin/env python3
"""The package proto/python: built, type-checked, and used with fox-servers on the demo model.

    python_client_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import asyncio
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any

import certificates
import fox_server
from fox_server import ROOT

PROMPT = "Once upon a time"
TOKEN = "a-token-of-the-test"

# A program in which the type checker must find exactly the lines marked as wrong.
TYPED_PROGRAM = """
import foxserve_client

def use(client: foxserve_client.Client) -> str:
    client.generate("x", max_tokens=1, stop=["a"], logit_bias={1: 0.5}).completions[0].text
    client.generate("x", max_tokens="1")  # wrong
    client.generate("x", max_token=1)  # wrong
    client.score("x", temperature=1.0)  # wrong
    client.load().running.upper()  # wrong
    next(client.chat([{"role": "user", "content": "x"}], max_tokens=1)).upper()
    client.chat("x")  # wrong
    client.score([{"role": "user", "content": "x"}])  # wrong
    client.generate("x").completions[0].finish_reason.upper()
    client.generate("x").completions[0].finish_reason + 1  # wrong
    try:
        client.health()
    except foxserve_client.FoxError as error:
        return error.details()
    return next(client.stream_text([1, 2], echo=True))
"""


def setUpModule() -> None:
    """Installs the package from a copy, as its build writes files into the source folder."""
    global foxserve_client, grpc
    Case.folder = pathlib.Path(unittest.enterModuleContext(tempfile.TemporaryDirectory()))
    source, site = Case.folder / "source" / "proto", Case.folder / "site"
    shutil.copytree(ROOT / "proto", source, ignore=shutil.ignore_patterns("build", "__pycache__"))
    shutil.copy(ROOT / "CMakeLists.txt", source.parent)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
                    "--no-build-isolation", "--no-index", "--disable-pip-version-check",
                    "--root-user-action", "ignore", "--target", str(site),
                    str(source / "python")], check=True, timeout=120)
    sys.path.insert(0, str(site))
    import foxserve_client
    import grpc


class Case(fox_server.Case):
    """A case with the installed package and a folder."""

    folder = pathlib.Path()

    def assert_fails(self, code: str, call: Any) -> Any:
        """Checks that the call fails with that status; returns the error."""
        with self.assertRaises(grpc.RpcError) as raised:
            call()
        error = raised.exception
        self.assertEqual(error.code().name, code)
        self.assertIsInstance(error, foxserve_client.FoxError)
        self.assertEqual(str(error), f"{code}: {error.details()}")
        return error


class PackageTest(Case):
    """The package's types and options."""

    flags = None

    def test_types(self) -> None:
        program, site = self.folder / "program.py", self.folder / "site"
        program.write_text(TYPED_PROGRAM)
        checked = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file",
             str(ROOT / "proto" / "python" / "pyproject.toml"), "--cache-dir",
             str(self.folder / "cache"), str(site / "foxserve_client"), str(program)],
            capture_output=True, text=True, timeout=120, check=False, cwd=self.folder,
            env={"MYPYPATH": str(site), "PATH": "/usr/bin:/bin"})
        found = {int(line.split(":")[1]) for line in checked.stdout.splitlines()
                 if line.startswith("program.py:") and "error:" in line}
        wrong = {number for number, line in enumerate(TYPED_PROGRAM.splitlines(), 1)
                 if "# wrong" in line}
        self.assertEqual(found, wrong, checked.stdout)
        self.assertEqual([line for line in checked.stdout.splitlines()
                          if "error:" in line and not line.startswith("program.py:")], [])

    def test_options_are_the_fields(self) -> None:
        """The options of a call are exactly the fields of its messages."""
        from foxserve_client import requests
        from foxserve_client.fox.v1 import inference_pb2 as pb

        def names(*messages: Any) -> set[str]:
            return {f.name for message in messages for f in message.DESCRIPTOR.fields}

        prompt = {"text", "token_ids", "messages", "sampling", "stopping", "output", "cache"}
        generate = (names(pb.GenerateRequest) - prompt) | names(
            pb.Sampling, pb.Stopping, pb.Output, pb.ChatMessages) - {"turns"}
        self.assertEqual(set(requests.GenerateOptions.__annotations__), generate)
        self.assertEqual(set(requests.ScoreOptions.__annotations__),
                         names(pb.ScoreRequest) - {"text", "token_ids"})
        request = requests.generate_request(
            [1, 2], {"text": False, "token_ids": True, "stop": "x", "logit_bias": {7: 1.0},
                     "stop_token_ids": (3,), "request_id": "id", "temperature": 0.0})
        self.assertEqual(request, pb.GenerateRequest(
            request_id="id", token_ids=pb.TokenIds(ids=[1, 2]),
            sampling=pb.Sampling(temperature=0.0, logit_bias={7: 1.0}),
            stopping=pb.Stopping(stop=["x"], stop_token_ids=[3]),
            output=pb.Output(text=False, token_ids=True)))
        call = {"name": "f", "arguments": "{}"}
        request = requests.generate_request(
            [{"role": "assistant", "content": "hi", "tool_calls": [call]}],
            {"continue_final_message": False, "tools": ["{}"]})
        self.assertEqual(request, pb.GenerateRequest(messages=pb.ChatMessages(
            turns=[pb.ChatMessage(role="assistant", content="hi",
                                  tool_calls=[pb.ToolCall(**call)])],
            continue_final_message=False, tools=["{}"])))
        with self.assertRaisesRegex(TypeError, "max_token"):
            requests.generate_request("x", {"max_token": 1})  # type: ignore[typeddict-unknown-key]


class CallsTest(Case):
    """The sync and the async client with a server that needs TLS, a certificate and a token."""

    chats = True

    @classmethod
    def setUpClass(cls) -> None:
        authority = certificates.Authority(cls.folder, "authority")
        own, client = authority.issue("own"), authority.issue("client")
        tokens = cls.folder / "tokens"
        tokens.write_text(TOKEN + "\n")
        tokens.chmod(0o600)
        cls.target = cls.serve(
            *own.server_flags(), "--ssl-ca-certs", str(authority.certificate), "--api-key-file",
            str(tokens)).target
        cls.tls = foxserve_client.Tls(authority.certificate, client.certificate, client.key)
        cls.without = foxserve_client.Tls(authority.certificate)

    def client(self, **changes: Any) -> foxserve_client.Client:
        """A client with valid credentials, except for the changes."""
        options = {"token": TOKEN, "tls": self.tls, "timeout": 20.0, **changes}
        client = foxserve_client.Client(self.target, **options)
        self.addCleanup(client.close)
        return client

    def test_every_method(self) -> None:
        client = self.client()
        whole = client.generate(PROMPT, max_tokens=8, temperature=0, echo=True, token_ids=True)
        events = list(client.stream(PROMPT, max_tokens=8, temperature=0, token_ids=True))
        self.assertEqual(whole.prompt.text, PROMPT)
        self.assertEqual(len(whole.completions[0].token_ids), 8)
        self.assertEqual(whole.completions[0].finish_reason, "length")
        self.assertEqual("".join(e.delta.text for e in events), whole.completions[0].text)
        self.assertEqual(events[-1].finish.usage.completion_tokens, 8)
        text = "".join(client.stream_text(PROMPT, max_tokens=8, temperature=0, echo=True))
        self.assertEqual(text, PROMPT + whole.completions[0].text)
        messages = [{"role": "user", "content": PROMPT}]
        said = client.generate(messages, max_tokens=8, temperature=0).completions[0].text
        self.assertEqual("".join(client.chat(messages, max_tokens=8, temperature=0)), said)
        ids = client.tokenize(PROMPT)
        self.assertEqual(client.detokenize(ids), PROMPT)
        self.assertEqual(client.generate(ids, max_tokens=8, temperature=0).completions[0].text,
                         whole.completions[0].text)
        scored = client.score(PROMPT, logprobs=2)
        self.assertAlmostEqual(sum(p.token.logprob for p in scored.logprobs), scored.total_logprob,
                               places=4)
        self.assertLess(scored.total_logprob, 0)
        self.assertEqual(client.abort("nothing"), [])
        self.assertEqual(client.model_info().served_model_name, "demo")
        self.assertGreater(client.server_info().uptime_s, 0)
        self.assertTrue(client.load().partial)  # the totals are for administrators
        self.assertTrue(client.health())
        self.assertTrue(client.health("fox.v1.Inference"))

    def test_every_method_awaited(self) -> None:
        async def use() -> None:
            options = {"token": TOKEN, "tls": self.tls, "timeout": 20.0}
            async with foxserve_client.AsyncClient(self.target, **options) as client:
                several = await asyncio.gather(*(
                    client.generate(PROMPT, max_tokens=4, temperature=0) for _ in range(4)))
                texts = {answer.completions[0].text for answer in several}
                self.assertEqual(len(texts), 1)
                text = [t async for t in client.stream_text(PROMPT, max_tokens=4, temperature=0)]
                self.assertEqual("".join(text), texts.pop())
                ids = await client.tokenize(PROMPT)
                self.assertEqual(await client.detokenize(ids), PROMPT)
                self.assertLess((await client.score(ids)).total_logprob, 0)
                self.assertEqual(await client.abort("nothing"), [])
                self.assertEqual((await client.model_info()).served_model_name, "demo")
                self.assertGreater((await client.server_info()).uptime_s, 0)
                self.assertTrue((await client.load()).partial)
                self.assertTrue(await client.health())
                with self.assertRaises(foxserve_client.FoxError) as raised:
                    await client.generate("")
                self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertEqual(str(raised.exception),
                                 "INVALID_ARGUMENT: text: the prompt is empty")
                with self.assertRaises(foxserve_client.FoxError):
                    await anext(client.stream(""))
        asyncio.run(use())

    def test_clients_that_are_not_let_in(self) -> None:
        self.assert_fails("UNAUTHENTICATED", self.client(token=None).load)
        self.assert_fails("UNAUTHENTICATED", self.client(token=TOKEN + "x").load)
        self.assert_fails("UNAVAILABLE", self.client(tls=self.without, max_attempts=1).load)
        self.assert_fails("UNAVAILABLE", self.client(tls=None, max_attempts=1).load)
        self.assertTrue(self.client(token=None).health())  # probes have no token


class RetryTest(Case):
    """A server that accepts one call of a client at a time."""

    flags = ("--max-calls", "2")  # a connection may have half of them

    def hold(self) -> foxserve_client.Client:
        """Takes the client's only call until the returned client is closed."""
        client = foxserve_client.Client(self.server.target, timeout=60)
        events = client.stream(PROMPT, max_tokens=4000, ignore_eos=True)
        next(events)
        self.addCleanup(events.close)  # keeps a reference, without which the stream would end
        self.addCleanup(client.close)
        return client

    def test_a_refused_call_is_tried_again_when_the_server_says(self) -> None:
        with foxserve_client.Client(self.server.target, timeout=20, max_attempts=1) as once, \
                foxserve_client.Client(self.server.target, timeout=20) as patient:
            holder = self.hold()
            error = self.assert_fails("RESOURCE_EXHAUSTED",
                                      lambda: once.generate(PROMPT, max_tokens=1))
            delay = int(dict(error.trailing_metadata())["retry-after-ms"]) / 1000
            begin = time.monotonic()
            timer = threading.Timer(0.05, holder.close)
            timer.start()
            self.addCleanup(timer.join)
            answer = patient.generate(PROMPT, max_tokens=1)
            self.assertEqual(answer.completions[0].finish.usage.completion_tokens, 1)
            self.assertGreaterEqual(time.monotonic() - begin, delay)


if __name__ == "__main__":
    fox_server.main("grpc", "grpc_tools", "setuptools", "wheel", "mypy", "google-stubs", "openssl")
