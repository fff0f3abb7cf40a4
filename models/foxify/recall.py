"""Recall tasks: facts somewhere in a window (facts.py), and questions about them far later.

The tokens of the answers are marked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from models.convert.chat_format import read_format
from models.finetune.text_tokens import TextTokenizer
from models.foxify.facts import Fact, Random, passage_fact, test_fact, training_fact


class Asking:
    """Writes questions into a text: plain, or as turns of the model's chat format."""

    def __init__(self, directory: Path) -> None:
        self.format = read_format(directory)

    def turn(self, role: str, content: str) -> str:
        """One message."""
        form = self.format["roles"][role]
        return form["prefix"] + content + form["suffix"]

    def system(self) -> str:
        """The text before the first user's message."""
        default = self.format.get("default_system")
        return self.format["bos"] + (
            "" if default is None else self.turn("system", default))

    def said(self, ids: np.ndarray, tokenizer: TextTokenizer) -> np.ndarray:
        """Marks the tokens of chats [.., T] that the assistant wrote, with the end of its turn."""
        user, assistant = (self.format["roles"][name] for name in ("user", "assistant"))
        # In some formats only the user's end stands before an answer, or only the next beginning
        # ends it; sentencepiece puts a space before a text that begins without one.
        behind = user["suffix"].lstrip() or user["suffix"]
        header = tokenizer.encode(self.format["generation_prompt"] or behind)
        end = tokenizer.encode(assistant["suffix"].strip() or user["prefix"].strip())[0]
        places = np.arange(ids.shape[-1])
        begins = np.zeros(ids.shape, bool)  # after a header
        begins[..., len(header) :] = np.all(
            [ids[..., n : n - len(header)] == token for n, token in enumerate(header)], axis=0)
        ended = np.zeros(ids.shape, bool)  # after an end
        ended[..., 1:] = ids[..., :-1] == end
        last_begin, last_end = (np.maximum.accumulate(np.where(event, places, -1), axis=-1)
                                for event in (begins, ended))
        return (last_begin >= 0) & (last_begin >= last_end)

    def around(self, chat: bool) -> tuple[str, str, str, str]:
        """The texts at the beginning, before a question, before its answer, after the answer."""
        if not chat:
            return "", "\n\nQuestion: ", "\nAnswer: ", "\n\n"
        roles = self.format["roles"]
        user, assistant = roles["user"], roles["assistant"]
        return (self.system() + user["prefix"], "\n\n",
                user["suffix"] + self.format["generation_prompt"],
                assistant["suffix"] + user["prefix"])


class RecallWindows:
    """Windows of book tokens with facts and questions in them; they depend on the seed alone."""

    def __init__(self, tokenizer: TextTokenizer, asking: Asking, length: int) -> None:
        self._encode, self._decode = tokenizer.encode, tokenizer.decode
        self._asking, self._length = asking, length

    def _assemble(self, book: np.ndarray, head: list[int],
                  events: list[tuple[float, list[int], list[int]]]
                  ) -> tuple[np.ndarray, np.ndarray]:
        """Inserts events (place from 0 to 1, tokens, marks) into a book; returns ids and marks."""
        used = len(head) + sum(len(tokens) for _, tokens, _ in events)
        while used > self._length:  # in a short window the last events do not fit
            used -= len(events.pop()[1])
        room, at = self._length - used, 0
        ids, marks = list(head), [0] * len(head)
        for place, tokens, marked in sorted(events, key=lambda event: event[0]):
            upto = int(place * room)
            ids += book[at:upto].tolist() + tokens
            marks += [0] * (upto - at) + marked
            at = upto
        ids += book[at:room].tolist()
        marks += [0] * (room - at)
        assert len(ids) == len(marks) == self._length
        return np.asarray(ids, np.int64), np.asarray(marks, bool)

    def _question(self, fact: Fact, around: tuple[str, str, str, str], ends: bool
                  ) -> tuple[list[int], list[int]]:
        """Tokens and marks of a question and its answer; `ends`: nothing follows the answer."""
        asked = self._encode(around[1] + fact.question + around[2] + fact.lead)
        answer = self._encode(fact.answer)
        rest = [] if ends else self._encode("." + around[3])
        return asked + answer + rest, [0] * len(asked) + [1] * len(answer) + [0] * len(rest)

    def _statements(self, fact: Fact, places: list[float]
                    ) -> list[tuple[float, list[int], list[int]]]:
        """The events that state a fact, in its order."""
        encoded = [self._encode(f"\n{statement}\n") for statement in fact.statements]
        assert len(places) == len(encoded)
        return [(place, ids, [0] * len(ids)) for place, ids in zip(sorted(places), encoded)]

    def _passage(self, book: np.ndarray, rng: Random) -> Fact:
        """A fact about 80 tokens of the book."""
        at = int(rng.integers(max(1, len(book) - 80)))
        return passage_fact(self._decode(book[at : at + 80].tolist()).split()[1:-1], rng)

    def training(self, book: np.ndarray, rng: Random) -> tuple[np.ndarray, np.ndarray]:
        """A window with several facts, each asked for once or twice anywhere after it.

        A fifth of the facts are passages of the book; half of the windows ask as chats.
        """
        chat = self._asking.format is not None and rng.random() < 0.5
        around = self._asking.around(chat)
        events: list[tuple[float, list[int], list[int]]] = []
        for _ in range(int(rng.integers(3, 3 + max(1, self._length // 256)))):
            fact = training_fact(rng) if rng.random() < 0.8 else self._passage(book, rng)
            events += self._statements(fact, (rng.random(len(fact.statements)) * 0.9).tolist())
            stated = events[-1][0]
            for _ in range(int(rng.integers(1, 3))):
                asked = stated + (1 - stated) * (rng.random() if rng.random() < 0.5 else
                                                 1 - rng.random() * 0.05)
                events.append((asked, *self._question(fact, around, ends=False)))
        return self._assemble(book, self._encode(around[0]), events)

    def test(self, book: np.ndarray, rng: Random, depth: float, chat: bool
             ) -> tuple[np.ndarray, np.ndarray]:
        """A window with one fact of a test kind at `depth`; it ends with the answer."""
        fact = test_fact(rng)
        around = self._asking.around(chat and self._asking.format is not None)
        events = [*self._statements(fact, [depth]),
                  (1.0, *self._question(fact, around, ends=True))]
        return self._assemble(book, self._encode(around[0]), events)
