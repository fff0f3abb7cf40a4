"""Trains forget gates into a pre-trained model: ./run foxify.

A run: base and tokens -> newest checkpoint, if any -> the teacher measured -> steps -> adapter,
report, plots. OUT/training holds checkpoints, tokens and metrics; the same command continues an
interrupted run. README.md has the method.
"""

from __future__ import annotations

from models.foxify.options import parse_arguments

# Before PyTorch is imported, so that a mistake is reported at once.
COMMAND_LINE = parse_arguments(None) if __name__ == "__main__" else None

import functools  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from argparse import Namespace  # noqa: E402
from concurrent.futures import Future, ThreadPoolExecutor  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

from models.convert import fox_convert  # noqa: E402
from models.convert.output_directory import check_destination  # noqa: E402
from models.convert.refusal import Refusal  # noqa: E402
from models.finetune.attention import HAS_CUDA_KERNELS  # noqa: E402
from models.finetune.process_group import ProcessGroup, Reading  # noqa: E402
from models.finetune.text_tokens import TextError, TokenFileInfo  # noqa: E402
from models.finetune.training_run import TrainingRun, run_to_end  # noqa: E402
from models.foxify.adapter import read_adapter, round_as_shipped, write_adapter  # noqa: E402
from models.foxify.base_model import BaseModel, read_architecture  # noqa: E402
from models.foxify.distillation import distillation, row_losses  # noqa: E402
from models.foxify.measure import Evaluation  # noqa: E402
from models.foxify.memory_plan import Training, free_bytes  # noqa: E402
from models.foxify.mixture import Mixture, spread  # noqa: E402
from models.foxify.pass_graph import PassGraph  # noqa: E402
from models.foxify.plots import draw  # noqa: E402
from models.foxify.pressure import Controller, excess, kept_shares, penalty  # noqa: E402
from models.foxify.recall import Asking, RecallWindows  # noqa: E402
from models.foxify.student import Student  # noqa: E402

GATE_RATE, BIAS_RATE = 2e-3, 6e-2  # learning rates: gates' matrices; their biases and the sinks
BETAS, CLIP = (0.9, 0.95), 1.0
WARM_STEPS = 2  # first steps of a run, which compile; fractions of --minutes-total begin after them
WARMUP_STEPS, DECAY_FROM = 20, 0.6  # fraction of the run: then the learning rate falls to 0
CAPS_UNTIL = 0.5  # fraction of the run over which the caps fall
FIRST_LAMBDA = 0.3
EVALUATIONS_AT_END = 1.6  # reserved for the end, in times of the teacher's measurement
DETAIL_STEPS = 10  # steps between records of each head's share


