"""Finds clang-format and clang-tidy of the pinned version.

Versions disagree about the right format, so the version is fixed: both Debian 12 and Ubuntu 24.04
have it, and `./run` and docker/Dockerfile.dev install it.
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
    """The path of the tool in the pinned version; ends the program if it is not installed."""
    for name in (f"{tool}-{VERSION}", tool):
        path = shutil.which(name)
        if path is None:
            continue
        said = subprocess.run([path, "--version"], check=True, capture_output=True, text=True)
        if re.search(rf"version {VERSION}\.", said.stdout):
            return path
    sys.exit(f"{tool} {VERSION} is not here; `./run tidy` installs it (apt: {tool}-{VERSION})")


def tracked(*patterns: str) -> list[str]:
    """Paths of existing files below the root that git does not ignore."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-coz", "--exclude-standard", "--",
         *patterns], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    return [path for path in sorted(filter(None, listing.split("\0"))) if (ROOT / path).is_file()]
