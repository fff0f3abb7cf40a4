#!/usr/bin/env python3
"""What one client sends shows up nowhere else: requests that hold a secret succeed, fail and are
cut off beside those of another client, at the most talkative level of the log. Skipped, and it says
so, without grpcio.

    privacy_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import importlib.util
import pathlib
import signal
import sys
import threading
import time
import unittest
from typing import Any

from fox_server import ROOT, SKIPPED, FoxServer

sys.path.insert(0, str(ROOT / "proto"))

SECONDS = 4.0
SECRET = "QX7-canary-ZJ9"
PROMPT = "Once upon a time"


def secret_calls(channel: Any) -> list[Any]:
    """Each a function that makes one call and returns its answer or raises grpc.RpcError."""
    inference = inference_grpc.InferenceStub(channel)
    tokenizer = tokenizer_grpc.TokenizerStub(channel)

    def request(**fields: Any) -> Any:
        return inference_pb.GenerateRequest(
            **{"text": f"{SECRET} said", "stopping": inference_pb.Stopping(max_tokens=2), **fields})

    def raw(path: str, message: bytes) -> Any:
        return channel.unary_unary(path)(message, timeout=20)

    def cancelled() -> None:
        stream = inference.GenerateStream(
            request(stopping=inference_pb.Stopping(max_tokens=500, ignore_eos=True)), timeout=20)
        next(stream)
        stream.cancel()

    stops = [f"{SECRET}{i}" for i in range(100)]
    return [
        lambda: inference.Generate(request(), timeout=20),
        lambda: list(inference.GenerateStream(request(), timeout=20)),
        lambda: inference.Generate(request(), timeout=0.001),
        lambda: inference.Generate(request(model=SECRET), timeout=20),
        lambda: inference.Generate(
            request(stopping=inference_pb.Stopping(stop=stops)), timeout=20),
        lambda: inference.Generate(
            request(stopping=inference_pb.Stopping(stop=[1000 * SECRET])), timeout=20),
        lambda: inference.Generate(request(text=20000 * SECRET), timeout=20),
        lambda: inference.Generate(request(), timeout=20, metadata=[
            ("authorization", f"Bearer {SECRET}"), ("x-note", SECRET), ("traceparent", SECRET)]),
        lambda: inference.Score(inference_pb.ScoreRequest(text=SECRET), timeout=20),
        lambda: tokenizer.Tokenize(tokenizer_pb.TokenizeRequest(text=SECRET), timeout=20),
        lambda: raw("/fox.v1.Inference/Generate", b"\x1a\x20" + SECRET.encode() + b"\xff"),
        lambda: raw(f"/fox.v1.Inference/{SECRET}", SECRET.encode()),
        cancelled,
    ]


class PrivacyTest(unittest.TestCase):
    """One server, two clients."""

    programs = pathlib.Path()

    def test_nothing_of_a_request_is_seen_elsewhere(self) -> None:
        server = self.enterContext(FoxServer(
            self.programs, ["--log-level", "debug", "--log-format", "json"]))
        alone_on_it = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(server.target) as mine, \
                grpc.insecure_channel(server.target, alone_on_it) as own:
            stub = inference_grpc.InferenceStub(mine)
            request = inference_pb.GenerateRequest(
                text=PROMPT, sampling=inference_pb.Sampling(temperature=0),
                stopping=inference_pb.Stopping(max_tokens=6))
            alone = stub.Generate(request, timeout=20).completions[0].text
            texts, seen, end = [], [], time.monotonic() + SECONDS

            def neighbour() -> None:
                while time.monotonic() < end:  # whole rounds: a slow machine makes one
                    for call in secret_calls(own):
                        try:
                            call()
                            seen.append(("OK", ""))
                        except grpc.RpcError as error:
                            seen.append((error.code().name, error.details()))

            other = threading.Thread(target=neighbour)
            other.start()
            while other.is_alive():
                answer = stub.Generate(request, timeout=20)
                texts.append(answer.completions[0].text)
                self.assertNotIn(SECRET, str(answer))
            other.join()
        self.assertEqual(set(texts), {alone})
        self.assertLessEqual({"OK", "NOT_FOUND", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED",
                              "UNIMPLEMENTED"}, {code for code, _ in seen})
        for _, details in seen:  # nothing of the machine, and not much at all
            self.assertLessEqual(len(details), 1024)
            self.assertNotRegex(details, r"/\w+/|0x[0-9a-f]{6}|\d+\.\d+\.\d+\.\d+")
        self.assertEqual(server.end(signal.SIGTERM), 0)
        self.assertTrue(server.logged("request finished"))
        for line in server.log:
            self.assertNotIn(SECRET, line)


if __name__ == "__main__":
    PrivacyTest.programs = pathlib.Path(sys.argv.pop(1))
    if any(importlib.util.find_spec(name) is None for name in ("grpc", "grpc_tools")):
        print(f"SKIPPED: {sys.executable} lacks grpcio or grpcio-tools; `./run test` installs them")
        sys.exit(SKIPPED)
    import grpc
    inference_pb, inference_grpc = grpc.protos_and_services("fox/v1/inference.proto")
    tokenizer_pb, tokenizer_grpc = grpc.protos_and_services("fox/v1/tokenizer.proto")
    unittest.main()
