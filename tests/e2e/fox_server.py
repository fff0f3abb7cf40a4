"""A fox-server on the demo model, for tests in Python."""

from __future__ import annotations

import os
import pathlib
import socket
import sys
import time
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "server" / "cli"))

import demo  # noqa: E402

MODEL = ROOT / "models" / "demo"
SKIPPED = 77  # ctest's SKIP_RETURN_CODE
# A sanitizer's server: not the memory nor the speed of the program. tests/sanitizers sets it.
INSTRUMENTED = "ASAN_OPTIONS" in os.environ
SLOWNESS = 4 if INSTRUMENTED else 1  # what a limit of time is multiplied by, as ctest's are


class FoxServer(demo.Server):
    """On free ports, serving when the context begins."""

    def __init__(self, programs: pathlib.Path, flags: Sequence[str] = (),
                 model: pathlib.Path = MODEL) -> None:
        super().__init__(programs, model, "certified", flags)
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
