#!/usr/bin/env python3
"""The HTTP port with ab and curl as clients: persistent connections of HTTP/1.0 (RFC 9112, 9.3),
targets and paths that a proxy might read differently, and names of hosts.

    http_clients_test.py BIN     the folder of fox-server
"""

from __future__ import annotations

import re
import subprocess
import time

import fox_server
from fox_server import SLOWNESS


class Case(fox_server.Case):
    """One server for the cases of a class."""

    @property
    def port(self) -> int:
        """The HTTP port."""
        return int(self.server.http_url.rsplit(":", 1)[1])

    def curl(self, *arguments: str, path: str = "/health",
             host: str = "127.0.0.1") -> tuple[str, str]:
        """Runs curl; the status, and curl's messages about the connection."""
        done = subprocess.run(
            ["curl", "--silent", "--show-error", "--verbose", "--max-time", "20", "--output",
             "/dev/null", "--write-out", "%{http_code}", "--noproxy", "*", *arguments,
             f"http://{host}:{self.port}{path}"],
            capture_output=True, text=True, timeout=60, check=False)
        return done.stdout, done.stderr


class KeepAliveTest(Case):
    """Connections that clients of HTTP/1.0 ask to keep."""

    flags = ("--http-port", "0")

    def ab(self, *arguments: str) -> str:
        """ab's report of 200 requests. Unless the server says that it keeps a connection, ab waits
        for its end, as HTTP/1.0 demands."""
        begin = time.monotonic()
        done = subprocess.run(
            ["ab", "-n", "200", "-c", "4", *arguments, f"{self.server.http_url}/health"],
            capture_output=True, text=True, timeout=100, check=True)
        self.assertLess(time.monotonic() - begin, 10 * SLOWNESS)
        self.assertRegex(done.stdout, r"Complete requests: +200\n")
        self.assertRegex(done.stdout, r"Failed requests: +0\n")
        self.assertNotIn("Non-2xx", done.stdout)
        return done.stdout

    def test_ab_keeps_its_connections_if_it_asks_to(self) -> None:
        self.assertRegex(self.ab("-k"), r"Keep-Alive requests: +200\n")
        self.assertNotIn("Keep-Alive requests", self.ab())

    def test_curl_reuses_the_connection(self) -> None:
        for arguments, kept in (
                (("--http1.1",), True), (("--http1.1", "-H", "Connection: close"), False),
                (("--http1.0", "-H", "Connection: keep-alive"), True),
                (("--http1.0", "-H", "Connection: Keep-Alive"), True),
                (("--http1.0", "-H", "Connection: close, keep-alive"), False),
                (("--http1.0",), False)):
            with self.subTest(arguments=arguments):
                status, said = self.curl(*arguments, f"{self.server.http_url}/health",
                                         "--output", "/dev/null")
                self.assertEqual(status, "200200")
                self.assertEqual("Re-using existing connection" in said, kept, said)
                old = "--http1.0" in arguments
                announced = re.search(r"(?im)^< connection: (\S+)", said)
                self.assertEqual(announced and announced[1], ("keep-alive" if old else None)
                                 if kept else "close")

    def test_an_error_and_a_head_are_kept_too(self) -> None:
        for arguments, path, status in ((("--head",), "/health", "200"), ((), "/no", "404"),
                                        (("-X", "DELETE"), "/health", "405")):
            said = self.curl("--http1.0", "-H", "Connection: keep-alive", *arguments, path=path)
            self.assertEqual(said[0], status, path)
            self.assertRegex(said[1].lower(), "< connection: keep-alive", path)


class TargetsTest(Case):
    """Targets in the first line of a request."""

    flags = ("--http-port", "0", "--served-model-name", "some org/a+b:c")

    def test_an_encoded_path_is_not_found(self) -> None:
        """A proxy that blocks /tokenize does not know /%74okenize."""
        for path in ("/%76%31/models", "/v1%2Fmodels", "/v1%2fmodels", "/v1/%6Dodels",
                     "/v1/./models", "/v1/../v1/models", "//v1/models", "/v1//models",
                     "/v1/models%2F", "/%68ealth", "/v1/models%00", "/health%3Fx"):
            self.assertEqual(self.curl("--path-as-is", path=path)[0], "404", path)

    def test_the_models_name_may_be_encoded(self) -> None:
        for path in ("some%20org%2Fa%2Bb%3Ac", "some%20org/a+b:c", "some%20org%2fa+b%3ac"):
            self.assertEqual(self.curl(path="/v1/models/" + path)[0], "200", path)
        self.assertEqual(self.curl(path="/v1/models/other")[0], "404")

    def test_a_url_as_target_has_the_schemes_of_http(self) -> None:
        for target, status in (
                ("http://localhost/health", "200"), ("HTTPS://127.0.0.1:1/health?x", "200"),
                ("http://localhost", "200"), ("http://localhost?x", "200"),
                ("ftp://localhost/health", "400"), ("file:///health", "400"),
                ("gopher://localhost/health", "400"), ("x://localhost/health", "400"),
                ("http:///health", "400"), ("http://user@localhost/health", "400"),
                ("localhost/health", "400"), ("localhost:80", "400"), ("health", "400"),
                ("*", "404")):
            self.assertEqual(self.curl("--request-target", target)[0], status, target)
        # RFC 9112, 3.2.2: the target's host replaces the Host header's.
        for target, header, status in (("http://evil.example/health", "localhost", "403"),
                                       ("http://localhost/health", "evil.example", "200")):
            said = self.curl("--request-target", target, "-H", f"Host: {header}")
            self.assertEqual(said[0], status, target)


class HostsTest(Case):
    """Pages of a name that was made to resolve to this machine (DNS rebinding)."""

    flags = None

    def status(self, name: str, port: str = "HTTP", path: str = "/health") -> str:
        number = self.server.ports[port].rsplit(":", 1)[1]
        done = subprocess.run(
            ["curl", "--silent", "--noproxy", "*", "--output", "/dev/null", "--write-out",
             "%{http_code}", "--resolve", f"{name}:{number}:127.0.0.1",
             f"http://{name}:{number}{path}"],
            capture_output=True, text=True, timeout=60, check=False)
        return done.stdout

    def test_only_names_of_the_list_and_of_this_machine_are_served(self) -> None:
        everywhere = ("--host", "0.0.0.0", "--allow-insecure-remote", "--metrics-host", "0.0.0.0")
        for flags, names in (
                ((), {"evil.example": "403", "localhost": "200", "127.0.0.1": "200"}),
                ((*everywhere, "--allowed-hosts", "localhost"),
                 {"evil.example": "403", "localhost": "200", "127.0.0.1": "200"}),
                ((*everywhere, "--allowed-hosts", "fox.example, Other"),
                 {"evil.example": "403", "fox.example": "200", "FOX.example": "200",
                  "other": "200", "localhost": "200", "sub.fox.example": "403"}),
                ((*everywhere, "--allowed-hosts", "*"), {"evil.example": "200"}),
                (everywhere, {"evil.example": "200"})):
            with self.subTest(flags=flags):
                self.serve_case("--http-port", "0", "--metrics-port", "0", *flags)
                for name, status in names.items():
                    self.assertEqual(self.status(name), status, name)
                    self.assertEqual(self.status(name, "Prometheus", "/metrics"), status, name)


if __name__ == "__main__":
    fox_server.main("ab", "curl")
