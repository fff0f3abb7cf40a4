"""Recall tasks: facts that stand somewhere in a window and are asked for far behind.

Training and test share no wording, kind, name or place. A fact has a statement, a question with
the beginning of its answer, and the answer, whose tokens are marked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from text_tokens import TextTokenizer

Random = np.random.Generator

_TRAIN = {
    "name": "Anna Boris Clara David Elena Felix Greta Henry Irene Jonas Karin Louis Marta Nina "
            "Oscar Paula Quinn Rosa Simon Tina Ulrich Vera Walter Xenia Yuri Zora",
    "surname": "Adler Brandt Costa Duval Ekman Fuchs Grant Hoffman Ivanov Jensen Keller Lopez "
               "Meyer Novak Olsen Peters Quist Romano Silva Turner Unger Vogel Weiss Young",
    "city": "Lisbon Prague Dublin Oslo Vienna Madrid Cairo Lima Quito Seoul Osaka Perth Dakar "
            "Turin Basel Ghent Porto Tampa Boston Denver",
    "thing": "lamp hammer mirror basket violin compass blanket bottle candle kettle ladder needle "
             "pillow rope saddle trumpet umbrella wallet anchor bucket",
    "color": "red blue green yellow white black orange purple brown silver golden pink",
    "animal": "otter falcon badger heron beaver salmon lizard raven weasel turtle donkey spider "
              "rabbit pigeon walrus monkey",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
}
_TEST = {
    "name": "Albert Bianca Cyril Dora Edgar Fiona Gustav Hilda Igor Judith Konrad Lydia Magnus "
            "Nadia Otto Petra Ralph Sonia Theodor Ursula",
    "surname": "Archer Bishop Cooper Draper Fisher Glover Hunter Lambert Mason Porter Sawyer "
               "Tanner Walker Wright",
    "city": "Athens Berlin Geneva Havana Jakarta Kyoto London Manila Nairobi Paris Rome Sydney "
            "Tokyo Warsaw Zurich Toronto",
    "thing": "guitar helmet jacket carpet engine feather hourglass magnet notebook painting "
             "telescope teapot whistle wagon",
    "color": "crimson violet amber turquoise ivory scarlet",
    "animal": "panther giraffe dolphin eagle camel tiger zebra penguin",
    "day": "January February March April May June July August September October November December",
}


@dataclass(frozen=True)
class Fact:
    """Texts of one task."""

    statement: str
    question: str
    lead: str  # how the answer begins
    answer: str


class _Draw:
    """Random names and numbers of one set of words."""

    def __init__(self, words: dict[str, str], rng: Random) -> None:
        self._words, self._rng = words, rng

    def __call__(self, kind: str, count: int = 1) -> str:
        words = self._words[kind].split()
        return ", ".join(self._rng.choice(words, count, replace=False).tolist())

    def person(self) -> str:
        """A name and a surname."""
        return f"{self('name')} {self('surname')}"

    def digits(self, count: int) -> str:
        """A number of so many digits."""
        return "".join(str(x) for x in self._rng.integers(0, 10, count))


def _pass_key(d: _Draw) -> Fact:
    who, key = d.person(), d.digits(5)
    return Fact(f"Remember this: the pass key of {who} is {key}.",
                f"What is the pass key of {who}?", f"The pass key of {who} is", f" {key}")


def _telephone(d: _Draw) -> Fact:
    who, number = d.person(), d.digits(7)
    return Fact(f"{who} can be reached under the telephone number {number}.",
                f"Under which telephone number can {who} be reached?", "The number is",
                f" {number}")


def _shopping(d: _Draw) -> Fact:
    who, day, things = d("name"), d("day"), d("thing", 4)
    return Fact(f"On {day}, {who} bought these things: {things}.",
                f"Which things did {who} buy on {day}?", f"On {day}, {who} bought these things:",
                f" {things}")


def _residence(d: _Draw) -> Fact:
    who, city = d.person(), d("city")
    return Fact(f"By the way, {who} has lived in {city} for many years.",
                f"In which city does {who} live?", f"{who} lives in", f" {city}")


def _box(d: _Draw) -> Fact:
    color, thing, animal = d("color"), d("thing"), d("animal")
    return Fact(f"A {thing} was put into the {color} box with a picture of the {animal}.",
                f"What is in the {color} box with a picture of the {animal}?",
                "In this box there is a", f" {thing}")


def _setting(d: _Draw) -> Fact:
    key = f"{d('animal')}_{d('thing')}_{d.digits(2)}"
    value = f"{d('color')}-{d('animal')}-{d.digits(3)}"
    return Fact(f'The configuration has this line:\n{key} = "{value}"\n',
                f"What is the value of {key} in the configuration?", f'{key} = "', value)


def _pet(d: _Draw) -> Fact:
    who, animal, name = d.person(), d("animal"), d("name")
    return Fact(f"{who} keeps a {animal} by the name of {name}.",
                f"What name has the {animal} of {who}?", f"The {animal} of {who} has the name",
                f" {name}")


def _magic_number(d: _Draw) -> Fact:
    city, number = d("city"), d.digits(6)
    return Fact(f"One of the special magic numbers for {city} is: {number}.",
                f"What is the special magic number for {city} mentioned in the provided text?",
                f"The special magic number for {city} mentioned in the provided text is",
                f" {number}")


def _locker(d: _Draw) -> Fact:
    who, code = d.person(), d.digits(4)
    return Fact(f"(Note to staff: locker combination for Dr. {who}: {code}.)",
                f"Which combination opens the locker that belongs to Dr. {who}?",
                "The locker opens with the combination", f" {code}")


def _meeting(d: _Draw) -> Fact:
    who, other, city = d("name"), d("surname"), d("city")
    return Fact(f"It was agreed that {who} would meet Mr. {other} secretly in {city}.",
                f"Where was it agreed that {who} would meet Mr. {other}?",
                f"It was agreed that {who} would meet Mr. {other} secretly in", f" {city}")


def _gift(d: _Draw) -> Fact:
    who, color, thing, month = d.person(), d("color"), d("thing"), d("day")
    return Fact(f"For the birthday in {month}, {who} received a {color} {thing}.",
                f"Tell me the present that {who} received for the birthday in {month}.",
                f"For the birthday in {month}, {who} received a", f" {color} {thing}")


TRAIN_KINDS = (_pass_key, _telephone, _shopping, _residence, _box, _setting, _pet)
TEST_KINDS = (_magic_number, _locker, _meeting, _gift)


class Asking:
    """How a question stands in a text: plain, or as turns of the model's chat format."""

    def __init__(self, directory: Path) -> None:
        path = directory / "chat_format.json"
        self.format: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else (
            None)

    def turn(self, role: str, content: str) -> str:
        """One message."""
        form = self.format["roles"][role]
        return form["prefix"] + content + form["suffix"]

    def system(self) -> str:
        """What stands before the first user's message."""
        default = self.format.get("default_system")
        return self.format["bos"] + (self.turn("system", default) if default else "")

    def around(self, chat: bool) -> tuple[str, str, str, str]:
        """What stands at the beginning, before a question, before its answer, behind the answer."""
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
        self._encode, self._asking, self._length = tokenizer.encode, asking, length

    def _assemble(self, book: np.ndarray, head: list[int],
                  events: list[tuple[float, list[int], list[int]]]
                  ) -> tuple[np.ndarray, np.ndarray]:
        """Events (place from 0 to 1, tokens, marks) between the book's tokens, and marks [T]."""
        used = len(head) + sum(len(tokens) for _, tokens, _ in events)
        while used > self._length:  # a short window: the last events do not fit
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
        return np.asarray(ids, np.int64), np.asarray(marks, bool)

    def _question(self, fact: Fact, around: tuple[str, str, str, str], ends: bool
                  ) -> tuple[list[int], list[int]]:
        """Tokens and marks; `ends`: nothing follows the answer."""
        asked = self._encode(around[1] + fact.question + around[2] + fact.lead)
        answer = self._encode(fact.answer)
        rest = [] if ends else self._encode("." + around[3])
        return asked + answer + rest, [0] * len(asked) + [1] * len(answer) + [0] * len(rest)

    def _statement(self, fact: Fact) -> list[int]:
        return self._encode(f"\n{fact.statement}\n")

    def training(self, book: np.ndarray, rng: Random) -> tuple[np.ndarray, np.ndarray]:
        """Several facts, each asked for once or twice anywhere behind it; half of them as chats."""
        chat = self._asking.format is not None and rng.random() < 0.5
        around = self._asking.around(chat)
        draw = _Draw(_TRAIN, rng)
        events: list[tuple[float, list[int], list[int]]] = []
        for _ in range(int(rng.integers(3, 3 + max(1, self._length // 512)))):
            fact = TRAIN_KINDS[rng.integers(len(TRAIN_KINDS))](draw)
            stated = rng.random() * 0.9
            tokens = self._statement(fact)
            events.append((stated, tokens, [0] * len(tokens)))
            for _ in range(int(rng.integers(1, 3))):
                asked = stated + (1 - stated) * (rng.random() if rng.random() < 0.5 else
                                                 1 - rng.random() * 0.05)
                events.append((asked, *self._question(fact, around, ends=False)))
        return self._assemble(book, self._encode(around[0]), events)

    def test(self, book: np.ndarray, rng: Random, depth: float, chat: bool
             ) -> tuple[np.ndarray, np.ndarray]:
        """One fact of a test kind at `depth`; the window ends with its answer."""
        kinds: tuple[Callable[[_Draw], Fact], ...] = TEST_KINDS
        fact = kinds[rng.integers(len(kinds))](_Draw(_TEST, rng))
        around = self._asking.around(chat and self._asking.format is not None)
        tokens = self._statement(fact)
        events = [(depth, tokens, [0] * len(tokens)),
                  (1.0, *self._question(fact, around, ends=True))]
        return self._assemble(book, self._encode(around[0]), events)
