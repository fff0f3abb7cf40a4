#!/usr/bin/env python3
"""Tests of the Dockerfiles without Docker: the steps of the last stage are run in a small Debian,
with the package of this build, and then what a container would run, as its user, on a read-only
root. Dockerfile.cuda differs from Dockerfile only where it says so.

    Dockerfile_test.py BUILD     a build tree whose programs are built
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import unittest
import urllib.request

import loud_skips
import small_debian
from loud_skips import ROOT

FOLDER = ROOT / "docker"
START_SECONDS = 60


def instructions(name: str) -> list[list[tuple[str, str]]]:
    """Each stage's instructions, continued lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", (FOLDER / name).read_text()).replace("\\\n", " ")
    stages: list[list[tuple[str, str]]] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        word, rest = line.split(None, 1)
        if word == "FROM":
            stages.append([])
        if stages:
            stages[-1].append((word, re.sub(r"\s+", " ", rest)))
    return stages


class DockerfileTest(unittest.TestCase):
    """The image for CPUs, and what the other has in common with it."""

    def setUp(self) -> None:
        self.build, self.image = instructions("Dockerfile")
        self.last = dict(self.image)
        self.command = json.loads(self.last["ENTRYPOINT"]) + json.loads(self.last["CMD"])

    def test_user_and_health(self) -> None:
        user = self.last["USER"].split(":")[0]
        self.assertIn(f"--uid {user} ", self.last["RUN"])
        port, http = (self.command[self.command.index(flag) + 1]
                      for flag in ("--grpc-port", "--http-port"))
        self.assertEqual(self.last["EXPOSE"], f"{port} {http}")
        for name in ("Dockerfile", "Dockerfile.cuda"):
            self.assertIn(f"-p 127.0.0.1:{http}:{http}", (FOLDER / name).read_text())
        health = json.loads(self.last["HEALTHCHECK"].split(" CMD ")[1])
        self.assertEqual(health, ["fox-cli", "health", "--target", f"127.0.0.1:{port}"])

    def test_cuda_image_is_the_same_but_for_cuda(self) -> None:
        build, image = instructions("Dockerfile.cuda")
        changed = [(mine, other) for mine, other in zip(self.image, image) if mine != other]
        self.assertEqual([mine[0] for mine, _ in changed], ["FROM", "HEALTHCHECK"])
        self.assertEqual(len(self.image), len(image))
        self.assertIn(("RUN", "./run package cuda && mv build/cuda/foxserve-cuda_*.deb "
                       "/foxserve.deb"), build)

    def test_the_last_stage(self) -> None:
        root = small_debian.copy_of_root(self)
        shutil.copy(small_debian.package(root.parent), root / "tmp" / "foxserve.deb")
        for word, rest in self.image:
            if word == "RUN":
                done = small_debian.run("chroot", str(root), "/bin/sh", "-c", rest)
                self.assertEqual(done.returncode, 0, done.stdout)
        self.assertFalse((root / "tmp" / "foxserve.deb").exists())

        user, group = self.last["USER"].split(":")
        self.assertIn(f"fox:x:{user}:", (root / "etc/passwd").read_text())
        # As Docker would: the first process, no privileges, nothing to write to.
        process = subprocess.Popen(
            ["systemd-nspawn", "-q", "--register=no", "--keep-unit", "--read-only",
             "--kill-signal=SIGTERM", "-D", str(root), "setpriv", f"--reuid={user}",
             f"--regid={group}", "--clear-groups", "--bounding-set=-all", "--no-new-privs",
             *self.command, "--grpc-port", "0", "--http-port", "0", "--kv-cache-mb", "64"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        said = ""
        while "listening for HTTP on" not in said:
            line = process.stdout.readline()
            self.assertTrue(line, said)
            said += line
        port, http = (re.search(rf"listening {what}on \S+:(\d+)", said).group(1)
                      for what in ("", "for HTTP "))

        def cli(*command: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([str(loud_skips.build_folder() / "bin" / "fox-cli"), *command,
                                   "--target", f"127.0.0.1:{port}"], capture_output=True,
                                  text=True, timeout=START_SECONDS)

        self.assertEqual(cli("health").returncode, 0)
        body = b'{"prompt": "Once upon a time", "max_tokens": 4}'
        request = urllib.request.Request(f"http://127.0.0.1:{http}/v1/completions", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            self.assertEqual(json.load(answer)["usage"]["completion_tokens"], 4)
        # What is not offered to strangers.
        self.assertIn("UNIMPLEMENTED", cli("drain").stderr)
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=START_SECONDS)[0]
        self.assertEqual(process.returncode, 0, said + rest)
        self.assertIn("stopped", rest)


if __name__ == "__main__":
    sys.exit(loud_skips.main())
