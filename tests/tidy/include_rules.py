"""Rules about includes: parts, rooms of kernels/cuda, circles, device-only headers."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from cpp_functions import blank_comments_and_strings
from source_tree import DEVICE, Finding, Tree, includes, layer_of, numbered

LAYERS = {"kernels": 0, "models": 1, "engine": 2, "server": 3}
# Rooms of kernels/cuda by floor; "" is the folder itself, where cuda_ops is.
CUDA = "kernels/cuda"
CUDA_FLOORS = {"ptx": 0, "primitives": 1, "runtime": 1, "sampling": 2, "attention": 2, "append": 2,
               "linear": 2, "paging": 2, "": 3}
HOST_DEVICE_HEADER = "kernels/core/host_device.h"
TORCH_HEADER = re.compile(r"(torch|ATen|c10)/")

Graph = dict[str, set[str]]


def check_includes(tree: Tree) -> Iterator[Finding]:
    """Includes go server -> engine -> models -> kernels, so each part can be read on its own."""
    for path, line, target in includes(tree):
        layer, top = layer_of(path), target.split("/")[0]
        problem = ""
        if LAYERS.get(top, -1) > LAYERS.get(layer, 99):
            problem = f"{layer} must not include {top}"
        elif layer in LAYERS and layer != "server":
            if top in ("proto", "grpc", "grpcpp", "google") or target.startswith("fox/v1/"):
                problem = "only server sees the wire"
        if layer == "kernels" and top == "absl":
            problem = "kernels do without Abseil"
        if TORCH_HEADER.match(target) and not path.startswith("kernels/torch/"):
            problem = "torch headers belong to kernels/torch"
        if problem:
            yield Finding("include", path, line, f"{target}: {problem}")


def room_of(path: str) -> str | None:
    """The room of kernels/cuda in which a file lies, "" for the folder itself; None: elsewhere."""
    if not path.startswith(CUDA + "/"):
        return None
    rest = path[len(CUDA) + 1:].split("/")
    return rest[0] if len(rest) > 1 else ""


def check_cuda_rooms(tree: Tree) -> Iterator[Finding]:
    """cuda_ops -> operations -> primitives and runtime -> ptx: a kernel's reader sees two floors.

    Operations (sampling, attention, append, linear, paging) do not include each other, so each can
    be read, and rewritten, alone; what two of them share is a primitive.
    """
    unknown = {room for path in tree if (room := room_of(path)) and room not in CUDA_FLOORS}
    for room in sorted(unknown):
        yield Finding("room", f"{CUDA}/{room}", 0, "not a room that tests/tidy knows")
    for path, line, target in includes(tree):
        room, used = room_of(path), room_of(target)
        if room is None or used is None or room == used or {room, used} & unknown:
            continue
        if CUDA_FLOORS[used] >= CUDA_FLOORS[room]:
            problem = f"{room or 'cuda'} must not include {used or 'cuda'}"
            yield Finding("room", path, line, f"{target}: {problem}")


def circles(graph: Graph) -> Iterator[list[str]]:
    """Yields a shortest circle through the first node of each strongly connected component."""
    done: set[str] = set()
    for start in sorted(graph):
        # Breadth first from `start` back to itself; small graphs, so nothing cleverer is needed.
        previous: dict[str, str] = {}
        queue = [start]
        while queue and start not in previous:
            node = queue.pop(0)
            for target in sorted(graph.get(node, ())):
                if target not in previous:
                    previous[target] = node
                    queue.append(target)
        if start not in previous or start in done:
            continue
        circle, node = [start], previous[start]
        while node != start:
            circle.append(node)
            node = previous[node]
        yield [start, *reversed(circle[1:]), start]
        done |= reachable(graph, start) & reaching(graph, start)


def reachable(graph: Graph, start: str) -> set[str]:
    """Nodes at the end of a path from `start`."""
    seen: set[str] = set()
    stack = [start]
    while stack:
        for target in graph.get(stack.pop(), set()) - seen:
            seen.add(target)
            stack.append(target)
    return seen


def reaching(graph: Graph, end: str) -> set[str]:
    """Nodes with a path to `end`."""
    reverse: Graph = {}
    for node, targets in graph.items():
        for target in targets:
            reverse.setdefault(target, set()).add(node)
    return reachable(reverse, end)


def check_circles(tree: Tree) -> Iterator[Finding]:
    """No circle of folders, none of units (x.h, x.cc, x.cu): else none can be read without all.

    What a circle shares belongs in a unit of its own, below its members.
    """
    units: Graph = {}
    folders: Graph = {}
    for path, _, target in includes(tree):
        if target not in tree:
            continue
        unit, used = posixpath.splitext(path)[0], posixpath.splitext(target)[0]
        if unit != used:
            units.setdefault(unit, set()).add(used)
        folder, below = posixpath.dirname(path), posixpath.dirname(target)
        if folder != below:
            folders.setdefault(folder, set()).add(below)
    for kind, graph in (("unit", units), ("folder", folders)):
        for circle in circles(graph):
            yield Finding("circle", circle[0], 0, f"circle of {kind}s: {' -> '.join(circle)}")


def check_device_headers(tree: Tree) -> Iterator[Finding]:
    """Headers with device code end in .cuh, and only .cu and .cuh include those.

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
