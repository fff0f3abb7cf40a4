#!/usr/bin/env python3
"""Writes chat_vectors.json: conversations as the package transformers renders them at given times,
and the formats that models/convert derives of the same templates.

Usage: make_chat_vectors.py (any directory); needs transformers and jinja2. The templates come from
tests/models/convert/chat_format_test.py. The test itself only reads the file.
"""

import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
os.environ.setdefault("FOX_SOURCE_DIR", str(ROOT))
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "models" / "convert")]

import chat_format_test  # noqa: E402
from transformers.utils import chat_template_utils  # noqa: E402

from models.convert import chat_format  # noqa: E402

NAMES = ("R1-Distill", "QwQ", "dated", "Mistral Small", "generation", "Qwen3")
TIMES = (0, 951782400, 1735689599, 4102444799)  # 29 Feb 2000, and the last seconds of 2024, 2099
ANSWERS = ("x", "<think>\n\nt\n</think>\n\ny", "a</think>b</think>\n\nc", "\n\nz", "",
           "u\n</think>")


def call(content: str) -> dict[str, Any]:
    functions = [{"name": "f", "arguments": {"a": [1.5, "\u00fc"]}}, {"name": "g", "arguments": {}}]
    return {"role": "assistant", "content": content,
            "tool_calls": [{"type": "function", "function": f} for f in functions]}


def conversations(form: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Conversations for which the format has all roles."""
    user = {"role": "user", "content": "q "}
    found = [[user]]
    if form["system_alone"]:
        found.append([{"role": "system", "content": " s\n"}])
    for answer in ANSWERS:
        said = {"role": "assistant", "content": answer}
        found += [[user, said], [user, said, user]]
        if "system" in form["roles"]:
            found.append([{"role": "system", "content": " s\n"}, user, said, user])
        if "tools" in form:
            found.append([user, call(answer), {"role": "tool", "content": "r"},
                          {"role": "tool", "content": ""}, said])
    return found


def rendered(template: str, seconds: int, messages: list[dict[str, Any]], generate: bool) -> str:
    """The text that transformers renders at this time."""
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(seconds, tz)

    with mock.patch.object(chat_template_utils, "datetime", Clock):
        texts, _ = chat_template_utils.render_jinja_template(
            [messages], chat_template=template, add_generation_prompt=generate,
            **chat_format_test.TOKENS)
    return texts[0]


def main() -> None:
    """Writes the file."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    out = []
    for name in NAMES:
        template = chat_format_test.REAL[name][0]
        form, _ = chat_format.derive({"default": template}, chat_format_test.TOKENS)
        cases = []
        for i, messages in enumerate(conversations(form)):
            seconds, generate = TIMES[i % len(TIMES)], messages[-1]["role"] == "user"
            turns = [[m["role"], m["content"],
                      *([c["function"]["name"], json.dumps(c["function"]["arguments"],
                                                           ensure_ascii=False)]
                        for c in m.get("tool_calls", ()))] for m in messages]
            cases.append({"time": seconds, "turns": turns, "generate": generate,
                          "text": rendered(template, seconds, messages, generate)})
        out.append({"name": name, "format": form, "cases": cases})
    (HERE / "chat_vectors.json").write_text(
        "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in out) + "\n]\n", "utf-8")


if __name__ == "__main__":
    main()
