"""A LoRA adapter of the package peft: adapter_model.safetensors, or .bin, and adapter_config.json.

W becomes W + scale B A, as in peft's merge_and_unload(); modules_to_save replace their tensors.
What would change the sum in another way is refused, and so is a key that is not known not to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.convert.refusal import Refusal
from models.convert.source_directory import read_weights_file
from models.convert.source_tensor import SourceTensor

_WEIGHTS, _PREFIX = ("adapter_model.safetensors", "adapter_model.bin"), "base_model.model."
# Factors of an embedding are transposed and have other names.
_EMBEDDING = {".lora_embedding_A": ".lora_B.weight", ".lora_embedding_B": ".lora_A.weight"}
# Keys that this module reads, and keys that only say how the adapter was trained or where it lies.
_KNOWN = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "ensure_weight_tying",
    "eva_config", "exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform",
    "lora_alpha", "lora_dropout", "megatron_core", "modules_to_save", "peft_type", "peft_version",
    "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config", "target_modules",
    "task_type", "use_rslora"}
# Other values than these of a known key would need more; pissa, for one, changes the base.
_ALLOWED = {"peft_type": ("LORA",), "bias": ("none",),
            "init_lora_weights": (True, "gaussian", "orthogonal", "eva")}


def _check(config: dict[str, Any]) -> None:
    for key, value in sorted(config.items(), key=lambda item: item[0] != "peft_type"):
        if value and (key not in _KNOWN | set(_ALLOWED) or value not in _ALLOWED.get(key, [value])):
            raise Refusal(f"adapter_config.json: {key} {value!r} is not supported; merge the "
                          "adapter with peft (merge_and_unload) unless it changes tied matrices, "
                          "then convert the model")
    pattern = config.get("alpha_pattern") or {}
    try:
        alphas = [config.get("lora_alpha"), *(pattern[key] for key in pattern if re.compile(key))]
    except (re.error, TypeError):
        alphas = [None]
    if not all(type(alpha) in (int, float) and math.isfinite(alpha) for alpha in alphas):
        raise Refusal("adapter_config.json: lora_alpha must be a number, alpha_pattern regular "
                      "expressions with numbers")


def _transposed(tensor: SourceTensor) -> SourceTensor:
    return replace(tensor, shape=tensor.shape[::-1], strides=tensor.strides[::-1])


def read_peft(config: dict[str, Any], directory: Path) -> dict[str, SourceTensor]:
    """The tensors by the names of the base, those of low rank last. Raises Refusal."""
    _check(config)
    path = next((directory / name for name in _WEIGHTS if (directory / name).is_file()), None)
    if path is None:
        raise Refusal(f"{directory}: has no {_WEIGHTS[0]}")
    tensors = {}
    for name, tensor in read_weights_file(path).items():
        # A matrix that stays beside its factors, because the vocabulary may have grown.
        plain = name.removeprefix(_PREFIX).replace(".base_layer.weight", ".weight")
        for factor in filter(plain.endswith, _EMBEDDING):
            plain, tensor = plain.removesuffix(factor) + _EMBEDDING[factor], _transposed(tensor)
        if not name.startswith(_PREFIX) or plain in tensors:
            raise Refusal(f"tensor {name}: not of a LoRA adapter of peft")
        tensors[plain] = tensor
    return dict(sorted(tensors.items(), key=lambda item: ".lora_" in item[0]))


def scale_of(config: dict[str, Any]) -> Callable[[str, int], float]:
    """The factor of B A, by the name of a module and its rank."""
    def scale(module: str, rank: int) -> float:
        pattern = config.get("alpha_pattern") or {}
        keys = (key for key in pattern if re.match(rf"(.*\.)?({key})$", module))
        alpha = float(pattern.get(next(keys, None), config["lora_alpha"]))
        return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return scale
