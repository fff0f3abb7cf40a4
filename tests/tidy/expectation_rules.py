"""Rules about tests: a failure in a loop says which case of the loop it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cpp_functions import blank_comments_and_strings
from source_tree import CPP, Finding, Tree

OPENING, CLOSING = "([{", ")]}"
FOR = re.compile(r"\bfor\s*\(")
EXPECTATION = re.compile(r"\b(?:EXPECT|ASSERT)_([A-Z_]+)\s*\(")
TRACE = re.compile(r"\bSCOPED_TRACE\s*\(")
# Assertions that print no argument: googletest's, and unittest's that take one.
PRINT_NOTHING = {"TRUE", "FALSE", "NO_FATAL_FAILURE", "DEATH", "EXIT"}
UNARY = {"assertTrue", "assertFalse", "assertIsNone", "assertIsNotNone"}
# Assertions of unittest without a message of their own.
CONTEXTS = re.compile(r"assert(Raises|Warns|Logs|NoLogs)")


class Loop(NamedTuple):
    """A `for` of C++: code[begin:end] is its body, `names` are its variables that the body uses."""

    begin: int
    end: int
    names: frozenset[str]


def closing_of(code: str, opening: int) -> int:
    """The place behind the bracket that closes the bracket at `opening`."""
    depth = 0
    for place in range(opening, len(code)):
        depth += (code[place] in OPENING) - (code[place] in CLOSING)
        if depth == 0:
            return place + 1
    return len(code)


def end_of_statement(code: str, begin: int) -> int:
    """The place behind a statement: its semicolon or its block, with an `else`."""
    place = begin
    while place < len(code) and code[place] != ";":
        if code[place] not in OPENING:
            place += 1
            continue
        is_block = code[place] == "{"
        place = closing_of(code, place)
        # The brace of `Point{1, 2};` is no block, and `if (a) {} else {}` is one statement.
        if is_block and not re.match(r"\s*(?:[;,.]|else\b)", code[place:place + 80]):
            return place
    return place + 1


def variables(head: str) -> set[str]:
    """The variables of a loop, from the text between the parentheses of its `for`."""
    declared, is_range, _ = re.sub("::", "  ", head).rpartition(" : ")
    if not is_range:
        return set(re.findall(r"\b(\w+)\s*(?:=(?!=)|\{)", head.partition(";")[0]))
    declared = declared.rpartition(";")[2]
    bindings = re.search(r"\[(.*)\]", declared, re.DOTALL)
    return set(re.findall(r"\w+", bindings.group(1)) if bindings
               else re.findall(r"\w+", declared)[-1:])


def case_loops(code: str) -> Iterator[Loop]:
    """The loops over cases, an outer one before its inner ones.

    A loop whose body does not use its variable repeats one case, as a `while` does.
    """
    for head in FOR.finditer(code):
        begin = closing_of(code, head.end() - 1)
        end = end_of_statement(code, begin)
        names = (variables(code[head.end():begin - 1])
                 & set(re.findall(r"\w+", code[begin:end])))
        if names:
            yield Loop(begin, end, frozenset(names))


def is_in_scope(code: str, place: int, later: int) -> bool:
    """True if the block around `place` is still open at `later`."""
    depth = 0
    for char in code[place:later]:
        depth += (char == "{") - (char == "}")
        if depth < 0:
            return False
    return True


def prints_case(code: str, expectation: re.Match[str], loop: Loop) -> bool:
    """True if the failure prints a variable of the loop: in a message, or as a compared value."""
    end = closing_of(code, expectation.end() - 1)
    if re.match(r"\s*<<", code[end:end + 200]):
        return True
    if expectation.group(1) in PRINT_NOTHING:
        return False
    first, *others = code[expectation.end():end - 1].split(",")
    if expectation.group(1) == "THAT":  # a failure describes the matcher with its arguments
        return not loop.names.isdisjoint(re.findall(r"\w+", ",".join(others)))
    return any(argument.strip() in loop.names for argument in (first, *others))


def silent_cpp_loops(text: str) -> Iterator[int]:
    """Yields the line of the first silent expectation of each loop over cases.

    An expectation is silent without a message, without a compared value that is the loop's
    variable and without a SCOPED_TRACE inside the innermost such loop; a trace outside that loop
    cannot name its case.
    """
    code = blank_comments_and_strings(text)
    loops = list(case_loops(code))
    silent: set[Loop] = set()
    for expectation in EXPECTATION.finditer(code):
        place = expectation.start()
        around = [loop for loop in loops if loop.begin <= place < loop.end]
        if not around or around[-1] in silent or prints_case(code, expectation, around[-1]):
            continue
        traces = TRACE.finditer(code, around[-1].begin, place)
        if not any(is_in_scope(code, trace.start(), place) for trace in traces):
            silent.add(around[-1])
            yield code.count("\n", 0, place) + 1


def is_silent(call: ast.Call, names: set[str]) -> bool:
    """True if the call is an assertion of unittest that prints no variable of the loop."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if not re.match(r"assert[A-Z]", name) or CONTEXTS.match(name):
        return False
    if len(call.args) > (1 if name in UNARY else 2) or call.keywords:
        return False
    printed = [argument for argument in call.args
               if isinstance(argument, (ast.Name, ast.JoinedStr, ast.Tuple))]
    return name in UNARY or names.isdisjoint(names_in(printed))


def names_in(nodes: Sequence[ast.AST]) -> set[str]:
    return {node.id for top in nodes for node in ast.walk(top) if isinstance(node, ast.Name)}


def silent_python_loops(text: str) -> Iterator[int]:
    """Yields the line of the first silent assertion of each loop over cases, as in C++.

    `subTest` takes the place of SCOPED_TRACE.
    """
    silent: set[ast.AST] = set()

    def visit(node: ast.AST, loop: ast.AST | None, names: set[str]) -> Iterator[int]:
        if isinstance(node, ast.For):
            used = names_in([node.target]) & names_in(node.body)
            loop, names = (node, used) if used else (loop, names)
        elif isinstance(node, (ast.With, ast.FunctionDef)) and (
                isinstance(node, ast.FunctionDef) or "subTest(" in ast.unparse(node.items[0])):
            loop = None
        elif isinstance(node, ast.Call) and loop is not None and loop not in silent and (
                is_silent(node, names)):
            silent.add(loop)
            yield node.lineno
        for child in ast.iter_child_nodes(node):
            yield from visit(child, loop, names)

    yield from visit(ast.parse(text), None, set())


def check_silent_loops(tree: Tree) -> Iterator[Finding]:
    """A failure in a loop names its case, so that it need not be run again to find it.

    A message does, a compared value that is the loop's variable, and in the loop itself
    SCOPED_TRACE or subTest.
    """
    for path, text in tree.items():
        if not path.startswith("tests/"):
            continue
        lines = (silent_cpp_loops(text) if path.endswith(CPP)
                 else silent_python_loops(text) if path.endswith(".py") else ())
        for line in lines:
            yield Finding("silent-loop", path, line, "a failure does not say which case it is of")
