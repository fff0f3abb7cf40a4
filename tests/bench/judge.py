"""The judged rows: limits and aims of the CUDA backend, compared with one run's measurements.

A row is {row, value, unit, at, must, aim, note, ok}: `must` and `aim` are limits in `unit`, `at` is
the limits' side; ok is None if a measurement is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]
LONGEST = 1 << 20  # tokens of the longest sequence of which pruning is proved
LONGEST_PROMPT = LONGEST - 128  # and an answer
PROMPT_ROWS = 512  # beside the decode rows of a mixed step
MODES = ("off", "paper", "certified")
# Flags of fox-bench and fox-server that put weights, pages or both in 8 bits.
EIGHT_BITS = {"bf16": "", "8_bit_weights": "--quantization fp8",
              "8_bit_pages": "--kv-cache-dtype fp8",
              "8_bits": "--quantization fp8 --kv-cache-dtype fp8"}
D64, D128 = dict(heads=24, head_dim=64), dict(heads=16, head_dim=128)


class Measurements:
    """The measured rows of all parts, found by their keys."""

    def __init__(self, report: dict[str, Any]) -> None:
        self._rows = [row for part in report["parts"].values() for row in part.get("rows", [])]
        self._tests = report.get("tests", {})

    def all(self, **keys: Any) -> list[Row]:
        return [row for row in self._rows
                if all(row.get(key) == value for key, value in keys.items())]

    def find(self, **keys: Any) -> Row:
        """The last row that has all these values, or an empty row."""
        return next(reversed(self.all(**keys)), {})

    def seconds(self, **keys: Any) -> float | None:
        """Median seconds of a row, ours or a peer's."""
        seconds = self.find(**keys).get("seconds")
        return seconds["median"] if isinstance(seconds, dict) else seconds

    def value(self, key: str, scale: float = 1, **keys: Any) -> float | None:
        return times(self.find(**keys).get(key), scale)

    def tested(self, name: str) -> float | None:
        return float(self._tests[name]) if name in self._tests else None


def ratio(a: float | None, b: float | None, scale: float = 1) -> float | None:
    return scale * a / b if a is not None and b else None


def times(a: float | None, scale: float) -> float | None:
    return None if a is None else scale * a


def least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def row(name: str, value: Any, unit: str, at: str, must: Any, aim: Any = None,
        note: str | None = None) -> Row:
    """A judged row. `at`: 'most' or 'least', the side of the limits; 'is': an exact value."""
    ok = None
    if value is not None and must is not None:
        ok = {"most": lambda: value <= must, "least": lambda: value >= must,
              "is": lambda: value == must}[at]()
    return dict(row=name, value=value, unit=unit, at=at, must=must, aim=aim, note=note or "",
                ok=ok)


def equalities(m: Measurements) -> Iterator[Row]:
    """Values that the GPU tests print, and differences that fox-bench invariance found."""
    yield row("golden logits against float64, worst", m.tested("golden_error"), "of RMS", "most",
              2e-2)
    yield row("tokens equal with and without graphs", m.tested("graphs_equal"), "bool", "is", 1)
    yield row("tokens lost or repeated, any pool and batch", m.tested("tokens_lost"), "tokens",
              "is", 0)
    yield row("answers that differ in a bit between schedules, small models",
              m.tested("requests_differ"), "requests", "is", 0)
    ways = m.all(bench="invariance", requests=64)
    yield row("64 requests of 8 to 6,000 tokens, greedy and sampled, alone, together, again, from "
              "the prefix cache, in a small pool: answers that differ in a bit",
              sum(way["bits_differ"] for way in ways) if len(ways) >= 7 else None, "requests",
              "is", 0)


