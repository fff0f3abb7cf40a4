#!/usr/bin/env python3
"""Makes manual pages and bash completion of our programs from their --help.

    manual.py --version VERSION --out SHARE PROGRAM...

writes SHARE/man/man1/PROGRAM.1.gz and SHARE/bash-completion/completions/PROGRAM. The form of
--help is FlagSet::Help's: titles that end in a colon, one flag a line, its default in brackets at
the end. A program's commands are the indented lines below its usage. What no flag says (exit codes,
files, examples) stands here.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import NamedTuple

FLAG = re.compile(r"  --([a-z0-9-]+)(?: (\S+))?\s{2,}(\S.*)$")
COMMAND = re.compile(r"  ([a-z][a-z0-9-]*)((?: [A-Z\[|@\]-]+)*)\s{2,}(\S.*)$")
ONE_LINE = {  # the NAME section
    "fox-server": "serves a Forgetting Transformer over gRPC and HTTP",
    "fox-cli": "client of a running fox-server",
    "fox-bench": "measures a model's serving on this machine, or a running server",
    "fox-eval": "measures a model offline",
}
CODES = {
    "fox-server": (
        ("0", "stopped by SIGTERM or SIGINT: after a drain, or at once while the model is loading"),
        ("70", "the engine failed, a step hangs, or memory or threads ran out: restart it"),
        ("78", "a flag, the model or the memory is wrong; one line on standard error says why, "
               "nothing was served, and a restart will not help"),
        ("134, 139", "instead of 70 or 78, where ulimit -c is not 0: it aborted or crashed, and "
                     "left a core")),
    "fox-cli": (("0", "done; for health: the server is serving"),
                ("1", "the server answered with an error; for health: it is not serving"),
                ("2", "the command line is wrong")),
}
CODES["fox-bench"] = CODES["fox-eval"] = (
    ("0", "done"), ("2", "there is no such command"), ("78", "a flag or the model is not right"))
FILES = {"fox-server": (
    ("/etc/default/foxserve", "variables of the service that systemd starts"),
    ("/usr/share/foxserve/demo", "a small model to try it with"))}
EXAMPLES = {
    "fox-server": "fox-server --model /usr/share/foxserve/demo",
    "fox-cli": 'fox-cli generate "Once upon a time" --max-tokens 64 --stats',
    "fox-bench": "fox-bench serve --target 127.0.0.1:50051 --rates 1,2,4",
    "fox-eval": "fox-eval perplexity --model /usr/share/foxserve/demo --text FILE",
}


class Flag(NamedTuple):
    """One line of --help."""

    group: str
    name: str
    value: str  # DIR, N, a|b; empty: the flag is a switch
    text: str

    def choices(self) -> list[str]:
        """The words that it accepts; none if it accepts other values."""
        words = self.value.split("|")
        return words if len(words) > 1 and self.value == self.value.lower() else []


class Command(NamedTuple):
    """One command of a program, or the program itself when it has none."""

    name: str
    arguments: str
    text: str
    flags: list[Flag]


class Program(NamedTuple):
    """A --help text, in parts."""

    name: str
    usage: list[str]
    prose: list[str]
    commands: list[Command]


def parse_flags(text: str) -> list[Flag]:
    """The flags of a --help, in order."""
    flags, group = [], ""
    for line in text.splitlines():
        match = FLAG.match(line)
        if match is not None:
            flags.append(Flag(group, match.group(1), match.group(2) or "", match.group(3)))
        elif re.match(r"\S.*:$", line):
            group = line[:-1]
    return flags


def read_help(program: pathlib.Path, *arguments: str) -> str:
    """The program's output; a failure ends this program."""
    asked = ["--help", "all"] if program.name == "fox-server" else ["--help"]
    result = subprocess.run([str(program), *arguments, *asked], capture_output=True, text=True,
                            timeout=60)
    if result.returncode != 0:
        sys.exit(f"manual.py: {program.name} {' '.join(arguments)} --help failed: {result.stderr}")
    return result.stdout


def read_program(program: pathlib.Path) -> Program:
    """Reads the --help of the program and of each of its commands."""
    text = read_help(program)
    usage, prose, commands = [], [], []
    flags = parse_flags(text)
    for line in re.split(r"(?m)^\S.*:\n  --", text)[0].splitlines():  # what stands above the flags
        match = COMMAND.match(line)
        if line.startswith("usage: "):
            usage.append(re.split(r"\s{3,}", line[len("usage: "):])[0])
        elif match is not None:
            commands.append(Command(match.group(1), match.group(2).strip(), match.group(3), []))
        elif commands and line.startswith("    "):
            commands[-1] = commands[-1]._replace(text=f"{commands[-1].text} {line.strip()}")
        elif line.strip():
            prose.append(line.strip())
    if flags:
        commands = [Command("", "", "", flags)]
    else:
        commands = [command._replace(flags=parse_flags(read_help(program, command.name)))
                    for command in commands]
    return Program(program.name, usage, prose, commands)


# ---- manual pages -------------------------------------------------------------------------------


