#!/usr/bin/env python3
"""Restarts of a fox-server with --prefix-cache-dir: after SIGTERM and after SIGKILL a long prompt
is found again, with the same answer; damaged files cost time alone; a directory has one server.

    restart_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import json
import pathlib
import signal
import tempfile
import time
import urllib.request
from typing import Any

import fox_server
from fox_server import MODEL, wait_until

PROMPT = (MODEL / "prompt_long.txt").read_text()  # 6,645 tokens
SHORT = PROMPT[:8000]
CONFIGURATION = 78  # the exit code


class RestartTest(fox_server.Case):
    """Each case has a directory of its own."""

    flags = None

    def setUp(self) -> None:
        self.dir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "cache"
        self.live()

    def live(self, *flags: str) -> None:
        """Starts the next server of the directory."""
        self.serve_case("--prefix-cache-dir", str(self.dir), "--http-port", "0",
                        "--metrics-port", "0", *flags)

    def ask(self, prompt: str = SHORT, **fields: Any) -> tuple[Any, int, float]:
        """The answer with its log-probabilities, the prompt's cached tokens, and the seconds until
        it came."""
        begin = time.monotonic()
        answer = json.loads(self.post(prompt=prompt, max_tokens=8, temperature=0, logprobs=3,
                                      **fields))
        cached = answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return answer["choices"], cached, time.monotonic() - begin

    def count(self, name: str) -> int:
        """The value of a metric of the prefix cache on disk."""
        url = f"http://{self.server.ports['Prometheus']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            lines = response.read().decode().splitlines()
        return int(next(line for line in lines if line.startswith(f"fox_prefix_disk_{name} "))
                   .split()[1])

    def files(self) -> list[pathlib.Path]:
        """The stored prefixes."""
        return sorted(self.dir.glob("*.snapshot"))

    def test_after_sigterm_the_prompt_is_found(self) -> None:
        _, cold, computing = self.ask(PROMPT)
        known, cached, _ = self.ask(PROMPT)
        other = self.ask(PROMPT, cache_salt="another")[1]
        self.assertEqual((cold, other), (0, 0))
        self.assertGreater(cached, 6000)
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        self.assertGreaterEqual(len(self.files()), 2)
        self.assertEqual([file.stat().st_mode & 0o777 for file in self.files()],
                         [0o600] * len(self.files()))
        self.live()
        self.assertEqual(self.count("files"), len(self.files()))
        again, found, reading = self.ask(PROMPT)
        self.assertEqual(found, cached)
        self.assertEqual(again, known)  # to the last bit of the log-probabilities
        self.assertEqual(self.ask(PROMPT, cache_salt="another")[1], cached)
        self.assertEqual(self.ask(PROMPT, cache_salt="a third")[1], 0)
        self.assertEqual((self.count("found_total"), self.count("errors_total")), (2, 0))
        print(f"computed in {computing:.3f} s, read in {reading:.3f} s, "
              f"{self.files()[0].stat().st_size / 1e6:.1f} MB")
        self.assertLess(reading, computing)

    def test_after_sigkill_what_was_written_is_found(self) -> None:
        self.ask()
        known, cached, _ = self.ask()
        self.assertTrue(wait_until(lambda: self.count("saved_total") > 0, 30))
        self.server.end(signal.SIGKILL)
        (self.dir / "writing.tmp").write_bytes(b"half of a file")
        self.live()
        self.assertEqual(self.ask()[:2], (known, cached))

    def test_damaged_files_are_computed_again(self) -> None:
        known = self.ask()[0]
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        for file in self.files():
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
        self.live()
        self.assertEqual(self.ask()[:2], (known, 0))
        self.assertGreater(self.count("errors_total"), 0)
        self.assertTrue(self.server.logged("prefix cache on disk"))
        self.assertEqual(len([line for line in self.server.log if "cache on disk" in line]), 1)
        self.assertGreater(self.ask()[1], 0)  # from memory

    def test_a_full_disk_costs_no_answer(self) -> None:
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        blocked = self.dir / "writing.tmp"
        blocked.mkdir()  # so that no file can be written
        self.live()
        known = self.ask()[0]
        self.assertEqual(self.ask()[0], known)
        self.assertEqual(self.server.end(signal.SIGTERM), 0)
        self.assertEqual(self.files(), [])
        self.assertTrue(self.server.logged("writing a snapshot: open: Is a directory"))

    def test_a_directory_has_one_server(self) -> None:
        begin = time.monotonic()
        second = self.start("--model", str(MODEL), "--prefix-cache-dir", str(self.dir))
        self.assertEqual(second.returncode, CONFIGURATION)
        self.assertIn(f"--prefix-cache-dir: {self.dir}: another server uses this directory",
                      second.stderr)
        self.assertLess(time.monotonic() - begin, 2)
        self.assertEqual(
            self.start("--check-model", str(MODEL), "--prefix-cache-dir", str(self.dir)).returncode,
            0)
        missing = self.start("--model", str(MODEL), "--prefix-cache-dir", str(self.dir / "a" / "b"))
        self.assertEqual(missing.returncode, CONFIGURATION)
        self.assertIn("No such file or directory", missing.stderr)


if __name__ == "__main__":
    fox_server.main()
