#!/usr/bin/env python3
"""All measurements of the CUDA backend and its peers in one run, merged into one JSON.

--training measures the training side instead: the PyTorch op of kernels/torch, installed or built
in place, beside its peers in the same processes. It needs no build of the server. --memory measures
how many sequences a pool holds at once, and the prefix cache (memory_parts.py).

Each part is a process of its own with a time limit; the JSON is written after every part, so what
was measured is kept whatever comes next. Parts that are not selected keep the rows they had in the
file. Ends, on an H200, with the table of judged rows (judge.py).
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import Any

import gpu_build
import judge
import judge_memory
import judge_training
import memory_parts
from running_server import running_server

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
CONTEXTS = "4096,16384"
LIBRARIES = ("cudnn-frontend", "fla", "flash-attention-4", "flag-attention")


def json_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of a file that a peer wrote, one a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Bench:
    """One run: where programs are, what was measured so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.build = arguments.build.resolve()
        self.judge = SUITES[arguments.suite].judge
        self.sizes = memory_parts.TRY if arguments.small else memory_parts.Sizes()
        self.environment = gpu_build.environment(self.build)
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="gpu-bench-"))
        self.end = time.monotonic() + arguments.limit
        out = arguments.out
        self.report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if (
            out.is_file() and not arguments.fresh) else {"parts": {}}

    def program(self, name: str) -> str:
        """Path of one of our programs."""
        return str(self.build / "bin" / name)

    def model(self) -> str:
        """The synthetic 760M, made when it is first needed; with --try the demo model."""
        if self.arguments.small:
            return str(gpu_build.MODEL)
        folder = self.scratch / "fox-760m"
        if not (folder / "config.json").is_file():
            self.run([self.program("fox-bench"), "make-model", "--out", str(folder)], 120)
            shutil.copy(gpu_build.MODEL / "tokenizer.model", folder)  # the doors want one
        return str(folder)

    def left(self, seconds: float) -> float:
        """A limit that ends with the run's."""
        left = min(seconds, self.end - time.monotonic())
        if left < 5:
            raise TimeoutError("no time left")
        return left

    def run(self, command: list[str], seconds: float, ours: bool = True,
            quiet: bool = False) -> None:
        """Runs one program; RuntimeError says how it failed."""
        print("$ " + " ".join(command), flush=True)
        environment = self.environment if ours else None
        limit = self.left(seconds)
        try:
            # Its own process group: compilers that a peer started end with it.
            with subprocess.Popen(command, env=environment, cwd=gpu_build.ROOT,
                                  stdout=subprocess.DEVNULL if quiet else None,
                                  start_new_session=True) as process:
                try:
                    code = process.wait(limit)
                except (subprocess.TimeoutExpired, KeyboardInterrupt):
                    os.killpg(process.pid, signal.SIGKILL)
                    raise
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"ran past {error.timeout:.0f} s") from None
        if code != 0:
            raise RuntimeError(f"exit code {code}")

    def fox_bench(self, *flags: str, seconds: float = 120) -> dict[str, Any]:
        """One command of fox-bench on the GPU: its facts and rows."""
        out = self.scratch / "rows.json"
        out.unlink(missing_ok=True)
        problem = None
        try:
            self.run([self.program("fox-bench"), flags[0], "--json", str(out), *flags[1:]], seconds)
        except RuntimeError as error:
            problem = str(error)
        part = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
        if "model" in part:  # where it lay does not matter
            part["model"] = pathlib.Path(part["model"]).name
        return {**part, **({"error": problem} if problem else {})}

    def peer(self, script: str, seconds: float, *flags: str) -> dict[str, Any]:
        """One peer, in the Python that runs this."""
        out = self.scratch / "peer.jsonl"
        out.unlink(missing_ok=True)
        command = [sys.executable, "-B", str(PEERS / script), "--json", str(out), *flags]
        for flag, value in (("--official-repo", self.arguments.official_repo),
                            ("--peer-packages", self.arguments.peer_packages)):
            if value:
                command += [flag, value]
        problem = None
        try:
            self.run(command, seconds, ours=False)
        except RuntimeError as error:
            problem = str(error)
        part: dict[str, Any] = {"rows": json_lines(out) if out.is_file() else []}
        return {**part, **({"error": problem} if problem else {})}

    def save(self) -> None:
        """Writes the JSON with its judged rows."""
        tests = gpu_build.ROOT / "build/gpu-test/judged.json"
        if tests.is_file() and self.arguments.suite == "serving":
            self.report["tests"] = json.loads(tests.read_text(encoding="utf-8"))
        if card(self.report.get("device", {}).get("name", "")) == JUDGED_CARD:
            self.report["judged"] = self.judge.judged_rows(self.report["parts"],
                                                           self.report.get("tests", {}))
        out = self.arguments.out
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")


