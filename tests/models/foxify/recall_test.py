"""Recall windows: length, marks, seeds, and that training and test share nothing."""

from __future__ import annotations

import re
import tempfile
import unittest
from pathlib import Path

from toy_llama import START, write_tokenizer  # first: it skips without torch

import numpy as np

from models.finetune.text_tokens import TextTokenizer
from models.foxify import facts
from models.foxify.facts import TEST_KINDS
from models.foxify.recall import Asking, RecallWindows

LENGTH = 2048


class RecallTest(unittest.TestCase):
    """With a byte tokenizer, so that places in tokens are places in the text."""

    def setUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        write_tokenizer(folder)
        self.tokenizer = TextTokenizer(folder)
        self.windows = RecallWindows(self.tokenizer, Asking(folder), LENGTH)
        text = "A book, of words. " * (LENGTH // 18 + 1)
        self.book = np.asarray(self.tokenizer.encode(text)[:LENGTH])

    def text(self, ids: np.ndarray) -> str:
        return self.tokenizer._decode(ids.tolist())

    def test_training_windows_ask_for_what_stands_before(self) -> None:
        chats = 0
        for seed in range(20):
            ids, marks = self.windows.training(self.book, np.random.default_rng(seed))
            again, _ = self.windows.training(self.book, np.random.default_rng(seed))
            self.assertEqual((len(ids), len(marks)), (LENGTH, LENGTH), seed)
            np.testing.assert_array_equal(ids, again)
            chats += ids[0] == self.tokenizer.encode(START)[0]
            edges = np.flatnonzero(np.diff(np.concatenate(([0], marks, [0]))))
            self.assertTrue(len(edges), seed)
            for begin, end in zip(edges[::2], edges[1::2]):
                with self.subTest(seed=seed, begin=begin, end=end):
                    answer = self.text(ids[begin:end]).strip()
                    before = self.text(ids[: begin - 1])
                    for value in [answer] if answer in before else re.split(", | and ", answer):
                        self.assertIn(value, before)
        self.assertTrue(0 < chats < 20)

    def test_a_test_window_has_its_fact_at_the_depth_and_ends_with_the_answer(self) -> None:
        for depth in (0.1, 0.5, 0.9):
            for chat in (False, True):
                with self.subTest(depth=depth, chat=chat):
                    ids, marks = self.windows.test(self.book, np.random.default_rng(3), depth, chat)
                    self.assertTrue(marks[-1] and not marks[: LENGTH // 2].any())
                    answer = self.text(ids[marks]).strip()
                    place = self.text(ids).index(answer)
                    self.assertLess(abs(place / LENGTH - depth), 0.15)
                    self.assertEqual(START in self.text(ids) or ids[0] >= 256, chat)

    def test_training_and_test_share_no_words_and_no_kind(self) -> None:
        rng = np.random.default_rng(0)
        questions = [q for _, asked, *_ in facts._TEMPLATES for q in asked]
        questions += [facts.training_fact(rng).question for _ in range(200)]
        for kind in TEST_KINDS:
            with self.subTest(kind=kind):
                asked = kind(facts._Draw(facts._TEST, rng)).question
                words = {" ".join(asked.split()[i : i + 4]) for i in range(len(asked.split()) - 3)}
                self.assertFalse([q for q in questions for w in words if w in q])
        for kind in ("name", "surname", "city", "thing", "color", "animal", "day"):
            both = set(facts._TRAIN[kind].split()) & set(facts._TEST[kind].split())
            self.assertEqual(both, set(), kind)

    def test_all_values_of_the_asked_owners_are_the_answer(self) -> None:
        """Counted in the statements, which name an owner and a value each."""
        rng = np.random.default_rng(1)
        longest = 0
        for seed in range(400):
            for kind in (facts._owned, facts._register):
                fact = kind(facts._Draw(facts._TRAIN, rng), rng)
                lines = "\n".join(fact.statements).splitlines()
                owners = re.findall(r"[A-Z][a-z]+ [A-Z][a-z]+", fact.question.partition(" of ")[2])
                with self.subTest(kind=kind.__name__, seed=seed, fact=fact):
                    asked = [line for line in lines if any(owner in line for owner in owners)]
                    values = re.split(", | and ", fact.answer.strip())
                    self.assertEqual(len(asked), len(values))
                    self.assertEqual(len(values), len(set(values)))
                    for value in values:
                        self.assertTrue(any(value in line for line in asked), value)
                    longest = max(longest, len(values))
        self.assertGreater(longest, 8)

    def test_a_chain_asks_for_all_its_names(self) -> None:
        rng = np.random.default_rng(2)
        for seed in range(50):
            fact = facts._chain(facts._Draw(facts._TRAIN, rng), rng)
            names = re.split(", | and ", fact.answer.strip())
            with self.subTest(seed=seed, fact=fact):
                self.assertEqual(names, [line.split()[0] for line in fact.statements])


if __name__ == "__main__":
    unittest.main()
