"""Training checkpoints: written whole or not at all, read back to continue bit for bit.

A checkpoint step-N.pt holds the model, the optimizer, the step, the seconds trained, random states,
the settings of the run, and additions of the program. It gets its name by a rename
after its bytes are on the disk, so a file of that name is complete whenever the process dies.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_NAME = re.compile(r"step-(\d+)\.pt")
LENGTHS = ("epochs", "steps", "minutes_total")
KEPT = 2  # the newest, and one before it in case the disk loses the newest


class TrainingError(Exception):
    """Training cannot start or continue; the message says what to do."""


def _steps(folder: Path) -> Iterator[tuple[int, Path]]:
    """Steps and paths of the checkpoints, newest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("step-*.pt")]
    yield from sorted(((int(m.group(1)), path) for m, path in found if m), reverse=True)


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Writes state["step"]'s checkpoint; removes all but the newest KEPT.

    Raises TrainingError if the disk does not take it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{state['step']:09d}.pt"
    assert _NAME.fullmatch(path.name)  # or load_checkpoint() would not find it
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch hides the system's error behind its own
        partial.unlink(missing_ok=True)
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        raise TrainingError(f"{path} cannot be written ({cause or error}); the checkpoint before "
                            "it, if any, is kept") from None
    os.replace(partial, path)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    for _, old in list(_steps(folder))[KEPT:]:
        old.unlink()
    for stale in folder.glob("*.partial"):
        stale.unlink()
    return path


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, on the CPU; None if there is none."""
    for _, path in _steps(folder):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
            print(f"finetune: {path} cannot be read ({error}); trying the one before it",
                  file=sys.stderr)
    return None


def _differences(saved: Any, now: Any, name: str) -> Iterator[str]:
    if isinstance(saved, dict) and isinstance(now, dict):
        for key in sorted(set(saved) | set(now)):
            yield from _differences(saved.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif saved != now:
        yield f"{name} was {saved!r} and is now {now!r}"


def check_settings(saved: dict[str, Any], now: dict[str, Any], out: Path) -> str:
    """Raises TrainingError if a run under `now` would not continue the training of `saved`.

    A training may get longer: returns the settings that have grown, as text.
    """
    longer = {name: now[name] for name in LENGTHS
              if saved.get(name) and now.get(name) and saved[name] < now[name]}
    different = list(_differences({**saved, **longer}, now, ""))
    if different:
        raise TrainingError(f"{out} holds a training with other settings: " + "; ".join(different)
                            + ". Give the old values, or another --out")
    return "; ".join(_differences(saved, {**saved, **longer}, ""))


def random_states() -> dict[str, Any]:
    """The states of PyTorch's generators."""
    states: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: dict[str, Any]) -> None:
    """Restores random_states(), as far as this process has the same devices."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
