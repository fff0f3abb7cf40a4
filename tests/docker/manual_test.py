#!/usr/bin/env python3
"""Tests docker/manual.sh on the programs themselves: every flag is in the manual page, and mandoc
has nothing to say about it.

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
from server_command import BIN, PROGRAMS, help_texts

SECTIONS = ("NAME", "SYNOPSIS", "DESCRIPTION", '"EXIT STATUS"', "EXAMPLES", '"SEE ALSO"')


class ManualTest(unittest.TestCase):
    """The pages of one version, made once."""

    @classmethod
    def setUpClass(cls) -> None:
        if shutil.which("help2man") is None:
            raise unittest.SkipTest("no help2man here")
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        for program in PROGRAMS:
            subprocess.run([ROOT / "docker" / "manual.sh", "1.2.3",
                            ROOT / "docker" / "manual" / f"{program}.h2m", cls.path(program),
                            BIN / program],
                           check=True, timeout=100,
                           env={**os.environ, "SOURCE_DATE_EPOCH": "86400"})

    @classmethod
    def path(cls, program: str) -> pathlib.Path:
        return cls.folder / f"{program}.1.gz"

    def page(self, program: str) -> str:
        """The source of a page, with plain hyphens and without fonts."""
        text = gzip.decompress(self.path(program).read_bytes()).decode().replace("\\-", "-")
        return re.sub(r"\\f[BIR]|\\,|\\/", "", text)

    def test_every_flag_is_there(self) -> None:
        for program in PROGRAMS:
            page = self.page(program)
            for command, text in help_texts(program).items():
                with self.subTest(program=program, command=command):
                    flags = re.findall(r"(?m)^  (--[a-z0-9-]+(?: \S+)?)\s", text)
                    self.assertTrue(flags, text)
                    title = command.upper() if "-" not in command else f'"{command.upper()}"'
                    section = page.split(f".SH {title}\n")[1].split(".SH ")[0] if command else page
                    self.assertEqual(re.findall(r"(?m)^\.TP\n(--.+)$", section), flags)

    def test_pages_are_clean(self) -> None:
        for program in PROGRAMS:
            with self.subTest(program):
                page = self.page(program)
                for part in SECTIONS:
                    self.assertIn(f".SH {part}\n", page)
                self.assertIn('"1970-01-02" "foxserve 1.2.3"', page)
                if shutil.which("mandoc") is None:
                    self.skipTest("no mandoc here")
                lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", self.path(program)],
                                      capture_output=True, text=True, timeout=60)
                self.assertEqual(lint.stdout, "")


if __name__ == "__main__":
    sys.exit(loud_skips.main())
