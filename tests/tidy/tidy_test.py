#!/usr/bin/env python3
"""Holds the repository to its own style; fails with one line per violation.

Checks every file that git tracks or would track. The rules are in tidy_rules.py.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import tidy_rules

# (rule, path): reason. The list only shrinks: an entry that excuses nothing fails the test, too.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("mirror", "tests/models/convert/conversion_test.py"): "the converter as a whole",
    ("mirror", "tests/models/convert/refusals_test.py"): "the converter as a whole",
    ("mirror", "tests/models/tokenizer/vectors_test.cc"): "all tokenizers on recorded vectors",
    ("mirror", "tests/models/tokenizer/time_test.cc"): "all tokenizers on hostile text",
    ("mirror", "tests/models/tokenizer/grpc_process_test.cc"): "a property of the whole process",
    ("include", "tests/models/tokenizer/grpc_process_test.cc"): "gRPC and sentencepiece together",
}


def read_tree(root: pathlib.Path) -> tidy_rules.Tree:
    """All text files of the work tree that git does not ignore; binary files with empty text."""
    # The owner of a checkout in a container is often somebody else.
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
    findings = tidy_rules.check_all(tree)
    excused = {(finding.rule, finding.path) for finding in findings} & set(EXCEPTIONS)
    findings = [f for f in findings if (f.rule, f.path) not in excused]
    for finding in findings:
        print(f"{finding.path}:{finding.line}: {finding.message} [{finding.rule}]")
    stale = sorted(set(EXCEPTIONS) - excused)
    for rule, path in stale:
        print(f"{path}: the exception from [{rule}] excuses nothing any more; remove it")
    print(f"{len(tree)} files, {len(findings)} findings, {len(excused)} exceptions")
    return 1 if findings or stale else 0


if __name__ == "__main__":
    sys.exit(main())
