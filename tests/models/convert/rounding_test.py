"""Tests models/convert/rounding.py against exact arithmetic."""

from __future__ import annotations

import unittest

import numpy as np

from models.convert.refusal import Refusal
from models.convert.rounding import bf16_to_f32, convert, f32_to_bf16, target_dtype


def bits(*patterns: int) -> np.ndarray:
    return np.array(patterns, dtype=np.uint32).view(np.float32)


class Bf16Test(unittest.TestCase):
    def test_nearest_with_ties_to_even(self) -> None:
        """All upper halves with lower ones at and beside a tie: no neighbour is nearer. float64
        holds the differences exactly."""
        upper = np.arange(2**16, dtype=np.uint32)[:, None] << 16
        values = (upper | np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)).ravel()
        values = values.view(np.float32)
        got = f32_to_bf16(values)
        kept = bf16_to_f32(got)
        nan = np.isnan(values)
        self.assertTrue((np.isnan(kept) == nan).all())
        self.assertTrue((np.signbit(kept) == np.signbit(values)).all())
        inner = np.isfinite(values) & np.isfinite(kept) & ((got & 0x7FFF) < 0x7F7F)
        exact, got = values[inner].astype(np.float64), got[inner]
        error = np.abs(kept[inner].astype(np.float64) - exact)
        for step in (-1, 1):
            with self.subTest(step=step):
                can_step = (got & 0x7FFF).astype(int) + step >= 0
                other = bf16_to_f32((got.astype(int) + step)[can_step].astype(np.uint16))
                gap = np.abs(other.astype(np.float64) - exact[can_step])
                nearer, tie = error[can_step] < gap, error[can_step] == gap
                self.assertTrue((nearer | (tie & (got[can_step] % 2 == 0))).all())
        self.assertEqual(f32_to_bf16(bits(0x7F800000, 0xFF800000)).tolist(), [0x7F80, 0xFF80])

    def test_overflow_is_refused(self) -> None:
        with self.assertRaisesRegex(Refusal, "tensor w: 1 finite values overflow BF16"):
            convert(bits(0x7F7FFFFF, 0x7F800000), "F32", "BF16", "w")


class F16Test(unittest.TestCase):
    def test_rounding_ties_and_subnormals(self) -> None:
        ulp = 2.0**-10
        given = np.array([1 + ulp / 2, 1 + 3 * ulp / 2, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 65504.0,
                          65519.0], np.float32)
        want = [0x3C00, 0x3C02, 1, 0, 2, 0x7BFF, 0x7BFF]
        self.assertEqual(convert(given, "F32", "F16", "w").view(np.uint16).tolist(), want)

    def test_overflow_is_refused(self) -> None:
        with self.assertRaisesRegex(Refusal, r"tensor w: 1 finite .* F16 \(largest 65520\)"):
            convert(np.array([65520.0, np.inf, np.nan], np.float32), "F32", "F16", "w")

    def test_bf16_to_f16_and_back(self) -> None:
        given = np.array([0x3F80, 0xC2F7, 0x7F80, 0x7FC0], np.uint16)
        half = convert(given, "BF16", "F16", "w")
        self.assertEqual(half[:2].tolist(), [1.0, -123.5])
        self.assertTrue(np.isinf(half[2]) and np.isnan(half[3]))
        self.assertEqual(convert(half, "F16", "BF16", "w").tolist(), given.tolist())


class TargetTest(unittest.TestCase):
    def test_keep_and_refusals(self) -> None:
        self.assertEqual(target_dtype("BF16", "keep", "w"), "BF16")
        for wanted in ("keep", "f32"):
            self.assertEqual(target_dtype("F64", wanted, "w"), "F32", wanted)
        for source, wanted in (("F64", "bf16"), ("I64", "f32"), ("U8", "keep")):
            with self.subTest(source=source, wanted=wanted):
                with self.assertRaisesRegex(Refusal, f"tensor w: dtype {source}"):
                    target_dtype(source, wanted, "w")
