#!/usr/bin/env python3
"""docker/haproxy.cfg in front of a fox-server on the demo model: during the attacks of
http2_attacks.py neither process grows, and a polite client does not notice them.

    proxy_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time

import fox_server
import http2_attacks as attacks
from fox_server import INSTRUMENTED, ROOT, free_port, wait_until

CONFIGURATION = ROOT / "docker" / "haproxy.cfg"


class Proxy:
    """HAProxy on a free port with docker/haproxy.cfg, in which `words` are replaced."""

    def __init__(self, target: str, words: dict[str, str]) -> None:
        text = CONFIGURATION.read_text()
        for old, new in words.items():
            assert old in text, old
            text = text.replace(old, new)
        self.address = ("127.0.0.1", free_port())
        self._file = tempfile.NamedTemporaryFile("w", suffix=".cfg")
        self._file.write(text)
        self._file.flush()
        self._environment = {**os.environ, "FOX_SERVER": target,
                             "FOX_PROXY_BIND": "%s:%d" % self.address}

    def __enter__(self) -> Proxy:
        self._process = subprocess.Popen(["haproxy", "-db", "-f", self._file.name],
                                         env=self._environment, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)
        self.pid = self._process.pid
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._file.close()


class ProxyTest(fox_server.Case):
    """One server and one proxy for all cases. The server takes a client's name from the proxy, as
    haproxy.cfg asks: by connection alone, a polite client would share the attackers' limit."""

    flags = ("--client-metadata", "x-fox-client")

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.server_pid = cls.server.process.pid
        cls.proxy = cls.enterClassContext(Proxy(cls.server.target, {
            "timeout http-request 10s": "timeout http-request 1s",
            "timeout client 1m": "timeout client 1s"}))
        cls.target = "%s:%d" % cls.proxy.address
        assert wait_until(lambda: attacks.is_serving(cls.proxy.address, 1))

    def attack(self, attack, size: int) -> tuple:
        """Runs one attack; checks that no process grows and that no other client notices it."""
        before = attacks.resident_mib(self.server_pid)
        did = attacks.measure(self.proxy.address, self.proxy.pid, attack, size)
        self.assertEqual(did["errors"], 0, did)
        self.assertLess(did["p99_ms"], 500, did)
        self.assertLess(did["peak_mib"], 16, did)
        if not INSTRUMENTED:
            self.assertLess(attacks.resident_mib(self.server_pid) - before, 48, did)
        self.assertTrue(attacks.is_serving(self.proxy.address, 1), did)
        return did["result"]

    def test_rapid_resets(self) -> None:
        self.attack(attacks.rapid_reset, 20000)

    def test_headers_without_end(self) -> None:
        sent, end = self.attack(attacks.continuation_flood, 100)
        self.assertLess(sent, 32 << 20)
        self.assertNotEqual(end, "open")

    def test_streams_that_are_opened_and_left(self) -> None:
        self.attack(attacks.many_streams, 5000)

    def test_floods_of_connections(self) -> None:
        closed, seconds = self.attack(attacks.half_handshakes, 100)
        self.assertEqual(closed, 100, seconds)
        self.attack(attacks.connections, 1500)

    def test_a_silent_stream_is_not_cut(self) -> None:
        """The server is stopped for longer than the proxy's timeout of silent clients."""
        with subprocess.Popen(
                [str(self.programs / "fox-cli"), "generate", "Once", "--target", self.target,
                 "--max-tokens", "300", "--ignore-eos"], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stderr is not None
            first = process.stdout.read(1)
            os.kill(self.server_pid, signal.SIGSTOP)
            time.sleep(2)
            os.kill(self.server_pid, signal.SIGCONT)
            rest, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertGreater(len(first + rest), 300)

    def test_admin_is_not_offered(self) -> None:
        with attacks.Connection(self.proxy.address) as connection:
            connection.send_call("/fox.v1.Admin/Drain")
            while True:
                kind, flags, _, payload = connection.read()
                if kind == attacks.HEADERS:
                    break
        self.assertIn(b"12", payload)  # UNIMPLEMENTED, in a header without compression
        self.assertTrue(flags & attacks.END_STREAM)
        self.assertEqual(self.cli("health", target=self.target).stdout, "SERVING\n")

    def test_without_a_server_calls_are_unavailable(self) -> None:
        with Proxy("127.0.0.1:1", {}) as alone:
            target = "%s:%d" % alone.address

            def is_refused() -> bool:
                said = self.cli("health", target=target).stderr
                return "UNAVAILABLE" in said and "503" in said

            self.assertTrue(wait_until(is_refused))


if __name__ == "__main__":
    fox_server.main("haproxy")
