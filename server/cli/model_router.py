"""ModelRouter: one address for several fox-servers, because a page sends requests to one origin.

A request goes to the server of the model that its body names, any other request to the first
server; /v1/models lists all models. Headers are passed on unchanged, so the servers check them.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

MAX_BODY_BYTES = 5 << 20  # as fox-server's --max-message-mb
ANSWER_SECONDS = 600
OF_A_CONNECTION = ("connection", "keep-alive", "transfer-encoding")


class _Request(http.server.BaseHTTPRequestHandler):
    """One request; the connection ends with it."""

    timeout = 75  # seconds, for a client's request and for each write to the client
    server: ModelRouter

    def do_GET(self) -> None:
        """Answers /v1/models with the models of all servers; the first server answers the rest."""
        first = self.server.urls[0]
        if self.path != "/v1/models":
            self._pass_on(first, None)
            return
        lists = [self._ask(url, None) for url in self.server.urls]
        answers = [(answer.status, answer.read()) for answer in lists]
        status, body = next((a for a in answers if a[0] != 200), answers[0])
        if status == 200:
            models = [model for _, text in answers for model in json.loads(text)["data"]]
            body = json.dumps({"object": "list", "data": models}).encode()
        self._begin(lists[0], status, {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Sends the request to the server of its model."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.send_error(413)
            return
        body = self.rfile.read(int(length))
        try:
            model = json.loads(body)["model"]
        except (ValueError, KeyError, TypeError):
            model = None
        self._pass_on(self.server.url_of(model), body)

    def _ask(self, url: str, body: bytes | None) -> http.client.HTTPResponse:
        """Sends the request to a server. Returns the answer, of which the head is read."""
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS)
        connection.request(self.command, self.path, body,
                           {**dict(self.headers), "Connection": "close"})
        return connection.getresponse()

    def _begin(self, answer: http.client.HTTPResponse, status: int, changes: dict[str, str]
               ) -> None:
        heads = {name.lower(): value for name, value in answer.getheaders()
                 if name.lower() not in OF_A_CONNECTION}
        self.send_response_only(status)
        for name, value in {**heads, **{k.lower(): v for k, v in changes.items()}}.items():
            self.send_header(name, value)
        self.end_headers()

    def _pass_on(self, url: str, body: bytes | None) -> None:
        """Passes the answer on while it arrives. If the client leaves, the request ends."""
        with self._ask(url, body) as answer:
            self._begin(answer, answer.status, {})
            while piece := answer.read1(1 << 16):
                self.wfile.write(piece)

    def handle_one_request(self) -> None:
        """A connection that breaks, on either side, ends only this request."""
        try:
            super().handle_one_request()
        except (OSError, http.client.HTTPException):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # pylint: disable=redefined-builtin
        """Logs nothing, because the servers log."""


class ModelRouter(http.server.ThreadingHTTPServer):
    """Serves on loopback while its context is open."""

    daemon_threads = True

    def __init__(self, port: int, names: Sequence[str], urls: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self.urls, self._by_name = list(urls), dict(zip(names, urls))
        self.url = f"http://127.0.0.1:{self.server_port}"

    def url_of(self, model: object) -> str:
        """The server of a model. An unknown name goes to the first server, which refuses it."""
        return self._by_name.get(model, self.urls[0]) if isinstance(model, str) else self.urls[0]

    def __enter__(self) -> ModelRouter:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
