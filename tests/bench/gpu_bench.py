#!/usr/bin/env python3
"""Measures the CUDA backend and its peers in one run and merges the results into one JSON.

--training measures training instead: the PyTorch op of kernels/torch, installed or built in place,
and its peers in the same processes. It needs no build of the server. --memory measures how many
sequences a pool holds at once, and the prefix cache (memory_parts.py); --foxify measures a foxified
model and its base (foxify_parts.py), --foxify-scale steps of foxify on models of 1B to 32B
(foxify_scale_parts.py); --quality scores prompts and judges by tasks (quality_parts.py).

Each part is a process of its own with a time limit. The JSON is written after every part, so a
later failure loses nothing. Parts that are not selected keep their rows in the file. On an H200 the
run ends with the table of judged rows (judge.py).
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import dataclasses
import datetime
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import foxify_parts
import foxify_scale_parts
import gpu_build
import judge
import judge_training
import memory_parts
import quality_parts

sys.path.insert(0, str(gpu_build.ROOT))
from models.evaluate.client import GRPC_ADDRESS, HTTP_ADDRESS, running  # noqa: E402

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
RESULTS = gpu_build.ROOT / "tests/bench/results"
JUDGED_CARD = "h200"  # the limits hold for this card
Part = dict[str, Any]


@dataclasses.dataclass
class Server:
    address: str
    seconds: float  # from the start until the port listened
    said: str  # the log until then
    process: subprocess.Popen[bytes]


class Bench:
    """One run: the folders of programs and the report so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.build = arguments.build.resolve()
        self.environment = gpu_build.environment(self.build)
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="gpu-bench-"))
        self.end = time.monotonic() + arguments.limit
        self.report: Part = json.loads(arguments.out.read_text(encoding="utf-8")) if (
            arguments.out.is_file()) else {"parts": {}}

    def model(self, name: str = "fox-760m", shape: str = "") -> str:
        """The folder of a synthetic model, made at the first call. `shape`: flags of make-model;
        the default is the 760M."""
        folder = self.scratch / name
        if not (folder / "config.json").is_file():
            self.run([str(self.build / "bin/fox-bench"), "make-model", "--out", str(folder),
                      *shape.split()], 120)
        return str(folder)

    def left(self, seconds: float) -> float:
        """`seconds`, or the rest of the run's time if that is less."""
        left = min(seconds, self.end - time.monotonic())
        if left < 5:
            raise TimeoutError("no time left")
        return left

    def run(self, command: list[str], seconds: float, ours: bool = True,
            stdout: Any = None) -> None:
        """Runs one program; raises RuntimeError if it fails."""
        print("$ " + " ".join(command), flush=True)
        limit = self.left(seconds)
        # A process group of its own, so that compilers that a peer starts can be ended, too.
        with subprocess.Popen(command, env=self.environment if ours else None, cwd=gpu_build.ROOT,
                              stdout=stdout,
                              start_new_session=True) as process:
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"ran past {limit:.0f} s") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if code != 0:
            raise RuntimeError(f"exit code {code}")

    def measured(self, command: list[str], out: pathlib.Path, seconds: float,
                 ours: bool = True) -> tuple[str, Part]:
        """Runs a command that writes `out`. Returns the file's text, and {"error": ...} or {}."""
        out.unlink(missing_ok=True)
        failure = {}
        try:
            self.run(command, seconds, ours)
        except RuntimeError as error:
            failure = {"error": str(error)}
        return out.read_text(encoding="utf-8") if out.is_file() else "", failure

    def fox_bench(self, flags: str, seconds: float = 120, **marks: Any) -> Part:
        """Runs fox-bench and returns its report. `flags`: the command and its flags, on the 760M
        unless they have --model; `marks` are added to each row."""
        out = self.scratch / "rows.json"
        command, *rest = flags.split()
        own = [] if {"--target", "--device"} & {*rest} else ["--device", "cuda"]
        if own and "--model" not in rest:
            own += ["--model", self.model()]
        text, failure = self.measured([str(self.build / "bin/fox-bench"), command, "--json",
                                       str(out), *own, *rest], out, seconds)
        part = json.loads(text or "{}")
        if "model" in part:  # its name without the folder
            part["model"] = pathlib.Path(part["model"]).name
        rows = [{**row, **marks} for row in part.get("rows", [])]
        return {**part, **({"rows": rows} if rows else {}), **failure}

    def peer(self, script: str, seconds: float, *flags: str) -> Part:
        """Runs a script of peers/ with this Python and returns its rows."""
        out = self.scratch / "peer.jsonl"
        command = [sys.executable, "-B", str(PEERS / script), "--json", str(out), *flags]
        for flag, value in (("--official-repo", self.arguments.official_repo),
                            ("--peer-packages", self.arguments.peer_packages)):
            if value:
                command += [flag, value]
        text, failure = self.measured(command, out, seconds, ours=False)
        return {"rows": [json.loads(line) for line in text.splitlines()], **failure}

    @contextlib.contextmanager
    def server(self, *flags: str, model: str = "", device: str = "cuda",
               wrap: Sequence[str] = ()) -> Iterator[Server]:
        """A fox-server on a free port until the context ends; `model` defaults to the 760M.
        `wrap`: a command that starts it, as taskset does."""
        listening = HTTP_ADDRESS if "--http-port" in flags else GRPC_ADDRESS
        command = [*wrap, str(self.build / "bin/fox-server"), "--grpc-port", "0", "--model",
                   model or self.model(), "--device", device, *flags]
        start = time.monotonic()
        with running(command, listening, self.left(60), env=self.environment,
                     cwd=gpu_build.ROOT) as (address, said, process):
            yield Server(address, time.monotonic() - start, said, process)

    def save(self) -> None:
        tests = gpu_build.ROOT / "build/gpu-test/judged.json"
        if tests.is_file() and self.arguments.suite == "serving":
            self.report["tests"] = json.loads(tests.read_text(encoding="utf-8"))
        self.arguments.out.parent.mkdir(parents=True, exist_ok=True)
        self.arguments.out.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")

    def print_judged(self) -> None:
        """Prints the table of judged rows, if the limits hold for the report's card."""
        suite = SUITES[self.arguments.suite]
        if suite.any_card or card(self.report.get("device", {}).get("name", "")) == JUDGED_CARD:
            rows = suite.judged_rows(judge.Measurements(self.report))
            print("\n" + judge.as_table(rows))


