"""Nine recall tasks in the manner of RULER: facts somewhere in a long text, and a question about
them at its end.

Source of the kinds: Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context
Language Models?", 2024, section 3. Words, wording and seeds are our own and differ from foxify's
training. The text between the facts is that of LAMBADA's passages from books.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from collections.abc import Callable
from typing import Any

from models.convert.refusal import Refusal
from models.evaluate import downstream
from models.evaluate.client import Client, Setting

QUESTION_TOKENS = 120  # room for the question and the chat format
NOISE = ("A kettle stands on the stove.", "The door of the shed is open.", "Rain is on its way.",
         "There is nothing new.", "We walk on.")
SUBJECTS = """amber apron arbor badge bagel bamboo banjo barley beacon beetle bonnet bramble
    bridle bugle burrow butter cabin cactus canvas carbon cedar cherry cinder citrus clover cobalt
    copper coral cotton cradle crater cricket crystal dagger daisy dragon ember fabric fennel
    ferret fiddle flint fossil garnet ginger goblet gopher gravel hazel helmet hermit hollow
    indigo island jasper jersey jigsaw kennel lagoon lantern laurel lemon linen lobster lotus
    mallet mantle maple marble meadow mitten mosaic muslin nectar nickel nutmeg oyster paddle
    pebble pepper pewter pocket poppy prism quartz quiver radish raisin ribbon rocket saffron
    sandal scarab shovel silver sledge spindle sponge stable sunset tablet tassel thimble thistle
    timber tinsel tundra tunnel turnip vanilla velvet violin walnut willow window zephyr""".split()


@dataclasses.dataclass(frozen=True)
class Question:
    """One prompt. `depth`: the place of the first fact in the text, 0 to 1."""

    text: str
    question: str
    lead: str  # the beginning of the answer, which the model continues
    answers: tuple[str, ...]
    depth: float


class Maker:
    """Makes questions of a number of tokens, always the same ones for one seed."""

    def __init__(self, client: Client, sentences: list[str], seed: str) -> None:
        self._client, self._sentences = client, sentences
        self._random = random.Random(seed)

    def number(self) -> str:
        return str(self._random.randrange(1_000_000, 10_000_000))

    def code(self) -> str:
        return "-".join(f"{self._random.getrandbits(4 * size):0{size}x}" for size in (8, 4, 4, 12))

    def subjects(self, count: int) -> list[str]:
        return self._random.sample(SUBJECTS, count)

    def length(self, sentence: str) -> int:
        return len(self._client.tokens(" " + sentence))

    def fill(self, facts: list[str], tokens: int,
             filler: Callable[[int], str]) -> tuple[str, float]:
        """The facts at random places, in their order, in a text of `tokens` tokens."""
        left = tokens - sum(self.length(fact) for fact in facts)
        parts: list[str] = []
        while True:
            sentence = filler(len(parts))
            left -= self.length(sentence)
            if left < 0:
                break
            parts.append(sentence)
        places = sorted(self._random.randrange(len(parts) + 1) for _ in facts)
        for place, fact in reversed(list(zip(places, facts))):
            parts.insert(place, fact)
        return " ".join(parts), places[0] / max(1, len(parts) - len(facts)) if places else 0.0

    def book(self) -> Callable[[int], str]:
        """Sentences of books from a random place on."""
        start = self._random.randrange(len(self._sentences))
        return lambda i: self._sentences[(start + i) % len(self._sentences)]

    def common_words(self, tokens: int) -> Question:
        """A list in which five words stand often and all others seldom."""
        words = self.subjects(60)
        often, listed, left = words[:5], [], tokens
        while True:
            more = often + self._random.sample(words[5:], 10)
            left -= sum(self.length(word) for word in more)
            if left < 0:
                break
            listed += more
        self._random.shuffle(listed)
        return Question(" ".join(listed), "Which five words stand most often in the list above?",
                        "The five most frequent words are", tuple(often), 0.0)

    def tracking(self, tokens: int) -> Question:
        """A value that is passed on from variable to variable."""
        names = [name.upper() for name in self.subjects(5)]
        value = self.number()
        facts = [f"VAR {names[0]} = {value}."]
        facts += [f"VAR {new} = VAR {old}." for old, new in zip(names, names[1:])]
        text, depth = self.fill(facts, tokens, self.noise)
        return Question(text, f"Which five variables have the value {value} in the text above?",
                        f"The variables with the value {value} are", tuple(names), depth)

    @staticmethod
    def noise(place: int) -> str:
        return NOISE[place % len(NOISE)]

    def other_facts(self, _: int) -> str:
        return fact_of(self._random.choice(SUBJECTS) + "-" + self._random.choice(SUBJECTS),
                       self.number())

    def asked(self, tokens: int, subjects: int, values: int, asked: int, filler: str,
              what: str = "number") -> Question:
        """Facts about `subjects` subjects with `values` values each, and a question about the first
        `asked` of them."""
        names = self.subjects(subjects)
        pairs = [(name, self.code() if what == "code" else self.number())
                 for name in names for _ in range(values)]
        self._random.shuffle(pairs)
        filling = {"noise": self.noise, "facts": self.other_facts,
                   "book": self.book()}[filler]
        text, depth = self.fill([fact_of(*pair, what) for pair in pairs], tokens, filling)
        wanted = names[:asked]
        answers = tuple(value for name, value in pairs if name in wanted)
        some = "is" if len(answers) == 1 else "are"
        each = f"{what}" if len(answers) == 1 else f"{what}s"
        listed = ", ".join(wanted)
        return Question(text, f"What {some} the registered {each} of {listed} in the text above?",
                        f"The registered {each} of {listed} {some}", answers, depth)


def fact_of(subject: str, value: str, what: str = "number") -> str:
    return f"The registered {what} of {subject} is {value}."


TASKS: dict[str, Callable[[Maker, int], Question]] = {
    "single_noise": functools.partial(Maker.asked, subjects=1, values=1, asked=1, filler="noise"),
    "single_book": functools.partial(Maker.asked, subjects=1, values=1, asked=1, filler="book"),
    "single_code": functools.partial(Maker.asked, subjects=1, values=1, asked=1, filler="book",
                                     what="code"),
    "multikey": functools.partial(Maker.asked, subjects=4, values=1, asked=1, filler="book"),
    "multikey_all": functools.partial(Maker.asked, subjects=1, values=1, asked=1, filler="facts"),
    "multivalue": functools.partial(Maker.asked, subjects=1, values=4, asked=1, filler="book"),
    "multiquery": functools.partial(Maker.asked, subjects=4, values=1, asked=4, filler="book"),
    "tracking": Maker.tracking,
    "common_words": Maker.common_words,
}


@functools.cache
def book_sentences() -> list[str]:
    """Sentences of LAMBADA's passages, in their order."""
    passages = downstream.read_choices(downstream.requests_of("lambada"), 0)
    text = " ".join(choice.context for choice in passages)
    sentences = re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text))
    return [sentence for sentence in sentences if 20 < len(sentence) < 300]


