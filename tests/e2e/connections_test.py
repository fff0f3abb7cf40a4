#!/usr/bin/env python3
"""Connections to a fox-server with few descriptors, names of hosts, a port that is taken, and the
memory of calls that are not read.

    connections_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import pathlib
import socket
import tempfile
import time
import unittest
import urllib.request
from collections.abc import Iterator

import fox_server
import http2_attacks as attacks
from fox_server import INSTRUMENTED, SLOWNESS, demo, wait_until


def answers(url: str) -> bool:
    """True if a GET is answered within a second."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


@contextlib.contextmanager
def flood(target: str) -> Iterator[None]:
    """Opens twice as many connections as there are descriptors and holds them."""
    host, port = target.rsplit(":", 1)
    with contextlib.ExitStack() as stack:
        for _ in range(2 * ConnectionsTest.descriptors):
            stack.enter_context(socket.create_connection((host, int(port)), 5))
        yield


class ConnectionsTest(fox_server.Case):
    """Servers with a low limit of descriptors."""

    descriptors = 200

    def measure(self, attack, size: int):
        """Runs an attack on the server by http2_attacks.measure."""
        return attacks.measure(self.server.address, self.server.process.pid, attack, size)

    def test_a_flood_of_connections(self) -> None:
        """Existing clients are served during the flood, new ones within a second of its end."""
        for _ in range(2):
            did = self.measure(attacks.connections, 3 * self.descriptors)
            self.assertEqual(did["errors"], 0, did)
            held, text = did["result"]
            self.assertGreater(held, self.descriptors)
            self.assertLess(float(text.split()[3]), SLOWNESS, did)

    def test_a_flood_of_one_port_takes_nothing_from_the_others(self) -> None:
        server = self.serve_case("--http-port", "0", "--metrics-port", "0")
        metrics = "http://" + server.ports["Prometheus"] + "/metrics"
        is_served = {"gRPC": lambda: attacks.is_serving(server.address, 1),
                     "HTTP": lambda: answers(server.http_url + "/health"),
                     "Prometheus": lambda: answers(metrics)}
        targets = {"gRPC": server.target, **server.ports}
        for flooded in (("HTTP", "Prometheus"), ("gRPC", "Prometheus"), ("gRPC", "HTTP")):
            with contextlib.ExitStack() as stack:
                for name in flooded:
                    stack.enter_context(flood(targets[name]))
                (spared,) = targets.keys() - set(flooded)
                with self.subTest(spared):
                    # The previous case's flood has just ended.
                    self.assertTrue(wait_until(is_served[spared], 2 * SLOWNESS))

    def test_a_connection_cannot_open_streams_without_end(self) -> None:
        with attacks.Connection(self.server.address) as connection:
            self.assertEqual(connection.call(), b"\x08\x01")  # has acknowledged the settings
            fields = attacks.request_headers(attacks.GENERATE)
            with self.assertRaises(OSError):
                for _ in range(6000):
                    connection.socket.sendall(attacks.frame(
                        attacks.HEADERS, attacks.END_HEADERS, connection.next_stream(), fields))
                connection.socket.settimeout(5)
                while True:
                    if connection.read()[0] == attacks.GOAWAY:
                        raise ConnectionError("goaway")
        self.assertTrue(attacks.is_serving(self.server.address))

    def test_a_connection_that_says_nothing_for_long_is_closed(self) -> None:
        """A connection with a call that waits is kept."""
        server = self.serve_case("--max-connection-idle", "1")
        with attacks.Connection(server.address) as idle, \
                attacks.Connection(server.address) as waiting:
            self.assertEqual(idle.call(), b"\x08\x01")
            waiting.send_call("/grpc.health.v1.Health/Watch")
            with self.assertRaisesRegex(ConnectionError, "closed"):
                while True:
                    idle.read()
            self.assertEqual(waiting.call(), b"\x08\x01")

    def test_a_taken_port_is_told_before_the_model_is_loaded(self) -> None:
        port = self.server.address[1]
        empty = self.enterContext(tempfile.TemporaryDirectory())  # no model: none is loaded
        for flag, value, named in (
                ("--grpc-port", str(port), ""),
                ("--admin-address", f"127.0.0.1:{port}", "--admin-address: "),
                ("--metrics-port", str(port), "--metrics-port: ")):
            refused = self.start("--model", empty, flag, value)
            self.assertEqual((refused.returncode, refused.stderr.strip()), (
                78, f"fox-server: {named}cannot listen on 127.0.0.1, port {port}: "
                "Address already in use"))


