"""Rules about code: lengths of functions, launches, warp instructions."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator

from cpp_functions import blank_comments_and_strings, function_spans
from source_tree import CPP, DEVICE, Finding, Tree, numbered

MAX_FUNCTION_LINES = 70
MAX_DEVICE_FUNCTION_LINES = 250
# Where a warp shuffle or an instruction may be spelled out.
INSTRUCTION_FOLDERS = ("kernels/cuda/primitives/", "kernels/cuda/ptx/")


def function_lengths(path: str, text: str) -> Iterator[tuple[int, int, int]]:
    """Yields (first line, lines, limit) of every function that a cheap parser can see."""
    if path.endswith(CPP):
        for first, last, head in function_spans(text):
            on_device = "__global__" in head or "__device__" in head
            limit = MAX_DEVICE_FUNCTION_LINES if on_device else MAX_FUNCTION_LINES
            yield first, last - first + 1, limit
    elif path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                last = node.end_lineno or node.lineno
                yield node.lineno, last - node.lineno + 1, MAX_FUNCTION_LINES
    elif posixpath.basename(path) == "run" or path.endswith(".sh"):
        first = 0
        for line, content in numbered(text):
            if re.match(r"\w+\(\) \{", content):
                first = line
            elif content == "}" and first:
                yield first, line - first + 1, MAX_FUNCTION_LINES
                first = 0


def check_function_length(tree: Tree) -> Iterator[Finding]:
    """A function fits on a screen; a kernel is split into phases at 250 lines."""
    for path, text in tree.items():
        for first, count, limit in function_lengths(path, text):
            if count > limit:
                yield Finding("function-length", path, first, f"{count} lines, at most {limit}")


def count_arguments(text: str) -> int:
    """Arguments separated by commas outside all brackets."""
    depth, commas = 0, 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        commas += char == "," and depth == 0
    return commas + 1


def check_launches(tree: Tree) -> Iterator[Finding]:
    """A kernel without a stream argument runs on the default stream, out of order with the rest."""
    for path, text in tree.items():
        if not path.endswith(DEVICE):
            continue
        code = blank_comments_and_strings(text)
        for match in re.finditer(r"<<<(.*?)>>>", code, re.DOTALL):
            if count_arguments(match.group(1)) < 4:
                line = code.count("\n", 0, match.start()) + 1
                yield Finding("launch", path, line, "kernel launch without a stream")


def check_instructions(tree: Tree) -> Iterator[Finding]:
    """Warp shuffles and asm have a name in primitives/ or ptx/; a kernel says what, not how.

    Each was written several times, and a wrong mask or a missing clobber shows in no test.
    """
    for path, text in tree.items():
        if not path.startswith("kernels/") or not path.endswith(CPP):
            continue
        if path.startswith(INSTRUCTION_FOLDERS):
            continue
        for line, content in numbered(blank_comments_and_strings(text)):
            match = re.search(r"\b(__shfl_\w+|asm)\b", content)
            if match:
                yield Finding("instruction", path, line,
                              f"{match.group(1)} belongs in kernels/cuda/primitives or ptx")
