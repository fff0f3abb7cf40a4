#!/usr/bin/env python3
"""fox-cli info: lines, on a terminal indented.

    info_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import os
import pathlib
import pty
import select
import subprocess
import sys
import unittest

from fox_server import FoxServer


class InfoTest(unittest.TestCase):
    """One server for all cases."""

    programs = pathlib.Path()

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = cls.enterClassContext(FoxServer(cls.programs))

    def test_info_is_indented_on_a_terminal(self) -> None:
        command = [str(self.programs / "fox-cli"), "info", "--target", self.server.target]
        piped = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(len(piped.stdout.splitlines()), 3)
        terminal, end = pty.openpty()
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=end) as process:
            os.close(end)
            shown = ""
            while process.poll() is None or select.select([terminal], [], [], 0)[0]:
                try:
                    shown += os.read(terminal, 4096).decode()
                except OSError:  # the other end is closed
                    break
        os.close(terminal)
        self.assertIn('{\r\n "version": ', shown)
        self.assertTrue(shown.endswith("\n}\r\n"), shown[-20:])

    def test_errors(self) -> None:
        for arguments, code, said in (
                (["--target", "127.0.0.1:1"], 1, "UNAVAILABLE"),
                (["--timeout", "-1"], 2, "--timeout"), (["more"], 2, "unexpected argument more")):
            run = subprocess.run([str(self.programs / "fox-cli"), "info", *arguments],
                                 capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(run.returncode, code, run.stderr)
            self.assertIn(said, run.stderr)


if __name__ == "__main__":
    InfoTest.programs = pathlib.Path(sys.argv.pop(1))
    unittest.main()
