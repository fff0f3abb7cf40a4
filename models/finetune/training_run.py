"""What finetune and foxify share of a run: its batches, tokens, signals, and failures in a line."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.finetune.model_directory import Refusal
from models.finetune.process_group import ProcessGroup
from models.finetune.progress import ProgressLine
from models.finetune.text_tokens import TextError, open_tokens, write_tokens
from models.finetune.training_state import TrainingError

EXIT_FAILED, EXIT_UNFINISHED = 1, 3


def activation_bytes(hidden: int, inner: int, layers: int, recompute: bool) -> int:
    """Of one token, mostly bf16: those of all layers, or of one and each layer's input."""
    layer = 30 * hidden + 8 * inner
    return 4 * hidden * layers + layer if recompute else layer * layers


class TrainingRun:
    """One run, in each of its processes."""

    finished: bool  # not stopped before
    micro: int  # windows of a pass

    def __init__(self, args: Namespace, group: ProcessGroup, tokenizer_dir: Path) -> None:
        self.args, self.group, self.folder = args, group, args.out / "training"
        self.tokenizer_dir, self.line, self.stop_asked = tokenizer_dir, ProgressLine(), False
        self.windows_a_step = max(1, args.batch_tokens // args.window)
        if self.windows_a_step % group.size:
            raise TrainingError(f"a batch of {self.windows_a_step} windows cannot be shared by "
                                f"{group.size} processes: --batch-tokens must be a multiple of "
                                f"{args.window * group.size}")

    def windows_that_fit(self) -> int:
        """Of one pass, into the free memory."""
        raise NotImplementedError

    def plan_passes(self) -> None:
        """Windows of one pass, and passes of this process in a step. Collective."""
        share = self.windows_a_step // self.group.size
        fits = self.args.micro_batch or self.windows_that_fit()
        self.micro = min(share, self.group.from_first([fits])[0])
        while share % self.micro:
            self.micro -= 1
        self.passes = share // self.micro

    def tokens(self, texts: list[Path], name: str) -> tuple[np.ndarray, Any]:
        """A token file as it is; texts are encoded by the first process. Collective."""
        if len(texts) == 1 and texts[0].suffix == ".tokens":
            return open_tokens(texts[0])
        path = self.folder / name
        if self.group.is_first:
            self.line.doing(f"encoding {name}")
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tokens(texts, self.tokenizer_dir, path, self.args.workers)
        self.group.barrier()
        return open_tokens(path)

    def ask_to_stop(self, *_: Any) -> None:
        """A signal's handler: stops soon; the second time, at once."""
        if self.stop_asked:
            raise KeyboardInterrupt
        self.stop_asked = True
        if self.group.is_first:  # not by print(), which the signal may have interrupted
            os.write(2, b"\nstopping after this step; once more: at once\n")


def _memory_advice(trainer: TrainingRun | None) -> str:
    if trainer is None:
        return "out of GPU memory while loading the model"
    advice = "try --recompute, or a smaller --window"
    if trainer.micro > 1:
        advice = f"try --micro-batch {trainer.micro // 2}, then --recompute"
    return (f"out of GPU memory with {trainer.micro} windows of {trainer.args.window} tokens in "
            f"one pass: {advice}")


def _run(trainer_class: type[TrainingRun], args: Namespace, group: ProcessGroup) -> int:
    trainer = None
    try:
        trainer = trainer_class(args, group)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, trainer.ask_to_stop)
        trainer.resume()
        if group.is_first:
            trainer.introduce()
        trainer.train()
        if group.is_first:
            trainer.finish()
        return 0 if trainer.finished else EXIT_UNFINISHED
    except torch.OutOfMemoryError:
        raise TrainingError(_memory_advice(trainer)) from None


def run_to_end(program: str, trainer_class: type[TrainingRun], args: Namespace) -> int:
    """One run; returns the exit status."""
    group = ProcessGroup()
    try:
        return _run(trainer_class, args, group)
    except (Refusal, TextError, TrainingError) as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename or 'input/output'}: {error.strerror or error}"
    except KeyboardInterrupt:
        message = "interrupted; the last checkpoint is kept"
    finally:
        group.close()
    print(f"\n{program}: {message}", file=sys.stderr)
    return EXIT_FAILED
