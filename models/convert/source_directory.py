"""Opens a source directory of any kind as a configuration and a dictionary of tensors.

Kinds: HuggingFace style (config.json with .safetensors or .bin, single or sharded; official or
FLA), and a training run (config.yaml, checkpoints/step-*.pt). Nothing but headers is read here.
Read tensor_plan.py next.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.convert.canonical_config import OFFICIAL_TYPE
from models.convert.refusal import Refusal
from models.convert.restricted_pickle import TorchArchive
from models.convert.safetensors_io import parse_json, read_safetensors
from models.convert.source_tensor import SourceTensor
from models.convert.tensor_plan import same_values, plain_names

MAX_TEXT_BYTES = 64 << 20
_STEP = re.compile(r"step-(\d+)\.pt")
_VOCAB_KEYS = ("train_data_info/vocab_size", "vocab_size")


@dataclass
class Source:
    """An opened directory."""

    config: dict[str, Any]
    tensors: dict[str, SourceTensor]
    kind: str  # for the user
    notes: list[str] = field(default_factory=list)  # remarks for the user


def check_link(path: Path, directory: Path | None = None) -> Path:
    """Returns `path`; Refusal if it is a link out of `directory`, by default its parent.

    A downloaded directory could use such a link to have any text of this machine copied. A link may
    leave only a snapshot of a Hugging Face cache, for its blob. models/checkpoint/model_dir.cc has
    the same rule.
    """
    directory = path.parent if directory is None else directory
    root, target = Path(os.path.realpath(directory)), Path(os.path.realpath(path))
    repository = root.parent.parent
    cached = root.parent.name == "snapshots" and repository.name.startswith("models--")
    is_blob = cached and path.is_symlink() and target.parent == repository / "blobs"
    if is_blob or target.is_relative_to(root):
        return path
    raise Refusal(f"{path.name}: is a symbolic link that leaves {directory.name or directory}; "
                  "copy the file itself into it (hf download REPO --local-dir DIR does)")


def read_text(path: Path, directory: Path | None = None) -> bytes:
    """The bytes of a small text file. `directory`: see check_link."""
    if not path.is_file():
        raise Refusal(f"{path.name}: missing")
    with open(check_link(path, directory), "rb") as file:
        text = file.read(MAX_TEXT_BYTES + 1)
    if len(text) > MAX_TEXT_BYTES:
        raise Refusal(f"{path.name}: larger than {MAX_TEXT_BYTES} bytes")
    return text


def open_source(directory: Path, step: int | None) -> Source:
    """Opens `directory`. `step` picks a training checkpoint; None is the newest."""
    if not directory.is_dir():
        raise Refusal(f"{directory}: not a directory")
    if (directory / "adapter_config.json").is_file():
        raise Refusal("adapter_config.json: SRC has an adapter, which transformers would apply to "
                      "its base: convert BASE DST --adapter SRC merges it; remove this file if the "
                      "weights here have it merged")
    if (directory / "config.json").is_file():
        if step is not None:
            raise Refusal("--step: not a training run, there is a config.json")
        source = _open_huggingface(directory)
    elif (directory / "config.yaml").is_file():
        source = _open_training(directory, step)
    else:
        raise Refusal(f"{directory}: neither config.json nor config.yaml")
    source.tensors = plain_names(source.tensors)
    return source


def read_weights_file(path: Path, directory: Path | None = None) -> dict[str, SourceTensor]:
    """The tensors of one .safetensors or .bin file. `directory`: see check_link."""
    if not path.is_file():
        raise Refusal(f"{path.name}: missing")
    check_link(path, directory)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    archive = TorchArchive(path)
    state = archive.content
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # as trainers save it
    return _resolve(archive, state, path.name)


def _resolve(archive: TorchArchive, state: Any, what: str) -> dict[str, SourceTensor]:
    """The tensors of a state dict."""
    if not isinstance(state, dict):
        raise Refusal(f"{what}: not a state dict")
    for name in state:
        if type(name) is not str:
            raise Refusal(f"{what}: a state dict with a key that is not text")
    return {name: archive.tensor(name, value) for name, value in state.items()}


def _read_shards(index: Path) -> dict[str, SourceTensor]:
    """The tensors of all files that `index` lists; as in transformers, it is a list of files only.

    A tensor in two files must be the same in both.
    """
    weight_map = parse_json(read_text(index), index.name).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        type(name) is str for name in weight_map.values()
    ):
        raise Refusal(f"{index.name}: no weight_map")
    tensors: dict[str, SourceTensor] = {}
    for shard in sorted(set(weight_map.values())):
        leaves = Path(shard).is_absolute() or ".." in Path(shard).parts
        if leaves or Path(shard).suffix not in (".safetensors", ".bin"):
            raise Refusal(f"{index.name}: {shard!r} is not the name of a weights file")
        for name, tensor in read_weights_file(index.parent / shard, index.parent).items():
            first = tensors.setdefault(name, tensor)
            if not same_values(first, tensor):
                raise Refusal(f"tensor {name}: in {shard}, and another in an earlier file")
    return tensors


def _open_huggingface(directory: Path) -> Source:
    """config.json, and weights in the order of preference of the transformers library."""
    config = parse_json(read_text(directory / "config.json"), "config.json")
    for stem in ("model.safetensors", "pytorch_model.bin"):
        single, index = directory / stem, directory / f"{stem}.index.json"
        if single.is_file():
            return Source(config, read_weights_file(single), stem)
        if index.is_file():
            return Source(config, _read_shards(index), f"{stem} (sharded)")
    raise Refusal("model.safetensors: missing, and so are its index and pytorch_model.bin")


def pick_step(directory: Path, step: int | None) -> tuple[Path, list[str]]:
    """The checkpoint of `step`, or the newest one, and notes for the user.

    The trainer marks a complete step-N.pt with an empty step-N.pt.done. If any step has
    the mark, steps without it are passed over; a run copied without marks is taken as it is.
    """
    steps = {}
    for path in directory.glob("step-*.pt"):
        match = _STEP.fullmatch(path.name)
        if match:
            steps[int(match.group(1))] = path
    if not steps:
        raise Refusal("checkpoints: no step-*.pt")
    if step is not None:
        if step not in steps:
            known = ", ".join(str(number) for number in sorted(steps)[-8:])
            raise Refusal(f"checkpoints: no step {step} (there are {known})")
        return steps[step], []
    done = {n: path for n, path in steps.items() if path.with_name(path.name + ".done").exists()}
    newest = max(done or steps)
    notes = []
    if newest != max(steps):
        notes.append(f"step {max(steps)} is not marked as complete: taking step {newest}")
    return steps[newest], notes


def _load_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping, by the safe loader."""
    try:
        import yaml
    except ImportError:
        raise Refusal("config.yaml: reading it needs PyYAML (pip install pyyaml)") from None

    class Loader(yaml.SafeLoader):
        """A safe loader without aliases, which can make a short text a value of any size."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise Refusal(f"{path.name}: YAML aliases are not supported")
            return super().compose_node(parent, index)

    try:
        value = yaml.load(read_text(path), Loader)
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise Refusal(f"{path.name}: not valid YAML ({problem})") from None
    if not isinstance(value, dict):
        raise Refusal(f"{path.name}: not a mapping")
    return value


def _vocabulary_size(directory: Path) -> int | None:
    """The vocabulary's size in the run's metrics; None if they are absent."""
    path = directory / "metrics" / "jsonlines" / "train_data_info.jsonl"
    if not path.is_file():
        return None
    first = next((line for line in read_text(path).splitlines() if line.strip()), b"")
    record = parse_json(first, path.name)
    for key in _VOCAB_KEYS:
        value = record.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    raise Refusal(f"{path.name}: no {_VOCAB_KEYS[0]}")


def _training_config(directory: Path) -> dict[str, Any]:
    """The model.config subtree of config.yaml with model_type; vocab_size may be missing (None)."""
    model = _load_yaml(directory / "config.yaml").get("model")
    config = model.get("config") if isinstance(model, dict) else None
    if not isinstance(config, dict):
        raise Refusal("config key model.config: missing in config.yaml")
    target = config.get("_target_", "ForgettingTransformerConfig")
    if not str(target).endswith("ForgettingTransformerConfig"):
        raise Refusal(f"config key model.config._target_: {target!r} is not supported")
    config["model_type"] = OFFICIAL_TYPE
    # The trainer's own defaults, as far as they differ from the defaults of config.json.
    for key in ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"):
        config.setdefault(key, None)
    stated, counted = config.get("vocab_size"), _vocabulary_size(directory)
    stated = None if stated == "???" else stated
    if None not in (stated, counted) and stated != counted:
        raise Refusal(f"config key vocab_size: {stated!r}, but train_data_info says {counted}")
    config["vocab_size"] = counted if stated is None else stated
    return config


def _open_training(directory: Path, step: int | None) -> Source:
    """A training run: config.yaml and one of its checkpoints."""
    config = _training_config(directory)
    path, notes = pick_step(directory / "checkpoints", step)
    check_link(path, directory)
    archive = TorchArchive(path, keep_unknown=True)
    state = archive.content.get("model") if isinstance(archive.content, dict) else None
    if state is None:
        raise Refusal(f"{path.name}: no key model")
    tensors = _resolve(archive, state, f"{path.name}: key model")
    if archive.unknown_globals:
        shown = ", ".join(archive.unknown_globals[:4])
        more = ", .." if len(archive.unknown_globals) > 4 else ""
        notes.append(f"not loaded, as not needed for the weights: {shown}{more}")
    if config["vocab_size"] is None:
        config["vocab_size"] = _rows_of_embeddings(tensors)
        notes.append(
            f"no train_data_info.jsonl: vocab_size {config['vocab_size']} is the "
            "number of embedding rows"
        )
    return Source(config, tensors, path.name, notes)


def _rows_of_embeddings(tensors: dict[str, SourceTensor]) -> int:
    """The height of the embedding matrix."""
    embeddings = plain_names(tensors).get("model.embeddings.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise Refusal("tensor model.embeddings.weight: missing")
    return embeddings.shape[0]
