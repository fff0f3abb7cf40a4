"""Checkpoint directories and the model: loading any layout that the server loads, and export.

Names, shapes and keys are checked by the converter (models/convert), which refuses unknown ones
with one line. `./run serve` and fox-eval load an exported directory.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from models.convert.canonical_config import CanonicalConfig, parse_config
from models.convert.output_directory import (
    TOKENIZER_FILES,
    add_file,
    side_files,
    write_file,
    write_tensors,
)
from models.convert.refusal import Refusal
from models.convert.safetensors_io import parse_json
from models.convert.source_directory import open_source, read_text
from models.convert.tensor_plan import plan_tensors
from models.finetune.model import FoxModel

DEFAULT_LOG_TOLERANCE = -10.0  # the paper's recommendation, and the server's default


@dataclass
class LoadedModel:
    """A model in float32 on the CPU, and its tokenizer's directory."""

    model: FoxModel
    config: CanonicalConfig
    directory: Path
    from_scratch: bool  # random weights: only a configuration was given

    @property
    def log_tolerance(self) -> float:
        """log eps of pruning: the checkpoint's, or the default."""
        value = self.config.log_pruning_tolerance
        return DEFAULT_LOG_TOLERANCE if value is None else value


def load_model(source: Path, seed: int) -> LoadedModel:
    """Loads a checkpoint directory, or makes random weights if `source` is a config.json."""
    if source.is_file():
        return _from_config(source, seed)
    opened = open_source(source, None)
    config = parse_config(opened.config, None)
    planned = plan_tensors(config, opened.tensors, "f32")
    config = replace(config, fla=False)  # the plan has the official names
    model = FoxModel(config)
    state = model.state_dict()
    with torch.no_grad():
        for tensor in planned:
            values = np.concatenate([block for block, _, _ in tensor.blocks()])
            target = state.pop(tensor.name)
            target.copy_(torch.from_numpy(values).view(target.shape))
    if state:
        raise Refusal(f"tensor {min(state)}: nothing in {source} fills it")
    return LoadedModel(model, config, source, from_scratch=False)


def _from_config(path: Path, seed: int) -> LoadedModel:
    raw = parse_json(read_text(path), path.name)
    config = replace(parse_config(raw, None), fla=False)
    model = FoxModel(config)
    decay_times = None
    if raw.get("fgate_bias_init"):
        decay_times = (float(raw["decay_time_min"]), float(raw["decay_time_max"]))
    torch.manual_seed(seed)
    model.initialize(float(raw.get("initializer_range") or 0.02), decay_times)
    return LoadedModel(model, config, path.parent, from_scratch=True)


def export_model(
    model: FoxModel, tokenizer_directory: Path, out: Path, dtype: str, max_shard_bytes: int
) -> list[Path]:
    """Writes the canonical directory and returns its files.

    Each file appears by a rename, weights before the config.json that names them; an interrupted
    export leaves `*.partial` folders at most. `dtype`: bf16, f16 or f32.
    """
    out.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".export.", suffix=".partial", dir=out))
    try:
        raw = stage / "source"
        raw.mkdir()
        state = {name: tensor.contiguous().float() for name, tensor in model.state_dict().items()}
        if not all(tensor.isfinite().all() for tensor in state.values()):
            raise Refusal("the model holds NaN or infinite weights: not exported")
        save_file({name: tensor.cpu() for name, tensor in state.items()}, raw / "model.safetensors")
        write_file(raw / "config.json", model.config.to_json())
        source = open_source(raw, None)
        planned = plan_tensors(model.config, source.tensors, dtype)
        files = stage / "files"
        files.mkdir()
        write_tensors(files, planned, max_shard_bytes)
        kept = side_files(tokenizer_directory, (*TOKENIZER_FILES, "generation_config.json"))
        for name, content in kept.items():
            add_file(files / name, content)
        write_file(files / "config.json", model.config.to_json())
        # The gain, if ./run gain measured one, is that of the weights before.
        for stale in (*out.glob("model*.safetensors*"), *out.glob("fox_gain.json")):
            stale.unlink()
        order = sorted(files.iterdir(), key=lambda path: (path.name == "config.json", path.name))
        for path in order:
            os.replace(path, out / path.name)
        return [out / path.name for path in order]
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def parameter_count(model: FoxModel) -> int:
    """The number of parameters; a tied matrix counts once."""
    return sum(math.prod(parameter.shape) for parameter in model.parameters())


def describe(config: CanonicalConfig) -> dict[str, Any]:
    """Settings that must not change between the runs of one training."""
    return {key: value for key, value in config.to_json().items() if key != "architectures"}
