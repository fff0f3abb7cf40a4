"""chat_format.json of a model directory: its Jinja template as prefixes and suffixes of roles.

Invariant: a format is written only if it renders RANDOM_CONVERSATIONS random conversations as the
template does. The format refuses every kind of conversation that this cannot be shown for. The
server, which has no template engine, reads the result (models/tokenizer/chat_format.h).
"""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.convert.bounded_reading import bounded
from models.convert.chat_template import (
    Message, NotOfThisForm, Render, Tools, as_json, compiled, template_of)
from models.convert.refusal import Refusal

NAME = "chat_format.json"
RANDOM_CONVERSATIONS = 200
_SECONDS = 60
_LARGEST = 64 << 10  # bytes; the server refuses larger files
_CONTENTS = ("", " ", "\n", "a", "Hello, world.", "žluť 漢字 🦊", "\u3000", "\x1c\x85", "{{ x }}")
_THOUGHT, _RESPONSE = ("<think>", "</think>"), ("<tool_response>", "</tool_response>")
# `thinking` for a template that removes thoughts from all answers.
_DROPPED = {"prefix": _THOUGHT[0], "suffix": _THOUGHT[1], "skip": "", "kept": False}
_DROPPED |= {"response_start": "", "response_end": ""}


def _thought(content: str, thinking: dict[str, Any]) -> tuple[str, str]:
    """Splits an answer into its thought ("" if it has none) and the text behind the thought."""
    if not thinking.get("kept", True):
        answer = content.split(thinking["suffix"])[-1]
        return "", answer.lstrip("\n") if thinking["strip"] else answer
    start, end = thinking["prefix"].strip(), thinking["suffix"].strip()
    if end not in content:
        return "", content
    thought = content.split(end)[0].split(start)[-1].strip("\n")
    return thought, content.split(end)[-1].lstrip("\n")


def _last_question(messages: list[Message], thinking: dict[str, str]) -> int:
    """Index of the last message that a user wrote; their number if there is none.

    A user message in response tags carries the answer of a tool, and does not count.
    """
    start, end = thinking["response_start"], thinking["response_end"]
    for i, message in reversed(list(enumerate(messages))):
        content = message["content"]
        of_tool = start and content.startswith(start) and content.endswith(end)
        if message["role"] == "user" and not of_tool:
            return i
    return len(messages)


def render_format(
    form: dict[str, Any],
    messages: list[Message],
    generate: bool,
    tools: Tools | None = None,
    enable_thinking: bool | None = None,
) -> str:
    """Renders a conversation as the server does (models/tokenizer/chat_format.cc)."""
    text, thinking = form["bos"], form.get("thinking")
    question = _last_question(messages, thinking) if thinking else 0
    told, default = "", form["default_system"]
    if tools:
        told = "".join(form["tools"]["tool"] + as_json(tool) for tool in tools)
        told += form["tools"]["suffix"]
        default = form["tools"]["prefix_alone"]
    if default is not None and messages[0]["role"] != "system":
        system = form["roles"]["system"]
        text += system["prefix"] + default + told + system["suffix"]
    around = zip([None, *messages], messages, [*messages[1:], None])
    for at, (last, message, following) in enumerate(around):
        role, content = form["roles"][message["role"]], message["content"]
        thinks = thinking and message["role"] == "assistant"
        kept = not thinking or thinking.get("kept", True)
        separated = bool(content)
        thought, content = _thought(content, thinking) if thinks else ("", content)
        shown = content.strip() if role.get("trim") else content
        separated = bool(content) if kept else separated
        if thinks and kept and at > question and (thought or not following):
            shown = thinking["prefix"] + thought + thinking["suffix"] + content.lstrip("\n")
        answers = [m and {m["role"], message["role"]} == {"tool"} for m in (last, following)]
        text += (form["tools"]["next_response"] if answers[0] else role["prefix"]) + shown
        if tools and message["role"] == "system" and at == 0:
            text += form["tools"]["prefix"] + told
        for i, call in enumerate(message.get("tool_calls", ())):
            text += form["tools"]["separator"] * bool(i or separated)
            text += form["tools"]["call"] + call["function"]["name"] + form["tools"]["arguments"]
            text += as_json(call["function"]["arguments"]) + form["tools"]["call_end"]
        text += "" if answers[1] else role["suffix"]
    text += form["generation_prompt" if generate else "end"]
    return text + (thinking["skip"] if generate and enable_thinking is False else "")


