#!/usr/bin/env python3
"""Packs a CUDA build for a machine with a GPU on which nothing can be built or installed.

Takes the GPU tests and the programs, stripped, and the shared libraries that a bare Ubuntu 24.04
does not have. cuBLAS stays behind: it is half a gigabyte, and machines with GPUs have it.
The demo model's weights go into an archive of their own, for trees too large to travel with them.
"""

from __future__ import annotations

import argparse
import json
import lzma
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import gpu_build

PROGRAMS = ("fox-server", "fox-cli", "fox-bench", "fox-eval")
# Libraries of the target machine: the C and C++ runtime, the driver, and cuBLAS.
LEFT_OUT = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|cuda|"
                      r"cublas|cublasLt))\.so(\..*)?$")


def shared_libraries(binary: pathlib.Path) -> set[pathlib.Path]:
    """Shared libraries of `binary` that the target machine may lack."""
    listing = subprocess.run(["ldd", str(binary)], check=True, capture_output=True,
                             text=True).stdout
    found = set()
    for line in listing.splitlines():
        match = re.match(r"\s*(\S+) => (\S+)", line)
        if match is None or LEFT_OUT.match(pathlib.Path(match.group(1)).name):
            continue
        if match.group(2) == "not":
            sys.exit(f"gpu-pack: {binary.name} needs {match.group(1)}, which is not there")
        found.add(pathlib.Path(match.group(2)))
    return found


def stage(build: pathlib.Path, folder: pathlib.Path) -> None:
    """Fills bin/ and lib/ and writes the list of tests."""
    tests = gpu_build.ctest_list(build)
    if not tests:
        sys.exit("gpu-pack: the build has no tests labelled gpu")
    unbuilt = [test["name"] for test in tests if not test["command"]]
    if unbuilt:
        sys.exit(f"gpu-pack: not built: {' '.join(unbuilt)}")
    binaries = {pathlib.Path(test["command"][0]) for test in tests}
    binaries |= {build / "bin" / program for program in PROGRAMS}
    (folder / "bin").mkdir()
    (folder / "lib").mkdir()
    libraries: set[pathlib.Path] = set()
    for binary in sorted(binaries):
        if not binary.is_file():
            sys.exit(f"gpu-pack: {binary} is not built")
        subprocess.run(["strip", "-o", str(folder / "bin" / binary.name), str(binary)], check=True)
        libraries |= shared_libraries(binary)
    for library in sorted(libraries):
        shutil.copy2(library.resolve(), folder / "lib" / library.name)
    for test in tests:
        test["command"][0] = "bin/" + pathlib.Path(test["command"][0]).name
    (folder / gpu_build.TESTS_FILE).write_text(json.dumps(tests, indent=1), encoding="utf-8")
    (folder / gpu_build.SOURCE_FILE).write_text(json.dumps(gpu_build.source(build)),
                                                encoding="utf-8")
    print(f"{len(binaries)} programs, {len(libraries)} libraries, {len(tests)} tests")


def pack_model(folder: pathlib.Path, pack: pathlib.Path) -> None:
    """Packs the weights in `folder` if they are newer than the archive."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        return
    if not pack.is_file() or pack.stat().st_mtime < max(w.stat().st_mtime for w in weights):
        # bf16 numbers shrink to two thirds if the filter separates odd from even bytes.
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}]
        partial = pack.with_suffix(".partial")
        with lzma.open(partial, "wb", filters=filters) as out:
            with tarfile.open(fileobj=out, mode="w") as archive:
                for file in weights:
                    archive.add(file, file.name)
        partial.replace(pack)
    print(f"{pack}: {pack.stat().st_size / 1e6:.1f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="build folder of the preset cuda")
    parser.add_argument("--list", action="store_true", help="only the names of the GPU tests")
    parser.add_argument("name", nargs="?", default="gpu", help="of the folder that it unpacks to")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(test["name"] for test in gpu_build.ctest_list(arguments.build)))
        return 0
    gpu_build.PACKS.mkdir(exist_ok=True)
    pack = gpu_build.PACKS / f"foxserve-{arguments.name}.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        stage(arguments.build.resolve(), pathlib.Path(folder))
        # Python's own xz uses one core.
        subprocess.run(["tar", "--create", "--use-compress-program=xz --threads=0", "--file",
                        str(pack), "--directory", folder, "bin", "lib", gpu_build.TESTS_FILE,
                        gpu_build.SOURCE_FILE],
                       check=True)
    print(f"{pack}: {pack.stat().st_size / 1e6:.1f} MB")
    pack_model(gpu_build.MODEL, gpu_build.MODEL_PACK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
