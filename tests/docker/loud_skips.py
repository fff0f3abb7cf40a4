"""Ends a test program with 77 if any test was skipped, so that ctest shows the skips."""

from __future__ import annotations

import importlib
import pathlib
import sys
import unittest
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
METRICS = "".join(path.read_text() for path in sorted((ROOT / "server/metrics").glob("*.cc")))
SKIPPED = 77  # ctest's SKIP_RETURN_CODE


def build_folder() -> pathlib.Path:
    """The build tree, which ctest gives as the only argument."""
    return pathlib.Path(sys.argv[1]).resolve()


def optional(module: str) -> Any:
    """Imports a module; None if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def main() -> int:
    """Runs the test cases of the program; returns its exit status: 0, 1 or SKIPPED."""
    result = unittest.main(argv=sys.argv[:1], exit=False).result
    if not result.wasSuccessful():
        return 1
    for case, reason in result.skipped:
        print(f"SKIPPED {case}: {reason}", file=sys.stderr)
    return SKIPPED if result.skipped else 0
