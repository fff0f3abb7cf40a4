"""The facts of the recall tasks: their words, wordings and kinds.

Training and test share no wording, kind, name or place. A fact has statements, a question with the
beginning of its answer, and the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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

    statements: tuple[str, ...]  # in their order in the text, each at a place of its own
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

    def hexadecimal(self) -> str:
        """One to four groups of 3 to 9 hexadecimal digits."""
        sizes = self._rng.integers(3, 10, self._rng.integers(1, 5))
        return "-".join("".join(f"{x:x}" for x in self._rng.integers(0, 16, n)) for n in sizes)


def _distinct(draw: Callable[[], str], count: int) -> list[str]:
    """At most `count` different draws: fewer, if the words of `draw` are few."""
    found = dict.fromkeys(draw() for _ in range(2 * count))
    return list(found)[:count]


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


# Templates of facts with an owner: statements, the noun of the value, the value.
_OWNED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("The ticket {value} is for {owner}.", "{owner} holds the ticket {value}."), "ticket", "{d5}"),
    (("Parcel {value} goes to {owner}.", "{owner} waits for the parcel {value}."), "parcel",
     "{hex}"),
    (("{owner} rents the cabin {value}.", "Cabin {value}: {owner}."), "cabin", "{d3}"),
    (("{owner} has packed a {value}.", "A {value} was packed by {owner}."), "packed thing",
     "{color} {thing}"),
    (("{owner} has been to {value}.", "In spring {owner} went to {value}."), "visited place",
     "{city}"),
    (("{owner} feeds a {value}.", "A {value} belongs to {owner}."), "animal", "{animal}"),
    (("Invoice {value} was sent to {owner}.", "{owner} has paid the invoice {value}."), "invoice",
     "{d7}"),
    (("{owner} may sign in with {value}.", "{value} is a password of {owner}."), "password",
     "{value}"),
    (('{{"owner": "{owner}", "serial": "{value}"}}', "serial,{owner},{value}"), "serial",
     "{hex}"),
    (("{owner} once wrote about {value}.", "A letter of {owner} mentions {value}."),
     "subject", "{word}"),
)
_OWNED_QUESTIONS = ("Name the {nouns} of {owners}.", "Find all {nouns} of {owners}.",
                    "Give me the {nouns} of {owners} in their order.")
_OWNED_LEADS = ("Found for {owners}:", "{nouns}, {owners}:", "{owners} ({nouns}):")


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
        elif key == "hex":
            drawn = d.hexadecimal()
        else:
            drawn = d.digits(int(key[1:])) if key[1:].isdigit() else d(key)
        self[key] = drawn
        return drawn


def _single(draw: _Draw, rng: Random) -> Fact:
    """One value, of one of the templates."""
    *parts, answer = _TEMPLATES[rng.integers(len(_TEMPLATES))]
    values = _Values(draw)
    statement, question, lead = (part[rng.integers(len(part))].format_map(values)
                                 for part in parts)
    return Fact((statement,), question, lead, answer.format_map(values))


def _list(values: list[str], rng: Random) -> str:
    """The values, joined by commas; half of the lists have "and" before the last one."""
    last = " and " if rng.random() < 0.5 else ", "
    return last.join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)


def _question(nouns: str, owners: str, rng: Random) -> tuple[str, str]:
    """A question about what owners have, and the beginning of its answer."""
    question, lead = (parts[rng.integers(len(parts))].format(nouns=nouns, owners=owners)
                      for parts in (_OWNED_QUESTIONS, _OWNED_LEADS))
    return question, lead


def _owned(draw: _Draw, rng: Random) -> Fact:
    """Several owners with several values each, stated far apart; a question about some owners."""
    statements, noun, kind = _OWNED[rng.integers(len(_OWNED))]
    owners = _distinct(draw.person, int(rng.integers(1, 7)))
    each = int(rng.integers(1 if len(owners) > 1 else 2, 5))
    values = _distinct(lambda: kind.format_map(_Values(draw)), each * len(owners))
    pairs = [(owners[i % len(owners)], value) for i, value in enumerate(values)]
    rng.shuffle(pairs)
    stated = tuple(statements[rng.integers(len(statements))].format(owner=owner, value=value)
                   for owner, value in pairs)
    asked = rng.permutation(owners)[: rng.integers(1, 5)].tolist()
    answers = [value for name in asked for owner, value in pairs if owner == name]
    names, nouns = _list(asked, rng), noun if len(answers) == 1 else f"{noun}s"
    return Fact(stated, *_question(nouns, names, rng), f" {_list(answers, rng)}")


def _register(draw: _Draw, rng: Random) -> Fact:
    """A list of owners with a value each in one place, and a question about one of them."""
    statements, noun, kind = _OWNED[rng.integers(len(_OWNED))]
    owners = _distinct(draw.person, int(rng.integers(6, 41)))
    values = _distinct(lambda: kind.format_map(_Values(draw)), len(owners))
    line, asked = statements[rng.integers(len(statements))], rng.integers(len(values))
    lines = [line.format(owner=owner, value=value) for owner, value in zip(owners, values)]
    return Fact(("\n".join(lines),), *_question(noun, owners[asked], rng), f" {values[asked]}")


def _chain(draw: _Draw, rng: Random) -> Fact:
    """A value that is passed on from name to name, and a question about all names that have it."""
    names = _distinct(lambda: _Values(draw)["word"], int(rng.integers(2, 6)))
    value = draw.digits(5)
    stated = [f"{names[0]} is worth {value} crowns."]
    stated += [f"{new} is worth as much as {old}." for old, new in zip(names, names[1:])]
    return Fact(tuple(stated), f"What is worth {value} crowns?", f"Worth {value} crowns:",
                f" {_list(names, rng)}")


def passage_fact(words: list[str], rng: Random) -> Fact:
    """A fact that asks for the continuation of words of the book."""
    known = int(rng.integers(6, 11))
    begin, answer = " ".join(words[:known]), " ".join(words[known : known + 6])
    return Fact((" ".join(words[: known + 12]),), f'How does the passage "{begin}" go on?',
                'It goes on: "', answer)


_KINDS = ((0.5, _single), (0.33, _owned), (0.12, _register), (0.05, _chain))


def training_fact(rng: Random) -> Fact:
    """A fact of a training kind."""
    shares, kinds = zip(*_KINDS)
    kind: Callable[[_Draw, Random], Fact] = kinds[rng.choice(len(kinds), p=shares)]
    return kind(_Draw(_TRAIN, rng), rng)


def _magic_number(d: _Draw) -> Fact:
    city, number = d("city"), d.digits(6)
    return Fact((f"One of the special magic numbers for {city} is: {number}.",),
                f"What is the special magic number for {city} mentioned in the provided text?",
                f"The special magic number for {city} mentioned in the provided text is",
                f" {number}")


def _locker(d: _Draw) -> Fact:
    person, code = d.person(), d.digits(4)
    return Fact((f"(Note to staff: locker combination for Dr. {person}: {code}.)",),
                f"Which combination opens the locker that belongs to Dr. {person}?",
                "The locker opens with the combination", f" {code}")


def _meeting(d: _Draw) -> Fact:
    name, other, city = d("name"), d("surname"), d("city")
    return Fact((f"It was agreed that {name} would meet Mr. {other} secretly in {city}.",),
                f"Where was it agreed that {name} would meet Mr. {other}?",
                f"It was agreed that {name} would meet Mr. {other} secretly in", f" {city}")


def _gift(d: _Draw) -> Fact:
    person, color, thing, month = d.person(), d("color"), d("thing"), d("day")
    return Fact((f"For the birthday in {month}, {person} received a {color} {thing}.",),
                f"Tell me the present that {person} received for the birthday in {month}.",
                f"For the birthday in {month}, {person} received a", f" {color} {thing}")


TEST_KINDS: tuple[Callable[[_Draw], Fact], ...] = (_magic_number, _locker, _meeting, _gift)


def test_fact(rng: Random) -> Fact:
    """A fact of a test kind."""
    return TEST_KINDS[rng.integers(len(TEST_KINDS))](_Draw(_TEST, rng))
