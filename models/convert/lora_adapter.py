"""An adapter of foxify, or of peft, on its base: the plan of the merged model.

A tensor NAME.lora_B.weight with its NAME.lora_A.weight adds B A to NAME.weight, in float32, rounded
to the base's type. Every other tensor of the adapter replaces the base's of its name; those of
foxify also join them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.convert.output_directory import TOKENIZER_FILES, has_tokenizer, side_files
from models.convert.peft_adapter import read_peft, scale_of
from models.convert.refusal import Refusal
from models.convert.rounding import as_float
from models.convert.safetensors_io import parse_json, read_safetensors
from models.convert.source_directory import check_link, read_text
from models.convert.source_tensor import SourceTensor
from models.convert.tensor_plan import (
    EMBEDDINGS,
    HEAD,
    Plan,
    PlannedTensor,
    with_both_matrices,
)

ADAPTER, CONFIG = "adapter.safetensors", "adapter_config.json"
GENERATION = "generation_config.json"  # the adapter's keys replace keys of the base's file
GAIN = "fox_gain.json"  # of the model with the adapter (./run gain)
_A, _B = ".lora_A.weight", ".lora_B.weight"


def _values(tensor: SourceTensor) -> np.ndarray:
    """The elements as float32."""
    blocks = [as_float(block, tensor.dtype) for block in tensor.blocks()]
    return np.concatenate(blocks).astype(np.float32, copy=False).reshape(tensor.shape)


def _shape_of_product(b: SourceTensor, a: SourceTensor) -> tuple[int, ...]:
    if not len(a.shape) == len(b.shape) == 2 or not b.shape[1] == a.shape[0] > 0:
        raise Refusal(f"tensor {b.name}: shape {list(b.shape)}, which does not fit lora_A's, "
                      f"{list(a.shape)}")
    return b.shape[0], a.shape[1]


def _check_shape(base: PlannedTensor, shape: tuple[int, ...]) -> None:
    if base.shape == shape:
        return
    grown = ""
    if base.name in (HEAD, *EMBEDDINGS) and base.shape[1:] == shape[1:]:
        grown = (" (if its vocabulary has grown: save the base after "
                 f"resize_token_embeddings({shape[0]}), and convert that)")
    raise Refusal(f"tensor {base.name}: shape {list(base.shape)} in the base, {list(shape)} in the "
                  f"adapter, which is of another model{grown}")


class _Sum(SourceTensor):
    """The sum of a base matrix, rounded to its type, and scale B A, in float32."""

    def __init__(self, base: PlannedTensor, a: SourceTensor, b: SourceTensor,
                 scale: float) -> None:
        super().__init__(base.name, "F32", base.shape, (), a.path, 0, 0)
        self.__dict__.update(base=base, a=a, b=b, scale=np.float32(scale))

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields whole rows, in blocks of the base's size."""
        a, b, first = _values(self.a), _values(self.b) * self.scale, 0
        for rounded, _, _ in self.base.blocks():
            rows = as_float(rounded, self.base.dtype).astype(np.float32).reshape(-1, self.shape[1])
            yield (rows + b[first : first + len(rows)] @ a).reshape(-1)
            first += len(rows)


def adapter_paths(directory: Path) -> list[Path]:
    """adapter.safetensors, or its parts adapter-00001-of-00002.safetensors and so on."""
    return sorted(directory.glob("adapter*.safetensors")) or [directory / ADAPTER]


def _merged(plan: Plan, change: dict[str, SourceTensor], scale: Callable[[str, int], float],
            grows: bool) -> Plan:
    """The base with the tensors of an adapter. `grows`: it may bring new ones, and of other types
    and shapes."""
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    for name, b in change.items():
        if name.endswith(_A) and name.removesuffix(_A) + _B in change:
            continue
        stem = name.removesuffix(_B)
        a = change.get(stem + _A) if name.endswith(_B) else None
        target = name if a is None else f"{stem}.weight"
        base = tensors.get(target)
        if a is None and grows:
            base = PlannedTensor(name, b.dtype, b.shape, ())
        if base is None:
            raise Refusal(f"tensor {name}: the base has no {target}")
        _check_shape(base, b.shape if a is None else _shape_of_product(b, a))
        part = b if a is None else _Sum(base, a, b, scale(stem, a.shape[0]))
        tensors[target] = replace(base, parts=(part,))
    config = {key: plan.config[key] for key in plan.config if key != "weight_blocks"}  # no blocks
    return replace(plan, kind=f"{plan.kind}, with an adapter", tensors=list(tensors.values()),
                   config=config)


def _with_peft(plan: Plan, config: dict[str, Any], directory: Path) -> Plan:
    change = read_peft(config, directory)
    return _merged(with_both_matrices(plan), change, scale_of(config), grows=False)


def _with_tokenizer(plan: Plan, directory: Path) -> Plan:
    """If the adapter has a tokenizer, as trainers save it beside, takes all of its files."""
    files = side_files(directory, TOKENIZER_FILES)
    if not has_tokenizer(files):
        return plan
    size, name = plan.config["vocab_size"], "tokenizer.json"
    added = parse_json(files[name], name).get("added_tokens", []) if name in files else []
    for token in added:
        if token["id"] >= size:
            raise Refusal(f"{name}: of the adapter: its token {token['content']!r} has the id "
                          f"{token['id']}, but the model has {size} tokens")
    others = {name: file for name, file in plan.files.items() if name not in TOKENIZER_FILES}
    return replace(plan, files={**others, **files},
                   notes=[*plan.notes, "the tokenizer and its chat template are the adapter's"])


def with_adapter(plan: Plan, directory: Path) -> Plan:
    """Raises Refusal unless the adapter in `directory` fits."""
    return _with_tokenizer(_with_weights(plan, directory), directory)


def _with_weights(plan: Plan, directory: Path) -> Plan:
    config = parse_json(read_text(directory / CONFIG), CONFIG)
    if "peft_type" in config:
        return _with_peft(plan, config, directory)
    if "base_model_type" not in config:
        raise Refusal(f"{CONFIG}: neither of peft nor of foxify; mlx_lm.fuse merges an adapter of "
                      "mlx_lm")
    kind = config["base_model_type"]
    if kind != plan.config["model_type"] or not isinstance(config.get("config"), dict):
        raise Refusal(f"{CONFIG}: made for a {kind}, not for SRC, a {plan.config['model_type']}")
    change = {name: tensor for path in adapter_paths(directory)
              for name, tensor in read_safetensors(check_link(path)).items()}
    merged = _merged(plan, change, lambda module, rank: 1.0, grows=True)
    files = dict(plan.files)
    for name in (GENERATION, GAIN):
        if (directory / name).is_file():
            files[name] = {**files.get(name, {}), **parse_json(read_text(directory / name), name)}
    return replace(merged, config={**merged.config, **config["config"]}, files=files)
