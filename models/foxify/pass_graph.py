"""A pass of the training as one CUDA graph. A small model's kernels end sooner than the host can
launch the next ones; a graph launches them all at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class PassGraph:
    """Repeats `work`, a function of tensors [..] on the current GPU, by one launch.

    `work` waits for nothing, reads what changes between its calls from tensors, and adds to
    gradients that exist. It has run before, so that nothing is compiled while it is captured. Its
    memory stays reserved as long as this object.
    """

    def __init__(self, work: Callable[..., Tensor], *inputs: Tensor) -> None:
        """Captures `work` for inputs of these shapes; does not run it."""
        self._inputs = [x.clone() for x in inputs]
        self._graph = torch.cuda.CUDAGraph()
        # NCCL's threads and the thread that makes the next windows may use CUDA during the capture.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._result = work(*self._inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Runs `work`."""
        for own, new in zip(self._inputs, inputs, strict=True):
            own.copy_(new)
        self._graph.replay()
        return self._result.clone()
