"""The judged rows: what the CUDA backend must reach and aims at, from one run's measurements.

A row is {row, value, unit, must, aim, peer, ok}: `must` and `aim` are limits in `unit`, with `at`
saying on which side; ok is None when a measurement is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]
MILLION = 1 << 20  # tokens of the longest prompt
D64, D128 = dict(heads=24, head_dim=64), dict(heads=16, head_dim=128)
# Peers of attention_libraries.py: peer, acp, and what it is.
LIBRARIES = (("cudnn-native", "no gate", "the Hopper kernel of cuDNN's frontend without gate"),
             ("cudnn-bias", "off", "cuDNN with the gate as a bias"),
             ("fla-triton", "off", "FLA"), ("fla-tilelang", "off", "FLA with TileLang"),
             ("flex-flash", "off", "FlexAttention by FlashAttention-4"),
             ("flex-flash", "paper", "FlexAttention by FlashAttention-4 with ACP"),
             ("flag", "off", "FlagAttention"), ("flag", "paper", "FlagAttention with ACP"))


class Measurements:
    """Rows of all parts, found by their keys."""

    def __init__(self, parts: dict[str, Any], tests: dict[str, str]) -> None:
        self._rows = [row for part in parts.values() for row in part.get("rows", [])]
        self.tests = tests

    def all(self, **keys: Any) -> list[Row]:
        """The rows that have all these values."""
        return [row for row in self._rows
                if all(row.get(key) == value for key, value in keys.items())]

    def find(self, **keys: Any) -> Row | None:
        """The last row that has all these values."""
        return next(reversed(self.all(**keys)), None)

    def seconds(self, **keys: Any) -> float | None:
        """Median seconds of a row, ours or a peer's."""
        seconds = (self.find(**keys) or {}).get("seconds")
        return seconds["median"] if isinstance(seconds, dict) else seconds

    def value(self, key: str, **keys: Any) -> float | None:
        """One number of a row."""
        return (self.find(**keys) or {}).get(key)


def ratio(a: float | None, b: float | None, scale: float = 1) -> float | None:
    """scale * a / b where both were measured."""
    return scale * a / b if a is not None and b else None


def times(a: float | None, scale: float) -> float | None:
    """scale * a where it was measured."""
    return None if a is None else scale * a


def row(name: str, value: Any, unit: str, at: str, must: Any, aim: Any = None,
        peer: str = "") -> Row:
    """at: 'most' or 'least', the side of the limits; 'is' for an exact value."""
    ok = None
    if value is not None and must is not None:
        ok = {"most": lambda: value <= must, "least": lambda: value >= must,
              "is": lambda: value == must}[at]()
    return dict(row=name, value=value, unit=unit, at=at, must=must, aim=aim, peer=peer, ok=ok)


def tested(m: Measurements) -> Iterator[Row]:
    """What the GPU tests print."""
    def number(name: str) -> float | None:
        return float(m.tests[name]) if name in m.tests else None

    yield row("golden logits against float64, worst", number("golden_error"), "of RMS", "most",
              2e-2)
    yield row("tokens equal with and without graphs", number("graphs_equal"), "bool", "is", 1)
    yield row("tokens lost or repeated, any pool and batch", number("tokens_lost"), "tokens", "is",
              0)
    yield row("answers that differ in a bit between schedules, small models",
              number("requests_differ"), "requests", "is", 0)


def invariance(m: Measurements) -> Iterator[Row]:
    """What runs beside a request changes none of its bits: all ways of fox-bench invariance."""
    ways = m.all(bench="invariance", requests=64)
    yield row("64 requests of 8 to 6,000 tokens, greedy and sampled, alone, together, again, from "
              "the prefix cache, in a small pool: answers that differ in a bit",
              sum(way["bits_differ"] for way in ways) if len(ways) == 8 else None, "requests",
              "is", 0, None, f"{len(ways)} ways")


def ms(seconds: float | None) -> str:
    """A peer's time as text."""
    return "not measured" if seconds is None else f"{1e3 * seconds:.3f} ms"


