"""The command line of foxify.py, with its defaults. As a program, it only checks one.

It imports only the standard library, not PyTorch, so that a mistake, or a model that cannot be
foxified, is reported at once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from models.convert.refusal import Refusal
from models.convert.transformers_config import parse_transformers_config
from models.finetune.arguments import OneLineParser, above_zero, add_run, positive

_EPILOG = """\
examples:
  ./run foxify my-llama books/*.txt --valid held-out.txt --keep 0.125 --out my-fox
  ./run foxify my-llama corpus.tokens --chats chats.tokens --out my-fox --minutes-total 20
  ./run foxify my-llama my-texts/*.txt --from my-fox --keep 0.0625 --steps 200 --out my-fox-6

To continue an interrupted run, repeat the command. Exit status: 0 done; 1 failed, with the reason
in one line; 2 usage; 3 stopped before the end (--minutes, a signal), with a checkpoint.
"""


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _add_method(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("method")
    group.add_argument("--keep", type=_share, default=0.125, metavar="SHARE",
                       help="share of the pages of a window to keep, the mean over page ends and "
                       "kv heads (default 0.125)")
    group.add_argument("--from", type=Path, dest="start", metavar="DIR",
                       help="start from the adapter of an earlier run, its --out, instead of from "
                       "gates that never forget")
    group.add_argument("--rank", type=_whole, default=32,
                       help="of the adapter of every matrix; 0 trains the matrices (default 32)")
    group.add_argument("--cap-scale", type=_share, default=0.75, metavar="X",
                       help="what the product of the norm caps falls to (default 0.75)")
    group.add_argument("--lr", type=above_zero,
                       help="of the adapter (default 1e-3; with --rank 0 of the matrices, 1e-4)")
    group.add_argument("--window-baseline", type=positive, metavar="W",
                       help="train, for comparison, a window of W tokens and sinks instead")


def _add_length(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how long")
    length = group.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive, help="optimizer steps (default 700)")
    length.add_argument("--minutes-total", type=above_zero, metavar="M",
                        help="time of all runs together, each from start to end")
    group.add_argument("--batch-tokens", type=positive, default=1 << 16, metavar="N",
                       help="tokens of one optimizer step (default 65536)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    add_run(parser).add_argument(
        "--shard", action=argparse.BooleanOptionalAction,
        help="each GPU holds a part of every layer of the base, and recomputes: for a model that "
        "does not fit one GPU (default: if nothing else fits)")


def _check_model(parser: OneLineParser, model: Path, window: int) -> None:
    """Refuses a config.json of a model that cannot be foxified, or not with this window."""
    try:
        config = parse_transformers_config(json.loads((model / "config.json").read_bytes()))
    except Refusal as refusal:
        parser.exit(1, f"foxify: {refusal}\n")
    except (OSError, ValueError, AttributeError):
        return  # reading the base reports the fault of the file
    if window > config.context:
        parser.exit(1, f"foxify: --window {window} is longer than the model's "
                    f"max_position_embeddings or sliding_window, {config.context}\n")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parses and checks the command line."""
    parser = OneLineParser(
        prog="./run foxify", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train forget gates into a LLaMA, Mistral, Qwen2 or Qwen3 model.")
    parser.add_argument("model", metavar="MODEL", type=Path,
                        help="its directory: config.json, model*.safetensors, a tokenizer")
    parser.add_argument("texts", metavar="TEXT", type=Path, nargs="+",
                        help="UTF-8 text, .jsonl or .json (also .xz, .gz), or one NAME.tokens of "
                        "text_tokens.py")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR",
                        help="gets adapter.safetensors, report and plots")
    parser.add_argument("--export", type=Path, metavar="DIR",
                        help="also write the merged model, which ./run serve loads")
    parser.add_argument("--valid", type=Path, metavar="FILE", help="held-out text, or its tokens")
    parser.add_argument("--chats", type=Path, metavar="FILE",
                        help="the model's own chats, tokens of chats.py or .jsonl: half of the "
                        "windows")
    parser.add_argument("--valid-chats", type=Path, metavar="FILE", help="held-out chats")
    for add in (_add_method, _add_length, _add_run):
        add(parser)
    args = parser.parse_args(arguments)
    for path in (args.model, *args.texts, args.valid, args.chats, args.valid_chats, args.start):
        if path is not None and not path.exists():
            parser.error(f"{path}: no such directory or file")
    if args.start is not None and not (args.start / "adapter_config.json").is_file():
        parser.error(f"--from {args.start}: has no adapter_config.json")
    if args.window % 64 or args.window < 128:
        parser.error("--window must be a multiple of 64, and at least 128")
    if args.batch_tokens % args.window:
        parser.error("--batch-tokens must be a multiple of --window")
    if args.shard and (args.rank == 0 or args.recompute is False):
        parser.error("--shard needs an adapter, not --rank 0, and recomputes")
    for path in (args.out, args.export):
        if path is not None and path.exists() and path.samefile(args.model):
            parser.error(f"{path} is the model that training starts from")
    _check_model(parser, args.model, args.window)
    if args.lr is None:
        args.lr = 1e-3 if args.rank else 1e-4
    if args.steps is None and args.minutes_total is None:
        args.steps = 700
    return args


if __name__ == "__main__":
    parse_arguments(None)
