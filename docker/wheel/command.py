"""The command `foxserve` of the wheel: the commands of ./run that need no compiler."""

from __future__ import annotations

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
DEMO = HERE / "share" / "foxserve" / "demo"
SCRIPTS = {
    "demo": (HERE / "server" / "cli" / "demo.py", "--bin", HERE / "bin", "--model", DEMO,
             "--models", os.path.expanduser("~/.cache/foxserve")),
    "convert": ("-m", "models.convert.fox_convert"),
}
PROGRAMS = {"serve": "fox-server", "--version": "fox-server", "bench": "fox-bench",
            "eval": "fox-eval"}
USAGE = """\
usage: foxserve COMMAND [arguments]     foxserve COMMAND --help

  demo [flags]             start the embedded model, stream two answers, compare KV sizes;
                           --web: watch it forget in a browser; --chat: a chat model that
                           was taught to forget, beside itself unchanged
  serve MODEL [flags]      serve a checkpoint directory, or `demo`; fox-server's own flags may
                           follow
  convert SRC DST [flags]  turn a checkpoint or a GGUF file into a directory fox-server loads;
                           needs pip install 'foxserve[convert]', as does demo --chat
  bench, eval              measure: fox-bench, fox-eval
  chat, generate, health   ask a running server: these and other commands are fox-cli's
"""


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
        if command == "convert":  # HERE has `models`; the working directory is not searched
            os.environ.update(PYTHONPATH=str(HERE), PYTHONSAFEPATH="1")
    elif command == "--version":
        words = [HERE / "bin" / "fox-server", command]
    elif command == "serve" and arguments and not arguments[0].startswith("-"):
        model = DEMO if arguments[0] == "demo" and not os.path.exists("demo") else arguments[0]
        words = [HERE / "bin" / "fox-server", "--model", model, *arguments[1:]]
    elif command in PROGRAMS:
        words = [HERE / "bin" / PROGRAMS[command], *arguments]
    else:
        words = [HERE / "bin" / "fox-cli", command, *arguments]
    os.execv(words[0], [str(word) for word in words])
