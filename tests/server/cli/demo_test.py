#!/usr/bin/env python3
"""Tests of the demo with stand-ins for fox-server and fox-cli: table, errors, cleanup; and of the
download and conversion of `--chat`, with packages in a folder. tests/e2e/page_test.py uses real
servers.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
import zlib

DEMO = pathlib.Path(__file__).resolve().parents[3] / "server" / "cli" / "demo.py"
ADAPTER = ("base.txt", "adapter_config.json", "adapter.safetensors")

# Appends its process id to a file, prints where it listens, and waits for a signal.
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

# Prints answers of fox-cli's form; FAKE_MODE makes it fail or hang.
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
    """Runs demo.py with the arguments of `./run demo`."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.programs = self.folder / "build" / "cpu" / "bin"
        self.programs.mkdir(parents=True)
        for name, text in (("fox-server", FAKE_SERVER), ("fox-cli", FAKE_CLI)):
            program = self.programs / name
            program.write_text(f"#!{sys.executable}\n{text}")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        (self.folder / "prompt_long.txt").write_text("It was a dark night.\n")
        self.pids = self.folder / "pids"

    def start(self, mode: str = "", *arguments: str, **changes: str) -> subprocess.Popen[str]:
        """Starts the demo without a screen; pip finds only the folder `packages`."""
        environment = dict(os.environ, FAKE_PIDS=str(self.pids), FAKE_MODE=mode, DISPLAY="",
                           WAYLAND_DISPLAY="", PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull,
                           PIP_FIND_LINKS=str(self.folder / "packages"), FOX_NO_INSTALL="")
        environment |= changes
        return subprocess.Popen(
            [sys.executable, "-B", str(DEMO), "--bin", str(self.programs), "--model",
             str(self.folder), *arguments],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def expect_no_server(self) -> None:
        """Checks that every server that was started has ended."""
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
        self.make_adapter()
        made = self.folder / "build" / "smollm2" / "made"
        made.parent.mkdir()
        made.write_text(" ".join(str(zlib.crc32((self.folder / "adapter" / name).read_bytes()))
                                 for name in ADAPTER))
        chat = ("--chat", str(self.folder / "adapter"), "--port", "0")
        for arguments, servers in ((("--web", "--port", "1234"), 1), (chat, 2)):
            with self.subTest(arguments):
                self.pids.write_text("")
                process = self.start("", *arguments)
                assert process.stdout is not None
                while "The page is at http://127.0.0.1:" not in process.stdout.readline():
                    self.assertIsNone(process.poll())
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)
                self.assertEqual(process.returncode, 130)
                self.assertEqual(len(self.pids.read_text().split()), servers)
                self.expect_no_server()

    def make_adapter(self, *files: str, sha256: str = "") -> None:
        """Makes an adapter, and in `packages` the wheel of its base model with `files`; all
        contents are nonsense."""
        for folder in ("adapter", "packages"):
            (self.folder / folder).mkdir(exist_ok=True)
            for old in (self.folder / folder).iterdir():
                old.unlink()
        wheel = self.folder / "packages" / "a_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in files:
                archive.writestr(name, "nonsense")
            archive.writestr("a_model-1.0.dist-info/METADATA",
                             "Metadata-Version: 2.1\nName: a-model\nVersion: 1.0\n")
            archive.writestr("a_model-1.0.dist-info/WHEEL",
                             "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        sha256 = sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
        for name in ADAPTER:
            (self.folder / "adapter" / name).write_text(
                f"a-model==1.0 --hash=sha256:{sha256}" if name == "base.txt" else "nonsense")

    def test_chat_says_in_one_line_why_there_is_no_model(self) -> None:
        for files, sha256, changes, said in (
            ((), "", {"FOX_NO_INSTALL": "1"}, "FOX_NO_INSTALL is set, and "),
            ((), "", {"PIP_FIND_LINKS": "/dev/null"}, "no network?): "),
            ((), "0" * 64, {}, "no network?): THESE PACKAGES DO NOT MATCH THE HASHES"),
            ((), "", {}, "has no GGUF file"),
            (("m.gguf",), "", {}, "the conversion failed: base.gguf: not a whole GGUF file"),
        ):
            with self.subTest(said):
                shutil.rmtree(self.folder / "build" / "smollm2", ignore_errors=True)
                self.make_adapter(*files, sha256=sha256)
                process = self.start("", "--chat", str(self.folder / "adapter"), **changes)
                _, err = process.communicate(timeout=60)
                self.assertEqual((process.returncode, err.count("\n")), (1, 1), err)
                self.assertIn(said, err)
        (self.folder / "adapter" / "base.txt").unlink()
        process = self.start("", "--chat", str(self.folder / "adapter"))
        self.assertIn("base.txt: missing\n", process.communicate(timeout=60)[1])


if __name__ == "__main__":
    unittest.main()
