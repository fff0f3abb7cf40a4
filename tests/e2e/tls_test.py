#!/usr/bin/env python3
"""TLS of a fox-server on the demo model, on its gRPC and its HTTP port: clients' certificates,
failed and slow handshakes, wrong files at the start, and replaced certificates.

    tls_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import pathlib
import select
import shutil
import socket
import ssl
import tempfile
import time
import unittest
from typing import Any

import certificates
import fox_server
import http2_attacks as attacks
from certificates import client_context, handshake
from fox_server import INSTRUMENTED, MODEL, SLOWNESS, FoxServer, demo, wait_until

HANDSHAKE_SECONDS = 10  # the server's limit of a handshake
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01"


def setUpModule() -> None:
    """Makes certificates for all cases, a server that asks clients for no certificate, and slow
    connections to it, which wait while the other cases run."""
    Case.folder = pathlib.Path(unittest.enterModuleContext(tempfile.TemporaryDirectory()))
    Case.authority = certificates.Authority(Case.folder, "authority")
    Case.stranger = certificates.Authority(Case.folder, "stranger")
    Case.own = Case.authority.issue("own")
    Case.trust = ["--ca", str(Case.authority.certificate)]
    Case.open = unittest.enterModuleContext(FoxServer(Case.programs, [
        *Case.own.server_flags(), "--http-port", "0", "--stall-timeout", "1", "--metrics-port",
        "0"]))
    # The ports by the protocol that a client may name in ALPN.
    Case.ports = {"h2": Case.open.address, "http/1.1": http_address(Case.open)}
    Case.slow = {f"{name}, {protocol}": (socket.create_connection(address), time.monotonic())
                 for name in ("silent", "half a hello", "a hello that drips", "no request")
                 for protocol, address in Case.ports.items()}
    for protocol in Case.ports:
        Case.slow[f"half a hello, {protocol}"][0].sendall(HALF_A_HELLO)
        plain, begin = Case.slow[f"no request, {protocol}"]
        Case.slow[f"no request, {protocol}"] = (client_context(
            Case.authority, (protocol,)).wrap_socket(plain, server_hostname="127.0.0.1"), begin)


class Case(fox_server.Case):
    """A case with the certificates and the server `open`, which asks clients for none."""

    flags = None

    def https(self, server: FoxServer, authority: certificates.Pair | None = None,
              client: certificates.Pair | None = None) -> int:
        """The status of /v1/models; raises OSError if there is no answer."""
        context = client_context(authority or self.authority, ("http/1.1",))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        connection = http.client.HTTPSConnection(*http_address(server), timeout=10,
                                                 context=context)
        self.addCleanup(connection.close)
        connection.request("GET", "/v1/models")
        return connection.getresponse().status

    def said(self, server: FoxServer, *arguments: str, target: str = "",
             command: str = "health") -> str:
        """The output of fox-cli: by default SERVING or an error."""
        done = self.cli(command, "--timeout", "5", *arguments, target=target or server.target)
        return (done.stdout + done.stderr).strip()

    def assert_unavailable(self, said: str) -> None:
        """Checks that the output is UNAVAILABLE, gRPC's error of a failed handshake."""
        self.assertTrue(said.startswith("fox-cli: UNAVAILABLE: "), said)


def http_address(server: FoxServer) -> tuple[str, int]:
    """Host and port of the HTTP port."""
    host, port = server.ports["HTTP"].rsplit(":", 1)
    return host, int(port)