def ours(flags: str, seconds: float = 120) -> Callable[[Bench], Part]:
    return lambda bench: bench.fox_bench(flags, seconds)


def peer(script: str, seconds: float, *flags: str) -> Callable[[Bench], Part]:
    return lambda bench: bench.peer(script, seconds, *flags)


def decode_under_limits(bench: Bench) -> Part:
    """Decode steps at 16k with a --max-model-len of 20k and of a million tokens."""
    return memory_parts.together(*(
        bench.fox_bench("decode --contexts 16384 --batch-sizes 1 --modes off,certified "
                        f"--chunk 16384 --max-model-len {limit}", 60, bench="decode_under_limit",
                        max_model_len=limit) for limit in (20480, judge.LONGEST)))


def serve(bench: Bench) -> Part:
    """Open-loop load on a server of the 760M."""
    with bench.server("--max-num-seqs", "64", "--max-model-len", "20480") as server:
        return bench.fox_bench(f"serve --target {server.address} --rates 8,32 --requests 128 "
                               "--prompt-tokens 512-8192 --output-tokens 32-256")


def million(what: str = "bf16", **marks: Any) -> Callable[[Bench], Part]:
    """The longest prompt and its answer on a server whose `what` is in 8 bits."""
    def part(bench: Bench) -> Part:
        prompt, answer = judge.LONGEST_PROMPT, judge.LONGEST - judge.LONGEST_PROMPT
        with bench.server("--max-model-len", str(judge.LONGEST),
                          *judge.EIGHT_BITS[what].split()) as server:
            return bench.fox_bench(f"serve --target {server.address} --rates 1 --requests 1 "
                                   f"--prompt-tokens {prompt} --output-tokens {answer}", 60,
                                   prompt_tokens=prompt, output_tokens=answer, **marks)
    return part


