"""The programs' own words, and checks that fox-server accepts the flags of a manifest, without a
model."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import unittest

from loud_skips import ROOT, build_folder

BIN = build_folder() / "bin"
SERVER = str(BIN / "fox-server")
PROGRAMS = ("fox-server", "fox-cli", "fox-eval", "fox-bench")


def help_texts(program: str) -> dict[str, str]:
    """The whole text of --help of each command; fox-server has none, and its text the key ""."""
    def text(*command: str) -> str:
        return subprocess.run([BIN / program, *command], check=True, capture_output=True, text=True,
                              timeout=60).stdout

    if program == "fox-server":
        return {"": text("--help", "all")}
    return {command: text(command, "--help")
            for command in re.findall(r"(?m)^  ([a-z][a-z-]*)\s", text("--help"))}


def last_stage(dockerfile: str) -> list[tuple[str, str]]:
    """The instructions of an image, continued lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "docker" / dockerfile).read_text())
    lines = text.replace("\\\n", " ").rsplit("\nFROM ", 1)[1].splitlines()
    return [(word, re.sub(r"\s+", " ", rest)) for word, rest in (
        line.split(None, 1) for line in ["FROM " + lines[0], *filter(str.strip, lines[1:])])]


def image_flags() -> list[str]:
    """The flags that the image's ENTRYPOINT puts before all others."""
    return json.loads(dict(last_stage("Dockerfile"))["ENTRYPOINT"])[1:]


def image_port(name: str) -> str:
    """The value of a numeric flag of the image."""
    flags = image_flags()
    return flags[flags.index(f"--{name}-port") + 1]


def flag_values(arguments: list[str]) -> dict[str, str]:
    """Flags --name=value as a dictionary; the last value of a name counts."""
    return dict(argument[2:].split("=", 1) for argument in arguments if "=" in argument)


def printed(*arguments: str) -> str:
    """Runs fox-server; returns its output and exit code."""
    return subprocess.run([SERVER, *arguments], check=True, capture_output=True, text=True,
                          timeout=100).stdout


def default_of(flag: str) -> str:
    """A default, as --help shows it."""
    line = next(line for line in printed("--help", "all").splitlines()
                if line.startswith(f"  {flag} "))
    return line.split("[")[-1].rstrip("]")


def drain_seconds(arguments: list[str]) -> float:
    """Seconds that a server with these flags drains."""
    given = flag_values(arguments).get("shutdown-timeout")
    return float(given or default_of("--shutdown-timeout"))


def expect_accepted(case: unittest.TestCase, arguments: list[str]) -> None:
    """The server parses and checks these flags after the image's, and opens ports."""
    arguments = [*image_flags(), *arguments]
    names = [argument.split("=")[0] for argument in arguments]
    free_ports = ["--grpc-port=0", "--metrics-port=0", "--http-port=0",
                  "--admin-address=127.0.0.1:0"]
    with tempfile.TemporaryDirectory() as empty:  # the model comes after the ports
        ended = subprocess.run(
            [SERVER, *arguments, f"--model={empty}",
             *(flag for flag in free_ports if flag.split("=")[0] in names)],
            capture_output=True, text=True, timeout=60)
    case.assertEqual(ended.returncode, 78)
    case.assertIn("config.json: no such file", ended.stderr)
