"""The tensors of a checkpoint, in order, each with the source tensors it is made from.

Invariant: plan_tensors(), and checked() after plan_as_it_is(), use every source tensor once, in its
exact shape, or raise Refusal naming the tensor. Only plan_tensors() maps FLA's names to the
official ones. Read output_directory.py next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from models.convert.canonical_config import CanonicalConfig
from models.convert.refusal import Refusal
from models.convert.rounding import TORCH_NAMES, as_float, convert, target_dtype
from models.convert.source_tensor import NUMPY_TYPES, SourceTensor
from models.convert.transformers_config import CLASSES, parse_transformers_config

# Wrappers (torch.compile, DDP, FSDP, activation checkpointing) that leave a trace in names.
_WRAPPERS = frozenset(
    ("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
)
_UNSUPPORTED = re.compile(r"(^|\.)((attn|mlp)_res_(proj|norm)|res_(proj|norm))\.")
_FLOAT32 = re.compile(r"\.self_attn\.(sinks|q_cap|k_cap)$")  # eviction bounds use them
_NORMS = re.compile(r"\.(attn_norm|input_layernorm|q_norm|k_norm)\.weight$")
LEAST_SCALE, MOST_SCALE = 2.0**-60, 2.0**60  # the bounds of models/checkpoint/checkpoint.cc
HEAD = "lm_head.weight"
EMBEDDINGS = ("model.embed_tokens.weight", "model.embeddings.weight")  # of transformers, of a FoX
_DERIVED = re.compile(r"\.rotary(_emb)?\.inv_freq$")  # recomputed from rope_base


@dataclass
class Plan:
    """The output of a conversion: configuration, tensors and files, and notes for the user."""

    kind: str
    config: dict[str, Any]
    tensors: list[PlannedTensor]
    notes: list[str] = field(default_factory=list)
    files: dict[str, dict[str, Any] | bytes] = field(default_factory=dict)  # besides copies


@dataclass(frozen=True)
class PlannedTensor:
    """An output tensor: `parts` one below the other (first dimension), rounded to `dtype`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[SourceTensor, ...]

    @property
    def byte_size(self) -> int:
        """Size in the output file."""
        return math.prod(self.shape) * NUMPY_TYPES[self.dtype].itemsize

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
        """Yields (rounded block, source block, source dtype) in row-major order, all flat."""
        for part in self.parts:
            for block in part.blocks():
                yield convert(block, part.dtype, self.dtype, self.name), block, part.dtype


def plain_names(tensors: dict[str, SourceTensor]) -> dict[str, SourceTensor]:
    """The tensors by the names of the class with an output layer: without traces of wrappers, and
    with the prefix that files of the class without one, as LlamaModel, lack."""
    result: dict[str, SourceTensor] = {}
    for name, tensor in tensors.items():
        pieces = [piece for piece in name.split(".") if piece not in _WRAPPERS]
        while len(pieces) > 1 and pieces[0] == "module":
            pieces.pop(0)
        plain = ".".join(pieces)
        if plain in result:
            raise Refusal(f"tensor {plain}: present twice, also as {name}")
        result[plain] = tensor
    if any(name.startswith("model.") for name in result):
        return result
    return {name if name.startswith("lm_head.") else f"model.{name}": tensor
            for name, tensor in result.items()}


