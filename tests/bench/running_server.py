"""A fox-server for as long as a measurement takes."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import gpu_build

if TYPE_CHECKING:
    from gpu_bench import Bench


@dataclasses.dataclass
class Started:
    """A server that serves."""

    address: str
    seconds: float  # from its start until it listened
    said: str


@contextlib.contextmanager
def running_server(bench: Bench, *flags: str) -> Iterator[Started]:
    """A fox-server on a free port, ended afterwards."""
    log = bench.scratch / "server.log"
    start = time.monotonic()
    with open(log, "wb") as out, subprocess.Popen(
            [bench.program("fox-server"), "--grpc-port", "0", *flags], stdout=out, stderr=out,
            env=bench.environment, cwd=gpu_build.ROOT) as server:
        try:
            end = start + bench.left(60)
            while True:
                said = log.read_text(encoding="utf-8", errors="replace")
                found = re.search(r"listening on (\S+)\n", said)
                if found:
                    break
                if server.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("the server did not start: " + said[-500:])
                time.sleep(0.02)
            yield Started(found.group(1), time.monotonic() - start, said)
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
