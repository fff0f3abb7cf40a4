#!/usr/bin/env python3
"""Tests the wheel and the archive of a release: checksums, linked libraries, and the way from pip
to the first token, on this machine and in a Debian without a compiler or a network.

    make_wheel_test.py BUILD     a build tree whose programs are built
"""

from __future__ import annotations

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import loud_skips  # noqa: E402
import small_debian  # noqa: E402
from loud_skips import ROOT  # noqa: E402
from small_debian import run  # noqa: E402

MOST_MS = 20_000  # milliseconds from pip to the first token
# The libraries that the platform's name promises: glibc, GCC's runtime and zlib.
OF_THE_SYSTEM = r"lib(c|m|stdc\+\+|gcc_s|z)\.so\.\d+"
# Runs in a folder with the wheel; the last two lines of `said` are the answer and the milliseconds.
INSIDE = r"""#!/bin/bash
cd "$(dirname "$0")"
exec >said 2>&1
set -eu
python3 -m venv venv
begin="$(date +%s%N)"
venv/bin/pip install --quiet --no-index --disable-pip-version-check ./foxserve-*.whl
venv/bin/foxserve serve demo --grpc-port 0 >log 2>&1 &
trap 'kill $!; wait $!' EXIT
until target="$(sed -n 's/^listening on //p' log)"; [[ "$target" ]]; do
  kill -0 $! || { cat log; exit 1; }
  sleep 0.02
done
venv/bin/foxserve generate "Once upon a time" --max-tokens 1 --temperature 0 --target "$target"
echo $((($(date +%s%N) - begin) / 1000000))
"""
# Arguments, exit code, and a part of the first line of output; a wrong call has one line.
COMMANDS: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("--version",), 0, "fox-server "),
    ((), 0, "usage: foxserve"),
    (("serve", "--help"), 0, "usage: foxserve serve"),
    (("chat", "--help"), 0, "fox-cli chat"),
    (("demo", "--help"), 0, "usage: demo"),
    (("convert", "--help"), 0, "usage: convert"),
    (("train",), 2, "unknown command train"),
    (("serve",), 78, "--model"),
    (("serve", "nowhere"), 78, "nowhere: the model directory does not exist"),
    (("serve", "demo", "--nothing"), 78, "--nothing"),
    (("chat", "nowhere"), 1, "nowhere: the model directory does not exist"),
    (("convert", "nowhere", "out"), 1, "numpy is missing"),
    (("health", "--target", "127.0.0.1:1"), 1, "UNAVAILABLE"),
)


class WheelTest(unittest.TestCase):
    """The tests share one wheel."""

    @classmethod
    def setUpClass(cls) -> None:
        for module in ("auditwheel", "wheel"):
            if loud_skips.optional(module) is None:
                raise unittest.SkipTest(f"no {module} here")
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        made = run(sys.executable, "-B", str(ROOT / "docker" / "wheel" / "make_wheel.py"),
                   str(loud_skips.build_folder()), str(cls.folder))
        if made.returncode != 0:
            raise AssertionError(made.stdout)

    def expect_token(self, folder: pathlib.Path, *command: str) -> None:
        """Runs INSIDE by the command; its token must come in time."""
        shutil.copy(next(self.folder.glob("*.whl")), folder)
        (folder / "inside").write_text(INSIDE)
        (folder / "inside").chmod(0o755)
        ran = run(*command)
        said = (folder / "said").read_text() if (folder / "said").exists() else ran.stdout
        self.assertRegex(said, r"(?m)^ there\n\d+$")
        milliseconds = int(said.split()[-1])
        print(f"{' '.join(command)}: the first token after {milliseconds} ms", file=sys.stderr)
        self.assertLess(milliseconds, MOST_MS)

    def test_release(self) -> None:
        """SHA256SUMS fit; all libraries are in the archive or belong to the system."""
        summed = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=self.folder, text=True,
                                capture_output=True)
        self.assertEqual(len(re.findall(": OK", summed.stdout)), 2, summed)
        wheel, archive = (next(self.folder.glob(f"foxserve-*.{end}")) for end in ("whl", "tar.gz"))
        glibc = tuple(map(int, re.findall(
            rf"manylinux_(\d+)_(\d+)_{platform.machine()}", wheel.name)[0]))
        mine = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
        self.assertLessEqual(glibc, tuple(map(int, mine.split("."))))
        shutil.unpack_archive(archive, self.folder / "unpacked")
        root = next((self.folder / "unpacked").iterdir())
        for name in ("fox-server", "fox-cli", "fox-eval", "fox-bench"):
            with self.subTest(name=name):
                linked = run("ldd", str(root / "foxserve" / "bin" / name)).stdout
                paths = re.findall(r"(\S+) => (.*?)(?: \(|$)", linked, re.M)
                self.assertGreater(len(paths), 10)
                self.assertEqual([(library, path) for library, path in paths
                                  if str(root) not in str(pathlib.Path(path).resolve())
                                  and not re.fullmatch(OF_THE_SYSTEM, library)], [])
        licences = {path.name for path in root.glob("*.dist-info/licenses/*")}
        self.assertLess({"LICENSE", "foxserve", "libgomp1"}, licences)

    def test_here(self) -> None:
        """On this machine: a first token, and each command of `foxserve`."""
        folder = self.folder / "here"
        folder.mkdir()
        self.expect_token(folder, str(folder / "inside"))
        for arguments, code, text in COMMANDS:
            with self.subTest(arguments):
                ended = subprocess.run([str(folder / "venv" / "bin" / "foxserve"), *arguments],
                                       capture_output=True, text=True, timeout=60)
                said = (ended.stderr if code else ended.stdout).splitlines()
                self.assertEqual(ended.returncode, code, ended)
                self.assertIn(text, said[0] if said else "nothing")
                self.assertTrue(code == 0 or len(said) == 1, said)

    def test_bare_debian(self) -> None:
        """In a Debian without a compiler or a network."""
        root = small_debian.copy_of_root(self)
        added = run("chroot", str(root), "apt-get", "-q", "-y", "install",
                    "--no-install-recommends", "python3-venv")
        self.assertEqual(added.returncode, 0, added.stdout)
        self.assertEqual([name for name in ("cc", "gcc", "g++", "clang", "cmake")
                          if (root / "usr" / "bin" / name).exists()], [])
        self.expect_token(root / "srv", *small_debian.inside(root), "/srv/inside")


if __name__ == "__main__":
    sys.exit(loud_skips.main())
