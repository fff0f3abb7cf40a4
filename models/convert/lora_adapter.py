"""An adapter of foxify on its base: the plan of the merged model.

A tensor NAME.lora_B.weight with its NAME.lora_A.weight adds B A to NAME.weight, in float32, rounded
to the base's type. Every other tensor of the adapter joins the tensors of the base, or replaces the
one of its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from models.convert.refusal import Refusal
from models.convert.rounding import as_float
from models.convert.safetensors_io import parse_json, read_safetensors
from models.convert.source_directory import check_link, read_text
from models.convert.source_tensor import SourceTensor
from models.convert.tensor_plan import Plan, PlannedTensor

ADAPTER, CONFIG = "adapter.safetensors", "adapter_config.json"
GENERATION = "generation_config.json"  # the adapter's keys replace keys of the base's file
GAIN = "fox_gain.json"  # of the model with the adapter (./run gain)
_A, _B = ".lora_A.weight", ".lora_B.weight"


def _values(tensor: SourceTensor) -> np.ndarray:
    """The elements as float32."""
    blocks = [as_float(block, tensor.dtype) for block in tensor.blocks()]
    return np.concatenate(blocks).astype(np.float32, copy=False).reshape(tensor.shape)


def _fits(base: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """True if B A has the shape of the base."""
    matrices = len(base) == len(a) == len(b) == 2
    return matrices and (b[0], a[1]) == base and b[1] == a[0] > 0


class _Sum(SourceTensor):
    """The sum of a base matrix, rounded to its type, and B A, in float32."""

    def __init__(self, base: PlannedTensor, a: SourceTensor, b: SourceTensor) -> None:
        super().__init__(base.name, "F32", base.shape, (), a.path, 0, 0)
        self.__dict__.update(base=base, a=a, b=b)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields whole rows, in blocks of the base's size."""
        a, b, first = _values(self.a), _values(self.b), 0
        for rounded, _, _ in self.base.blocks():
            rows = as_float(rounded, self.base.dtype).astype(np.float32).reshape(-1, self.shape[1])
            yield (rows + b[first : first + len(rows)] @ a).reshape(-1)
            first += len(rows)


def adapter_paths(directory: Path) -> list[Path]:
    """adapter.safetensors, or its parts adapter-00001-of-00002.safetensors and so on."""
    return sorted(directory.glob("adapter*.safetensors")) or [directory / ADAPTER]


def with_adapter(plan: Plan, directory: Path) -> Plan:
    """Raises Refusal unless the adapter in `directory` fits."""
    config = parse_json(read_text(directory / CONFIG), CONFIG)
    change = {name: tensor for path in adapter_paths(directory)
              for name, tensor in read_safetensors(check_link(path)).items()}
    kind = config.get("base_model_type")
    if kind != plan.config["model_type"] or not isinstance(config.get("config"), dict):
        raise Refusal(f"{CONFIG}: made for a {kind}, not for SRC, a {plan.config['model_type']}")
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    for name, b in change.items():
        if name.endswith(_B):
            stem = name.removesuffix(_B)
            base, a = tensors.get(f"{stem}.weight"), change.get(stem + _A)
            if base is None or a is None or not _fits(base.shape, a.shape, b.shape):
                raise Refusal(f"tensor {name}: does not fit the base")
            tensors[base.name] = replace(base, parts=(_Sum(base, a, b),))
        elif not name.endswith(_A):
            tensors[name] = PlannedTensor(name, b.dtype, b.shape, (b,))
    files = dict(plan.files)
    for name in (GENERATION, GAIN):
        if (directory / name).is_file():
            files[name] = {**files.get(name, {}), **parse_json(read_text(directory / name), name)}
    merged = {**plan.config, **config["config"]}
    merged.pop("weight_blocks", None)  # sums have no blocks
    return replace(plan, kind=f"{plan.kind}, with an adapter", tensors=list(tensors.values()),
                   config=merged, files=files)
