"""Writes the canonical directory, and compares a written one with its source.

Invariant: the destination appears by one rename at the very end; until then all files are in a
sibling directory, which is removed on any error or interruption.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models.convert import chat_template
from models.convert.refusal import Refusal
from models.convert.rounding import as_float, count_nonfinite
from models.convert.safetensors_io import SafetensorsWriter, parse_json
from models.convert.source_directory import read_text
from models.convert.source_tensor import NUMPY_TYPES, SourceTensor
from models.convert.tensor_plan import PlannedTensor

VOCABULARY_FILES = ("tokenizer.model", "tokenizer.json", "vocab.json")  # a tokenizer has one
TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    *chat_template.FILES.values(),
    "chat_format.json",
)
INDEX = "model.safetensors.index.json"


class Progress:
    """Shows percentage and MB/s in one line on stderr; without a terminal, a line per quarter."""

    QUIET_BYTES = 64 << 20  # bytes; smaller results get no line without a terminal

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total = label, max(1, total)
        self._done, self._shown, self._start = 0, 0.0, time.monotonic()
        self._terminal = sys.stderr.isatty()

    def add(self, count: int) -> None:
        """Adds `count` bytes to the progress."""
        self._done += count
        share = self._done / self._total
        if not self._terminal and self._total < self.QUIET_BYTES:
            return
        if share >= 1 or share - self._shown >= (0.01 if self._terminal else 0.25):
            self._shown = share
            rate = self._done / 1e6 / max(1e-6, time.monotonic() - self._start)
            line = f"{self._label} {100 * share:5.1f} %  {rate:.0f} MB/s"
            end = "\n" if share >= 1 or not self._terminal else ""
            print(("\r" if self._terminal else "") + line, end=end, file=sys.stderr, flush=True)


@dataclass
class WriteReport:
    """The result of write_tensors."""

    nonfinite: dict[str, int] = field(default_factory=dict)  # tensor -> NaN and infinite elements


@dataclass
class VerifyReport:
    """The result of verify_tensors."""

    compared: int = 0  # elements
    different: dict[str, int] = field(default_factory=dict)  # tensor -> elements
    largest_difference: float = 0.0  # written against rounded source: 0 unless different
    largest_rounding: float = 0.0  # written against source


def split_shards(planned: list[PlannedTensor], limit: int) -> dict[str, list[PlannedTensor]]:
    """Splits tensors into files: name -> tensors, of at most `limit` bytes or a single tensor.

    Within a file wide elements come first, so that every tensor is aligned to its element size.
    """
    shards: list[list[PlannedTensor]] = [[]]
    filled = 0
    for tensor in planned:
        if shards[-1] and filled + tensor.byte_size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.byte_size
    assert sum(map(len, shards)) == len(planned)
    for shard in shards:
        shard.sort(key=lambda t: -NUMPY_TYPES[t.dtype].itemsize)
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    count = len(shards)
    return {f"model-{i + 1:05d}-of-{count:05d}.safetensors": s for i, s in enumerate(shards)}


def write_tensors(directory: Path, planned: list[PlannedTensor], limit: int) -> WriteReport:
    """Writes the weights files, and the index if there are several."""
    report = WriteReport()
    shards = split_shards(planned, limit)
    total = sum(tensor.byte_size for tensor in planned)
    progress = Progress("writing", total)
    for filename, tensors in shards.items():
        entries = [(t.name, t.dtype, t.shape) for t in tensors]
        writer = SafetensorsWriter(directory / filename, entries)
        try:
            for tensor in tensors:
                _write_tensor(writer, tensor, report, progress)
            writer.close()
        finally:
            writer.abandon()
    if len(shards) > 1:
        weight_map = {t.name: filename for filename, ts in shards.items() for t in ts}
        write_file(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return report


def _write_tensor(
    writer: SafetensorsWriter, tensor: PlannedTensor, report: WriteReport, progress: Progress
) -> None:
    """Streams one tensor and counts its non-finite elements."""
    bad = written = 0
    for rounded, _, _ in tensor.blocks():
        bad += count_nonfinite(rounded, tensor.dtype)
        writer.write(np.ascontiguousarray(rounded).data.cast("B"))
        written += rounded.nbytes
        progress.add(rounded.nbytes)
    assert written == tensor.byte_size, tensor.name
    if bad:
        report.nonfinite[tensor.name] = bad


def write_file(path: Path, content: dict[str, Any] | bytes) -> None:
    """Writes bytes, or a dictionary as JSON, and flushes them to the disk."""
    if isinstance(content, dict):
        content = (json.dumps(content, indent=2) + "\n").encode()
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def add_file(path: Path, content: dict[str, Any] | bytes) -> None:
    """Writes a file; the keys of a dictionary replace keys of an existing JSON file."""
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, dict) and path.exists():
        content = {**parse_json(path.read_bytes(), path.name), **content}
    write_file(path, content)


def side_files(directory: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of the files that there are, by name."""
    return {name: read_text(directory / name, directory)
            for name in names if (directory / name).is_file()}


def has_tokenizer(names: Iterable[str]) -> bool:
    """True if the files are those of a tokenizer, and perhaps others."""
    return not set(VOCABULARY_FILES).isdisjoint(names)