class Pool:
    """The source tensors not used yet."""

    def __init__(self, tensors: dict[str, SourceTensor]) -> None:
        self._left = dict(tensors)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of an unused tensor; None if there is no tensor of this name."""
        tensor = self._left.get(name)
        return None if tensor is None else tensor.shape

    def take(self, name: str, shape: tuple[int, ...]) -> SourceTensor:
        """Removes and returns tensor `name`; it must have `shape`."""
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise Refusal(f"tensor {name}: missing")
        if tensor.shape != shape:
            raise Refusal(f"tensor {name}: shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor

    def drop_derived(self) -> None:
        """Removes buffers that the configuration determines."""
        for name in [n for n in self._left if _DERIVED.search(n)]:
            del self._left[name]

    def check_empty(self) -> None:
        """Raises Refusal if a source tensor was not used."""
        if self._left:
            rest = f" (and {len(self._left) - 1} more)" if len(self._left) > 1 else ""
            raise Refusal(f"tensor {min(self._left)}: left over, nothing uses it{rest}")


def same_values(a: SourceTensor, b: SourceTensor) -> bool:
    """True if two tensors have one type and shape, and hold the same bits."""
    if a is b:
        return True
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    pairs = zip(a.blocks(), b.blocks())
    return all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in pairs)


class _Planner:
    """Collects the planned tensors of one model."""

    def __init__(self, config: CanonicalConfig, pool: Pool, wanted: str) -> None:
        self._config, self._pool, self._wanted = config, pool, wanted
        self.planned: list[PlannedTensor] = []

    def add(self, name: str, shape: tuple[int, ...], *sources: str) -> None:
        """Plans output `name` from `sources` (its own name by default), split evenly over rows."""
        sources = sources or (name,)
        assert shape[0] % len(sources) == 0, name
        part_shape = (shape[0] // len(sources), *shape[1:])
        parts = tuple(self._pool.take(source, part_shape) for source in sources)
        dtypes = {target_dtype(part.dtype, self._wanted, part.name) for part in parts}
        if len(dtypes) != 1:
            raise Refusal(f"tensor {name}: its parts have different dtypes, use --dtype")
        self.planned.append(PlannedTensor(name, dtypes.pop(), shape, parts))

    def model(self) -> None:
        """Plans all tensors of the model."""
        c = self._config
        name, stored_head = EMBEDDINGS[1], self._pool.shape(HEAD) is not None
        alone = c.tied and stored_head and self._pool.shape(name) is None
        self.add(name, (c.vocab_size, c.hidden_size), *([HEAD] if alone else []))
        for index in range(c.num_layers):
            self._layer(f"model.layers.{index}.")
        self.add("model.norm.weight", (c.hidden_size,))
        if not c.tied or (stored_head and not alone):
            self.add(HEAD, (c.vocab_size, c.hidden_size))
        if c.tied and stored_head and not alone:
            c.tied = same_values(self.planned[-1].parts[0], self.planned[0].parts[0])
            if c.tied:
                self.planned.pop()

    def _layer(self, prefix: str) -> None:
        """Plans one block: attention, then the MLP."""
        c, wide = self._config, self._config.hidden_size
        self.add(prefix + "attn_norm.weight", (wide,))
        self._projections(prefix + "attn.")
        self._gates(prefix + "attn.")
        if c.use_output_norm:
            self.add(prefix + "attn.output_norm.weight", (wide,))
        if c.qk_norm:
            self._qk_norm(prefix + "attn.")
        self.add(prefix + "attn.o_proj.weight", (wide, wide))
        self.add(prefix + "mlp_norm.weight", (wide,))
        gate = prefix + "mlp.gate_proj.weight"
        halves = (gate, prefix + "mlp.up_proj.weight") if c.fla else (gate,)
        self.add(gate, (2 * c.intermediate_size, wide), *halves)
        self.add(prefix + "mlp.down_proj.weight", (wide, c.intermediate_size))

    def _projections(self, prefix: str) -> None:
        """Plans q, k, v with their shifts or biases."""
        c, wide = self._config, self._config.hidden_size
        rows = (
            ("q", wide, False),
            ("k", c.kv_size, c.use_k_shift),
            ("v", c.kv_size, c.use_v_shift),
        )
        for letter, height, shifted in rows:
            stem = f"{prefix}{letter}_proj."
            if shifted:
                self.add(stem + "linear.weight", (height, wide))
                self.add(stem + "shift_proj.weight", (c.num_kv_heads, wide))
            else:
                self.add(stem + "weight", (height, wide))
            if c.qkv_bias:
                self.add(stem + "bias", (height,))

    def _gates(self, prefix: str) -> None:
        """Plans the forget gate, then the output gate."""
        c, wide, heads = self._config, self._config.hidden_size, self._config.num_heads
        if c.fgate_type == "full":
            stem = self._forget_gate_stem(prefix)
            self.add(prefix + "fgate_proj.weight", (heads, wide), stem + ".weight")
            self.add(prefix + "fgate_proj.bias", (heads,), stem + ".bias")
        elif c.fgate_type != "none":
            self.add(prefix + "fgate_bias", (heads,))
        if c.use_output_gate:
            stem = prefix + ("g_proj" if c.fla else "ogate_proj")
            self.add(prefix + "ogate_proj.weight", (wide, wide), stem + ".weight")

    def _forget_gate_stem(self, prefix: str) -> str:
        """The forget gate's name. For a day FLA called it g_proj; its shape tells it apart."""
        c = self._config
        if not c.fla:
            return prefix + "fgate_proj"
        renamed = self._pool.shape(prefix + "f_proj.weight") is None
        by_shape = self._pool.shape(prefix + "g_proj.weight") == (c.num_heads, c.hidden_size)
        return prefix + ("g_proj" if renamed and by_shape else "f_proj")

    def _qk_norm(self, prefix: str) -> None:
        """Plans norm weights: per head, or one [head_dim] vector shared by all heads."""
        c = self._config
        for letter, wide in (("q", c.hidden_size), ("k", c.kv_size)):
            shape = (c.head_dim,) if c.qk_norm_shared else (wide,)
            self.add(f"{prefix}{letter}_norm.weight", shape)


