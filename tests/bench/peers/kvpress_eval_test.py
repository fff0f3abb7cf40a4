#!/usr/bin/env python3
"""Rows, jobs and refusals of kvpress_eval.py, with a peer that knows half of the answers."""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import json
import unittest
import unittest.mock
from typing import Any

import kvpress_eval
from kvpress_eval import Answer, Job
from models.convert.refusal import Refusal
from models.evaluate import recall_tasks


class Words:
    """A tokenizer whose tokens are words."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [len(word) for word in text.split()]


class HalfKnowing:
    """Says every second answer, and keeps half of the keys for the first question alone."""

    def __init__(self) -> None:
        self.client = kvpress_eval.Tokens("words", Words(), 4096)
        self.asked: list[str] = []

    def answer(self, question: recall_tasks.Question, job: Job, keep: float) -> Answer:
        self.asked.append(question.question)
        kept = 0.5 if len(self.asked) == 1 else keep
        return Answer(" and ".join(question.answers[::2]), 1.0, kept)


def arguments(*flags: str) -> Any:
    parsed = kvpress_eval.make_parser().parse_args(["model", "--keep", "0.25", *flags])
    parsed.peer_packages, parsed.bench = None, "kvpress"
    return parsed


class KvpressEvalTest(unittest.TestCase):
    def setUp(self) -> None:
        sentences = [f"Sentence {i} of the book has a few more words." for i in range(500)]
        self.enterContext(unittest.mock.patch.object(recall_tasks, "book_sentences",
                                                     lambda: sentences))

    def test_a_row_has_the_grade_of_evaluates_questions(self) -> None:
        peer = HalfKnowing()
        job = Job("AdaKV(SnapKV)", True, "multivalue")
        row = kvpress_eval.measure(peer, job, arguments("--length", "500", "--questions", "2"))
        questions = recall_tasks.make("multivalue", peer.client, 500, 300, seed=1)
        self.assertEqual(peer.asked, [question.question for question in questions[:2]])
        self.assertGreater(row.pop("seconds_of_a_question"), 0)
        self.assertEqual(json.loads(json.dumps(row)), {
            "bench": "kvpress", "model": "words", "press": "AdaKV(SnapKV)", "question_seen": True,
            "task": "multivalue", "length": 500, "seed": 1, "questions": 2,
            "recall": {"mean": 0.5, "error": 0.0}, "kept": 0.375, "cached": 1.0})

    def test_a_press_that_scores_by_queries_answers_twice(self) -> None:
        jobs = kvpress_eval.jobs_of(["none", "SnapKV", "KVzip"], ["multikey"])
        self.assertEqual([(job.press, job.question_seen) for job in jobs],
                         [("none", False), ("SnapKV", False), ("SnapKV", True), ("KVzip", False)])

    def test_a_missing_kvpress_is_named(self) -> None:
        missing = unittest.mock.Mock(
            side_effect=importlib.metadata.PackageNotFoundError("kvpress"))
        with unittest.mock.patch.object(importlib.metadata, "version", missing), \
                self.assertRaisesRegex(Refusal, "^the package kvpress is missing: pip install "):
            kvpress_eval.run(arguments(), None)

    def test_a_press_that_fails_leaves_an_error(self) -> None:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_exception(ValueError("Could not find fake keys"))
        row = kvpress_eval.row_of(future, Job("KVzip", False, "multikey"), "kvpress")
        self.assertEqual((row["press"], row["task"], row["error"]),
                         ("KVzip", "multikey", "ValueError: Could not find fake keys"))

    def test_packages_that_kvpress_does_not_work_with_are_named(self) -> None:
        found = {"kvpress": "0.5.5", "transformers": "5.24.0", "torch": "2.15.0"}
        with unittest.mock.patch.multiple(
                importlib.metadata, version=found.__getitem__,
                requires=lambda name: ["fire<0.7,>=0.6.0", "torch<3,>=2.3.1",
                                       "transformers<5.3,>=4.56.0"]), \
                self.assertRaises(Refusal) as raised:
            kvpress_eval.versions()
        self.assertEqual(str(raised.exception),
                         "kvpress 0.5.5 needs transformers<5.3,>=4.56.0, not 5.24.0")


if __name__ == "__main__":
    unittest.main()
