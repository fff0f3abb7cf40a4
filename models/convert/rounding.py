"""Conversion between float32, bfloat16 and float16, to nearest, ties to even.

Invariant: a finite value never becomes infinite (an overflow is refused), NaN stays NaN, infinity
stays infinity, subnormals are kept. bfloat16 values are uint16 bit patterns.
"""

from __future__ import annotations

import numpy as np

from models.convert.refusal import Refusal
from models.convert.source_tensor import unsupported

# Command-line name -> safetensors name
TARGETS = {"f32": "F32", "bf16": "BF16", "f16": "F16"}
TORCH_NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
STORED = frozenset(TARGETS.values())


def target_dtype(source: str, wanted: str, name: str) -> str:
    """The safetensors dtype that tensor `name` of dtype `source` is written in."""
    if source == "F64" and wanted == "bf16":  # f32_to_bf16 would round twice
        raise Refusal(f"tensor {name}: dtype F64 does not become bf16, use --dtype f32")
    if source not in (*STORED, "F64"):
        raise unsupported(name, source)
    if wanted == "keep":
        return "F32" if source == "F64" else source
    return TARGETS[wanted]


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """Widens bfloat16 bits to float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: np.ndarray) -> np.ndarray:
    """Rounds float32 to bfloat16 bits. A NaN stays a (quiet) NaN of the same sign."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Adding just below half of the dropped part, plus the last bit of the kept part, rounds ties
    # to even; a carry runs into the exponent, as it should. NaN patterns would overflow, so they
    # are handled apart.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x0040)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, quiet_nan, rounded).astype(np.uint16)


def as_float(values: np.ndarray, dtype: str) -> np.ndarray:
    """Converts bits to numbers of a numpy floating type that holds them exactly."""
    return bf16_to_f32(values) if dtype == "BF16" else values


def count_nonfinite(values: np.ndarray, dtype: str) -> int:
    """How many NaN or infinite elements `values` has."""
    if dtype == "BF16":
        exponent = np.uint16(0x7F80)
        return int(np.count_nonzero((values & exponent) == exponent))
    return int(np.count_nonzero(~np.isfinite(values)))


def convert(values: np.ndarray, source: str, target: str, name: str) -> np.ndarray:
    """Rounds a flat block of dtype `source` to `target`; Refusal if a finite value overflows."""
    if source == target:
        return values
    numbers = as_float(values, source)
    if target == "BF16":
        result = f32_to_bf16(numbers)
    else:
        with np.errstate(over="ignore", under="ignore"):  # an overflow is found below
            result = numbers.astype({"F32": np.float32, "F16": np.float16}[target])
    overflow = count_nonfinite(result, target) - count_nonfinite(values, source)
    if overflow > 0:
        largest = float(np.max(np.abs(numbers[np.isfinite(numbers)])))
        raise Refusal(
            f"tensor {name}: {overflow} finite values overflow {target} (largest {largest:.6g})"
        )
    return result
