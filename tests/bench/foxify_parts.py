"""Parts of gpu_bench.py --foxify: a model (--base) beside its foxified version (--fox) on held-out
text and chats; and their judged rows, in the form of judge.py."""

from __future__ import annotations

import json
import lzma
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

import gpu_build
from judge import Measurements, Row, ratio, row, times
from memory_parts import POOL, together

if TYPE_CHECKING:
    from gpu_bench import Bench

Part = dict[str, Any]
CONTEXT, ANSWER = 8192, 1024  # tokens
IMPORT_LOSS = 3.3985  # nats, computed with numpy
AUDITED, LONGEST = 200, 3000  # chats; characters of a prompt, as an audit is quadratic
ANSWER_SECONDS = 1200


def trained(bench: Bench) -> Part:
    """Appends the --reports of ./run foxify to the rows that the file has."""
    rows = bench.report["parts"].get("trained", {}).get("rows", [])
    for path in bench.arguments.reports:
        report = json.loads(path.read_text(encoding="utf-8"))
        rows.append({"bench": "trained", **report.pop("settings"), **report.pop("student"),
                     **report})
    return {"rows": rows}


def imported(bench: Bench) -> Part:
    """The unchanged model's loss, as the server computes it."""
    out = bench.scratch / "loss.json"
    with open(out, "wb") as file:
        bench.run([str(bench.build / "bin/fox-eval"), "perplexity", "--device",
                   bench.arguments.device, "--model", bench.arguments.base, "--text",
                   str(gpu_build.MODEL / "prompt_long.txt"), "--window", "2048", "--max-windows",
                   "1"], 120, stdout=file)
    return {"rows": [{"bench": "import", "device": bench.arguments.device,
                      "loss": json.loads(out.read_text(encoding="utf-8"))["nll"]}]}


def both(command: str, flags: Callable[[str, int], str], seconds: float,
         **marks: Any) -> Callable[[Bench], Part]:
    """Measures the base model unpruned and the foxified one. `flags`: makes flags from the bound
    and the number of sequences."""
    def measure(bench: Bench) -> Part:
        a = bench.arguments
        return together(*(
            bench.fox_bench(f"{command} --device {a.device} --model {model} --text {a.text} "
                            + flags(acp, many), seconds, **marks)
            for model, acp, many in ((a.base, "off", 192), (a.fox, "certified", 1536))))
    return measure


def audit(bench: Bench) -> Part:
    """Chats with a server on the CPU; its MassAudit ends the process if a row loses too much."""
    cache = (bench.build / "CMakeCache.txt").read_text(encoding="utf-8")
    if "FOX_AUDIT:BOOL=ON" not in cache:
        raise RuntimeError("needs a build with -DFOX_AUDIT=ON")
    path = bench.arguments.prompts
    with lzma.open(path, "rt") if path.suffix == ".xz" else open(path) as file:
        prompts = [line for line in file if len(line) < LONGEST][:AUDITED]
    with bench.server("--acp", "certified", "--http-port", "0", "--max-model-len", "2048",
                      "--max-num-seqs", "8", model=bench.arguments.fox, device="cpu") as server:
        def ask(prompt: str) -> Part:
            request = urllib.request.Request(
                f"http://{server.address}/v1/chat/completions", prompt.encode(),
                {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
                    return json.load(response)["fox"]
            except (OSError, HTTPException, ValueError):  # the server ended
                return {}

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, prompts))
    held = [a for a in answers if a and (a["max_log_evicted_mass"] is None
                                         or a["max_log_evicted_mass"] <= a["log_tolerance"])]
    kept, unpruned = (sum(a[key] for a in held) for key in ("kv_bytes", "kv_bytes_unpruned"))
    return {"rows": [{"bench": "audit", "chats": len(prompts), "breaches":
                      len(prompts) - len(held), "kept": kept / max(1, unpruned)}]}


PARTS: dict[str, Callable[[Bench], Part]] = {
    "trained": trained,
    "import": imported,
    "served": both("decode", lambda acp, _: f"--contexts {CONTEXT} --batch-sizes 32 --modes {acp}",
                   120),
    # Prompt and answer are a sequence of 8k.
    "at-once": both("serve", lambda acp, many: (
        f"--compare {acp} --rates 10000 --requests {many} --prompt-tokens {CONTEXT - ANSWER} "
        f"--output-tokens {ANSWER} --timeout 240 -- {POOL} --max-model-len {CONTEXT + 64} "
        f"--max-num-seqs {many} --max-num-batched-tokens 16384 --prefill-tokens-per-decode 0 "
        "--max-num-queued-reqs 4096 --max-num-queued-tokens 16000000 --max-queue-seconds 0"),
        240, load="8k at once"),
    "audit": audit,
}


def over(run: Row, other: Row, key: str, scale: float = 1) -> float | None:
    """The difference, rounded so that a limit that is met exactly counts as met."""
    return round(scale * (run[key] - other[key]), 6) if run and other else None


def quality(m: Measurements) -> Iterator[Row]:
    loss = m.value("loss", bench="import")
    yield row("import: loss on 2,048 tokens, from numpy's",
              None if loss is None else abs(loss - IMPORT_LOSS), "nats", "most", 0.002)
    run: Row = {}
    for keep, must, aim in ((0.25, 0.015, 0.005), (0.125, 0.03, 0.015)):
        adapters = [r for r in m.all(bench="trained", keep=keep, window_baseline=None) if r["rank"]]
        run = adapters[-1] if adapters else {}
        teacher = run.get("teacher", {})
        name = f"--keep {keep:g}"
        yield row(f"{name}: pages kept at 8k", times(run.get("share"), 100), "%", "most",
                  100 * keep)
        yield row(f"{name}: loss over the teacher's", over(run, teacher, "loss"), "nats", "most",
                  must, aim)
        yield row(f"{name}: facts recalled, over the teacher's",
                  over(run, teacher, "recall_mean", 100), "points", "least", -5, 0)
        yield row(f"{name}: KL of a token of the teacher's chat answers", run.get("chat_kl"),
                  "nats", "most", 0.05, 0.02)
    window = next((w for w in m.all(bench="trained") if w["window_baseline"]), {})
    for key, what, unit, scale in (("loss", "loss", "nats", -1),
                                   ("recall_mean", "facts recalled", "points", 100)):
        yield row(f"{name}: better than a window of equal bytes, trained alike, in {what}, by",
                  over(run, window, key, scale), unit, "least", 0)


def serving(m: Measurements) -> Iterator[Row]:
    pace = [m.value("tokens_per_second", bench="decode", context=CONTEXT, batch_size=32, acp=acp)
            for acp in ("certified", "off")]
    yield row("tokens/s, 32 sequences of 8k, over the unchanged model", ratio(*pace), "x", "least",
              2.5, 4, "" if None in pace else f"{pace[0]:.0f} over {pace[1]:.0f}")
    kept = [m.value("most_kept", bench="serve", load="8k at once", acp=acp)
            for acp in ("certified", "off")]
    yield row("sequences of 8k at once in 20 GB, over the unchanged model", ratio(*kept), "x",
              "least", 6, 8, "" if None in kept else f"{kept[0]} over {kept[1]}")
    audited = m.find(bench="audit", chats=AUDITED)
    yield row(f"answers of {AUDITED} chats under MassAudit without a certificate that holds",
              audited.get("breaches"), "answers", "is", 0)


def judged_rows(m: Measurements) -> list[Row]:
    return [judged for rows in (quality, serving) for judged in rows(m)]