def attention(m: Measurements) -> Iterator[Row]:
    """Attention alone: whole prompts beside the peers, chunks, and decode steps."""
    for name, shape, faster, teraflops, most in (("d64", D64, 1.7, 450, 2.2),
                                                 ("d128", D128, 1.35, 600, 2.4)):
        case = dict(kind="prefill", tokens=16384, **shape)
        ours = dict(bench="attention", **case)
        peer = dict(bench="peer_attention", **case)
        off = m.seconds(acp="off", **ours)
        yield row(f"attention {name} 16k, off, over the official kernel",
                  ratio(m.seconds(peer="official", acp="off", **peer), off), "x", "least", faster)
        yield row(f"attention {name} 16k, off, over cuDNN without gate",
                  ratio(m.seconds(peer="cudnn", **peer), off), "x", "least", None, 1.0)
        yield row(f"attention {name} 16k, off",
                  m.value("flops_per_second", 1e-12, acp="off", **ours), "TFLOP/s", "least", None,
                  teraflops)
        yield row(f"attention {name} 16k, paper, over FlexAttention with a block mask",
                  ratio(m.seconds(peer="flex", acp="paper", **peer),
                        m.seconds(acp="paper", **ours)), "x", "least", 1.0)
        for acp, limit in (("paper", None), ("certified", 2.15 if name == "d64" else None)):
            yield row(f"attention {name} 16k, {acp}", times(m.seconds(acp=acp, **ours), 1e3), "ms",
                      "most", limit, most)
    long_case = dict(bench="attention", kind="prefill", tokens=65536, **D64)
    yield row("attention d64 64k, certified over paper",
              ratio(m.seconds(acp="certified", **long_case), m.seconds(acp="paper", **long_case)),
              "x", "most", 1)
    yield row("attention d64, a chunk of 512 behind 64k, certified",
              times(m.seconds(bench="attention", kind="chunk", context=65536, rows=512,
                              acp="certified", **D64), 1e3), "ms", "most", 0.15, 0.08)
    case = dict(bench="attention", kind="decode", tokens=16384, **D64)
    for batch in (1, 32):
        yield row(f"decode attention B={batch} 16k, long windows",
                  m.value("fraction_of_read_bandwidth", 100, acp="off", batch_size=batch, **case),
                  "% of read bandwidth", "least", 85, 90)
    for acp, limit in (("paper", 0.35), ("certified", None)):
        yield row(f"decode attention B=32 16k, {acp}",
                  times(m.seconds(acp=acp, batch_size=32, **case), 1e3), "ms", "most", limit, 0.25)


def model(m: Measurements) -> Iterator[Row]:
    """Steps, KV bytes and prompts of the 760M; the demo model's pages."""
    def step(batch: int, context: int, acp: str, **keys: Any) -> float | None:
        return m.seconds(**{"bench": "decode", "graphs": True, "batch_size": batch,
                            "context": context, "acp": acp, **keys})

    def best(batch: int, context: int) -> float | None:
        return least(*(step(batch, context, acp) for acp in MODES[1:]))

    for batch, context, must, aim in ((1, 4096, 0.65, 0.55), (8, 4096, 1.15, 1.0),
                                      (32, 4096, 2.4, 2.1), (64, 4096, 3.8, 3.4),
                                      (1, 16384, 0.80, 0.70), (32, 16384, 5.9, 5.5)):
        yield row(f"decode step B={batch} {context // 1024}k, paper or certified",
                  times(best(batch, context), 1e3), "ms", "most", must, aim)
    yield row("tokens/s B=32 16k, ACP over none",
              ratio(step(32, 16384, "off"), best(32, 16384)), "x", "least", 2.2, 3)
    # The cost of a step depends on the sequence's length, not on --max-model-len.
    under = [[step(1, 16384, acp, bench="decode_under_limit", max_model_len=limit)
              for limit in (LONGEST, 20480)] for acp in ("off", "certified")]
    yield row(f"decode_16k_long_context: step B=1 16k, {LONGEST} tokens allowed over 20480",
              max(filter(None, (ratio(*pair) for pair in under)), default=None), "x", "most", 1.05)
    for acp, most in (("paper", 0.75), ("certified", 0.72)):
        yield row(f"KV memory at 16k, {acp}",
                  m.value("live_bytes", 1e-9, bench="prefill", length=16384, acp=acp), "GB",
                  "most", most)
    for key, most, name in (("kept_pages", 0.92, "in all"),
                            ("kept_pages_forgetting", 0.70, "over forgetting heads")):
        yield row(f"demo model, certified over paper, {name}", m.value(key, bench="books"),
                  "of its pages", "most", most)
    for length, most, aim in ((16384, 50, 46), (65536, 325, 295)):
        yield row(f"prefill {length // 1024}k B=1, paper or certified",
                  times(least(*(m.seconds(bench="prefill", length=length, acp=acp)
                                for acp in MODES[1:])), 1e3), "ms", "most", most, aim)


def eight_bits(m: Measurements) -> Iterator[Row]:
    """Steps of the 760M with weights and pages in 8 bits, beside bf16 in the same run."""
    for what, batch, context, must, aim in (
            ("8_bits", 1, 4096, 0.60, 0.45), ("8_bits", 8, 4096, 0.90, 0.80),
            ("8_bits", 32, 4096, 1.65, 1.5), ("8_bit_pages", 32, 16384, 3.9, 3.5)):
        value, bf16 = (m.seconds(bench=f"decode_{name}", batch_size=batch, context=context)
                       for name in (what, "bf16"))
        yield row(f"decode step B={batch} {context // 1024}k, {what.replace('_', ' ')}",
                  times(value, 1e3), "ms", "most", must, aim,
                  bf16 and f"bf16 {1e3 * bf16:.4g} ms")


