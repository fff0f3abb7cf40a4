"""The output of foxify: the difference to the base, adapter.safetensors and adapter_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from models.convert.lora_adapter import ADAPTER, CONFIG
from models.convert.output_directory import write_file
from models.foxify.base_model import MATRICES
from models.foxify.pressure import LOG_EPS
from models.foxify.student import Student


@torch.no_grad()
def round_as_shipped(student: Student) -> None:
    """Rounds factors and gates to the base's type, so that the shipped model is measured."""
    for parameter in (*student.factors.values(), student.gate_weight):
        parameter.copy_(parameter.to(student.base.dtype))


def _tensors(student: Student) -> dict[str, Tensor]:
    """The tensors by the names of the merged checkpoint; sinks, caps and biases are float32."""
    base, a, tensors = student.base, student.base.architecture, {}
    q_cap, k_cap = student.caps()
    if student.rank == 0:
        sizes = {kind: [a.shape(name)[0] for name in names] for kind, names in MATRICES.items()}
    for n in range(a.layers):
        prefix = f"model.layers.{n}."
        for kind, names in MATRICES.items():
            if student.rank == 0:
                for name, part in zip(names, student.factors[kind][n].split(sizes[kind])):
                    tensors[f"{prefix}{name}.weight"] = part.to(base.dtype)
                continue
            for name in names:
                for letter in "AB":
                    tensors[f"{prefix}{name}.lora_{letter}.weight"] = student.factor(
                        name, letter)[n].to(base.dtype)
        attention = prefix + "self_attn."
        if student.window is None:
            tensors[attention + "fgate_proj.weight"] = student.gate_weight[n].to(base.dtype)
            tensors[attention + "fgate_proj.bias"] = student.gate_bias[n].float()
            if not a.qk_norm:
                tensors[attention + "q_cap"] = q_cap[n].float()
                tensors[attention + "k_cap"] = k_cap[n].float()
        tensors[attention + "sinks"] = student.sinks[n].float()
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def write_adapter(student: Student, out: Path, keep: float) -> None:
    """Writes the adapter. Each file appears by a rename, the configuration last."""
    a = student.base.architecture
    keys: dict[str, Any] = {"use_attention_sink": True}
    if student.window is None:
        keys |= {"use_forget_gate": True, "use_qk_norm_cap": not a.qk_norm,
                 "log_pruning_tolerance": LOG_EPS}
    config = {"base_model_type": student.base.config["model_type"], "r": student.rank,
              "lora_alpha": student.rank, "keep": keep, "config": keys}
    save_file(_tensors(student), out / f"{ADAPTER}.partial")
    (out / f"{ADAPTER}.partial").replace(out / ADAPTER)
    write_file(out / f"{CONFIG}.partial", config)
    (out / f"{CONFIG}.partial").replace(out / CONFIG)