def prefill_attention(m: Measurements) -> Iterator[Row]:
    """The kernel against the official one, cuDNN and FlexAttention."""
    for shape, name, least, flop_aim, most_ms in ((D64, "d64", 1.7, 450, 2.2),
                                                  (D128, "d128", 1.35, 600, 2.4)):
        case = dict(kind="prefill", tokens=16384, **shape)
        ours = dict(bench="attention", **case)
        peer = dict(bench="peer_attention", **case)
        off = m.seconds(acp="off", **ours)
        official = m.seconds(peer="official", acp="off", **peer)
        cudnn = m.seconds(peer="cudnn", **peer)
        flex = m.seconds(peer="flex", acp="paper", **peer)
        yield row(f"attention {name} 16k, off, over the official kernel", ratio(official, off),
                  "x", "least", least, None, f"official {ms(official)}")
        yield row(f"attention {name} 16k, off, over cuDNN without gate", ratio(cudnn, off), "x",
                  "least", None, 1.0, f"cuDNN {ms(cudnn)}")
        yield row(f"attention {name} 16k, off",
                  times(m.value("flops_per_second", acp="off", **ours), 1e-12), "TFLOP/s", "least",
                  None, flop_aim)
        for acp in ("paper", "certified"):
            seconds = m.seconds(acp=acp, **ours)
            judged = acp == "paper"
            yield row(f"attention {name} 16k, {acp}, over FlexAttention with a block mask",
                      ratio(flex, seconds), "x", "least", 1.0 if judged else None, None,
                      f"FlexAttention {ms(flex)}")
            limit = 2.15 if (name, acp) == ("d64", "certified") else None
            yield row(f"attention {name} 16k, {acp}", times(seconds, 1e3), "ms", "most", limit,
                      most_ms)
        yield row(f"boundary search {name} 16k, paper",
                  times(m.value("search_share", acp="paper", **ours), 100), "% of the kernel",
                  "most", 2, 1)
    long_case = dict(bench="attention", kind="prefill", tokens=65536, **D64)
    yield row("attention d64 64k, certified over paper",
              ratio(m.seconds(acp="certified", **long_case), m.seconds(acp="paper", **long_case)),
              "x", "most", 1)
    chunk = m.seconds(bench="attention", kind="chunk", context=65536, rows=512, acp="certified",
                      **D64)
    yield row("attention d64, a chunk of 512 behind 64k, certified", times(chunk, 1e3), "ms",
              "most", 0.15, 0.08)


def libraries(m: Measurements) -> Iterator[Row]:
    """The kernel against libraries that were tried; one that could not be had says why."""
    for shape, name in ((D64, "d64"), (D128, "d128")):
        case = dict(kind="prefill", tokens=16384, **shape)
        for peer, acp, what in LIBRARIES:
            tried = m.find(bench="peer_attention", peer=peer, acp=acp, **case)
            if tried is None:
                continue
            ours = m.seconds(bench="attention", acp="paper" if acp == "paper" else "off", **case)
            yield row(f"attention {name} 16k over {what}", ratio(tried.get("seconds"), ours), "x",
                      "least", None, None, tried.get("error") or ms(tried["seconds"]))


def decode_attention(m: Measurements) -> Iterator[Row]:
    """One row a sequence."""
    case = dict(bench="attention", kind="decode", tokens=16384, **D64)
    peer = dict(case, bench="peer_attention", batch_size=32)
    official = m.seconds(peer="official", acp="paper", **peer)
    for batch in (1, 32):
        share = m.value("fraction_of_read_bandwidth", acp="off", batch_size=batch, **case)
        yield row(f"decode attention B={batch} 16k, long windows", times(share, 100),
                  "% of read bandwidth", "least", 85, 90)
    for acp in ("paper", "certified"):
        seconds = m.seconds(acp=acp, batch_size=32, **case)
        yield row(f"decode attention B=32 16k, {acp}", times(seconds, 1e3), "ms", "most",
                  0.35 if acp == "paper" else None, 0.25, f"official {ms(official)}")


def decode_steps(m: Measurements) -> Iterator[Row]:
    """Whole steps of the 760M."""
    def step(batch: int, context: int, acp: str) -> float | None:
        return m.seconds(bench="decode", graphs=True, batch_size=batch, context=context, acp=acp)

    def compiled(batch: int, context: int) -> str:
        return "torch.compile " + ms(m.seconds(bench="peer_decode", batch_size=batch,
                                               context=context))

    def best(batch: int, context: int) -> float | None:
        return min(filter(None, (step(batch, context, acp) for acp in ("paper", "certified"))),
                   default=None)

    for batch, context, must, aim in ((1, 4096, 0.65, 0.55), (8, 4096, 1.15, 1.0),
                                      (32, 4096, 2.4, 2.1), (64, 4096, 3.8, 3.4),
                                      (1, 16384, 0.80, 0.70), (32, 16384, 5.9, 5.5)):
        yield row(f"decode step B={batch} {context // 1024}k, paper or certified",
                  times(best(batch, context), 1e3), "ms", "most", must, aim,
                  compiled(batch, context))
    yield row("tokens/s B=32 16k, ACP over none",
              ratio(step(32, 16384, "off"), best(32, 16384)), "x", "least", 2.2, 3)
    yield row("device idle between decode steps, B=1 4k",
              times(m.value("idle", bench="idle", batch_size=1, acp="certified"), 100), "%",
              "most", 5, 1)


