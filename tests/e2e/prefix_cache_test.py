#!/usr/bin/env python3
"""The prefix cache of the real server: what it saves, what shares it, and that it changes nothing.

    prefix_cache_test.py BIN     the folder of fox-server and fox-cli

Skipped, and it says so, without grpcio.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
import tempfile
import unittest
import urllib.request
from typing import Any

from fox_server import MODEL, ROOT, SKIPPED, FoxServer, wait_until

sys.path.insert(0, str(ROOT / "proto"))

LONG = (MODEL / "prompt_long.txt").read_text()[:12000]
PAGE = 64


class PrefixCacheTest(unittest.TestCase):
    """A server for each case: what one leaves another would find."""

    programs = pathlib.Path()

    def setUp(self) -> None:
        import grpc
        self.grpc = grpc
        self.fox, self.fox_grpc = grpc.protos_and_services("fox/v1/inference.proto")

    def serve(self, *flags: str) -> None:
        """The server of this case."""
        self.server = self.enterContext(FoxServer(self.programs, ["--http-port", "0", *flags]))
        self.channel = self.enterContext(self.grpc.insecure_channel(self.server.target))
        self.stub = self.fox_grpc.InferenceStub(self.channel)

    def ask(self, prompt: str, token: str = "", n: int = 1, **cache: Any) -> Any:
        """The answer to a prompt."""
        request = self.fox.GenerateRequest(
            text=prompt, stopping=self.fox.Stopping(max_tokens=8, ignore_eos=True),
            sampling=self.fox.Sampling(temperature=0, n=n),
            output=self.fox.Output(token_ids=True, acp_stats=True), cache=self.fox.Cache(**cache))
        metadata = [("authorization", f"Bearer {token}")] if token else []
        return self.stub.Generate(request, timeout=60, metadata=metadata)

    def cached(self, prompt: str, **more: Any) -> int:
        """How many of its tokens were found."""
        return self.usage(self.ask(prompt, **more)).cached_tokens

    @staticmethod
    def usage(answer: Any) -> Any:
        """Of its first completion."""
        return answer.completions[0].finish.usage

    def test_a_following_turn_finds_the_history_and_says_the_same(self) -> None:
        self.serve("--threads", "1")
        first = self.ask(LONG)
        self.assertEqual(self.usage(first).cached_tokens, 0)
        history = LONG + first.completions[0].text
        second = self.ask(history + " And then", token="")
        self.assertGreater(self.usage(second).cached_tokens,
                           self.usage(first).prompt_tokens - PAGE)
        self.assertEqual(self.usage(second).cached_tokens % PAGE, 0)
        again = self.ask(history + " And then", bypass_prefix_cache=True)
        self.assertEqual(self.usage(again).cached_tokens, 0)
        self.assertEqual(again.completions[0].finish.acp.pages_allocated,
                         second.completions[0].finish.acp.pages_allocated)
        body = json.dumps({"prompt": LONG, "max_tokens": 3}).encode()
        with urllib.request.urlopen(urllib.request.Request(
                self.server.http_url + "/v1/completions", body,
                {"Content-Type": "application/json"}), timeout=60) as answer:
            usage = json.load(answer)["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 1000)

    def test_salts_never_share(self) -> None:
        self.serve()
        self.ask(LONG, cache_salt="one")
        self.assertEqual(self.cached(LONG, cache_salt="two"), 0)
        self.assertEqual(self.cached(LONG), 0)
        self.assertGreater(self.cached(LONG, cache_salt="one"), 1000)

    def test_owners_of_tokens_never_share(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("first-token-0123456789\nsecond-token-0123456789\n")
            keys.flush()
            self.serve("--api-key-file", keys.name)
            first, second = "first-token-0123456789", "second-token-0123456789"
            self.ask(LONG, token=first)
            self.assertEqual(self.cached(LONG, token=second), 0)
            self.assertEqual(self.cached(LONG, token=second, cache_salt="x"), 0)
            self.assertGreater(self.cached(LONG, token=first), 1000)

    def test_a_flush_leaves_nothing(self) -> None:
        self.serve()
        admin, admin_grpc = self.grpc.protos_and_services("fox/v1/admin.proto")
        info, info_grpc = self.grpc.protos_and_services("fox/v1/info.proto")
        self.ask(LONG)

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
        self.assertEqual(self.cached(LONG), 0)

    def test_without_a_share_there_is_none(self) -> None:
        self.serve("--prefix-cache-share", "0")
        self.ask(LONG)
        self.assertEqual(self.cached(LONG), 0)


if __name__ == "__main__":
    PrefixCacheTest.programs = pathlib.Path(sys.argv.pop(1))
    if importlib.util.find_spec("grpc_tools") is None:
        print(f"SKIPPED: {sys.executable} lacks grpc_tools (pip: grpcio-tools); `./run test` "
              "installs it")
        sys.exit(SKIPPED)
    unittest.main()
