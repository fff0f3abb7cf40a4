#!/usr/bin/env python3
"""Tests of format_test.py and clang_tidy_test.py: what they find, and when a stamp still holds."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import unittest

import clang_tidy_test
import clang_tools
import format_test

TIDY = "// A widget.\nint Turn(int angle) { return angle; }\n"


class PlantedTest(unittest.TestCase):
    """Files in a folder of their own, with the repository's settings."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in (".clang-format", ".clang-tidy"):
            shutil.copy(clang_tools.ROOT / name, self.folder)

    def write(self, name: str, text: str) -> pathlib.Path:
        """A planted file."""
        path = self.folder / name
        path.write_text(text)
        return path

    def test_format(self) -> None:
        tool = clang_tools.find("clang-format")
        good = self.write("good.cc", TIDY)
        bad = [self.write(name, TIDY.replace(" {", "{")) for name in ("bad.cu", "bad.inc")]
        found = format_test.unformatted(tool, [str(path) for path in (good, *bad)])
        self.assertEqual(found, [str(path) for path in bad])

    def test_clang_tidy(self) -> None:
        tool = clang_tools.find("clang-tidy")
        stamp = self.folder / "stamp"
        self.write("compile_flags.txt", "-std=c++20\n")
        bad = self.write("bad.cc", "// A widget.\nint* g_turns = 0;\n")
        said = clang_tidy_test.check(tool, self.folder, bad, stamp)
        self.assertIn("modernize-use-nullptr", said)
        self.assertFalse(stamp.exists())
        self.assertEqual(
            clang_tidy_test.check(tool, self.folder, self.write("good.cc", TIDY), stamp), "")
        self.assertTrue(stamp.exists())

    def test_locks(self) -> None:
        self.write("compile_flags.txt", "-std=c++20\n")
        text = """// A widget that two threads turn.
struct __attribute__((capability("mutex"))) Mutex {
  void Lock() __attribute__((acquire_capability()));
  void Unlock() __attribute__((release_capability()));
};
class Widget {
 public:
  int Turn() {
    mutex_.Lock();
    const int turns = ++turns_;
    mutex_.Unlock();
    return turns;
  }

 private:
  Mutex mutex_;
  int turns_ __attribute__((guarded_by(mutex_))) = 0;
};
"""
        tool, stamp = clang_tools.find("clang-tidy"), self.folder / "stamp"
        good = self.write("good.cc", text)
        self.assertEqual(clang_tidy_test.check(tool, self.folder, good, stamp), "")
        bad = self.write("bad.cc", text.replace("    mutex_.Lock();\n", "").replace(
            "    mutex_.Unlock();\n", ""))
        said = clang_tidy_test.check(tool, self.folder, bad, stamp)
        self.assertIn("requires holding mutex 'mutex_'", said)

    def test_stamp_depends_on_all_that_is_read(self) -> None:
        main = self.write("main.cc", '#include "a.h"\n#include <vector>\n')
        self.write("a.h", '#include "b.h"\n')
        inner = self.write("b.h", '#include "a.h"\nint x;\n')  # a circle, too

        def name(common: str = "version", command: str = "c++") -> str:
            return clang_tidy_test.Digests(common, [self.folder]).of(main, [command])
        first = name()
        self.assertEqual(name(), first)
        self.assertNotEqual(name(common="other"), first)
        self.assertNotEqual(name(command="c++ -O1"), first)
        inner.write_text("int y;\n")
        self.assertNotEqual(name(), first)


if __name__ == "__main__":
    unittest.main()
