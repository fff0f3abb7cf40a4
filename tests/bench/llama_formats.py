#!/usr/bin/env python3
"""Memory and loss of fox-server beside llama.cpp's, for each format of weights, and the time from a
GGUF file to the first token of a chat.

    VENV/bin/python tests/bench/llama_formats.py memory CHECKPOINT --json FILE
    VENV/bin/python tests/bench/llama_formats.py loss CHECKPOINT --text FILE --json FILE
    VENV/bin/python tests/bench/llama_formats.py start MODEL.gguf --json FILE

llama_bench.py says how to make VENV. CHECKPOINT: a LLaMA in bf16 with its tokenizer; the memory
does not depend on its values.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import math
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import llama_bench  # puts the packages of models/ on the path
from models.convert import safetensors_io
from models.convert.refusal import Refusal
from models.evaluate.client import (HTTP_ADDRESS, SETTINGS, START_SECONDS, Client, NotStarted,
                                    running)
from models.finetune.arguments import positive

TOKENS = 1024  # of a window
CHARACTERS = 8  # of a token at most, in the mean of any text of words
ROOM = 512  # tokens that a model has room for while its memory is read
QUESTION = "What is the capital of France?"
SECTIONS = {"memory": "memory_after_loading", "loss": "loss", "start": "start"}  # of --json
Section = dict[str, Any]


@contextlib.contextmanager
def fox(arguments: argparse.Namespace, model: pathlib.Path,
        *flags: str) -> Iterator[tuple[Client, int]]:
    """A client of a new fox-server that ends with the context, and the server's process id."""
    command = [str(arguments.fox_server.resolve()), "--model", str(model), "--device", "cpu",
               "--grpc-port", "0", "--http-port", "0", *flags]
    with running(command, HTTP_ADDRESS, START_SECONDS) as (address, _, server), \
            Client(address, parallel=1, batch=1) as client:
        yield client, server.pid


def resident_kib(process: int) -> int:
    """VmRSS of a process, in KiB."""
    status = pathlib.Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])


def llama_kib(path: pathlib.Path, threads: int) -> int:
    """KiB that a model of llama.cpp and its first token add to VmRSS of this process."""
    before = resident_kib(os.getpid())
    model = llama_bench.Llama(path, ROOM, threads)
    model.run([5, 6, 7])
    model.run([8])
    return resident_kib(os.getpid()) - before


def memory(arguments: argparse.Namespace) -> Section:
    """VmRSS after a first answer. llama.cpp's models each have a process of their own, less what
    its Python had before."""
    rows = []

    def add(name: str, kib: int) -> None:
        print(f"{name}: {kib / 1024:.0f} MiB", flush=True)
        rows.append({"impl": name, "kib": kib})

    for name in llama_bench.FORMATS:
        with fox(arguments, arguments.checkpoint, "--dtype", "bf16", "--quantization", name,
                 "--kv-cache-mb", "64", "--max-num-seqs", "1", "--max-model-len",
                 str(ROOM)) as (client, process):
            client.answer(list(client.tokens("Hello there")), 8, SETTINGS["served"])
            add(f"fox {name}", resident_kib(process))
    with tempfile.TemporaryDirectory() as folder:
        for kind in llama_bench.FORMATS.values():
            path = pathlib.Path(folder) / "model.gguf"
            llama_bench.write_gguf(arguments.checkpoint, path, kind)
            with concurrent.futures.ProcessPoolExecutor(
                    1, multiprocessing.get_context("spawn")) as pool:
                add(f"llama.cpp {kind}",
                    pool.submit(llama_kib, path, arguments.threads).result())
    config = read_json(arguments.checkpoint / "config.json")
    tensors = safetensors_io.read_safetensors(arguments.checkpoint / "model.safetensors").values()
    parameters = sum(math.prod(tensor.shape) for tensor in tensors)
    return {"model": f"a LLaMA of {config['num_hidden_layers']} layers of "
                     f"{config['hidden_size']:,}, vocabulary {config['vocab_size']:,}, "
                     f"{parameters / 1e9:.2g}B parameters",
            "unit": f"KiB of VmRSS, with room for {ROOM} tokens", "rows": rows}


def windows(client: Client, arguments: argparse.Namespace) -> list[list[int]]:
    """The first windows of the text, each of TOKENS ids."""
    count = arguments.windows * TOKENS
    try:
        with open(arguments.text, encoding="utf-8") as file:
            text = file.read(count * CHARACTERS)
    except UnicodeDecodeError:
        raise Refusal(f"{arguments.text}: not in UTF-8") from None
    ids = list(client.tokens(text))
    if len(ids) < count:
        raise Refusal(f"{arguments.text}: {len(ids):,} tokens, fewer than {count:,}")
    return [ids[at:at + TOKENS] for at in range(0, count, TOKENS)]