def prefill(bench: Bench) -> dict[str, Any]:
    """Prompts of the 760M."""
    return bench.fox_bench("prefill", "--device", "cuda", "--model", bench.model(), "--lengths",
                           "4096,16384,65536", "--repeat", "5", "--chunk", "65536")


def decode(bench: Bench) -> dict[str, Any]:
    """Steps of the 760M, captured."""
    return bench.fox_bench("decode", "--device", "cuda", "--model", bench.model(), "--contexts",
                           CONTEXTS, "--batch-sizes", "1,8,32", "--chunk", "16384")


def decode_many(bench: Bench) -> dict[str, Any]:
    """Steps of batches whose pages without pruning would not fit at 16k."""
    return bench.fox_bench("decode", "--device", "cuda", "--model", bench.model(), "--contexts",
                           "4096", "--batch-sizes", "2,4,16,64,128", "--modes", "certified",
                           "--chunk", "16384", seconds=60)


def decode_under_limits(bench: Bench) -> dict[str, Any]:
    """Steps at 16k on a server for 20k tokens and on one for a million."""
    return bench.fox_bench("decode", "--device", "cuda", "--model", bench.model(), "--contexts",
                           "16384", "--batch-sizes", "1", "--modes", "off,certified", "--chunk",
                           "16384", "--max-model-lens", "20480,1048576", seconds=60)


def eager(bench: Bench) -> dict[str, Any]:
    """Steps without graphs, and where their time goes."""
    return bench.fox_bench("decode", "--device", "cuda", "--model", bench.model(), "--contexts",
                           "4096", "--batch-sizes", "1,32", "--modes", "certified", "--chunk",
                           "16384", "--enforce-eager", "--repeat", "3")


def linear(bench: Bench) -> dict[str, Any]:
    """Matrix products alone."""
    return bench.fox_bench("linear", "--device", "cuda", "--model", bench.model(), "--batch-sizes",
                           "1,8,32,128", "--chunk", "16384", seconds=60)


def attention(bench: Bench) -> dict[str, Any]:
    """The attention kernels alone."""
    return bench.fox_bench("attention", "--device", "cuda", "--model", bench.model())


def serve(bench: Bench) -> dict[str, Any]:
    """Open-loop load on a server of the 760M."""
    with running_server(bench, "--model", bench.model(), "--device", "cuda", "--max-num-seqs", "64",
                        "--max-model-len", "20480") as server:
        return bench.fox_bench("serve", "--target", server.address, "--rates", "8,32",
                               "--requests", "128", "--prompt-tokens", "512-8192",
                               "--output-tokens", "32-256")


def million(bench: Bench) -> dict[str, Any]:
    """One prompt of 1,048,576 tokens, and the tokens behind it, of a server as it comes."""
    answer = 128
    with running_server(bench, "--model", bench.model(), "--device", "cuda", "--max-model-len",
                        str(judge.MILLION + answer)) as server:
        part = bench.fox_bench("serve", "--target", server.address, "--rates", "1", "--requests",
                               "1", "--prompt-tokens", str(judge.MILLION), "--output-tokens",
                               str(answer), seconds=60)
    return memory_parts.marked(part, prompt_tokens=judge.MILLION, output_tokens=answer)


