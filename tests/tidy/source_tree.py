"""Parts of a tree of files that the rules read: kinds of files, lines, includes, comments.

A tree is a dict from repository path to text; a binary file has the empty text.
"""

from __future__ import annotations

import io
import posixpath
import re
import tokenize
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from cpp_functions import LITERALS

Tree = dict[str, str]


class Finding(NamedTuple):
    """One violation; line 0 means the file as a whole."""

    rule: str
    path: str
    line: int
    message: str


CPP = (".h", ".cc", ".cu", ".cuh", ".inc")
DEVICE = (".cu", ".cuh")
PLAIN_FILES = ("run", ".ci/run", "Dockerfile", "Dockerfile.cuda", "Dockerfile.dev",
               "CMakeLists.txt")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')


def is_code(path: str) -> bool:
    """True if the rules on lines, length and opening comments hold for the file."""
    suffixes = CPP + (".py", ".proto", ".cmake", ".sh")
    return path.endswith(suffixes) or posixpath.basename(path) in PLAIN_FILES or path in PLAIN_FILES


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from one."""
    return enumerate(text.splitlines(), start=1)


def layer_of(path: str) -> str:
    """The part a file belongs to; a test belongs to the part it tests."""
    parts = path.split("/")
    return parts[1] if parts[0] == "tests" and len(parts) > 2 else parts[0]


def includes(tree: Tree) -> Iterator[tuple[str, int, str]]:
    """Yields (path, line, target) of each include in C++ and CUDA files."""
    for path, text in tree.items():
        if path.endswith(CPP):
            for line, content in numbered(text):
                match = INCLUDE.match(content)
                if match is not None:
                    yield path, line, match.group(1)


def _cpp_comments(text: str) -> Iterator[tuple[int, str]]:
    for match in LITERALS.finditer(text):
        if match.group(0).startswith(("//", "/*")):
            yield text.count("\n", 0, match.start()) + 1, match.group(0)


def _python_comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.string.startswith('"""')
        if token.type == tokenize.COMMENT or is_docstring:
            yield token.start[0], token.string


def code_checksum(text: str) -> str:
    """A checksum of C++ or CUDA code, in which comments, blank lines and spaces do not count."""
    code = LITERALS.sub(lambda m: "" if m.group(0).startswith(("//", "/*")) else m.group(0), text)
    lines = (" ".join(line.split()) for line in code.splitlines())
    return f"{zlib.crc32(chr(10).join(line for line in lines if line).encode()):08x}"


def comments(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each comment of a code file, docstrings among them."""
    if path.endswith(CPP + (".proto",)):
        yield from _cpp_comments(text)
    elif path.endswith(".py"):
        yield from _python_comments(text)
    elif is_code(path):
        for line, content in numbered(text):
            match = re.search(r"(?:^|\s)(#.*)", content)
            if match is not None:
                yield line, match.group(1)
