"""TLS for tests: authorities and certificates, made with the openssl program, and a client."""

from __future__ import annotations

import pathlib
import socket
import ssl
import subprocess
import warnings


def openssl(*arguments: object) -> None:
    """Runs the openssl program; an exception has its error message."""
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True,
                          timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


class Pair:
    """A certificate and its key."""

    def __init__(self, stem: pathlib.Path) -> None:
        self.certificate, self.key = stem.with_suffix(".pem"), stem.with_suffix(".key")

    def server_flags(self) -> list[str]:
        """Flags of fox-server that serve with this certificate."""
        return ["--ssl-certfile", str(self.certificate), "--ssl-keyfile", str(self.key)]

    def client_flags(self) -> list[str]:
        """Flags of fox-cli that present this certificate."""
        return ["--cert", str(self.certificate), "--key", str(self.key)]


class Authority(Pair):
    """A certificate authority, with its own certificate for clients and servers to trust."""

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        super().__init__(folder / name)
        self._folder = folder
        openssl("req", "-x509", *self._new_key("EC"), "-days", 2, "-subj", f"/CN={name}",
                "-keyout", self.key, "-out", self.certificate)

    @staticmethod
    def _new_key(kind: str) -> list[str]:
        if kind == "EC":
            return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        return ["-newkey", kind, "-nodes"]

    def issue(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1", days: int = 1,
              key: str = "EC") -> Pair:
        """Issues a certificate for a server or a client; with `days` below 0 it has expired."""
        pair, stem = Pair(self._folder / name), self._folder / name
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={names}\n")
        openssl("req", *self._new_key(key), "-subj", f"/CN={name}", "-keyout", pair.key,
                "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
                "-CAcreateserial", "-days", days, "-extfile", extensions, "-out", pair.certificate)
        return pair


def client_context(authority: Pair, protocols: tuple[str, ...] = ("h2",),
                   version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """A client's context that trusts `authority`. `version`: the only version, however old."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.certificate)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    if version is not None:
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # old versions are tried on purpose
            context.minimum_version = context.maximum_version = version
    return context


def handshake(address: tuple[str, int], context: ssl.SSLContext) -> str:
    """Connects and returns the agreed version of TLS; raises OSError if the handshake fails."""
    with socket.create_connection(address, 5) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            return secure.version() or ""
