"""The run that finetune and foxify share: resuming, checkpoints, batches, signals, one-line errors.

A program derives from TrainingRun and gives it a model, an optimizer and a loop over steps. A run:
newest checkpoint, if any -> plan -> steps -> results, in one process for each GPU.
"""

from __future__ import annotations

import abc
import math
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from models.convert.refusal import Refusal
from models.finetune.arguments import BEGAN
from models.finetune.process_group import ProcessGroup
from models.finetune.progress import MetricsFile, ProgressLine, duration
from models.finetune.text_tokens import (
    TextError, TextTokenizer, TokenFileInfo, open_tokens, write_tokens)
from models.finetune.training_state import (
    TrainingError, check_settings, load_checkpoint, random_states, restore_random_states,
    save_checkpoint)

EXIT_FAILED, EXIT_UNFINISHED = 1, 3
END_SHARE = 0.1  # of a run's minutes, at most, is reserved for its end


def activation_bytes(hidden: int, inner: int, layers: int, recompute: bool) -> int:
    """Bytes of one token's activations, mostly bf16; with `recompute`, of one layer and of the
    inputs of all layers."""
    layer = 30 * hidden + 8 * inner
    return 4 * hidden * layers + layer if recompute else layer * layers


class TrainingRun(abc.ABC):
    """One run, in each of its processes.

    A derived class sets `model`, `optimizer`, `text` and the constants, and calls plan_passes().
    """

    END_SECONDS: float  # reserved at the end of the given minutes, for the last checkpoint
    SETTINGS: tuple[str, ...]  # flags that all runs of one training must share
    model: nn.Module  # whose state is in the checkpoints
    optimizer: torch.optim.Optimizer
    text: TokenFileInfo  # of the training text
    metrics: MetricsFile  # in the first process
    finished: bool  # True if the plan is done, not only this run
    micro: int  # windows of a pass
    keeps_gradients = False  # True if passes add to gradients of the step before, set to 0
    together = False  # True if measuring takes all processes, as each has a part of the model

    def __init__(self, args: Namespace, group: ProcessGroup, tokenizer_dir: Path) -> None:
        self.args, self.group, self.folder = args, group, args.out / "training"
        self.device, self.tokenizer_dir = group.device, tokenizer_dir
        self.line = ProgressLine(silent=not group.is_first)
        self.dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[args.precision]
        self.stop_asked, self.step, self.earlier_seconds = False, 0, 0.0
        self.windows_a_step = max(1, args.batch_tokens // args.window)
        self.tokens_a_step = self.windows_a_step * args.window
        self.last_save = time.monotonic()
        if self.windows_a_step % group.size:
            raise TrainingError(f"a batch of {self.windows_a_step} windows cannot be shared by "
                                f"{group.size} processes: --batch-tokens must be a multiple of "
                                f"{args.window * group.size}")

    # ---- setting up --------------------------------------------------------------------------

    def open_tokenizer(self, vocab_size: int) -> TextTokenizer:
        """The tokenizer. TrainingError if the model's vocabulary is smaller than its own."""
        tokenizer = TextTokenizer(self.tokenizer_dir)
        if tokenizer.vocab_size > vocab_size:
            raise TrainingError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, the model {vocab_size}")
        return tokenizer

    @abc.abstractmethod
    def windows_that_fit(self) -> int:
        """Windows of one pass: --micro-batch, or as many as fit into this process's GPU."""

    def plan_passes(self) -> None:
        """Sets the windows of one pass, and the passes of this process in a step. Collective."""
        share = self.windows_a_step // self.group.size
        # On a CPU one window is no slower, and the progress line shows each.
        fits = (self.args.micro_batch or 1) if self.device.type == "cpu" else max(
            1, self.windows_that_fit())
        self.micro = min(share, self.group.from_first([fits])[0])
        while share % self.micro:
            self.micro -= 1
        self.passes = share // self.micro
        assert self.micro * self.passes * self.group.size == self.windows_a_step

    def tokens(self, texts: list[Path], name: str) -> tuple[np.ndarray, TokenFileInfo]:
        """Opens a token file; the first process encodes texts into the file `name`. Collective."""
        if len(texts) == 1 and texts[0].suffix == ".tokens":
            return open_tokens(texts[0])
        path = self.folder / name
        if self.group.is_first:
            self.line.doing(f"encoding {name}")
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tokens(texts, self.tokenizer_dir, path, self.args.workers)
        self.group.barrier()
        return open_tokens(path)

    # ---- checkpoints -------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Settings that a resumed run must share with the run before it."""
        return {"text": {"tokens": self.text.tokens, "tokenizer": self.text.tokenizer},
                **{name: getattr(self.args, name) for name in self.SETTINGS}}

    @abc.abstractmethod
    def own_state(self) -> dict[str, Any]:
        """The derived class's part of a checkpoint."""

    @abc.abstractmethod
    def restore(self, state: dict[str, Any], longer: str) -> None:
        """Continues from own_state(); `longer` names the settings by which the training grew."""

    @property
    def recorded(self) -> int:
        """The last step that has its record of metrics."""
        return self.step

    def resume(self) -> bool:
        """Continues from the newest checkpoint. False if there is none."""
        state = load_checkpoint(self.folder / "checkpoints")
        if state is not None:
            longer = check_settings(state["settings"], self.settings(), self.args.out)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.earlier_seconds = state["step"], state["seconds"]
            self.restore(state, longer)
            restore_random_states(state["random"])
        if self.group.is_first:
            self.metrics = MetricsFile(self.folder / "metrics.jsonl", self.recorded)
        return state is not None

    def save(self) -> None:
        """Writes a checkpoint, in the first process."""
        if self.group.is_first:
            save_checkpoint(self.folder / "checkpoints", {
                "step": self.step, "seconds": self.seconds, "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(), "random": random_states(),
                "settings": self.settings(), **self.own_state()})
            self.last_save = time.monotonic()

    def save_if_due(self) -> None:
        """Writes a checkpoint if --checkpoint-minutes have passed since the last one."""
        if time.monotonic() - self.last_save >= 60 * self.args.checkpoint_minutes:
            self.save()

    # ---- steps -------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds trained: of this run, from its start, and of the runs before it."""
        return self.earlier_seconds + self.run_seconds

    @property
    def run_seconds(self) -> float:
        """Seconds since the start of this run."""
        return time.monotonic() - BEGAN

    def seconds_left(self, minutes: float | None, spent: float) -> float:
        """Seconds left of `minutes` after `spent` seconds, without those reserved for the end."""
        if minutes is None:
            return math.inf
        return 60 * minutes - spent - min(self.END_SECONDS, END_SHARE * 60 * minutes)

    def windows_of(self, index: int) -> range:
        """Windows of this process's pass `index` of the step; pass `passes` is the next step's
        first."""
        assert 0 <= index <= self.passes
        turn = index * self.group.size + self.group.rank
        first = self.step * self.windows_a_step + turn * self.micro
        return range(first, first + self.micro)

    def update(self, trained: Iterable[nn.Parameter], clip: float) -> Tensor:
        """Ends a step: clips the gradients, moves the parameters. Returns the gradient norm."""
        norm = torch.nn.utils.clip_grad_norm_(trained, clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
        self.step += 1
        return norm

    @abc.abstractmethod
    def train(self) -> None:
        """Steps until the plan is done, time is over or a signal asks to stop. Collective."""

    @staticmethod
    def check_loss(step: int, loss: float) -> None:
        """TrainingError if training has diverged."""
        if not math.isfinite(loss):
            raise TrainingError(f"the loss of step {step} is {loss}: the last checkpoint is kept; "
                                "try a lower --lr")

    def ask_to_stop(self, *_: Any) -> None:
        """A signal's handler: stops soon; the second time, at once."""
        if self.stop_asked:
            raise KeyboardInterrupt
        self.stop_asked = True
        if self.group.is_first:  # not by print(), which the signal may have interrupted
            os.write(2, b"\nstopping after this step; once more: at once\n")

    # ---- before and after, in the first process, or in all if they measure together ----------

    @abc.abstractmethod
    def describe(self) -> tuple[str, str]:
        """The model, the text and the length of the training; what follows the batch, or ''."""

    @abc.abstractmethod
    def measure_before(self) -> None:
        """Measures the quality that training starts from."""

    @abc.abstractmethod
    def write(self) -> None:
        """Writes the state of an unfinished training: plots, and a model if it is one already."""

    @abc.abstractmethod
    def measure(self, report: dict[str, Any]) -> str:
        """Writes and measures the trained model, and the report. Returns where it is."""

    def introduce(self) -> None:
        """Prints the plan, and the quality of the model before training."""
        head, tail = self.describe()
        self.line.say(f"{head} of {self.windows_a_step} x {self.args.window} tokens, {self.micro} "
                      f"windows a pass, on {self.group.size} x {self.device.type}, "
                      f"{self.args.precision}{tail}")
        if self.step:
            self.line.say(f"continuing after step {self.step} ({duration(self.seconds)} trained)")
        self.measure_before()

    def finish(self) -> None:
        """Writes what there is, and measures it if training is done."""
        self.write()
        if not self.finished:
            self.line.say(f"stopped after step {self.step}, with a checkpoint; the same command "
                          "continues")
            return
        where = self.measure({"steps": self.step, "tokens": self.step * self.tokens_a_step,
                              "seconds": self.seconds})
        self.line.say(f"done in {duration(self.seconds)}: {where}")


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
        measures = group.is_first or trainer.together
        if measures:
            trainer.introduce()
        trainer.train()
        if measures:
            trainer.finish()
        return 0 if trainer.finished else EXIT_UNFINISHED
    except torch.OutOfMemoryError:
        raise TrainingError(_memory_advice(trainer)) from None


def run_to_end(program: str, trainer_class: type[TrainingRun], args: Namespace) -> int:
    """One run; returns the exit status."""
    args.precision = args.precision or ("bf16" if torch.cuda.is_available() else "fp32")
    group = ProcessGroup()
    try:
        return _run(trainer_class, args, group)
    except (Refusal, TextError, TrainingError, SafetensorError) as error:  # the last: a full disk
        message = str(error)
    except OSError as error:
        message = f"{error.filename or 'input/output'}: {error.strerror or error}"
    except KeyboardInterrupt:
        message = "interrupted; the last checkpoint is kept"
    finally:
        group.close()
    print(f"\n{program}: {message}", file=sys.stderr)
    return EXIT_FAILED
