#!/usr/bin/env python3
"""What pages of other sites, in a real browser, can do to a server on loopback that asks for no
token: nothing.

    other_sites_test.py BIN     the folder of fox-server
"""

from __future__ import annotations

import http.server
import json
import threading

import chromium
import fox_server

BODY = json.dumps({"prompt": "Once", "max_tokens": 1})
JSON = "headers: {'Content-Type': 'application/json'}"
# What a page may try: with a question before it, and without (forms, text, no type at all).
ATTEMPTS = {
    "as JSON": f"fetch(TARGET, {{method: 'POST', {JSON}, body: BODY}})",
    "as JSON, unread": f"fetch(TARGET, {{method: 'POST', mode: 'no-cors', {JSON}, body: BODY}})",
    "as text": "fetch(TARGET, {method: 'POST', mode: 'no-cors', body: BODY})",
    "without a type":
        "fetch(TARGET, {method: 'POST', mode: 'no-cors', body: new Blob([BODY])})",
    "as a form":
        "fetch(TARGET, {method: 'POST', mode: 'no-cors', body: new URLSearchParams(BODY)})",
}


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Another site."""

    def do_GET(self) -> None:  # noqa: N802, as the library calls it
        """An empty page."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_: object) -> None:
        """Nowhere."""


class OtherSitesTest(fox_server.Case):
    """One server and one browser, to which every name is this machine's."""

    flags = ("--http-port", "0")

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.port = cls.server.http_url.rsplit(":", 1)[1]
        cls.site = cls.enterClassContext(
            http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere))
        threading.Thread(target=cls.site.serve_forever, daemon=True).start()
        cls.addClassCleanup(cls.site.shutdown)
        cls.browser = cls.enterClassContext(chromium.Browser(
            switches=["--host-resolver-rules=MAP *.example 127.0.0.1"]))

    def attempt(self, expression: str) -> int:
        """The status that a page's script sees; 0: none."""
        expression = expression.replace("TARGET", f"'{self.url}'").replace("BODY", repr(BODY))
        return self.browser.evaluate(f"{expression}.then(answer => answer.status, () => 0)")

    def finished(self) -> int:
        """Completions so far."""
        return sum("request finished" in line for line in self.server.log)

    def test_a_page_of_another_origin(self) -> None:
        self.browser.open(f"http://elsewhere.example:{self.site.server_port}/")
        self.url = f"http://127.0.0.1:{self.port}/v1/completions"
        before = self.finished()
        for name, expression in ATTEMPTS.items():
            with self.subTest(name):
                self.assertEqual(self.attempt(expression), 0)
        self.assertEqual(self.attempt(f"fetch('http://127.0.0.1:{self.port}/v1/models')"), 0)
        self.assertEqual(self.finished(), before)

    def test_a_name_that_was_made_to_mean_this_machine(self) -> None:
        self.url = "/v1/completions"
        for name, status in (("elsewhere.example", 403), ("localhost", 200), ("127.0.0.1", 200)):
            with self.subTest(name):
                self.browser.open(f"http://{name}:{self.port}/")
                self.assertEqual(self.attempt(ATTEMPTS["as JSON"]), status)


if __name__ == "__main__":
    fox_server.main(chromium.NAME)
