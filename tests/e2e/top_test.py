#!/usr/bin/env python3
"""fox-cli top: once into a pipe, live on a terminal; fox-cli info: lines, or indented.

    top_test.py BIN     the folder of fox-server and fox-cli
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

HOME = "\x1b[H\x1b[J"


class TopTest(unittest.TestCase):
    """One server for all cases, which has answered one prompt."""

    programs = pathlib.Path()

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = cls.enterClassContext(FoxServer(cls.programs))
        cls.server.generate(["Once", "--max-tokens", "5"], show=False)

    def command(self, *arguments: str) -> list[str]:
        """fox-cli top of the server."""
        return [str(self.programs / "fox-cli"), "top", "--target", self.server.target,
                "--interval", "0.1", *arguments]

    def test_without_a_terminal_it_prints_once(self) -> None:
        run = subprocess.run(self.command(), capture_output=True, text=True, timeout=60, check=True)
        self.assertNotIn("\x1b", run.stdout)
        lines = run.stdout.splitlines()
        self.assertRegex(lines[0], r"^demo  foxserve \d+\.\d+\.\d+  cpu .* up 0:00:\d\d$")
        self.assertIn("requests    0 of 16 running, 0 waiting (0 tokens, 0.0 s), 0 paused", lines)
        self.assertRegex(run.stdout, r"\nper second +0\.0 generated +0\.0 of prompts ")
        self.assertRegex(run.stdout, r"\nKV pool +\[\.{30}\] +0\.0%  0 B of \d+\.\d GiB\n")
        self.assertIn("certificate log mass none, tolerance -10.0000; 0 pages evicted", run.stdout)
        self.assertIn("ended       1 finished, 0 cancelled", run.stdout)

    def test_on_a_terminal_it_goes_on(self) -> None:
        terminal, end = pty.openpty()
        with subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=end) as process:
            os.close(end)
            shown = ""
            while shown.count(HOME) < 3:
                shown += os.read(terminal, 4096).decode()
            self.assertIsNone(process.poll())
            process.kill()
        os.close(terminal)
        self.assertIn("engine      last turned", shown)

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
                (["--interval", "0"], 2, "--interval"), (["more"], 2, "unexpected argument more")):
            run = subprocess.run([str(self.programs / "fox-cli"), "top", *arguments],
                                 capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(run.returncode, code, run.stderr)
            self.assertIn(said, run.stderr)


if __name__ == "__main__":
    TopTest.programs = pathlib.Path(sys.argv.pop(1))
    unittest.main()
