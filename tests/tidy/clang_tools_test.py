#!/usr/bin/env python3
"""Tests of format_test.py and clang_tidy_test.py: their findings, and which files they read."""

from __future__ import annotations

import contextlib
import io
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import clang_tidy_test
import clang_tools
import format_test
from clang_units import Unit

FLAGS = ["-std=c++20"]

TIDY = "// A widget.\nint Turn(int angle) { return angle; }\n"


class PlantedTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in (".clang-format", ".clang-tidy"):
            shutil.copy(clang_tools.ROOT / name, self.folder)

    def write(self, name: str, text: str) -> pathlib.Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def test_format(self) -> None:
        tool = clang_tools.find("clang-format")
        good = self.write("good.cc", TIDY)
        bad = [self.write(name, TIDY.replace(" {", "{")) for name in ("bad.cu", "bad.inc")]
        found = format_test.unformatted(tool, [str(path) for path in (good, *bad)])
        self.assertEqual(found, [str(path) for path in bad])

    def check(self, *files: pathlib.Path) -> str:
        """The findings of clang-tidy in a unit; without findings, a stamp must be left."""
        stamp = self.folder / "stamp"
        tool = clang_tools.find("clang-tidy")
        said = clang_tidy_test.check(tool, Unit(FLAGS, list(files)), stamp)
        self.assertEqual(stamp.exists(), not said)
        stamp.unlink(missing_ok=True)
        return said

    def test_clang_tidy(self) -> None:
        good = self.write("good.cc", TIDY)
        bad = self.write("bad.cc", "// A widget.\nint* g_turns = 0;\n")
        self.assertIn("modernize-use-nullptr", self.check(bad))
        self.assertEqual(self.check(good), "")
        self.assertIn("bad.cc:2:16: error: use nullptr", self.check(good, bad))
        other = self.write("other.cc", TIDY.replace("Turn", "TurnBack"))
        self.assertEqual(self.check(good, other), "")

    def test_files_that_do_not_go_together_are_checked_in_parts(self) -> None:
        twins = [self.write(f"{name}.cc", TIDY) for name in ("one", "two")]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(self.check(*twins), "")
        self.assertIn("passed in parts, which takes longer: one.cc two.cc", said.getvalue())
        twins.append(self.write("three.cc", "// A widget.\nint* g_turns = 0;\n"))
        self.assertIn("three.cc:2:16", self.check(*twins))

    def test_locks(self) -> None:
        text = """// A widget that two threads turn.
struct __attribute__((capability("mutex"))) Mutex {};
class Widget {
 public:
  int Turn() __attribute__((requires_capability(mutex_))) { return ++turns_; }

 private:
  Mutex mutex_;
  int turns_ __attribute__((guarded_by(mutex_))) = 0;
};
"""
        self.assertEqual(self.check(self.write("good.cc", text)), "")
        bad = self.write("bad.cc", text.replace(
            " __attribute__((requires_capability(mutex_)))", ""))
        self.assertIn("requires holding mutex 'mutex_'", self.check(bad))

    def test_what_changed(self) -> None:
        def git(*arguments: str) -> None:
            subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *arguments],
                           cwd=self.folder, check=True, capture_output=True)
        includes = {"a": "a", "b": "b", "c": "b", "d": "only"}
        files = {name: self.write(f"{name}.cc", f'#include "{header}.h"\n')
                 for name, header in includes.items()}
        for header in ("a", "b", "only"):
            self.write(f"{header}.h", "int x;\n")

        def names() -> str:
            found = clang_tidy_test.changed(files.values(), self.folder)
            return "".join(sorted(file.stem for file in found))
        git("init", "--initial-branch=work")
        git("add", ".")
        git("commit", "-m", "A widget")
        self.assertEqual(names(), "abcd")  # there is no earlier commit
        git("update-ref", "refs/remotes/origin/main", "HEAD")
        self.write("b.h", "int y;\n")
        git("commit", "-am", "Another")
        self.assertEqual(names(), "b")
        self.write("only.h", "int y;\n")
        self.assertEqual(names(), "bd")
        git("update-ref", "refs/remotes/origin/main", "HEAD")
        git("commit", "-am", "The last one")
        git("update-ref", "refs/remotes/origin/main", "HEAD")  # as CI sees main itself
        self.assertEqual(names(), "d")


if __name__ == "__main__":
    unittest.main()
