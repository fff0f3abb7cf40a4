"""What gpu_bench.py --memory measures: how many sequences a pool of 20 GB holds at once and what
that is worth under arrivals, what the prefix cache saves and costs, what swapping and a start take.

Parts whose names begin with "cpu-" run on the demo model and need no GPU; they run when they are
named. --try runs everything on the CPU, small: it measures nothing.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from running_server import running_server

if TYPE_CHECKING:
    from gpu_bench import Bench

Part = dict[str, Any]
SEATS = 256  # what a server chooses by itself on such a card


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much of everything; the defaults are what is judged."""

    device: str = "cuda"
    pool_mb: int = 19073  # 20 GB
    max_model_len: int = 20480
    # Prompt and answer are a sequence of 16k; of those eight fit into the pool without eviction.
    long_prompt: int = 15872
    long_answer: int = 512
    long_requests: int = 48
    arrivals: int = 256
    rate: int = 100
    prompts: str = "4096-12288"
    answer: int = 512
    documents: tuple[int, int] = (8192, 102400)
    questions: int = 4
    document_rounds: int = 3
    strangers: tuple[int, ...] = (8192, 64, 64, 32)  # document (a quarter is a prompt), requests...
    stranger_rounds: int = 5
    start_pool_mb: int = 19073


TRY = Sizes(device="cpu", pool_mb=60, max_model_len=2048, long_prompt=900, long_answer=24,
            long_requests=8, arrivals=8, prompts="256-700", answer=16, documents=(512, 1024),
            questions=2, document_rounds=1, strangers=(512, 4, 8, 2), stranger_rounds=1,
            start_pool_mb=200)


def marked(part: Part, **keys: Any) -> Part:
    """The part with these keys in each of its rows."""
    return {**part, "rows": [{**row, **keys} for row in part.get("rows", [])]}


def compare(bench: Bench, load: list[str], server_flags: list[str], seconds: float) -> Part:
    """Off and certified, a server each, under the same arrivals."""
    sizes = bench.sizes
    return bench.fox_bench(
        "serve", "--compare", "off,certified", "--device", sizes.device, "--model", bench.model(),
        "--timeout", str(seconds), *load, "--", "--kv-cache-mb", str(sizes.pool_mb),
        "--max-model-len", str(sizes.max_model_len), "--max-num-queued-reqs", "4096",
        "--max-num-queued-tokens", "16000000", "--max-queue-seconds", "0", *server_flags,
        seconds=seconds)


def at_once(bench: Bench) -> Part:
    """Sequences of 16k that run at once: many come together, with long answers."""
    sizes = bench.sizes
    part = compare(bench, ["--rates", "1000", "--requests", str(sizes.long_requests),
                           "--prompt-tokens", str(sizes.long_prompt), "--output-tokens",
                           str(sizes.long_answer)], [], 110)
    return marked(part, load="16k at once")


def arrivals(admission: str) -> Callable[[Bench], Part]:
    """Tokens/s under arrivals."""
    def measure(bench: Bench) -> Part:
        sizes = bench.sizes
        part = compare(bench, ["--rates", str(sizes.rate), "--requests", str(sizes.arrivals),
                               "--prompt-tokens", sizes.prompts, "--output-tokens",
                               str(sizes.answer)], ["--kv-admission", admission], 130)
        return marked(part, load="arrivals", kv_admission=admission)
    return measure


def cache(bench: Bench, device: str, flags: list[str], seconds: float) -> Part:
    """Loads of fox-bench cache."""
    part = bench.fox_bench("cache", "--device", device, *flags, seconds=seconds)
    return marked(part, device=device)


def questions(index: int) -> Callable[[Bench], Part]:
    """Questions of 100 tokens behind a document, one at a time."""
    def measure(bench: Bench) -> Part:
        sizes = bench.sizes
        flags = ["--model", bench.model(), "--loads", "questions", "--document",
                 str(sizes.documents[index]), "--question", "99", "--at-once", "1", "--requests",
                 str(sizes.questions), "--rounds", str(sizes.document_rounds), "--kv-cache-mb",
                 str(sizes.pool_mb)]
        return marked(cache(bench, sizes.device, flags, 60), prefix=("8k", "100k")[index])
    return measure


def strangers(bench: Bench) -> Part:
    """Prompts that share nothing, with the cache and without it."""
    sizes = bench.sizes
    flags = ["--model", bench.model(), "--loads", "strangers", "--rounds",
             str(sizes.stranger_rounds), "--kv-cache-mb", str(sizes.pool_mb)]
    for name, value in zip(("document", "requests", "answer", "at-once"), sizes.strangers):
        flags += [f"--{name}", str(value)]
    return cache(bench, sizes.device, flags, 80)


