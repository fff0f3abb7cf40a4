"""Parts of gpu_bench.py --memory: how many sequences a pool of 20 GB holds at once, throughput
under arrivals, gain and cost of the prefix cache, time and memory of a start."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_bench import Bench

Part = dict[str, Any]
POOL = "--kv-cache-mb 19073"  # 20 GB
SLOTS = 256  # the server's default on such a card
QUESTIONS = "cache --loads questions --question 99 --at-once 1 --requests 4 --rounds 3 " + POOL


def together(*parts: Part) -> Part:
    rows = [row for part in parts for row in part.get("rows", [])]
    return {key: value for part in parts for key, value in part.items()} | {"rows": rows}


def compare(clients: str, seconds: float, load: str) -> Callable[[Bench], Part]:
    """Servers with off, with certified, and with certified and pages in 8 bits, under the same
    arrivals."""
    return lambda bench: together(*(bench.fox_bench(
        f"serve --compare {acp} --timeout {seconds} {clients} -- {POOL} --max-model-len 20480 "
        "--max-num-queued-reqs 4096 --max-num-queued-tokens 16000000 --max-queue-seconds 0 "
        f"--kv-cache-dtype {pages}", seconds, kv_cache_dtype=pages, load=load)
        for acp, pages in (("off,certified", "auto"), ("certified", "fp8"))))


def questions(prefix: str, document: int) -> Callable[[Bench], Part]:
    return lambda bench: bench.fox_bench(f"{QUESTIONS} --document {document}", 60, prefix=prefix)


def device_mib() -> float | None:
    try:
        ran = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,"
                              "nounits"], check=True, capture_output=True, text=True)
        return float(ran.stdout.splitlines()[0])
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
        return None


def started(bench: Bench, slots: int, graphs: bool) -> Part:
    """One start: its time, the memory of its plan, and the memory that the device reports."""
    before = device_mib()
    with bench.server(*POOL.split(), "--max-num-seqs", str(slots),
                      *([] if graphs else ["--enforce-eager"])) as server:
        used = device_mib()
    plan = re.search(r"memory plan:\n((?:  .*\n)+)", server.said)
    text = plan.group(1) if plan else ""
    mib = {key.replace(" ", "_"): float(value) for key, value in
           re.findall(r"^  (\S+(?: \S+)?) +([\d.]+) MiB", text, re.MULTILINE)}
    print(f"{slots} slots, graphs {graphs}: listens after {server.seconds:.2f} s\n{text}", end="")
    return {"bench": "start", "slots": slots, "graphs": graphs,
            "listening_seconds": server.seconds, "plan_mib": mib,
            "device_mib": None if used is None or before is None else used - before}


def start(bench: Bench) -> Part:
    """Cost of 256 running slots and of their graphs at the start; the first start warms up."""
    return {"rows": [started(bench, *case) for case in
                     ((SLOTS, True), (SLOTS, True), (SLOTS, False), (16, True))]}


# Most important first, as a run may end early.
PARTS: dict[str, Callable[[Bench], Part]] = {
    # Prompt and answer are 16k tokens together; 8 such sequences fit into the pool unpruned. An
    # answer takes as long as some 120 prompts, so the pool is full before the first answer ends.
    "at-once": compare("--rates 1000 --requests 72 --prompt-tokens 15360 --output-tokens 1024",
                       110, "16k at once"),
    "arrivals": compare("--rates 100 --requests 256 --prompt-tokens 4096-12288 "
                        "--output-tokens 512", 130, "arrivals"),
    "cache-8k": questions("8k", 8192),
    "cache-100k": questions("100k", 102400),
    "cache-strangers": lambda bench: bench.fox_bench(
        "cache --loads strangers --document 8192 --requests 64 --answer 64 --at-once 32 --rounds 5 "
        + POOL, 80),  # a quarter of a document is a prompt
    "start": start,
}
