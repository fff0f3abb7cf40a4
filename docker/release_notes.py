#!/usr/bin/env python3
"""Prints the notes of a release: the section of its version in CHANGELOG.md.

    release_notes.py TAG        v0.2.0, for example

Fails, with one line, if the tag is not v and the version in CMakeLists.txt, or if CHANGELOG.md has
nothing about that version.
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


class ReleaseError(Exception):
    """The tree is not ready for this release; the message says why."""


def section(changelog: str, version: str) -> str:
    """The text below `## VERSION` and above the next version. Empty if there is none."""
    titles = list(re.finditer(r"(?m)^## (\S+).*\n", changelog))
    for title, following in zip(titles, [*titles[1:], None]):
        if title[1] == version:
            return changelog[title.end() : following.start() if following else None].strip()
    return ""


def notes(tag: str, root: pathlib.Path) -> str:
    """The notes of a tag on the tree `root`. Raises ReleaseError."""
    build = (root / "CMakeLists.txt").read_text("utf-8")
    match = re.search(r"(?m)^project\(foxserve VERSION ([\d.]+)", build)
    if match is None or tag != f"v{match[1]}":
        version = match[1] if match else "no version"
        raise ReleaseError(f"the tag is {tag}, and CMakeLists.txt has {version}")
    text = section((root / "CHANGELOG.md").read_text("utf-8"), match[1])
    if not text:
        raise ReleaseError(f"CHANGELOG.md says nothing about {match[1]}")
    return text


def main() -> int:
    """Exit status 1 after a ReleaseError."""
    if len(sys.argv) != 2:
        print("usage: release_notes.py TAG", file=sys.stderr)
        return 2
    try:
        print(notes(sys.argv[1], ROOT))
    except ReleaseError as error:
        print(f"release_notes.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