def device_mib() -> float | None:
    """What the GPU's memory holds."""
    try:
        ran = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,"
                              "nounits"], check=True, capture_output=True, text=True)
        return float(ran.stdout.splitlines()[0])
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
        return None


def started(bench: Bench, seats: int, graphs: bool, name: str) -> Part:
    """One start: its time, and the memory that the plan says and the device shows."""
    sizes = bench.sizes
    flags = ["--model", bench.model(), "--device", sizes.device, "--kv-cache-mb",
             str(sizes.start_pool_mb), "--max-num-seqs", str(seats)]
    before = device_mib()
    with running_server(bench, *flags, *([] if graphs else ["--enforce-eager"])) as server:
        used = device_mib()
    plan = re.search(r"memory plan:\n((?:  .*\n)+)", server.said)
    text = plan.group(1) if plan else ""
    mib = {key.replace(" ", "_"): float(value) for key, value in
           re.findall(r"^  (\S+(?: \S+)?) +([\d.]+) MiB", text, re.MULTILINE)}
    print(f"{name}: listens after {server.seconds:.2f} s\n{text}", end="")
    return {"bench": "start", "name": name, "seats": seats, "graphs": graphs,
            "listening_seconds": server.seconds, "plan_mib": mib,
            "device_mib": None if used is None or before is None else used - before}


def start(bench: Bench) -> Part:
    """What 256 seats cost at the start, and their graphs."""
    rows = []
    problem = {}
    for name, seats, graphs in (("first", SEATS, True), ("256 seats", SEATS, True),
                                ("256 seats, no graphs", SEATS, False), ("16 seats", 16, True)):
        try:
            rows.append(started(bench, seats, graphs, name))
        except (RuntimeError, OSError) as error:
            problem = {"error": f"{name}: {error}"}
    return {"rows": rows, **problem}


def salts(bench: Bench) -> Part:
    """Whether the time of an answer tells what another salt has cached; of the demo model."""
    rounds = "10" if bench.arguments.small else "200"
    return marked(bench.fox_bench("salts", "--device", bench.sizes.device, "--rounds", rounds,
                                  seconds=60), device=bench.sizes.device)


def swap(bench: Bench) -> Part:
    """A sequence of 16k to host memory and back, and computed again."""
    small = bench.arguments.small
    return bench.fox_bench("swap", "--device", bench.sizes.device, "--model", bench.model(),
                           "--contexts", "512" if small else "16384", "--modes", "off,certified",
                           "--repeat", "1" if small else "5", seconds=60)


# What one thread computes says something on a machine that others use, too.
ONE_THREAD = ("--threads", "1", "--clock", "processor")


def cpu_cache(bench: Bench) -> Part:
    """The loads of fox-bench cache on the demo model."""
    small = ["--document", "512", "--requests", "2"] if bench.arguments.small else []
    shared = cache(bench, "cpu", [*ONE_THREAD, "--loads", "questions,turns", "--at-once",
                                  "1", "--requests", "4", "--rounds", "1" if small else "2",
                                  *small], 500)
    alone = cache(bench, "cpu", [*ONE_THREAD, "--loads", "strangers", "--at-once", "1",
                                 "--rounds", "1" if small else "10", *small], 500)
    return {**shared, **alone, "rows": shared["rows"] + alone["rows"]}


def cpu_snapshots(bench: Bench) -> Part:
    """Bytes of a further snapshot of a conversation of the demo model."""
    small = ["--document", "512", "--behind", "128"] if bench.arguments.small else []
    return bench.fox_bench("snapshots", *small, seconds=120)


def cpu_salts(bench: Bench) -> Part:
    """As salts, by the time that one thread computes."""
    small = ["--prompt", "256", "--rounds", "10"] if bench.arguments.small else []
    return marked(bench.fox_bench("salts", "--device", "cpu", *ONE_THREAD, *small, seconds=600),
                  device="cpu")


# In the order of their weight: a run that ends early has the first ones.
PARTS: dict[str, Callable[[Bench], Part]] = {
    "at-once": at_once,
    "arrivals": arrivals("expected"),
    "cache-8k": questions(0),
    "cache-100k": questions(1),
    "cache-strangers": strangers,
    "swap": swap,
    "salts": salts,
    "start": start,
    "arrivals-worst-case": arrivals("worst-case"),
    "cpu-cache": cpu_cache,
    "cpu-snapshots": cpu_snapshots,
    "cpu-salts": cpu_salts,
}
