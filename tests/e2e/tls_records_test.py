#!/usr/bin/env python3
"""TLS records without data on the HTTP port, sent by the system's libssl and by tlslite: too many
of them end their connection, and no other client waits for them.

    tls_records_test.py BIN     the folder of fox-server
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import http.client
import importlib.util
import pathlib
import socket
import tempfile
import threading
import time
import unittest

import certificates
import fox_server
from fox_server import SLOWNESS

TLS1_3_VERSION, SET_MIN_PROTO_VERSION, NOT_REQUESTED, REQUESTED = 0x0304, 123, 0, 1
MOST = 32  # limit of consecutive records without data, as in BoringSSL and rustls
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def libssl() -> ctypes.CDLL:
    """The library, with the types of the functions that are called."""
    library = ctypes.CDLL(ctypes.util.find_library("ssl"))
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    for name, result, arguments in (
            ("TLS_client_method", pointer, []), ("SSL_CTX_new", pointer, [pointer]),
            ("SSL_CTX_ctrl", ctypes.c_long, [pointer, number, ctypes.c_long, pointer]),
            ("SSL_CTX_free", None, [pointer]), ("SSL_new", pointer, [pointer]),
            ("SSL_free", None, [pointer]), ("BIO_s_mem", pointer, []),
            ("BIO_new", pointer, [pointer]), ("SSL_set_bio", None, [pointer, pointer, pointer]),
            ("SSL_set_connect_state", None, [pointer]), ("SSL_do_handshake", number, [pointer]),
            ("SSL_key_update", number, [pointer, number]),
            ("SSL_write", number, [pointer, text, number]),
            ("SSL_read", number, [pointer, text, number]),
            ("BIO_read", number, [pointer, text, number]),
            ("BIO_write", number, [pointer, text, number])):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Client:
    """A connection of TLS 1.3 whose records are made before the first one is sent, so that sending
    takes less time than the server needs to read."""

    def __init__(self, address: tuple[str, int]) -> None:
        ssl = self._ssl = libssl()
        context = ssl.SSL_CTX_new(ssl.TLS_client_method())
        ssl.SSL_CTX_ctrl(context, SET_MIN_PROTO_VERSION, TLS1_3_VERSION, None)
        self._tls = ssl.SSL_new(context)
        ssl.SSL_CTX_free(context)
        self._in, self._out = (ssl.BIO_new(ssl.BIO_s_mem()) for _ in range(2))
        ssl.SSL_set_bio(self._tls, self._in, self._out)
        ssl.SSL_set_connect_state(self._tls)
        self.socket = socket.create_connection(address, 30)
        while ssl.SSL_do_handshake(self._tls) != 1:
            self.socket.sendall(self._made())
            self._receive()
        self.socket.sendall(self._made())

    def _made(self) -> bytes:
        """Takes the bytes that the library wants to send."""
        pieces, buffer = [], ctypes.create_string_buffer(1 << 16)
        while (count := self._ssl.BIO_read(self._out, buffer, len(buffer))) > 0:
            pieces.append(buffer.raw[:count])
        return b"".join(pieces)

    def _receive(self) -> None:
        came = self.socket.recv(1 << 16)
        if not came:
            raise ConnectionError("the server has ended the connection")
        self._ssl.BIO_write(self._in, came, len(came))

    def key_updates(self, count: int, kind: int = NOT_REQUESTED) -> bytes:
        """Bytes of `count` records that change the key and carry no data."""
        for _ in range(count):
            assert self._ssl.SSL_key_update(self._tls, kind) == 1
            assert self._ssl.SSL_do_handshake(self._tls) == 1
        return self._made()

    def data(self, text: bytes) -> bytes:
        """Bytes of a record with that text."""
        assert self._ssl.SSL_write(self._tls, text, len(text)) == len(text)
        return self._made()

    def read(self) -> bytes:
        """Reads the next data; raises OSError if the connection ends."""
        buffer = ctypes.create_string_buffer(1 << 16)
        while (count := self._ssl.SSL_read(self._tls, buffer, len(buffer))) <= 0:
            self._receive()
        return buffer.raw[:count]

    def close(self) -> None:
        """Frees everything."""
        self.socket.close()
        self._ssl.SSL_free(self._tls)


class RecordsTest(fox_server.Case):
    """One server for all cases."""

    flags = None

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.authority = certificates.Authority(folder, "authority")
        server = cls.serve(*cls.authority.issue("own").server_flags(), "--http-port", "0")
        host, port = server.ports["HTTP"].rsplit(":", 1)
        cls.address = (host, int(port))

    def connect(self) -> Client:
        client = Client(self.address)
        self.addCleanup(client.close)
        return client

    def seconds_of_another(self) -> float:
        """Seconds until a new client has an answer."""
        begin = time.monotonic()
        context = certificates.client_context(self.authority, ("http/1.1",))
        connection = http.client.HTTPSConnection(*self.address, timeout=60, context=context)
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            self.assertEqual(connection.getresponse().status, 200)
        return time.monotonic() - begin

    def test_few_are_accepted_of_each_kind(self) -> None:
        for kind in (NOT_REQUESTED, REQUESTED):
            client = self.connect()
            for _ in range(3):  # data in between resets the count
                client.socket.sendall(client.key_updates(MOST - 1, kind) + client.data(HEALTH))
                self.assertTrue(client.read().startswith(b"HTTP/1.1 200 "), kind)

    def test_many_end_the_connection(self) -> None:
        for before in (b"", HEALTH[:20]):  # between requests, and within one
            client = self.connect()
            records = client.data(before) if before else b""
            client.socket.sendall(records + client.key_updates(MOST + 1) + client.data(HEALTH))
            with self.assertRaises(OSError, msg=before):
                client.read()

    def test_others_are_answered_beside_a_flood(self) -> None:
        client = self.connect()
        client.socket.sendall(client.data(HEALTH))  # the server now waits 75 s for the next one
        client.read()
        records = client.key_updates(100_000)  # would keep a server busy for half a minute

        def flood() -> None:
            with contextlib.suppress(OSError):
                client.socket.sendall(records)

        thread = threading.Thread(target=flood)
        thread.start()
        waits = [self.seconds_of_another() for _ in range(10)]
        thread.join()
        self.assertLess(max(waits), 2 * SLOWNESS)

    @unittest.skipIf(importlib.util.find_spec("tlslite") is None, "SKIPPED: needs tlslite-ng")
    def test_wishes_to_renegotiate_end_the_connection(self) -> None:
        """Renegotiation of TLS 1.2 by tlslite-ng: each wish is refused with a warning."""
        from tlslite.api import HandshakeSettings, TLSConnection  # noqa: PLC0415
        from tlslite.messages import ClientHello  # noqa: PLC0415
        settings, hello = HandshakeSettings(), ClientHello()
        settings.minVersion = settings.maxVersion = (3, 3)
        hello.create((3, 3), bytearray(32), bytearray(0), [0xC02B])
        for count, answered in ((MOST // 2, True), (2 * MOST, False)):
            plain = self.enterContext(socket.create_connection(self.address, 10))
            client = TLSConnection(plain)
            client.handshakeClientCert(settings=settings)
            said = b""
            with contextlib.suppress(OSError):
                for _ in range(count):
                    for _ in client._recordLayer.sendRecord(hello):
                        pass
                client.write(HEALTH)
                while b" 200 OK" not in said:
                    # The warnings come first, each in a record of its own.
                    for record in client._recordLayer.recvRecord():
                        if isinstance(record, tuple):
                            said += bytes(record[1].bytes) if record[0].type == 23 else b""
            self.assertEqual(b" 200 OK" in said, answered, count)


if __name__ == "__main__":
    fox_server.main("openssl")
