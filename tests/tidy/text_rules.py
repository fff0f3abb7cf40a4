"""Rules about text: opening comments, widths, words, heads of sentences, links."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from source_tree import CPP, Finding, Tree, comments, is_code, numbered

MAX_COLUMNS = 100
BANNED_WORD = re.compile(r"\b(FIX" r"ME|TO" r"DO|X" r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:work|home|root)/")
# Heads of a sentence or clause without a noun: the reader has to look for the thing that is meant.
HEADLESS = re.compile(
    r"\b(who|whom|whoever|nobody|somebody)\b"
    r"|\b[Ww]hat(ever)? (is|are|it|has|have|was|were|they|waits?|comes?|runs?|a|an|the|this|that)\b"
    r"|(^|\. |// |# |\| )(Of|What|Likewise|The same)\b"
    r"|\b(that of|those of|those that|one that|so many)\b")
MAX_HEADLESS = 10  # lines per 1,000 lines of comments and .md; about 5 are good English
LONE_LINK = re.compile(r"\s*(?:[-*]|\d+\.)?\s*(?:!?\[[^\]]*\]\([^)]*\)|https?://\S+)[.,;:]?\s*$")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def opening_comment(path: str, text: str) -> list[str]:
    """The lines of the comment a file opens with, without the marks; empty if there is none."""
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
    """A file opens with a sentence about its purpose, so a reader need not guess from its code."""
    for path, text in tree.items():
        if not is_code(path) or not text.strip():
            continue
        joined = " ".join(opening_comment(path, text))
        if not re.match(r"\S+ \S+ .*[.:]( |$)", joined):
            yield Finding("opening-comment", path, 1, "the file must open with a sentence")


def blank_fences(text: str) -> str:
    """Markdown with its fenced code as empty lines."""
    return FENCED.sub(lambda match: "\n" * match.group(0).count("\n"), text)


def check_width(tree: Tree) -> Iterator[Finding]:
    """Two files fit side by side on a screen; prose is read in a terminal, too.

    Tables, code in prose and lines that are one link cannot be broken.
    """
    for path, text in tree.items():
        if not is_code(path) and not path.endswith(".md"):
            continue
        for line, content in numbered(text if is_code(path) else blank_fences(text)):
            is_whole = path.endswith(".md") and (content.lstrip().startswith("|")
                                                 or LONE_LINK.match(content))
            if len(content) > MAX_COLUMNS and not is_whole:
                yield Finding("width", path, line, f"{len(content)} columns")


def check_words(tree: Tree) -> Iterator[Finding]:
    """Unfinished work belongs in an issue, and a path of one machine works on no other."""
    for path, text in tree.items():
        for line, content in numbered(text):
            match = MACHINE_PATH.search(content)
            if not match and (is_code(path) or path.endswith(".md")):  # not in a vocabulary
                match = BANNED_WORD.search(content)
            if match:
                yield Finding("word", path, line, f"'{match.group(0)}'")


def headless_lines(tree: Tree) -> tuple[int, list[Finding]]:
    """The number of lines of comments and .md, and those with a head that names nothing."""
    lines, found = 0, []
    for path, text in tree.items():
        for first, prose in [(1, text)] if path.endswith(".md") else comments(path, text):
            for line, content in enumerate(prose.splitlines(), start=first):
                lines += 1
                if HEADLESS.search(content):
                    found.append(Finding("headless", path, line, content.strip()))
    return lines, found


def check_headless(tree: Tree) -> Iterator[Finding]:
    """A sentence names its thing, then says what the thing does: readers must not search for it.

    MAX_HEADLESS is only ever lowered. Above it, every such line is a finding; below it,
    `tidy_test.py --headless` prints them.
    """
    lines, found = headless_lines(tree)
    if 1000 * len(found) > MAX_HEADLESS * lines:
        yield from found


def check_links(tree: Tree) -> Iterator[Finding]:
    """A link to a file that is gone sends the reader nowhere."""
    folders = {posixpath.dirname(path) for path in tree}
    folders |= {posixpath.dirname(folder) for folder in set(folders)}
    for path, text in tree.items():
        if not path.endswith(".md"):
            continue
        for line, content in numbered(blank_fences(text)):
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "code", content)):
                if re.match(r"\w+:|#", target):
                    continue
                place = posixpath.join(posixpath.dirname(path), target.split("#")[0])
                place = posixpath.normpath(place)
                if place not in tree and place not in folders:
                    yield Finding("link", path, line, f"{target} does not exist")


def check_readme_flags(tree: Tree) -> Iterator[Finding]:
    """README.md's table and `fox-server --help` name the same flags: one of them is read first."""
    listed = re.search(r"kCommonFlags\[\] = \{(.*?)\}", tree.get("server/main.cc", ""), re.DOTALL)
    helped = set(re.findall(r'"([a-z-]+)"', listed.group(1)) if listed else [])
    rows = [re.split(r"(?<!\\)\|", content)[1] for _, content in numbered(tree.get("README.md", ""))
            if content.startswith("| `--")]
    shown = set(re.findall(r"`--([a-z-]+)", " ".join(rows)))
    for flag in sorted(helped ^ shown):
        missing = "README.md" if flag in helped else "server/main.cc"
        yield Finding("readme-flags", missing, 0, f"--{flag} is missing")
