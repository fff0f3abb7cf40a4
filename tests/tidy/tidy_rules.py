"""The style rules that a machine can check, one function a rule.

A tree is a dict from repository path to text. A rule takes a tree and yields findings. Reasons for
each rule stand in its docstring; tidy_test.py applies them to the repository, tidy_rules_test.py
plants a violation of each.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cpp_functions import blank_comments_and_strings, function_spans

Tree = dict[str, str]


class Finding(NamedTuple):
    """One violation; line 0 means the file as a whole."""

    rule: str
    path: str
    line: int
    message: str


MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_DEVICE_FUNCTION_LINES = 250
MAX_COLUMNS = 100

LAYERS = {"kernels": 0, "models": 1, "engine": 2, "server": 3}
CPP = (".h", ".cc", ".cu", ".cuh")
PLAIN_FILES = ("run", ".ci/run", "Dockerfile", "CMakeLists.txt")
TOP_LEVEL = {"server", "engine", "kernels", "proto", "models", "tests", "docker"}
TOP_LEVEL |= {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "run"}
# Folders below tests/ whose tests have no single file they belong to.
UNMIRRORED_TESTS = {"bench", "e2e", "golden", "sim", "tidy"}
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common"}
BANNED_WORDS = ("FIX" + "ME", "TO" + "DO", "X" * 3)
TORCH_HEADER = re.compile(r"(torch|ATen|c10)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')


def is_code(path: str) -> bool:
    """Whether the rules on lines, length and opening comments hold for the file."""
    suffixes = CPP + (".py", ".proto", ".cmake", ".sh")
    return path.endswith(suffixes) or posixpath.basename(path) in PLAIN_FILES or path in PLAIN_FILES


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from one."""
    return enumerate(text.splitlines(), start=1)


def layer_of(path: str) -> str:
    """The part a file belongs to; a test belongs to the part it tests."""
    parts = path.split("/")
    return parts[1] if parts[0] == "tests" and len(parts) > 2 else parts[0]


def check_includes(tree: Tree) -> Iterator[Finding]:
    """Includes go server -> engine -> models -> kernels, so each part can be read on its own."""
    for path, text in tree.items():
        if not path.endswith(CPP):
            continue
        layer = layer_of(path)
        for line, content in numbered(text):
            match = INCLUDE.match(content)
            if match is None:
                continue
            target = match.group(1)
            top = target.split("/")[0]
            problem = ""
            if LAYERS.get(top, -1) > LAYERS.get(layer, 99):
                problem = f"{layer} must not include {top}"
            elif layer in LAYERS and layer != "server":
                if top in ("proto", "grpc", "grpcpp", "google") or target.startswith("fox/v1/"):
                    problem = "only server sees the wire"
            if layer == "kernels" and top == "absl":
                problem = "kernels do without Abseil"
            if TORCH_HEADER.match(target) and not path.startswith("kernels/torch/"):
                problem = "torch headers belong to kernels/torch"
            if problem:
                yield Finding("include", path, line, f"{target}: {problem}")


def check_file_length(tree: Tree) -> Iterator[Finding]:
    """A file holds one concept; longer ones hold two."""
    for path, text in tree.items():
        count = len(text.splitlines())
        if is_code(path) and count > MAX_FILE_LINES:
            yield Finding("file-length", path, 0, f"{count} lines, at most {MAX_FILE_LINES}")


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


def opening_comment(path: str, text: str) -> list[str]:
    """The lines of the comment a file opens with, without the marks; empty when there is none."""
    lines = text.splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    if path.endswith(".py") and lines and lines[0].startswith('"""'):
        first = re.match(r'"""(.*?)("""|\n\s*\n|\Z)', "\n".join(lines), re.DOTALL)
        return first.group(1).strip().splitlines() if first else []
    mark = "//" if path.endswith(CPP + (".proto",)) else "#"
    comment = []
    for line in lines:
        if not line.startswith(mark):
            break
        comment.append(line[len(mark):].strip())
    return comment


def check_opening_comment(tree: Tree) -> Iterator[Finding]:
    """A file says in one sentence what it is, so a reader need not guess from its code."""
    for path, text in tree.items():
        if not is_code(path) or not text.strip():
            continue
        joined = " ".join(opening_comment(path, text))
        if not re.match(r"\S+ \S+ .*[.:]( |$)", joined):
            yield Finding("opening-comment", path, 1, "the file must open with a sentence")


def check_line_length(tree: Tree) -> Iterator[Finding]:
    """Two files fit side by side on a screen."""
    for path, text in tree.items():
        if not is_code(path):
            continue
        for line, content in numbered(text):
            if len(content) > MAX_COLUMNS:
                yield Finding("line-length", path, line, f"{len(content)} columns")


