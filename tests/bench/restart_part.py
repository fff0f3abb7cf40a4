"""The part restart of gpu_bench.py --memory: a prefix cache in files. First token of a long prompt
after kill -9 and a restart beside computing it, bytes of its file, 500 answers that start from
files, steps of other requests while files are written; and the judged rows.

Prompts are random tokens. The files lie in the folder for temporary files. They are read from the
system's page cache, as after any restart that is not the machine's.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gpu_build
from judge import Measurements, Row, ratio, row, times

if TYPE_CHECKING:
    from gpu_bench import Bench, Server

Part = dict[str, Any]
LONG, LONG_PROMPTS = 16384, 3
DOCUMENT, DOCUMENTS, QUESTION, QUESTIONS = 1024, 20, 40, 25  # QUESTIONS on each document
OTHERS, BESIDE = 4096, 8  # tokens and number of the prompts that are written beside a stream
STREAMS, STEPS, WARM_STEPS, COUNTED = 4, 12000, 300, 1500
VOCABULARY = 50277
READING = "fox_prefix_disk_read_seconds_total"
POOL = ("--kv-cache-mb", "30000", "--max-model-len", "20480", "--prefix-cache-share")
Prompt = list[int]


def tokens(random_values: random.Random, count: int) -> Prompt:
    return [random_values.randrange(3, VOCABULARY) for _ in range(count)]


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


class Client:
    """Requests to one server over HTTP; `metrics`: the port of its metrics."""

    def __init__(self, server: Server, metrics: str) -> None:
        self.server, self._metrics = server, metrics
        self._port = int(server.address.rsplit(":", 1)[1])

    def post(self, **body: Any) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status} {response.read()!r}")
        return response

    def ask(self, prompt: Prompt, answer: int = 1) -> tuple[Any, int, float]:
        """Tokens and log-probabilities of the answer, the prompt's cached tokens, seconds."""
        begin = time.perf_counter()
        body = json.loads(self.post(prompt=prompt, max_tokens=answer, temperature=0, logprobs=3,
                                    ignore_eos=True).read())
        seconds = time.perf_counter() - begin
        details = body["usage"].get("prompt_tokens_details") or {}
        return body["choices"][0]["logprobs"], details.get("cached_tokens", 0), seconds

    def metric(self, name: str) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", int(self._metrics), timeout=10)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(name + " ")).split()[1])

    def wait_until_saved(self, files: int) -> None:
        """Waits until there are `files` files, and one of each snapshot in the pool."""
        end = time.monotonic() + 60
        while not files <= self.metric("fox_prefix_disk_files") >= self.metric(
                "fox_prefix_cache_snapshots"):
            if time.monotonic() > end:
                raise RuntimeError("the snapshots are not in files after 60 s")
            time.sleep(0.1)


@contextlib.contextmanager
def client(bench: Bench, folder: pathlib.Path | None) -> Iterator[Client]:
    """A client of a new server with a prefix cache in `folder`; None: without a prefix cache."""
    port = free_port()
    cache = ["0"] if folder is None else ["0.6", "--prefix-cache-dir", str(folder)]
    with bench.server("--http-port", "0", "--metrics-port", port, *POOL, *cache,
                      device=bench.arguments.device) as server:
        yield Client(server, port)


def answers(asked: Client, prompts: Sequence[Prompt]) -> list[tuple[Any, int, float]]:
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda prompt: asked.ask(prompt, 8), prompts))


def first_tokens(asked: Client, known: Sequence[Prompt], new: Sequence[Prompt]) -> Iterator[Part]:
    """Prompts that are in files and prompts that are not, in turns."""
    asked.ask(new[0][1:])  # the first prompt warms up
    seconds: dict[bool, list[float]] = {True: [], False: []}
    before = asked.metric(READING)
    for pair in zip(known, new):
        for stored, prompt in zip((True, False), pair):
            _, cached, one = asked.ask(prompt)
            if (cached > 0) != stored:
                raise RuntimeError(f"a prompt had {cached} cached tokens")
            seconds[stored].append(one)
    reading = (asked.metric(READING) - before) / len(known)
    for stored, spent in seconds.items():
        print(f"first token, stored {stored}: " + " ".join(f"{1e3 * x:.1f}" for x in spent) + " ms")
        yield {"bench": "restart", "stored": stored, "tokens": LONG,
               "first_token_seconds": {"median": statistics.median(spent), "min": min(spent),
                                       "max": max(spent)},
               **({"read_seconds": reading} if stored else {})}


def files(folder: pathlib.Path) -> list[int]:
    """Bytes of each file."""
    return [entry.stat().st_size for entry in folder.glob("*.snapshot")]


