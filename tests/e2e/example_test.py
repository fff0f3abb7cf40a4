#!/usr/bin/env python3
"""proto/example.py against a fox-server on the demo model. Skipped, and it says so, without grpcio.

    example_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
import unittest

from fox_server import ROOT, SKIPPED, FoxServer


class ExampleTest(unittest.TestCase):
    """One server for all cases."""

    programs = pathlib.Path()

    @classmethod
    def setUpClass(cls) -> None:
        cls.target = cls.enterClassContext(FoxServer(cls.programs)).target

    def run_example(self, prompt: str, target: str) -> subprocess.CompletedProcess[str]:
        """The example as a reader would call it."""
        return subprocess.run(
            [sys.executable, "-B", str(ROOT / "proto" / "example.py"), prompt, "--target", target,
             "--max-tokens", "8"], capture_output=True, text=True, timeout=60, check=False)

    def test_it_streams_and_reports(self) -> None:
        first, second = (self.run_example("Once upon a time", self.target) for _ in range(2))
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertRegex(first.stderr, r"^5 \+ \d tokens, 0 of 60 pages evicted\n$")
        self.assertGreater(len(first.stdout.strip()), 4)
        self.assertEqual(first.stdout, second.stdout)  # the request has a seed

    def test_a_refusal_is_one_line(self) -> None:
        refused = self.run_example("", self.target)
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertEqual(refused.stderr, "INVALID_ARGUMENT: text: the prompt is empty\n")

    def test_no_server(self) -> None:
        alone = self.run_example("Once", "127.0.0.1:1")
        self.assertEqual(alone.returncode, 1)
        self.assertRegex(alone.stderr, r"^UNAVAILABLE: [^\n]*\n$")


if __name__ == "__main__":
    ExampleTest.programs = pathlib.Path(sys.argv.pop(1))
    missing = [name for name in ("grpc", "grpc_tools") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"SKIPPED: {sys.executable} lacks {' and '.join(missing)} (pip: grpcio, "
              "grpcio-tools); `./run test` installs them")
        sys.exit(SKIPPED)
    unittest.main()
