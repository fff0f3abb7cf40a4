"""Documents of .jsonl and .json files, as data sets have them.

A line of .jsonl, or an entry of the list in .json, is an object: `text`; or a chat, in `messages`
({"role", "content"}) or in ShareGPT's `conversations` ({"from", "value"}), which becomes text by
the model's chat_format.json as the server renders it, up to the end of the last turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from models.convert.chat_format import NAME, read_format, render_format
from models.finetune.text_tokenizer import TextError

SHAREGPT = {"human": "user", "gpt": "assistant"}  # other roles have the same names


def _entries(file: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """Yields each entry, and where it is."""
    where = name
    try:
        if name.removesuffix(".xz").removesuffix(".gz").endswith(".json"):
            entries = json.loads(file.read())
            entries = entries if isinstance(entries, list) else [entries]
            yield from ((f"{name}: entry {n}", entry) for n, entry in enumerate(entries, 1))
            return
        for number, line in enumerate(file, 1):
            where = f"{name}: line {number}"
            if line := line.decode("utf-8-sig" if number == 1 else "utf-8").strip():
                yield where, json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TextError(f"{where}: no JSON ({error})") from None


def _content(value: Any) -> str:
    """The text of a message: a text, or a list of parts, joined as lines, as in the server."""
    if isinstance(value, list):
        return "\n".join(part["text"] for part in value)
    return "" if value is None else value


def _chat(turns: list[dict[str, Any]], form: dict[str, Any]) -> str:
    messages = []
    for turn in turns:
        role, content = (turn.get("role", turn.get("from")), turn.get("content", turn.get("value")))
        role = SHAREGPT.get(role, role)
        if role not in form["roles"] or turn.get("tool_calls"):
            raise TypeError(f"the chat format has no {role!r}, or it calls tools")
        messages.append({"role": role, "content": _content(content)})
    return render_format(form, messages, generate=False)


def json_documents(file: BinaryIO, name: str,
                   model: Path | None) -> Iterator[tuple[bytes, bool]]:
    """Yields the text of each entry, and whether it is a chat. TextError names a wrong entry."""
    form = None if model is None else read_format(model)
    for where, entry in _entries(file, name):
        known = entry if isinstance(entry, dict) else {}
        turns = known.get("messages") or known.get("conversations")
        if turns and form is None:
            raise TextError(f"{where}: a chat, but the model has no {NAME}; ./run convert makes it")
        try:
            text = _chat(turns, form) if turns else known["text"]
            yield text.encode(), bool(turns)
        except (KeyError, TypeError, AttributeError, UnicodeEncodeError) as error:
            raise TextError(f"{where}: neither `text` nor `messages` nor `conversations` of texts: "
                            f"{error}") from None
