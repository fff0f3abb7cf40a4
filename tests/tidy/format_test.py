#!/usr/bin/env python3
"""Every C++ and CUDA file is as clang-format leaves it, so no diff is about spaces.

`format_test.py --fix` formats them; file names as arguments limit both to these files.
"""

from __future__ import annotations

import subprocess
import sys

import clang_tools
from source_tree import CPP

PATTERNS = tuple("*" + suffix for suffix in CPP)


def unformatted(tool: str, files: list[str]) -> list[str]:
    # One run for all prints one block per place; only the names are of interest.
    run = subprocess.run([tool, "--dry-run", *files], cwd=clang_tools.ROOT, check=True,
                         capture_output=True, text=True)
    found = {line.split(":")[0] for line in run.stderr.splitlines()
             if "-Wclang-format-violations" in line}
    return sorted(found)


def main() -> int:
    """Prints the files that are not formatted; 0 when all are."""
    tool = clang_tools.find("clang-format")
    named = [name for name in sys.argv[1:] if not name.startswith("-")]
    files = clang_tools.tracked(*PATTERNS)
    files = [file for file in files if not named or file in named]
    if not files:
        print("no C++ or CUDA file among these")
        return 0
    if "--fix" in sys.argv[1:]:
        subprocess.run([tool, "-i", *files], cwd=clang_tools.ROOT, check=True)
        return 0
    found = unformatted(tool, files)
    for file in found:
        print(f"{file}: not formatted; tests/tidy/format_test.py --fix does it")
    print(f"{len(files)} files, {len(found)} not formatted")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