def gaps(asked: Client, prompt: Prompt, folder: pathlib.Path) -> Part:
    """Seconds between tokens of a stream before, while and after SIGTERM makes the server write all
    snapshots to `folder`, which it does beside the stream. Another thread looks for the files,
    because a look may wait for the disk."""
    response = asked.post(prompt=prompt, n=STREAMS, stream=True, max_tokens=STEPS, temperature=1,
                          seed=1, logprobs=0, ignore_eos=True)
    when: list[float] = []
    marks: list[int] = []  # steps at SIGTERM and at the last file
    written = threading.Event()

    def watch() -> None:
        while len(files(folder)) < BESIDE and asked.server.process.poll() is None:
            time.sleep(0.02)
        written.set()

    for line in response:
        if not line.startswith(b"data: {") or b'"index":0' not in line:
            continue
        when.append(time.perf_counter())
        if len(when) == WARM_STEPS + COUNTED:
            asked.server.process.send_signal(signal.SIGTERM)
            marks.append(len(when))
            threading.Thread(target=watch, daemon=True).start()
        elif len(marks) == 1 and written.is_set():
            marks.append(len(when))
        elif len(marks) == 2 and len(when) > marks[1] + COUNTED:
            break
    else:
        raise RuntimeError(f"{len(files(folder))} files after {len(when)} steps")
    steps = [b - a for a, b in zip(when, when[1:])]
    parts = {"before": steps[WARM_STEPS:marks[0]], "writing": steps[marks[0]:marks[1]],
             "after": steps[marks[1]:]}
    found = {name: {"median": statistics.median(part), "max": max(part), "steps": len(part),
                    "p99": sorted(part)[int(0.99 * len(part))]} for name, part in parts.items()}
    print(json.dumps(found))
    return {"bench": "restart", "load": "writing", "bytes": sum(files(folder)),
            "seconds_of_writing": when[marks[1] - 1] - when[marks[0] - 1], **found}


def restart(bench: Bench) -> Part:
    # Only models with a tokenizer are served over HTTP; the text of the answers does not matter.
    shutil.copy(gpu_build.MODEL / "tokenizer.model", bench.model())
    values = random.Random(1)
    known, new = ([tokens(values, LONG + 1) for _ in range(LONG_PROMPTS)] for _ in range(2))
    documents = [tokens(values, DOCUMENT) for _ in range(DOCUMENTS)]
    questions = [document + tokens(values, QUESTION) for document in documents
                 for _ in range(QUESTIONS)]
    folder = bench.scratch / "prefixes"
    with client(bench, None) as asked:
        computed = answers(asked, questions)
    with client(bench, folder) as asked:
        for prompt in known:
            asked.ask(prompt)
        for document in documents:
            asked.ask(document + [1])
        asked.wait_until_saved(LONG_PROMPTS + DOCUMENTS)
        asked.server.process.kill()
    stored = max(files(folder))
    with client(bench, folder) as asked:
        rows = list(first_tokens(asked, known, new))
        found = answers(asked, questions)
        asked.server.process.kill()
    config = json.loads((pathlib.Path(bench.model()) / "config.json").read_text(encoding="utf-8"))
    unpruned = 2 * 2 * config["num_hidden_layers"] * config["hidden_size"] * LONG
    rows += [{"bench": "restart", "load": "answers", "answers": len(found),
              "equal": sum(a[0] == b[0] for a, b in zip(found, computed)),
              "cached": sum(answer[1] >= DOCUMENT for answer in found)},
             {"bench": "restart", "load": "bytes", "bytes": stored, "unpruned": unpruned}]
    print("\n".join(map(json.dumps, rows[-2:])))
    other = bench.scratch / "others"
    with client(bench, other) as asked:
        for _ in range(BESIDE):
            asked.ask(tokens(values, OTHERS + 1))
        rows.append(gaps(asked, tokens(values, DOCUMENT // 2 - 1), other))
        asked.server.process.kill()
    return {"cores": len(os.sched_getaffinity(0)), "rows": rows}


def judged_rows(m: Measurements) -> Iterator[Row]:
    first = [m.find(bench="restart", stored=found) for found in (True, False)]
    stored, computed = (one.get("first_token_seconds", {}).get("median") for one in first)
    reading = first[0].get("read_seconds")  # older measurements lack it
    yield row("first token of a stored 16k prompt after kill -9, over computing it",
              ratio(stored, computed), "x", "most", 0.5, 0.3,
              f"computing it {1e3 * computed:.4g} ms" if computed else None)
    yield row("first token of a stored 16k prompt after kill -9", times(stored, 1e3), "ms", "most",
              None, 20, f"of which reading {1e3 * reading:.4g} ms" if reading else None)
    answered = m.find(bench="restart", load="answers")
    differ = answered["answers"] - answered["equal"] if answered else None
    yield row("answers from files that differ in a bit from computed ones", differ, "answers", "is",
              0, None, f"of {answered['cached']}" if answered else None)
    size = m.find(bench="restart", load="bytes")
    yield row("bytes of a stored 16k prompt over its unpruned keys and values in bf16",
              ratio(size.get("bytes"), size.get("unpruned")), "x", "most", 0.25, 0.125)
    load = m.find(bench="restart", load="writing")
    writing, *beside = (load.get(part, {}).get("p99") for part in ("writing", "before", "after"))
    yield row("p99 between tokens while files are written, over before and after",
              ratio(writing, statistics.mean(beside)) if load else None, "x", "most", 1.05, 1.01,
              f"{load['bytes'] / 1e9:.2f} GB, longest {1e3 * load['writing']['max']:.3g} ms"
              if load else None)