def doors(bench: Bench) -> dict[str, Any]:
    """What gRPC and HTTP cost: the same sequences through the engine alone and each door."""
    return bench.fox_bench("doors", "--device", "cuda", "--model", bench.model(), "--streams",
                           "32", "--tokens", "256", seconds=90)


def cold_start(bench: Bench) -> dict[str, Any]:
    """From the start of the process to a client's first token."""
    out = bench.scratch / "cold.jsonl"
    out.unlink(missing_ok=True)
    for model in (str(gpu_build.MODEL), bench.model()):
        bench.run([sys.executable, "-B", str(PEERS.parent / "cold_start.py"), str(bench.build),
                   "--device", "cuda", "--model", model, "--json", str(out)], 90, ours=False)
    return {"rows": json_lines(out)}


def invariance(bench: Bench) -> dict[str, Any]:
    """Whether answers depend on what runs beside them."""
    return bench.fox_bench("invariance", "--device", "cuda", "--model", bench.model(), seconds=150)


def books(bench: Bench) -> dict[str, Any]:
    """Pages that the certified bound keeps on real text, over the paper's; on the CPU."""
    demo = gpu_build.ROOT / "models/demo"
    out = bench.scratch / "acp.json"
    bench.run([bench.program("fox-eval"), "acp", "--model", str(demo), "--device", "cpu", "--text",
               str(bench.arguments.books_text), "--json", str(out)], 180, quiet=True)
    report = json.loads(out.read_text(encoding="utf-8"))
    return {"rows": [{"bench": "books", "tokens": report["tokens"],
                      **report["certified_over_paper"]}]}


def library(name: str) -> Callable[[Bench], dict[str, Any]]:
    """Attention of one library that PyTorch does not bring."""
    return lambda bench: bench.peer("attention_libraries.py", 60, "--library", name)


# In the order of their weight: a run that ends early has the first ones.
PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "attention": attention,
    "decode": decode,
    "decode-many": decode_many,
    "decode-under-limits": decode_under_limits,
    "prefill": prefill,
    "attention-peers": lambda bench: bench.peer("attention.py", 150),
    "decoder-peer": lambda bench: bench.peer("decoder.py", 170),
    "official-peer": lambda bench: bench.peer("official.py", 90),
    **{f"attention-{name}": library(name) for name in LIBRARIES},
    "invariance": invariance,
    "serve": serve,
    "million": million,
    "doors": doors,
    "cold-start": cold_start,
    "eager": eager,
    "linear": linear,
    "books": books,
}

TRAINING_PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "training-d64": lambda bench: bench.peer("training_attention.py", 90),
    "training-step": lambda bench: bench.peer("training_step.py", 110),
    "training-gradients": lambda bench: bench.peer("training_gradients.py", 110),
    "training-d128": lambda bench: bench.peer("training_attention.py", 90, "--head-dim", "128"),
    "training-packed": lambda bench: bench.peer("training_packed.py", 60),
    "training-flex": lambda bench: bench.peer("training_attention.py", 100, "--flex"),
}


@dataclasses.dataclass(frozen=True)
class Suite:
    """Parts that are measured and judged together."""

    parts: dict[str, Callable[[Bench], dict[str, Any]]]
    judge: types.ModuleType
    results: str  # in tests/bench/results, of a card


SUITES = {"serving": Suite(PARTS, judge, "{}.json"),
          "training": Suite(TRAINING_PARTS, judge_training, "{}_training.json"),
          "memory": Suite(memory_parts.PARTS, judge_memory, "memory_{}.json")}
JUDGED_CARD = "h200"  # whose the limits are


def card(device_name: str) -> str:
    """Which card that is, as in the names of results: NVIDIA H100 80GB HBM3 is h100."""
    found = re.search(r"[A-Z]+ ?\d+", device_name)
    return found.group().replace(" ", "").lower() if found else JUDGED_CARD


