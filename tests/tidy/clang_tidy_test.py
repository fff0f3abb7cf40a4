#!/usr/bin/env python3
"""clang-tidy over host files: the checks of .clang-tidy, -Wthread-safety among them.

The files that changed since the branch left origin/main, or in the last commit, and the files of
changed headers; with --all every file, which takes about ten minutes of one core. The files are
joined into units (clang_units.py). A unit that passes leaves a stamp in the build folder, so that a
second run checks only changed units. The stamp's name is a hash of the unit's files, our headers
that they include, the flags, .clang-tidy and the tool's version. Packages of the system count as
unchanged as long as the build folder exists.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable

import clang_tools
from clang_tools import ROOT
from clang_units import Unit, joined

QUOTED = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def flags_of(build: pathlib.Path) -> dict[pathlib.Path, list[str]]:
    """Flags of the compiler for each file, also for files that are joined (fox_join_sources).

    A file of several targets has the flags of the first.
    """
    ours = {ROOT / path for path in clang_tools.tracked("*.cc")}
    found: dict[pathlib.Path, list[str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        files = [entry["file"]]
        if "/Unity/" in entry["file"]:
            files = QUOTED.findall(pathlib.Path(entry["file"]).read_text(encoding="utf-8"))
        command = shlex.split(entry["command"])
        for file in ours.intersection(map(pathlib.Path, files)):
            found.setdefault(file, command[1:command.index("-o")])
    return found


def git(root: pathlib.Path, *arguments: str) -> list[str]:
    """The lines that git prints in `root`; none if it fails."""
    run = subprocess.run(["git", "-c", "safe.directory=*", *arguments], cwd=root,
                         capture_output=True, text=True)
    return run.stdout.splitlines() if run.returncode == 0 else []


def changed(files: Iterable[pathlib.Path], root: pathlib.Path) -> set[pathlib.Path]:
    """The subset of `files` that changed, or whose header did.

    A header's file is the .cc of the same name, else the first file that includes it. If git knows
    no earlier commit, all files count as changed.
    """
    base = git(root, "merge-base", "HEAD", "origin/main")
    if not base or base == git(root, "rev-parse", "HEAD"):
        base = git(root, "rev-parse", "HEAD~1")
    if not base:
        return set(files)
    paths = {root / path for path in git(root, "diff", "--name-only", base[0]) +
             git(root, "ls-files", "--others", "--exclude-standard")}
    found = paths.intersection(files)
    for header in (path for path in paths if path.suffix == ".h"):
        include = f'#include "{header.relative_to(root)}"'
        homes = [header.with_suffix(".cc"), *sorted(files)]
        found.update([file for file in homes if file in files
                      and include in file.read_text(encoding="utf-8")][:1])
    return found


class Digests:
    """Hashes of units: of their files and of all our headers that these include."""

    def __init__(self, common: str, roots: list[pathlib.Path]) -> None:
        self._common, self._roots = common, roots
        self._read: dict[pathlib.Path, tuple[bytes, list[pathlib.Path]]] = {}

    def _file(self, path: pathlib.Path) -> tuple[bytes, list[pathlib.Path]]:
        """The file's content, and the included files that lie in one of the roots."""
        if path not in self._read:
            content = path.read_bytes()
            places = [root / target for target in QUOTED.findall(content.decode(errors="replace"))
                      for root in (path.parent, *self._roots)]
            self._read[path] = content, [place for place in places if place.is_file()]
        return self._read[path]

    def of(self, unit: Unit) -> str:
        digest = hashlib.sha256((self._common + "\0".join(unit.flags)).encode())
        seen, stack = set(unit.files), unit.files[::-1]
        while stack:
            content, targets = self._file(stack.pop())
            digest.update(hashlib.sha256(content).digest())
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        return digest.hexdigest()


def check(tool: str, unit: Unit, stamp: pathlib.Path) -> str:
    """The findings in a unit, as text; leaves the unit's stamp if there are none."""
    source = unit.files[0]
    if len(unit.files) > 1:
        source = stamp.with_suffix(".cc")
        source.write_text(unit.text(), encoding="utf-8")
    # These are GCC's flags; clang does not know a flag of joined builds.
    run = subprocess.run([tool, "--quiet", str(source), "--", *unit.flags,
                          "-Wno-unknown-warning-option"], capture_output=True, text=True)
    said = "" if run.returncode == 0 else (run.stdout or run.stderr).strip()
    if len(unit.files) > 1:
        source.unlink()
    if said and len(unit.files) > 1:  # a finding in a file, or files that clash
        half = len(unit.files) // 2
        parts = [Unit(unit.flags, files) for files in (unit.files[:half], unit.files[half:])]
        found = "\n".join(filter(None, [check(tool, part, stamp) for part in parts]))
        if not found:
            names = " ".join(file.name for file in unit.files)
            print(f"passed in parts, which takes longer: {names}\n{said}", flush=True)
        said = found
    if said:
        stamp.unlink(missing_ok=True)
    else:
        stamp.touch()
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="a configured build of the preset cpu")
    parser.add_argument("--all", action="store_true", help="all files, not only the changed ones")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    tool = clang_tools.find("clang-tidy")
    stamps = build / "clang-tidy"
    stamps.mkdir(exist_ok=True)
    version = subprocess.run([tool, "--version"], check=True, capture_output=True, text=True)
    digests = Digests(version.stdout + (ROOT / ".clang-tidy").read_text(encoding="utf-8"),
                      [ROOT, build / "proto" / "generated"])
    flags = flags_of(build)
    if not flags:
        sys.exit(f"{build} compiles no file")
    if not arguments.all:
        flags = {file: flags[file] for file in changed(flags, ROOT)}
    names = {digests.of(unit): unit for unit in joined(flags)}
    for old in stamps.iterdir():
        if arguments.all and old.name not in names:
            old.unlink()
    new = [name for name in names if not (stamps / name).exists()]
    # The largest unit first, so that the last core does not end long after the others.
    new.sort(key=lambda name: -len(names[name].files))
    start, failed = time.monotonic(), 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for said in pool.map(lambda name: check(tool, names[name], stamps / name), new):
            if said:
                failed += 1
                print(said.replace(f"{ROOT}/", ""), flush=True)
    print(f"{len(flags)} files in {len(names)} units: {len(names) - len(new)} unchanged since they "
          f"passed, {len(new)} checked in {time.monotonic() - start:.0f} s, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
