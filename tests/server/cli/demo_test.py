#!/usr/bin/env python3
"""Tests of the demo on stand-ins for fox-server and fox-cli: table, errors, cleanup."""

from __future__ import annotations

import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

DEMO = pathlib.Path(__file__).resolve().parents[3] / "server" / "cli" / "demo.py"

# Notes its process, says where it listens and waits to be stopped.
FAKE_SERVER = """
import os, sys, time
acp = sys.argv[sys.argv.index("--acp") + 1]
print("loading", flush=True)
open(os.environ["FAKE_PIDS"], "a").write(f"{os.getpid()}\\n")
print("listening on 127.0.0.1:" + {"certified": "1001", "paper": "1002"}[acp], flush=True)
if "--http-port" in sys.argv:
    print("listening for HTTP on 127.0.0.1:" + sys.argv[sys.argv.index("--http-port") + 1],
          flush=True)
time.sleep(60)
"""

# Answers as fox-cli does; FAKE_MODE makes it fail or hang.
FAKE_CLI = """
import json, os, sys, time
command, target = sys.argv[1], sys.argv[sys.argv.index("--target") + 1]
mode = os.environ.get("FAKE_MODE", "")
if command == "info":
    print(json.dumps({"kv_dtype": "bf16", "page_size": 64, "device": "an abacus"}, indent=1),
          json.dumps({"head_dim": 64}))
if command != "generate":
    sys.exit(0)
if mode == "fail":
    sys.exit("unavailable: broken")
print(json.dumps({"delta": {"text": " there was"}}), flush=True)
if mode == "hang":
    time.sleep(60)
off = "--acp" in sys.argv
evicted = 0 if off else 100 if target.endswith("1002") else 200
mass = {} if off else {"max_log_evicted_mass": -10.25, "log_tolerance": -10.0}
print(json.dumps({"finish": {
    "usage": {"prompt_tokens": 640, "completion_tokens": 65},
    "perf": {"ttft_s": 1.5, "decode_s": 2.0},
    "acp": {"pages_allocated": "400", "pages_evicted": str(evicted), **mass}}}))
"""


class DemoTest(unittest.TestCase):
    """Runs demo.py as `./run demo` does."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, text in (("fox-server", FAKE_SERVER), ("fox-cli", FAKE_CLI)):
            program = self.folder / name
            program.write_text(f"#!{sys.executable}\n{text}")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        (self.folder / "prompt_long.txt").write_text("It was a dark night.\n")
        self.pids = self.folder / "pids"

    def start(self, mode: str = "", *arguments: str) -> subprocess.Popen[str]:
        """The demo as a running process, without a screen."""
        environment = dict(os.environ, FAKE_PIDS=str(self.pids), FAKE_MODE=mode, DISPLAY="",
                           WAYLAND_DISPLAY="")
        return subprocess.Popen(
            [sys.executable, "-B", str(DEMO), "--bin", str(self.folder), "--model",
             str(self.folder), *arguments],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def expect_no_server(self) -> None:
        """Every server that was started is gone."""
        for pid in self.pids.read_text().split():
            with self.assertRaises(ProcessLookupError):
                os.kill(int(pid), 0)

    def test_table(self) -> None:
        out, err = self.start().communicate(timeout=60)
        self.assertEqual(err, "")
        self.assertIn("Once upon a time there was", out)
        self.assertIn("computes on an abacus", out)
        rows = {line.split()[0]: line.split() for line in out.splitlines()
                if line.split()[:1] in (["off"], ["paper"], ["certified"])}
        # 400 pages of 64 keys and 64 values of 64 bf16 numbers: 16 KiB each.
        self.assertEqual(rows["off"], ["off", "640", "65", "1.50", "32.0", "6.2", "MiB", "(100%)",
                                       "0", "none", "none"])
        self.assertEqual(rows["paper"][5:9], ["4.7", "MiB", "(75%)", "100"])
        self.assertEqual(rows["certified"][5:],
                         ["3.1", "MiB", "(50%)", "200", "-10.2500", "-10.0000"])
        self.expect_no_server()

    def test_failure_is_told_and_cleaned_up(self) -> None:
        process = self.start("fail")
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn("unavailable: broken", err)
        self.expect_no_server()

    def test_interrupt_stops_the_server(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                process = self.start("hang")
                assert process.stdout is not None
                while "A short prompt" not in process.stdout.readline():
                    pass
                time.sleep(0.2)
                process.send_signal(number)
                process.communicate(timeout=60)
                self.assertEqual(process.returncode, 130)
                self.expect_no_server()

    def test_web_says_where_the_page_is_until_it_is_stopped(self) -> None:
        process = self.start("", "--web", "--port", "1234")
        assert process.stdout is not None
        while "The page is at http://127.0.0.1:1234\n" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.expect_no_server()


if __name__ == "__main__":
    unittest.main()
