#!/usr/bin/env python3
"""Tests docker/completion.bash on the programs themselves.

    completion_test.py BUILD     a build tree whose programs are built
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import loud_skips
import server_command
from loud_skips import ROOT

# Words of a command line, and the offers for the last of them.
CASES = (
    (("fox-server", "--device", ""), ["auto", "cpu", "cuda"]),
    (("fox-server", "--device", "=", "cu"), ["cuda"]),  # as bash parts `--device=cu`
    (("fox-server", "--device", "="), ["auto", "cpu", "cuda"]),
    (("fox-server", "--grpc-port", ""), []),
    (("fox-server", "--enforce-ea"), ["--enforce-eager"]),
    (("fox-server", "--no-enforce"), ["--no-enforce-eager"]),
    (("fox-server", "--no-he"), []),
    (("fox-server", "--no-dev"), []),  # no switch
    (("fox-cli", "hea"), ["health"]),
    (("fox-cli", "generate", "--acp", "p"), ["paper"]),
    (("fox-cli", "health", "--acp", "p"), []),
    (("fox-cli", "health", "--ta"), ["--target"]),
)


class CompletionTest(unittest.TestCase):
    """The offers of a Tab."""

    def complete(self, program: str, *words: str) -> list[str]:
        """The offers for the last of the words."""
        script = ('. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  '_foxserve; printf "%s\\n" "${COMPREPLY[@]}"')
        out = subprocess.run(["bash", "-c", script, "bash", ROOT / "docker" / "completion.bash",
                              server_command.BIN / program, *words],
                             capture_output=True, text=True, timeout=20)
        return list(filter(None, out.stdout.split("\n")))

    def test_offers(self) -> None:
        for words, offered in CASES:
            with self.subTest(words):
                self.assertEqual(self.complete(*words), offered)

    def test_every_flag_of_every_command(self) -> None:
        for program in server_command.PROGRAMS:
            texts = server_command.help_texts(program)
            if "" not in texts:
                self.assertEqual(self.complete(program, ""), [*texts, "--help"], program)
            for command, text in texts.items():
                with self.subTest(program=program, command=command):
                    flags = re.findall(r"(?m)^  (--[a-z0-9-]+)", text)
                    self.assertTrue(flags, text)
                    words = filter(None, (program, command, "--"))
                    self.assertEqual(self.complete(*words), flags)

    def test_folders_and_files(self) -> None:
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "my model").mkdir()
        (folder / "my text").write_text("")
        both = sorted(str(folder / name) for name in ("my model", "my text"))
        self.assertEqual(self.complete("fox-server", "--model", f"{folder}/my"), both[:1])
        self.assertEqual(sorted(self.complete("fox-server", "--api-key-file", f"{folder}/my")),
                         both)
        # Bash parts `@FILE`, and replaces it whole.
        self.assertEqual(sorted(self.complete("fox-cli", "score", "@", f"{folder}/my")),
                         ["@" + path for path in both])


if __name__ == "__main__":
    sys.exit(loud_skips.main())
