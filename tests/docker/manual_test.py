#!/usr/bin/env python3
"""Tests of docker/manual.py on the programs themselves: every flag is in the manual page and in the
completion, mandoc finds nothing to complain about, and bash completes.

    manual_test.py BUILD     a build tree whose programs are built
"""

from __future__ import annotations

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import loud_skips
from loud_skips import ROOT

PROGRAMS = ("fox-server", "fox-cli", "fox-eval", "fox-bench")


def read_page(path: pathlib.Path) -> str:
    """The source of a page, hyphens unescaped."""
    return gzip.decompress(path.read_bytes()).decode().replace("\\-", "-")


class ManualTest(unittest.TestCase):
    """Pages and completions of one version, made once."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.share = pathlib.Path(folder.name)
        cls.bin = loud_skips.build_folder() / "bin"
        subprocess.run([sys.executable, "-B", str(ROOT / "docker" / "manual.py"), "--version",
                        "1.2.3", "--out", str(cls.share), *(str(cls.bin / p) for p in PROGRAMS)],
                       check=True, timeout=100, env={**os.environ, "SOURCE_DATE_EPOCH": "86400"})
        cls.pages = cls.share / "man" / "man1"
        cls.completions = cls.share / "bash-completion" / "completions"

    def help_of(self, *command: str) -> str:
        """What --help prints."""
        asked = ["--help", "all"] if command == ("fox-server",) else ["--help"]
        return subprocess.run([str(self.bin / command[0]), *command[1:], *asked], check=True,
                              capture_output=True, text=True, timeout=60).stdout

    def complete(self, program: str, *words: str) -> list[str]:
        """What a completion offers for the last of the words."""
        script = ('. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  f'_{program.replace("-", "_")}; printf "%s\\n" "${{COMPREPLY[@]}}"')
        out = subprocess.run(["bash", "-c", script, "bash", str(self.completions / program),
                              program, *words], capture_output=True, text=True, timeout=20)
        return list(filter(None, out.stdout.split("\n")))

    def test_every_flag_is_there(self) -> None:
        for program in PROGRAMS:
            top = self.help_of(program)
            commands = re.findall(r"(?m)^  ([a-z][a-z-]*)\s", top)
            self.assertEqual(bool(commands), program != "fox-server", top)
            page = read_page(self.pages / f"{program}.1.gz")
            for command in commands or [""]:
                text = self.help_of(program, command) if command else top
                flags = re.findall(r"(?m)^  (--[a-z0-9-]+)", text)
                self.assertTrue(flags, text)
                words = [command] if command else []
                self.assertEqual(self.complete(program, *words, "--"), flags)
                section = page.split(f'.SH "{command.upper()}"')[1] if command else page
                for flag in flags:
                    self.assertIn(f'"{flag}', section.split(".SH \"")[0])

    def test_pages_are_clean(self) -> None:
        for program in PROGRAMS:
            page = read_page(self.pages / f"{program}.1.gz")
            for part in ("NAME", "SYNOPSIS", "DESCRIPTION", '"EXIT STATUS"', '"SEE ALSO"'):
                self.assertIn(f".SH {part}\n", page)
            self.assertIn('1970-01-02 "foxserve 1.2.3"', page)
        self.assertIn("over gRPC and HTTP\n", read_page(self.pages / "fox-server.1.gz"))
        if shutil.which("mandoc") is None:
            self.skipTest("no mandoc here")
        for program in PROGRAMS:
            lint = subprocess.run(["mandoc", "-T", "lint", str(self.pages / f"{program}.1.gz")],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(lint.stdout, "")

    def test_values(self) -> None:
        self.assertEqual(self.complete("fox-server", "--device", ""), ["auto", "cpu", "cuda"])
        # As bash parts `--device=cu`.
        self.assertEqual(self.complete("fox-server", "--device", "=", "cu"), ["cuda"])
        self.assertEqual(self.complete("fox-server", "--device", "="), ["auto", "cpu", "cuda"])
        self.assertEqual(self.complete("fox-server", "--grpc-port", ""), [])
        self.assertIn("--no-enforce-eager", self.complete("fox-server", "--no-"))
        self.assertEqual(self.complete("fox-cli", "hea"), ["health"])
        self.assertEqual(self.complete("fox-cli", "generate", "--acp", "p"), ["paper"])
        self.assertEqual(self.complete("fox-cli", "health", "--acp", "p"), [])
        models = self.share / "models" / "my model"
        models.mkdir(parents=True)
        self.assertEqual(self.complete("fox-server", "--model", str(models.parent) + "/my"),
                         [str(models)])


if __name__ == "__main__":
    sys.exit(loud_skips.main())
