#!/usr/bin/env python3
"""The folder for the kernels hub holds all that it names, and names all that it holds."""

from __future__ import annotations

import pathlib
import re
import sys
import tempfile
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "kernels" / "torch"
sys.path.insert(0, str(PACKAGE))

import stage_hub  # noqa: E402


class StageHubTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.out = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / "staged"
        cls.files = stage_hub.stage(cls.out)
        cls.build_toml = (cls.out / "build.toml").read_text(encoding="utf-8")

    def test_every_include_is_there(self) -> None:
        suffixes = (".cc", ".cu", ".cuh", ".h")
        sources = [path for path in self.out.rglob("*") if path.suffix in suffixes]
        self.assertGreater(len(sources), 40)
        for path in sources:
            text = path.read_text(encoding="utf-8")
            for target in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
                # The builder generates this file.
                if target != "registration.h":
                    self.assertTrue((self.out / target).is_file(), f"{path.name}: {target}")

    def test_the_list_is_what_is_there(self) -> None:
        listed = re.findall(r'"(kernels/[^"]+)"', self.build_toml)
        there = [str(path.relative_to(self.out)) for path in self.out.glob("kernels/**/*.*")]
        self.assertEqual(sorted(listed), sorted(there))

    def test_operators_stand_in_the_namespace_of_the_build(self) -> None:
        """The hub gives each build a namespace, so that two versions load side by side."""
        for path in (self.out / "torch-ext").rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            self.assertNotRegex(text, r"torch\.ops\.fox|\"fox::", path.name)


if __name__ == "__main__":
    unittest.main()
