"""The Jinja templates of a checkpoint's chats, rendered as the transformers library does.

Templates are untrusted programs: they run in jinja2's sandbox, and callers render them in a process
with bounds (bounded_reading.py). Read chat_format.py next.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.convert.refusal import Refusal

TOKENS = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"))
# Newer versions of transformers keep templates in files, which replace those of
# tokenizer_config.json.
FILES = {"default": "chat_template.jinja", "tool_use": "additional_chat_templates/tool_use.jinja"}
DATE = '{{{{strftime_now("{}")}}}}'  # stands for the date of the request in the texts of a format

Message = dict[str, Any]
Tools = list[dict[str, Any]]
Render = Callable[[list[Message], bool, Tools | None, bool | None], str]


class NotOfThisForm(Exception):
    """Why a template has no chat_format.json, in one line."""


def template_of(directory: Path) -> tuple[dict[str, str], dict[str, str]] | None:
    """The templates of a directory and the tokens that they may name; None without a template.

    The templates are "default" and, in some directories, "tool_use" for conversations with tools.
    """
    path = directory / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        template = config.get("chat_template")
        named = template if isinstance(template, list) else []
        templates = {t["name"]: t["template"] for t in named}
        if isinstance(template, str):
            templates["default"] = template
        files = {name: directory / file for name, file in FILES.items()}
        files = {name: file for name, file in files.items() if file.is_file()}
        templates = {name: file.read_text("utf-8") for name, file in files.items()} or templates
        also = directory / "special_tokens_map.json"
        known = json.loads(also.read_text("utf-8")) if also.is_file() else {}
        known |= {name: token for name, token in config.items() if token is not None}
        tokens = {name: known[name] for name in TOKENS if known.get(name) is not None}
        texts = {n: t["content"] if isinstance(t, dict) else str(t) for n, t in tokens.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refusal(f"{path.name}: malformed ({error!r})") from None
    templates = {name: templates[name] for name in ("default", "tool_use") if name in templates}
    if not all(isinstance(text, str) for text in templates.values()):
        raise Refusal(f"{path.name}: chat_template is malformed")
    return (templates, texts) if "default" in templates else None


def compiled(templates: dict[str, str], tokens: dict[str, str]) -> Render:
    """Compiles the templates, to render as the transformers library does without documents.

    Dates become DATE.
    """
    import jinja2
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} .. {% endgeneration %} marks text for training; it stays as it is."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def refuse(reason: str) -> None:
        raise jinja2.TemplateError(reason)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda asked: DATE.format(asked)
    environment.filters["tojson"] = as_json
    try:
        programs = {name: environment.from_string(text) for name, text in templates.items()}
    except jinja2.TemplateError as error:
        raise NotOfThisForm(f"the template is not understood ({error})") from None

    def render(
        messages: list[Message], generate: bool, tools: Tools | None, thinks: bool | None
    ) -> str:
        names = {"messages": messages, "add_generation_prompt": generate, "tools": tools}
        switch = {} if thinks is None else {"enable_thinking": thinks}
        name = "tool_use" if tools and "tool_use" in programs else "default"
        return programs[name].render(**names, **switch, documents=None, **tokens)

    return render


def as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)
