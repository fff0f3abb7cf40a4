"""The training data: windows of books, of recall tasks in books, and of the teacher's chats.

A window depends on the seed and its number alone, so training can resume anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from models.finetune.text_tokens import TextError, Windows
from models.foxify.distillation import PLAIN, RECALLED, SAID
from models.foxify.recall import RecallWindows

RECALL_SHARE, CHAT_SHARE = 0.4, 0.5  # of windows


class Mixture:
    """Windows of ids [T] and marks [T]; distillation.py defines the marks."""

    def __init__(self, books: np.ndarray, chats: np.ndarray | None, recall: RecallWindows,
                 said: Callable[[np.ndarray], np.ndarray], length: int, seed: int) -> None:
        self._books, self._recall, self._seed = Windows(books, length, seed), recall, seed
        self._said = said
        self._chats = None if chats is None else Windows(chats, length, seed)

    def window(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The index-th window of the training."""
        rng = np.random.default_rng([self._seed, 1, index])
        kind, book = rng.random(), self._books.window(index)[:-1]
        if kind < RECALL_SHARE:
            ids, answers = self._recall.training(book, rng)
            return ids, answers * RECALLED
        if self._chats is not None and kind < RECALL_SHARE + CHAT_SHARE:
            ids = self._chats.window(index)[:-1]
            return ids, self._said(ids) * SAID
        return book, np.full(len(book), PLAIN)

    def batch(self, indices: range) -> tuple[np.ndarray, np.ndarray]:
        """Ids and marks of windows, one below the other."""
        ids, marks = zip(*(self.window(index) for index in indices))
        return np.stack(ids), np.stack(marks)


def spread(tokens: np.ndarray, length: int, count: int) -> np.ndarray:
    """The first `count` windows of a text, or all windows if it has fewer."""
    count = min(count, len(tokens) // length)
    if count == 0:
        raise TextError(f"{len(tokens)} held-out tokens are too few for a window of {length}")
    return np.asarray(tokens[: count * length], np.int64).reshape(count, length)
