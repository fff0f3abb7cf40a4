"""Rules about text: opening comments, widths, words, pronouns, machine paths, links, documents."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator

from source_tree import CPP, Finding, Tree, comments, is_code, numbered

MAX_COLUMNS = 100
BANNED_WORDS = ("FIX" + "ME", "TO" + "DO", "X" * 3)
PRONOUN = re.compile(r"\b(?:who|whom|whoever|nobody|somebody|anybody|everybody)\b", re.IGNORECASE)
MAX_PRONOUNS = 3  # per 1,000 lines of comments and .md
LONE_LINK = re.compile(r"\s*(?:[-*]|\d+\.)?\s*(?:!?\[[^\]]*\]\([^)]*\)|https?://\S+)[.,;:]?\s*$")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# A document, and the numbers of its sections if some follow: `acp.md sections 2a and 5`.
DOCUMENT = re.compile(r"(?<![\w$}])((?:[\w.-]+/)*[\w-]+\.md)\b"
                      r"(?:,?\s+(?:sections?\s+)?(\d[a-z]?\b(?:(?:, | and )\d[a-z]?\b)*))?")


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


def blank_fences(text: str) -> str:
    """Markdown with its fenced code as empty lines."""
    return FENCED.sub(lambda match: "\n" * match.group(0).count("\n"), text)


def check_prose_width(tree: Tree) -> Iterator[Finding]:
    """Prose is read in a terminal and reviewed line by line, too.

    Tables, code and lines that are one link cannot be broken.
    """
    for path, text in tree.items():
        if not path.endswith(".md"):
            continue
        for line, content in numbered(blank_fences(text)):
            is_table = content.lstrip().startswith("|")
            if len(content) > MAX_COLUMNS and not is_table and not LONE_LINK.match(content):
                yield Finding("prose-width", path, line, f"{len(content)} columns")


def check_words(tree: Tree) -> Iterator[Finding]:
    """What is left to do belongs in an issue, because issues are read again."""
    pattern = re.compile(r"\b(" + "|".join(BANNED_WORDS) + r")\b")
    for path, text in tree.items():
        if not is_code(path) and not path.endswith(".md"):
            continue  # data: a vocabulary may well hold such a word
        for line, content in numbered(text):
            match = pattern.search(content)
            if match:
                yield Finding("word", path, line, f"'{match.group(1)}'")


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


def check_machine_paths(tree: Tree) -> Iterator[Finding]:
    """A path of one machine works on no other."""
    pattern = re.compile(r"(?<![\w.$}/-])/(" + "|".join(("work", "home", "root")) + r")/")
    for path, text in tree.items():
        for line, content in numbered(text):
            if pattern.search(content):
                yield Finding("machine-path", path, line, "absolute path of one machine")


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


def sections_of(text: str) -> set[str]:
    """The numbers that headings open with: 2 and 2a of `## 2. Bounds` and `### 2a Keys`."""
    return set(re.findall(r"^#+ \(?(\d[a-z]?)\b", text, re.MULTILINE))


def check_named_documents(tree: Tree) -> Iterator[Finding]:
    """A document that a comment names is in the tree, with the sections that the comment cites.

    A proof that the reader cannot open proves nothing to them.
    """
    documents = [path for path in tree if path.endswith(".md")]
    for path, text in tree.items():
        if not is_code(path):
            continue
        for first, comment in comments(path, text):
            for match in DOCUMENT.finditer(comment):
                line = first + comment.count("\n", 0, match.start())
                name = match.group(1)
                found = [d for d in documents if f"/{d}".endswith(f"/{name}")]
                if not found:
                    yield Finding("document", path, line, f"there is no {name}")
                    continue
                cited = set(re.findall(r"\d[a-z]?", match.group(2) or ""))
                known = {section for d in found for section in sections_of(tree[d])}
                for section in sorted(cited - known):
                    yield Finding("document", path, line, f"{name} has no section {section}")