def check_names(tree: Tree) -> Iterator[Finding]:
    """A file is named after its concept; the banned names collect everything."""
    for path in tree:
        for part in path.split("/"):
            words = set(re.split(r"[_.\-]", part.lower()))
            if words & BANNED_NAMES:
                yield Finding("name", path, 0, f"'{part}' names no concept")


def check_words(tree: Tree) -> Iterator[Finding]:
    """What is left to do belongs in an issue, where somebody sees it."""
    pattern = re.compile(r"\b(" + "|".join(BANNED_WORDS) + r")\b")
    for path, text in tree.items():
        if not is_code(path) and not path.endswith(".md"):
            continue  # data: a vocabulary may well hold such a word
        for line, content in numbered(text):
            match = pattern.search(content)
            if match:
                yield Finding("word", path, line, f"'{match.group(1)}'")


def check_headers(tree: Tree) -> Iterator[Finding]:
    """Headers are included once and push no names on those who include them."""
    for path, text in tree.items():
        if not path.endswith((".h", ".cuh")):
            continue
        if not re.search(r"^#pragma once$", text, re.MULTILINE):
            yield Finding("header", path, 1, "no #pragma once")
        for line, content in numbered(blank_comments_and_strings(text)):
            if re.search(r"\busing\s+namespace\b", content):
                yield Finding("header", path, line, "'using namespace' in a header")


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
        if not path.endswith((".cu", ".cuh")):
            continue
        code = blank_comments_and_strings(text)
        for match in re.finditer(r"<<<(.*?)>>>", code, re.DOTALL):
            if count_arguments(match.group(1)) < 4:
                line = code.count("\n", 0, match.start()) + 1
                yield Finding("launch", path, line, "kernel launch without a stream")


def check_mirror(tree: Tree) -> Iterator[Finding]:
    """tests/engine/x_test.cc tests engine/x.*, so the tests of a file are found without a search.

    A test of one aspect may add a word: scheduler_priority_test.cc still belongs to scheduler.
    """
    sources = {posixpath.splitext(path)[0] for path in tree if not path.startswith("tests/")}
    for path in tree:
        match = re.match(r"tests/(\w+/(?:.*/)?)(\w+)_test\.(?:cc|cu|py)$", path)
        if match is None or UNMIRRORED_TESTS.intersection(path.split("/")):
            continue
        words = match.group(2).split("_")
        stems = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
        if not any(match.group(1) + stem in sources for stem in stems):
            yield Finding("mirror", path, 0, f"there is no {match.group(1)}{match.group(2)}.*")


def check_machine_paths(tree: Tree) -> Iterator[Finding]:
    """A path of one machine works for nobody else."""
    pattern = re.compile(r"(?<![\w.$}/-])/(" + "|".join(("work", "home", "root")) + r")/")
    for path, text in tree.items():
        for line, content in numbered(text):
            if pattern.search(content):
                yield Finding("machine-path", path, line, "absolute path of one machine")


def check_top_level(tree: Tree) -> Iterator[Finding]:
    """The first screen of the repository stays readable."""
    for top in sorted({path.split("/")[0] for path in tree}):
        if top not in TOP_LEVEL and not top.startswith("."):
            yield Finding("top-level", top, 0, "not on the list of top-level entries")


def check_links(tree: Tree) -> Iterator[Finding]:
    """A link to a file that is gone sends the reader nowhere."""
    folders = {posixpath.dirname(path) for path in tree}
    folders |= {posixpath.dirname(folder) for folder in set(folders)}
    for path, text in tree.items():
        if not path.endswith(".md"):
            continue
        prose = re.sub(r"```.*?```", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.DOTALL)
        for line, content in numbered(prose):
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "code", content)):
                if re.match(r"\w+:|#", target):
                    continue
                place = posixpath.join(posixpath.dirname(path), target.split("#")[0])
                place = posixpath.normpath(place)
                if place not in tree and place not in folders:
                    yield Finding("link", path, line, f"{target} does not exist")


RULES: tuple[Callable[[Tree], Iterator[Finding]], ...] = (
    check_includes,
    check_file_length,
    check_function_length,
    check_opening_comment,
    check_line_length,
    check_names,
    check_words,
    check_headers,
    check_launches,
    check_mirror,
    check_machine_paths,
    check_top_level,
    check_links,
)


def check_all(tree: Tree) -> list[Finding]:
    """Every finding of every rule, by path and line."""
    findings = [finding for rule in RULES for finding in rule(tree)]
    return sorted(findings, key=lambda f: (f.path, f.line, f.rule))
