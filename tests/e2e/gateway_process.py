"""The Shepherd Model Gateway (smg, from PyPI) in front of fox-servers, for tests."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from typing import Any

import pypi_packages
from fox_server import free_port, wait_until

READY_SECONDS = 30
REQUIREMENTS = ("smg==1.13.0", "openai>=1.60,<4", "grpcio>=1.60,<2", "grpcio-tools>=1.60,<2")


def enter_packages(programs: pathlib.Path) -> None:
    """Runs this program again where the gateway, its clients and its libraries can be imported."""
    pypi_packages.enter(programs, "gateway_packages", REQUIREMENTS)


class Gateway:
    """A gateway on a free port that reads its workers from a file; gone when the context ends."""

    def __init__(self, urls: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._file = pathlib.Path(self._folder.name) / "workers.json"
        self._log = pathlib.Path(self._folder.name) / "log"
        self.set_workers(urls)
        self.url = f"http://127.0.0.1:{free_port()}"
        self._command = [
            str(pathlib.Path(sys.prefix) / "bin" / "smg"), "launch", "--host", "127.0.0.1",
            "--port", self.url.rsplit(":", 1)[1], "--prometheus-host", "127.0.0.1",
            "--prometheus-port", str(free_port()), "--policy", "least_load",
            "--worker-startup-check-interval", "1", "--discovery-provider", "file",
            "--discovery-file", str(self._file), "--backend", "vllm"]

    def set_workers(self, urls: list[str]) -> None:
        """What the gateway discovers, at once."""
        workers = [{"url": url} for url in urls]
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"version": 1, "workers": workers}))
        os.replace(new, self._file)

    def __enter__(self) -> Gateway:
        with open(self._log, "w") as log:
            # It would ask a hub for tokenizers first.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1"})
        try:
            self.wait_until(lambda: self._get("/readiness") is not None)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, OSError):
            return None

    def workers(self) -> dict[str, Any]:
        """What the gateway knows of its workers, by URL."""
        listed = json.loads(self._get("/workers") or "{}").get("workers", [])
        return {worker["url"]: worker for worker in listed}

    def wait_until(self, condition) -> None:
        """Asks until it is so."""
        if not wait_until(lambda: self._process.poll() is not None or condition(), READY_SECONDS) \
                or self._process.poll() is not None:
            raise AssertionError("the gateway did not come that far:\n" +
                                 self._log.read_text()[-4000:])
