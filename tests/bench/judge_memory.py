"""The judged rows of memory: sequences at once, throughput under arrivals, what the prefix cache
saves and costs, from one run's measurements (gpu_bench.py --memory). Rows are those of judge.py,
and a table of README.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from judge import Measurements, Row, ratio, row, times

ADMISSIONS = ("expected", "worst-case")
PREFIXES = (("8k", 5), ("100k", 50))
ARRIVALS = "4k to 12k at 100/s, 20 GB"


def numbers(m: Measurements, key: str, **keys: Any) -> list[Any]:
    """A key's value off and certified, where it was measured."""
    values = [m.value(key, bench="serve", acp=acp, **keys) for acp in ("off", "certified")]
    return [] if None in values else values


def over(values: list[float]) -> float | None:
    """Certified over off."""
    return ratio(values[1], values[0]) if values else None


def at_once(m: Measurements) -> Iterator[Row]:
    """Sequences of 16k in a pool of 20 GB."""
    keys = dict(load="16k at once")
    kept, running = numbers(m, "most_kept", **keys), numbers(m, "most_running", **keys)
    shown = "" if not kept else (f"{kept[1]} over {kept[0]} that kept their pages; running "
                                 f"{running[1]} over {running[0]} at most")
    yield row("sequences of 16k at once in 20 GB, certified over off", over(kept), "x", "least",
              3.3, 3.7, shown)


def arrivals(m: Measurements) -> Iterator[Row]:
    """Throughput, and preemptions."""
    for admission in ADMISSIONS:
        keys = dict(load="arrivals", kv_admission=admission)
        pace, judged = numbers(m, "output_tokens_per_second", **keys), admission == "expected"
        steps = numbers(m, "engine", **keys)
        shown = f"{pace[1]:.0f} over {pace[0]:.0f}" if pace else ""
        yield row(f"tokens/s, {ARRIVALS}, {admission} admission, certified over off", over(pace),
                  "x", "least", 3.5 if judged else None, 4.6 if judged else None, shown)
        if judged:
            off, certified = steps if steps else ({}, {})
            yield row("the engine's time in steps without prompts under that load, off over "
                      "certified", ratio(off.get("decode_seconds"),
                                         certified.get("decode_seconds")), "x", "least", None, None,
                      "" if not steps else f"{off['decode_seconds']:.3g} s over "
                      f"{certified['decode_seconds']:.3g}; with prompts "
                      f"{off['prefill_seconds']:.3g} and {certified['prefill_seconds']:.3g} s")
        preempted = m.value("preempted", bench="serve", acp="certified", **keys)
        completed = m.value("completed", bench="serve", acp="certified", **keys)
        yield row(f"requests preempted, {ARRIVALS}, {admission} admission, certified",
                  ratio(preempted, completed, 100), "%", "most", 2 if judged else None)
    served = m.all(bench="serve")
    for name, unit, what in (("lost", "requests", ("lost",)), ("refused", "requests", ("refused",)),
                             ("missing or repeated", "tokens",
                              ("missing_tokens", "repeated_tokens"))):
        found = sum(measured[key] for measured in served for key in what) if served else None
        yield row(f"{unit} {name} in all these loads", found, unit, "is", 0)


def first_tokens(m: Measurements) -> Iterator[Row]:
    """A question behind what the cache has."""
    for prefix, least in PREFIXES:
        keys = dict(bench="cache", load="questions", prefix=prefix)
        off, on = (m.value("first_token_seconds", cache=cache, **keys) for cache in (False, True))
        off_ms, on_ms = (times(value and value["median"], 1e3) for value in (off, on))
        yield row(f"first token of a question of 100 tokens behind a cached {prefix} prefix, over "
                  "computing it", ratio(off_ms, on_ms), "x", "least", least, None,
                  "" if on_ms is None else f"computing it {off_ms:.4g} ms")
        yield row(f"first token behind a cached {prefix} prefix", on_ms, "ms", "most", None, 4)
    keys = dict(bench="cache", load="questions", device="cpu")
    found = m.value("sooner", cache=True, **keys)
    yield row("first token behind a cached 6k prefix, CPU, demo model, over computing it",
              found and found["median"], "x", "least", 20)


