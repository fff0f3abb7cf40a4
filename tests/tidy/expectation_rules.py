"""Rules about tests: a failure in a loop says which case of the loop it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from cpp_functions import blank_comments_and_strings
from source_tree import CPP, Finding, Tree

FOR = re.compile(r" *for (?:\((?P<cpp>.*)|(?P<python>.*?) in (?P<of>.*))", re.DOTALL)
# An assertion, unless it is a context of unittest, which has a message of its own.
EXPECTATION = re.compile(r"\b(?:EXPECT_|ASSERT_|self\.assert(?!Raises|Warns|Logs|NoLogs|_))(\w+)\(")
# Assertions with one argument that is no message; others have two.
UNARY = {"TRUE", "FALSE", "NO_FATAL_FAILURE", "True", "False", "IsNone", "IsNotNone"}
TRACE = re.compile(r"\bSCOPED_TRACE\(|\bsubTest\(")


class Block(NamedTuple):
    """A loop over cases with its variables, or the lines that a trace names, by indentation."""

    indent: int
    names: frozenset[str]  # empty: a trace


def loop_of(head: re.Match[str], indent: int) -> frozenset[str]:
    """The variables that a `for` declares and its body uses."""
    if head["python"]:
        names, body = set(re.findall(r"\w+", head["python"])), head["of"]
    else:
        _, body = arguments(head["cpp"])
        declared, is_range, _ = head["cpp"][:-len(body)].replace("::", "  ").partition(" : ")
        if is_range:
            bindings = re.search(r"\[(.*)\]", declared, re.DOTALL)
            names = set(re.findall(r"\w+", bindings[1] if bindings else declared.split()[-1]))
        else:
            names = set(re.findall(r"\b(\w+)\s*(?:=(?!=)|\{)", declared.partition(";")[0]))
    block = re.match(rf".*\n(?:(?: {{{indent + 1}}}.*)?\n)*", body + "\n")
    return frozenset(names.intersection(re.findall(r"\w+", block[0] if block else "")))


def arguments(text: str) -> tuple[list[str], str]:
    """The arguments of a call, from the text behind its bracket; and the text behind the call."""
    found, depth, begin = [], 0, 0
    for place, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if (char == "," and depth == 0) or depth < 0:
            found.append(text[begin:place].strip())
            begin = place + 1
        if depth < 0:
            return found, text[place + 1:]
    return found, ""


def names_case(expectation: re.Match[str], names: frozenset[str]) -> bool:
    """True if the failure prints a variable of the loop: in a message, or as a compared value."""
    given, behind = arguments(expectation.string[expectation.end():])
    if re.match(r"\s*<<", behind) or len(given) > (1 if expectation[1] in UNARY else 2):
        return True
    if expectation[1] == "THAT":  # a failure describes the matcher with its arguments
        return not names.isdisjoint(re.findall(r"\w+", given[-1]))
    return expectation[1] not in UNARY and any(
        argument in names or (re.match(r"f[\"']|\(", argument)
                              and not names.isdisjoint(re.findall(r"\w+", argument)))
        for argument in given)


def silent_loops(code: str) -> Iterator[int]:
    """Yields the line of the first silent expectation of each loop over cases.

    Reads the indentation, which clang-format keeps in C++, too. A trace outside the innermost loop
    cannot name its case. A loop whose body does not use its variable repeats one case.
    """
    lines = code.splitlines()
    open_blocks: list[Block] = []
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if indent == len(line):
            continue
        while open_blocks and open_blocks[-1].indent >= indent + (not open_blocks[-1].names):
            open_blocks.pop()
        rest = "\n".join(lines[number:])
        if (head := FOR.match(rest)) and (names := loop_of(head, indent)):
            open_blocks.append(Block(indent, names))
        if TRACE.search(line):
            open_blocks.append(Block(indent + line.lstrip().startswith("with"), frozenset()))
        for expectation in EXPECTATION.finditer(rest, 0, len(line)):
            if open_blocks and open_blocks[-1].names and not names_case(
                    expectation, open_blocks[-1].names):
                yield number + 1
                open_blocks.append(Block(indent, frozenset()))  # one finding of a loop


def check_silent_loops(tree: Tree) -> Iterator[Finding]:
    """A failure in a loop names its case, so that it need not be run again to find it.

    A message does, a compared value that is the loop's variable, and in the loop itself
    SCOPED_TRACE or subTest.
    """
    for path, text in tree.items():
        if path.startswith("tests/") and path.endswith((*CPP, ".py")):
            code = text if path.endswith(".py") else blank_comments_and_strings(text)
            for line in silent_loops(code):
                yield Finding("silent-loop", path, line,
                              "a failure does not say which case it is of")