def decode_16k_long_context(m: Measurements) -> Iterator[Row]:
    """A sequence pays for its own length, not for what the server allows."""
    def step(limit: int, acp: str) -> float | None:
        return m.seconds(bench="decode_under_limit", graphs=True, batch_size=1, context=16384,
                         acp=acp, max_model_len=limit)

    ratios = [ratio(step(1048576, acp), step(20480, acp)) for acp in ("off", "certified")]
    yield row("decode_16k_long_context: step B=1 16k, 1048576 tokens allowed over 20480",
              max(filter(None, ratios), default=None), "x", "most", 1.05, None,
              f"20480: {ms(step(20480, 'certified'))}")


def memory_and_prefill(m: Measurements) -> Iterator[Row]:
    """KV bytes and prompts of the 760M; the demo model's pages."""
    for acp, most in (("paper", 0.75), ("certified", 0.72)):
        yield row(f"KV memory at 16k, {acp}",
                  times(m.value("live_bytes", bench="prefill", length=16384, acp=acp), 1e-9), "GB",
                  "most", most, None, "unpruned 2.4 GB")
    for key, most, name in (("kept_pages", 0.92, "in all"),
                            ("kept_pages_forgetting", 0.70, "over forgetting heads")):
        yield row(f"demo model, certified over paper, {name}",
                  m.value(key, bench="books"), "of its pages", "most", most)
    for length, name, most, aim in ((16384, "16k", 50, 46), (65536, "64k", 325, 295)):
        times_ms = [times(m.seconds(bench="prefill", length=length, acp=acp), 1e3)
                    for acp in ("paper", "certified")]
        official = m.seconds(bench="peer_prefill", acp="paper", length=length)
        yield row(f"prefill {name} B=1, paper or certified",
                  min(filter(None, times_ms), default=None), "ms", "most", most, aim,
                  f"official {ms(official)}")


def seconds_of_a_token(served: Row) -> float:
    """Between the first token of a lone answer and its last."""
    answer = served["end_to_end"]["p50"] - served["time_to_first_token"]["p50"]
    return answer / (served["output_tokens"] - 1)


def million_tokens(m: Measurements) -> Iterator[Row]:
    """One prompt as long as may be, and the tokens behind it."""
    served = m.find(bench="serve", prompt_tokens=MILLION, completed=1)
    first = served and served["time_to_first_token"]["p50"]
    kept = "" if served is None else f"{served['most_kept_bytes'] / 1e9:.3g} GB of KV at most"
    yield row(f"one prompt of {MILLION} tokens, to its first token", first, "s", "most", 13, 10,
              kept)
    yield row("a token behind it", served and 1e3 * seconds_of_a_token(served), "ms", "most", 2.2,
              1.8)


def serving(m: Measurements) -> Iterator[Row]:
    """Time between tokens while prompts of others arrive."""
    load = m.find(bench="serve", rate=32.0) or {}
    for name, must, aim in (("p50", 1.7, 1.5), ("p99", 8, 5)):
        yield row(f"time between tokens beside prompts, 32 requests/s, {name}",
                  times((load.get("inter_token_latency") or {}).get(name), 1e3), "ms", "most",
                  must, aim)


def judged_rows(parts: dict[str, Any], tests: dict[str, str]) -> list[Row]:
    """All rows, missing measurements included."""
    m = Measurements(parts, tests)
    return [row for rows in (tested, invariance, prefill_attention, libraries, decode_attention,
                             decode_steps, decode_16k_long_context, memory_and_prefill,
                             million_tokens, serving) for row in rows(m)]


def aim_reached(judged: Row) -> bool:
    """Whether the row is on the right side of what it aims at."""
    value, aim = judged["value"], judged["aim"]
    if value is None or aim is None:
        return False
    return value <= aim if judged["at"] == "most" else value >= aim


def as_table(rows: list[Row]) -> str:
    """For people: one line a row; "aim" is better than "ok"."""
    def number(value: Any) -> str:
        return "-" if value is None else f"{value:.4g}"

    lines = [f"{'':7} {'value':>9} {'must':>7} {'aim':>7}  row (unit; peer)"]
    for judged in rows:
        mark = {True: "ok", False: "MISSED", None: "-"}[judged["ok"]]
        if judged["value"] is None:
            mark = "absent"
        elif judged["ok"] is not False and aim_reached(judged):
            mark = "aim"
        sign = {"most": "<=", "least": ">=", "is": "="}[judged["at"]]
        peer = f"; {judged['peer']}" if judged["peer"] else ""
        must = "-" if judged["must"] is None else sign + number(judged["must"])
        lines.append(f"{mark:7} {number(judged['value']):>9} {must:>7} "
                     f"{number(judged['aim']):>7}  {judged['row']} ({judged['unit']}{peer})")
    return "\n".join(lines)
