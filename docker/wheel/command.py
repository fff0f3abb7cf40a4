"""The command `foxserve` of the wheel: the commands of ./run that need no compiler."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
DEMO = HERE / "share" / "foxserve" / "demo"
SCRIPTS = {
    "demo": (HERE / "server" / "cli" / "demo.py", "--bin", HERE / "bin", "--model", DEMO,
             "--models", os.path.expanduser("~/.cache/foxserve")),
    "convert": ("-m", "models.convert.fox_convert"),
}
# HERE has `models`; the working directory is not searched.
OF_CONVERT = {"PYTHONPATH": str(HERE), "PYTHONSAFEPATH": "1"}
PROGRAMS = {"serve": "fox-server", "--version": "fox-server", "bench": "fox-bench",
            "eval": "fox-eval"}
USAGE = """\
usage: foxserve COMMAND [arguments]     foxserve COMMAND --help

  demo [flags]             start the embedded model, stream two answers, compare KV sizes;
                           --web: watch it forget in a browser; --chat: a chat model that
                           was taught to forget, beside itself unchanged
  serve MODEL [flags]      serve a checkpoint directory, a GGUF file, or `demo`; fox-server's own
                           flags may follow
  chat MODEL [flags]       chat with such a model in this terminal; the flags are fox-cli chat's
  convert SRC DST [flags]  turn a checkpoint or a GGUF file into a directory fox-server loads;
                           needs pip install 'foxserve[convert]', as do demo --chat and the
                           first start of a GGUF file
  bench, eval              measure: fox-bench, fox-eval
  chat, generate, health   ask a running server: these and other commands are fox-cli's
"""


def model_directory(name: str) -> str | pathlib.Path:
    """The directory of a model that is named by a path or `demo`; exits where a file is none."""
    if name == "demo" and not os.path.exists(name):
        return DEMO
    if not os.path.isfile(name):
        return name
    made = subprocess.run([sys.executable, "-m", "models.convert.gguf_cache", name],
                          env=dict(os.environ, **OF_CONVERT), stdout=subprocess.PIPE, text=True)
    if made.returncode != 0:
        sys.exit(made.returncode)
    return made.stdout.rstrip("\n")


def chat(model: str, flags: list[str]) -> int:
    """Chats with a model on a server of its own; returns the exit code."""
    sys.path.insert(0, str(HERE / "server" / "cli"))
    from demo import DemoError, Server

    try:
        with Server(HERE / "bin", model_directory(model), "certified") as server:
            return subprocess.run([HERE / "bin" / "fox-cli", "chat", "--target", server.target,
                                   *flags]).returncode
    except (DemoError, OSError) as error:
        print(f"foxserve: {str(error).splitlines()[-1]}", file=sys.stderr)  # the server's reason
        return 1
    except KeyboardInterrupt:
        return 130


def main() -> None:
    """Replaces this process by the program that the command names."""
    command, *arguments = sys.argv[1:] or ["help"]
    if command in ("help", "-h", "--help"):
        print(USAGE, end="")
        return
    if command == "serve" and arguments[:1] in (["-h"], ["--help"]):
        print("usage: foxserve serve MODEL [flags]; MODEL is --model of the flags:\n", flush=True)
    if command in SCRIPTS:
        words = [sys.executable, *SCRIPTS[command], *arguments]
        if command == "convert":
            os.environ.update(OF_CONVERT)
    elif command == "--version":
        words = [HERE / "bin" / "fox-server", command]
    elif command == "serve" and arguments and not arguments[0].startswith("-"):
        words = [HERE / "bin" / "fox-server", "--model", model_directory(arguments[0]),
                 *arguments[1:]]
    elif command == "chat" and arguments and not arguments[0].startswith("-"):
        sys.exit(chat(arguments[0], arguments[1:]))
    elif command in PROGRAMS:
        words = [HERE / "bin" / PROGRAMS[command], *arguments]
    else:
        words = [HERE / "bin" / "fox-cli", command, *arguments]
    os.execv(words[0], [str(word) for word in words])