def eight_bits(bench: Bench) -> Part:
    """Decode steps in bf16, and with weights, pages or both in 8 bits."""
    return memory_parts.together(*(
        bench.fox_bench(f"decode --modes certified --chunk 16384 {sizes} {judge.EIGHT_BITS[what]}",
                        60, bench=f"decode_{what}")
        for sizes in ("--contexts 4096 --batch-sizes 1,8,16,32,64",
                      "--contexts 16384 --batch-sizes 32") for what in judge.EIGHT_BITS))


def large(bench: Bench) -> str:
    """Flags of fox-bench for a model of 7B parameters."""
    model = bench.model("fox-7b", "--layers 32 --hidden-size 4096 --heads 32 --vocab-size 32000")
    return f"--model {model} --modes certified --chunk 16384"


def large_decode(what: str, name: str) -> Callable[[Bench], Part]:
    """Decode steps of 7B parameters, weights and pages as in judge.EIGHT_BITS; `name`: of rows."""
    return lambda bench: bench.fox_bench(
        f"decode --contexts 4096 --batch-sizes 1,8,32 {large(bench)} {judge.EIGHT_BITS[what]}", 100,
        bench=name)


def large_mixed(bench: Bench) -> Part:
    """Steps with rows of a prompt beside decodes, in bf16 and with weights and pages in 8 bits."""
    step = f"decode --contexts 4096 --batch-sizes 32 --prompt-rows {judge.PROMPT_ROWS} "
    return memory_parts.together(*(
        bench.fox_bench(f"{step} {large(bench)} {judge.EIGHT_BITS[what]}", 100,
                        bench=f"mixed_7b_{what}") for what in ("bf16", "8_bits")))


def large_prefill(bench: Bench) -> Part:
    return bench.fox_bench("prefill --lengths 4096,16384 --repeat 5 " + large(bench), 90,
                           bench="prefill_7b")


def books(bench: Bench) -> Part:
    """Pages that the certified bound keeps on real text over the paper's, on the CPU."""
    demo = gpu_build.MODEL
    out = bench.scratch / "acp.json"
    bench.run([str(bench.build / "bin/fox-eval"), "acp", "--model", str(demo), "--device", "cpu",
               "--text", str(demo / "prompt_long.txt"), "--json", str(out)], 180,
              stdout=subprocess.DEVNULL)
    report = json.loads(out.read_text(encoding="utf-8"))
    return {"rows": [{"bench": "books", "tokens": report["tokens"],
                      **report["certified_over_paper"]}]}


CODE = 3 * "".join(f"def get_{name}(self):\n    return self._{name}\n\n"
                   f"def set_{name}(self, value):\n    self._{name} = value\n\n"
                   for name in ("width", "height", "depth", "color", "title", "author"))
SCHEMA = {"type": "object", "additionalProperties": False,
          "required": ["text", "tags", "name", "age"],
          "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"},
                         "tags": {"type": "array", "items": {"type": "string"}, "minItems": 20,
                                  "maxItems": 60},
                         "text": {"type": "string", "minLength": 300, "maxLength": 2000}}}


def pace_of(server: Server, body: Part) -> Part:
    """Seconds per token of one stream between its first and last text: median and least of 5."""
    spent = []
    for _ in range(5):
        connection = http.client.HTTPConnection("127.0.0.1", int(server.address.split(":")[-1]),
                                                timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(
            {"max_tokens": 400, "seed": 1, "stream": True,
             "stream_options": {"include_usage": True}, **body}),
            {"Content-Type": "application/json"})
        texts, tokens = [], 0
        for line in connection.getresponse():
            event = json.loads(line[6:]) if line.startswith(b"data: {") else {}
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            if any(choice["text"] for choice in event.get("choices", [])):
                texts.append(time.perf_counter())
        spent.append((texts[-1] - texts[0]) / (tokens - 1))
    return {"median": statistics.median(spent), "min": min(spent)}


