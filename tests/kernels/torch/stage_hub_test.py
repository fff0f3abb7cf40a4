#!/usr/bin/env python3
"""The folder for the kernels hub holds all that it names, and names all that it holds.

The hub's own reader of build.toml and its checker of libraries run where pip has installed them:
pip install kernels kernel-abi-check.
"""

from __future__ import annotations

import pathlib
import re
import sys
import tempfile
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "kernels" / "torch"
sys.path.insert(0, str(PACKAGE))

import stage_hub  # noqa: E402

try:
    from kernels._rust import Backend, Build  # since 0.17, what `kernel-builder` parses with
except ImportError:
    Build = None
try:
    from kernel_abi_check import ObjectFile
except ImportError:
    ObjectFile = None
# As setup.py builds it in this tree or pip installs it.
LIBRARIES = [path for folder in (PACKAGE / "torch-ext", *map(pathlib.Path, sys.path))
             for path in folder.glob("fox_attention/_fox_attention*.so")]


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

    @unittest.skipIf(Build is None, "the package kernels, 0.17 or later, is not here")
    def test_the_hub_reads_build_toml(self) -> None:
        """Its parser refuses unknown fields, editions, backends and names."""
        build = Build.open(self.out)
        self.assertEqual(build.general.backends, [Backend.CUDA])
        self.assertEqual(build.all_kernel_depends(Backend.CUDA), [])
        wrong = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        text = self.build_toml.replace("cuda-capabilities", "cuda-capability")
        (wrong / "build.toml").write_text(text, encoding="utf-8")
        with self.assertRaisesRegex(ValueError, "cuda-capability"):
            Build.open(wrong)

    @unittest.skipIf(ObjectFile is None, "the package kernel-abi-check is not here")
    @unittest.skipIf(not LIBRARIES, "there is no compiled library: FOX_CUDA=1 pip install "
                     "./kernels/torch")
    def test_the_library_needs_no_python(self) -> None:
        """The other requirement, glibc 2.28, holds for the builder's toolchain."""
        for path in LIBRARIES:
            self.assertEqual(ObjectFile(path).check_python_abi("3.9"), [], path)


if __name__ == "__main__":
    unittest.main()
