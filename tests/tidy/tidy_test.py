#!/usr/bin/env python3
"""Holds the repository to its own style; fails with one line per violation.

Checks every file that git tracks or would track. A rule is a function check_... of a tree that
yields findings, its reason is its docstring, and tidy_rules_test.py plants a violation of each.
exceptions.txt has the excused findings.

    tidy_test.py                          all rules
    tidy_test.py --headless [FOLDER..]    the lines that this rule counts, also within its cap
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import code_rules
import expectation_rules
import include_rules
import text_rules
import tree_rules
from source_tree import Finding, Tree, numbered

EXCEPTIONS = "tests/tidy/exceptions.txt"
RULES: list[Callable[[Tree], Iterator[Finding]]] = [
    value for module in (include_rules, code_rules, expectation_rules, text_rules, tree_rules)
    for name, value in vars(module).items() if name.startswith("check_")]



def check_all(tree: Tree) -> list[Finding]:
    findings = [finding for rule in RULES for finding in rule(tree)]
    return sorted(findings, key=lambda f: (f.path, f.line, f.rule))


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
    tree = read_tree(pathlib.Path(__file__).resolve().parents[2])
    if sys.argv[1:2] == ["--headless"]:
        folders = tuple(sys.argv[2:]) or ""
        listed = [f for f in text_rules.headless_lines(tree)[1] if f.path.startswith(folders)]
        for finding in listed:
            print(f"{finding.path}:{finding.line}: {finding.message}")
        print(f"{len(listed)} findings")
        return 0
    exceptions = read_exceptions(tree)
    findings = check_all(tree)
    excused = {(finding.rule, finding.path) for finding in findings} & exceptions.keys()
    findings = [f for f in findings if (f.rule, f.path) not in excused]
    findings += [Finding("exception", EXCEPTIONS, exceptions[entry],
                         f"{' '.join(entry)} excuses nothing any more")
                 for entry in sorted(exceptions.keys() - excused)]
    for finding in findings:
        print(f"{finding.path}:{finding.line}: {finding.message} [{finding.rule}]")
    print(f"{len(tree)} files, {len(findings)} findings, {len(excused)} exceptions")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
