#!/usr/bin/env python3
"""fox.v1 of a real server with grpcio: windows of heads streamed beside an answer, the prefix cache
and its separation of clients, the privacy of requests, and proto/example.py.

    inference_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import fox_server
from fox_server import MODEL, ROOT, wait_until

LONG = (MODEL / "prompt_long.txt").read_text()
PROMPT = "Once upon a time"
PAGE, LAYERS, HEADS = 64, 10, 6


class Case(fox_server.Case):
    """A case with the messages and stubs of fox.v1."""

    @classmethod
    def setUpClass(cls) -> None:
        import grpc
        cls.grpc = grpc
        cls.fox, cls.fox_grpc = grpc.protos_and_services("fox/v1/inference.proto")
        super().setUpClass()

    def connect(self) -> None:
        """Opens a channel to the server until the case's end."""
        self.channel = self.enterContext(self.grpc.insecure_channel(self.server.target))
        self.stub = self.fox_grpc.InferenceStub(self.channel)

    def request(self, prompt: str, tokens: int, **fields: Any) -> Any:
        """A greedy request for `tokens` tokens."""
        return self.fox.GenerateRequest(**{
            "text": prompt, "sampling": self.fox.Sampling(temperature=0),
            "stopping": self.fox.Stopping(max_tokens=tokens, ignore_eos=True), **fields})


class ExampleTest(Case):
    """proto/example.py, run as its documentation says."""

    def run_example(self, prompt: str, target: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-B", str(ROOT / "proto" / "example.py"), prompt, "--target", target,
             "--max-tokens", "8"], capture_output=True, text=True, timeout=60, check=False)

    def test_it_streams_and_reports(self) -> None:
        first, second = (self.run_example(PROMPT, self.server.target) for _ in range(2))
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertRegex(first.stderr, r"^5 \+ \d tokens, 0 of 60 pages evicted\n$")
        self.assertGreater(len(first.stdout.strip()), 4)
        self.assertEqual(first.stdout, second.stdout)  # the request has a seed

    def test_an_error_is_one_line(self) -> None:
        for prompt, target, error in (
                ("", self.server.target, r"INVALID_ARGUMENT: text: the prompt is empty"),
                ("Once", "127.0.0.1:1", r"UNAVAILABLE: [^\n]*")):
            failed = self.run_example(prompt, target)
            self.assertEqual((failed.returncode, failed.stdout), (1, ""), error)
            self.assertRegex(failed.stderr, f"^{error}\n$")


