#!/usr/bin/env python3
"""Parts of gpu_bench.py --foxify-scale: steps of foxify on random weights in the shapes of
published models, their speed, and their memory beside the plan; and the judged rows.

As a program it measures one shape: foxify_scale_parts.py meta-llama/Llama-3.2-1B --steps 6. The
weights are made on the GPU by the names of the model's tensors; no checkpoint is written or read.
Text and tokenizer are those of the tests' toy, as neither changes the cost of a step.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from judge import Measurements, Row, row

if TYPE_CHECKING:
    from gpu_bench import Bench

Part = dict[str, Any]
ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "tests/golden/transformers_configs.json"
WINDOW, STEPS, WARM_STEPS = 8192, 6, 2
SMALL_CARD = 40e9  # bytes


def published() -> dict[str, str]:
    """Published models' config.json by name."""
    cases = json.loads(CONFIGS.read_text(encoding="utf-8"))["cases"]
    return {case["model"]: case["config"] for case in cases if "model" in case}


def random_tensors(names: Any) -> type:
    """A stand-in for models.foxify.base_model.Tensors whose values are drawn on the GPU."""
    import torch

    class RandomTensors:
        def __init__(self, directory: pathlib.Path, config: dict[str, Any]) -> None:
            del directory
            self.shapes = names(config).shapes()

        def __contains__(self, name: str) -> bool:
            return name in self.shapes

        def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
            """A matrix that keeps the size of its input; a weight of a norm near 1."""
            assert self.shapes[name] == shape, (name, shape)
            values = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            return values * shape[-1] ** -0.5 if len(shape) == 2 else 1 + 0.01 * values

    return RandomTensors


def trainer(name: str, folder: pathlib.Path, flags: list[str], steps: int) -> Any:
    """The Trainer of ./run foxify on random weights of this shape."""
    sys.path[:0] = [str(ROOT), *(str(ROOT / "tests/models" / part) for part in (
        "foxify", "finetune"))]
    from toy_llama import write_tokenizer

    from models.convert.transformers_config import parse_transformers_config
    from models.finetune.process_group import ProcessGroup
    from models.foxify import base_model, foxify

    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(published()[name], encoding="utf-8")
    write_tokenizer(model)
    (folder / "text.txt").write_text("All happy families are alike. " * (1 << 14))
    base_model.Tensors = random_tensors(parse_transformers_config)  # type: ignore[misc]
    args = foxify.parse_arguments([
        str(model), str(folder / "text.txt"), "--out", str(folder / "out"), "--steps", str(steps),
        "--window", str(WINDOW), "--checkpoint-minutes", "1e9", *flags])
    args.precision = "bf16"
    run = foxify.Trainer(args, ProcessGroup())
    run.save = lambda: None  # type: ignore[method-assign]
    return run


def measured(name: str, flags: list[str], steps: int, limit: float | None) -> Part:
    """Trains some steps in this process, on a card of `limit` bytes if that is given."""
    import torch

    if limit is not None:
        torch.cuda.set_per_process_memory_fraction(
            limit / torch.cuda.get_device_properties(0).total_memory)
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory(prefix="foxify-scale-") as folder:
        run = trainer(name, pathlib.Path(folder), flags, steps)
        run.resume()
        run.introduce()
        run.train()
        lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    pace = (len(seconds) - WARM_STEPS) * run.tokens_a_step / (seconds[-1] - seconds[WARM_STEPS - 1])
    peak = torch.cuda.max_memory_allocated()
    return {"bench": "foxify_scale", "model": name, "flags": " ".join(flags), "limit": limit,
            "device": torch.cuda.get_device_name(), "micro": run.micro,
            "recompute": run.recompute, "tokens_per_second": pace, "peak_gb": peak / 1e9,
            "reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
            "planned_gb": run.plan.bytes / 1e9, "plan": run.plan.parts}


def steps_of(name: str, *flags: str) -> Callable[[Bench], Part]:
    def measure(bench: Bench) -> Part:
        out = bench.scratch / "scale.json"
        text, failure = bench.measured(
            [sys.executable, "-B", __file__, name, "--json", str(out), *flags], out, 300,
            ours=False)
        return {"rows": [json.loads(text)] if text else [], **failure}
    return measure


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
}


def judged_rows(m: Measurements) -> list[Row]:
    """Limits of an H100 of 80 GB, which cards after it keep more easily."""
    def rows() -> Iterator[Row]:
        for name, flags, pace, aim, size in (
                ("meta-llama/Llama-3.2-1B", ONE, 42000, 50000, 17),
                ("meta-llama/Llama-3.2-3B", LEAST, 12500, 16000, 12),
                ("Qwen/Qwen3-8B", LEAST, 6000, 6800, 26)):
            case = dict(bench="foxify_scale", model=name, limit=None,
                        flags=flags[0].removeprefix("--flags="))
            title = f"foxify {name}, {case['flags']}"
            yield row(title, m.value("tokens_per_second", **case), "tokens/s", "least", pace, aim)
            yield row(f"{title}: peak", m.value("peak_gb", **case), "GB", "most", size)
        yield row("foxify Qwen/Qwen3-8B on a card of 40 GB: peak",
                  m.value("reserved_gb", bench="foxify_scale", limit=SMALL_CARD), "GB", "most",
                  SMALL_CARD / 1e9)
        errors = [abs(found["planned_gb"] / found["peak_gb"] - 1)
                  for found in m.all(bench="foxify_scale")]
        yield row("planned memory, from the peak, worst", 100 * max(errors) if errors else None,
                  "%", "most", 10)
    return list(rows())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=published())
    parser.add_argument("--flags", default="", help="of ./run foxify, in one argument")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--limit", type=float, help="bytes of a smaller card")
    parser.add_argument("--json", type=pathlib.Path, help="gets the row")
    args = parser.parse_args()
    result = measured(args.model, args.flags.split(), args.steps, args.limit)
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
