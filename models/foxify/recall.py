"""Recall tasks: facts somewhere in a window, and questions about them far later.

Training and test share no wording, kind, name or place. A fact has a statement, a question with
the beginning of its answer, and the answer, whose tokens are marked.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.finetune.text_tokens import TextTokenizer

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
    "syllable": "bar cel dor fen gal hir jun kos lem mur nol pir ras sil tov vun wex yol zan tir",
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
    """The texts of one task."""

    statement: str
    question: str
    lead: str  # how the answer begins
    answer: str


class _Draw:
    """Random names and numbers from one set of words."""

    def __init__(self, words: dict[str, str], rng: Random) -> None:
        self._words, self._rng = words, rng

    def __call__(self, kind: str, count: int = 1) -> str:
        words = self._words[kind].split()
        return ", ".join(self._rng.choice(words, count, replace=False).tolist())

    def person(self) -> str:
        """A name and a surname."""
        return f"{self('name')} {self('surname')}"

    def digits(self, count: int) -> str:
        """A number of `digits` digits."""
        return "".join(str(x) for x in self._rng.integers(0, 10, count))


# Templates of training: statements, questions, beginnings of the answer (one of each is drawn) and
# the answer. A word in braces is drawn once for a fact (_Values).
_TEMPLATES: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str], ...] = (
    (("Remember this: the pass key of {person} is {d5}.", "{person} uses the pass key {d5}.",
      "Pass key ({person}): {d5}"),
     ("What is the pass key of {person}?", "Which pass key does {person} use?"),
     ("The pass key of {person} is", "It is", "Pass key:"), " {d5}"),
    (("{person} can be reached under the telephone number {d7}.", "Call {person}: {d7}.",
      "The telephone of {person} has the number {d7}."),
     ("Under which telephone number can {person} be reached?", "How do I call {person}?"),
     ("The number is", "Call", "{person} can be reached under the telephone number"), " {d7}"),
    (("On {day}, {name} bought these things: {things}.",
      "{name} came home on {day} with these things: {things}."),
     ("Which things did {name} buy on {day}?", "What did {name} bring home on {day}?"),
     ("On {day}, {name} bought these things:", "These things:"), " {things}"),
    (("By the way, {person} has lived in {city} for many years.", "{person}, of {city}, agreed.",
      "The home of {person} is in {city}."),
     ("In which city does {person} live?", "Where is the home of {person}?"),
     ("{person} lives in", "In", "The home of {person} is in"), " {city}"),
    (("A {thing} was put into the {color} box with a picture of the {animal}.",
      "The {color} box with the {animal} on its lid holds a {thing}."),
     ("What is in the {color} box with a picture of the {animal}?",
      "What does the {color} box with the {animal} hold?"),
     ("In this box there is a", "It holds a"), " {thing}"),
    (('The configuration has this line:\n{key} = "{value}"\n', 'set {key} = "{value}"'),
     ("What is the value of {key} in the configuration?", "What is {key} set to?"),
     ('{key} = "', 'It is "'), "{value}"),
    (("{person} keeps a {animal} by the name of {name}.", "{name} is the {animal} of {person}."),
     ("What name has the {animal} of {person}?", "How does {person} call the {animal}?"),
     ("The {animal} of {person} has the name", "Its name is"), " {name}"),
    (("{person} was born in the year 1{d3}.", "{person} (born 1{d3})"),
     ("In which year was {person} born?", "What is the year of birth of {person}?"),
     ("{person} was born in the year", "In"), " 1{d3}"),
    (("The ship {word} carries {d3} crates, in each a {thing}.",
      "On board the {word}: {d3} crates."),
     ("How many crates does the ship {word} carry?", "How many crates are on board the {word}?"),
     ("The number of crates is", "The ship carries"), " {d3}"),
    (("The key to the {color} door lies under the {thing}.",
      "Look under the {thing} for the key to the {color} door."),
     ("Where is the key to the {color} door?", "Under what does the key to the {color} door lie?"),
     ("The key lies under the", "Under the"), " {thing}"),
    (("In the old language the word {word} means {thing}.",
      "{word}: {thing} (in the old language)"),
     ("What does the word {word} mean?", "How is the word {word} translated?"),
     ("It means", "The word {word} means"), " {thing}"),
    (("From {city} to {word} it is {d3} miles.", "The road from {city} to {word} has {d3} miles."),
     ("How far is it from {city} to {word}?", "How many miles is it from {city} to {word}?"),
     ("From {city} to {word} it is", "It is", "Miles:"), " {d3}"),
    (("The {color} {thing} belongs to {person}.", "{person} is the owner of the {color} {thing}."),
     ("Which person is the owner of the {color} {thing}?", "Whose is the {color} {thing}?"),
     ("The {color} {thing} belongs to", "It belongs to"), " {person}"),
    (("The race of {city} was won by {person}.", "{person} won the race of {city}."),
     ("Which person won the race of {city}?", "What is the name of the winner in {city}?"),
     ("The winner is", "The race of {city} was won by"), " {person}"),
    (('{{"user": "{name}", "id": {d4}, "token": "{value}"}}',
      'user={name} id={d4} token={value}'),
     ("What is the token of the user {name} with the id {d4}?", "Which token has user {d4}?"),
     ("The token is", "token:"), " {value}"),
    (("| {person} | {city} | {d4} |", "{person}; {city}; {d4}"),
     ("Which number stands in the line of {person}?", "Which number follows {person}, {city}?"),
     ("The line of {person} has the number", "The number"), " {d4}"),
    (("Rule {d2}: never put a {thing} beside a {animal}.",),
     ("What does rule {d2} say?", "What does rule {d2} forbid?"),
     ("Rule {d2}: never put a", "It says: never put a"), " {thing} beside a {animal}"),
    (("The house of {person} has {color} shutters.", "{color} are the shutters of {person}."),
     ("What color have the shutters of {person}?", "How are the shutters of {person} painted?"),
     ("Their color is", "The shutters are"), " {color}"),
    (("The last words of {person} were: {things}.", '"{things}", said {person} at last.'),
     ("What were the last words of {person}?", "What did {person} say at last?"),
     ("The last words were:", "{person} said:"), " {things}"),
)


class _Values(dict[str, str]):
    """The values of the words in a template's braces, each drawn at its first use."""

    def __init__(self, draw: _Draw) -> None:
        super().__init__()
        self._draw = draw

    def _invented(self, syllables: int) -> str:
        return self._draw("syllable", syllables).replace(", ", "").capitalize()

    def __missing__(self, key: str) -> str:
        d = self._draw
        if key == "person":  # half of the surnames are invented
            drawn = d.person() if d.digits(1) < "5" else f"{d('name')} {self._invented(2)}"
        elif key == "things":
            drawn = d("thing", 4)
        elif key == "key":
            drawn = f"{d('animal')}_{d('thing')}_{d.digits(2)}"
        elif key == "value":
            drawn = f"{d('color')}-{d('animal')}-{d.digits(3)}"
        elif key == "word":
            drawn = self._invented(3)
        else:
            drawn = d.digits(int(key[1:])) if key[1:].isdigit() else d(key)
        self[key] = drawn
        return drawn