class HandshakeTest(Case):
    """Handshakes with the server that asks clients for no certificate."""

    def test_a_client_that_trusts_the_authority_is_served(self) -> None:
        self.assertEqual(self.said(self.open, *self.trust), "SERVING")
        by_name = f"localhost:{self.open.address[1]}"
        self.assertEqual(self.said(self.open, *self.trust, target=by_name), "SERVING")
        self.assertRegex(
            self.said(self.open, *self.trust, "Once", command="tokenize"), r"^\d+(,\d+)*$")
        self.assertEqual(self.https(self.open), 200)

    def test_a_client_refuses_a_server_that_is_not_known(self) -> None:
        self.assert_unavailable(self.said(self.open, "--ca", str(self.stranger.certificate)))
        self.assert_unavailable(self.said(self.open, *self.trust, "--server-name", "other"))
        with self.assertRaisesRegex(ssl.SSLError, "CERTIFICATE_VERIFY_FAILED"):
            self.https(self.open, self.stranger)

    def test_plain_text_is_not_spoken(self) -> None:
        self.assert_unavailable(self.said(self.open))
        for said in (attacks.PREFACE, b"GET / HTTP/1.1\r\n\r\n", bytes(64)):
            with socket.create_connection(self.open.address, 5) as plain:
                plain.sendall(said)
                answer = b"".join(iter(lambda: plain.recv(4096), b""))
            self.assertNotIn(b"HTTP", answer, said)

    def test_plain_text_on_the_http_port_is_refused_or_closed(self) -> None:
        for said, told in ((b"GET /health HTTP/1.1\r\n\r\n", True), (b"GARBAGE\r\n\r\n", False),
                           (attacks.PREFACE, False), (bytes(64), False)):
            with socket.create_connection(self.ports["http/1.1"], 5) as plain:
                plain.sendall(said)
                answer = b""
                with contextlib.suppress(ConnectionError):
                    while more := plain.recv(4096):
                        answer += more
            self.assertEqual(answer.startswith(b"HTTP/1.1 400 "), told, said)
            self.assertEqual(b"https://" in answer, told, said)

    def test_only_new_versions_are_spoken(self) -> None:
        for protocol, address in self.ports.items():
            said = {}
            for version in ("TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3"):
                context = client_context(self.authority, (protocol,), ssl.TLSVersion[version])
                try:
                    said[version] = handshake(address, context)
                except OSError as error:
                    said[version] = str(error)
            for version in ("TLSv1", "TLSv1_1"):  # refused by the server, not by the client
                self.assertRegex(said[version], "EOF occurred|ALERT_PROTOCOL_VERSION", protocol)
            self.assertEqual((said["TLSv1_2"], said["TLSv1_3"]), ("TLSv1.2", "TLSv1.3"), protocol)

    def test_each_port_speaks_its_protocol(self) -> None:
        with self.assertRaisesRegex(ssl.SSLError, "no application protocol"):
            handshake(self.ports["http/1.1"], client_context(self.authority, ("h2",)))
        for protocols in ((), ("h2", "http/1.1")):
            handshake(self.ports["http/1.1"], client_context(self.authority, protocols))
        for protocols in ((), ("http/1.1",)):
            with self.assertRaises(OSError, msg=protocols):
                context = client_context(self.authority, protocols)
                with socket.create_connection(self.open.address, 5) as plain, \
                        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                    secure.sendall(attacks.PREFACE + attacks.frame(attacks.SETTINGS, 0, 0))
                    if secure.recv(1) == b"":
                        raise ConnectionError("closed")

    @unittest.skipIf(INSTRUMENTED, "SKIPPED: not the memory of the program")
    def test_handshakes_leave_no_memory_behind(self) -> None:
        """An open handshake takes 70 kB, and the heap has several arenas."""
        pid = self.open.process.pid
        before = attacks.resident_mib(pid)
        for address in 2 * list(self.ports.values()):
            hanging = [socket.create_connection(address) for _ in range(700)]
            for one in hanging:
                one.sendall(HALF_A_HELLO)
            self.assertEqual(self.said(self.open, *self.trust), "SERVING", address)
            for one in hanging:
                one.close()
        self.assertTrue(wait_until(lambda: attacks.resident_mib(pid) < before + 30),
                        attacks.resident_mib(pid))

    def test_others_are_served_beside_handshakes_that_hang(self) -> None:
        hanging = [socket.create_connection(address) for address in self.ports.values()
                   for _ in range(300)]
        for one in hanging:
            one.sendall(HALF_A_HELLO)
        begin = time.monotonic()
        self.assertEqual(self.said(self.open, *self.trust), "SERVING")
        self.assertEqual(self.https(self.open), 200)
        self.assertLess(time.monotonic() - begin, 2 * SLOWNESS)
        for one in hanging:
            one.close()



