#!/usr/bin/env python3
"""Tests the Debian package: its files, by lintian and by systemd-analyze.

    foxserve_test.py BUILD     a build tree whose programs are built
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import loud_skips  # noqa: E402
import server_command  # noqa: E402
from loud_skips import ROOT  # noqa: E402

UNIT = ROOT / "docker" / "debian" / "foxserve.service"
# Limit for systemd-analyze security, in tenths; a network server needs the remaining rights.
MOST_EXPOSURE = "20"


def output_of(*command: str, cwd: pathlib.Path | None = None) -> str:
    """The output of a command that must succeed."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100)
    if result.returncode != 0:
        raise AssertionError(f"{command[0]} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


class PackageTest(unittest.TestCase):
    """One package for all cases."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        if shutil.which("dpkg-deb") is None or shutil.which("dpkg-shlibdeps") is None:
            raise unittest.SkipTest("no dpkg-dev here")
        output_of("cpack", "-G", "DEB", "-B", str(cls.folder), cwd=loud_skips.build_folder())
        cls.package = next(cls.folder.glob("*.deb"))

    def test_files(self) -> None:
        names = {line.split()[-1][1:] for line in output_of("dpkg-deb", "-c", str(
            self.package)).splitlines()}
        for program in ("fox-server", "fox-cli", "fox-eval", "fox-bench"):
            for path in (f"/usr/bin/{program}", f"/usr/share/man/man1/{program}.1.gz",
                         f"/usr/share/bash-completion/completions/{program}"):
                with self.subTest(program=program, path=path):
                    self.assertIn(path, names)
        for path in ("/etc/default/foxserve", "/usr/lib/systemd/system/foxserve.service",
                     "/usr/share/doc/foxserve/copyright", "/usr/share/doc/foxserve/OPERATIONS.md",
                     "/usr/share/foxserve/demo/config.json"):
            with self.subTest(path=path):
                self.assertIn(path, names)
        # Libraries that are linked statically install no files.
        self.assertFalse([name for name in names if name.endswith((".h", ".a", ".pc", ".cmake"))])

    @unittest.skipIf(shutil.which("lintian") is None, "no lintian here")
    def test_lintian(self) -> None:
        output_of("lintian", "--allow-root", "--fail-on", "error,warning", str(self.package))

    @unittest.skipIf(shutil.which("systemd-analyze") is None, "no systemd-analyze here")
    def test_unit(self) -> None:
        unit = self.folder / UNIT.name
        program = loud_skips.build_folder() / "bin" / "fox-server"
        text = UNIT.read_text()
        self.assertIn("ExecStart=fox-server\n", text)
        unit.write_text(text.replace("ExecStart=fox-server", f"ExecStart={program}"))
        output_of("systemd-analyze", "verify", "--man=no", str(unit))
        output_of("systemd-analyze", "security", "--offline=true", "--threshold", MOST_EXPOSURE,
                  str(unit))

    def test_drain_ends_before_systemd_does(self) -> None:
        values = dict(line.split("=", 1) for line in UNIT.read_text().splitlines()
                      if "=" in line and not line.startswith("#"))
        self.assertGreater(int(values["TimeoutStopSec"]), server_command.drain_seconds([]) + 5)

    def test_plain_installation(self) -> None:
        prefix = self.folder / "prefix"
        output_of("cmake", "--install", str(loud_skips.build_folder()), "--prefix", str(prefix))
        self.assertFalse((prefix / "etc").exists())
        version = output_of(str(prefix / "bin" / "fox-cli"), "--version")
        self.assertIn(version.split()[1], self.package.name)
        # fox-bench finds the model that was installed beside it.
        demo = prefix / "share" / "foxserve" / "demo" / "config.json"
        demo.write_text("{")
        wrong = subprocess.run([str(prefix / "bin" / "fox-bench"), "prefill"], capture_output=True,
                               text=True, timeout=60)
        self.assertEqual(wrong.returncode, 78, wrong.stderr)
        self.assertIn("config.json", wrong.stderr)


if __name__ == "__main__":
    sys.exit(loud_skips.main())
