#!/usr/bin/env python3
"""Tests of docker/manual.py on the programs themselves: every flag is in the manual page and in the
completion, mandoc finds nothing to complain about, and a real bash completes.

    manual_test.py BUILD     a build tree whose programs are built
"""

from __future__ import annotations

import gzip
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import loud_skips  # noqa: E402
from loud_skips import ROOT  # noqa: E402

PROGRAMS = ("fox-server", "fox-cli", "fox-eval", "fox-bench")


def read_page(path: pathlib.Path) -> str:
    """The source of a page, hyphens unescaped."""
    return gzip.decompress(path.read_bytes()).decode().replace("\\-", "-")


class Shell:
    """An interactive bash on a terminal."""

    def __init__(self, completions: pathlib.Path, folder: pathlib.Path) -> None:
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            os.chdir(folder)
            os.environ.update(PS1="$ ", TERM="dumb", INPUTRC="/dev/null")
            os.execlp("bash", "bash", "--norc", "--noprofile", "-i")
        self.type("bind 'set completion-query-items 0'; bind 'set page-completions off'\n")
        self.type(f"bind 'set bell-style none'; for f in {completions}/*; do . $f; done\n")
        self.type("echo re''ady\n")
        self.read_until("ready")

    def close(self) -> None:
        """Ends the shell."""
        os.close(self._terminal)
        os.waitpid(self._process, 0)

    def type(self, text: str) -> None:
        """As from a keyboard."""
        os.write(self._terminal, text.encode())

    def read_until(self, text: str) -> str:
        """What appears on the screen, until it has `text`."""
        seen, end = "", time.monotonic() + 20
        while text not in seen and time.monotonic() < end:
            if select.select([self._terminal], [], [], 0.1)[0]:
                seen += os.read(self._terminal, 4096).decode(errors="replace")
        if text not in seen:
            raise AssertionError(f"no '{text}' in:\n{seen}")
        return seen


class ManualTest(unittest.TestCase):
    """Pages and completions of one version, made once."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.share = pathlib.Path(folder.name)
        cls.bin = loud_skips.build_folder() / "bin"
        subprocess.run([sys.executable, "-B", str(ROOT / "docker" / "manual.py"), "--version",
                        "1.2.3", "--out", str(cls.share), *(str(cls.bin / p) for p in PROGRAMS)],
                       check=True, timeout=100)
        cls.pages = cls.share / "man" / "man1"
        cls.completions = cls.share / "bash-completion" / "completions"

    def help_of(self, *command: str) -> str:
        """What --help prints."""
        asked = ["--help", "all"] if command == ("fox-server",) else ["--help"]
        return subprocess.run([str(self.bin / command[0]), *command[1:], *asked], check=True,
                              capture_output=True, text=True, timeout=60).stdout

    def complete(self, program: str, *words: str) -> list[str]:
        """What a completion offers for the last of the words."""
        script = ('. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  f'_{program.replace("-", "_")}; printf "%s\\n" "${{COMPREPLY[@]}}"')
        out = subprocess.run(["bash", "-c", script, "bash", str(self.completions / program),
                              program, *words], capture_output=True, text=True, timeout=20)
        return out.stdout.split()

    def test_every_flag_is_there(self) -> None:
        for program in PROGRAMS:
            top = self.help_of(program)
            commands = re.findall(r"(?m)^  ([a-z][a-z-]*)\s", top)
            self.assertEqual(bool(commands), program != "fox-server", top)
            page = read_page(self.pages / f"{program}.1.gz")
            for command in commands or [""]:
                text = self.help_of(program, command) if command else top
                flags = re.findall(r"(?m)^  (--[a-z0-9-]+)", text)
                self.assertTrue(flags, text)
                words = [command] if command else []
                self.assertEqual(self.complete(program, *words, "--"), flags)
                section = page.split(f'.SH "{command.upper()}"')[1] if command else page
                for flag in flags:
                    self.assertIn(f'"{flag}', section.split(".SH \"")[0])

    def test_pages_are_clean(self) -> None:
        for program in PROGRAMS:
            page = read_page(self.pages / f"{program}.1.gz")
            for part in ("NAME", "SYNOPSIS", "DESCRIPTION", '"EXIT STATUS"', '"SEE ALSO"'):
                self.assertIn(f".SH {part}\n", page)
            self.assertIn("foxserve 1.2.3", page)
        self.assertIn("over gRPC and HTTP\n", read_page(self.pages / "fox-server.1.gz"))
        if shutil.which("mandoc") is None:
            self.skipTest("no mandoc here")
        for program in PROGRAMS:
            lint = subprocess.run(["mandoc", "-T", "lint", str(self.pages / f"{program}.1.gz")],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(lint.stdout, "")

    def test_exit_codes_are_those_of_the_server(self) -> None:
        text = (ROOT / "server" / "README.md").read_text()
        codes = re.findall(r"(?m)^\| (\d+) \|", text)
        self.assertEqual(codes, re.findall(r"(?m)^\.B (\d+)$",
                                           read_page(self.pages / "fox-server.1.gz")))

    def test_same_bytes_again(self) -> None:
        for folder in ("a", "b"):
            subprocess.run([sys.executable, "-B", str(ROOT / "docker" / "manual.py"), "--version",
                            "1", "--out", str(self.share / folder), str(self.bin / "fox-cli")],
                           check=True, timeout=60, env={**os.environ, "SOURCE_DATE_EPOCH": "86400"})
        pages = [(self.share / f / "man/man1/fox-cli.1.gz").read_bytes() for f in ("a", "b")]
        self.assertEqual(*pages)
        self.assertIn(b"1970-01-02", gzip.decompress(pages[0]).replace(b"\\-", b"-"))

    def test_values(self) -> None:
        self.assertEqual(self.complete("fox-server", "--device", ""), ["auto", "cpu", "cuda"])
        # As bash parts `--device=cu`.
        self.assertEqual(self.complete("fox-server", "--device", "=", "cu"), ["cuda"])
        self.assertEqual(self.complete("fox-server", "--device", "="), ["auto", "cpu", "cuda"])
        self.assertEqual(self.complete("fox-server", "--grpc-port", ""), [])
        self.assertIn("--no-enforce-eager", self.complete("fox-server", "--no-"))
        self.assertEqual(self.complete("fox-cli", "hea"), ["health"])
        self.assertEqual(self.complete("fox-cli", "generate", "--acp", "p"), ["paper"])
        self.assertEqual(self.complete("fox-cli", "health", "--acp", "p"), [])

    def test_at_a_prompt(self) -> None:
        folder = self.share / "some where"
        (folder / "models" / "my model").mkdir(parents=True)
        (folder / "prompt.txt").write_text("Once")
        shell = Shell(self.completions, folder)
        self.addCleanup(shell.close)
        for typed, becomes in (("fox-server --dev\tcu\t", "--device cuda "),
                               ("fox-server --acp=of\t", "--acp=off "),
                               ("fox-server --model models/my\t", "models/my\\ model/"),
                               ("fox-cli gen\t@pro\t", "generate @prompt.txt "),
                               ("fox-eval per\t--tex\t", "perplexity --text ")):
            shell.type(typed)
            shell.read_until(becomes)
            shell.type("\x15")


if __name__ == "__main__":
    sys.exit(loud_skips.main())