class Trainer(TrainingRun):
    """One run, in each of its processes."""

    END_SECONDS = 20.0
    SETTINGS = ("window", "batch_tokens", "seed", "lr", "keep", "rank", "cap_scale",
                "window_baseline", "precision", "steps", "minutes_total")

    def __init__(self, args: Namespace, group: ProcessGroup) -> None:
        super().__init__(args, group, args.model)
        self._check_device()
        a, _ = read_architecture(args.model)
        if args.export:
            check_destination(args.export.absolute(), force=True)
        self._check_disk(a.layers * a.hidden * (a.hidden + a.inner) * 12 if args.rank == 0 else
                         a.layers * a.hidden * args.rank * 400)
        self.architecture, self.together = a, bool(args.shard)
        self.recompute = bool(args.recompute or args.shard)
        self.plan_passes()
        self.tokenizer = self.open_tokenizer(a.vocab)
        asking = Asking(args.model)
        books, self.text = self.tokens(args.texts, "train.tokens")
        chats = self.tokens([args.chats], "chats.tokens")[0] if args.chats else None
        recall = RecallWindows(self.tokenizer, asking, args.window)
        self.mixture = Mixture(books, chats, recall,
                               lambda ids: asking.said(ids, self.tokenizer), args.window, args.seed)
        self.base = BaseModel(args.model, self.device, self.dtype,
                              shards=group if self.together else None)
        torch.manual_seed(args.seed)
        self.model = Student(self.base, args.rank, args.window_baseline)
        self.model.recompute = self.recompute
        self.losses_of = row_losses
        # A pass becomes a graph, but for attention's reference, which waits for the device, and for
        # windows, whose passes have never been tried as graphs.
        self.keeps_gradients = (HAS_CUDA_KERNELS and self.dtype == torch.bfloat16 and
                                self.device.type == "cuda" and not args.no_compile and
                                not self.recompute and args.window_baseline is None)
        self.graph: PassGraph | None = None
        self.loader = ThreadPoolExecutor(1)
        self.loading: Future[tuple[np.ndarray, np.ndarray]] | None = None
        self.evaluation = self._evaluation()
        s, fused = self.model, self.device.type == "cuda"
        groups = [(list(s.factors.values()), args.lr), ([s.gate_weight], GATE_RATE),
                  ([s.gate_bias, s.sinks], BIAS_RATE)]
        self.rates = [rate for _, rate in groups]
        self.optimizer = torch.optim.AdamW(
            [{"params": p, "lr": rate} for p, rate in groups], betas=BETAS, weight_decay=0.0,
            fused=fused)
        self.controller = Controller(args.keep, FIRST_LAMBDA)
        self.penalty_weight = torch.zeros((), device=self.device)
        self.lead, self.reserve = 0.0, self.END_SECONDS
        self.pending: tuple[int, float, Reading] | None = None
        self.finished, self.teacher = False, None

    # ---- setting up --------------------------------------------------------------------------

    def _check_device(self) -> None:
        args, on_gpu = self.args, self.device.type == "cuda"
        if args.shard and self.group.size == 1:
            raise Refusal("--shard needs more than one process, each with a GPU of its own")
        if args.window_baseline and not on_gpu:
            raise Refusal("--window-baseline needs a GPU: flex_attention trains on no other device")
        if on_gpu and args.precision == "fp32":
            self.line.say("float32 trains by the slow reference of attention")
        elif on_gpu and args.window_baseline is None and not HAS_CUDA_KERNELS:
            raise Refusal("fox_attention has no CUDA kernels here: pip install "
                          "--no-build-isolation ./kernels/torch, with nvcc")

    def _check_disk(self, state_bytes: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        need, free = 3 * state_bytes + (64 << 20), shutil.disk_usage(self.folder).free
        if free < need:
            raise Refusal(f"{self.folder}: about {need >> 20} MiB needed, {free >> 20} MiB free")

    def tokens(self, texts: list[Path], name: str) -> tuple[np.ndarray, TokenFileInfo]:
        """Opens tokens; TextError unless the model's own tokenizer made them. Collective."""
        tokens, info = super().tokens(texts, name)
        if info.tokenizer != self.tokenizer.fingerprint():
            raise TextError(f"{texts[0]}: encoded by another tokenizer than {self.args.model}'s")
        return tokens, info

    def _evaluation(self) -> Evaluation | None:
        args = self.args
        if not args.valid:
            return None
        books = spread(self.tokens([args.valid], "valid.tokens")[0], args.window, 64)
        chats = None
        if args.valid_chats:
            tokens = self.tokens([args.valid_chats], "valid-chats.tokens")[0]
            chats = spread(tokens, args.window, 64)
        return Evaluation(self.base, self.tokenizer, books, chats, self.micro)

    def windows_that_fit(self) -> int:
        """Windows of a pass, whether it recomputes, and shards, by the plan; Refusal if no plan
        fits. Collective."""
        args, free = self.args, self.group.least(free_bytes())
        training = Training(self.architecture, args.rank, args.window,
                            self.windows_a_step // self.group.size, self.group.size,
                            self.dtype.itemsize, not args.no_compile)
        self.plan = training.fitting(free, args.micro_batch, args.recompute, args.shard)
        self.recompute, self.together = self.plan.recompute, self.plan.shards > 1
        self.line.say(f"memory: {self.plan}; {free / 1e9:.1f} GB are free")
        return self.plan.micro

    def settings(self) -> dict[str, Any]:
        """The settings of a TrainingRun, "chats": True if there are chats, and "from": the name of
        the adapter's directory."""
        return {"chats": self.args.chats is not None,
                "from": self.args.start.name if self.args.start else None, **super().settings()}

    def own_state(self) -> dict[str, Any]:
        """The controller, the step that it has not seen yet, and the teacher's measurement."""
        pending = None
        if self.pending is not None:
            step, done, reading = self.pending
            pending = [step, done, reading.read()]
        return {"lead": self.lead, "controller": self.controller.state(), "pending": pending,
                "teacher": self.teacher}

    def restore(self, state: dict[str, Any], longer: str) -> None:
        """Continues from own_state()."""
        del longer  # done() is a fraction of the new length
        self.lead, self.teacher = state["lead"], state["teacher"]
        self.controller.load(state["controller"])
        if state["pending"]:
            step, done, numbers = state["pending"]
            self.pending = step, done, Reading(torch.tensor(numbers, dtype=torch.float64))

    @property
    def recorded(self) -> int:
        """The last step that has its record of metrics."""
        return self.step if self.pending is None else self.pending[0] - 1

    def resume(self) -> bool:
        """Continues from the newest checkpoint, or measures the first values of sinks and caps, or
        takes all but the caps from an adapter."""
        resumed = super().resume()
        if not resumed:
            ids = np.stack([self.mixture.window(i)[0] for i in range(min(2, self.windows_a_step))])
            self.model.calibrate(torch.from_numpy(ids).to(self.device))
            if self.args.start:
                read_adapter(self.model, self.args.start)
        self.group.same(self.model)
        return resumed

    # ---- steps -------------------------------------------------------------------------------

    def done(self) -> float:
        """The fraction of the training that is over."""
        if self.args.steps:
            return self.step / self.args.steps
        if self.step < WARM_STEPS:
            return 0.0
        self.lead = self.lead or self.seconds
        length = 60 * self.args.minutes_total - self.reserve - self.lead
        return min(1.0, (self.seconds - self.lead) / max(1.0, length))

    def _rate(self, done: float) -> float:
        """The common factor of the learning rates."""
        falling = min(1.0, (1 - done) / (1 - DECAY_FROM))
        return min(1.0, (self.step + 1) / WARMUP_STEPS) * max(0.0, falling)

    def _cap_scale(self, done: float) -> float:
        return self.args.cap_scale ** min(1.0, done / CAPS_UNTIL)

    def _batch(self, index: int) -> list[torch.Tensor]:
        """Ids and marks of pass `index` of this step. A thread then makes those of the next pass,
        because facts are written and encoded on the host."""
        if self.loading is None:
            self.loading = self.loader.submit(self.mixture.batch, self.windows_of(index))
        batch = self.loading.result()
        self.loading = self.loader.submit(self.mixture.batch, self.windows_of(index + 1))
        return self.group.put(list(batch))

    def _pass(self, ids: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
        """Adds to the gradients. Returns KL, loss, penalty, share at the end, heads' shares."""
        with torch.no_grad():
            teacher = self.base.hidden(ids)
        student, terms = self.model(ids)
        kl, loss = distillation(student, teacher, self.base.head, ids, marks, self.losses_of)
        numbers, total = [kl, loss.detach()], loss
        if terms is None:
            heads = torch.zeros(2, 1, device=ids.device)
            numbers.append(heads.sum())
        else:
            x = excess(terms, self.model.sinks, *self.model.norms())
            page_penalty = penalty(x)
            total = loss + self.penalty_weight * page_penalty
            heads = torch.stack(kept_shares(x.detach()))
            numbers.append(page_penalty.detach())
        (total / self.passes).backward()
        return torch.cat([torch.stack(numbers), heads[1].mean()[None], heads[0].flatten()])

    def _run_pass(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """_pass, behind the first steps as a graph."""
        if self.keeps_gradients and self.graph is None and self.step - self.began[1] >= WARM_STEPS:
            self.graph = PassGraph(self._pass, *batch)
        return (self.graph or self._pass)(*batch)

    def _one_step(self, done: float) -> Reading:
        rate = self._rate(done)
        for group, peak in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = peak * rate
        self.model.scale_caps(self._cap_scale(done))
        self.penalty_weight.fill_(self.controller.weight)
        numbers = sum(self._run_pass(self._batch(i)) for i in range(self.passes)) / self.passes
        trained = [p for p in self.model.parameters() if p.grad is not None]
        numbers = self._averaged([p.grad for p in trained], numbers)
        return Reading(torch.cat([self.update(trained, CLIP)[None], numbers]))

    def _averaged(self, gradients: list[torch.Tensor], numbers: torch.Tensor) -> torch.Tensor:
        """Averages gradients, in place, and numbers over the processes. Collective."""
        if self.group.size == 1:
            return numbers
        parts = [*gradients, numbers.to(gradients[0].dtype)]
        mean = self.group.mean(torch.cat([part.flatten() for part in parts]))
        *means, numbers = mean.split([part.numel() for part in parts])
        for gradient, part in zip(gradients, means):
            gradient.copy_(part.view_as(gradient))
        return numbers

    def train(self) -> None:
        """Steps until the plan is done, time is over or a signal asks to stop."""
        if self.device.type == "cuda" and not self.args.no_compile:
            compiled = functools.partial(torch.compile, dynamic=False)
            self.model.compile_parts(compiled)
            self.losses_of = compiled(row_losses)
        self.began = time.monotonic(), self.step
        while True:
            done, stop = self.group.from_first([self.done(), self.stop_asked or self._late()])
            self.finished = done >= 1
            if stop or self.finished:
                break
            previous, step = self.pending, self.step + 1
            self.line.doing(f"step {step}")
            self.pending = step, done, self._one_step(done)
            if previous is not None:  # one more step is enqueued: the device does not idle
                self._record(*previous)
            self.save_if_due()
        self.graph = None
        self.save()
        if self.finished and self.pending is not None:
            self._record(*self.pending)

    def _late(self) -> bool:
        """True if this run's minutes are over, except for those of the checkpoint."""
        return self.seconds_left(self.args.minutes, self.run_seconds) < 0

    def _record(self, step: int, done: float, reading: Reading) -> None:
        """Reads the numbers of a past step, moves lambda, writes metrics."""
        norm, kl, loss, page_penalty, at_end, *heads = reading.read()
        self.check_loss(step, loss)
        share, weight = sum(heads) / len(heads), self.controller.weight
        if self.args.window_baseline is None:
            self.controller.update(share, done)
        if not self.group.is_first:
            return
        pace = (time.monotonic() - self.began[0]) / max(1, self.step - self.began[1])
        record = {"step": step, "done": done, "tokens": step * self.tokens_a_step, "loss": kl,
                  "weighted_loss": loss, "penalty": page_penalty, "share": share,
                  "share_at_end": at_end, "wanted": self.controller.wanted(done),
                  "lambda": weight, "cap_scale": self._cap_scale(done),
                  "lr": self.args.lr * self._rate(done), "grad_norm": norm,
                  "seconds": self.seconds, "tokens_per_second": self.tokens_a_step / pace,
                  "pruned_share": 1 - share}
        total = self.args.steps or step + max(0, round(
            (60 * self.args.minutes_total - self.reserve - self.seconds) / pace))
        self.line.show(record, max(total, step), max(0, total - step) * pace)
        if step % DETAIL_STEPS == 0:
            per_layer = max(1, len(heads) // self.base.architecture.layers)
            record["share_by_layer_and_head"] = [heads[i : i + per_layer] for i in
                                                 range(0, len(heads), per_layer)]
        self.metrics.add(record)

    # ---- before and after --------------------------------------------------------------------

    def describe(self) -> tuple[str, str]:
        """The plan."""
        args, a = self.args, self.base.architecture
        trained = sum(p.numel() for p in self.model.parameters())
        plan = f"{args.steps} steps" if args.steps else f"{args.minutes_total:g} minutes"
        return (f"{a.layers} layers of {a.hidden}, {a.kv_heads} kv heads; {trained / 1e6:.1f}M "
                f"trained parameters; {self.text.tokens / 1e6:.2f}M tokens; {plan}", "")

    def measure_before(self) -> None:
        """Measures the teacher, once for all runs."""
        if self.evaluation is None:
            return
        began = time.monotonic()
        if self.teacher is None:
            self.line.doing("measuring the teacher")
            self.teacher = self.evaluation.of(self.base)
            self.teacher["seconds"] = time.monotonic() - began
            self.line.say(f"teacher: loss {self.teacher['loss']:.4f}, recall "
                          f"{100 * self.teacher['recall_mean']:.1f}%")
        self.reserve = self.END_SECONDS + EVALUATIONS_AT_END * self.teacher["seconds"]

    def write(self) -> None:
        """Draws the plots."""
        if self.group.is_first:
            draw(self.folder / "metrics.jsonl", self.folder)

    def measure(self, report: dict[str, Any]) -> str:
        """Writes the adapter and measures it."""
        args = self.args
        self.model.scale_caps(args.cap_scale)
        round_as_shipped(self.model)
        if self.group.is_first:
            write_adapter(self.model, args.out, args.keep)
        report |= {"settings": self.settings(), "device": self.device.type,
                   "teacher": self.teacher}
        if self.device.type == "cuda":
            report["device"] = torch.cuda.get_device_name(self.device)
        if self.evaluation is not None:
            self.line.doing("measuring the student")
            self.model.compile_parts(lambda part: part)  # do not compile again, without gradients
            report["student"] = self.evaluation.of(self.model)
        if self.group.is_first:
            (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
            self._export()
        if self.evaluation is not None:
            student, teacher = report["student"], self.teacher
            self.line.say(
                f"loss {student['loss']:.4f} (teacher {teacher['loss']:.4f}), recall "
                f"{100 * student['recall_mean']:.1f}% ({100 * teacher['recall_mean']:.1f}%), "
                f"kept {100 * student['share']:.1f}% (wanted {100 * args.keep:.1f}%), at the end "
                f"{100 * student['share_at_end']:.1f}%")
        return str(args.out)

    def _export(self) -> None:
        args = self.args
        if args.export and fox_convert.main(
                [str(args.model), str(args.export), "--adapter", str(args.out), "--force"]) != 0:
            raise Refusal(f"{args.export}: not written")


def main(args: Namespace) -> int:
    """The command."""
    torch.set_float32_matmul_precision("high")
    return run_to_end("foxify", Trainer, args)


if __name__ == "__main__":
    sys.exit(main(COMMAND_LINE))
