#!/usr/bin/env python3
"""Tests docker/release_notes.py: the section of a version, and tags that fit no release."""

from __future__ import annotations

import pathlib
import re
import sys
import tempfile
import unittest

import loud_skips
from loud_skips import ROOT

sys.path.insert(0, str(ROOT / "docker"))
from release_notes import ReleaseError, notes, section  # noqa: E402

CHANGELOG = """# Changelog

What a user notices.

## Unreleased

- **New**: not yet.

## 1.10.0

### Serving

- **B**: two.

## 1.1.0 (first)

- **A**: one.
"""
SECTIONS = (
    ("Unreleased", "- **New**: not yet."),
    ("1.10.0", "### Serving\n\n- **B**: two."),
    ("1.1.0", "- **A**: one."),
    ("1.1", ""),
    ("10.0", ""),
    ("1x10.0", ""),
    ("", ""),
)


class ReleaseNotesTest(unittest.TestCase):
    def test_sections(self) -> None:
        for version, text in SECTIONS:
            with self.subTest(version):
                self.assertEqual(section(CHANGELOG, version), text)

    def test_tags(self) -> None:
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (root / "CHANGELOG.md").write_text(CHANGELOG)
        for version, tag, said in (
                ("1.10.0", "v1.10.0", ""),
                ("1.10.0", "1.10.0", "the tag is 1.10.0, and CMakeLists.txt has 1.10.0"),
                ("1.11.0", "v1.10.0", "the tag is v1.10.0, and CMakeLists.txt has 1.11.0"),
                ("1.11.0", "v1.11.0", "CHANGELOG.md says nothing about 1.11.0")):
            with self.subTest(version=version, tag=tag):
                (root / "CMakeLists.txt").write_text(
                    f"cmake_minimum_required(VERSION 3.25)\nproject(foxserve VERSION {version})\n")
                if not said:
                    self.assertEqual(notes(tag, root), "### Serving\n\n- **B**: two.")
                    continue
                with self.assertRaisesRegex(ReleaseError, re.escape(said)):
                    notes(tag, root)

    def test_this_tree(self) -> None:
        """The version of this tree has notes, as its files are where the script looks."""
        version = re.search(r"project\(foxserve VERSION ([\d.]+)",
                            (ROOT / "CMakeLists.txt").read_text())[1]
        changelog = (ROOT / "CHANGELOG.md").read_text()
        newest = re.findall(r"(?m)^## (\d\S*)", changelog)[0]
        self.assertIn("- **", section(changelog, newest))
        if newest == version:
            self.assertEqual(notes(f"v{version}", ROOT), section(changelog, version))


if __name__ == "__main__":
    sys.exit(loud_skips.main())
