#!/usr/bin/env python3
"""Parts of gpu_bench.py --foxify-scale: steps of foxify on random weights in the shapes of
published models, their speed, and their memory beside the plan; and the judged rows.

As a program it measures one shape: foxify_scale_parts.py meta-llama/Llama-3.2-1B --steps 8; with
--gpus 4 in four processes, as ./run foxify trains where it sees four GPUs. The weights are made on
the GPU by the names of the model's tensors; no checkpoint is written or read. Text and tokenizer
are those of the tests' toy, as neither changes the cost of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from judge import Measurements, Row, ratio, row

if TYPE_CHECKING:
    import torch
    from gpu_bench import Bench

Part = dict[str, Any]
ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "tests/golden/transformers_configs.json"
WINDOW, STEPS, WARM_STEPS = 8192, 8, 4
SMALL_CARD = 40e9  # bytes
SECONDS = 300  # of one part


def published() -> dict[str, str]:
    """Published models' config.json by name."""
    cases = json.loads(CONFIGS.read_text(encoding="utf-8"))["cases"]
    return {case["model"]: case["config"] for case in cases if "model" in case}


def like_weights(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Normal values become a matrix that keeps the size of its input, or a norm's weight near 1."""
    return values * shape[-1] ** -0.5 if len(shape) == 2 else 1 + 0.01 * values


def random_tensors(names: Any) -> type:
    """A stand-in for models.foxify.base_model.Tensors whose values are drawn on the GPU."""
    import torch

    class RandomTensors:
        def __init__(self, directory: pathlib.Path, config: dict[str, Any]) -> None:
            del directory
            self.shapes = names(config).shapes()

        def __contains__(self, name: str) -> bool:
            return name in self.shapes

        def take(self, name: str, shape: tuple[int, ...], part: slice = slice(None)
                 ) -> torch.Tensor:
            assert self.shapes[name] == shape, (name, shape)
            if part.stop == 0:
                return torch.empty(0)
            same = torch.Generator("cuda").manual_seed(zlib.crc32(name.encode()))
            values = torch.randn(shape, generator=same, device="cuda", dtype=torch.bfloat16)
            return like_weights(values, shape).flatten()[part]

    return RandomTensors


def prepare(name: str, folder: pathlib.Path) -> None:
    """Writes config.json, tokenizer and text."""
    from toy_llama import write_tokenizer

    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(published()[name], encoding="utf-8")
    write_tokenizer(model)
    (folder / "text.txt").write_text("All happy families are alike. " * (1 << 14))


def trainer(folder: pathlib.Path, flags: list[str], steps: int) -> Any:
    """The Trainer of ./run foxify on random weights of the shape in a prepared folder."""
    from models.convert.transformers_config import parse_transformers_config
    from models.finetune.process_group import ProcessGroup
    from models.foxify import base_model, foxify

    base_model.Tensors = random_tensors(parse_transformers_config)  # type: ignore[misc]
    args = foxify.parse_arguments([
        str(folder / "model"), str(folder / "text.txt"), "--out", str(folder / "out"),
        "--steps", str(steps), "--window", str(WINDOW), "--checkpoint-minutes", "1e9", *flags])
    args.precision = "bf16"
    run = foxify.Trainer(args, ProcessGroup())
    run.save = lambda: None  # type: ignore[method-assign]
    return run


def measured(name: str, folder: pathlib.Path, flags: list[str], steps: int, limit: float | None
             ) -> Part:
    """Trains `steps` steps in this process, with at most `limit` bytes of the card if given. If
    there are several processes, only the first one returns a row."""
    import torch

    if limit is not None:
        torch.cuda.set_per_process_memory_fraction(
            limit / torch.cuda.get_device_properties(0).total_memory)
    torch.set_float32_matmul_precision("high")
    run = trainer(folder, flags, steps)
    begin, one_step = 0.0, run._one_step

    def timed(done: float) -> Any:
        """A step; behind the warm ones the clock begins when the GPU has nothing left to do."""
        nonlocal begin
        if run.step == WARM_STEPS:
            torch.cuda.synchronize()
            begin = time.monotonic()
        return one_step(done)

    run._one_step = timed  # type: ignore[method-assign]
    run.resume()
    run.introduce()
    run.train()
    torch.cuda.synchronize()
    pace = (steps - WARM_STEPS) * run.tokens_a_step / (time.monotonic() - begin)
    run.group.close()
    if not run.group.is_first:
        return {}
    peak = torch.cuda.max_memory_allocated()
    return {"bench": "foxify_scale", "model": name, "flags": " ".join(flags), "limit": limit,
            "gpus": run.group.size, "device": torch.cuda.get_device_name(), "micro": run.micro,
            "recompute": run.recompute, "shards": run.plan.shards,
            "tokens_per_second": pace, "peak_gb": peak / 1e9,
            "reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
            "planned_gb": run.plan.bytes / 1e9, "plan": run.plan.parts}


def steps_of(name: str, *flags: str, gpus: int = 1) -> Callable[[Bench], Part]:
    def measure(bench: Bench) -> Part:
        import torch

        if torch.cuda.device_count() < gpus:
            return {"skipped": f"needs {gpus} GPUs; {torch.cuda.device_count()} are here"}
        out = bench.scratch / "scale.json"
        text, failure = bench.measured(
            [sys.executable, "-B", __file__, name, "--json", str(out), "--gpus", str(gpus), *flags],
            out, SECONDS, ours=False)
        return {"rows": [json.loads(text)] if text else [], **failure}
    return measure


SMALL, LARGE = "HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen3-32B"
SHARD = "--flags=--shard"
ONE = ("--flags=--micro-batch 1 --no-recompute",)
LEAST = ("--flags=--micro-batch 1 --recompute",)
PARTS: dict[str, Callable[[Bench], Part]] = {
    "1b": steps_of("meta-llama/Llama-3.2-1B", *ONE),
    "8b": steps_of("Qwen/Qwen3-8B", *LEAST),
    "8b-40gb": steps_of("Qwen/Qwen3-8B", "--limit", str(SMALL_CARD)),
    "3b": steps_of("meta-llama/Llama-3.2-3B", *LEAST),
    "8b-planned": steps_of("Qwen/Qwen3-8B"),
    "llama-8b": steps_of("meta-llama/Llama-3.1-8B", *LEAST),
    "1b-planned": steps_of("meta-llama/Llama-3.2-1B"),
    "3b-planned": steps_of("meta-llama/Llama-3.2-3B"),
    "135m-planned": steps_of(SMALL),
    "135m-2gpus": steps_of(SMALL, gpus=2),
    "8b-2gpus": steps_of("Qwen/Qwen3-8B", gpus=2),
    "135m-4gpus": steps_of(SMALL, gpus=4),
    "8b-4gpus": steps_of("Qwen/Qwen3-8B", gpus=4),
    "32b-4gpus": steps_of(LARGE, SHARD, gpus=4),
    "32b-2gpus": steps_of(LARGE, SHARD, gpus=2),
}


def judged_rows(m: Measurements) -> list[Row]:
    """Limits of an H100 of 80 GB, which cards after it keep more easily."""
    def rows() -> Iterator[Row]:
        for name, flags, pace, aim, size in (
                ("meta-llama/Llama-3.2-1B", ONE, 42000, 50000, 17),
                ("meta-llama/Llama-3.2-3B", LEAST, 12500, 16000, 12),
                ("Qwen/Qwen3-8B", LEAST, 6000, 6800, 26)):
            case = dict(bench="foxify_scale", model=name, limit=None, gpus=1,
                        flags=flags[0].removeprefix("--flags="))
            title = f"foxify {name}, {case['flags']}"
            yield row(title, m.value("tokens_per_second", **case), "tokens/s", "least", pace, aim)
            yield row(f"{title}: peak", m.value("peak_gb", **case), "GB", "most", size)
        yield row("foxify Qwen/Qwen3-8B on a card of 40 GB: peak",
                  m.value("reserved_gb", bench="foxify_scale", limit=SMALL_CARD), "GB", "most",
                  SMALL_CARD / 1e9)
        planned = dict(bench="foxify_scale", limit=None, flags="")
        for name, gpus, least, most in ((SMALL, 4, 3.2, 3.7), ("Qwen/Qwen3-8B", 4, 3.6, 3.9),
                                        (SMALL, 2, None, 1.9), ("Qwen/Qwen3-8B", 2, None, 1.95)):
            several, one = (m.value("tokens_per_second", model=name, gpus=count, **planned)
                            for count in (gpus, 1))
            yield row(f"foxify {name}, tokens/s of {gpus} GPUs over one", ratio(several, one),
                      "times", "least", least, most)
        for gpus, size in ((4, 80), (2, 141)):
            case = dict(bench="foxify_scale", model=LARGE, gpus=gpus, flags="--shard")
            title = f"foxify {LARGE} sharded over {gpus} GPUs"
            yield row(f"{title}: peak of one", m.value("peak_gb", **case), "GB", "most", size)
            yield row(f"{title}: tokens/s of one",
                      m.value("tokens_per_second", 1 / gpus, **case), "tokens/s", "least", None,
                      1500)
        errors = [abs(found["planned_gb"] / found["peak_gb"] - 1)
                  for found in m.all(bench="foxify_scale")]
        yield row("planned memory, from the peak, worst", 100 * max(errors) if errors else None,
                  "%", "most", 10)
    return list(rows())


def status_of_processes(count: int, folder: str) -> int:
    """Runs this program in `count` processes, as torchrun does, but in this process's group, which
    a time limit ends. Returns the first exit status that is not 0, and ends the others then."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": port}
    runs = [subprocess.Popen([sys.executable, "-B", __file__, *sys.argv[1:], "--folder", folder],
                             env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(count)]
    for _ in runs:
        _, status = os.wait()
        if status != 0:
            for run in runs:
                run.kill()
            return os.waitstatus_to_exitcode(status)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=published())
    parser.add_argument("--flags", default="", help="of ./run foxify, in one argument")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--limit", type=float, help="bytes of a smaller card")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=pathlib.Path, help="gets the row")
    args = parser.parse_args()
    if args.steps <= WARM_STEPS:
        parser.error(f"--steps: more than {WARM_STEPS}, which are not timed")
    sys.path[:0] = [str(ROOT), *(str(ROOT / "tests/models" / part) for part in (
        "foxify", "finetune"))]
    if args.folder is None:
        with tempfile.TemporaryDirectory(prefix="foxify-scale-") as folder:
            prepare(args.model, pathlib.Path(folder))
            sys.exit(status_of_processes(args.gpus, folder))
    result = measured(args.model, args.folder, args.flags.split(), args.steps, args.limit)
    if not result:
        return
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
