#!/usr/bin/env python3
"""Scores prompts on a running server as lm-eval does: echo, logprobs 1 and no new tokens.

    python3 tests/bench/score_bench.py HOST:PORT --tokens 767 --prompts 800 --vocab 49152

Prompts are random token ids, so that nothing is shared between them. The clients are processes, so
that they do not wait for each other. Prints one JSON object: prompts and tokens a second, refused
requests, and the share of a processor that the clients used, which must stay well below 1 a client.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import random
import resource
import sys
import time
from typing import Any


def bodies(arguments: argparse.Namespace, client: int) -> list[bytes]:
    """The requests of one client, of --batch prompts each."""
    rng = random.Random(client)
    prompts = [[rng.randrange(arguments.vocab) for _ in range(arguments.tokens)]
               for _ in range(arguments.prompts // arguments.clients)]
    return [json.dumps({"prompt": prompts[i:i + arguments.batch], "max_tokens": 0, "echo": True,
                        "logprobs": 1}).encode()
            for i in range(0, len(prompts), arguments.batch)]


def check(answer: Any, tokens: int) -> None:
    """Raises ValueError unless every choice has the log-probabilities of all its tokens."""
    for choice in answer["choices"]:
        values = choice["logprobs"]["token_logprobs"]
        if len(values) != tokens or values[0] is not None or any(x > 0 for x in values[1:]):
            raise ValueError("a choice without the log-probabilities of its prompt")


def client(arguments: argparse.Namespace, number: int, start: Any, results: Any) -> None:
    """Sends all requests of client `number`, one after another."""
    requests, refused, received, last = bodies(arguments, number), 0, 0, b""
    connection = http.client.HTTPConnection(arguments.address, timeout=600)
    start.wait()
    for body in requests:
        while True:
            connection.request("POST", "/v1/completions", body,
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            last = response.read()
            if response.status == 200:
                break
            if response.status not in (429, 503):
                raise RuntimeError(f"{response.status}: {last[:300]!r}")
            refused += 1
            time.sleep(0.1)
        received += len(last)
    end = time.monotonic()
    check(json.loads(last), arguments.tokens)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    results.put((end, refused, received, usage.ru_utime + usage.ru_stime))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="HOST:PORT of the HTTP port")
    parser.add_argument("--tokens", type=int, default=767, help="of a prompt [%(default)s]")
    parser.add_argument("--prompts", type=int, default=800, help="in all [%(default)s]")
    parser.add_argument("--batch", type=int, default=16, help="prompts of a request [%(default)s]")
    parser.add_argument("--clients", type=int, default=8, help="at a time [%(default)s]")
    parser.add_argument("--vocab", type=int, default=256, help="ids are below this [%(default)s]")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(arguments.clients + 1), context.Queue()
    clients = [context.Process(target=client, args=(arguments, i, start, results))
               for i in range(arguments.clients)]
    for process in clients:
        process.start()
    start.wait()
    begin = time.monotonic()
    for process in clients:
        process.join()
    if any(process.exitcode != 0 for process in clients):
        return 1
    ends, refused, received, busy = zip(*(results.get() for _ in clients))
    seconds = max(ends) - begin
    prompts = arguments.prompts // arguments.clients * arguments.clients
    print(json.dumps({
        "tokens_of_a_prompt": arguments.tokens, "prompts": prompts, "batch": arguments.batch,
        "clients": arguments.clients, "seconds": seconds, "prompts_per_second": prompts / seconds,
        "tokens_per_second": prompts * arguments.tokens / seconds, "refused": sum(refused),
        "bytes_received": sum(received), "client_busy": max(busy) / seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
