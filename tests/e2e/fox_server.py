"""A fox-server on the demo model, and the base class of tests with clients in Python."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "server" / "cli"))

sys.path.insert(0, str(ROOT / "proto"))
os.environ["PATH"] += ":/usr/sbin:/usr/local/sbin"  # HAProxy's

import demo  # noqa: E402

MODEL = ROOT / "models" / "demo"
SKIPPED = 77  # ctest's SKIP_RETURN_CODE
# A chat format for the demo model, which was never trained to chat.
CHAT_FORMAT = {"bos": "<s>", "generation_prompt": "Assistant:", "later_system": True, "roles": {
    "system": {"prefix": "", "suffix": "\n"}, "user": {"prefix": "User: ", "suffix": "\n"},
    "assistant": {"prefix": "Assistant:", "suffix": "</s>\n"},
    "tool": {"prefix": "Tool: ", "suffix": "\n"}},
    "tools": {"prefix": " Tools: ", "tool": "", "suffix": "", "separator": "\n",
              "call": "<call>{\"name\": \"", "arguments": "\", \"arguments\": ",
              "call_end": "}</call>", "next_response": "|"}}
# True for builds with a sanitizer, whose memory and speed are not the program's. tests/sanitizers
# sets the variable.
INSTRUMENTED = "ASAN_OPTIONS" in os.environ
SLOWNESS = 4 if INSTRUMENTED else 1  # factor of time limits, as in ctest


class FoxServer(demo.Server):
    """A server on free ports from the start to the end of the context. `descriptors`: its limit of
    open descriptors; 0: the system's."""

    def __init__(self, programs: pathlib.Path, flags: Sequence[str] = (),
                 descriptors: int = 0, model: pathlib.Path = MODEL) -> None:
        super().__init__(programs, model, "certified", flags)
        if descriptors:
            self._command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$0" "$@"',
                             *self._command]
        self.log: list[str] = []  # all lines so far

    def _read_line(self, line: str) -> None:
        self.log.append(line.rstrip())
        super()._read_line(line)

    def _wait_until_serving(self) -> None:
        """Waits for the lines that name the ports. fox-cli is not asked, as TLS and tokens may
        refuse it."""
        self._listening.wait(demo.START_SECONDS)
        if not self.target or not all(self.ports.values()):
            raise demo.DemoError("\n".join(self.log))
        host, port = self.target.rsplit(":", 1)
        self.address, self.process = (host, int(port)), self._process

    def logged(self, text: str) -> bool:
        """True if a line contains `text` within two seconds."""
        return wait_until(lambda: any(text in line for line in self.log), 2)

    def end(self, number: int) -> int:
        """Sends a signal, waits for the end and the whole log, and returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self._reader.join()
        return code


def chat_model(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the demo model with a chat format, in a folder."""
    model = folder / "demo"
    shutil.copytree(MODEL, model)
    (model / "chat_format.json").write_text(json.dumps(CHAT_FORMAT))
    return model


def wait_until(condition: Callable[[], bool], seconds: float = 15) -> bool:
    """Polls the condition. False: it did not hold within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def free_port() -> int:
    """A port on loopback that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Case(unittest.TestCase):
    """One server for all cases of a class; if `flags` is None, each case starts its own."""

    programs = pathlib.Path()
    flags: tuple[str, ...] | None = ()
    descriptors = 0
    chats = False  # the model is the demo with a chat format

    @classmethod
    def setUpClass(cls) -> None:
        if cls.flags is not None:
            cls.server = cls.serve(*cls.flags)

    @classmethod
    def serve(cls, *flags: str) -> FoxServer:
        """Starts a server that runs until the end of the class."""
        model = MODEL
        if cls.chats:
            folder = cls.enterClassContext(tempfile.TemporaryDirectory())
            model = chat_model(pathlib.Path(folder))
        return cls.enterClassContext(FoxServer(cls.programs, flags, cls.descriptors, model))

    def serve_case(self, *flags: str) -> FoxServer:
        """Starts a server that runs until the end of the case and makes it `self.server`."""
        self.server = self.enterContext(FoxServer(self.programs, flags, self.descriptors))
        return self.server

    def start(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """Runs a server that is expected to refuse to start."""
        return subprocess.run([str(self.programs / "fox-server"), "--grpc-port", "0", *flags],
                              capture_output=True, text=True, timeout=60, check=False)

    def cli(self, *arguments: str, target: str = "",
            said: str = "") -> subprocess.CompletedProcess[str]:
        """Runs fox-cli. `target`: by default the server; `said`: its standard input."""
        return subprocess.run([str(self.programs / "fox-cli"), *arguments, "--target",
                               target or self.server.target], input=said,
                              capture_output=True, text=True, timeout=60, check=False)

    def running(self, *flags: str) -> int:
        """The number of running requests."""
        return int(demo.read_messages(self.cli("info", *flags).stdout)[-1]["running"])

    def metric(self, name: str) -> float:
        """The value of a metric without labels; the server has a --metrics-port."""
        url = f"http://{self.server.ports['Prometheus']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            lines = response.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(name + " ")).split()[1])

    def post(self, path: str = "/v1/completions", **fields: Any) -> bytes:
        """Posts `fields` as JSON and returns the answer's body; a refusal raises HTTPError."""
        with urllib.request.urlopen(urllib.request.Request(
                self.server.http_url + path, json.dumps(fields).encode(),
                {"Content-Type": "application/json"}), timeout=60) as answer:
            return answer.read()


def main(*needed: str) -> NoReturn:
    """Runs the cases of the command line `TEST BIN [unittest's arguments]`. If a needed module or
    program is missing, says so and skips them."""
    missing = [name for name in needed
               if shutil.which(name) is None and importlib.util.find_spec(name) is None]
    if missing:
        print(f"SKIPPED: neither module nor program: {', '.join(missing)}; `./run test` installs "
              "them")
        sys.exit(SKIPPED)
    Case.programs = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
