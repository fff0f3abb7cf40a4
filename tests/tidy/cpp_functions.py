"""Finds functions in C++ and CUDA source by their braces, without a compiler.

Good for our own clang-formatted files, not for all of C++: macros that hide braces would fool it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LITERALS = re.compile(
    r"//[^\n]*"
    r"|/\*.*?\*/"
    r'|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"'
    # Not the digit separator of 1'000'000.
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
_SCOPE = re.compile(r"^(inline\s+)?(namespace|class|struct|union|enum|extern)\b")
_PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


def _blank(match: re.Match[str]) -> str:
    """Keeps the line breaks, so that line numbers stay right."""
    return re.sub(r"[^\n]", " ", match.group(0))


def blank_comments_and_strings(text: str) -> str:
    """The text with comments and literals as spaces, line for line."""
    return LITERALS.sub(_blank, text)


def _without_template(head: str) -> str:
    """The head without a leading template <...> and attributes."""
    head = head.strip()
    while head.startswith("template"):
        depth, end = 0, len(head)
        for index, char in enumerate(head):
            depth += (char == "<") - (char == ">")
            if char == ">" and depth == 0:
                end = index + 1
                break
        head = head[end:].strip()
    return re.sub(r"^(\[\[.*?\]\]\s*)+", "", head)


def _is_scope(head: str) -> bool:
    """Whether a brace after this text opens a namespace or a type."""
    match = _SCOPE.match(_without_template(head))
    # `struct Point Origin() {` is a function; `class Foo : public Bar<int()> {` is rare enough.
    return match is not None and "(" not in head


def function_spans(text: str) -> Iterator[tuple[int, int, str]]:
    """Yields (first line, last line, head) of each function; lambdas count to their function."""
    code = _PREPROCESSOR.sub(_blank, blank_comments_and_strings(text))
    stack: list[tuple[str, str, int]] = []  # (kind, head, line of the head)
    head, head_line, line = "", 0, 1
    for index, char in enumerate(code):
        if char == "\n":
            line += 1
        if char == "{":
            inside = any(kind != "scope" for kind, _, _ in stack)
            if inside:
                kind = "inner"
            elif _is_scope(head):
                kind = "scope"
            else:
                kind = "function" if ")" in head else "inner"
            stack.append((kind, head, head_line or line))
            head, head_line = "", 0
        elif char == "}":
            if not stack:
                continue
            kind, head, head_line = stack.pop()
            rest = code[index + 1:index + 200].lstrip()
            if kind != "scope" and rest[:1] in (",", "{"):
                continue  # a member initialiser `b_{y}`: the head goes on
            if kind == "function":
                yield head_line, line, head
            head, head_line = "", 0
        elif char == ";":
            # The semicolons of a for statement stand inside a function, where heads do not matter.
            head, head_line = "", 0
        elif not head and char.isspace():
            continue
        else:
            if not head:
                head_line = line
            head += char
            if head in ("public:", "private:", "protected:"):
                head, head_line = "", 0
