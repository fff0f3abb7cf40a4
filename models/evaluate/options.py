"""The command line of evaluate.py. As a program, it only checks one.

It imports only the standard library, so that a mistake is reported before anything is installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from models.evaluate import downstream, recall_tasks
from models.finetune.arguments import OneLineParser, positive

_EPILOG = """\
MODEL and OTHER: a checkpoint's directory, or HOST:PORT of a server that runs. Both settings of a
model ask the same server: `served` prunes as the server does, `off` prunes nothing.

examples:
  ./run evaluate models/demo
  ./run evaluate my-fox --against my-llama --lengths 2048,4096,8192 --questions 300
  ./run evaluate localhost:8000 --tasks lambada,piqa --limit 200 --text held-out.txt

To continue a run that was cut, repeat the command.
"""
WINDOW = 2048  # tokens of a window of --text


def _names(known: dict[str, Any]) -> Any:
    def parse(text: str) -> list[str]:
        if text in ("all", "none"):
            return list(known) if text == "all" else []
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        return text.split(",")
    return parse


def _lengths(text: str) -> list[int]:
    return sorted({positive(part) for part in text.split(",")}) if text else []


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="./run evaluate", epilog=_EPILOG,
                           description="Judges a model by tasks that the field knows.",
                           formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--against", metavar="OTHER",
                        help="compare with this model instead of with MODEL without pruning")
    parser.add_argument("--tasks", type=_names(downstream.TASKS), metavar="LIST",
                        default=list(downstream.TASKS),
                        help="downstream tasks, or all or none (default all): "
                        + ", ".join(downstream.TASKS))
    parser.add_argument("--limit", type=positive, default=0, metavar="N",
                        help="the first N questions of each downstream task (default: all)")
    parser.add_argument("--recall", type=_names(recall_tasks.TASKS), metavar="LIST",
                        default=list(recall_tasks.TASKS),
                        help="recall tasks, or all or none (default all): "
                        + ", ".join(recall_tasks.TASKS))
    parser.add_argument("--lengths", type=_lengths, default=[2048], metavar="LIST",
                        help="tokens of the recall tasks' prompts (default 2048)")
    parser.add_argument("--questions", type=positive, default=50, metavar="N",
                        help="of each recall task and length (default 50)")
    parser.add_argument("--text", type=Path, metavar="FILE",
                        help="also measure the loss on this text (.xz, .gz, .jsonl, too), in "
                        f"windows of {WINDOW} tokens")
    parser.add_argument("--seed", type=int, default=1, help="of the recall tasks (default 1)")
    parser.add_argument("--parallel", type=positive, default=16, metavar="N",
                        help="requests at a time (default 16)")
    parser.add_argument("--out", type=Path, default=Path("build/evaluation"), metavar="DIR",
                        help="folder of evaluation.json and pictures (default build/evaluation)")
    parser.add_argument("--program", type=Path, default=Path("build/cpu/bin/fox-server"),
                        help=argparse.SUPPRESS)
    parser.add_argument("--server-flags", default="", metavar="FLAGS",
                        help="of the servers that are started, in one argument")
    return parser


if __name__ == "__main__":
    make_parser().parse_args()
