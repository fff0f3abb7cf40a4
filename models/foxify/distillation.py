"""The loss: KL to the teacher's predictions, computed for some rows of logits at a time.

The embeddings are frozen, so only the gradient of the hidden states is needed. It is computed in
the forward pass, part by part, and no logits are kept.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.foxify.base_model import rows_at_once, wide

PLAIN, SAID, RECALLED = range(3)  # marks of tokens: text, the teacher's chats, recalled facts
KL_WEIGHT = (1.0, 24.0, 24.0)  # by mark; 7% of the tokens are SAID, 2% RECALLED
TRUTH_WEIGHT = (0.0, 0.0, 3.0)  # of the cross entropy, by mark


def row_losses(student: Tensor, teacher: Tensor, targets: Tensor, weights: Tensor
               ) -> tuple[Tensor, Tensor, Tensor]:
    """KL and loss [rows] of logits [rows, V], and the gradient of the loss in `student`.

    `weights` [2, rows] are the weights of the KL and of the cross entropy of targets [rows].
    """
    log_s, log_t = wide(student).log_softmax(-1), wide(teacher).log_softmax(-1)
    s, t = log_s.exp(), log_t.exp()
    kl = (t * (log_t - log_s)).sum(-1)
    is_target = torch.arange(s.shape[1], device=s.device) == targets[:, None]
    truth = -torch.where(is_target, log_s, 0).sum(-1)
    weight, truth_weight = weights
    gradient = (s - t) * weight[:, None] + (s - is_target.to(s.dtype)) * truth_weight[:, None]
    return kl, kl * weight + truth * truth_weight, gradient.to(student.dtype)


class _Distillation(torch.autograd.Function):
    """Returns the sums of KL and loss over all rows; only the loss has a gradient."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, head: Tensor, targets: Tensor,
                weights: Tensor, losses_of: Any) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(student)
        sums, step = [], rows_at_once(len(head))
        for i in range(0, len(student), step):
            rows = slice(i, i + step)
            kl, loss, d_logits = losses_of(F.linear(student[rows], head),
                                           F.linear(teacher[rows], head), targets[rows],
                                           weights[:, rows])
            gradient[rows] = d_logits @ head
            sums.append(torch.stack((kl.sum(), loss.sum())))
        ctx.save_for_backward(gradient)
        kl, loss = torch.stack(sums).sum(0)
        return kl, loss

    @staticmethod
    def backward(ctx: Any, d_kl: Tensor, d_loss: Tensor) -> tuple[Any, ...]:
        del d_kl
        return (ctx.saved_tensors[0] * d_loss).to(ctx.saved_tensors[0].dtype), *(None,) * 5


def distillation(student: Tensor, teacher: Tensor, head: Tensor, ids: Tensor, marks: Tensor,
                 losses_of: Any = row_losses) -> tuple[Tensor, Tensor]:
    """Mean KL in nats per token, without a gradient, and the loss.

    Hidden states [B, T, D], head [V, D]; marks [B, T] of ids.
    """
    assert ids.shape == marks.shape == student.shape[:2] and student.shape == teacher.shape
    targets = ids.roll(-1, 1)
    marks = marks.roll(-1, 1)
    marks[:, -1] = PLAIN
    single = torch.promote_types(student.dtype, torch.float32)
    weights = torch.stack([sum(w * (marks == mark).to(single) for mark, w in enumerate(by_mark))
                           for by_mark in (KL_WEIGHT, TRUTH_WEIGHT)])
    kl, loss = _Distillation.apply(student.flatten(0, 1), teacher.flatten(0, 1), head,
                                   targets.flatten(), weights.flatten(1), losses_of)
    return kl.detach() / targets.numel(), loss / targets.numel()
