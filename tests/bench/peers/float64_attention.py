"""Forgetting attention and its gradients in float64, as formulas: what errors are measured against.

One head at a time, a thousand rows at a time, so that 16k tokens fit. Inputs are head first.
"""

from __future__ import annotations

import torch

ROWS = 1024
NAMES = ("out", "dq", "dk", "dv", "d_log_gates")


def one_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_gates: torch.Tensor,
             d_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, k, v, d_out: [tokens, head_dim], log_gates: [tokens], all float64. Gives NAMES."""
    tokens, scale = q.shape[0], q.shape[1] ** -0.5
    c = log_gates.cumsum(0)
    out, dq, dk, dv = (torch.zeros_like(x) for x in (q, q, k, v))
    dc = torch.zeros_like(c)
    index = torch.arange(tokens, device=q.device)
    for begin in range(0, tokens, ROWS):
        end = min(begin + ROWS, tokens)
        rows, keys = slice(begin, end), slice(0, end)
        s = scale * (q[rows] @ k[keys].T) + c[rows, None] - c[None, keys]
        p = s.masked_fill_(index[None, keys] > index[rows, None], -torch.inf).softmax(-1)
        dp = d_out[rows] @ v[keys].T
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        out[rows] = p @ v[keys]
        dq[rows] = scale * (ds @ k[keys])
        dk[keys] += scale * (ds.T @ q[rows])
        dv[keys] += p.T @ d_out[rows]
        dc[rows] += ds.sum(1)
        dc[keys] -= ds.sum(0)
    return out, dq, dk, dv, dc.flip(0).cumsum(0).flip(0)


def attention_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_gates: torch.Tensor,
                        d_out: torch.Tensor) -> dict[str, torch.Tensor]:
    """Output and gradients by NAMES, float64, shapes as the inputs'.

    q, k, v, d_out: [batch, heads, tokens, head_dim], log_gates: [batch, heads, tokens].
    """
    inputs = (q, k, v, log_gates, d_out)
    heads = [one_head(*(x[b, h].double() for x in inputs))
             for b in range(q.shape[0]) for h in range(q.shape[1])]
    return {name: torch.stack(values).reshape(like.shape)
            for name, like, values in zip(NAMES, (q, q, k, v, log_gates), zip(*heads))}


def relative_errors(given: dict[str, torch.Tensor],
                    exact: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By NAMES, each head's |given - exact| / |exact|, norms over its batch and tokens."""
    def norms(x: torch.Tensor) -> torch.Tensor:
        return x.double().transpose(0, 1).flatten(1).norm(dim=1)  # [heads]

    return {name: norms(given[name].double() - exact[name]) / norms(exact[name])
            for name in NAMES}
