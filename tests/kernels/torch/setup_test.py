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
import unittest.mock
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


class LibraryTest(unittest.TestCase):
    def test_the_newest_is_loaded(self) -> None:
        """Whatever the names; none where there is none."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        module = shutil.copy(PACKAGE / "torch-ext" / "fox_attention" / "_ops.py", folder)
        names = ("_fox_attention.abi3.so", "_fox_attention_9.so", "_fox_attention.so")
        for count in range(len(names) + 1):
            with self.subTest(count=count):
                for age, name in enumerate(reversed(names[:count])):
                    (folder / name).touch()
                    os.utime(folder / name, (1e9 - age, 1e9 - age))
                spec = importlib.util.spec_from_file_location("_ops", module)
                with unittest.mock.patch("torch.ops.load_library") as load:
                    spec.loader.exec_module(importlib.util.module_from_spec(spec))
                self.assertEqual([call.args for call in load.call_args_list],
                                 [(folder / names[count - 1],)] if count else [])


if __name__ == "__main__":
    for name in ("pip", "setuptools", "wheel"):  # pip does not fetch them: --no-build-isolation
        if importlib.util.find_spec(name) is None:
            print(f"SKIPPED: {sys.executable} lacks {name}")
            sys.exit(SKIPPED)
    unittest.main()
