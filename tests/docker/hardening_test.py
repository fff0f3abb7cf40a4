#!/usr/bin/env python3
"""Tests with binutils' readelf that the programs are hardened as Debian hardens its packages.

    hardening_test.py BUILD     the build tree
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import unittest

import loud_skips

PROGRAMS = ("fox-server", "fox-cli")


def readelf(program: str, *flags: str) -> str:
    """The output of readelf for a program."""
    return subprocess.run(["readelf", "--wide", *flags,
                           str(loud_skips.build_folder() / "bin" / program)],
                          capture_output=True, text=True, timeout=60, check=True).stdout


@unittest.skipIf(shutil.which("readelf") is None, "there is no readelf: binutils")
class HardeningTest(unittest.TestCase):
    """The installed programs that this build has."""

    def setUp(self) -> None:
        self.programs = [name for name in PROGRAMS
                         if (loud_skips.build_folder() / "bin" / name).exists()]
        self.assertTrue(self.programs)

    def test_addresses_are_random(self) -> None:
        for program in self.programs:
            self.assertRegex(readelf(program, "--file-header"), r"Type: +DYN", program)

    def test_tables_of_functions_are_read_only(self) -> None:
        for program in self.programs:
            self.assertIn("GNU_RELRO", readelf(program, "--program-headers"), program)
            self.assertRegex(readelf(program, "--dynamic"), r"FLAGS_1\).* NOW", program)

    def test_writes_to_the_stack_and_to_buffers_are_checked(self) -> None:
        cache = (loud_skips.build_folder() / "CMakeCache.txt").read_text(encoding="utf-8")
        if "FOX_HARDEN:BOOL=ON" not in cache:
            return  # this build has made no package
        for program in self.programs:
            symbols = readelf(program, "--dyn-syms")
            self.assertIn("__stack_chk_fail", symbols, program)
            self.assertRegex(symbols, r"__\w+_chk", program)

    def test_no_memory_is_writable_and_executable(self) -> None:
        for program in self.programs:
            with self.subTest(program=program):
                headers = readelf(program, "--program-headers")
                self.assertRegex(headers, r"GNU_STACK .* RW ", program)
                self.assertFalse(re.findall(r"LOAD .* RWE ", headers), program)


if __name__ == "__main__":
    sys.exit(loud_skips.main())
