"""Asks fox-server whether it would take the flags of a manifest, without starting it."""

from __future__ import annotations

import pathlib
import re
import subprocess
import tempfile
import unittest

from loud_skips import ROOT

# Flags of parts that a build may lack.
OPTIONAL = ("--metrics-", "--http-")


def image_flags() -> list[str]:
    """What the image's ENTRYPOINT gives the server before all else."""
    text = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", "")
    entry = re.search(r"^ENTRYPOINT \[(.*)\]$", text, re.MULTILINE)
    assert entry is not None
    return re.findall(r'"([^"]*)"', entry.group(1))[1:]


def flag_values(arguments: list[str]) -> dict[str, str]:
    """Flags of the form --name=value; the last of a name counts."""
    return dict(argument[2:].split("=", 1) for argument in arguments if "=" in argument)


def expect_accepted(case: unittest.TestCase, build: pathlib.Path, arguments: list[str]) -> None:
    """The server parses and checks these flags after the image's, and opens ports."""
    help_text = subprocess.run([str(build / "bin" / "fox-server"), "--help", "all"], check=True,
                               capture_output=True, text=True, timeout=60).stdout
    known = re.findall(r"(?m)^  (--[a-z0-9-]+)", help_text)
    names = [argument.split("=")[0] for argument in [*image_flags(), *arguments]
             if argument.startswith("--")]
    missing = [name for name in names if name not in known]
    for name in missing:
        case.assertTrue(name.startswith(OPTIONAL), f"fox-server has no {name}")
    if missing:
        case.skipTest(f"this build has no {', '.join(missing)}")
    free_ports = ["--grpc-port=0", "--metrics-port=0", "--http-port=0",
                  "--admin-address=127.0.0.1:0"]
    with tempfile.TemporaryDirectory() as empty:  # it ends there: the model comes after the ports
        arguments = [*image_flags(), *arguments, f"--model={empty}",
                     *(flag for flag in free_ports if flag.split("=")[0] in names)]
        ended = subprocess.run([str(build / "bin" / "fox-server"), *arguments],
                               capture_output=True, text=True, timeout=60)
    case.assertEqual(ended.returncode, 78)
    case.assertIn("config.json: no such file", ended.stderr)