def run_part(bench: Bench, name: str) -> None:
    """Measures one part and writes the JSON."""
    print(f"\n==> {name}", flush=True)
    start = time.monotonic()
    try:
        part = SUITES[bench.arguments.suite].parts[name](bench)
    except (RuntimeError, TimeoutError, OSError, ValueError, KeyError) as error:
        part = {"error": str(error) or type(error).__name__}
    part["wall_seconds"] = round(time.monotonic() - start, 1)
    if "error" in part:
        print(f"{name}: {part['error']}", flush=True)
    if part.get("rows") or not bench.report["parts"].get(name, {}).get("rows"):
        bench.report["parts"][name] = part
    bench.save()


def parse_arguments() -> argparse.Namespace:
    """The command line, with `parts` as the list of what to measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, nargs="?", default=gpu_build.ROOT / "build/gpu")
    for name, what in (("training", "the training side"), ("memory", "sequences at once and the "
                                                           "prefix cache, 760M")):
        parser.add_argument(f"--{name}", dest="suite", action="store_const", const=name,
                            default="serving", help=f"measures {what}")
    parser.add_argument("--try", dest="small", action="store_true",
                        help="with --memory: all of it small on the CPU, to see that it runs")
    parser.add_argument("--out", type=pathlib.Path, help="default: in tests/bench/results, "
                        "of a card: " + ", ".join(suite.results.format(JUDGED_CARD)
                                                  for suite in SUITES.values()))
    parser.add_argument("--only", help="parts, separated by commas: " + "; ".join(
        f"{name}: " + ", ".join(suite.parts) for name, suite in SUITES.items())
        + "; those that begin with cpu- run only if they are named")
    parser.add_argument("--fresh", action="store_true", help="forgets what the file holds")
    parser.add_argument("--judge", action="store_true", help="measures nothing, prints the table")
    parser.add_argument("--rows", type=pathlib.Path,
                        help="lines of JSON that other programs measured, to be judged with ours")
    parser.add_argument("--limit", type=float, default=530, help="seconds for all parts")
    parser.add_argument("--official-repo", default=os.environ.get("FOX_OFFICIAL_REPO"),
                        help="a checkout of zhixuan-lin/forgetting-transformer, for peers")
    parser.add_argument("--peer-packages", default=os.environ.get("FOX_PEER_PACKAGES"),
                        help="a folder of Python packages, for peers (tests/bench/README.md)")
    parser.add_argument("--books-text", default=gpu_build.ROOT / "models/demo/prompt_long.txt",
                        type=pathlib.Path, help="held-out text for the demo model")
    arguments = parser.parse_args()
    suite = SUITES[arguments.suite]
    known = suite.parts
    if arguments.small and (arguments.suite != "memory" or arguments.out is None):
        parser.error("--try goes with --memory and --out")
    if arguments.out is None:
        name = suite.results.format(card(gpu_build.device().get("name", "")))
        arguments.out = gpu_build.ROOT / "tests/bench/results" / name
    wanted = ([name for name in known if arguments.small or not name.startswith("cpu-")]
              if arguments.only is None else arguments.only.split(","))
    arguments.parts = [] if arguments.judge else [name for name in wanted if name]
    unknown = [name for name in arguments.parts if name not in known]
    if unknown:
        parser.error(f"--only: no part {', '.join(unknown)}; there are: {', '.join(known)}")
    return arguments


def main() -> int:
    """0 when every selected part measured something."""
    arguments = parse_arguments()
    bench = Bench(arguments)
    atexit.register(shutil.rmtree, bench.scratch, ignore_errors=True)
    if arguments.parts:
        bench.report.update(device=gpu_build.device() or bench.report.get("device", {}),
                            date=datetime.date.today().isoformat())
    if arguments.rows:
        bench.report["parts"]["elsewhere"] = {"rows": json_lines(arguments.rows)}
    for name in arguments.parts:
        run_part(bench, name)
    bench.save()
    if "judged" in bench.report:
        print("\n" + judge.as_table(bench.report["judged"]))
    measured = [bench.report["parts"][name].get("rows") for name in arguments.parts]
    return 0 if all(measured) else 1


if __name__ == "__main__":
    sys.exit(main())
