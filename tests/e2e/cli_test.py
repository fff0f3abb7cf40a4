#!/usr/bin/env python3
"""fox-cli's output on terminals and its targets; fox-server's warnings about its environment.

    cli_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import os
import pty
import subprocess
import unittest

import fox_server

# Control characters of a terminal (ECMA-48): escape sequences, their 8-bit forms, backspace,
# carriage return.
CONTROLS = "a\x1b[31mb\x07c\bd\re\x7ff\x9b31mg\x85h"
SHOWN = "a\\x1b[31mb\\x07c\\x08d\\x0de\\x7ff\\x9b31mg\\x85h"


class CliTest(fox_server.Case):
    """fox-cli with one server."""

    flags = ("--http-port", "0")

    def ids(self, text: str) -> str:
        """The token ids of a text, without bos."""
        return self.cli("tokenize", "--no-bos", "-", said=text).stdout.strip()

    def on_a_terminal(self, *arguments: str) -> str:
        """Runs fox-cli on a terminal and returns its output."""
        ours, its = pty.openpty()
        with subprocess.Popen([str(self.programs / "fox-cli"), *arguments, "--target",
                               self.server.target], stdout=its, stdin=subprocess.DEVNULL) as cli:
            os.close(its)
            said = b""
            try:
                while more := os.read(ours, 4096):
                    said += more
            except OSError:  # the end of a terminal
                pass
            os.close(ours)
        self.assertEqual(cli.returncode, 0)
        return said.decode()

    def test_a_terminal_gets_no_control_characters(self) -> None:
        ids = self.ids(CONTROLS)
        shown = self.on_a_terminal("detokenize", ids)
        self.assertIn(SHOWN, shown)
        self.assertFalse({c for c in shown.replace("\r\n", "") if ord(c) < 32 or
                          127 <= ord(c) < 160}, shown)

    def test_tabs_lines_and_other_letters_are_shown(self) -> None:
        text = "a\tb\nc \u00e4\u20ac\u00a0d"
        self.assertIn(text.replace("\n", "\r\n"), self.on_a_terminal("detokenize", self.ids(text)))

    def test_a_program_gets_the_text_as_it_is(self) -> None:
        done = subprocess.run([str(self.programs / "fox-cli"), "detokenize", self.ids(CONTROLS),
                               "--target", self.server.target], capture_output=True, timeout=60,
                              check=True)
        self.assertIn(CONTROLS, done.stdout.decode())

    def test_an_error_holds_none_either(self) -> None:
        for argument in ("\x1b[31mred", "a\x9bb"):
            done = self.cli("generate", "x", f"--{argument}")
            self.assertNotEqual(done.returncode, 0, repr(argument))
            self.assertFalse({c for c in done.stderr if (ord(c) < 32 and c != "\n") or
                              127 <= ord(c) < 160}, done.stderr)

    def test_an_audit_is_a_line(self) -> None:
        done = self.cli("generate", "Once upon a time", "--max-tokens", "3", "--audit")
        self.assertIn("audit: total variation of a token at most 0, 0 in all 3; divergence 0 nats",
                      done.stderr)
        refused = self.cli("generate", "a", "--audit", "--acp", "off")
        self.assertIn("acp.audit: nothing is pruned", refused.stderr)

    def test_a_port_alone_is_of_this_machine(self) -> None:
        port = self.server.address[1]
        for target in (f":{port}", f"http://:{port}/", f"localhost:{port}"):
            self.assertEqual(self.cli("health", target=target).stdout, "SERVING\n", target)

    def test_a_wrong_target_is_told_in_a_line(self) -> None:
        for target, said in ((self.server.ports["HTTP"], "this is an HTTP port, and gRPC has the "
                              "server's --grpc-port"), ("127.1.2.3", "127.1.2.3:50051")):
            failed = self.cli("health", target=target)
            self.assertEqual((failed.returncode, failed.stderr.count("\n")), (1, 1), target)
            self.assertIn(said, failed.stderr)


class EnvironmentTest(unittest.TestCase):
    """Environment variables of a fox-server that only prints its version."""

    def test_a_variable_that_is_no_flag_is_told(self) -> None:
        done = subprocess.run(
            [str(fox_server.Case.programs / "fox-server"), "--version"], capture_output=True,
            env={**os.environ, "FOX_MAX_NUM_SEQ": "4", "FOX_HTTP_PORT": "0",
                 "FOX_A_SERVICE_HOST": "10.0.0.1"}, text=True, timeout=60, check=True)
        self.assertIn("FOX_MAX_NUM_SEQ is ignored", done.stderr)
        self.assertIn("did you mean FOX_MAX_NUM_SEQS?", done.stderr)
        self.assertNotIn("FOX_HTTP_PORT", done.stderr)
        self.assertNotIn("FOX_A_SERVICE_HOST", done.stderr)


if __name__ == "__main__":
    fox_server.main()
