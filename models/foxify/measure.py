"""Evaluation on held-out text: loss, recall by depth, KL on the teacher's chats, shares kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.finetune.text_tokens import TextTokenizer
from models.foxify.base_model import PAGE, BaseModel, rows_at_once
from models.foxify.pressure import excess, kept_shares
from models.foxify.recall import Asking, RecallWindows
from models.foxify.student import Student

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
NEEDLES = 24  # facts per depth, half of them in chats
BOOK_WINDOWS, CHAT_WINDOWS, SHARE_WINDOWS = 32, 8, 8

Hidden = Callable[[Tensor], Tensor]


class Evaluation:
    """Held-out windows, the same for the teacher and every student."""

    def __init__(self, base: BaseModel, tokenizer: TextTokenizer, books: np.ndarray,
                 chats: np.ndarray | None, micro: int) -> None:
        self._base, self._books, self._micro = base, books[:BOOK_WINDOWS], micro
        self._chats = None if chats is None else chats[:CHAT_WINDOWS]
        asking, length = Asking(base.directory), books.shape[1]
        if self._chats is not None:
            self._chat_marks = asking.said(self._chats, tokenizer)
        windows, rng = RecallWindows(tokenizer, asking, length), np.random.default_rng(5)
        made = [windows.test(books[rng.integers(len(books))], rng, depth, chat=i % 2 == 1)
                for depth in DEPTHS for i in range(NEEDLES)]
        self._needles, self._needle_marks = (np.stack(x) for x in zip(*made))

    def _parts(self, *arrays: np.ndarray) -> Any:
        for i in range(0, len(arrays[0]), self._micro):
            yield [torch.from_numpy(np.ascontiguousarray(x[i : i + self._micro])).to(
                self._base.device) for x in arrays]

    def _split(self, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Splits tensors of the same rows into parts whose logits are in memory at once."""
        return (x.split(rows_at_once(self._base.architecture.vocab)) for x in rows)

    def _book_loss(self, hidden: Hidden) -> float:
        total, count = 0.0, 0
        for (ids,) in self._parts(self._books):
            for row, h in zip(ids, hidden(ids)):
                for targets, part in zip(*self._split(row[1:], h[:-1])):
                    logits = self._base.logits(part)
                    total += F.cross_entropy(logits, targets, reduction="sum").item()
                    count += len(targets)
        return total / count

    def _recall(self, hidden: Hidden) -> dict[str, list[float]]:
        """The share of answers whose tokens are all the likeliest ones, by depth."""
        right: list[bool] = []
        for ids, marks in self._parts(self._needles, self._needle_marks):
            for row, mark, h in zip(ids, marks, hidden(ids)):
                places = mark.nonzero().flatten()
                best = self._base.logits(h[places - 1]).argmax(-1)
                right.append(len(places) > 0 and bool((best == row[places]).all()))
        table = np.asarray(right, float).reshape(len(DEPTHS), NEEDLES)
        return {"all": table.mean(1).tolist(), "plain": table[:, ::2].mean(1).tolist(),
                "chat": table[:, 1::2].mean(1).tolist()}

    def _chat_kl(self, hidden: Hidden) -> float:
        """KL in nats per token of the teacher's answers."""
        total, count = 0.0, 0
        for ids, marks in self._parts(self._chats, self._chat_marks):
            for mark, mine, theirs in zip(marks, hidden(ids), self._base.hidden(ids)):
                places = mark[1:].nonzero().flatten()
                for both in zip(*self._split(mine[places], theirs[places])):
                    log_s, log_t = (self._base.logits(h).log_softmax(-1) for h in both)
                    total += F.kl_div(log_s, log_t, reduction="sum", log_target=True).item()
                count += len(places)
        return total / max(1, count)

    def _shares(self, student: Student) -> dict[str, Any]:
        """Shares of pages kept in the book windows, by layer and kv head."""
        if student.window is not None:
            n = self._books.shape[1] // PAGE
            pages = np.minimum(np.arange(1, n + 1), student.window / PAGE)
            return {"share": float(pages.sum() / (n * (n + 1) / 2)),
                    "share_at_end": float(pages[-1] / n)}
        sums = []
        for (ids,) in self._parts(self._books[:SHARE_WINDOWS]):
            x = excess(student(ids)[1], student.sinks, *student.norms())
            sums.append(torch.stack(kept_shares(x)) * len(ids))
        mean, last = torch.stack(sums).sum(0) / len(self._books[:SHARE_WINDOWS])
        return {"share": mean.mean().item(), "share_at_end": last.mean().item(),
                "share_by_layer_and_head": mean.tolist(), "share_at_end_by_head": last.tolist()}

    @torch.no_grad()
    def of(self, model: BaseModel | Student) -> dict[str, Any]:
        """All measurements of a model."""
        def hidden(ids: Tensor) -> Tensor:
            return model.hidden(ids) if isinstance(model, BaseModel) else model(ids)[0]

        result: dict[str, Any] = {"loss": self._book_loss(hidden), "recall": self._recall(hidden)}
        result["recall_mean"] = float(np.mean(result["recall"]["all"]))
        if isinstance(model, Student):
            result |= self._shares(model)
            if self._chats is not None:
                result["chat_kl"] = self._chat_kl(hidden)
        return result
