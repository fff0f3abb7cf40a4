"""The namespace of the operators, and the compiled library that implements them on CUDA.

The builder of the HuggingFace kernels hub replaces this module by another with the same names.
"""

from __future__ import annotations

import pathlib

import torch

NAMESPACE = "fox"

# The newest: an upgrade may leave a library of another name behind, made for other arguments.
_libraries = sorted(pathlib.Path(__file__).parent.glob("_fox_attention*.so"),
                    key=lambda path: path.stat().st_mtime_ns)
if _libraries:
    torch.ops.load_library(_libraries[-1])

ops = getattr(torch.ops, NAMESPACE)


def add_op_namespace_prefix(name: str) -> str:
    """The qualified name of one of this package's operators."""
    return f"{NAMESPACE}::{name}"
