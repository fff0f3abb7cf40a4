"""Rules about includes: layers, rooms of kernels/cuda, circles, device-only headers."""

from __future__ import annotations

import graphlib
import posixpath
import re
from collections.abc import Iterator

from cpp_functions import blank_comments_and_strings
from source_tree import DEVICE, Finding, Tree, includes, layer_of, numbered

LAYERS = {"kernels": 0, "models": 1, "engine": 2, "server": 3}
# Rooms of kernels/cuda by floor; "" is the folder itself, where cuda_ops is.
CUDA = "kernels/cuda/"
CUDA_FLOORS = {"ptx": 0, "primitives": 1, "runtime": 1, "sampling": 2, "attention": 2, "append": 2,
               "linear": 2, "paging": 3, "": 4}
HOST_DEVICE_HEADER = "kernels/core/host_device.h"

Graph = dict[str, set[str]]


def check_includes(tree: Tree) -> Iterator[Finding]:
    """Includes go server -> engine -> models -> kernels, so each part can be read on its own."""
    for path, line, target in includes(tree):
        layer, top = layer_of(path), target.split("/")[0]
        if LAYERS.get(top, -1) > LAYERS.get(layer, 99):
            problem = f"{layer} must not include {top}"
        elif layer in LAYERS and layer != "server" and (
                top in ("proto", "grpc", "grpcpp", "google") or target.startswith("fox/v1/")):
            problem = "only server sees the wire"
        elif layer == "kernels" and top == "absl":
            problem = "kernels do without Abseil"
        elif top in ("torch", "ATen", "c10") and not path.startswith("kernels/torch/"):
            problem = "torch headers belong to kernels/torch"
        else:
            continue
        yield Finding("include", path, line, f"{target}: {problem}")


def room_of(path: str) -> str:
    """The room of kernels/cuda in which a file lies, "" for the folder itself."""
    return posixpath.dirname(path[len(CUDA):]).split("/")[0]


def check_cuda_rooms(tree: Tree) -> Iterator[Finding]:
    """cuda_ops -> operations -> primitives and runtime -> ptx: a kernel's reader sees two floors.

    Operations (sampling, attention, append, linear, paging) do not include each other, so each can
    be read, and rewritten, alone. Code that two operations share is a primitive.
    """
    for path in tree:
        if path.startswith(CUDA) and room_of(path) not in CUDA_FLOORS:
            yield Finding("room", path, 0, f"{room_of(path)} is no room that tests/tidy knows")
    for path, line, target in includes(tree):
        if path.startswith(CUDA) and target.startswith(CUDA):
            room, used = room_of(path), room_of(target)
            if room != used and CUDA_FLOORS.get(used, 0) >= CUDA_FLOORS.get(room, 9):
                yield Finding("room", path, line, f"{room or 'cuda'} must not include {target}")


def circles(graph: Graph) -> Iterator[list[str]]:
    """Yields circles, each from its first name on, until the graph without them has none."""
    graph = {node: set(targets) for node, targets in graph.items()}
    while True:
        try:
            ordered = {node: sorted(graph[node]) for node in sorted(graph)}
            graphlib.TopologicalSorter(ordered).prepare()
            return
        except graphlib.CycleError as error:
            circle = error.args[1][:0:-1]  # the error names the included file first
        first = circle.index(min(circle))
        circle = [*circle[first:], *circle[:first + 1]]
        graph[circle[0]].remove(circle[1])
        yield circle


def check_circles(tree: Tree) -> Iterator[Finding]:
    """No circle of folders or units (x.h, x.cc, x.cu): none in a circle can be read alone.

    The part that its members share belongs in a unit of its own, below them.
    """
    for kind, name_of in (("unit", lambda path: posixpath.splitext(path)[0]),
                          ("folder", posixpath.dirname)):
        graph: Graph = {}
        for path, _, target in includes(tree):
            if target in tree and name_of(path) != name_of(target):
                graph.setdefault(name_of(path), set()).add(name_of(target))
        for circle in circles(graph):
            yield Finding("circle", circle[0], 0, f"circle of {kind}s: {' -> '.join(circle)}")


def check_device_headers(tree: Tree) -> Iterator[Finding]:
    """A header with device code ends in .cuh, and only .cu and .cuh files include it.

    So the name of a header says which compiler it needs.
    """
    for path, text in tree.items():
        if not path.endswith(".h") or path == HOST_DEVICE_HEADER:
            continue
        for line, content in numbered(blank_comments_and_strings(text)):
            if re.search(r"__device__|__global__", content):
                yield Finding("device-header", path, line, "a header with device code ends in .cuh")
                break
    for path, line, target in includes(tree):
        if target.endswith(".cuh") and not path.endswith(DEVICE):
            yield Finding("device-header", path, line, f"{target}: for .cu and .cuh files only")
