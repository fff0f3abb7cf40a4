#!/usr/bin/env python3
"""clang-tidy over every host file: the checks of .clang-tidy, -Wthread-safety among them.

All files, not a sample: from nothing that takes 11 minutes of one core. What has passed leaves a
stamp in the build folder, named by a hash of all that the answer depends on (the file, the headers
of ours that it reaches, its command line, .clang-tidy, the tool's version), so a second run checks
what changed. Packages of the system are taken to be the same as long as the folder is.

A machine too slow for that within --seconds checks what the last commit touched, then files in an
order that each commit changes, and says how many it did not reach.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import clang_tools
from clang_tools import ROOT

QUOTED = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def commands_of(build: pathlib.Path) -> dict[pathlib.Path, list[str]]:
    """The command line of each source of ours; of the first target where several compile one."""
    ours = {ROOT / path for path in clang_tools.tracked("*.cc")}
    found: dict[pathlib.Path, list[str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        file = pathlib.Path(entry["file"])
        if file in ours:
            found.setdefault(file, entry["command"].split())
    return found


class Digests:
    """Hashes of files together with all that they include from our folders."""

    def __init__(self, common: str, roots: list[pathlib.Path]) -> None:
        self._common, self._roots = common, roots
        self._read: dict[pathlib.Path, tuple[bytes, list[pathlib.Path]]] = {}

    def _file(self, path: pathlib.Path) -> tuple[bytes, list[pathlib.Path]]:
        """Content and included files, those that lie in one of the roots."""
        if path not in self._read:
            content = path.read_bytes()
            places = [root / target for target in QUOTED.findall(content.decode(errors="replace"))
                      for root in (path.parent, *self._roots)]
            self._read[path] = content, [place for place in places if place.is_file()]
        return self._read[path]

    def of(self, path: pathlib.Path, command: list[str]) -> str:
        """The name of the stamp."""
        digest = hashlib.sha256((self._common + "\0".join(command)).encode())
        seen, stack = {path}, [path]
        while stack:
            content, targets = self._file(stack.pop())
            digest.update(hashlib.sha256(content).digest())
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        return digest.hexdigest()


def check(tool: str, build: pathlib.Path, file: pathlib.Path, stamp: pathlib.Path) -> str:
    """The findings in one file; leaves its stamp when there are none."""
    run = subprocess.run([tool, "-p", str(build), "--quiet", str(file)], capture_output=True,
                         text=True)
    if run.returncode == 0:
        stamp.touch()
        return ""
    return (run.stdout or run.stderr).strip()


def in_order(files: list[pathlib.Path]) -> list[pathlib.Path]:
    """What the last commit or the work tree changed first; the others as the commit's id has it."""
    def said_by_git(*command: str) -> str:
        run = subprocess.run(["git", "-c", "safe.directory=*", *command], cwd=ROOT, text=True,
                             capture_output=True)
        return run.stdout  # empty without a history
    changed = {ROOT / path for path in said_by_git("diff", "--name-only", "HEAD~1").split()}
    commit = said_by_git("rev-parse", "HEAD")
    return sorted(files, key=lambda file: (
        file not in changed, hashlib.sha256(f"{commit}{file}".encode()).digest()))


def main() -> int:
    """Prints the findings; 0 when there are none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="a configured build of the preset cpu")
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    build, seconds = arguments.build.resolve(), arguments.seconds
    tool = clang_tools.find("clang-tidy")
    stamps = build / "clang-tidy"
    stamps.mkdir(exist_ok=True)
    version = subprocess.run([tool, "--version"], check=True, capture_output=True, text=True)
    digests = Digests(version.stdout + (ROOT / ".clang-tidy").read_text(encoding="utf-8"),
                      [ROOT, build / "proto" / "generated"])
    names = {file: digests.of(file, command) for file, command in commands_of(build).items()}
    for old in stamps.iterdir():
        if old.name not in names.values():
            old.unlink()
    new = in_order([file for file, name in names.items() if not (stamps / name).exists()])
    start, failed, reached = time.monotonic(), 0, 0

    def check_in_time(file: pathlib.Path) -> str | None:
        late = time.monotonic() - start > seconds
        return None if late else check(tool, build, file, stamps / names[file])

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for said in pool.map(check_in_time, new):
            reached += said is not None
            if said:
                failed += 1
                print(said.replace(f"{ROOT}/", ""), flush=True)
    print(f"{len(names)} files: {len(names) - len(new)} unchanged since they passed, {reached} "
          f"checked in {time.monotonic() - start:.0f} s, {len(new) - reached} not reached, "
          f"{failed} with findings")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main())
