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
# A flag of readelf, a pattern, and whether its output has it.
ALWAYS = (
    ("--file-header", r"Type: +DYN", True),  # addresses are random
    ("--program-headers", "GNU_RELRO", True),  # tables of functions are read-only
    ("--dynamic", r"FLAGS_1\).* NOW", True),
    ("--program-headers", r"GNU_STACK .* RW ", True),  # no memory is writable and executable
    ("--program-headers", r"LOAD .* RWE ", False),
)
# Writes to the stack and to buffers are checked in builds that make packages.
HARDENED = (("--dyn-syms", "__stack_chk_fail", True), ("--dyn-syms", r"__\w+_chk", True))


@unittest.skipIf(shutil.which("readelf") is None, "there is no readelf: binutils")
class HardeningTest(unittest.TestCase):
    """The installed programs that this build has."""

    def test_programs(self) -> None:
        build = loud_skips.build_folder()
        hardened = "FOX_HARDEN:BOOL=ON" in (build / "CMakeCache.txt").read_text(encoding="utf-8")
        programs = [name for name in PROGRAMS if (build / "bin" / name).exists()]
        self.assertTrue(programs)
        for program in programs:
            for flag, pattern, wanted in (*ALWAYS, *(HARDENED if hardened else ())):
                with self.subTest(program=program, pattern=pattern):
                    said = subprocess.run(["readelf", "--wide", flag, str(build / "bin" / program)],
                                          capture_output=True, text=True, timeout=60, check=True)
                    self.assertEqual(bool(re.search(pattern, said.stdout)), wanted)


if __name__ == "__main__":
    sys.exit(loud_skips.main())
