#!/usr/bin/env python3
"""A wheel without nvcc holds the reference and says that the kernels are not in it."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from attention_inputs import PACKAGE, SKIPPED  # noqa: E402


def build_wheel(folder: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """pip wheel of a copy of the package, without network."""
    shutil.copytree(PACKAGE, folder / "torch", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("build", "*.egg-info", "*.so", "__pycache__"))
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-v", "--no-index", "--no-deps",
         "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "torch")],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
        check=False)


class SetupTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_without_kernels(self) -> None:
        run = build_wheel(self.folder, FOX_CUDA="0")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("without CUDA kernels", run.stdout + run.stderr)
        wheel, = self.folder.glob("fox_attention-*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        self.assertFalse([name for name in names if name.endswith(".so")])
        sources = {path.name for path in (PACKAGE / "torch-ext" / "fox_attention").glob("*.py")}
        self.assertEqual({pathlib.Path(name).name for name in names if name.endswith(".py")},
                         sources)


if __name__ == "__main__":
    for name in ("pip", "setuptools", "wheel"):  # pip does not fetch them: --no-build-isolation
        if importlib.util.find_spec(name) is None:
            print(f"SKIPPED: {sys.executable} lacks {name}")
            sys.exit(SKIPPED)
    unittest.main()