class HostsTest(fox_server.Case):
    """Pages of a name that was made to resolve to this machine (DNS rebinding)."""

    flags = None

    def status(self, port: str, name: str, path: str) -> int:
        """The status of a GET whose Host header has that name."""
        host, number = self.server.ports[port].rsplit(":", 1)
        with contextlib.closing(http.client.HTTPConnection(host, int(number), timeout=20)) as one:
            one.request("GET", path, headers={"Host": f"{name}:{number}"})
            return one.getresponse().status

    def test_only_names_of_the_list_and_of_this_machine_are_served(self) -> None:
        everywhere = ("--host", "0.0.0.0", "--allow-insecure-remote", "--metrics-host", "0.0.0.0")
        for flags, names in (
                ((), {"evil.example": 403, "localhost": 200, "127.0.0.1": 200}),
                ((*everywhere, "--allowed-hosts", "localhost"),
                 {"evil.example": 403, "localhost": 200, "127.0.0.1": 200}),
                ((*everywhere, "--allowed-hosts", "fox.example, Other"),
                 {"evil.example": 403, "fox.example": 200, "FOX.example": 200, "other": 200,
                  "localhost": 200, "sub.fox.example": 403}),
                ((*everywhere, "--allowed-hosts", "*"), {"evil.example": 200}),
                (everywhere, {"evil.example": 200})):
            self.serve_case("--http-port", "0", "--metrics-port", "0", *flags)
            for name, status in names.items():
                for port, path in (("HTTP", "/health"), ("Prometheus", "/metrics")):
                    with self.subTest(flags=flags, name=name, port=port):
                        self.assertEqual(self.status(port, name, path), status)


@unittest.skipIf(INSTRUMENTED, "SKIPPED: not the memory of the program")
class MemoryTest(fox_server.Case):
    """Servers whose memory is measured."""

    flags = None

    def test_health_checks_that_take_no_answer(self) -> None:
        """Such checks need no token and end soon; checks of others are answered meanwhile."""
        tokens = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "tokens"
        tokens.write_text("a-token-of-a-client\n")
        server = self.serve_case("--api-key-file", str(tokens))

        def both(address, count: int) -> int:
            with concurrent.futures.ThreadPoolExecutor() as pool:
                return sum(pool.map(lambda attack: attack(address, count),
                                    (attacks.unread_checks, attacks.unsent_checks)))

        did = attacks.measure(server.address, server.process.pid, both, 8000)
        self.assertEqual((did["result"], did["errors"]), (16000, 0), did)
        self.assertLess(did["peak_mib"], 100, did)

    def open_requests(self) -> int:
        """The number of running and waiting requests."""
        load = demo.read_messages(self.cli("info").stdout)[-1]
        return int(load["running"]) + int(load["waiting"])

    def test_an_open_stream_takes_little_and_ends_with_its_connection(self) -> None:
        """Many streams without a reader stay small, and end when their clients die."""
        server = self.serve_case("--max-num-queued-reqs", "4000", "--max-queue-seconds", "0",
                                 "--max-num-seqs", "4", "--kv-cache-mb", "16", "--http-port", "0")
        before = attacks.resident_mib(server.process.pid)
        request = b"\x1a\x04Once\x32\x06\x08\xa0\x8d\x06\x28\x01"  # 100,000 tokens, no eos
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                connection = stack.enter_context(attacks.Connection(server.address))
                for _ in range(500):
                    connection.send_call(attacks.GENERATE + "Stream", request)
            self.assertTrue(wait_until(lambda: self.open_requests() == 2000), self.open_requests())
            grown = attacks.resident_mib(server.process.pid) - before
        began = time.monotonic()
        self.assertTrue(wait_until(lambda: self.open_requests() == 0, 20))
        self.assertLess(time.monotonic() - began, 5 * SLOWNESS)
        self.assertLess(2**20 * grown / 2000, 32 << 10)

    def test_a_flood_of_calls_leaves_no_memory_behind(self) -> None:
        """The memory goes back to the system, though no connection has come or gone since."""
        server = self.serve_case()
        pid = server.process.pid
        before = attacks.resident_mib(pid)
        with attacks.Connection(server.address) as connection:
            did = attacks.measure(server.address, pid, attacks.many_streams, 4000)
            self.assertGreater(did["peak_mib"], 50, did)
            self.assertEqual(connection.call(), b"\x08\x01")
            self.assertTrue(wait_until(lambda: attacks.resident_mib(pid) < before + 30), did)


if __name__ == "__main__":
    fox_server.main()