def large(m: Measurements) -> Iterator[Row]:
    """Steps and prompts of a 7B model; the limits are their first measurements."""
    for bench, key, cases in (
            ("decode_7b", "batch_size", ((1, 4.0, 3.7), (8, 6.2, 5.6), (32, 10.2, 9.3))),
            ("decode_7b_8_bits", "batch_size", ((1, 2.4, 2.1), (8, 3.6, None), (32, 6.6, None))),
            ("prefill_7b", "length", ((4096, 86, None), (16384, 373, None)))):
        for size, must, aim in cases:
            value = m.seconds(bench=bench, acp="certified", **{key: size})
            if value is None and bench.endswith("8_bits"):
                continue
            what = f"decode step B={size} 4k" if key == "batch_size" else f"prefill {size // 1024}k"
            what += ", 8 bits" * bench.endswith("8_bits")
            yield row(f"7B shape, {what}", times(value, 1e3), "ms", "most", must, aim)
    value, bf16 = (m.seconds(bench=f"mixed_7b_{what}", prompt_rows=PROMPT_ROWS)
                   for what in ("8_bits", "bf16"))
    yield row(f"7B shape, step of {PROMPT_ROWS} prompt tokens and 32 decodes, 8 bits over bf16",
              ratio(value, bf16), "x", "most", 1.0, 0.85, bf16 and f"bf16 {1e3 * bf16:.4g} ms")


def seconds_of_a_token(served: Row) -> float | None:
    if not served:
        return None
    answer = served["end_to_end"]["p50"] - served["time_to_first_token"]["p50"]
    return answer / (served["output_tokens"] - 1)


def serving(m: Measurements) -> Iterator[Row]:
    """The longest prompt and its answer; time between tokens while other prompts arrive."""
    served, in_8_bits = (m.find(bench=bench, prompt_tokens=LONGEST_PROMPT, completed=1)
                         for bench in ("serve", "serve_8_bit_pages"))
    first, first_8_bits = (one.get("time_to_first_token", {}).get("p50")
                           for one in (served, in_8_bits))
    prompt = f"one prompt of {LONGEST_PROMPT} tokens, to its first token"
    yield row(prompt, first, "s", "most", 13, 10)
    yield row("a token behind it", times(seconds_of_a_token(served), 1e3), "ms", "most", 2.2, 1.8)
    yield row(f"{prompt}, pages in 8 bits over bf16", ratio(first_8_bits, first), "x", "most", 1.1,
              1.05, first_8_bits and f"{first_8_bits:.4g} s")
    load = m.find(bench="serve", rate=32.0)
    for name, must, aim in (("p50", 1.7, 1.5), ("p99", 8, 5)):
        yield row(f"time between tokens beside prompts, 32 requests/s, {name}",
                  times((load.get("inter_token_latency") or {}).get(name), 1e3), "ms", "most",
                  must, aim)


def pace(m: Measurements) -> Iterator[Row]:
    """Speed of one stream of the demo model."""
    for name, over, under, must in (
            ("drafts, text that repeats itself, greedy: times as fast",
             dict(what="code", temperature=0, drafts=False),
             dict(what="code", temperature=0, drafts=True), 1.5),
            ("drafts, prose, temperature 0.7: times as fast",
             dict(what="prose", temperature=0.7, drafts=False),
             dict(what="prose", temperature=0.7, drafts=True), 0.98),
            ("a JSON schema: times as fast as free text", dict(what="free", drafts=False),
             dict(what="json_schema", drafts=False), 0.99)):
        value = ratio(m.seconds(bench="pace", **over), m.seconds(bench="pace", **under))
        if value is not None:
            yield row(name, value, "x", "least", must)


def judged_rows(m: Measurements) -> list[Row]:
    return [judged for rows in (equalities, attention, model, eight_bits, large, serving, pace)
            for judged in rows(m)]


def as_table(rows: list[Row]) -> str:
    """The rows as text, one line each. "ok": must is met; "aim": the aim is met, too."""
    def number(value: Any, sign: str = "") -> str:
        return "-" if value is None else f"{sign}{value:.4g}"

    lines = [f"{'':7} {'value':>9} {'must':>7} {'aim':>7}  row (unit)"]
    for judged in rows:
        value, aim = judged["value"], judged["aim"]
        mark = {True: "ok", False: "MISSED", None: "-"}[judged["ok"]]
        if value is None:
            mark = "absent"
        elif judged["ok"] is not False and aim is not None and (
                value <= aim if judged["at"] == "most" else value >= aim):
            mark = "aim"
        sign = {"most": "<=", "least": ">=", "is": "="}[judged["at"]]
        lines.append(f"{mark:7} {number(value):>9} {number(judged['must'], sign):>7} "
                     f"{number(aim):>7}  {judged['row']} ({judged['unit']})")
    return "\n".join(lines)
