"""The command line of gain.py. As a program, it only checks one.

It imports only the standard library, so that a mistake is reported before anything is installed.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from models.finetune.arguments import OneLineParser, positive

REPORT = "fox_gain.json"  # in the model's directory
_PAGE = 64  # tokens

_EPILOG = """\
If all rows of attention lose a mass of at most W, the log-probability of the next token moves by at
most G W, to first order. The report has the G of 99% of the samples; kernels/docs/acp.md says what
it means for an answer, and what it does not cover.

examples:
  ./run gain models/demo held-out.txt
  ./run gain my-fox held-out.txt.xz --window 4096 --samples 300
"""


def _window(text: str) -> int:
    value = positive(text)
    if value % _PAGE:
        raise argparse.ArgumentTypeError(f"must be a multiple of {_PAGE}, the tokens of a page")
    return value


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parses and checks the command line."""
    parser = OneLineParser(
        prog="./run gain", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measures how much attention mass that is lost can change a model's answers.")
    parser.add_argument("model", metavar="MODEL", type=Path, help="directory of a checkpoint with "
                        "forget gates")
    parser.add_argument("texts", metavar="TEXT", type=Path, nargs="+",
                        help="UTF-8 text (.xz: compressed) of the kind that the model will read")
    parser.add_argument("--samples", type=positive, default=100, metavar="N",
                        help="windows of the texts, for each of which a token is drawn (default "
                        "100)")
    parser.add_argument("--window", type=_window, default=1024, metavar="T",
                        help="tokens before the drawn token (default 1024); the gain grows "
                        "somewhat with them")
    parser.add_argument("--seed", type=int, default=0, help="of windows and tokens (default 0)")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help=f"the report (default {REPORT} in MODEL)")
    args = parser.parse_args(arguments)
    args.out = args.out or args.model / REPORT
    for path in args.texts:
        if not path.is_file():
            parser.error(f"{path}: no such file")
    if not args.model.is_dir():
        parser.error(f"{args.model}: no such directory; ./run convert makes one of a GGUF file")
    if not os.access(args.out.parent, os.W_OK):
        parser.error(f"{args.out}: its folder is not writable; --out names another file")
    return args


if __name__ == "__main__":
    parse_arguments(None)
