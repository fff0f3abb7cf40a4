"""Rules about the tree: sizes, amounts, names, the top level."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from source_tree import Finding, Tree, code_checksum, is_code

MAX_FILE_LINES = 500
CPP_FILE = re.compile(r"\.(?:cc|h|cu|cuh)$")
# Amounts of the tree: a name, the files that count, the measure of one file, the limit. A release
# sets each limit to 3% above its own amount, so that a pull request has room; the limits guard
# against drift. A feature that the plan asks for raises them by its size: since 0.2 the Anthropic
# and Responses APIs, the prefix cache on disk, weights of 8 bits and aarch64. In brackets: the aim.
AMOUNTS: tuple[tuple[str, Callable[[str], object], Callable[[str], int], int], ...] = (
    ("files", lambda path: True, lambda text: 1, 1_470),
    ("lines of tests",
     # The simulation of the call layer came after the limit.
     lambda path: path.startswith("tests/") and not path.startswith("tests/server/calls/sim/")
     and re.search(r"\.(?:cc|h|cu|cuh|py)$", path),
     lambda text: text.count("\n"), 76_930),  # (48,000)
    ("lines of C++ and CUDA outside tests, without blanks and comments",
     lambda path: not path.startswith("tests/") and CPP_FILE.search(path),
     lambda text: len(re.findall(r"(?m)^[ \t]*(?!//)[^ \t\n]", text)), 51_350),  # (34,000)
    ("lines of ./run", lambda path: path == "run", lambda text: text.count("\n"), 260),
    ("lines of models/fox_model.cc", lambda path: path == "models/fox_model.cc",
     lambda text: text.count("\n"), 171),
    ("lines of kernels/cuda/linear", lambda path: path.startswith("kernels/cuda/linear/"),
     lambda text: text.count("\n"), 3_930),  # (2,600)
    ("lines of engine/schedule, without blanks and comments",
     lambda path: path.startswith("engine/schedule/"),
     lambda text: len(re.findall(r"(?m)^[ \t]*(?!//)[^ \t\n]", text)), 2_300),  # (2,000)
)
PORTABLE_RUN = "tests/bench/results/gpu_test_portable.json"
MAX_UNRUN_FILES = 12  # of some 110: a change of one kernel with its headers
TOP_LEVEL = {"server", "engine", "kernels", "proto", "models", "tests", "docker"}
TOP_LEVEL |= {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "run"}
TOP_LEVEL |= {"CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common"}


def check_file_length(tree: Tree) -> Iterator[Finding]:
    """A file holds one concept; longer ones hold two."""
    for path, text in tree.items():
        count = len(text.splitlines())
        if is_code(path) and count > MAX_FILE_LINES:
            yield Finding("file-length", path, 0, f"{count} lines, at most {MAX_FILE_LINES}")


def check_amounts(tree: Tree) -> Iterator[Finding]:
    """The tree grows a little with each change, so its amounts have limits: cut before adding."""
    for name, is_counted, measure, limit in AMOUNTS:
        amounts = {path: measure(text) for path, text in tree.items() if is_counted(path)}
        total = sum(amounts.values())
        if total > limit:
            yield Finding("amount", max(amounts, key=amounts.__getitem__), 0,
                          f"{total} {name}, at most {limit}; this file has most")


def check_portable_run(tree: Tree) -> Iterator[Finding]:
    """The code for cards before Hopper runs on a card now and then, not at each submission.

    The last run of `./run gpu-test --portable` has checksums of the code of the kernels' sources,
    which comments do not change.
    """
    ran = json.loads(tree.get(PORTABLE_RUN, '{"source": {"files": {}}}'))["source"]["files"]
    now = {path: code_checksum(text) for path, text in tree.items()
           if path.startswith("kernels/cuda/") and CPP_FILE.search(path)}
    changed = sorted(path for path in now.keys() | ran.keys() if now.get(path) != ran.get(path))
    if len(changed) > MAX_UNRUN_FILES:
        yield Finding("portable-run", PORTABLE_RUN, 0,
                      f"{len(changed)} sources of the kernels have changed since, at most"
                      f" {MAX_UNRUN_FILES}: run ./run gpu-test --portable --out this file")


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
