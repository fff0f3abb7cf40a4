"""Chats that the teacher itself writes, to train on: prompts from texts, answers from a server.

    python -m models.foxify.chats prompts --count 640 --seed 1 --out prompts.jsonl.xz TEXT...
    python -m models.foxify.chats answers --model DIR --out chats.tokens prompts.jsonl.xz

`./run serve DIR` is the server. A prompt holds a passage of a text, and asks to continue, summarise
or answer about it; prompts and answers depend on the seeds alone, which the prompts hold.
"""

from __future__ import annotations

import argparse
import http.client
import json
import lzma
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from models.convert.chat_format import render_format
from models.finetune.text_tokens import (
    TextError, TextTokenizer, TokenFileInfo, info_path, read_pieces)
from models.foxify.recall import Asking

SHORTEST, LONGEST = 200, 6000  # approximate tokens of a passage
BYTES_A_TOKEN = 4
TASKS = (
    "Continue this text in the same style:\n\n{}",
    "{}\n\nContinue from here.",
    "Summarize the following text in a few sentences.\n\n{}",
    "{}\n\nWhat happens in this text? Answer in short sentences.",
    "Read this:\n\n{}\n\nWho are the people in it, and what do they want?",
    "Here is a passage.\n\n{}\n\nWrite three questions about the passage, and answer each.",
    "{}\n\nWhich places and things are named above? Make a list.",
    "Explain the following to a child.\n\n{}",
    "{}\n\nRewrite the last paragraph above in simpler words.",
)
REQUEST_SECONDS, TRIES = 120, 3


def make_prompts(texts: list[Path], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Makes `count` requests; a passage begins and ends with a paragraph."""
    rng = np.random.default_rng(seed)
    documents = [p.text.decode("utf-8", "ignore") for path in texts for p in read_pieces(path)]
    sizes = np.asarray([len(d) for d in documents], float)
    for number in range(count):
        document = documents[rng.choice(len(documents), p=sizes / sizes.sum())]
        length = BYTES_A_TOKEN * int(SHORTEST * (LONGEST / SHORTEST) ** rng.random())
        start = int(rng.integers(max(1, len(document) - length)))
        start = document.find("\n", start) + 1
        end = max(document.rfind("\n", start, start + length), start + length // 2)
        text = TASKS[rng.integers(len(TASKS))].format(document[start:end].strip())
        yield {"messages": [{"role": "user", "content": text}], "temperature": 0.8,
               "max_tokens": int(rng.integers(60, 300)), "seed": 1000 * seed + number}


def _ask(server: str, request: dict[str, Any]) -> dict[str, Any]:
    """The server's answer. Raises TextError after TRIES failures."""
    reason = ""
    for attempt in range(TRIES):
        connection = http.client.HTTPConnection(server, timeout=REQUEST_SECONDS)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(request),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = response.read()
            if response.status == 200:
                return json.loads(body)["choices"][0]
            reason = f"status {response.status}: {body[:200].decode('utf-8', 'replace')}"
        except (OSError, http.client.HTTPException) as error:
            reason = repr(error)
        finally:
            connection.close()
        time.sleep(2**attempt)
    raise TextError(f"{server}: {reason}")


def write_answers(prompts: Path, model: Path, server: str, parallel: int, out: Path,
                  seconds: float = float("inf")) -> int:
    """Asks `parallel` prompts at a time and writes the chats as one token file.

    Leaves out the prompts that were not asked within `seconds`.
    """
    end = time.monotonic() + seconds
    tokenizer, form = TextTokenizer(model), Asking(model).format
    if form is None:
        raise TextError(f"{model}: no chat_format.json; ./run convert writes it")
    try:
        with lzma.open(prompts, "rt") if prompts.suffix == ".xz" else open(prompts) as file:
            requests = [json.loads(line) for line in file if line.strip()]
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise TextError(f"{prompts.name}: no whole file of prompts ({error})") from None
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    ids: list[int] = []
    text_bytes = chats = 0

    def ask(request: dict[str, Any]) -> dict[str, Any] | None:
        return _ask(server, request) if time.monotonic() < end else None

    with ThreadPoolExecutor(parallel) as pool:
        for request, choice in zip(requests, pool.map(ask, requests)):
            if choice is None:
                continue
            chats += 1
            text = render_format(form, request["messages"], generate=True)
            text += choice["message"]["content"]
            text += form["roles"]["assistant"]["suffix"]  # also if the answer was cut
            ids += tokenizer.encode(text)
            text_bytes += len(text.encode())
    if not ids:
        raise TextError(f"{server}: no answer in {seconds:g} s")
    np.asarray(ids, dtype).tofile(out)
    source = [prompts.name, prompts.stat().st_size, prompts.stat().st_mtime_ns]
    info = TokenFileInfo(len(ids), chats, text_bytes, dtype.name, tokenizer.fingerprint(),
                         [source])
    info_path(out).write_text(json.dumps(asdict(info)))
    return len(ids)


def main() -> int:
    """The commands `prompts` and `answers`."""
    parser = argparse.ArgumentParser(prog="chats", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    prompts = commands.add_parser("prompts")
    prompts.add_argument("texts", type=Path, nargs="+")
    prompts.add_argument("--count", type=int, default=640)
    prompts.add_argument("--seed", type=int, default=1)
    answers = commands.add_parser("answers")
    answers.add_argument("prompts", type=Path)
    answers.add_argument("--model", type=Path, required=True)
    answers.add_argument("--server", default="127.0.0.1:8080")
    answers.add_argument("--parallel", type=int, default=64)
    answers.add_argument("--seconds", type=float, default=3600, help="of asking (default 3600)")
    for command in (prompts, answers):
        command.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        if args.command == "prompts":
            lines = "".join(json.dumps(p) + "\n"
                            for p in make_prompts(args.texts, args.count, args.seed))
            with lzma.open(args.out, "wt") if args.out.suffix == ".xz" else open(
                    args.out, "w") as file:
                file.write(lines)
        else:
            count = write_answers(args.prompts, args.model, args.server, args.parallel, args.out,
                                  args.seconds)
            print(f"{args.out}: {count} tokens", file=sys.stderr)
    except (TextError, OSError) as error:
        print(f"chats: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
