"""Finds clang-format and clang-tidy of the one version that decides what is clean.

Versions disagree with each other, so one is pinned: the one that Debian 12 and Ubuntu 24.04 both
have. `./run` and docker/Dockerfile.dev install it.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

VERSION = "14"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def find(tool: str) -> str:
    """The path of the tool in the pinned version; ends the program when there is none."""
    for name in (f"{tool}-{VERSION}", tool):
        path = shutil.which(name)
        if path is None:
            continue
        said = subprocess.run([path, "--version"], check=True, capture_output=True, text=True)
        if re.search(rf"version {VERSION}\.", said.stdout):
            return path
    sys.exit(f"{tool} {VERSION} is not here; `./run tidy` installs it (apt: {tool}-{VERSION})")


def tracked(*patterns: str) -> list[str]:
    """Paths below the root that git tracks, or would, and that still exist."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-coz", "--exclude-standard", "--",
         *patterns], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    return [path for path in sorted(filter(None, listing.split("\0"))) if (ROOT / path).is_file()]