def pace(bench: Bench) -> Part:
    """Speed of one stream of the demo model with and without drafts, and with a grammar."""
    prose = (gpu_build.MODEL / "prompt_long.txt").read_text(encoding="utf-8")[:6000]
    rows = []
    for drafts in (False, True):
        flags = ["--speculative-config",
                 '{"method": "ngram", "num_speculative_tokens": 4}'] if drafts else []
        with bench.server("--http-port", "0", *flags, model=str(gpu_build.MODEL),
                          device=bench.arguments.device) as server:
            bodies = [("code", CODE, 0), ("code", CODE, 0.7), ("prose", prose, 0),
                      ("prose", prose, 0.7)] + [("free", "Once", 0.7),
                                                ("json_schema", "Once", 0.7)] * (not drafts)
            for what, prompt, temperature in bodies:
                body = {"prompt": prompt, "temperature": temperature, "ignore_eos": True}
                if what == "json_schema":
                    body["response_format"] = {"type": "json_schema", "json_schema": {
                        "name": "answer", "schema": SCHEMA}}
                rows.append({"bench": "pace", "what": what, "temperature": temperature,
                             "drafts": drafts, "seconds": pace_of(server, body)})
    return {"model": "demo", "rows": rows}


# Most important first, as a run may end early.
PARTS: dict[str, Callable[[Bench], Part]] = {
    "attention": ours("attention"),
    "decode": ours("decode --contexts 4096,16384 --batch-sizes 1,8,32 --chunk 16384"),
    # Batch sizes whose unpruned pages would not fit at 16k.
    "decode-many": ours("decode --contexts 4096 --batch-sizes 2,4,16,64,128 --modes certified "
                        "--chunk 16384", 60),
    "decode-8-bits": eight_bits,
    "decode-under-limits": decode_under_limits,
    "prefill": ours("prefill --lengths 4096,16384,65536 --repeat 5 --chunk 65536"),
    "attention-peers": peer("attention.py", 200),
    "official-peer": peer("official.py", 90),
    "invariance": ours("invariance", 150),
    "serve": serve,
    "pace": pace,
    "million": million(),
    "million-8-bit-pages": million("8_bit_pages", bench="serve_8_bit_pages"),
    "books": books,
    "large": large_decode("bf16", "decode_7b"),
    "large-8-bits": large_decode("8_bits", "decode_7b_8_bits"),
    "large-8-bit-weights": large_decode("8_bit_weights", "decode_7b_8_bit_weights"),
    "large-prefill": large_prefill,
    "large-mixed": large_mixed,
}

TRAINING_PARTS: dict[str, Callable[[Bench], Part]] = {
    "training-d64": peer("training_attention.py", 90),
    "training-step": peer("training_step.py", 200),
    "training-d128": peer("training_attention.py", 90, "--head-dim", "128"),
    "training-flex": peer("training_attention.py", 100, "--flex"),
}


@dataclasses.dataclass(frozen=True)
class Suite:
    """Parts that are measured and judged together."""

    parts: dict[str, Callable[[Bench], Part]]
    judged_rows: Callable[[judge.Measurements], list[judge.Row]]
    results: str  # file in tests/bench/results; {}: the card
    any_card: bool = False  # judged on any card, as the rows are ratios and losses


SUITES = {"serving": Suite(PARTS, judge.judged_rows, "{}.json"),
          "training": Suite(TRAINING_PARTS, judge_training.judged_rows, "{}_training.json"),
          "memory": Suite(memory_parts.PARTS, memory_parts.judged_rows, "memory_{}.json"),
          "foxify": Suite(foxify_parts.PARTS, foxify_parts.judged_rows, "foxify_{}.json", True),
          "foxify-scale": Suite(foxify_scale_parts.PARTS, foxify_scale_parts.judged_rows,
                                "foxify_scale_{}.json", True),
          "quality": Suite(quality_parts.PARTS, quality_parts.judged_rows, "quality_{}.json")}


def card(device_name: str) -> str:
    """The card's name in names of results: h100 for "NVIDIA H100 80GB HBM3"."""
    found = re.search(r"[A-Z]+ ?\d+", device_name)
    return found.group().replace(" ", "").lower() if found else JUDGED_CARD


