#!/usr/bin/env python3
"""How far pruned answers are from unpruned ones: audits of chats and of long prompts by a running
server (`"audit": true`). Start it with --dtype f32 to measure pruning alone: in bf16 most of
the difference is rounding.

    python3 audit_bench.py HOST:PORT --chats prompts.jsonl --text book.txt --json audit.json

`--chats`: bodies of /v1/chat/completions, as models.foxify.chats writes them, plain or .xz. Long
prompts are `--characters` of the text, cut at even distances.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import lzma
import pathlib
import urllib.request
from collections.abc import Iterable
from typing import Any

SHORT = 3000  # characters of a chat


def ask(address: str, path: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The "fox" object of an audited answer."""
    request = urllib.request.Request(
        f"http://{address}{path}", json.dumps({**body, "audit": True}).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=seconds) as response:
        fox: dict[str, Any] = json.load(response)["fox"]
    return fox


def summary(of: str, answers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One row: the largest and the mean figures of the audits that have a result."""
    audits = [answer["audit"] for answer in answers]
    done = [audit for audit in audits if "skipped" not in audit]
    if not done:
        raise SystemExit(f"audit_bench.py: no audit of the {of} has a result")
    tokens = sum(audit["tokens"] for audit in done)
    return {"bench": "audit", "of": of, "answers": len(audits), "skipped": len(audits) - len(done),
            "tokens": tokens, "max_tv": max(audit["max_tv"] for audit in done),
            "mean_tv": sum(audit["sum_tv"] for audit in done) / tokens,
            "mean_kl": sum(audit["sum_kl"] for audit in done) / tokens}


def main() -> None:
    parser = argparse.ArgumentParser(prog="audit_bench.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="HOST:PORT of the server's HTTP port")
    parser.add_argument("--chats", type=pathlib.Path, required=True)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="chats")
    parser.add_argument("--long", type=int, default=50, help="long prompts")
    parser.add_argument("--characters", type=int, default=10000, help="of a long prompt")
    parser.add_argument("--tokens", type=int, default=64, help="at most, of an answer")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for an answer")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    args = parser.parse_args()
    with lzma.open(args.chats, "rt") if args.chats.suffix == ".xz" else open(args.chats) as file:
        chats = [json.loads(line) for line in file if len(line) < SHORT][:args.count]
    text = args.text.read_text(encoding="utf-8")
    step = (len(text) - args.characters) // max(args.long, 1)
    kinds = {
        "chats": [("/v1/chat/completions", {**chat, "max_tokens": args.tokens}) for chat in chats],
        "long prompts": [("/v1/completions",
                          {"prompt": text[i * step:i * step + args.characters],
                           "max_tokens": args.tokens}) for i in range(args.long)]}
    rows = []
    with concurrent.futures.ThreadPoolExecutor(args.clients) as pool:
        for of, bodies in kinds.items():
            rows.append(summary(of, pool.map(
                lambda sent: ask(args.address, *sent, args.timeout), bodies)))
            print(json.dumps(rows[-1]), flush=True)
            args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
