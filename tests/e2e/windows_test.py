#!/usr/bin/env python3
"""What each head keeps, streamed beside an answer: by gRPC and by HTTP.

    windows_test.py BIN     the folder of fox-server and fox-cli

Skipped, and it says so, without grpcio.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
import time
import unittest
import urllib.error
import urllib.request
from typing import Any

from fox_server import MODEL, ROOT, SKIPPED, FoxServer

sys.path.insert(0, str(ROOT / "proto"))

LONG = (MODEL / "prompt_long.txt").read_text()
HEADS, LAYERS = 6, 10


class WindowsTest(unittest.TestCase):
    """One server for all cases."""

    programs = pathlib.Path()

    @classmethod
    def setUpClass(cls) -> None:
        import grpc
        cls.fox, fox_grpc = grpc.protos_and_services("fox/v1/inference.proto")
        cls.server = cls.enterClassContext(FoxServer(
            cls.programs, ["--http-port", "0", "--prefix-cache-share", "0"]))
        channel = cls.enterClassContext(grpc.insecure_channel(cls.server.target))
        cls.stub = fox_grpc.InferenceStub(channel)

    def request(self, prompt: str, tokens: int, **output: Any) -> Any:
        """A request for so many tokens."""
        return self.fox.GenerateRequest(
            text=prompt, stopping=self.fox.Stopping(max_tokens=tokens, ignore_eos=True),
            output=self.fox.Output(**output))

    def post(self, **body: Any) -> bytes:
        """The answer to POST /v1/completions."""
        with urllib.request.urlopen(urllib.request.Request(
                self.server.http_url + "/v1/completions", json.dumps(body).encode(),
                {"Content-Type": "application/json"}), timeout=60) as response:
            return response.read()

    def test_they_come_with_the_prompt_and_with_the_answer(self) -> None:
        began = time.monotonic()
        events = list(self.stub.GenerateStream(
            self.request(LONG, 100, acp_windows=True, acp_stats=True), timeout=60))
        seconds = time.monotonic() - began
        windows = [event.windows for event in events if event.WhichOneof("event") == "windows"]
        self.assertGreater(len(windows), 3)
        self.assertLessEqual(len(windows), 10 * seconds + 2)
        first_delta = next(i for i, event in enumerate(events) if event.HasField("delta"))
        self.assertTrue(any(event.HasField("windows") for event in events[:first_delta]))
        tokens = [window.tokens for window in windows]
        self.assertEqual(tokens, sorted(set(tokens)))
        for window in windows:
            self.assertEqual((window.layers, window.kv_heads, window.page_size),
                             (LAYERS, HEADS, 64))
            self.assertGreaterEqual(window.page_bytes, 2 * 64 * 64 * 2)
            self.assertEqual(len(window.first_page), LAYERS * HEADS)
            self.assertLess(max(window.first_page), -(-window.tokens // 64))
            self.assertEqual(sum(window.first_page), window.acp.pages_evicted)
            self.assertLessEqual(window.acp.max_log_evicted_mass, window.acp.log_tolerance)
        finish = events[-1].finish
        self.assertLessEqual(windows[-1].acp.pages_evicted, finish.acp.pages_evicted)
        self.assertGreater(windows[-1].acp.pages_evicted, 0.8 * finish.acp.pages_evicted)

    def test_each_sequence_has_its_own(self) -> None:
        request = self.request("Once", 300, acp_windows=True)
        request.sampling.n = 2
        indices = {event.windows.index
                   for event in self.stub.GenerateStream(request, timeout=60)
                   if event.WhichOneof("event") == "windows"}
        self.assertEqual(indices, {0, 1})

    def test_who_does_not_ask_gets_none(self) -> None:
        kinds = {event.WhichOneof("event")
                 for event in self.stub.GenerateStream(self.request("Once", 100), timeout=60)}
        self.assertEqual(kinds, {"prompt", "delta", "finish"})
        self.assertNotIn(b"fox.windows", self.post(prompt="Once", max_tokens=50, stream=True))

    def test_only_streams_have_them(self) -> None:
        import grpc
        with self.assertRaises(grpc.RpcError) as refused:
            self.stub.Generate(self.request("Once", 3, acp_windows=True), timeout=60)
        self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(refused.exception.details(), "output.acp_windows: only in a stream")
        with self.assertRaises(urllib.error.HTTPError) as answered:
            self.post(prompt="Once", max_tokens=3, acp_windows=True)
        self.assertEqual(answered.exception.code, 400)
        self.assertIn(b"acp_windows", answered.exception.read())

    def test_over_http_they_are_events_of_their_own(self) -> None:
        body = self.post(prompt=LONG, max_tokens=20, stream=True, acp_windows=True)
        events = [json.loads(line[6:]) for line in body.split(b"\n\n")
                  if line.startswith(b"data: {")]
        windows = [event for event in events if event.get("object") == "fox.windows"]
        self.assertGreater(len(windows), 3)
        self.assertEqual(len(windows[-1]["first_page"]), LAYERS * HEADS)
        text = "".join(event["choices"][0]["text"] for event in events
                       if event["object"] == "text_completion")
        self.assertGreater(len(text), 10)


if __name__ == "__main__":
    WindowsTest.programs = pathlib.Path(sys.argv.pop(1))
    if importlib.util.find_spec("grpc_tools") is None:
        print(f"SKIPPED: {sys.executable} lacks grpc_tools (pip: grpcio-tools); `./run test` "
              "installs it")
        sys.exit(SKIPPED)
    unittest.main()