def escape(text: str) -> str:
    """Text that roff shows as it is: hyphens that can be copied, no accidental requests."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "")


def prose_page(text: str) -> str:
    """Lines of at most 80 columns, none of them a request."""
    lines = textwrap.wrap(text, 68, break_long_words=False, break_on_hyphens=False)
    return "".join(("\\&" if line.startswith(".") else "") + escape(line) + "\n" for line in lines)


def tagged(head: str, text: str) -> str:
    """A paragraph with a tag."""
    return f".TP\n{head}\n{prose_page(text)}"


def flags_page(flags: list[Flag]) -> str:
    """Flags below the titles of their groups."""
    out, group = "", ""
    for flag in flags:
        if flag.group != group:
            group = flag.group
            out += f'.PP\n.I "{escape(group)}"\n'
        head = f'.B "\\-\\-{escape(flag.name)}"'
        if flag.value:
            head = f'.BI "\\-\\-{escape(flag.name)} " "{escape(flag.value)}"'
        out += tagged(head, flag.text)
    return out


def manual_page(program: Program, version: str, date: str) -> str:
    """The page of a program, in man(7)."""
    name = program.name
    out = f'.\\" Made by docker/manual.py from {name} --help.\n'
    out += f'.TH {name.upper()} 1 {date} "foxserve {version}" "foxserve"\n'
    out += f".SH NAME\n{name} \\- {escape(ONE_LINE[name])}\n.SH SYNOPSIS\n"
    out += "\n.br\n".join(f".B {escape(usage)}" for usage in program.usage) + "\n"
    out += ".SH DESCRIPTION\n" + prose_page(" ".join(program.prose))
    if len(program.commands) > 1:
        out += ".SH COMMANDS\n"
        for command in program.commands:
            out += tagged(f'.B "{escape(command.name)}"', command.text)
        for command in program.commands:
            usage = " ".join(filter(None, (name, command.name, command.arguments, "[flags]")))
            out += f'.SH "{escape(command.name.upper())}"\n.B {escape(usage)}\n'
            out += flags_page(command.flags)
    else:
        out += ".SH OPTIONS\n" + prose_page("--no-NAME turns the switch --NAME off.")
        out += flags_page(program.commands[0].flags)
        out += ".SH ENVIRONMENT\n"
        out += prose_page("FOX_GRPC_PORT sets --grpc-port where the command line does not, and so "
                          "on for every flag but --help and --version.")
    out += '.SH "EXIT STATUS"\n'
    out += "".join(tagged(f".B {code}", text) for code, text in CODES[name])
    if name in FILES:
        out += ".SH FILES\n" + "".join(tagged(f".I {file}", text) for file, text in FILES[name])
    out += f".SH EXAMPLES\n.nf\n{escape(EXAMPLES[name])}\n.fi\n"
    others = [other for other in ONE_LINE if other != name]
    return out + '.SH "SEE ALSO"\n' + " ,\n".join(f".BR {other} (1)" for other in others) + "\n"


# ---- bash completion ----------------------------------------------------------------------------

COMPLETION = """# bash completion of {name}, made by docker/manual.py from its --help.
{function}() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" last="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words=""
  # Bash splits --flag=value into three words, and @FILE into two, but replaces it whole.
  if [[ "$word" == "@" || "$last" == "@" ]]; then
    mapfile -t COMPREPLY < <(compgen -P @ -f -- "${{word#@}}")
    return
  fi
  if [[ "$word" == "=" ]]; then
    word=""
  elif [[ "$last" == "=" ]]; then
    last="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
{command}  case "$command $last" in
{values}  esac
  case "$command" in
{flags}  esac
  if [[ "$word" == --no-* ]]; then
    case "$command" in
{switches}    esac
  fi
  if [[ "$word" == -* || -z "$command" && -n "$words" && "{has_commands}" ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}}
complete -F {function} {name}
"""


def value_cases(command: Command) -> str:
    """The possible values of each flag that has one."""
    out, others = "", []
    for flag in filter(lambda flag: flag.value, command.flags):
        label = f'"{command.name} --{flag.name}"'
        kind = {"DIR": "-d", "FILE": "-f"}.get(flag.value)
        if flag.choices():
            kind = '-W "' + " ".join(flag.choices()) + '"'
        if kind is None:
            others.append(label)
            continue
        out += f"    {label})\n"
        if not flag.choices():
            out += "      compopt -o filenames 2>/dev/null\n"
        out += f'      mapfile -t COMPREPLY < <(compgen {kind} -- "$word")\n'
        out += "      return\n      ;;\n"
    return out + ("    " + " | ".join(others) + ") return ;;\n" if others else "")


def completion(program: Program) -> str:
    """The completion of a program."""
    names = [command.name for command in program.commands]
    has_commands = len(names) > 1
    values = flags = switches = ""
    for command in program.commands:
        values += value_cases(command)
        words = " ".join(f"--{flag.name}" for flag in command.flags)
        flags += f'    "{command.name}") words="{words}" ;;\n'
        negated = " ".join(f"--no-{flag.name}" for flag in command.flags
                           if not flag.value and flag.name not in ("help", "version"))
        switches += f'      "{command.name}") words="{negated}" ;;\n'
    choose = ""
    if has_commands:
        flags += f'    "") words="{" ".join(names)} --help" ;;\n'
        choose = '  ((COMP_CWORD < 2)) || command="${COMP_WORDS[1]}"\n'
    return COMPLETION.format(name=program.name, function="_" + program.name.replace("-", "_"),
                             command=choose, values=values, flags=flags, switches=switches,
                             has_commands="yes" if has_commands else "")


def main() -> int:
    """Writes the files of every program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("programs", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch else now
    pages = arguments.out / "man" / "man1"
    completions = arguments.out / "bash-completion" / "completions"
    for folder in (pages, completions):
        folder.mkdir(parents=True, exist_ok=True)
    for path in arguments.programs:
        program = read_program(path)
        page = manual_page(program, arguments.version, day.strftime("%Y-%m-%d"))
        # The same bytes whenever it is made.
        (pages / f"{program.name}.1.gz").write_bytes(gzip.compress(page.encode(), mtime=0))
        (completions / program.name).write_text(completion(program))
    return 0


if __name__ == "__main__":
    sys.exit(main())
