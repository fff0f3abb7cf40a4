#!/usr/bin/env python3
"""Each mutant of the call layer changes one place of the sources as they are."""

from __future__ import annotations

import unittest

import call_mutants
import mutants


class CallMutantsTest(unittest.TestCase):
    """The table of call_mutants.py."""

    def test_each_changes_one_place(self) -> None:
        for name, path, old, new in call_mutants.MUTANTS:
            with self.subTest(mutant=name):
                self.assertEqual((mutants.ROOT / path).read_text().count(old), 1)
                self.assertNotEqual(old, new)


if __name__ == "__main__":
    unittest.main()
