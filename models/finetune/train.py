"""Fine-tunes a Forgetting Transformer on text files, or trains one from a config: ./run finetune.

A run: model and tokens -> newest checkpoint, if any -> steps -> export, loss, samples, savings.
OUT becomes a directory that `./run serve` loads; OUT/training holds checkpoints, tokens, metrics.
To continue an interrupted run, repeat the command. Examples: README.md here.
"""

from __future__ import annotations

from models.finetune.arguments import parse_arguments

# Before PyTorch is imported, so that a mistake is reported at once.
COMMAND_LINE = parse_arguments(None) if __name__ == "__main__" else None

import json  # noqa: E402
import math  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from argparse import Namespace  # noqa: E402
from collections import deque  # noqa: E402
from dataclasses import asdict  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

from models.finetune.evaluation import pruned_shares, sample, shares_table, text_loss  # noqa: E402
from models.finetune.model import AttentionOptions  # noqa: E402
from models.finetune.model_directory import (  # noqa: E402
    describe, export_model, load_model, parameter_count)
from models.finetune.optimization import (  # noqa: E402
    learning_rate, make_optimizer, set_arithmetic, warmup_steps)
from models.finetune.process_group import ProcessGroup, Reading  # noqa: E402
from models.finetune.progress import about, draw_loss  # noqa: E402
from models.finetune.text_tokens import Windows  # noqa: E402
from models.finetune.training_run import TrainingRun, activation_bytes, run_to_end  # noqa: E402
from models.finetune.training_state import TrainingError  # noqa: E402

WARM_STEPS = 2  # first steps of a run; they compile and allocate, so they do not count for its pace
SECONDS_A_RECORD = 2.0  # about the time between records, at which decisions are made
SHARE_SECONDS = 60.0  # between measurements of the pruned share
VALID_WINDOWS, SHARE_WINDOWS = 16, 4
UNPLANNED = 1 << 40  # steps of a plan by --minutes-total, until the pace is known


