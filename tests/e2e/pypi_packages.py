"""Packages from PyPI for tests, in Python environments of their own inside the build folder."""

from __future__ import annotations

import fcntl
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
INSTALL_SECONDS = 300


def _install(environment: pathlib.Path, requirements: Sequence[str]) -> str:
    """Makes the environment. Returns "" or the reason of a failure."""
    stamp, wanted = environment / ".installed", " ".join(requirements)
    with open(environment.parent / (environment.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several tests may start at once
        if stamp.exists() and stamp.read_text() == wanted:
            return ""
        commands = ([sys.executable, "-m", "venv", "--clear", str(environment)],
                    [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet",
                     "--disable-pip-version-check", "--retries", "1", *requirements])
        for command in commands:
            try:
                done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                      text=True, timeout=INSTALL_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                return "pip takes too long"
            if done.returncode != 0:
                return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        stamp.write_text(wanted)
        return ""


def enter(programs: pathlib.Path, name: str, requirements: Sequence[str]) -> None:
    """Runs this program again with the Python of the environment `name`, unless it does already.

    `programs`: the folder of fox-server. Ends with SKIPPED and a message if the packages cannot be
    installed.
    """
    environment = programs.resolve().parent / name
    if pathlib.Path(sys.prefix) == environment:
        return
    reason = _install(environment, requirements)
    if reason:
        print(f"SKIPPED: cannot install {', '.join(requirements)} from PyPI: {reason}")
        sys.exit(SKIPPED)
    python = str(environment / "bin" / "python")
    os.execv(python, [python, "-B", *sys.argv])
