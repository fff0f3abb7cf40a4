"""Parts of gpu_bench.py --memory: how many sequences a pool of 20 GB holds at once, throughput
under arrivals, gain and cost of the prefix cache, cost of audits, time and memory of a start, a
restart (restart_part.py); and their judged rows, in the form of judge.py, which README.md shows."""

from __future__ import annotations

import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import restart_part
from judge import Measurements, Row, ratio, row, times

if TYPE_CHECKING:
    from gpu_bench import Bench

Part = dict[str, Any]
POOL = "--kv-cache-mb 19073"  # 20 GB
SLOTS = 256  # the server's default on such a card
QUESTIONS = "cache --loads questions --question 99 --at-once 1 --requests 4 --rounds 3 " + POOL
# A hundredth of the answers is audited, the last one of them while others still run.
AUDIT_SHARE, AUDITED, AUDIT_ROUNDS = 0.01, 850, 3


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


def load_with_audits(bench: Bench, share: float) -> Part:
    """AUDITED requests that arrive at once, on a server that audits `share` of its answers. The
    clock runs until the last audit has ended, too."""
    metrics = restart_part.free_port()
    with bench.server(*POOL.split(), "--max-model-len", "4096", "--max-num-queued-reqs", "4096",
                      "--max-num-queued-tokens", "16000000", "--max-queue-seconds", "0",
                      "--metrics-port", metrics, "--audit-share", str(share),
                      device=bench.arguments.device) as server:
        part = bench.fox_bench(f"serve --target {server.address} --rates 10000 "
                               f"--requests {AUDITED} --prompt-tokens 512-2048 "
                               "--output-tokens 32-128", 60)
        if "error" in part or part["rows"][0]["completed"] != AUDITED:
            raise RuntimeError(part.get("error", "requests were refused"))
        begin, counted = time.monotonic(), restart_part.Client(server, metrics)
        while (done := counted.metric("fox_audit_max_tv_count")) < int(share * AUDITED):
            if counted.metric("fox_audits_skipped_total") > 0 or time.monotonic() > begin + 30:
                raise RuntimeError(f"{done} audits have a result")
            time.sleep(0.01)
        served = part["rows"][0]
        pace = served["output_tokens_per_second"] * served["seconds"] / (
            served["seconds"] + time.monotonic() - begin)
    return {"pace": pace, "audits": done}


def audits(bench: Bench) -> Part:
    """What audits cost a load of prompts and answers of usual length, without and with in turns."""
    rows = []
    for _ in range(AUDIT_ROUNDS):
        off, on = load_with_audits(bench, 0), load_with_audits(bench, AUDIT_SHARE)
        rows.append({"bench": "audits", "share": AUDIT_SHARE, "requests": AUDITED,
                     "audits": on["audits"], "tokens_per_second": on["pace"],
                     "tokens_per_second_off": off["pace"]})
        print(rows[-1], flush=True)
    return {"rows": rows}


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
    "audits": audits,
    "start": start,
    "restart": restart_part.restart,
}

ARRIVALS = "4k to 12k at 100/s, 20 GB"


def loads(m: Measurements) -> Iterator[Row]:
    """Sequences of 16k in a pool of 20 GB, and throughput under arrivals."""
    def pair(key: str, pages: str, **keys: Any) -> list[Any]:
        """The value under certified with pages of type `pages`, and under off with bf16 pages."""
        return [m.value(key, bench="serve", acp=acp, kv_cache_dtype=kind, **keys)
                for acp, kind in (("certified", pages), ("off", "auto"))]

    for pages, what, least, aim, faster, fastest in (
            ("auto", "certified", 3.3, 3.7, 3.5, 4.6),
            ("fp8", "certified with pages in 8 bits", 7, 7.7, 4.5, 6)):
        kept, running = (pair(key, pages, load="16k at once")
                         for key in ("most_kept", "most_running"))
        yield row(f"sequences of 16k at once in 20 GB, {what} over off", ratio(*kept), "x", "least",
                  least, aim, "" if None in kept else f"{kept[0]} over {kept[1]} that kept their "
                  f"pages; running {running[0]} over {running[1]} at most")
        pace = pair("output_tokens_per_second", pages, load="arrivals")
        yield row(f"tokens/s, {ARRIVALS}, {what} over off", ratio(*pace), "x", "least", faster,
                  fastest, "" if None in pace else f"{pace[0]:.0f} over {pace[1]:.0f}")
        served = m.find(bench="serve", acp="certified", kv_cache_dtype=pages, load="arrivals")
        yield row(f"requests preempted, {ARRIVALS}, {what}",
                  ratio(served.get("preempted"), served.get("completed"), 100), "%", "most", 2)
    served = m.all(bench="serve")
    for name, unit, what in (("lost", "requests", ("lost",)), ("refused", "requests", ("refused",)),
                             ("missing or repeated", "tokens",
                              ("missing_tokens", "repeated_tokens"))):
        found = sum(measured[key] for measured in served for key in what) if served else None
        yield row(f"{unit} {name} in all these loads", found, unit, "is", 0)


def cache(m: Measurements) -> Iterator[Row]:
    """A question on a cached document, and a load that shares nothing."""
    for prefix, least in (("8k", 5), ("100k", 50)):
        off, on = (m.find(bench="cache", load="questions", prefix=prefix, cache=cached)
                   .get("first_token_seconds", {}).get("median") for cached in (False, True))
        yield row(f"first token of a question of 100 tokens behind a cached {prefix} prefix, over "
                  "computing it", ratio(off, on), "x", "least", least, None,
                  "" if off is None else f"computing it {1e3 * off:.4g} ms")
        yield row(f"first token behind a cached {prefix} prefix", times(on, 1e3), "ms", "most",
                  None, 4)
    pace = m.find(bench="cache", load="strangers", cache=True).get("tokens_per_second_over_off")
    yield row("tokens/s that the cache costs a load that shares nothing",
              pace and 100 * (1 - pace["median"]), "%", "most", 2, 0.5,
              pace and f"rounds {100 * (1 - pace['max']):.2g} to {100 * (1 - pace['min']):.2g}")


def audit_cost(m: Measurements) -> Iterator[Row]:
    lost = [100 * (1 - found["tokens_per_second"] / found["tokens_per_second_off"])
            for found in m.all(bench="audits")]
    yield row("tokens/s that audits of 1% of the answers cost",
              statistics.median(lost) if lost else None, "%", "most", 2, 1.5,
              f"rounds {min(lost):.2g} to {max(lost):.2g}" if lost else "")


def judged_rows(m: Measurements) -> list[Row]:
    return [judged for rows in (loads, cache, audit_cost, restart_part.judged_rows)
            for judged in rows(m)]