@functools.cache  # for the second setting of one server
def make(task: str, client: Client, tokens: int, count: int, seed: int) -> list[Question]:
    """`count` questions whose prompts have about `tokens` tokens."""
    if tokens > client.max_model_len:
        raise Refusal(f"{tokens} tokens are more than {client.model} holds: "
                      f"{client.max_model_len}")
    maker = Maker(client, book_sentences(), f"{task} {tokens} {seed}")
    return [TASKS[task](maker, tokens - QUESTION_TOKENS) for _ in range(count)]


def ids_of(question: Question, client: Client, beginning: tuple[int, ...]) -> list[int]:
    """The prompt: a turn of the chat format if the model has one, else plain text."""
    asked = f"{question.text}\n\n{question.question}"
    if client.chats:
        return client.turn(asked) + list(client.tokens(question.lead))
    return [*beginning, *client.tokens(f"{asked}\n{question.lead}")]


def answer_tokens(question: Question, client: Client) -> int:
    """Room for all answers, their separators and a few words."""
    return 16 + sum(len(client.tokens(f" {answer}, and")) for answer in question.answers)


def grade(question: Question, text: str) -> float:
    """The share of the question's answers that a text contains."""
    return sum(answer in text for answer in question.answers) / len(question.answers)


def judge(task: str, client: Client, setting: Setting, tokens: int, count: int,
          seed: int) -> dict[str, Any]:
    """The share of each question's answers that the model gives."""
    questions = make(task, client, tokens, count, seed)
    beginning = client.beginning()

    def ask(question: Question) -> tuple[float, dict[str, Any]]:
        answer = client.answer(ids_of(question, client, beginning),
                               answer_tokens(question, client), setting)
        return grade(question, answer.text), answer.certificate

    results = client.each(ask, questions, f"{task} at {tokens}, {setting.name}")
    return {"grades": {"recall": [share for share, _ in results]},
            "depths": [question.depth for question in questions],
            "certificate": downstream.worst([certificate for _, certificate in results])}
