"""Rules about where files lie: sizes, names, the top level, tests and what they test."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from include_rules import LAYERS
from source_tree import Finding, Tree, is_code, numbered

MAX_FILE_LINES = 500
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


def _expanded(text: str) -> str:
    """CMake without comments and function bodies, loops over literal lists written out."""
    text = re.sub(r"#[^\n]*", "", text)
    text = re.sub(r"\bfunction\(.*?\bendfunction\([^)]*\)", "", text, flags=re.DOTALL)

    def written_out(match: re.Match[str]) -> str:
        variable, *values = match.group(1).split()
        return "\n".join(match.group(2).replace("${%s}" % variable, value) for value in values)

    text = re.sub(r"\bforeach\(([^)]*)\)(.*?)\bendforeach\([^)]*\)", written_out, text,
                  flags=re.DOTALL)
    return text.replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")


def declared_tests(tree: Tree) -> Iterator[tuple[str, str, list[str]]]:
    """Yields (CMake file, name, sources that are tests, or else the first source or the command) of
    each test."""
    call = re.compile(r"\b(?:fox_add_\w*test\(\s*(\S+)[^)]*?\bSOURCES\s+([^)]+)"
                      r"|add_test\(\s*NAME\s+(\S+)\s+COMMAND\s+([^)]*))", re.DOTALL)
    for path, text in tree.items():
        if not path.startswith("tests/") or not path.endswith("CMakeLists.txt"):
            continue
        for match in call.finditer(_expanded(text)):
            name = match.group(1) or match.group(3)
            sources, words = (match.group(2) or "").split(), (match.group(4) or "").split()
            tests = [word for word in sources if word.endswith(("_test.cc", "_test.cu"))]
            script = [word for word in words if word.endswith(".py")]
            yield path, name, tests or (sources or script or words)[:1]


def names_of(source: str) -> set[str]:
    """Names a test of this file may have, without `_test`: a_b_c, b_c and c for tests/a/b/c."""
    parts = posixpath.splitext(source)[0].removesuffix("_test").split("/")[1:]
    return {"_".join(parts[start:]) for start in range(len(parts))}


def check_test_names(tree: Tree) -> Iterator[Finding]:
    """A test is named after its file, so what ctest prints says where to look.

    The name is the file's stem; folders may go before it (sm90_kernel_test is sm90/kernel_test.cc)
    and, where one file makes several tests, words may follow (attention_avx2_test). One program of
    many files ends in _tests. A *_test.cc that no CMakeLists.txt names is a test that never runs.
    """
    built, names = set(), {}
    for path, name, sources in declared_tests(tree):
        files = [posixpath.normpath(posixpath.join(posixpath.dirname(path), source))
                 for source in sources]
        built.update(files)
        if name.endswith("_tests"):
            continue
        file = files[0] if "." in posixpath.basename(files[0]) else names.get(sources[0], files[0])
        names[name] = file
        built.add(file)
        stem = name.removesuffix("_test")
        allowed = names_of(file)
        if not any(stem == short or stem.startswith(short + "_") for short in allowed):
            yield Finding("test-name", path, 0, f"{name} is not named after {file}")
    for path in sorted(tree):
        if TEST_FILE.match(path) and path.endswith((".cc", ".cu")) and path not in built:
            yield Finding("test-name", path, 0, "no CMakeLists.txt makes a test of it")