def plan_as_it_is(
    config: dict[str, Any], tensors: dict[str, SourceTensor], wanted: str
) -> Plan:
    """A checkpoint in a layout that the server loads, under its own names; see checked()."""
    planned = [
        PlannedTensor(
            name,
            target_dtype(tensor.dtype, "f32" if _FLOAT32.search(name) else wanted, name),
            tensor.shape,
            (tensor,),
        )
        for name, tensor in tensors.items()
        if not _DERIVED.search(name)
    ]
    if wanted != "keep":
        config = {**config, "dtype" if "dtype" in config else "torch_dtype": TORCH_NAMES[wanted]}
    return Plan(f"{config['model_type']} layout", config, planned)


def plan_tensors(
    config: CanonicalConfig, tensors: dict[str, SourceTensor], wanted: str
) -> list[PlannedTensor]:
    """The canonical tensors, in the order of the model. `wanted`: keep, f32, bf16 or f16.

    May set config.qk_norm_shared, which early FLA checkpoints tell by shape alone, and config.tied,
    which is false if both matrices are stored and differ.
    """
    unsupported = sorted(name for name in tensors if _UNSUPPORTED.search(name))
    if unsupported:
        raise Refusal(f"tensor {unsupported[0]}: attention residuals are not supported")
    pool = Pool(tensors)
    pool.drop_derived()
    if config.fla and config.qk_norm:
        early = pool.shape("model.layers.0.attn.q_norm.weight") == (config.head_dim,)
        config.qk_norm_shared = early and config.num_heads > 1
    planner = _Planner(config, pool, wanted)
    planner.model()
    pool.check_empty()
    if config.fgate_type != "none":
        _check_scales(planner.planned)
    return planner.planned


def with_both_matrices(plan: Plan) -> Plan:
    """The plan with the matrix of a tied model under both names, as an adapter may change one."""
    stored = [tensor for tensor in plan.tensors if tensor.name in (*EMBEDDINGS, HEAD)]
    if plan.config.get("tie_word_embeddings") is not True or len(stored) != 1:
        return plan
    other = EMBEDDINGS[0] if stored[0].name == HEAD else HEAD
    return replace(plan, tensors=[*plan.tensors, replace(stored[0], name=other)])


def _with_one_matrix(plan: Plan) -> Plan:
    """If a tied matrix is there twice, drops one copy; if the two differ, they are not tied."""
    stored = [tensor for tensor in plan.tensors if tensor.name in (*EMBEDDINGS, HEAD)]
    if plan.config.get("tie_word_embeddings") is not True or len(stored) != 2:
        return plan
    if same_values(*(tensor.parts[0] for tensor in stored)):
        return replace(plan, tensors=[tensor for tensor in plan.tensors if tensor.name != HEAD])
    return replace(plan, config={**plan.config, "tie_word_embeddings": False})


def checked(plan: Plan) -> Plan:
    """Returns `plan`; Refusal unless its tensors are the ones that its config.json names."""
    plan = _with_one_matrix(plan)
    if plan.config["model_type"] not in CLASSES:
        return plan
    config = parse_transformers_config(plan.config)
    planned = {tensor.name: tensor for tensor in plan.tensors}
    shapes = config.shapes()
    if config.tied and HEAD in planned:
        shapes[HEAD] = shapes.pop(EMBEDDINGS[0])
    left = dict(planned)
    for name, shape in shapes.items():
        tensor = left.pop(name, None)
        if tensor is None:
            raise Refusal(f"tensor {name}: missing")
        if tensor.shape != shape:
            raise Refusal(f"tensor {name}: shape {list(tensor.shape)}, expected {list(shape)}")
    if left:
        rest = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        raise Refusal(f"tensor {min(left)}: left over, nothing uses it{rest}")
    if config.forgets:
        _check_scales(list(planned.values()))
    return plan


def _check_scales(planned: list[PlannedTensor]) -> None:
    """Refuses values without eviction bounds, as models/checkpoint/checkpoint.cc does."""
    for tensor in planned:
        norm = _NORMS.search(tensor.name)
        if not norm and not _FLOAT32.search(tensor.name):
            continue
        for block, _, _ in tensor.blocks():
            values = as_float(block, tensor.dtype).astype(np.float64)
            good = np.isfinite(values)
            if norm:
                good = ~good | (values == 0)
            if not tensor.name.endswith(".sinks"):
                size = np.abs(values) if norm else values
                in_range = (size >= LEAST_SCALE) & (size <= MOST_SCALE)
                good = good | in_range if norm else in_range
            if not good.all():
                raise Refusal(f"tensor {tensor.name}: holds {values[~good][0]:g}, which the bounds "
                              "of pruning cannot take")
