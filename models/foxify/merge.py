"""Merges an adapter of foxify into its base: a directory that the server loads. Needs only numpy.

    merge.py BASE ADAPTER DST        ADAPTER: the --out of ./run foxify

A tensor NAME.lora_B.weight with its NAME.lora_A.weight adds B A to NAME.weight, in float32, rounded
to the base's type; every other tensor of the adapter is taken as it is, or replaces the base's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import options  # noqa: F401  (finds models/convert)

import numpy as np
import output_directory
from refusal import Refusal
from rounding import as_float, convert
from safetensors_io import SafetensorsWriter, parse_json, read_safetensors
from source_directory import open_source, read_text
from source_tensor import SourceTensor
from tensor_plan import PlannedTensor

ADAPTER, CONFIG = "adapter.safetensors", "adapter_config.json"
_A, _B = ".lora_A.weight", ".lora_B.weight"
MAX_SHARD_BYTES = 5 * 10**9


def _values(tensor: SourceTensor) -> np.ndarray:
    """As float32."""
    blocks = [as_float(block, tensor.dtype) for block in tensor.blocks()]
    return np.concatenate(blocks).astype(np.float32, copy=False).reshape(tensor.shape)


def _write_sums(path: Path, base: dict[str, SourceTensor], adapter: dict[str, SourceTensor]
                ) -> dict[str, SourceTensor]:
    """The changed matrices, one at a time, in a file."""
    names = [name.removesuffix(_B) for name in adapter if name.endswith(_B)]
    for name in names:
        matrix, b = base.get(f"{name}.weight"), adapter[name + _B]
        a = adapter.get(name + _A)
        if matrix is None or a is None or (b.shape[0], a.shape[1]) != matrix.shape:
            raise Refusal(f"tensor {name}{_B}: does not fit the base")
    targets = [base[f"{name}.weight"] for name in names]
    writer = SafetensorsWriter(path, [(t.name, t.dtype, t.shape) for t in targets])
    try:
        for name, target in zip(names, targets):
            change = _values(adapter[name + _B]) @ _values(adapter[name + _A])
            merged = convert(_values(target) + change, "F32", target.dtype, target.name)
            writer.write(np.ascontiguousarray(merged).data.cast("B"))
        writer.close()
    finally:
        writer.abandon()
    return read_safetensors(path)


def merge(base: Path, adapter: Path, destination: Path) -> None:
    """Raises Refusal; `destination` appears whole or not at all."""
    destination = destination.absolute()
    output_directory.check_destination(destination, force=True)
    config: dict[str, Any] = parse_json(read_text(adapter / CONFIG), CONFIG)
    source, change = open_source(base, None), read_safetensors(adapter / ADAPTER)
    if config["base_model_type"] != source.config.get("model_type"):
        raise Refusal(f"{CONFIG}: made for a {config['base_model_type']}, not for {base}")
    with output_directory.staged(destination) as stage:
        sums = stage / "sums.partial"
        tensors = {**source.tensors, **_write_sums(sums, source.tensors, change)}
        tensors |= {n: t for n, t in change.items() if not n.endswith((_A, _B))}
        planned = [PlannedTensor(n, t.dtype, t.shape, (t,)) for n, t in tensors.items()]
        output_directory.check_space(destination, planned)
        output_directory.write_tensors(stage, planned, MAX_SHARD_BYTES)
        sums.unlink()
        output_directory.write_file(stage / "config.json", {**source.config, **config["config"]})
        output_directory.copy_side_files(base, stage)
        if (base / "chat_format.json").is_file():
            output_directory.write_file(stage / "chat_format.json",
                                        json.loads((base / "chat_format.json").read_text()))


def main() -> int:
    """The command."""
    if len(sys.argv) != 4:
        sys.exit("usage: merge.py BASE ADAPTER DST")
    try:
        merge(*(Path(argument) for argument in sys.argv[1:]))
    except (Refusal, OSError) as error:
        print(f"merge: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