def loss(arguments: argparse.Namespace) -> Section:
    """Nats a token, without the first of each window, which nothing predicts."""
    rows: dict[str, float] = {}
    count = arguments.windows * (TOKENS - 1)

    def add(name: str, log_probability: float) -> None:
        rows[name] = -log_probability / count
        print(f"{name}: {rows[name]:.6f} nats", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for name, kind in llama_bench.FORMATS.items():
            with fox(arguments, arguments.checkpoint, "--dtype", "bf16", "--quantization", name,
                     "--kv-cache-mb", "256", "--acp", "off") as (client, _):
                parts = windows(client, arguments)
                scored = client.score([(part, TOKENS - 1) for part in parts], SETTINGS["served"],
                                      f"fox {name}")
                add(f"fox {name}", sum(one.log_probability for one in scored))
                path = pathlib.Path(folder) / "model.gguf"
                llama_bench.write_gguf(arguments.checkpoint, path, kind)
                model = llama_bench.Llama(path, TOKENS, arguments.threads)
                add(f"llama.cpp {kind}",
                    sum(client.each(model.log_probability, parts, f"llama.cpp {kind}")))
            path.unlink()  # llama.cpp has it mapped until the end
    return {"text": f"the first {arguments.windows} windows of {TOKENS:,} tokens of "
                    f"{arguments.text.name}, without bos", "tokens": count, "unit": "nats",
            "rows": [{"impl": name, "loss": round(rows[name], 6)}
                     for name in sorted(rows, key=lambda name: name.split()[0])]}


def first_token(arguments: argparse.Namespace, cache: str) -> float:
    """Seconds of `./run serve` from a file to the first token of a chat. `cache`: the folder of
    converted files."""
    begin = time.perf_counter()
    made = subprocess.run(
        [sys.executable, "-B", "-m", "models.convert.gguf_cache", arguments.gguf.resolve()],
        cwd=llama_bench.ROOT, env={**os.environ, "XDG_CACHE_HOME": cache},
        stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:  # stderr has the reason
        raise Refusal(f"{arguments.gguf}: not converted")
    with fox(arguments, pathlib.Path(made.stdout.strip()), "--kv-cache-mb", "64") as (client, _):
        client.answer(client.turn(QUESTION), 1, SETTINGS["served"])
        return time.perf_counter() - begin


def start(arguments: argparse.Namespace) -> Section:
    """Each round converts once, and starts again from the cache."""
    seconds: dict[str, list[float]] = {"first": [], "again": []}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for which, values in seconds.items():
                values.append(round(first_token(arguments, cache), 2))
                print(f"{which}: {values[-1]:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    return {"file": arguments.gguf.name, "unit": "s, from the command to the first token of a chat",
            **seconds}


def parsed() -> argparse.Namespace:
    """The command line. Refusal if a file of it is missing or of another kind."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for measure, of, what in (
            (memory, "checkpoint", "resident memory of a server or a model after its first answer"),
            (loss, "checkpoint", "nats a token of a text"),
            (start, "gguf", "seconds from the command to the first token of a chat")):
        command = commands.add_parser(measure.__name__, help=what, description=what)
        command.add_argument(of, type=pathlib.Path, metavar=of.upper())
        if measure is loss:
            command.add_argument("--text", type=pathlib.Path, required=True, metavar="FILE",
                                 help="in UTF-8")
            command.add_argument("--windows", type=positive, default=20, metavar="N",
                                 help=f"of {TOKENS:,} tokens, from its beginning [%(default)s]")
        if measure is start:
            command.add_argument("--rounds", type=positive, default=3, metavar="N",
                                 help="each with a conversion [%(default)s]")
        command.add_argument("--fox-server", type=pathlib.Path, help="[%(default)s]",
                             metavar="PROGRAM",
                             default=llama_bench.ROOT / "build/cpu/bin/fox-server")
        command.add_argument("--json", type=pathlib.Path, metavar="FILE",
                             help="gets the measurements; its other sections stay")
        command.set_defaults(measure=measure)
    arguments = parser.parse_args()
    arguments.threads = len(os.sched_getaffinity(0))
    for name in ("fox_server", "gguf", "text"):
        path = getattr(arguments, name, None)
        if path is not None and not path.is_file():
            raise Refusal(f"{path}: no such file")
    if arguments.json and not arguments.json.resolve().parent.is_dir():
        raise Refusal(f"{arguments.json}: no such folder")
    if arguments.command != "start":
        check(arguments.checkpoint)
    return arguments


def read_json(path: pathlib.Path) -> dict[str, Any]:
    return safetensors_io.parse_json(path.read_bytes(), str(path))


def check(checkpoint: pathlib.Path) -> None:
    """Refusal unless write_gguf can convert the checkpoint."""
    for name in ("config.json", "model.safetensors"):
        if not (checkpoint / name).is_file():
            raise Refusal(f"{checkpoint}: no {name}")
    config = read_json(checkpoint / "config.json")
    if config.get("model_type") != "llama":
        raise Refusal(f"{checkpoint}: model_type is {config.get('model_type')}, not llama")


def main() -> int:
    """Runs the command; returns the exit status."""
    try:
        arguments = parsed()
        report: Section = {}
        if arguments.json and arguments.json.exists():
            report = read_json(arguments.json)
        report[SECTIONS[arguments.command]] = arguments.measure(arguments)
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    except (Refusal, NotStarted, OSError) as error:
        print(f"llama_formats: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