def _dated(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _dated(inner) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    return re.sub(r'\{\{strftime_now\("(.*?)"\)\}\}', lambda m: time.strftime(m[1]), value)


def read_format(directory: Path) -> dict[str, Any] | None:
    """The format of a model directory, with the date of today, as the server writes it."""
    path = directory / NAME
    return _dated(json.loads(path.read_bytes())) if path.is_file() else None


def _conversation(*turns: str) -> list[Message]:
    """Makes messages of `turns`: "role:content", or "role" with a content that names the turn."""
    split = (turn.partition(":") for turn in turns)
    return [
        {"role": role, "content": content if colon else f"qz{i}zq"}
        for i, (role, colon, content) in enumerate(split)
    ]


def _calling(content: str, *calls: tuple[str, dict[str, Any]]) -> Message:
    functions = ({"name": name, "arguments": arguments} for name, arguments in calls)
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "x", "type": "function", "function": f} for f in functions],
    }


def _tool(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": 1.5}}}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def _between(text: str, start: str, end: str) -> str:
    if len(text) < len(start + end) or not (text.startswith(start) and text.endswith(end)):
        raise NotOfThisForm("tools, calls or thoughts change what stands around them")
    return text[len(start) : len(text) - len(end)]


class _Derivation:
    """Derives a format: renders probe conversations and cuts the texts at their contents."""

    def __init__(self, render: Render, tokens: dict[str, str]) -> None:
        self._render, self._tokens = render, tokens

    def _rendered(
        self,
        messages: list[Message],
        generate: bool = False,
        tools: Tools | None = None,
        thinks: bool | None = None,
    ) -> str:
        try:
            return self._render(messages, generate, tools, thinks)
        except Exception as error:  # a template can raise any of them
            raise NotOfThisForm(f"it refuses {_roles(messages)} ({_line(error)})") from None

    def _pieces(self, *roles: str, generate: bool = False) -> list[str]:
        """The texts before, between and after the contents."""
        messages = _conversation(*roles)
        pieces = re.split(r"qz\d+zq", self._rendered(messages, generate))
        if len(pieces) != len(roles) + 1:
            raise NotOfThisForm(f"it does not write every content once in {_roles(messages)}")
        return pieces

    def form(self, with_system: bool) -> dict[str, Any]:
        """The only format that may equal the template; check() finds out if it does."""
        first, closing = self._pieces("user")
        opening = self._pieces("user", generate=True)[1]
        end = self._tokens.get("eos_token", "")
        if opening.startswith(closing):
            end = ""
        elif not (end and closing.endswith(end) and opening.startswith(closing[: -len(end)])):
            raise NotOfThisForm("the generation prompt replaces a part of the user's message")
        user_suffix = closing[: len(closing) - len(end)]
        _, between, behind, _ = self._pieces("user", "assistant", "user")
        suffix = self._pieces("user", "assistant")[2]
        suffix = suffix[: len(suffix) - len(end)]
        if not (between.startswith(user_suffix) and behind.startswith(suffix)):
            raise NotOfThisForm("the last message ends unlike others")
        prefix = behind[len(suffix) :]
        if not first.endswith(prefix):
            raise NotOfThisForm("the first message begins unlike others")
        form: dict[str, Any] = {
            "bos": first[: len(first) - len(prefix)],
            "default_system": None,
            "roles": {
                "user": self._role("user", prefix, user_suffix),
                "assistant": self._role("assistant", between[len(user_suffix) :], suffix),
            },
            "generation_prompt": opening[len(user_suffix) :],
            "end": end,
            "alternate": self._alternates(),
        }
        if with_system:
            self._add_system(form, first, prefix)
        return {**form, **self._thinking(user_suffix + form["roles"]["assistant"]["prefix"])}

    def _role(self, role: str, prefix: str, suffix: str) -> dict[str, Any]:
        before = ("user",) if role == "assistant" else ()
        after = ("user",) if role == "system" else ()
        plain = self._rendered(_conversation(*before, f"{role}:x", *after))
        spaced = self._rendered(_conversation(*before, f"{role}: \n x \n ", *after))
        return {"prefix": prefix, "suffix": suffix, "trim": plain == spaced}

    def _thinking(self, start: str) -> dict[str, Any]:
        """How thoughts appear in answers to the last question; {} if all answers keep them."""
        turns = _conversation("user", f"assistant:{_THOUGHT[0]}qz8zq{_THOUGHT[1]}qz9zq", "user")
        last, earlier = self._rendered(turns[:2]), self._rendered(turns)
        if "qz8zq" in earlier:
            return {}
        if "qz8zq" not in last:  # the template drops the thoughts of all answers
            lines = _conversation("user", "assistant:\n\nqz9zq", "user")
            strips = "\n\nqz9zq" not in self._rendered(lines)
            return {"thinking": {**_DROPPED, "strip": strips}}
        pieces = re.split(r"qz\d+zq", last)
        if len(pieces) != 4:
            return {}
        default, off = (self._rendered(turns[2:], True, None, thinks) for thinks in (None, False))
        texts = {"prefix": _between(pieces[1], start, ""), "suffix": pieces[2]}
        texts["skip"] = off[len(default) :] if off.startswith(default) else ""
        return {"thinking": {**texts, "response_start": _RESPONSE[0], "response_end": _RESPONSE[1]}}

    def _alternates(self) -> bool:
        """True if the template refuses some order of user and assistant, so all but alternation."""
        try:
            for roles in (("user", "user"), ("assistant", "user"), ("user", *("assistant",) * 2)):
                self._rendered(_conversation(*roles))
        except NotOfThisForm:
            return True
        return False

    def _add_system(self, form: dict[str, Any], first: str, user_prefix: str) -> None:
        head, behind, _ = self._pieces("system", "user")
        if not behind.endswith(user_prefix):
            raise NotOfThisForm("a message from the system changes how the user's begins")
        bos = form["bos"]
        if len(first) >= len(head + behind) and first.startswith(head) and first.endswith(behind):
            # Text that always stands there is a default system message; its prefix includes bos.
            form["default_system"] = first[len(head) : len(first) - len(behind)]
            form["bos"] = bos = ""
        if not head.startswith(bos):
            raise NotOfThisForm("a message from the system changes how the conversation begins")
        suffix = behind[: len(behind) - len(user_prefix)]
        form["roles"]["system"] = self._role("system", head[len(bos) :], suffix)

    def with_tools(self, form: dict[str, Any]) -> dict[str, Any]:
        """Adds to a format how tools are listed and called."""
        user, system, assistant = (form["roles"][n] for n in ("user", "system", "assistant"))
        tools = [_tool(f"qz{i}zq", "d") for i in range(2)]

        def told(*roles: str) -> list[str]:
            text = self._rendered(_conversation(*roles), tools=tools)
            pieces = text.replace(as_json(tools[1]), as_json(tools[0])).split(as_json(tools[0]))
            if len(pieces) != 3:
                raise NotOfThisForm("tools are not written as JSON")
            return pieces

        opening, end = form["bos"] + system["prefix"], form["end"]
        behind = system["suffix"] + user["prefix"]
        before, each, after = told("system", "user")
        texts = {
            "prefix": _between(before, opening + "qz0zq", each),
            "prefix_alone": _between(told("user")[0], opening, each),
            "tool": each,
            "suffix": _between(after, "", behind + "qz1zq" + user["suffix"] + end),
        }

        def called(content: str, *rest: str) -> list[str]:
            message = _calling(content, *((f"qz{i}zq", {f"qz{i}zq": 0}) for i in (8, 9)))
            turns = [*_conversation("user"), message, *_conversation(*rest)]
            return re.split(r'\{"qz\d+zq": 0\}|qz\d+zq', self._rendered(turns))[1:]

        start = user["suffix"] + assistant["prefix"]
        pieces = called("", "tool", "tool", "user")
        if len(pieces) != 8 or len(called("qz7zq", "user")) != 7:
            raise NotOfThisForm("calls are not names and JSON")
        call = _between(pieces[0], start, "")
        separator = _between(called("qz7zq", "user")[1], "", call)
        call_end = _between(pieces[2], "", separator + call)
        response = _between(pieces[4], call_end + assistant["suffix"], "")
        role = {"prefix": response, "suffix": _between(pieces[6], "", user["prefix"])}
        texts |= {"separator": separator, "call": call, "arguments": pieces[1]}
        texts |= {"call_end": call_end, "next_response": pieces[5]}
        roles = {**form["roles"], "tool": {**role, "trim": False}}
        return {**form, "roles": roles, "tools": texts}

    def checked(self, form: dict[str, Any], literals: list[str]) -> dict[str, Any]:
        """Checks a format, and sets `later_system`: True if a later message may be a system one,
        and `system_alone`: True if no message of another role has to follow."""
        later = "system" in form["roles"]
        try:
            self.check(form := {**form, "later_system": later}, literals)
        except NotOfThisForm:
            if not later:
                raise
            self.check(form := {**form, "later_system": False}, literals)
        return {**form, "system_alone": self._system_alone(form)}

    def _system_alone(self, form: dict[str, Any]) -> bool:
        """True if system messages alone come out as from the template."""
        if "system" not in form["roles"]:
            return False
        tools = [None, [_tool("f", "d")]] if "tools" in form else [None]
        counts = (1, 2) if form["later_system"] else (1,)
        messages = [[{"role": "system", "content": c}] * n for c in _CONTENTS for n in counts]
        cases = itertools.product(messages, (False, True), tools, _switches(form))
        try:
            return all(self._rendered(*case) == render_format(form, *case) for case in cases)
        except NotOfThisForm:
            return False

    def check(self, form: dict[str, Any], literals: list[str]) -> None:
        """Raises NotOfThisForm unless random conversations come out as from the template."""
        draw = random.Random(0)
        marks = [role[end] for role in form["roles"].values() for end in ("prefix", "suffix")]
        pieces = [*_CONTENTS, *marks, *literals, *self._tokens.values()]
        seen: list[tuple[bool, list[Message]]] = []
        for _ in range(RANDOM_CONVERSATIONS):
            messages, tools = _random_conversation(draw, form, pieces)
            args = (messages, draw.random() < 0.5, tools, draw.choice(_switches(form)))
            seen.append((self._rendered(*args) == render_format(form, *args), messages))
        wrong = [messages for is_right, messages in seen if not is_right]
        if wrong:
            right = [messages for is_right, messages in seen if is_right]
            raise NotOfThisForm(f"conversations with {_blamed(wrong, right)} come out differently")


# Traits of a conversation that may change how a template renders it.
_TRAITS: dict[str, Callable[[list[Message]], bool]] = {
    "</think> in a content": lambda m: any(_THOUGHT[1] in t["content"] for t in m),
    "white space around a content": lambda m: any(t["content"] != t["content"].strip() for t in m),
    "an empty content": lambda m: any(not t["content"] for t in m),
    "<tool_response> in a content": lambda m: any(_RESPONSE[0] in t["content"] for t in m),
    "two messages of one role in a row": lambda m: any(
        a["role"] == b["role"] for a, b in zip(m, m[1:])
    ),
    "an answer at the end": lambda m: m[-1]["role"] == "assistant",
    "a system message": lambda m: m[0]["role"] == "system",
    "no system message": lambda m: m[0]["role"] != "system",
    "a call of a tool": lambda m: any("tool_calls" in t for t in m),
    "more than one message": lambda m: len(m) > 1,
}


def _blamed(wrong: list[list[Message]], right: list[list[Message]]) -> str:
    """The trait that best separates the `wrong` conversations from the `right` ones."""

    def gap(name: str) -> float:
        shares = (sum(map(_TRAITS[name], of)) / max(1, len(of)) for of in (wrong, right))
        return next(shares) - next(shares)

    return max(_TRAITS, key=gap)


def _switches(form: dict[str, Any]) -> tuple[bool | None, ...]:
    """The values of enable_thinking that the format serves."""
    return (None, True, False) if form.get("thinking", {}).get("skip") else (None,)


def _random_conversation(
    draw: random.Random, form: dict[str, Any], pieces: list[str]
) -> tuple[list[Message], Tools | None]:
    roles = ["user", "assistant"] * 3
    roles = roles[: draw.randint(1, 6)]
    if not form["alternate"] and draw.random() < 0.5:
        roles = [draw.choice(("user", "assistant")) for _ in roles]
    if "system" in form["roles"] and draw.random() < 0.5:
        roles.insert(0, "system")
    if form["later_system"] and draw.random() < 0.5:
        for _ in range(draw.randint(1, 2)):
            roles.insert(draw.randint(0, len(roles)), "system")

    def words() -> str:
        drawn = draw.choices(pieces, k=draw.randint(0, 2))
        return "".join([*draw.choice(("", "", "\n", "\n\n")), *drawn])

    def text() -> str:
        start, end = (draw.choice(("", *tags)) for tags in zip(_THOUGHT, _RESPONSE))
        return start + words() + end + draw.choice(("", words()))

    messages = [{"role": role, "content": text()} for role in roles]
    if "tools" not in form or draw.random() < 0.2:
        return messages, None
    for i in range(len(messages) - 1, -1, -1):
        if messages[i]["role"] == "assistant" and draw.random() < 0.6:
            calls = [(f"f_{n}", {text(): text(), "n": [n]}) for n in range(draw.randint(1, 2))]
            answers = [{"role": "tool", "content": text()} for _ in calls]
            messages[i : i + 1] = [_calling(text(), *calls), *answers]
    return messages, [_tool(f"f_{n}", text()) for n in range(draw.randint(1, 3))]


def _roles(messages: list[Message]) -> str:
    return "a conversation of " + ", ".join(message["role"] for message in messages)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def derive(
    templates: dict[str, str], tokens: dict[str, str]
) -> tuple[dict[str, Any], str]:
    """The format, and its missing features with the reason ("" if complete).

    Raises NotOfThisForm if the template has no format.
    """
    import jinja2

    derivation = _Derivation(compiled(templates, tokens), tokens)
    # A string that a template looks for in contents is a literal of the template.
    words = [word for text in templates.values() for word in jinja2.Environment().lex(text)]
    literals = [word[1:-1] for _, kind, word in words if kind == "string" and len(word) < 64]
    reason = ""
    for with_system in (True, False):
        try:
            form = derivation.checked(derivation.form(with_system), literals)
            break
        except NotOfThisForm as error:
            if not with_system:
                raise
            reason = f"system messages: {error}"
    speaks_of_tools = any(re.search(r"\btools\b", text) for text in templates.values())
    if not speaks_of_tools or reason or form["alternate"]:
        return form, reason
    try:
        return derivation.checked(derivation.with_tools(form), literals), ""
    except NotOfThisForm as error:
        return form, f"tools: {error}"


def write_chat_format(directory: Path) -> str:
    """Writes NAME if the template of the directory has a format; returns a note for the user."""
    note = _write(directory)
    return "".join(c if c.isprintable() else "?" for c in note)


def _write(directory: Path) -> str:
    found = bounded(directory.name, lambda: template_of(directory))
    if found is None:
        return ""
    try:
        form, note = bounded("the template", lambda: _derived(*found), _SECONDS)
    except Refusal as refusal:
        return f"no chat: {str(refusal)[:300]}"
    if form:
        (directory / NAME).write_text(form, "utf-8")
    return note


def _derived(templates: dict[str, str], tokens: dict[str, str]) -> tuple[str, str]:
    """The text of NAME ("" if there is no format), and a note for the user ("" if none)."""
    try:
        form, reason = derive(templates, tokens)
    except NotOfThisForm as error:
        return "", f"no chat: {error}"
    text = json.dumps(form, indent=2) + "\n"
    if len(text) > _LARGEST:
        return "", f"no chat: its texts take more than {_LARGEST} bytes"
    note = f"chat without {reason}" if reason else ""
    date = re.search(r"date_string = [\"']([^\"']+)", templates["default"])
    if date and date[1] in text:  # transformers renders this date, too
        said = f"every chat says that today is {date[1]}, as the template does"
        note = f"{note}; {said}" if note else said
    return text, note
