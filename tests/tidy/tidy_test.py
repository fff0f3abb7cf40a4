#!/usr/bin/env python3
"""Holds the repository to its own style; fails with one line per violation.

Checks every file that git tracks or would track. The rules are in tidy_rules.py; what they excuse
for now is in exceptions.txt and covered_elsewhere.txt. `--prune` takes lines that excuse nothing
any more out of both.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import tidy_rules
from source_tree import Tree, numbered
from tree_rules import COVERED_ELSEWHERE

EXCEPTIONS = "tests/tidy/exceptions.txt"


def read_exceptions(tree: Tree) -> dict[tuple[str, str], int]:
    """(rule, path) of each line `rule path: reason`, with the line's number."""
    exceptions = {}
    for line, content in numbered(tree[EXCEPTIONS]):
        if not content.strip() or content.startswith("#"):
            continue
        entry, _, reason = content.partition(":")
        words = entry.split()
        if len(words) != 2 or not reason.strip():
            sys.exit(f"{EXCEPTIONS}:{line}: not of the form 'rule path: reason'")
        exceptions[words[0], words[1]] = line
    return exceptions


def remove_lines(file: pathlib.Path, lines: set[int]) -> None:
    """Rewrites the file without these lines."""
    kept = [content for line, content in numbered(file.read_text(encoding="utf-8"))
            if line not in lines]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept))
    file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def read_tree(root: pathlib.Path) -> Tree:
    """All text files of the work tree that git does not ignore; binary files with empty text."""
    # A checkout in a container often has another owner.
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-coz", "--exclude-standard"],
        cwd=root, check=True, capture_output=True).stdout.decode()
    tree = {}
    for path in filter(None, listing.split("\0")):
        file = root / path
        if not file.is_file() or file.is_symlink():
            continue  # deleted, and not yet committed as such
        data = file.read_bytes()
        try:
            tree[path] = "" if b"\0" in data else data.decode()
        except UnicodeDecodeError:
            tree[path] = ""
    return tree


def main() -> int:
    """Prints the findings; 0 when there are none."""
    root = pathlib.Path(__file__).resolve().parents[2]
    tree = read_tree(root)
    exceptions = read_exceptions(tree)
    findings = tidy_rules.check_all(tree)
    excused = {(finding.rule, finding.path) for finding in findings} & exceptions.keys()
    findings = [f for f in findings if (f.rule, f.path) not in excused]
    stale = sorted(exceptions.keys() - excused)
    if "--prune" in sys.argv[1:]:
        remove_lines(root / EXCEPTIONS, {exceptions[entry] for entry in stale})
        remove_lines(root / COVERED_ELSEWHERE,
                     {f.line for f in findings if f.path == COVERED_ELSEWHERE})
    for finding in findings:
        print(f"{finding.path}:{finding.line}: {finding.message} [{finding.rule}]")
    for rule, path in stale:
        print(f"{EXCEPTIONS}:{exceptions[rule, path]}: {rule} {path} excuses nothing any more; "
              "tidy_test.py --prune removes it")
    print(f"{len(tree)} files, {len(findings)} findings, {len(excused)} exceptions")
    return 1 if findings or stale else 0


if __name__ == "__main__":
    sys.exit(main())
