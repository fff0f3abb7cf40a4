"""A small Debian (or Ubuntu) of this machine's release for tests that install into one: debootstrap
makes it once, each test copies it. A missing program skips the test.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import loud_skips


def run(*command: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs a command; its whole output is one string."""
    return subprocess.run(["timeout", "-k", "10", str(seconds), *command], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False,
                          env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"})


def mirror() -> tuple[str, str]:
    """The address and the suite of this machine's apt sources for its release."""
    release = dict(line.split("=", 1) for line in
                   pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    suite = release.get("VERSION_CODENAME", "").strip('"')
    sources = run("apt-get", "indextargets", "--format", "$(SITE) $(CODENAME) $(COMPONENT)",
                  "Created-By: Packages").stdout
    for line in sources.splitlines():
        words = line.split()
        if words[1:] == [suite, "main"]:
            return words[0], suite
    raise unittest.SkipTest("apt names no mirror of this release")


def make_root(folder: pathlib.Path) -> None:
    """A small Debian with systemd, kept for later runs."""
    if folder.exists():
        return
    site, suite = mirror()
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    made = run("debootstrap", "--variant=minbase", "--include=systemd,dbus",
               "--components=main,universe" if "ubuntu" in site else "--components=main", suite,
               str(partial), site, seconds=500)
    if made.returncode != 0:
        raise unittest.SkipTest("debootstrap failed: " + made.stdout.strip().splitlines()[-1])
    partial.rename(folder)


def package(folder: pathlib.Path) -> pathlib.Path:
    """A Debian package of the build."""
    made = run("cpack", "-G", "DEB", "-B", str(folder), "--config",
               str(loud_skips.build_folder() / "CPackConfig.cmake"))
    if made.returncode != 0:
        raise AssertionError(made.stdout)
    return next(folder.glob("*.deb"))


def inside(root: pathlib.Path) -> tuple[str, ...]:
    """Runs a command in the system without a network; -b boots it."""
    return ("systemd-nspawn", "-q", "--private-network", "--register=no", "--keep-unit", "-D",
            str(root))


def copy_of_root(case: unittest.TestCase) -> pathlib.Path:
    """A system of the test's own, with the lists of what apt can install; gone after the test."""
    for program in ("debootstrap", "systemd-nspawn", "dpkg-shlibdeps"):
        if shutil.which(program) is None:
            case.skipTest(f"no {program} here")
    if os.geteuid() != 0:
        case.skipTest("only root can boot a system")
    base = loud_skips.build_folder() / "debian-root"
    make_root(base)
    # Beside the build tree, not in /tmp: that may forbid devices and programs.
    folder = tempfile.TemporaryDirectory(dir=base.parent)
    case.addCleanup(folder.cleanup)
    root = pathlib.Path(folder.name) / "root"
    copied = run("cp", "-a", "--reflink=auto", str(base), str(root))
    case.assertEqual(copied.returncode, 0, copied.stdout)
    tried = run(*inside(root), "/bin/true")
    if tried.returncode != 0:
        case.skipTest("systemd-nspawn cannot run here: " + tried.stdout.strip())
    if run("chroot", str(root), "apt-get", "-q", "update").returncode != 0:
        case.skipTest("apt reaches no mirror")
    return root
