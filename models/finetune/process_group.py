"""The group of processes that train together (torchrun), or the single process."""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from typing import Any, ContextManager

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WAIT = timedelta(minutes=30)  # for the slowest process: the first one measures alone


class ProcessGroup:
    """Rank, device and the few collective operations of training.

    A collective operation must be called by every process at the same point.
    """

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        local = int(os.environ.get("LOCAL_RANK", 0))
        self.device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device(
            "cpu")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.size > 1:
            # Decisions are shared by gloo, so that they do not wait for the device.
            dist.init_process_group("cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo",
                                    timeout=WAIT)

    @property
    def is_first(self) -> bool:
        """True for the process that prints and writes."""
        return self.rank == 0

    def close(self) -> None:
        """Ends the group."""
        if self.size > 1:
            dist.destroy_process_group()

    def barrier(self) -> None:
        """Waits for all processes. Collective."""
        if self.size > 1:
            dist.barrier()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wraps a model so that gradients are averaged over the processes. Collective."""
        if self.size == 1:
            return model
        devices = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)

    def accumulating(self, model: nn.Module, last: bool) -> ContextManager[Any]:
        """The context of one pass of a step; only the last pass exchanges gradients."""
        return contextlib.nullcontext() if last or self.size == 1 else model.no_sync()

    def put(self, arrays: list[np.ndarray]) -> list[Tensor]:
        """Copies arrays to the device, without waiting for it."""
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        if self.device.type == "cuda":
            return [t.pin_memory().to(self.device, non_blocking=True) for t in tensors]
        return tensors

    def mean(self, value: Tensor) -> Tensor:
        """The mean of all processes' values. Collective."""
        if self.size > 1:
            dist.all_reduce(value)
            value = value / self.size
        return value

    def least(self, value: float) -> float:
        """The smallest of all processes' values. Collective."""
        least = torch.tensor(value, dtype=torch.float64)
        if self.size > 1:
            dist.all_reduce(least, dist.ReduceOp.MIN)
        return least.item()

    def gather(self, part: Tensor) -> tuple[Tensor, Any]:
        """Begins to gather the processes' parts [n], one behind the other: returns the whole, and
        what is to be waited for, by wait(), before it is read. Collective."""
        whole = part.new_empty(self.size * len(part))
        return whole, dist.all_gather_into_tensor(whole, part, async_op=True)

    def from_first(self, values: list[Any]) -> list[Any]:
        """Returns the first process's values in every process. Collective."""
        if self.size > 1:
            dist.broadcast_object_list(values, 0, device=torch.device("cpu"))
        return values

    def same(self, model: nn.Module) -> None:
        """Copies the first process's parameters and buffers to all processes. Collective."""
        for tensor in model.state_dict().values() if self.size > 1 else ():
            dist.broadcast(tensor, 0)


class Reading:
    """Numbers being copied from the device. read() waits for the copy, not for later work."""

    def __init__(self, values: Tensor) -> None:
        self._values, self._event = values, None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[float]:
        """Waits for the numbers and returns them."""
        if self._event is not None:
            self._event.synchronize()
        return self._values.tolist()
