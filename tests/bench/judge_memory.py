"""The judged rows of gpu_bench.py --memory: sequences at once, throughput under arrivals, gain and
cost of the prefix cache. Rows have the form of judge.py; README.md shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from judge import Measurements, Row, ratio, row, times

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


def judged_rows(m: Measurements) -> list[Row]:
    return [judged for rows in (loads, cache) for judged in rows(m)]
