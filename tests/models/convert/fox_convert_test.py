"""Entry of the converter's tests: checks the interpreter, then runs the *_test.py files beside it.

Invariant: a missing package is a failure with a message, never a skipped test.
"""

import importlib.util
import os
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("FOX_SOURCE_DIR", HERE.parents[2]))
SUITES = ("rounding_test", "restricted_pickle_test", "safetensors_io_test",
          "fox_convert_conversion_test", "fox_convert_refusals_test")


def main() -> int:
    """Runs all suites; returns the exit status."""
    for module, package in (("numpy", "numpy"), ("yaml", "pyyaml")):
        if importlib.util.find_spec(module) is None:
            sys.exit(f"fox_convert_test: {sys.executable} has no {module}: pip install {package}, "
                     "or configure with -DPython3_EXECUTABLE=.venv/bin/python")
    os.environ["FOX_SOURCE_DIR"] = str(ROOT)
    sys.path[:0] = [str(HERE), str(ROOT / "models" / "convert")]
    suites = unittest.defaultTestLoader.loadTestsFromNames(SUITES)
    result = unittest.TextTestRunner(verbosity=1).run(suites)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
