#!/usr/bin/env python3
"""Writes the report of a model: its loss, what pruning saves on it and what that costs.

Runs `fox-eval perplexity` and `acp` on a text the model has not seen, keeps what they say in
report/report.json of the model's folder and writes it up beside the folder's README; --write does
so from that JSON alone. On two cores it takes some 15 minutes for the demo model, half of them for
the perplexity.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import textwrap
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODES = ("off", "paper", "certified")
BOUNDS = MODES[1:]
ROUNDING = {"f64": 2 ** -53, "f32": 2 ** -24, "bf16": 2 ** -9}
SWEEP = "-1,-2.5,-5,-7.5,-10,-15,-20,-40"
Json = dict[str, Any]


def measure(arguments: argparse.Namespace) -> Json:
    """Runs the two commands."""
    program = str(arguments.build / "bin/fox-eval")
    base = ["--model", str(arguments.model), "--text", str(arguments.text), "--device",
            arguments.device, "--dtype", "auto" if arguments.device == "cuda" else "f32"]
    commands = {
        "perplexity": ["--window", str(arguments.tokens), "--max-windows",
                       str(arguments.perplexity_windows)],
        "acp": ["--tokens", str(arguments.tokens), "--windows", str(arguments.windows), "--sweep",
                SWEEP]}
    report: Json = {"text": {"name": arguments.text.name,
                             "sha256": hashlib.sha256(arguments.text.read_bytes()).hexdigest()},
                    "device": arguments.device}
    for name, flags in commands.items():
        print(f"fox-eval {name} ...", flush=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            written = [] if name == "perplexity" else ["--json", file.name]
            said = subprocess.run([program, name, *base, *flags, *written], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout
            report[name] = json.loads(file.read() if written else said)
        report[name].pop("model", None)
    return report


def percent(share: float) -> str:
    """0.8765 as 87.7%."""
    return f"{100 * share:.1f}%"


def table(*rows: tuple[object, ...]) -> list[str]:
    """The first row is the head."""
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def savings(acp: Json) -> list[str]:
    """Shares of pairs and pages, windows, certificates."""
    rows = []
    for mode in MODES:
        result = acp[mode]
        window = (acp["tokens"] * 3 / 4 if mode == "off" else
                  acp["mean_window_forgetting"][mode])
        certificate = result["max_log_evicted_mass"]
        rows.append((mode, percent(result["skipped_share"]), percent(result["evicted_share"]),
                     f"{window:.0f}", "none" if certificate is None else f"{certificate:.4f}"))
    return table(("ACP", "pairs pruned in prefill", "pages evicted by the end",
                  "mean window of a head that forgets, tokens", "certificate (log mass)"), *rows)


def bimodality(acp: Json) -> str:
    """How many heads are at the ends of the histogram."""
    heads = len(acp["heads"])
    parts = []
    for mode in BOUNDS:
        shares = [head[mode]["pruned_share"] for head in acp["heads"]]
        low, high = sum(s < 0.1 for s in shares), sum(s >= 0.8 for s in shares)
        parts.append(f"under the {mode} bound {high} lose at least 80% of their pages, {low} less "
                     f"than 10%, {heads - low - high} lie between")
    return f"Of {heads} heads, " + "; ".join(parts) + "."


def sweep(acp: Json) -> list[str]:
    """Savings and loss by log eps."""
    rows = []
    for point in acp["sweep"]:
        cells: list[object] = [f"{point['log_tolerance']:g}"]
        for key, form in (("skipped_share", percent), ("nll_difference", "{:+.1e}".format),
                          ("largest_difference", "{:.1e}".format)):
            cells += [form(point[mode][key]) for mode in BOUNDS]
        rows.append(tuple(cells))
    return table(("log eps", "pairs pruned, paper", "certified", "loss - off, paper", "certified",
                  "largest change of a token's loss, paper", "certified"), *rows)


def loss_table(loss: Json) -> list[str]:
    """Mean and largest differences, rounding beside them."""
    rows = [("off", f"{loss['nll']['off']:.6f}", "", "")]
    names = {"paper": "paper", "certified": "certified",
             "rounding": "off, matrix products summed in another order"}
    for key, name in names.items():
        difference = loss["difference"][key]
        rows.append((name, f"{loss['nll'][key]:.6f}" if key in loss["nll"] else "",
                     f"{difference['mean']:+.1e}", f"{difference['largest']:.1e}"))
    return table(("ACP", "loss, nats a token", "mean difference", "largest of a token"), *rows)


def loss_verdict(loss: Json, dtype: str) -> str:
    """Whether certified pruning can be told from rounding."""
    certified, rounding = loss["difference"]["certified"], loss["difference"]["rounding"]
    unit = ROUNDING[dtype] * loss["nll"]["off"]
    text = (f"Certified pruning moves the mean loss by {certified['mean']:+.1e} nats (a number of "
            f"its size in {dtype} is rounded by up to {unit:.1e}) and a token's by at most "
            f"{certified['largest']:.1e}; another order of summation, with nothing pruned, moves "
            f"a token's by up to {rounding['largest']:.1e}")
    if abs(certified["mean"]) > unit or certified["largest"] > rounding["largest"]:
        return text + "."
    return text + ": no loss beyond float noise."


def text_of(report: Json) -> str:
    """The report, in Markdown."""
    acp, perplexity = report["acp"], report["perplexity"]
    loss, pages = acp["loss"], acp["page_tokens"]
    windows = loss["tokens"] // (loss["window"] - 1)
    sections = [
        ["# What pruning does to this model"],
        ["By `fox-eval` on text that was not trained on "
         f"(`{report['text']['name']}`, sha256 {report['text']['sha256'][:16]}). Weights and cache "
         f"in {perplexity['dtype']} on {report['device']}, log eps {acp['log_tolerance']:g}. Made "
         "by [model_report.py](../../tests/bench/model_report.py); all numbers are in "
         "[report.json](report/report.json)."],
        ["## Loss"],
        [f"{perplexity['nll']:.4f} nats a token, {perplexity['bits_per_byte']:.4f} bits per byte: "
         f"`fox-eval perplexity`, {perplexity['windows']} windows of {perplexity['window']} "
         f"tokens, each from an empty context, {perplexity['bytes_per_token']:.3f} bytes a token; "
         f"documents encoded one by one and wrapped as bos ... eos, ACP {perplexity['acp']}."],
        ["## Savings"],
        [f"One sequence of {acp['tokens']} tokens. A pair is a query row of a head and a page of "
         f"{pages} keys in its causal range; a certificate bounds the attention mass that any row "
         "loses to eviction. The mean window is over the second half of the sequence."],
        savings(acp),
        ["## Heads are local or global"],
        [bimodality(acp) + " The share is that of pages evicted over pages written, averaged over "
         "the sequence."],
        ["## Savings and loss by eps"],
        [f"The same {acp['tokens']} tokens, loss against no pruning in nats."],
        sweep(acp),
        ["## What pruning costs"],
        [f"{windows} windows of {loss['window']} tokens, each from an empty context. "
         + loss_verdict(loss, perplexity["dtype"])],
        loss_table(loss),
        ["## Again"],
        ["    python3 tests/bench/model_report.py --model models/demo --text FILE \\\n"
         f"        --device {report['device']} --tokens {loss['window']} --windows {windows}"]]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def wrapped(text: str) -> str:
    """Prose broken at 100 columns; tables, headings and code stay."""
    return "\n".join(line if line.startswith(("|", "#", " ", "!")) else
                     textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)
                     for line in text.split("\n"))


def main() -> int:
    """Measures unless told otherwise; writes JSON, plots and text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/demo")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu")
    parser.add_argument("--text", type=pathlib.Path, help="held-out text, UTF-8")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tokens", type=int, default=8192, help="of a window")
    parser.add_argument("--windows", type=int, default=8, help="whose loss is measured")
    parser.add_argument("--perplexity-windows", type=int, default=0, help="0: the whole text")
    parser.add_argument("--write", action="store_true", help="measures nothing")
    arguments = parser.parse_args()
    if not arguments.write and arguments.text is None:
        parser.error("--text is required")
    folder = arguments.model / "report"
    folder.mkdir(exist_ok=True)
    stored = folder / "report.json"
    if arguments.write:
        report = json.loads(stored.read_text(encoding="utf-8"))
    else:
        report = measure(arguments)
        stored.write_text(json.dumps(report, separators=(",", ":")) + "\n", encoding="utf-8")
    text = wrapped(text_of(report))
    (arguments.model / "REPORT.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
