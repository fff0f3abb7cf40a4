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


def output_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                log_gates: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
    """The output of a few rows (positions) of every head, float64; None: without a gate.

    Shapes as in attention_gradients, as many heads of k and v as of q; gives [.., rows, head_dim].
    """
    future = torch.arange(k.shape[2], device=k.device)[None, :] > rows[:, None]
    result = []
    for b in range(q.shape[0]):
        s = q.shape[-1] ** -0.5 * (q[b, :, rows].double() @ k[b].double().mT)
        if log_gates is not None:
            c = log_gates[b].double().cumsum(-1)
            s += c[:, rows, None] - c[:, None, :]
        result.append(s.masked_fill_(future, -torch.inf).softmax(-1) @ v[b].double())
    return torch.stack(result)


def attention_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                        log_gates: torch.Tensor, d_out: torch.Tensor,
                        seq_start: list[int] | None = None) -> dict[str, torch.Tensor]:
    """Output and gradients by NAMES, float64, shapes as the inputs'; k and v may have fewer heads.

    q, d_out: [batch, q_heads, tokens, head_dim], k, v: [batch, kv_heads, tokens, head_dim],
    log_gates: [batch, q_heads, tokens]. Tokens before a row's seq_start are of no sequence: zeros.
    """
    like = dict(zip(NAMES, (q, q, k, v, log_gates)))
    result = {name: torch.zeros_like(x, dtype=torch.float64) for name, x in like.items()}
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        live = slice(seq_start[b] if seq_start else 0, None)
        for h in range(q.shape[1]):
            heads = (h, h, h // group, h // group, h)
            given = one_head(*(x[b, head, live].double() for x, head in
                               ((q, h), (k, h // group), (v, h // group), (log_gates, h),
                                (d_out, h))))
            for name, head, value in zip(NAMES, heads, given):
                result[name][b, head, live] += value
    return result


def relative_errors(given: dict[str, torch.Tensor],
                    exact: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By NAMES, each head's |given - exact| / |exact|, norms over its batch and tokens.

    A gradient that is zero in exact arithmetic (a single token's but that of v) is compared with
    the size of dv: the terms that cancel in it are of that size.
    """
    def norms(x: torch.Tensor) -> torch.Tensor:
        return x.double().transpose(0, 1).flatten(1).norm(dim=1)  # [heads]

    whole = exact["dv"].norm() / exact["dv"].shape[1] ** 0.5
    errors = {}
    for name in NAMES:
        size = norms(exact[name])
        difference = norms(given[name].double() - exact[name])
        errors[name] = difference / torch.where(size > 1e-9 * whole, size, whole)
    return errors


def worst_and_mean(errors: dict[str, torch.Tensor]) -> dict[str, dict[str, float]]:
    """Errors of the worst head, and their root mean square over heads; NaN if there is one."""
    return {"errors": {name: e.max().item() for name, e in errors.items()},
            "mean_errors": {name: e.square().mean().sqrt().item() for name, e in errors.items()}}