def verify_tensors(planned: list[PlannedTensor], written: dict[str, SourceTensor]) -> VerifyReport:
    """Compares every element of `written` with the source after the same rounding."""
    names = {tensor.name for tensor in planned}
    if names != set(written):
        raise Refusal(f"tensor {min(names ^ set(written))}: not in both source and destination")
    report = VerifyReport()
    progress = Progress("verifying", sum(tensor.byte_size for tensor in planned))
    for tensor in planned:
        copy = written[tensor.name]
        if (copy.dtype, copy.shape) != (tensor.dtype, tensor.shape):
            raise Refusal(
                f"tensor {tensor.name}: the destination holds {copy.dtype} {list(copy.shape)}, "
                f"expected {tensor.dtype} {list(tensor.shape)}"
            )
        _verify_tensor(tensor, copy, report, progress)
    return report


def _verify_tensor(
    tensor: PlannedTensor, copy: SourceTensor, report: VerifyReport, progress: Progress
) -> None:
    """Compares bits, so that NaN equals itself, and measures differences as numbers."""
    bits = np.dtype(f"u{NUMPY_TYPES[tensor.dtype].itemsize}")
    have = _Elements(copy.blocks())
    for rounded, source, source_dtype in tensor.blocks():
        block = have.take(rounded.size)
        report.compared += rounded.size
        unequal = int(np.count_nonzero(block.view(bits) != rounded.view(bits)))
        got = as_float(block, tensor.dtype)
        if unequal:
            report.different[tensor.name] = report.different.get(tensor.name, 0) + unequal
            gap = _largest_gap(got, as_float(rounded, tensor.dtype))
            report.largest_difference = max(report.largest_difference, gap)
        if tensor.dtype != source_dtype:
            gap = _largest_gap(got, as_float(source, source_dtype))
            report.largest_rounding = max(report.largest_rounding, gap)
        progress.add(rounded.nbytes)


class _Elements:
    """Regroups blocks into runs of a wanted length."""

    def __init__(self, blocks: Iterator[np.ndarray]) -> None:
        self._blocks = blocks
        self._rest: list[np.ndarray] = []

    def take(self, count: int) -> np.ndarray:
        """Returns the next `count` elements."""
        held = sum(piece.size for piece in self._rest)
        while held < count:
            self._rest.append(next(self._blocks))
            held += self._rest[-1].size
        joined = self._rest[0] if len(self._rest) == 1 else np.concatenate(self._rest)
        self._rest = [joined[count:]]
        return joined[:count]


def _largest_gap(a: np.ndarray, b: np.ndarray) -> float:
    """max |a - b|; infinite where only one of them is NaN or they are different infinities."""
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.abs(a.astype(np.float64) - b.astype(np.float64))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gaps[same] = 0.0
    return float(np.max(np.where(np.isnan(gaps), np.inf, gaps), initial=0.0))


def check_config(directory: Path, expected: dict[str, Any]) -> None:
    """Raises Refusal unless the written config.json equals the planned one."""
    found = parse_json(read_text(directory / "config.json"), "config.json")
    for key in sorted(set(expected) | set(found)):
        if json.dumps(expected.get(key)) != json.dumps(found.get(key)):  # as text NaN equals itself
            raise Refusal(f"config key {key}: the destination differs from the source")


def check_destination(destination: Path, force: bool) -> None:
    """Refuses a destination that must not be replaced."""
    if not destination.parent.is_dir():
        raise Refusal(f"{destination.parent}: not a directory")
    if not os.path.lexists(destination):
        return
    if destination.is_symlink() or not destination.is_dir():
        raise Refusal(f"{destination}: exists and is not a directory")
    if not any(destination.iterdir()):
        return
    if not force:
        raise Refusal(f"{destination}: exists (--force replaces it)")
    entries = list(destination.iterdir())
    if not (destination / "config.json").is_file() or any(e.is_dir() for e in entries):
        raise Refusal(f"{destination}: exists and is no model directory, --force refuses it")


def check_space(destination: Path, planned: list[PlannedTensor]) -> None:
    """Refuses to start if the disk is too small for the result."""
    need = sum(tensor.byte_size for tensor in planned) + (16 << 20)
    free = shutil.disk_usage(destination.parent).free
    if free < need:
        raise Refusal(f"{destination.parent}: {need >> 20} MiB needed, {free >> 20} MiB free")


@contextlib.contextmanager
def staged(destination: Path) -> Iterator[Path]:
    """A sibling directory that becomes `destination` when the block succeeds, else vanishes."""
    prefix, parent = f".{destination.name}.", destination.parent
    stage = Path(tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=parent))
    try:
        mask = os.umask(0)
        os.umask(mask)
        stage.chmod(0o777 & ~mask)
        yield stage
        replaced = None
        if destination.exists():
            replaced = Path(tempfile.mkdtemp(prefix=prefix, suffix=".replaced", dir=parent))
            destination.rename(replaced)
        try:
            stage.rename(destination)
        except BaseException:
            if replaced is not None:
                replaced.rename(destination)
            raise
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
