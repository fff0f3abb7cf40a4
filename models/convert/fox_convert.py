"""Converts a checkpoint of any known layout, or a GGUF file, into a directory that foxserve loads.

The path of a conversion: open_source (source_directory.py) -> parse_config (canonical_config.py)
-> plan_tensors (tensor_plan.py) -> with_adapter (lora_adapter.py), all in a bounded process
(bounded_reading.py) -> write and verify (output_directory.py) -> write_chat_format
(chat_format.py); open_gguf (gguf_source.py) stands for the first three. See README.md here.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.convert.refusal import Refusal

if TYPE_CHECKING:  # numpy comes with these; --help must work without it
    from models.convert.tensor_plan import Plan, PlannedTensor

VERSION = "0.2.0"
EXIT_REFUSED, EXIT_USAGE = 1, 2
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}

_EPILOG = """\
examples:
  convert fox-pro-760m model --dtype bf16 --verify
      a published checkpoint (.safetensors or .bin, official or FLA layout)
  convert runs/fox-pro model --step 16384
      a training run: config.yaml and checkpoints/step-000000000016384.pt
  convert SmolLM2-135M-Instruct.Q4_1.gguf model
      a GGUF file of llama, qwen2 or qwen3, as bfloat16
  convert SmolLM2-135M-Instruct.Q4_1.gguf model --adapter models/smollm2-fox
      the same, taught to forget by ./run foxify
  convert fox-pro-760m --dry-run
      show the configuration and the tensors, write nothing
  convert fox-pro-760m model --dtype bf16 --verify-only
      compare an existing result with its source

exit status: 0 done; 1 refused, with one line naming the tensor, key or file; 2 usage
"""


def _byte_count(text: str) -> int:
    """Parses 5GB, 500MB, 1000000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", text.strip().upper())
    count = int(float(match.group(1)) * _UNITS[match.group(2)]) if match else 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 5GB or 500MB")
    return count


