#!/usr/bin/env python3
"""Each mutant of the call layer changes one place of the sources as they are."""

from __future__ import annotations

import unittest

import call_mutants
import mutants


class CallMutantsTest(unittest.TestCase):
    """The table of call_mutants.py."""

    def test_each_changes_one_place(self) -> None:
        self.assertEqual(mutants.misplaced(call_mutants.MUTANTS), [])


if __name__ == "__main__":
    unittest.main()
