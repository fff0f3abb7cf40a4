"""Parts of layers, gathered ahead of use, against the matrices of the file."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from toy_llama import write_toy  # first: it skips without torch

import torch
from safetensors.torch import load_file
from torch import Tensor

from models.convert.refusal import Refusal
from models.foxify.base_model import Tensors, read_architecture
from models.foxify.layer_matrices import MATRICES, LayerMatrices

LAYERS = 5


class Processes:
    """The parts of all processes in this one; a whole has its numbers only after wait()."""

    def __init__(self, folder: Path, count: int) -> None:
        architecture, config = read_architecture(folder)
        self.asked, self.parts = [], []
        tensors = Tensors(folder, config)
        for rank in range(count):
            group = SimpleNamespace(size=count, rank=rank, gather=self.gather)
            self.parts.append(LayerMatrices(architecture, torch.device("cpu"), torch.float32,
                                            group))
            self.parts[-1].fill(tensors.take)

    def gather(self, part: Tensor) -> tuple[Tensor, SimpleNamespace]:
        n = part.storage_offset() // len(part)
        self.asked.append(n)
        whole = torch.full((len(part) * len(self.parts),), torch.nan)
        found = torch.cat([part._own[n] for part in self.parts])
        return whole, SimpleNamespace(wait=lambda: whole.copy_(found))


class LayerMatricesTest(unittest.TestCase):
    """On a toy of five layers; seven processes cannot share out its numbers evenly."""

    def setUp(self) -> None:
        self.folder = write_toy(Path(self.enterContext(tempfile.TemporaryDirectory())) / "toy",
                                num_hidden_layers=LAYERS)

    def test_every_process_sees_the_matrices_of_the_file(self) -> None:
        file = load_file(self.folder / "model.safetensors")
        for count in (1, 2, 7):
            for rank, part in enumerate(Processes(self.folder, count).parts):
                for n in range(LAYERS):
                    for kind, matrix in part.of(n).items():
                        with self.subTest(count=count, rank=rank, layer=n, kind=kind):
                            expected = torch.cat([file[f"model.layers.{n}.{name}.weight"]
                                                  for name in MATRICES[kind]])
                            self.assertTrue(torch.equal(matrix, expected))

    def test_a_part_takes_its_share_of_memory_and_of_the_file(self) -> None:
        architecture, config = read_architecture(self.folder)
        group, read = SimpleNamespace(size=4, rank=1), []
        part = LayerMatrices(architecture, torch.device("cpu"), torch.float32, group)
        whole = LayerMatrices(architecture, torch.device("cpu"), torch.float32, None)
        self.assertEqual(4 * part._own.numel(), whole._own.numel())
        tensors = Tensors(self.folder, config)

        def take(name: str, shape: tuple[int, int], elements: slice) -> Tensor:
            read.append(tensors.take(name, shape, elements))
            return read[-1]

        part.fill(take)
        self.assertEqual(sum(map(len, read)), part._own.numel())

    def test_a_step_gathers_ahead_in_both_directions(self) -> None:
        processes = Processes(self.folder, 2)
        up, down = list(range(LAYERS)), list(reversed(range(LAYERS)))
        layers = processes.parts[0]
        for n in [*up, *up, *down, *up]:  # teacher, student, backward pass; the next step
            layers.of(n)
            ahead = set(layers._gathered) - {n}
            self.assertLessEqual(len(ahead), 1, n)
        # The last layer and the first are still there when the direction changes.
        self.assertEqual(processes.asked, [*up, *up, *down[1:], *up[1:]])

    def test_a_matrix_of_another_shape_is_refused_by_every_process(self) -> None:
        config = (self.folder / "config.json").read_text()
        (self.folder / "config.json").write_text(config.replace("96", "95"))
        architecture, raw = read_architecture(self.folder)
        for rank in range(2):
            part = LayerMatrices(architecture, torch.device("cpu"), torch.float32,
                                 SimpleNamespace(size=2, rank=rank))
            with self.subTest(rank=rank), self.assertRaisesRegex(Refusal, "expected .95, 64."):
                part.fill(Tensors(self.folder, raw).take)


if __name__ == "__main__":
    unittest.main()