@unittest.skipIf(importlib.util.find_spec("tlslite") is None, "SKIPPED: needs tlslite-ng")
class RecordsTest(Case):
    """Records without data on the HTTP port: a client may send 32 of them in a row, as in BoringSSL
    and rustls."""

    limit = 32
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def connect(self, version: tuple[int, int], protocol: str = "http/1.1") -> Any:
        """A client of tlslite, which sends any record, with that version of TLS."""
        from tlslite.api import HandshakeSettings, TLSConnection  # noqa: PLC0415
        settings = HandshakeSettings()
        settings.minVersion = settings.maxVersion = version
        client = TLSConnection(self.enterContext(
            socket.create_connection(self.ports[protocol], 10)))
        client.handshakeClientCert(settings=settings, alpn=[protocol.encode()])
        return client

    def test_changes_of_the_key(self) -> None:
        from tlslite.errors import TLSAbruptCloseError  # noqa: PLC0415
        for asks_for_another in (False, True):
            client = self.connect((3, 4))
            for count in (*3 * [self.limit - 1], self.limit + 1):  # data resets the count
                with self.subTest(asks_for_another=asks_for_another, count=count):
                    said = b""
                    with contextlib.suppress(OSError, TLSAbruptCloseError):
                        client.write(self.request[:20])
                        for _ in range(count):
                            for _ in client.send_keyupdate_request(int(asks_for_another)):
                                pass
                        client.write(self.request[20:])
                        said = client.read(max=1 << 16, min=1)
                    self.assertEqual(said.startswith(b"HTTP/1.1 200 "), count < self.limit)

    def wish(self, client: Any, count: int) -> None:
        """Sends hellos, with which a client would let the server compute again and again."""
        from tlslite.messages import ClientHello  # noqa: PLC0415
        hello = ClientHello().create((3, 3), bytearray(32), bytearray(0), [0xC02B])
        for _ in range(count):
            for _ in client._recordLayer.sendRecord(hello):
                pass

    @staticmethod
    def read_until(client: Any, kind: int, text: bytes) -> bool:
        """True if a record of that kind contains the text before the connection ends."""
        with contextlib.suppress(OSError):
            while True:
                for record in client._recordLayer.recvRecord():
                    if isinstance(record, tuple) and record[0].type == kind and (
                            text in bytes(record[1].bytes)):
                        return True
        return False

    def test_a_session_is_not_renegotiated(self) -> None:
        for protocol in self.ports:
            client = self.connect((3, 3), protocol)
            self.wish(client, 1)
            warning = b"\x01\x64"  # no_renegotiation
            self.assertTrue(self.read_until(client, 21, warning), protocol)

    def test_wishes_to_renegotiate(self) -> None:
        for count in (self.limit // 2, 2 * self.limit):
            client, answered = self.connect((3, 3)), False
            with contextlib.suppress(OSError):
                self.wish(client, count)
                client.write(self.request)
                answered = self.read_until(client, 23, b" 200 OK")  # behind the warnings
            self.assertEqual(answered, count < self.limit, count)


class CapTest(Case):
    """A server with a limit of four connections."""

    def test_handshakes_count_among_the_connections(self) -> None:
        address = http_address(self.serve_case(
            *self.own.server_flags(), "--http-port", "0", "--max-connections", "4"))

        def connect() -> socket.socket:
            client = self.enterContext(socket.create_connection(address, 5))
            client.sendall(HALF_A_HELLO)
            return client

        def is_closed(client: socket.socket) -> bool:
            client.settimeout(1)
            try:
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        hanging = [connect() for _ in range(4)]
        self.assertTrue(is_closed(connect()))
        self.assertFalse(is_closed(hanging[0]))  # the server waits for the rest of the handshake
        hanging.pop().close()
        self.assertTrue(wait_until(lambda: not is_closed(connect())))


class ClientCertificateTest(Case):
    """Servers that ask clients for certificates."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.client = cls.authority.issue("client", names="DNS:client")
        flags = [*cls.own.server_flags(), "--ssl-ca-certs", str(cls.authority.certificate)]
        cls.admin = f"127.0.0.1:{fox_server.free_port()}"
        cls.strict = cls.serve(*flags, "--http-port", "0", "--admin-address", cls.admin)
        cls.lenient = cls.serve(*flags, "--http-port", "0", "--ssl-cert-reqs", "optional")

    def test_a_client_with_a_certificate_is_served(self) -> None:
        flags = [*self.trust, *self.client.client_flags()]
        for name in ("strict", "lenient"):
            with self.subTest(name):
                server = getattr(self, name)
                self.assertEqual(self.said(server, *flags), "SERVING")
                self.assertEqual(self.https(server, client=self.client), 200)
        self.assertRegex(self.said(self.strict, *flags, target=self.admin, command="undrain"),
                         "^serving: ")

    def test_a_client_without_a_certificate_is_served_only_if_that_is_allowed(self) -> None:
        self.assert_unavailable(self.said(self.strict, *self.trust))
        self.assert_unavailable(
            self.said(self.strict, *self.trust, target=self.admin, command="undrain"))
        self.assert_unavailable(self.said(self.strict, target=self.admin, command="undrain"))
        self.assertEqual(self.said(self.lenient, *self.trust), "SERVING")
        self.assertRaises(OSError, self.https, self.strict)
        self.assertEqual(self.https(self.lenient), 200)

    def test_a_client_with_a_wrong_certificate_is_never_served(self) -> None:
        pairs = {"expired": self.authority.issue("expired", days=-1),
                 "unknown": self.stranger.issue("unknown"), "self-signed": self.stranger}
        for name, pair in pairs.items():
            for server in (self.strict, self.lenient):
                with self.subTest(name, strict=server is self.strict):
                    self.assert_unavailable(self.said(server, *self.trust, *pair.client_flags()))
                    self.assertRaises(OSError, self.https, server, client=pair)


class FilesTest(Case):
    """Wrong files are errors at the start; replaced files are used without a restart."""

    def refusal(self, *flags: str) -> str:
        """Starts a server that must refuse, and returns its line of error."""
        begin = time.monotonic()
        done = self.start("--model", str(MODEL), *flags)
        self.assertEqual((done.returncode, done.stdout), (78, ""), done.stderr)
        self.assertLess(time.monotonic() - begin, 2 * SLOWNESS)
        last = done.stderr.splitlines()[-1]
        self.assertTrue(last.startswith("fox-server: "), done.stderr)
        return last

    def test_wrong_files_refuse_the_start(self) -> None:
        text = self.folder / "text"
        text.write_text("no certificate\n")
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        locked = self.folder / "locked.key"
        certificates.openssl("ec", "-in", self.own.key, "-aes128", "-passout", "pass:secret",
                             "-out", locked)
        expired, other = self.authority.issue("old", days=-1), self.authority.issue("other")
        weak = self.authority.issue("weak", key="rsa:1024")
        own = [str(self.own.certificate), str(self.own.key)]
        cases = [
            (str(self.folder / "none"), own[1], "--ssl-certfile: .*none cannot be read: No such"),
            (own[0], str(self.folder / "none"), "--ssl-keyfile: .*none cannot be read: No such"),
            (str(text), own[1], "--ssl-certfile: .*text holds no PEM certificate"),
            (str(fifo), own[1], "--ssl-certfile: .*fifo is no regular file"),
            (str(self.folder), own[1], "--ssl-certfile: .* is no regular file"),
            (own[0], str(text), "--ssl-keyfile: .*text holds no PEM key"),
            (own[0], str(locked), "--ssl-keyfile: .*locked.key holds no PEM key, or one with a"),
            (own[0], str(other.key), "--ssl-keyfile: .*other.key is not the key of the cert"),
            (str(expired.certificate), str(expired.key), "--ssl-certfile: .*old.pem has expired"),
            (str(weak.certificate), str(weak.key), "--ssl-certfile: .*weak.pem .*key that is too"),
        ]
        for certificate, key, reason in cases:
            said = self.refusal("--ssl-certfile", certificate, "--ssl-keyfile", key)
            self.assertRegex(said, reason)
        flags = self.own.server_flags()
        self.assertRegex(self.refusal(*flags, "--ssl-ca-certs", str(text)),
                         "--ssl-ca-certs: .*text holds no PEM certificate")
        self.assertRegex(self.refusal("--api-key-file", str(self.folder / "none")),
                         "--api-key-file: .*none cannot be read")
        self.assertRegex(self.refusal("--admin-key-file", str(fifo)),
                         "--admin-key-file: .*fifo is no regular file")

    def test_replaced_files_are_used_from_the_next_connection_on(self) -> None:
        live = certificates.Pair(self.folder / "live")
        shutil.copy(self.own.certificate, live.certificate)
        shutil.copy(self.own.key, live.key)
        server = self.serve_case(*live.server_flags(), "--http-port", "0")
        context = client_context(self.authority)
        with socket.create_connection(server.address, 5) as plain, \
                context.wrap_socket(plain, server_hostname="127.0.0.1") as old:
            new = self.stranger.issue("new")
            shutil.copy(new.certificate, live.certificate)  # the key is still the old one
            time.sleep(1.1)  # the server looks at the files once a second
            self.assertEqual(self.said(server, *self.trust), "SERVING")
            self.assertTrue(server.logged("new certificate refused, the old one stays"))
            shutil.copy(new.key, live.key)
            time.sleep(1.1)
            trust_new = ["--ca", str(self.stranger.certificate)]
            self.assertEqual(self.said(server, *trust_new), "SERVING")
            self.assert_unavailable(self.said(server, *self.trust))
            self.assertEqual(self.https(server, self.stranger), 200)
            self.assertRaises(OSError, self.https, server)
            old.sendall(attacks.PREFACE + attacks.frame(attacks.SETTINGS, 0, 0))
            self.assertEqual(old.recv(9)[3], attacks.SETTINGS)  # open connections are kept


class HttpsTest(Case):
    """The HTTP port through TLS, with small and large messages."""

    def connect(self) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(*http_address(self.open), timeout=30,
                                                 context=client_context(self.authority, ()))
        self.addCleanup(connection.close)
        return connection

    @staticmethod
    def post(connection: http.client.HTTPSConnection, path: str,
             **fields: object) -> http.client.HTTPResponse:
        connection.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
        return connection.getresponse()

    def running(self, *_: str) -> int:
        """The number of running requests, asked over gRPC."""
        load = demo.read_messages(self.said(self.open, *self.trust, command="info"))[-1]
        return int(load["running"])

    def test_large_bodies_go_both_ways_on_one_connection(self) -> None:
        connection = self.connect()
        for count in (1, 3000, 300_000):
            ids = json.loads(self.post(connection, "/tokenize", prompt="a " * count).read())
            self.assertGreaterEqual(ids["count"], count)
            text = json.loads(self.post(connection, "/detokenize", tokens=ids["tokens"],
                                        skip_special_tokens=True).read())
            self.assertEqual(text["prompt"].split(), ["a"] * count, count)

    def test_a_client_that_leaves_or_stops_reading_keeps_nothing(self) -> None:
        fields = {"prompt": "Once upon a time", "max_tokens": 100_000, "ignore_eos": True,
                  "stream": True, "logprobs": 20, "n": 8}  # they fill the sockets soon
        for leaves in (True, False):
            connection = self.connect()
            answer = self.post(connection, "/v1/completions", **fields)
            answer.read(10_000)
            self.assertEqual(self.running(), 8, leaves)
            if leaves:
                answer.close()
                connection.close()
            self.assertTrue(wait_until(lambda: self.running() == 0, 60), leaves)


class SlowHandshakeTest(Case):
    """Runs last because of its name, when the slow connections have waited long enough."""

    def test_a_slow_handshake_is_cut(self) -> None:
        drips = [self.slow[f"a hello that drips, {protocol}"][0] for protocol in self.ports]
        hello = HALF_A_HELLO + b"\x00\x01\xfc\x03\x03" + bytes(400)
        for byte in hello:
            if len(select.select(drips, [], [], 0.1)[0]) == len(drips):
                break
            for drip in drips:
                with contextlib.suppress(OSError):
                    drip.sendall(bytes((byte,)))
        looked = time.monotonic()
        for name, (one, begin) in self.slow.items():
            one.settimeout(HANDSHAKE_SECONDS + 6)
            with contextlib.suppress(OSError), one:
                while one.recv(1 << 16):
                    pass
            # The other cases may have taken longer than the limit.
            self.assertLess(time.monotonic() - begin,
                            max(HANDSHAKE_SECONDS + 5, looked - begin + 2), name)
        self.assertEqual(self.said(self.open, *self.trust), "SERVING")


if __name__ == "__main__":
    fox_server.main("openssl")
