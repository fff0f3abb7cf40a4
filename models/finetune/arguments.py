"""The command line of train.py, with its defaults. As a program, it only checks one.

It imports only the standard library, not PyTorch, so that a mistake is reported at once.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path
from typing import NoReturn

BEGAN = time.monotonic()  # minutes count from here, before PyTorch is imported

_EPILOG = """\
examples:
  ./run finetune models/demo books/*.txt --out my-model
  ./run finetune models/demo corpus.txt.xz --valid valid.txt --out my-model --epochs 3
  ./run finetune config.json corpus.tokens --tokenizer models/demo --out new --minutes-total 60

To continue an interrupted run, repeat the command. Exit status: 0 done; 1 failed, with the reason
in one line; 2 usage; 3 stopped before the end (--minutes, a signal), with a checkpoint.
"""


class OneLineParser(argparse.ArgumentParser):
    """Reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.split()[-1]
        self.exit(2, f"{command}: {message}; {self.prog} --help lists all flags\n")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", text.strip().upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 5GB or 15.5MB")
    return int(float(match.group(1)) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[match.group(2)])


def positive(text: str) -> int:
    """Parses a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def above_zero(text: str) -> float:
    """Parses a finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def add_run(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds the flags that finetune and foxify share; returns their group."""
    group = parser.add_argument_group("run")
    group.add_argument("--minutes", type=above_zero, metavar="M",
                       help="time of this run, from start to end; then it writes a checkpoint and "
                       "exits with status 3")
    group.add_argument("--checkpoint-minutes", type=float, default=10, metavar="M",
                       help="time between checkpoints (default 10); 0: as often as can be")
    group.add_argument("--window", type=positive, default=8192, metavar="T",
                       help="tokens of one training sequence (default 8192)")
    group.add_argument("--micro-batch", type=positive, metavar="N",
                       help="windows in one forward pass (default: as many as should fit into "
                       "memory)")
    group.add_argument("--workers", type=positive, default=os.cpu_count() or 1,
                       help="processes that encode text")
    group.add_argument("--seed", type=int, default=0,
                       help="seed of the order of windows and of random weights")
    group.add_argument("--precision", choices=("bf16", "fp32"),
                       help="type of matrix products (default: bf16 on a GPU)")
    group.add_argument("--no-compile", action="store_true", help="no torch.compile")
    group.add_argument("--recompute", action=argparse.BooleanOptionalAction,
                       help="recompute activations in the backward pass: less memory, a third "
                       "slower (default: finetune does not, foxify does if nothing else fits)")
    return group


def _add_length(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how long")
    length = group.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=above_zero, default=1.0, help="over the text (default 1)")
    length.add_argument("--steps", type=positive, help="optimizer steps")
    length.add_argument("--minutes-total", type=above_zero, metavar="M",
                        help="time of all runs together, each from start to end; the schedule "
                        "adapts to the pace")


def _add_batches(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("batches")
    group.add_argument("--batch-tokens", type=positive, default=1 << 17, metavar="N",
                       help="tokens of one optimizer step (default 131072)")
    group.add_argument("--packing", choices=("windows", "documents"), default="windows",
                       help="attend to all earlier tokens of the window, as the official training "
                       "does, or only to those of the same document")


def _add_optimizer(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("optimizer (AdamW, warmup, cosine to 0)")
    group.add_argument("--lr", type=above_zero,
                       help="peak learning rate (default 1e-4; from a config.json 1e-3)")
    group.add_argument("--warmup-tokens", type=float, default=4e6, metavar="N",
                       help="tokens before the peak, at most a tenth of the run (default 4e6)")
    group.add_argument("--weight-decay", type=float, default=0.1, help="of matrices (default 0.1)")
    group.add_argument("--clip", type=above_zero, default=1.0, help="gradient norm (default 1)")


def _add_computation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("computation")
    group.add_argument("--acp", choices=("paper", "certified", "off"), default="paper",
                       help="bound for pruning attention (default paper)")
    group.add_argument("--log-tolerance", type=float, metavar="X",
                       help="log eps of pruning (default: the checkpoint's, or -10)")
    group.add_argument("--fast", action="store_true",
                       help="add in any order: slightly faster, but runs are not reproducible")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--out", type=Path, required=True, metavar="DIR", help="model directory")
    group.add_argument("--valid", type=Path, metavar="FILE",
                       help="held-out text; reports its bits per byte over 16 windows")
    group.add_argument("--valid-minutes", type=above_zero, default=5, metavar="M",
                       help="time between validation losses (default 5)")
    group.add_argument("--prompt", default="Once upon a time", help="prompt of the samples")
    group.add_argument("--sample-tokens", type=int, metavar="N",
                       help="length of the samples (default: 120 on a GPU; none on the CPU, where "
                       "they take minutes)")
    group.add_argument("--dtype", choices=("bf16", "f16", "f32"), default="bf16",
                       help="type of exported weights (default bf16)")
    group.add_argument("--max-shard-size", type=_bytes, default=5 * 10**9, metavar="SIZE",
                       help="size limit of an exported file (default 5GB)")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parses and checks the command line; sets defaults that depend on other flags."""
    parser = OneLineParser(
        prog="./run finetune", description="Train a Forgetting Transformer on text files.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL_OR_CONFIG", type=Path,
                        help="checkpoint directory, or a config.json to train from scratch")
    parser.add_argument("texts", metavar="TEXT", type=Path, nargs="+",
                        help="UTF-8 text (.xz, .gz: compressed), documents separated by a line "
                        "with one zero byte; .jsonl or .json with `text`, `messages` or "
                        "`conversations` in each entry; or one file NAME.tokens of "
                        "text_tokens.py")
    parser.add_argument("--tokenizer", type=Path, metavar="DIR",
                        help="directory of the tokenizer (default: the model's)")
    for add in (_add_output, _add_length, add_run, _add_batches, _add_optimizer, _add_computation):
        add(parser)
    args = parser.parse_args(arguments)
    for path in (args.model, *args.texts, args.valid, args.tokenizer):
        if path is not None and not path.exists():
            parser.error(f"{path}: no such directory or file")
    if args.model.is_dir() and args.out.exists() and args.out.samefile(args.model):
        parser.error("--out is the model that training starts from")
    if args.lr is None:
        args.lr = 1e-3 if args.model.is_file() else 1e-4
    return args


if __name__ == "__main__":
    parse_arguments(None)