def run_part(bench: Bench, name: str) -> None:
    print(f"\n==> {name}", flush=True)
    start = time.monotonic()
    try:
        part = SUITES[bench.arguments.suite].parts[name](bench)
    except (RuntimeError, TimeoutError, OSError, ValueError, KeyError) as error:
        part = {"error": str(error) or type(error).__name__}
    part.update(wall_seconds=round(time.monotonic() - start, 1),
                date=datetime.date.today().isoformat(),
                commit=gpu_build.source(bench.build)["commit"])
    for why in ("error", "skipped"):
        if why in part:
            print(f"{name}: {part[why]}", flush=True)
    if part.get("rows") or not bench.report["parts"].get(name, {}).get("rows"):
        bench.report["parts"][name] = part
    bench.save()


def parse_arguments() -> argparse.Namespace:
    """Parses the command line; `parts` is the list of selected parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, nargs="?", default=gpu_build.ROOT / "build/gpu")
    for name, what in (("training", "training"),
                       ("memory", "sequences at once and the prefix cache, 760M"),
                       ("foxify", "a foxified model beside its base"),
                       ("foxify-scale", "steps of foxify on models of 1B to 32B"),
                       ("quality", "scoring, and the tables of ./run evaluate")):
        parser.add_argument(f"--{name}", dest="suite", action="store_const", const=name,
                            default="serving", help=f"measures {what}")
    parser.add_argument("--out", type=pathlib.Path, help="in tests/bench/results, by card: "
                        + ", ".join(suite.results.format(JUDGED_CARD) for suite in SUITES.values()))
    parser.add_argument("--only", help="parts, separated by commas: " + "; ".join(
        f"{name}: " + ", ".join(suite.parts) for name, suite in SUITES.items()))
    models = parser.add_argument_group("--foxify and --quality")
    for name, what in (("base", "the unchanged model"), ("fox", "the foxified one"),
                       ("text", "held-out text, of 40,000 tokens at least")):
        models.add_argument(f"--{name}", help=what)
    models.add_argument("--prompts", type=pathlib.Path, help="held-out chats of chats.py prompts")
    models.add_argument("--students", nargs="*", default=[], metavar="DIR",
                        help="more students of --base, for the curve of what they keep")
    models.add_argument("--window-student", metavar="DIR",
                        help="--out of ./run foxify --window-baseline")
    models.add_argument("--reports", type=pathlib.Path, nargs="*", default=[],
                        help="report.json of ./run foxify")
    models.add_argument("--device", default="cuda", help="also for the part pace; default: cuda")
    parser.add_argument("--judge", action="store_true", help="only print the judged rows")
    parser.add_argument("--limit", type=float, default=530, help="seconds for all parts together")
    parser.add_argument("--official-repo", default=os.environ.get("FOX_OFFICIAL_REPO"),
                        help="a checkout of zhixuan-lin/forgetting-transformer, for peers")
    parser.add_argument("--peer-packages", default=os.environ.get("FOX_PEER_PACKAGES"),
                        help="a folder of Python packages, for peers (tests/bench/README.md)")
    arguments = parser.parse_args()
    suite = SUITES[arguments.suite]
    if arguments.out is None:
        arguments.out = RESULTS / suite.results.format(card(gpu_build.device().get("name", "")))
    wanted = suite.parts if arguments.only is None else arguments.only.split(",")
    arguments.parts = [] if arguments.judge else [name for name in wanted if name]
    unknown = [name for name in arguments.parts if name not in suite.parts]
    if unknown:
        parser.error(f"--only: no part {', '.join(unknown)}; there are: {', '.join(suite.parts)}")
    return arguments


def main() -> int:
    """Returns 0 if every selected part measured something, or was skipped with a reason."""
    arguments = parse_arguments()
    bench = Bench(arguments)
    atexit.register(shutil.rmtree, bench.scratch, ignore_errors=True)
    if arguments.parts:
        bench.report["device"] = gpu_build.device() or bench.report.get("device", {})
    for name in arguments.parts:
        run_part(bench, name)
    bench.save()
    bench.print_judged()
    parts = [bench.report["parts"][name] for name in arguments.parts]
    return 0 if all(part.get("rows") or "skipped" in part for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