class WindowsTest(Case):
    """Windows: the pages that each head keeps."""

    flags = ("--http-port", "0", "--prefix-cache-share", "0")
    prompt = LONG[:12000]

    def setUp(self) -> None:
        self.connect()

    def windowed(self, prompt: str, tokens: int, **output: Any) -> Any:
        return self.request(prompt, tokens, output=self.fox.Output(**output))

    def test_they_come_with_the_prompt_and_with_the_answer(self) -> None:
        began = time.monotonic()
        events = list(self.stub.GenerateStream(
            self.windowed(self.prompt, 300, acp_windows=True, acp_stats=True), timeout=60))
        seconds = time.monotonic() - began
        windows = [event.windows for event in events if event.WhichOneof("event") == "windows"]
        self.assertGreater(len(windows), min(3, 5 * seconds))
        self.assertLessEqual(len(windows), 10 * seconds + 2)
        first_delta = next(i for i, event in enumerate(events) if event.HasField("delta"))
        for when, some in (("prompt", events[:first_delta]), ("answer", events[first_delta:])):
            self.assertTrue(any(event.HasField("windows") for event in some), when)
        tokens = [window.tokens for window in windows]
        self.assertEqual(tokens, sorted(set(tokens)))
        for window in windows:
            with self.subTest(tokens=window.tokens):
                self.assertEqual((window.layers, window.kv_heads, window.page_size),
                                 (LAYERS, HEADS, PAGE))
                self.assertGreaterEqual(window.page_bytes, 2 * PAGE * 64 * 2)
                self.assertEqual(len(window.first_page), LAYERS * HEADS)
                self.assertLess(max(window.first_page), -(-window.tokens // PAGE))
                self.assertEqual(sum(window.first_page), window.acp.pages_evicted)
                self.assertLessEqual(window.acp.max_log_evicted_mass, window.acp.log_tolerance)
        finish = events[-1].finish
        self.assertLessEqual(windows[-1].acp.pages_evicted, finish.acp.pages_evicted)
        self.assertGreater(windows[-1].acp.pages_evicted, 0.8 * finish.acp.pages_evicted)

class PrefixCacheTest(Case):
    """The prefix cache: hits, separation of clients, and equal answers."""

    flags = None  # a server for each case, as a case would find another case's prefixes
    prompt = LONG[:4000]
    many = 700  # most of its tokens

    def serve_and_connect(self, *flags: str) -> None:
        self.serve_case("--http-port", "0", *flags)
        self.connect()

    def ask(self, prompt: str, token: str = "", **cache: Any) -> Any:
        request = self.request(
            prompt, 8, output=self.fox.Output(token_ids=True, acp_stats=True),
            cache=self.fox.Cache(**cache))
        metadata = [("authorization", f"Bearer {token}")] if token else []
        return self.stub.Generate(request, timeout=60, metadata=metadata)

    def cached(self, prompt: str, **more: Any) -> int:
        """How many of the prompt's tokens were found in the cache."""
        return self.ask(prompt, **more).completions[0].finish.usage.cached_tokens

    def test_a_following_turn_finds_the_history_and_says_the_same(self) -> None:
        self.serve_and_connect("--threads", "1")
        first = self.ask(self.prompt).completions[0]
        self.assertEqual(first.finish.usage.cached_tokens, 0)
        turn = self.prompt + first.text + " And then"
        second = self.ask(turn).completions[0].finish
        self.assertGreater(second.usage.cached_tokens, first.finish.usage.prompt_tokens - PAGE)
        self.assertEqual(second.usage.cached_tokens % PAGE, 0)
        again = self.ask(turn, bypass_prefix_cache=True).completions[0].finish
        self.assertEqual(again.usage.cached_tokens, 0)
        self.assertEqual(again.acp.pages_allocated, second.acp.pages_allocated)
        usage = json.loads(self.post(prompt=self.prompt, max_tokens=3))["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], self.many)

    def test_owners_of_tokens_never_share(self) -> None:
        first, second = "first-token-0123456789", "second-token-0123456789"
        keys = self.enterContext(tempfile.NamedTemporaryFile("w", suffix=".keys"))
        keys.write(f"{first}\n{second}\n")
        keys.flush()
        self.serve_and_connect("--api-key-file", keys.name)
        self.ask(self.prompt, token=first)
        self.assertEqual(self.cached(self.prompt, token=second), 0)
        self.assertEqual(self.cached(self.prompt, token=second, cache_salt="x"), 0)
        self.assertGreater(self.cached(self.prompt, token=first), self.many)

    def test_a_flush_leaves_nothing(self) -> None:
        self.serve_and_connect()
        admin, admin_grpc = self.grpc.protos_and_services("fox/v1/admin.proto")
        info, info_grpc = self.grpc.protos_and_services("fox/v1/info.proto")
        self.ask(self.prompt)

        def load() -> Any:
            return info_grpc.InfoStub(self.channel).GetLoad(info.GetLoadRequest(), timeout=60)

        self.assertTrue(wait_until(lambda: load().kept_pages == 0))
        self.assertGreater(load().snapshots, 0)
        self.assertEqual(load().free_pages + load().snapshot_pages, load().num_pages)
        flushed = admin_grpc.AdminStub(self.channel).FlushCache(admin.FlushCacheRequest(),
                                                                timeout=60)
        self.assertGreater(flushed.snapshots, 0)
        self.assertTrue(wait_until(lambda: load().free_pages == load().num_pages))
        self.assertEqual(load().snapshots, 0)
        self.assertEqual(self.cached(self.prompt), 0)

class PrivacyTest(Case):
    """Requests with a secret succeed, fail and are cut off beside another client's requests, at log
    level debug."""

    flags = ("--log-level", "debug", "--log-format", "json")
    secret, seconds = "QX7-canary-ZJ9", 4.0

    def secret_calls(self, channel: Any) -> list[Any]:
        """Functions that each make one call and return its answer or raise RpcError."""
        inference, fox = self.fox_grpc.InferenceStub(channel), self.fox
        tokens, tokens_grpc = self.grpc.protos_and_services("fox/v1/tokenizer.proto")
        tokenizer, secret = tokens_grpc.TokenizerStub(channel), self.secret

        def generate(timeout: float = 20, metadata: Any = None, **fields: Any) -> Any:
            return inference.Generate(fox.GenerateRequest(**{
                "text": f"{secret} said", "stopping": fox.Stopping(max_tokens=2), **fields}),
                timeout=timeout, metadata=metadata)

        def raw(path: str, message: bytes) -> Any:
            return channel.unary_unary(path)(message, timeout=20)

        def cancelled() -> None:
            stream = inference.GenerateStream(self.request(f"{secret} said", 500), timeout=20)
            next(stream)
            stream.cancel()

        return [
            generate,
            lambda: list(inference.GenerateStream(self.request(f"{secret} said", 2), timeout=20)),
            lambda: generate(timeout=0.001),
            lambda: generate(model=secret),
            lambda: generate(stopping=fox.Stopping(stop=[f"{secret}{i}" for i in range(100)])),
            lambda: generate(stopping=fox.Stopping(stop=[1000 * secret])),
            lambda: generate(text=20000 * secret),
            lambda: generate(metadata=[("authorization", f"Bearer {secret}"), ("x-note", secret),
                                       ("traceparent", secret)]),
            lambda: inference.Score(fox.ScoreRequest(text=secret), timeout=20),
            lambda: tokenizer.Tokenize(tokens.TokenizeRequest(text=secret), timeout=20),
            lambda: raw("/fox.v1.Inference/Generate", b"\x1a\x20" + secret.encode() + b"\xff"),
            lambda: raw(f"/fox.v1.Inference/{secret}", secret.encode()),
            cancelled,
        ]

    def test_nothing_of_a_request_is_seen_elsewhere(self) -> None:
        self.connect()
        own = self.enterContext(self.grpc.insecure_channel(
            self.server.target, [("grpc.use_local_subchannel_pool", 1)]))
        request = self.request(PROMPT, 6)
        alone = self.stub.Generate(request, timeout=20).completions[0].text
        texts, seen, end = [], [], time.monotonic() + self.seconds

        def neighbour() -> None:
            while time.monotonic() < end:  # whole rounds; a slow machine runs one
                for call in self.secret_calls(own):
                    try:
                        call()
                        seen.append(("OK", ""))
                    except self.grpc.RpcError as error:
                        seen.append((error.code().name, error.details()))

        other = threading.Thread(target=neighbour)
        other.start()
        while other.is_alive():
            answer = self.stub.Generate(request, timeout=20)
            texts.append(answer.completions[0].text)
            self.assertNotIn(self.secret, str(answer))
        other.join()
        self.assertEqual(set(texts), {alone})
        self.assertLessEqual({"OK", "NOT_FOUND", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED",
                              "UNIMPLEMENTED"}, {code for code, _ in seen})
        for _, details in seen:  # errors are short and name no paths, addresses or pointers
            self.assertLessEqual(len(details), 1024, details)
            self.assertNotRegex(details, r"/\w+/|0x[0-9a-f]{6}|\d+\.\d+\.\d+\.\d+")
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        self.assertTrue(self.server.logged("request finished"))
        for line in self.server.log:
            self.assertNotIn(self.secret, line)


if __name__ == "__main__":
    fox_server.main("grpc", "grpc_tools")
