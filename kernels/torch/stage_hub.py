#!/usr/bin/env python3
"""Makes a folder for the HuggingFace kernels hub's builder: build.toml and all files it names.

    stage_hub.py OUT     OUT must not exist; then: cd OUT && kernel-builder build

The builder reads nothing outside its folder and requires a list of all headers. So this program
copies the sources of build.toml with all headers that they include, and lists the headers there.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCE = re.compile(r'^    "(kernels/[^"]+)",$', re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*"(kernels/[^"]+)"', re.MULTILINE)


def kernel_sources(build_toml: str) -> list[str]:
    """The sources of the kernel, relative to the repository."""
    return SOURCE.findall(build_toml)


def with_headers(sources: list[str]) -> list[str]:
    """Sources and all headers of this repository that they include, sorted."""
    found: set[str] = set()
    waiting = list(sources)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += INCLUDE.findall((ROOT / path).read_text(encoding="utf-8"))
    return sorted(found)


def stage(out: pathlib.Path) -> list[str]:
    """Fills the new folder `out`; returns the files of kernels/ in it."""
    out.mkdir(parents=True)
    build_toml = (HERE / "build.toml").read_text(encoding="utf-8")
    binding = INCLUDE.findall((HERE / "torch-ext/torch_binding.cc").read_text(encoding="utf-8"))
    files = with_headers([*kernel_sources(build_toml), *binding])
    first, last = (match(SOURCE.finditer(build_toml), key=lambda found: found.start())
                   for match in (min, max))
    listed = "\n".join(f'    "{path}",' for path in files)
    text = build_toml[:first.start()] + listed + build_toml[last.end():]
    (out / "build.toml").write_text(text, encoding="utf-8")
    shutil.copytree(HERE / "torch-ext", out / "torch-ext",
                    ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "_ops.py"))
    shutil.copy(HERE / "README.md", out / "CARD.md")
    shutil.copy(ROOT / "LICENSE", out)
    for path in files:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, out / path)
    return files


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(f"{len(stage(pathlib.Path(sys.argv[1])))} files of kernels/")
