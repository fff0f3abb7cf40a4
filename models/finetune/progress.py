"""The readable output of a training: a changing line, a JSONL file of numbers, a plot of the loss.

    python -m models.finetune.progress metrics.jsonl loss.svg

draws the plot again; needs matplotlib.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

PLAIN_SECONDS = 60  # between lines if the output is no terminal
FRESH_SECONDS = 5


def duration(seconds: float) -> str:
    """Formats a time as 1:02:03 or 2:03."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def about(seconds: float) -> str:
    """Formats a time with two digits or a few more: 0.25 s, 14 min, 3.2 h, 270 h."""
    size, unit = (3600, "h") if seconds >= 5400 else (60, "min") if seconds >= 90 else (1, "s")
    amount = seconds / size
    return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.2g} {unit}"


class ProgressLine:
    """Shows the newest record on stderr; without records, once a minute the current activity.

    A silent line shows nothing.
    """

    def __init__(self, silent: bool = False) -> None:
        self._silent, self._terminal, self._shown = silent, sys.stderr.isatty(), 0.0
        self._doing, self._since = "", 0.0
        self._heartbeat: threading.Thread | None = None

    def doing(self, what: str) -> None:
        """Sets the current activity; shown on a terminal unless a newer line was just shown."""
        self._doing, self._since = what, time.monotonic()
        if self._terminal and self._since - self._shown >= FRESH_SECONDS:
            self._write(what)
        if self._heartbeat is None:
            self._shown = self._since
            self._heartbeat = threading.Thread(target=self._beat, daemon=True)
            self._heartbeat.start()

    def _beat(self) -> None:
        """The thread that repeats the current activity; it ends with the process."""
        while True:
            time.sleep(max(0.01, self._shown + PLAIN_SECONDS - time.monotonic()))
            now = time.monotonic()
            if now - self._shown >= PLAIN_SECONDS:
                self._write(f"{self._doing}, {duration(now - self._since)} so far")

    def _write(self, text: str) -> None:
        """Prints a line; on a terminal it replaces the last one."""
        self._print(f"\r\033[K{text}" if self._terminal else f"{text}\n")

    def _print(self, text: str) -> None:
        self._shown = time.monotonic()
        if not self._silent:
            print(text, end="", file=sys.stderr, flush=True)

    def show(self, record: dict[str, Any], total_steps: int, seconds_left: float) -> None:
        """Shows a record as one line; without a terminal, at most every PLAIN_SECONDS."""
        now = time.monotonic()
        last = record["step"] >= total_steps
        if not self._terminal and not last and now - self._shown < PLAIN_SECONDS:
            return
        pruned = record.get("pruned_share")
        parts = [f"{100 * record['step'] / total_steps:5.1f}%  step {record['step']}/{total_steps}",
                 f"loss {record['loss']:.4f}", f"lr {record['lr']:.2e}",
                 f"{record['tokens_per_second']:,.0f} tokens/s"]
        if pruned is not None:
            parts.append(f"pruned {100 * pruned:.1f}%")
        parts.append(f"{duration(seconds_left)} left")
        self._write("  ".join(parts))

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self._print(("\r\033[K" if self._terminal else "") + text + "\n")


class MetricsFile:
    """A JSONL file. Resuming drops the records that a killed run wrote past its checkpoint."""

    def __init__(self, path: Path, resumed_step: int) -> None:
        self._path = path
        kept = [r for r in read_metrics(path) if r["step"] <= resumed_step and resumed_step > 0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in kept))

    def add(self, record: dict[str, Any]) -> None:
        """Appends a record."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete records of a file."""
    records = []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break  # a line that a kill cut off
    return records


def find_pyplot() -> Any:
    """matplotlib's pyplot, which draws into files; None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_loss(metrics: Path, picture: Path) -> bool:
    """Draws loss and pruned share over tokens. False without matplotlib."""
    pyplot = find_pyplot()
    if pyplot is None:
        return False
    records = read_metrics(metrics)
    figure, axis = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    training = [r for r in records if "loss" in r]
    axis.plot([r["tokens"] for r in training], [r["loss"] for r in training], label="training",
              linewidth=0.8)
    validation = [r for r in records if "valid_loss" in r]
    axis.plot([r["tokens"] for r in validation], [r["valid_loss"] for r in validation], "o-",
              label="validation")
    axis.set(xlabel="tokens", ylabel="loss (nats per token)")
    if training:
        late = sorted(r["loss"] for r in training[len(training) // 20 :])
        axis.set_ylim(late[0] - 0.1, late[-1] + 0.1)
    axis.grid(alpha=0.3)
    axis.legend(loc="upper right")
    pruned = [r for r in training if r.get("pruned_share") is not None]
    if pruned:
        right = axis.twinx()
        right.plot([r["tokens"] for r in pruned], [100 * r["pruned_share"] for r in pruned],
                   color="gray", linewidth=0.8)
        right.set(ylabel="pruned pairs (%)", ylim=(0, 100))
    figure.savefig(picture)
    pyplot.close(figure)
    return True


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: progress METRICS.jsonl PICTURE")
    if not draw_loss(Path(sys.argv[1]), Path(sys.argv[2])):
        sys.exit("progress: matplotlib is missing")
