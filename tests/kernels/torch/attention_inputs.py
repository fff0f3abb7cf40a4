"""Shared by the tests of fox_attention: random inputs, the definition in float64, gradients.

Importing it ends the program with ctest's code for a skipped test where torch is missing. The
package is the installed one, or, without its CUDA kernels, the one in this tree.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import unittest
from collections.abc import Callable
from typing import NamedTuple

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "kernels" / "torch"

try:
    import torch
except ImportError:
    print(f"SKIPPED: {sys.executable} lacks torch, which ./run test all installs")
    sys.exit(SKIPPED)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

_found = importlib.util.find_spec("fox_attention")
if _found is None or _found.origin is None:  # a folder of tests has that name, too
    sys.path.insert(0, str(PACKAGE / "torch-ext"))


class Inputs(NamedTuple):
    """Arguments of forgetting_attention, heads last but one, and a gradient of its output."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    log_fgate: torch.Tensor
    d_out: torch.Tensor

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self[:4]


def random_inputs(batch: int = 2, tokens: int = 200, heads: int = 2, kv_heads: int = 2,
                  head_dim: int = 8, *, gate: float = 2.0, dtype: torch.dtype = torch.float64,
                  device: str = "cpu", seed: int = 0) -> Inputs:
    """Normal q, k, v and d_out; gates sigmoid(normal + gate). The gates are float32 or wider."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    gates = torch.nn.functional.logsigmoid(normal(batch, tokens, heads) + gate)
    gate_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    q, k, v, d_out = (normal(batch, tokens, count, head_dim).to(device, dtype)
                      for count in (heads, kv_heads, kv_heads, heads))
    return Inputs(q, k, v, gates.to(device, gate_dtype), d_out)


def definition(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_fgate: torch.Tensor, *,
               scale: float | None = None, visible: torch.Tensor | None = None,
               sinks: torch.Tensor | None = None) -> torch.Tensor:
    """softmax(scale q k^T + decay) v as the paper writes it, all of it at once.

    `sinks` [heads] are logits of one more key, whose value is 0.

    `visible`, bool, broadcasts to [batch, heads, queries, keys]; a row that sees nothing gives 0.
    """
    group, tokens = q.shape[2] // k.shape[2], k.shape[1]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    cum = log_fgate.cumsum(1).transpose(1, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[3]**-0.5 if scale is None else scale)
    scores = scores + cum[..., tokens - q.shape[1]:, None] - cum[..., None, :]
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    mask = mask.tril(tokens - q.shape[1])
    if visible is not None:
        mask = mask & visible
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, column), -1)
    weights = scores.softmax(-1)[..., :tokens].masked_fill(~mask, 0)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def gradients(function: Callable[..., torch.Tensor], inputs: Inputs, *,
              d_out: torch.Tensor | None = None,
              sinks: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    """The output of function(q, k, v, log_fgate) and its gradients by all four, and by sinks."""
    leaves = [x.detach().requires_grad_() for x in inputs.arguments]
    options = {}
    if sinks is not None:
        leaves.append(sinks.detach().requires_grad_())
        options["sinks"] = leaves[-1]
    out = function(*leaves[:4], **options)
    out.backward(inputs.d_out if d_out is None else d_out)
    return out.detach(), *(leaf.grad for leaf in leaves)


class OperatorCalls(TorchDispatchMode):
    """While active, `calls` gets the name and the arguments of each operator of the package."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple]] = []

    def __torch_dispatch__(self, function: torch._ops.OpOverload, types: object, args: tuple = (),
                           kwargs: dict | None = None) -> object:
        if function.namespace == "fox":
            self.calls.append((function._opname, args))
        return function(*args, **(kwargs or {}))


NAMES = ("out", "dq", "dk", "dv", "d_log_fgate", "d_sinks")
# Of the kernels: operands, weights and dS are bf16, 2^-9 each, relative; sums are float32.
BF16_TOLERANCE = 1e-2


def exact(inputs: Inputs) -> Inputs:
    """The same numbers in float64: the reference serves them."""
    return Inputs(*(x.double() for x in inputs))


def errors(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """|found - wanted| / |wanted| of the output and of each gradient; 0 / 0 is 0."""
    ratios = {}
    for name, one, other in zip(NAMES, found, wanted):
        difference, size = (one.double() - other).norm().item(), other.norm().item()
        ratios[name] = difference if size == 0 else difference / size
    return ratios


class AttentionTest(unittest.TestCase):
    """Comparisons that name the array that differs."""

    def assert_near(self, found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...],
                    tolerance: float = 1e-12) -> None:
        """Relative to the largest entry: sums of some hundred terms in float64 unless told."""
        for name, one, other in zip(NAMES, found, wanted):
            self.assertEqual(one.shape, other.shape, name)
            self.assertFalse(one.isnan().any(), name)
            error = (one.double() - other.double()).abs().max().item() if one.numel() else 0.0
            limit = tolerance * max(1.0, other.abs().max().item() if other.numel() else 0.0)
            self.assertLessEqual(error, limit, name)

    def assert_equal(self, found: tuple[torch.Tensor, ...],
                     wanted: tuple[torch.Tensor, ...]) -> None:
        for name, one, other in zip(NAMES, found, wanted):
            self.assertTrue(torch.equal(one, other), name)
