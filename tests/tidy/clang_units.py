"""Joins source files into units, for clang-tidy and for the compiler of the tests.

Most of a file's time goes into the headers it includes: gRPC's, gtest's and the standard library's
take seconds, our own lines a few tenths. Files of a folder are joined, so that their headers are
read once. Two files that define the same name stay apart.

    clang_units.py FILE...     prints the units, each a line of the files as they were given
"""

from __future__ import annotations

import pathlib
import re
import sys

from clang_tools import ROOT

# Files of a unit: more save little, and keep one core busy when the others are done.
MAX_FILES = 12
# After clang-format only definitions in a namespace begin in column one. A member's definition
# (`Widget::Turn(`) is no name of its own.
DEFINED = re.compile(r"^(?!using |namespace |\w*TEST\w*\()[A-Za-z][^=({[]*?(?<![:\w])(\w+)"
                     r"(?= = |\(|\{| \{|\[| final| :)", re.MULTILINE)
CONSTANTS = re.compile(r"^(?:inline |static )?const[^;(]*;", re.MULTILINE)  # one or several names
ALIAS = re.compile(r"^(?:using|namespace) (\w+) = .*", re.MULTILINE)
TEST = re.compile(r"^\w*TEST\w*\((\w+), (\w+)\)", re.MULTILINE)
MACRO = re.compile(r"^# *define (\w+)", re.MULTILINE)


def definitions(text: str) -> dict[str, str]:
    """The names that a file defines.

    An alias maps to its line, because another file of the unit may repeat that line; every other
    name maps to the empty text.
    """
    found = {match[1]: match[0] for match in ALIAS.finditer(text)}
    constants = [name for match in CONSTANTS.findall(text)
                 for name in re.findall(r"\b(k[A-Z]\w*)(?= = |\[|\{)", match)]
    tests = map("_".join, TEST.findall(text))
    names = [*constants, *DEFINED.findall(text), *MACRO.findall(text), *tests]
    return found | {name: "" for name in names}


def text_of(file: pathlib.Path) -> str:
    return file.read_text(encoding="utf-8").rstrip("\n") + "\n"


class Unit:
    """Files that clang-tidy reads as one."""

    def __init__(self, flags: list[str], files: list[pathlib.Path]) -> None:
        self.flags, self.files = flags, files
        self._room = files[0].parent.parts[:len(ROOT.parts) + 2]  # server/rpc, tests/engine
        self._texts = [text_of(file) for file in files]
        self._defined = {name: line for text in self._texts
                         for name, line in definitions(text).items()}

    def takes(self, other: Unit) -> bool:
        """True if the other's files may join: same folder, same flags, no name in both."""
        both = self._defined.keys() & other._defined.keys()
        return (self.flags == other.flags and self._room == other._room and
                len(self.files) + len(other.files) <= MAX_FILES and
                all(self._defined[name] and self._defined[name] == other._defined[name]
                    for name in both))

    def join(self, other: Unit) -> None:
        self.files += other.files
        self._texts += other._texts
        self._defined |= other._defined

    def text(self) -> str:
        return "".join(self._texts)


def joined(commands: dict[pathlib.Path, list[str]]) -> list[Unit]:
    """Units of the files of `commands`, a map from file to flags.

    A new file changes only the unit of its neighbours, so that the other units keep their stamps.
    """
    units: list[Unit] = []
    for file in sorted(commands):
        alone = Unit(commands[file], [file])
        home = next((unit for unit in reversed(units) if unit.takes(alone)), None)
        if home is None:
            units.append(alone)
        else:
            home.join(alone)
    return units


if __name__ == "__main__":
    for found in joined({pathlib.Path(name).resolve(): [] for name in sys.argv[1:]}):
        given = [name for name in sys.argv[1:] if pathlib.Path(name).resolve() in found.files]
        print(" ".join(given))
