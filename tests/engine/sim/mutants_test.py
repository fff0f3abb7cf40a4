#!/usr/bin/env python3
"""Each mutant changes one place of the sources as they are: none is lost when code is rewritten."""

from __future__ import annotations

import unittest

import mutants


class MutantsTest(unittest.TestCase):
    """The table of mutants.py."""

    def test_each_changes_one_place(self) -> None:
        self.assertEqual(mutants.misplaced(mutants.MUTANTS), [])


if __name__ == "__main__":
    unittest.main()
