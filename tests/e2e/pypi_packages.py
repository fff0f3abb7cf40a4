"""Packages from PyPI that only tests need, in a Python environment of their own below the build."""

from __future__ import annotations

import fcntl
import os
import pathlib
import subprocess
import sys

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
REQUIREMENTS = ("smg==1.13.0", "smg-grpc-proto==0.4.28", "openai>=1.60,<4", "tokenizers>=0.20,<1",
                "grpcio>=1.60,<2", "grpcio-tools>=1.60,<2")


def _install(environment: pathlib.Path) -> str:
    """Makes the environment; "" or why not."""
    stamp, wanted = environment / ".installed", " ".join(REQUIREMENTS)
    with open(environment.parent / (environment.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several tests may start at once
        if stamp.exists() and stamp.read_text() == wanted:
            return ""
        commands = ([sys.executable, "-m", "venv", "--clear", str(environment)],
                    [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet",
                     "--disable-pip-version-check", "--retries", "1", *REQUIREMENTS])
        for command in commands:
            try:
                done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                      text=True, timeout=240, check=False)
            except subprocess.TimeoutExpired:
                return "pip takes too long"
            if done.returncode != 0:
                return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        stamp.write_text(wanted)
        return ""


def enter(programs: pathlib.Path) -> None:
    """Runs this program again with the environment's Python, unless it does already.

    `programs`: the folder of fox-server. Ends with SKIPPED, and says so, where the packages cannot
    be had.
    """
    environment = programs.resolve().parent / "pypi_packages"
    if pathlib.Path(sys.prefix) == environment:
        return
    reason = _install(environment)
    if reason:
        print(f"SKIPPED: cannot install {', '.join(REQUIREMENTS)} from PyPI: {reason}")
        sys.exit(SKIPPED)
    python = str(environment / "bin" / "python")
    os.execv(python, [python, "-B", *sys.argv])