def _parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="convert",
        description="Convert a checkpoint or a GGUF file to the layout foxserve loads: "
        "./run convert, or foxserve convert.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", type=Path, help="directory, or GGUF file")
    parser.add_argument(
        "destination", metavar="DST", type=Path, nargs="?", help="directory to create"
    )
    parser.add_argument(
        "--dtype",
        choices=("keep", "f32", "bf16", "f16"),
        default="keep",
        help="element type to write, rounded to nearest even (default: keep; of GGUF bf16)",
    )
    parser.add_argument(
        "--keep-blocks",
        action="store_true",
        help="of GGUF: f16 instead of bf16 if it has blocks, so that the server's --quantization "
        "q8 and q4 find the codes of Q8_0 and Q4_0 again",
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="training checkpoint to take (default: the newest)"
    )
    parser.add_argument(
        "--max-shard-size",
        type=_byte_count,
        default=5 * 10**9,
        metavar="SIZE",
        help="split weights into files of at most SIZE (default: 5GB)",
    )
    parser.add_argument(
        "--log-pruning-tolerance",
        type=float,
        metavar="X",
        help="write this log_pruning_tolerance (-10.0 is recommended) instead of the source's",
    )
    parser.add_argument(
        "--adapter", metavar="DIR", type=Path,
        help="merge what ./run foxify, or peft (LoRA), trained on SRC"
    )
    parser.add_argument(
        "--ignore-key",
        action="append",
        default=[],
        metavar="KEY",
        help="drop an unknown configuration key instead of refusing it",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read the result back and compare every element with the source",
    )
    parser.add_argument(
        "--verify-only", action="store_true", help="compare an existing DST with SRC, write nothing"
    )
    parser.add_argument(
        "--dry-run",
        "--list",
        action="store_true",
        dest="dry_run",
        help="print what would be written, write nothing; DST may be absent",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing model directory")
    parser.add_argument("--version", action="version", version=f"fox_convert {VERSION}")
    return parser


def _say(text: str) -> None:
    """Prints one line to stderr, in which a name from a file cannot move a terminal's cursor."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    print(shown if len(shown) < 2000 else shown[:2000] + "..", file=sys.stderr, flush=True)


def _print_plan(plan: Plan) -> None:
    """Prints the configuration and the tensors of a dry run to stdout."""
    planned = plan.tensors
    print(f"source: {plan.kind}")
    for key, value in plan.config.items():
        print(f"config: {key} = {value!r}")
    for tensor in planned:
        origin = " + ".join(f"{part.name} {part.dtype}" for part in tensor.parts)
        print(f"tensor: {tensor.name} {tensor.dtype} {list(tensor.shape)} <- {origin}")
    elements = sum(part.size for tensor in planned for part in tensor.parts)
    total = sum(tensor.byte_size for tensor in planned)
    print(f"total: {len(planned)} tensors, {elements} parameters, {total} bytes")


def _verify(directory: Path, config: dict[str, Any], planned: list[PlannedTensor]) -> None:
    """Re-opens `directory` and compares it with the source; Refusal on any mismatch."""
    from models.convert.bounded_reading import bounded
    from models.convert.output_directory import check_config, verify_tensors
    from models.convert.source_directory import open_source

    written = bounded(directory.name, lambda: open_source(directory, None))
    check_config(directory, config)
    report = verify_tensors(planned, written.tensors)
    if report.different:
        name, count = next(iter(report.different.items()))
        raise Refusal(
            f"tensor {name}: verify: {count} elements differ from the source "
            f"({len(report.different)} tensors differ, max abs difference "
            f"{report.largest_difference:.9g})"
        )
    _say(
        f"verified {report.compared} elements of {len(planned)} tensors: max abs difference 0 "
        f"after rounding, {report.largest_rounding:.9g} by rounding"
    )


def _write(args: argparse.Namespace, plan: Plan) -> None:
    """Writes DST."""
    from models.convert import output_directory as out
    from models.convert.chat_format import write_chat_format

    planned = plan.tensors
    out.check_space(args.destination, planned)
    with out.staged(args.destination) as stage:
        report = out.write_tensors(stage, planned, args.max_shard_size)
        names = [] if out.has_tokenizer(plan.files) else out.TOKENIZER_FILES
        copied = out.side_files(args.source, ["generation_config.json", *names])
        for files in (copied, {"config.json": plan.config, **plan.files}):
            for filename, content in files.items():
                out.add_file(stage / filename, content)
        chat = write_chat_format(stage)
        if args.verify:
            _verify(stage, plan.config, planned)
    for name, count in report.nonfinite.items():
        _say(f"warning: tensor {name}: {count} elements are NaN or infinite")
    if not out.has_tokenizer((*copied, *plan.files)):
        _say("note: SRC has tekken.json, a tokenizer that is not supported; put tokenizer.json of "
             "the same model, from a repository that has one, beside the weights"
             if (args.source / "tekken.json").is_file() else
             "note: SRC has no tokenizer; put its files beside the weights")
    if chat:
        _say(f"note: {chat}")
    total = sum(tensor.byte_size for tensor in planned)
    _say(f"wrote {args.destination}: {len(planned)} tensors, {total} bytes")


def _plan(args: argparse.Namespace) -> Plan:
    """Reads the headers of SRC, and of the adapter."""
    from models.convert.lora_adapter import with_adapter

    plan = _plan_of_source(args)
    return _with_code(plan if args.adapter is None else with_adapter(plan, args.adapter))


def _with_code(plan: Plan) -> Plan:
    """Adds modeling_fox.py to a model with gates or sinks, so that transformers can load it."""
    from models.convert.transformers_config import CLASSES

    config = plan.config
    added = config.get("use_forget_gate") or config.get("use_attention_sink")
    if config["model_type"] not in CLASSES or not added:
        return plan
    code = Path(__file__).with_name("modeling_fox.py")
    auto = {"AutoModelForCausalLM": f"{code.stem}.Fox{CLASSES[config['model_type']]}"}
    return replace(plan, config={**config, "auto_map": auto},
                   files={**plan.files, code.name: code.read_bytes()})


def _plan_of_source(args: argparse.Namespace) -> Plan:
    from models.convert.canonical_config import parse_config
    from models.convert.source_directory import open_source
    from models.convert.tensor_plan import Plan, plan_as_it_is, plan_tensors
    from models.convert.transformers_config import CLASSES, without_unknown

    if args.source.is_file():
        from models.convert.gguf_source import open_gguf

        return open_gguf(args.source, args.dtype, args.keep_blocks)
    source = open_source(args.source, args.step)
    ignored = frozenset(args.ignore_key)
    if source.config.get("model_type") in CLASSES:
        raw = without_unknown(source.config, ignored)
        if args.log_pruning_tolerance is not None:
            raw = {**raw, "log_pruning_tolerance": args.log_pruning_tolerance}
        return plan_as_it_is(raw, source.tensors, args.dtype)
    config = parse_config(source.config, args.log_pruning_tolerance, ignored)
    planned = plan_tensors(config, source.tensors, args.dtype)
    layout = "FLA" if config.fla else "official"
    return Plan(f"{layout} layout, {source.kind}", config.to_json(), planned, source.notes)


def _convert(args: argparse.Namespace) -> None:
    """Runs the checked command line: a dry run, a comparison, or a conversion."""
    from models.convert.bounded_reading import bounded
    from models.convert.output_directory import check_destination
    from models.convert.tensor_plan import checked

    if not args.dry_run:
        args.destination = args.destination.absolute()
        if args.destination.resolve() == args.source.resolve():
            raise Refusal(f"{args.destination}: SRC and DST are the same directory")
        if not args.verify_only:
            check_destination(args.destination, args.force)
    plan = checked(bounded(args.source.name, lambda: _plan(args)))
    for note in plan.notes:
        _say(f"note: {note}")
    if args.dry_run:
        _print_plan(plan)
    elif args.verify_only:
        _verify(args.destination, plan.config, plan.tensors)
    else:
        _write(args, plan)


def _interrupt(number: int, frame: Any) -> None:
    """SIGTERM and SIGHUP unwind like Ctrl-C, so that the staging directory is removed."""
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.destination is None and not args.dry_run:
        parser.error("DST is required (except with --dry-run)")
    if args.verify_only and (args.dry_run or args.verify or args.force):
        parser.error("--verify-only excludes --verify, --force and --dry-run")
    try:
        import numpy  # noqa: F401
    except ImportError:
        _say("fox_convert: numpy is missing (pip install 'foxserve[convert]', or numpy)")
        return EXIT_REFUSED
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        _convert(args)
    except Refusal as refusal:
        _say(f"fox_convert: {refusal}")
        return EXIT_REFUSED
    except OSError as error:
        _say(f"fox_convert: {error.filename or 'input/output'}: {error.strerror or error}")
        return EXIT_REFUSED
    except MemoryError:
        _say("fox_convert: not enough memory, nothing was written")
        return EXIT_REFUSED
    except KeyboardInterrupt:
        _say("fox_convert: interrupted, nothing was written")
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