class Trainer(TrainingRun):
    """One run of a training, in each of its processes."""

    END_SECONDS = 15.0  # for the last checkpoint and the export
    SETTINGS = ("window", "batch_tokens", "packing", "seed", "lr", "warmup_tokens", "weight_decay",
                "clip", "precision", "acp", "log_tolerance", "fast", "epochs", "steps",
                "minutes_total")

    def __init__(self, args: Namespace, group: ProcessGroup) -> None:
        self.loaded = load_model(args.model, args.seed)
        super().__init__(args, group, args.tokenizer or self.loaded.directory)
        self.tokenizer = self.open_tokenizer(self.loaded.config.vocab_size)
        if args.packing == "documents" and self.tokenizer.bos is None:
            raise TrainingError("--packing documents finds documents by their bos, which the "
                                "tokenizer does not have")
        tokens, self.text = self.tokens(args.texts, "train.tokens")
        self.valid = self.tokens([args.valid], "valid.tokens") if args.valid else None
        self.windows = Windows(tokens, args.window, args.seed)
        self.model = self.loaded.model.to(self.device)
        self.model.recompute = bool(args.recompute)
        self.model.set_options(self._options())
        self.plan_passes()
        self.optimizer = make_optimizer(self.model, args.lr, args.weight_decay)
        self.warmup = max(1, round(args.warmup_tokens / self.tokens_a_step))
        self.total_steps = self._planned_steps()
        self.passes_run = 0
        self.stopped = False
        self.share: float | None = None
        self.pace: deque[tuple[float, int]] = deque(maxlen=16)  # (when, step) of recent records

    @property
    def finished(self) -> bool:
        """True if the plan is done."""
        return self.step >= self.total_steps

    # ---- setting up --------------------------------------------------------------------------

    def _options(self) -> AttentionOptions:
        args = self.args
        tolerance = self.loaded.log_tolerance if args.log_tolerance is None else args.log_tolerance
        return AttentionOptions(None if args.acp == "off" else tolerance,
                                "certified" if args.acp == "certified" else "paper", not args.fast)

    def windows_that_fit(self) -> int:
        """The flag, or windows whose activations should fill at most half of the free memory."""
        if self.args.micro_batch:
            return self.args.micro_batch
        c = self.loaded.config
        free = torch.cuda.mem_get_info()[0] - 12 * parameter_count(self.model)
        kept = activation_bytes(c.hidden_size, c.intermediate_size, c.num_layers,
                                self.args.recompute)
        return int(0.5 * free / ((kept + 6 * c.vocab_size) * self.args.window))

    def _planned_steps(self) -> int:
        args = self.args
        if args.minutes_total:
            return UNPLANNED
        return args.steps or max(
            1, round(args.epochs * self.windows.per_epoch / self.windows_a_step))

    def settings(self) -> dict[str, Any]:
        """The shared settings, and the model's configuration."""
        return {"model": describe(self.loaded.config), **super().settings()}

    def own_state(self) -> dict[str, Any]:
        """The length of the plan."""
        return {"total_steps": self.total_steps}

    def restore(self, state: dict[str, Any], longer: str) -> None:
        """Keeps the plan of own_state(), unless the training is to be longer."""
        if not longer:
            self.total_steps = state["total_steps"]
        else:
            self.line.say(f"longer than before ({longer}): the learning rate goes up again, to "
                          "where it is at this step of the longer schedule")

    # ---- steps -------------------------------------------------------------------------------

    def _batch(self, index: int) -> list[torch.Tensor]:
        """Ids, targets and, for packed documents, cu_seqlens of pass `index` of this step."""
        rows = self.windows.batch(self.windows_of(index))
        arrays = [rows[:, :-1], rows[:, 1:]]
        if self.args.packing == "documents":
            arrays = [array.reshape(1, -1) for array in arrays]
            starts = np.flatnonzero(arrays[0][0] == self.tokenizer.bos)
            edges = np.arange(0, arrays[0].size + 1, self.args.window)
            arrays.append(np.union1d(starts, edges).astype(np.int32))
        return self.group.put(arrays)

    def _one_step(self, trained: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        """Trains on one batch; returns its loss and gradient norm, still on the device."""
        rate = learning_rate(self.step, self.total_steps, self.warmup, self.args.lr)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        parts = []
        for index in range(self.passes):
            began = time.monotonic()
            self.line.doing(f"step {self.step + 1}: pass {index + 1} of {self.passes}")
            with self.group.accumulating(trained, last=index == self.passes - 1):
                with torch.autocast(self.device.type, self.dtype,
                                    enabled=self.dtype != torch.float32):
                    loss = trained(*self._batch(index)) / self.passes
                loss.backward()
            parts.append(loss.detach())
            self.passes_run += 1
            if self.passes_run == 2 and self.device.type == "cpu":
                self._tell_step_time(self.passes * (time.monotonic() - began))
        return torch.stack(parts).sum(), self.update(self.model.parameters(), self.args.clip)

    def _tell_step_time(self, step_seconds: float) -> None:
        """Says how long a step takes; TrainingError if longer than the time left. Collective.

        Called after the second pass, because the first one loads code.
        """
        # Whole numbers, equal in all processes.
        step_ms, left_ms = self.group.from_first(
            [round(1000 * seconds) for seconds in (step_seconds, min(*self._time_left(), 1e12))])
        step, left = about(step_ms / 1000), about(max(0, left_ms) / 1000)
        if left_ms < step_ms:
            raise TrainingError(f"one step takes about {step} here, and {left} are left of the "
                                "minutes given: take a smaller --batch-tokens, or more minutes")
        if left_ms < 1e15:
            steps = min(self.total_steps - self.step, left_ms // max(1, step_ms))
            self.line.say(f"one step takes about {step} here: {steps} steps in the {left} left")
        else:
            steps = self.total_steps - self.step
            self.line.say(f"one step takes about {step} here: {steps} steps in about "
                          f"{about(steps * step_ms / 1000)}")

    def _time_left(self) -> tuple[float, float]:
        """Seconds of this run and of all runs together, without those reserved for the end."""
        return (self.seconds_left(self.args.minutes, self.run_seconds),
                self.seconds_left(self.args.minutes_total, self.seconds))

    def train(self) -> None:
        """Steps until the plan is done, time is over or a signal asks to stop."""
        if self.device.type == "cuda" and not self.args.no_compile:
            self.model.compile_parts()
        trained = self.group.wrap(self.model)
        self.model.train()
        now = time.monotonic()
        self.last_save, self.last_valid, self.next_share = now, now, now
        self.next_record, losses, reading = self.step + WARM_STEPS, [], None
        if self.device.type == "cpu":  # nothing to warm up, and a step may take minutes
            self.next_record = self.step + 1
            self.pace.append((now, self.step))
        while self.step < self.total_steps and not self.stopped:
            loss, norm = self._one_step(trained)
            losses.append(loss)
            if reading is not None:  # one more step is enqueued: the device does not idle
                self._record(*reading)
                reading = None
            if self.step >= min(self.next_record, self.total_steps):
                mean = self.group.mean(torch.stack(losses).mean())
                reading, losses = (self.step, Reading(torch.stack([mean, norm]))), []
                if self.device.type == "cpu":  # its steps are done when they return
                    self._record(*reading)
                    reading = None
        if reading is not None:
            self._record(*reading)
        self.save()

    def _record(self, step: int, reading: Reading) -> None:
        """Reads the numbers of a past step, writes metrics, decides how to go on. Collective."""
        loss, norm = reading.read()
        self.check_loss(step, loss)
        plan = [0, 0, 0]
        if self.group.is_first:
            self.pace.append((time.monotonic(), step))
            plan = self._decide()
            if len(self.pace) > 1:
                self._show(step, loss, norm, plan[0])
            self._now_and_then(step)
        self.total_steps, self.next_record, stop = self.group.from_first(plan)
        self.stopped = bool(stop)

    def _step_seconds(self) -> float | None:
        """Seconds of a recent step; None until two records are there."""
        if len(self.pace) < 2:
            return None
        (began, first), (ended, last) = self.pace[0], self.pace[-1]
        return max(ended - began, 1e-6) / max(1, last - first)

    def _decide(self) -> list[int]:
        """Decides the number of steps in all, the next step to record, and if the run stops (1)."""
        seconds, total = self._step_seconds(), self.total_steps
        if seconds is None:
            return [total, self.step + 2, int(self.stop_asked)]
        # A finished plan is not extended, because its learning rate has reached its end.
        left_of_run, left_of_all = self._time_left()
        if self.args.minutes_total and self.step < total:
            total = self.step + max(0, round(left_of_all / seconds))
        ahead = max(1, round(SECONDS_A_RECORD / seconds))
        enqueued = 2 if self.device.type == "cuda" else 0
        late = left_of_run < (ahead + enqueued) * seconds
        return [total, self.step + ahead, int(self.stop_asked or late)]

    def _show(self, step: int, loss: float, norm: float, total: int) -> None:
        """Writes a record of metrics, and the progress line."""
        seconds = self._step_seconds() or math.inf
        record = {
            "step": step, "tokens": step * self.tokens_a_step, "loss": loss,
            "lr": learning_rate(step - 1, total, self.warmup, self.args.lr),
            "grad_norm": norm, "pruned_share": self.share, "seconds": self.seconds,
            "tokens_per_second": self.tokens_a_step / seconds}
        self.metrics.add(record)
        self.line.show(record, total, (total - step) * seconds)

    def _now_and_then(self, step: int) -> None:
        """Checkpoint, pruned share and validation loss if they are due; the pace excludes them."""
        now = time.monotonic()
        if now >= self.next_share:
            self.line.doing("measuring what is pruned")
            ids = self.windows.window(step * self.windows_a_step)[:-1]
            self.share = pruned_shares(self.model, ids, self.dtype).mean().item()
            ended = time.monotonic()
            self.next_share = ended + max(SHARE_SECONDS, 20 * (ended - now))  # 5% of the time
        if self.valid and now - self.last_valid >= 60 * self.args.valid_minutes:
            self._validate(self.model, step)
            self.last_valid = time.monotonic()
        self.save_if_due()
        idle = time.monotonic() - now
        self.pace = deque(((when + idle, at) for when, at in self.pace), self.pace.maxlen)

    def _validate(self, model: torch.nn.Module, step: int) -> float:
        """Measures the validation text, into the metrics; returns bits per byte."""
        tokens, info = self.valid
        self.line.doing("validation")
        loss = text_loss(model, tokens, info.text_bytes / info.tokens, self.args.window,
                         VALID_WINDOWS, self.dtype)
        self.metrics.add({"step": step, "tokens": step * self.tokens_a_step,
                          "valid_loss": loss.nats_per_token, **asdict(loss)})
        self.line.say(f"validation: {loss.nats_per_token:.4f} nats per token, "
                      f"{loss.bits_per_byte:.4f} bits per byte ({loss.windows} windows)")
        return loss.bits_per_byte

    # ---- before and after --------------------------------------------------------------------

    def _sample(self, model: torch.nn.Module, when: str) -> None:
        length = self.args.sample_tokens
        if length < 1:
            return
        text = sample(model, self.tokenizer, self.args.prompt, length, self.dtype,
                      lambda i: self.line.doing(f"sample {when}: {i} of {length} tokens"))
        with open(self.folder / "samples.txt", "a", encoding="utf-8") as file:
            file.write(f"---- {when}\n{text}\n")
        self.line.say(f"sample {when}: {text!r}")

    def introduce(self) -> None:
        """Warns where training is slow."""
        if self.device.type == "cpu":
            self.line.say("No GPU here: training by the reference operator on the CPU, which is "
                          "slow; good for trying things out."
                          + ("" if self.args.sample_tokens else " No samples (--sample-tokens)."))
        super().introduce()

    def describe(self) -> tuple[str, str]:
        """The plan, with the peak of the learning rate."""
        c = self.loaded.config
        if self.args.minutes_total:
            plan, peak = f"{self.args.minutes_total:g} minutes", "within a tenth of them"
        else:
            step = warmup_steps(self.warmup, self.total_steps)
            plan, peak = f"{self.total_steps} steps", f"at step {step} of {self.total_steps}"
        return (f"{parameter_count(self.model) / 1e6:.1f}M parameters ({c.num_layers} layers of "
                f"{c.hidden_size}), {self.text.tokens / 1e6:.2f}M tokens of "
                f"{self.text.documents} documents; {plan}", f"; peak lr {peak}")

    def measure_before(self) -> None:
        """Validation loss and a sample of the model that is tuned."""
        if not self.step and not self.loaded.from_scratch:
            if self.valid:
                self._validate(self.model, 0)
            self._sample(self.model, "before")

    def write(self) -> None:
        """Exports the model."""
        self.files = export_model(self.model, self.tokenizer_dir, self.args.out, self.args.dtype,
                                  self.args.max_shard_size)
        draw_loss(self.folder / "metrics.jsonl", self.folder / "loss.svg")

    def measure(self, report: dict[str, Any]) -> str:
        """Measures the exported files."""
        args = self.args
        model = load_model(args.out, 0).model.to(self.device)
        model.set_options(self._options())
        report["files"] = [file.name for file in self.files]
        tokens = self.windows.tokens
        if self.valid:
            report["bits_per_byte"] = self._validate(model, self.step)
            tokens = self.valid[0]
        self._sample(model, "after")
        if self.model.config.fgate_type != "none" and args.acp != "off":
            ids = [tokens[i * args.window : (i + 1) * args.window] for i in range(SHARE_WINDOWS)]
            shares = torch.stack([pruned_shares(model, window, self.dtype) for window in ids
                                  if len(window) == args.window]).mean(0)
            report["pruned_shares"] = shares.tolist()
            self.line.say(shares_table(shares))
        draw_loss(self.folder / "metrics.jsonl", self.folder / "loss.svg")
        (self.folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        return f"./run serve {args.out}"


def main(args: Namespace) -> int:
    """The command."""
    if args.sample_tokens is None:
        args.sample_tokens = 120 if torch.cuda.is_available() else 0
    set_arithmetic(args.fast)
    return run_to_end("finetune", Trainer, args)


if __name__ == "__main__":
    sys.exit(main(COMMAND_LINE))
