"""Rules about where files lie: sizes, names, the top level, tests and what they test."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator

from include_rules import LAYERS
from source_tree import Finding, Tree, is_code, numbered

MAX_FILE_LINES = 500
CPP_FILE = re.compile(r"\.(?:cc|h|cu|cuh)$")
# What the tree may have at most: a name, the files that count, what counts in one, the limit. A
# limit is only ever lowered; in brackets what the tree should come to.
AMOUNTS: tuple[tuple[str, Callable[[str], object], Callable[[str], int], int], ...] = (
    ("files", lambda path: True, lambda text: 1, 1_300),
    ("words in .md", lambda path: path.endswith(".md"), lambda text: len(text.split()),
     29_900),  # (25,000)
    ("lines of tests",
     lambda path: path.startswith("tests/") and re.search(r"\.(?:cc|h|cu|cuh|py)$", path),
     lambda text: text.count("\n"), 73_900),  # (48,000)
    ("lines of C++ and CUDA outside tests, without blanks and comments",
     lambda path: not path.startswith("tests/") and CPP_FILE.search(path),
     lambda text: len(re.findall(r"(?m)^[ \t]*(?!//)[^ \t\n]", text)), 39_200),  # (34,000)
    ("lines of ./run", lambda path: path == "run", lambda text: text.count("\n"), 260),
    ("lines of models/fox_model.cc", lambda path: path == "models/fox_model.cc",
     lambda text: text.count("\n"), 170),
    ("lines of kernels/cuda/linear", lambda path: path.startswith("kernels/cuda/linear/"),
     lambda text: text.count("\n"), 2_850),  # (2,600)
    ("lines of engine/schedule", lambda path: path.startswith("engine/schedule/"),
     lambda text: text.count("\n"), 3_420),  # (2,000)
)
TOP_LEVEL = {"server", "engine", "kernels", "proto", "models", "tests", "docker"}
TOP_LEVEL |= {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "run"}
TOP_LEVEL |= {"CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common"}
# Folders below tests/ whose tests have no single file they belong to.
UNMIRRORED_TESTS = {"bench", "e2e", "faults", "golden", "sim", "tidy"}
# Sources that have no test of their name, and the test that covers them: `source: test`.
COVERED_ELSEWHERE = "tests/tidy/covered_elsewhere.txt"
TEST_FILE = re.compile(r"tests/(?:.*/)?\w+_test\.(?:cc|cu|py)$")


def check_file_length(tree: Tree) -> Iterator[Finding]:
    """A file holds one concept; longer ones hold two."""
    for path, text in tree.items():
        count = len(text.splitlines())
        if is_code(path) and count > MAX_FILE_LINES:
            yield Finding("file-length", path, 0, f"{count} lines, at most {MAX_FILE_LINES}")


def check_amounts(tree: Tree) -> Iterator[Finding]:
    """What grows a little with each change is kept small as a whole: cut before adding more."""
    for name, is_counted, measure, limit in AMOUNTS:
        amounts = {path: measure(text) for path, text in tree.items() if is_counted(path)}
        total = sum(amounts.values())
        if total > limit:
            yield Finding("amount", max(amounts, key=amounts.__getitem__), 0,
                          f"{total} {name}, at most {limit}; this file has most")


def check_names(tree: Tree) -> Iterator[Finding]:
    """A file is named after its concept; the banned names collect everything."""
    for path in tree:
        for part in path.split("/"):
            words = set(re.split(r"[_.\-]", part.lower()))
            if words & BANNED_NAMES:
                yield Finding("name", path, 0, f"'{part}' names no concept")


def check_top_level(tree: Tree) -> Iterator[Finding]:
    """The first screen of the repository stays readable."""
    for top in sorted({path.split("/")[0] for path in tree}):
        if top not in TOP_LEVEL and not top.startswith("."):
            yield Finding("top-level", top, 0, "not on the list of top-level entries")


def tested_stems(test: str) -> list[str]:
    """What a test may be the test of: engine/a_b and engine/a for tests/engine/a_b_test.cc.

    A test of one aspect may add a word: scheduler_priority_test.cc still belongs to scheduler.
    """
    match = re.match(r"tests/(\w+/(?:.*/)?)(\w+)_test\.(?:cc|cu|py)$", test)
    if match is None:
        return []
    words = match.group(2).split("_")
    return [match.group(1) + "_".join(words[:count]) for count in range(len(words), 0, -1)]


def check_mirror(tree: Tree) -> Iterator[Finding]:
    """tests/engine/x_test.cc tests engine/x.*, so its subject is found without a search."""
    sources = {posixpath.splitext(path)[0] for path in tree if not path.startswith("tests/")}
    for path in tree:
        stems = tested_stems(path)
        if stems and not UNMIRRORED_TESTS.intersection(path.split("/")):
            if not sources.intersection(stems):
                yield Finding("mirror", path, 0, f"there is no {stems[0]}.*")


def mirrored_sources(tree: Tree) -> set[str]:
    """Sources, without suffix, that have a test of their name; the longest name counts."""
    sources = {posixpath.splitext(path)[0] for path in tree if not path.startswith("tests/")}
    tested = set()
    for path in tree:
        tested |= set([stem for stem in tested_stems(path) if stem in sources][:1])
    return tested


def covered_elsewhere(tree: Tree) -> Iterator[tuple[int, str, str]]:
    """Yields (line, source, test) of the list; its first line is a comment."""
    for line, content in numbered(tree.get(COVERED_ELSEWHERE, "")):
        if content.strip() and not content.startswith("#"):
            source, _, test = content.partition(":")
            yield line, source.strip(), test.strip()


def check_coverage(tree: Tree) -> Iterator[Finding]:
    """Every source has a test of its name, or the list says which test covers it.

    The list only shrinks: an entry whose source has got a test, or is gone, is a finding too.
    """
    tested, listed = mirrored_sources(tree), set()
    for line, source, test in covered_elsewhere(tree):
        problem = ""
        if source not in tree:
            problem = f"there is no {source}"
        elif posixpath.splitext(source)[0] in tested:
            problem = f"{source} has a test of its name; remove the line"
        elif source in listed:
            problem = f"{source} is listed twice"
        elif test not in tree or not TEST_FILE.match(test):
            problem = f"'{test}' is no test"
        if problem:
            yield Finding("coverage", COVERED_ELSEWHERE, line, problem)
        listed.add(source)
    for path in sorted(tree):
        stem, suffix = posixpath.splitext(path)
        if path.split("/")[0] in LAYERS and suffix in (".cc", ".cu", ".py"):
            if stem not in tested and path not in listed:
                yield Finding("coverage", path, 0, f"no tests/{stem}_test.*, and not in the list")
