"""The adapter that foxify writes, and starts from with --from: the difference to the base, in
adapter.safetensors and adapter_config.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.convert.lora_adapter import ADAPTER, CONFIG, adapter_paths
from models.convert.output_directory import write_file
from models.convert.refusal import Refusal
from models.convert.safetensors_io import parse_json
from models.convert.source_directory import read_text
from models.foxify.base_model import BaseModel, Tensors, read_architecture
from models.foxify.layer_matrices import MATRICES
from models.foxify.pressure import LOG_EPS
from models.foxify.student import Student

_GATE_WEIGHT, _GATE_BIAS, _SINKS = ("self_attn.fgate_proj.weight", "self_attn.fgate_proj.bias",
                                    "self_attn.sinks")


@torch.no_grad()
def round_as_shipped(student: Student) -> None:
    """Rounds factors and gates to the base's type, so that the shipped model is measured."""
    for parameter in (*student.factors.values(), student.gate_weight):
        parameter.copy_(parameter.to(student.base.dtype))


def _parameters(student: Student) -> Iterator[tuple[str, Tensor]]:
    """Views of the parameters with their names in the merged checkpoint."""
    a = student.base.architecture
    sizes = {kind: [a.shape(name)[0] for name in names] for kind, names in MATRICES.items()}
    for n in range(a.layers):
        prefix = f"model.layers.{n}."
        for kind, names in MATRICES.items():
            if student.rank == 0:
                for name, part in zip(names, student.factors[kind][n].split(sizes[kind])):
                    yield f"{prefix}{name}.weight", part
                continue
            for name in names:
                for letter in "AB":
                    yield f"{prefix}{name}.lora_{letter}.weight", student.factor(name, letter)[n]
        if student.window is None:
            yield prefix + _GATE_WEIGHT, student.gate_weight[n]
            yield prefix + _GATE_BIAS, student.gate_bias[n]
        yield prefix + _SINKS, student.sinks[n]


def _tensors(student: Student) -> dict[str, Tensor]:
    """The tensors of the adapter; sinks, caps and biases are float32, the others of the base's
    type."""
    tensors = {name: part.float() if name.endswith((_GATE_BIAS, _SINKS)) else
               part.to(student.base.dtype) for name, part in _parameters(student)}
    if student.window is None and not student.base.architecture.qk_norm:
        for name, caps in zip(("q_cap", "k_cap"), student.caps()):
            tensors |= {f"model.layers.{n}.self_attn.{name}": cap.float()
                        for n, cap in enumerate(caps)}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


@torch.no_grad()
def read_adapter(student: Student, directory: Path) -> None:
    """Sets all parameters to those of an adapter; caps stay, which the run moves by itself.

    Raises Refusal if the adapter is of another base, rank or method.
    """
    config = parse_json(read_text(directory / CONFIG), CONFIG)
    kind = student.base.config["model_type"]
    if config.get("base_model_type") != kind or config.get("r") != student.rank:
        raise Refusal(f"{directory / CONFIG}: for a {config.get('base_model_type')} at rank "
                      f"{config.get('r')}, not for this {kind} at --rank {student.rank}")
    found = {name: tensor for path in adapter_paths(directory)
             for name, tensor in load_file(path).items()}
    for name, parameter in _parameters(student):
        if name not in found or found[name].shape != parameter.shape:
            raise Refusal(f"{directory}: tensor {name} is missing, or has another shape")
        parameter.copy_(found[name])


@torch.no_grad()
def open_merged(directory: Path, device: torch.device, dtype: torch.dtype) -> Student:
    """Opens a directory into which convert merged an adapter: a student whose factors are zeros.

    Raises Refusal if the model has no forget gates.
    """
    _, config = read_architecture(directory, foxified=True)
    tensors = Tensors(directory, config)
    if f"model.layers.0.{_GATE_WEIGHT}" not in tensors:
        raise Refusal(f"{directory}: the model has no forget gates; ./run foxify trains them")
    student = Student(BaseModel(directory, device, dtype, foxified=True), 1, None)
    for factor in student.factors.values():
        factor.zero_()
    student.sinks.fill_(-torch.inf)
    parts = {_GATE_WEIGHT: student.gate_weight, _GATE_BIAS: student.gate_bias,
             _SINKS: student.sinks, "self_attn.q_cap": student.first_q_cap,
             "self_attn.k_cap": student.first_k_cap}
    for n in range(student.base.architecture.layers):
        for name, part in parts.items():
            if f"model.layers.{n}.{name}" in tensors:
                shape = tuple(part[n].shape)
                part[n] = tensors.take(f"model.layers.{n}.{name}", shape).view(shape)
    return student


def write_adapter(student: Student, out: Path, keep: float) -> None:
    """Writes the adapter. Each file appears by a rename, the configuration last."""
    a = student.base.architecture
    keys: dict[str, Any] = {"use_attention_sink": True}
    if student.window is None:
        keys |= {"use_forget_gate": True, "use_qk_norm_cap": not a.qk_norm,
                 "log_pruning_tolerance": LOG_EPS}
    config = {"base_model_type": student.base.config["model_type"], "r": student.rank,
              "lora_alpha": student.rank, "keep": keep, "config": keys}
    if student.window is not None:
        config["window"] = student.window
    save_file(_tensors(student), out / f"{ADAPTER}.partial")
    (out / f"{ADAPTER}.partial").replace(out / ADAPTER)
    write_file(out / f"{CONFIG}.partial", config)
    (out / f"{CONFIG}.partial").replace(out / CONFIG)
