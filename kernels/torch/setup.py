"""Builds the package fox_attention: Python alone, or with the CUDA kernels if nvcc is found.

Environment: FOX_CUDA_ARCHITECTURES, as CMake's CMAKE_CUDA_ARCHITECTURES (for example 90a-real, or
native); FOX_CUDA=0 omits the kernels, FOX_CUDA=1 requires them. Nothing is downloaded.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import setuptools
from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE / "torch-ext" / "fox_attention"


def find_nvcc() -> str | None:
    """Path of nvcc: in CUDA_HOME, in the search path, or in CUDA's default folder."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    folders = [*(f"{home}/bin" for home in homes), os.environ.get("PATH", os.defpath),
               "/usr/local/cuda/bin"]
    return shutil.which("nvcc", path=os.pathsep.join(folders))


def wants_kernels() -> bool:
    """True if the CUDA kernels are built; prints a message if they are not."""
    choice, nvcc = os.environ.get("FOX_CUDA", ""), find_nvcc()
    if choice == "1" and nvcc is None:
        raise SystemExit("FOX_CUDA=1, but there is no nvcc: set CUDA_HOME")
    if choice == "0" or nvcc is None:
        reason = "FOX_CUDA=0" if choice == "0" else "no nvcc was found"
        print(f"fox_attention: {reason}; installing the reference alone, without CUDA kernels")
        return False
    return True


class BuildKernels(build_ext):
    """Runs CMake. The library is loaded by torch.ops.load_library and is not a Python module."""

    def build_extension(self, ext: setuptools.Extension) -> None:
        import torch

        target = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        build = pathlib.Path(self.build_temp).resolve() / "cmake"
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_CUDA_COMPILER": find_nvcc(),
            "FOX_TORCH_ROOT": pathlib.Path(torch.__file__).parent,
            "FOX_TORCH_OUTPUT": target,
        }
        if architectures := os.environ.get("FOX_CUDA_ARCHITECTURES"):
            options["CMAKE_CUDA_ARCHITECTURES"] = architectures
        subprocess.run(["cmake", "-G", "Ninja", "-S", HERE, "-B", build,
                        *(f"-D{name}={value}" for name, value in options.items())], check=True)
        subprocess.run(["cmake", "--build", build], check=True)

    def get_ext_filename(self, fullname: str) -> str:
        """One wheel for all versions of Python, because the library does not link to Python."""
        return str(pathlib.Path(*fullname.split("."))) + ".so"


version = re.search(r'__version__ = "(.*)"', (PACKAGE / "__init__.py").read_text())
setuptools.setup(
    version=version.group(1),
    package_dir={"": "torch-ext"},
    packages=["fox_attention"],
    ext_modules=[setuptools.Extension("fox_attention._fox_attention", [])]
    if wants_kernels() else [],
    cmdclass={"build_ext": BuildKernels},
)