def costs(m: Measurements) -> Iterator[Row]:
    """A load that shares nothing; further snapshots; other people's."""
    for device, name in (("cuda", "760M"), ("cpu", "CPU, demo model")):
        pace = m.value("tokens_per_second_over_off", bench="cache", load="strangers", cache=True,
                       device=device)
        yield row(f"tokens/s that the cache costs a load that shares nothing, {name}",
                  None if pace is None else 100 * (1 - pace["median"]), "%", "most", 2, 0.5,
                  "" if pace is None else f"rounds {100 * (1 - pace['max']):.2g} to "
                                          f"{100 * (1 - pace['min']):.2g}")
    further = [found["share_of_unpruned"] for found in m.all(bench="snapshots")]
    yield row("bytes of a further snapshot at 8k, demo model, worst distance",
              times(max(further, default=None), 100), "% of the prefix unpruned", "most", 5, 2)
    salts = m.all(bench="salts")
    yield row("tokens found that another salt has cached",
              max((found["found_tokens"] for found in salts), default=None), "tokens", "is", 0)
    for found in salts:
        yield row(f"two salts ({found['device']}), one {found['while']}: chance that alike times "
                  "differ so much", found["p"], "", "least", 0.01, None,
                  f"median {1e3 * found['other_seconds']['median']:.4g} ms, fresh "
                  f"{1e3 * found['fresh_seconds']['median']:.4g} ms, its own "
                  f"{1e3 * found['own_seconds']['median']:.4g} ms")


def swaps(m: Measurements) -> Iterator[Row]:
    """Preemption without computing again."""
    for acp in ("certified", "off"):
        found = m.find(bench="swap", acp=acp)
        swapped = None if found is None else (found["out_seconds"]["median"]
                                              + found["in_seconds"]["median"])
        yield row(f"a sequence of 16k to host memory and back, {acp}", times(swapped, 1e3), "ms",
                  "most", None, None, "" if found is None else
                  f"{found['bytes'] / 1e6:.0f} MB; computing it again "
                  f"{1e3 * found['prefill_seconds']['median']:.4g} ms")


def starts(m: Measurements) -> Iterator[Row]:
    """Time and memory of a start."""
    for name in ("16 seats", "256 seats"):
        found = m.find(bench="start", name=name) or {}
        without = m.value("listening_seconds", bench="start", name=f"{name}, no graphs")
        yield row(f"start of a server with {name}", found.get("listening_seconds"), "s", "most",
                  None, None, "" if without is None else f"without graphs {without:.3g} s")
        yield row(f"tables of {name}, of 131,072 tokens at most",
                  found.get("plan_mib", {}).get("KV_tables"), "MiB", "most", None)
    with_graphs = m.value("device_mib", bench="start", name="256 seats")
    without = m.value("device_mib", bench="start", name="256 seats, no graphs")
    yield row("graphs of 256 seats",
              None if with_graphs is None or without is None else with_graphs - without, "MiB",
              "most", None)


def judged_rows(parts: dict[str, Any], tests: dict[str, str]) -> list[Row]:
    """All rows, missing measurements included."""
    m = Measurements(parts, tests)
    return [judged for rows in (at_once, arrivals, first_tokens, costs, swaps, starts)
            for judged in rows(m)]


def table(report: dict[str, Any]) -> str:
    """The rows in Markdown."""
    def number(value: Any) -> str:
        return "-" if value is None else f"{value:.3g}"

    lines = ["| what | measured | must | aim | |", "|---|---|---|---|---|"]
    for judged in judged_rows(report["parts"], {}):
        sign = {"most": "<= ", "least": ">= ", "is": ""}[judged["at"]]
        limits = [sign + number(judged[key]) if judged[key] is not None else ""
                  for key in ("must", "aim")]
        value = number(judged["value"])
        if judged["value"] is not None and judged["unit"]:
            value += f" {judged['unit']}"
        lines.append(f"| {judged['row']} | {value} | {limits[0]} | {limits[1]} | "
                     f"{judged['peer']} |")
    return "\n".join(lines)
