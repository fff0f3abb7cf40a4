"""A fox-server on the demo model, and the cases that clients in Python test it with."""

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
# For a model that was never trained to chat.
CHAT_FORMAT = {"bos": "<s>", "generation_prompt": "Assistant:", "later_system": True, "roles": {
    "system": {"prefix": "", "suffix": "\n"}, "user": {"prefix": "User: ", "suffix": "\n"},
    "assistant": {"prefix": "Assistant:", "suffix": "</s>\n"},
    "tool": {"prefix": "Tool: ", "suffix": "\n"}},
    "tools": {"prefix": " Tools: ", "tool": "", "suffix": "", "separator": "\n",
              "call": "<call>{\"name\": \"", "arguments": "\", \"arguments\": ",
              "call_end": "}</call>", "next_response": "|"}}
# A sanitizer's server: not the memory nor the speed of the program. tests/sanitizers sets it.
INSTRUMENTED = "ASAN_OPTIONS" in os.environ
SLOWNESS = 4 if INSTRUMENTED else 1  # what a limit of time is multiplied by, as ctest's are


class FoxServer(demo.Server):
    """On free ports, serving when the context begins; `descriptors`: it may open no more."""

    def __init__(self, programs: pathlib.Path, flags: Sequence[str] = (),
                 descriptors: int = 0, model: pathlib.Path = MODEL) -> None:
        super().__init__(programs, model, "certified", flags)
        if descriptors:
            self._command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$0" "$@"',
                             *self._command]
        self.log: list[str] = []  # all that it has printed

    def _read_line(self, line: str) -> None:
        self.log.append(line.rstrip())
        super()._read_line(line)

    def _wait_until_serving(self) -> None:
        """Without asking fox-cli, which TLS and tokens may keep out: it listens when it serves."""
        self._listening.wait(demo.START_SECONDS)
        if not self.target or not all(self.ports.values()):
            raise demo.DemoError("\n".join(self.log))
        host, port = self.target.rsplit(":", 1)
        self.address, self.process = (host, int(port)), self._process

    def logged(self, text: str) -> bool:
        """Whether it has been, within two seconds."""
        return wait_until(lambda: any(text in line for line in self.log), 2)

    def end(self, number: int) -> int:
        """Sends the signal; the exit code. The log is whole then."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self._reader.join()
        return code


def chat_model(folder: pathlib.Path) -> pathlib.Path:
    """The demo, with a chat format, in a folder."""
    model = folder / "demo"
    shutil.copytree(MODEL, model)
    (model / "chat_format.json").write_text(json.dumps(CHAT_FORMAT))
    return model


def wait_until(condition: Callable[[], bool], seconds: float = 15) -> bool:
    """Asks until it is so; False: it was not."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def free_port() -> int:
    """A port that is free."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Case(unittest.TestCase):
    """One server for all cases of a class; of a class without `flags` each case starts its own."""

    programs = pathlib.Path()
    flags: tuple[str, ...] | None = ()
    descriptors = 0
    chats = False  # whether the demo has a chat format

    @classmethod
    def setUpClass(cls) -> None:
        if cls.flags is not None:
            cls.server = cls.serve(*cls.flags)

    @classmethod
    def serve(cls, *flags: str) -> FoxServer:
        """A server until the class' end."""
        model = MODEL
        if cls.chats:
            folder = cls.enterClassContext(tempfile.TemporaryDirectory())
            model = chat_model(pathlib.Path(folder))
        return cls.enterClassContext(FoxServer(cls.programs, flags, cls.descriptors, model))

    def serve_case(self, *flags: str) -> FoxServer:
        """A server until the case's end, and the one that is asked from now on."""
        self.server = self.enterContext(FoxServer(self.programs, flags, self.descriptors))
        return self.server

    def start(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """A server that is not to start."""
        return subprocess.run([str(self.programs / "fox-server"), "--grpc-port", "0", *flags],
                              capture_output=True, text=True, timeout=60, check=False)

    def cli(self, *arguments: str, target: str = "",
            said: str = "") -> subprocess.CompletedProcess[str]:
        """fox-cli, with the server unless another target is named; `said` is its input."""
        return subprocess.run([str(self.programs / "fox-cli"), *arguments, "--target",
                               target or self.server.target], input=said,
                              capture_output=True, text=True, timeout=60, check=False)

    def running(self, *flags: str) -> int:
        """Requests that run."""
        return int(demo.read_messages(self.cli("info", *flags).stdout)[-1]["running"])

    def post(self, path: str = "/v1/completions", **fields: Any) -> bytes:
        """The answer by HTTP; a refusal raises HTTPError."""
        with urllib.request.urlopen(urllib.request.Request(
                self.server.http_url + path, json.dumps(fields).encode(),
                {"Content-Type": "application/json"}), timeout=60) as answer:
            return answer.read()


def main(*needed: str) -> NoReturn:
    """Runs the cases of `TEST BIN [unittest's arguments]`; skips them, and says so, without one of
    the modules or programs."""
    missing = [name for name in needed
               if shutil.which(name) is None and importlib.util.find_spec(name) is None]
    if missing:
        print(f"SKIPPED: neither module nor program: {', '.join(missing)}; `./run test` installs "
              "them")
        sys.exit(SKIPPED)
    Case.programs = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