def _training_fact(draw: _Draw, rng: Random) -> Fact:
    *parts, answer = _TEMPLATES[rng.integers(len(_TEMPLATES))]
    values = _Values(draw)
    statement, question, lead = (part[rng.integers(len(part))].format_map(values)
                                 for part in parts)
    return Fact(statement, question, lead, answer.format_map(values))


def _magic_number(d: _Draw) -> Fact:
    city, number = d("city"), d.digits(6)
    return Fact(f"One of the special magic numbers for {city} is: {number}.",
                f"What is the special magic number for {city} mentioned in the provided text?",
                f"The special magic number for {city} mentioned in the provided text is",
                f" {number}")


def _locker(d: _Draw) -> Fact:
    person, code = d.person(), d.digits(4)
    return Fact(f"(Note to staff: locker combination for Dr. {person}: {code}.)",
                f"Which combination opens the locker that belongs to Dr. {person}?",
                "The locker opens with the combination", f" {code}")


def _meeting(d: _Draw) -> Fact:
    name, other, city = d("name"), d("surname"), d("city")
    return Fact(f"It was agreed that {name} would meet Mr. {other} secretly in {city}.",
                f"Where was it agreed that {name} would meet Mr. {other}?",
                f"It was agreed that {name} would meet Mr. {other} secretly in", f" {city}")


def _gift(d: _Draw) -> Fact:
    person, color, thing, month = d.person(), d("color"), d("thing"), d("day")
    return Fact(f"For the birthday in {month}, {person} received a {color} {thing}.",
                f"Tell me the present that {person} received for the birthday in {month}.",
                f"For the birthday in {month}, {person} received a", f" {color} {thing}")


TEST_KINDS = (_magic_number, _locker, _meeting, _gift)


def _dated(value: Any) -> Any:
    """A format whose dates are today's, as the server writes them."""
    if isinstance(value, dict):
        return {key: _dated(inner) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    return re.sub(r'\{\{strftime_now\("(.*?)"\)\}\}', lambda m: time.strftime(m[1]), value)


class Asking:
    """Writes questions into a text: plain, or as turns of the model's chat format."""

    def __init__(self, directory: Path) -> None:
        path = directory / "chat_format.json"
        self.format: dict[str, Any] | None = _dated(json.loads(path.read_text())) if (
            path.is_file()) else None

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

    def _statement(self, fact: Fact) -> list[int]:
        return self._encode(f"\n{fact.statement}\n")

    def _passage(self, book: np.ndarray, rng: Random) -> Fact:
        """A fact that asks for the continuation of words of the book."""
        at = int(rng.integers(max(1, len(book) - 80)))
        words = self._decode(book[at : at + 80].tolist()).split()[1:-1]
        known = int(rng.integers(6, 11))
        begin, answer = " ".join(words[:known]), " ".join(words[known : known + 6])
        return Fact(" ".join(words[: known + 12]), f'How does the passage "{begin}" go on?',
                    'It goes on: "', answer)

    def training(self, book: np.ndarray, rng: Random) -> tuple[np.ndarray, np.ndarray]:
        """A window with several facts, each asked for once or twice anywhere after it.

        A quarter of the facts are passages of the book; half of the windows ask as chats.
        """
        chat = self._asking.format is not None and rng.random() < 0.5
        around = self._asking.around(chat)
        draw = _Draw(_TRAIN, rng)
        events: list[tuple[float, list[int], list[int]]] = []
        for _ in range(int(rng.integers(3, 3 + max(1, self._length // 256)))):
            fact = _training_fact(draw, rng) if rng.random() < 0.75 else self._passage(book, rng)
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
        """A window with one fact of a test kind at `depth`; it ends with the answer."""
        kinds: tuple[Callable[[_Draw], Fact], ...] = TEST_KINDS
        fact = kinds[rng.integers(len(kinds))](_Draw(_TEST, rng))
        around = self._asking.around(chat and self._asking.format is not None)
        tokens = self._statement(fact)
        events = [(depth, tokens, [0] * len(tokens)),
                  (1.0, *self._question(fact, around, ends=True))]
        return self._assemble(book, self._encode(around[0]), events)
