"""Rules about text: opening comments, widths, words, pronouns, links."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator

from source_tree import CPP, Finding, Tree, comments, is_code, numbered

MAX_COLUMNS = 100
BANNED_WORD = re.compile(r"\b(FIX" r"ME|TO" r"DO|X" r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:work|home|root)/")
PRONOUN = re.compile(r"\b(?:who|whom|whoever|nobody|somebody|anybody|everybody)\b", re.IGNORECASE)
MAX_PRONOUNS = 3  # per 1,000 lines of comments and .md
LONE_LINK = re.compile(r"\s*(?:[-*]|\d+\.)?\s*(?:!?\[[^\]]*\]\([^)]*\)|https?://\S+)[.,;:]?\s*$")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


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
    """What is left to do belongs in an issue, and a path of one machine works on no other."""
    for path, text in tree.items():
        for line, content in numbered(text):
            match = MACHINE_PATH.search(content)
            if not match and (is_code(path) or path.endswith(".md")):  # not in a vocabulary
                match = BANNED_WORD.search(content)
            if match:
                yield Finding("word", path, line, f"'{match.group(0)}'")


def check_pronouns(tree: Tree) -> Iterator[Finding]:
    """The subject of a technical sentence is a thing: readers must not search for what acts.

    MAX_PRONOUNS is only ever lowered.
    """
    lines, found = 0, Counter[str]()
    for path, text in tree.items():
        for _, prose in [(1, text)] if path.endswith(".md") else comments(path, text):
            lines += len(prose.splitlines())
            found[path] += len(PRONOUN.findall(prose))
    total = sum(found.values())
    if 1000 * total > MAX_PRONOUNS * lines:
        path, most = found.most_common(1)[0]
        yield Finding("pronoun", path, 0, f"{most} of {total} pronouns in {lines} lines of prose;"
                      f" at most {MAX_PRONOUNS} per 1,000")


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
