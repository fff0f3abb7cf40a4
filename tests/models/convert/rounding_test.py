"""Tests models/convert/rounding.py against exact arithmetic."""

from __future__ import annotations

import unittest
from fractions import Fraction

import numpy as np
from refusal import Refusal
from rounding import bf16_to_f32, convert, f32_to_bf16, target_dtype


def bf16(*values: float) -> list[int]:
    """bfloat16 bits of float32 values."""
    return f32_to_bf16(np.array(values, dtype=np.float32)).tolist()


def bits(*patterns: int) -> np.ndarray:
    """float32 values from their bits."""
    return np.array(patterns, dtype=np.uint32).view(np.float32)


class Bf16Test(unittest.TestCase):
    def test_ties_go_to_even(self) -> None:
        """Half of the last kept bit above an even and above an odd value, and one step off it."""
        given = bits(0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF808000, 0xBF818000)
        want = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0xBF80, 0xBF82]
        self.assertEqual(f32_to_bf16(given).tolist(), want)

    def test_carry_into_the_exponent(self) -> None:
        self.assertEqual(f32_to_bf16(bits(0x3FFFFFFF)).tolist(), [0x4000])

    def test_zeros_and_infinities(self) -> None:
        self.assertEqual(bf16(0.0, -0.0, np.inf, -np.inf), [0, 0x8000, 0x7F80, 0xFF80])

    def test_subnormals_are_kept(self) -> None:
        given = bits(0x00010000, 0x00008000, 0x00008001, 0x00018000, 0x807F8000)
        self.assertEqual(f32_to_bf16(given).tolist(), [1, 0, 1, 2, 0x8080])

    def test_nan_stays_nan(self) -> None:
        """Payloads only in the dropped bits, and those that would overflow when rounded."""
        result = f32_to_bf16(bits(0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000))
        self.assertTrue(np.isnan(bf16_to_f32(result)).all())
        self.assertEqual((result >> 15).tolist(), [0, 1, 0, 1, 0])

    def test_nearest_for_random_values(self) -> None:
        """No bfloat16 neighbour is nearer, and a tie has an even last bit: exact fractions."""
        pattern = np.random.default_rng(7).integers(0, 2**32, 4000, dtype=np.uint32)
        values = pattern.view(np.float32)
        values = values[np.isfinite(values) & (np.abs(values) < 1e38)]
        for value, got in zip(values.tolist(), f32_to_bf16(values).tolist()):
            kept = bf16_to_f32(np.array([got], np.uint16)).tolist()[0]
            error = abs(Fraction(kept) - Fraction(value))
            for step in (-1, 1):
                if not 0 <= (got & 0x7FFF) + step < 0x7F80:
                    continue
                other = bf16_to_f32(np.array([got + step], np.uint16)).tolist()[0]
                gap = abs(Fraction(other) - Fraction(value))
                self.assertTrue(error < gap or (error == gap and got % 2 == 0), (value, got))

    def test_all_bf16_values_survive(self) -> None:
        """Widening is exact; so every non-NaN pattern comes back."""
        patterns = np.arange(2**16, dtype=np.uint16)
        wide = bf16_to_f32(patterns)
        same = f32_to_bf16(wide) == patterns
        self.assertTrue((same | np.isnan(wide)).all())

    def test_overflow_is_refused(self) -> None:
        with self.assertRaisesRegex(Refusal, "tensor w: 1 finite values overflow BF16"):
            convert(bits(0x7F7FFFFF, 0x7F800000), "F32", "BF16", "w")


class F16Test(unittest.TestCase):
    def test_rounding_ties_and_subnormals(self) -> None:
        ulp = 2.0**-10
        given = np.array(
            [1 + ulp / 2, 1 + 3 * ulp / 2, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 65504.0, 65519.0],
            np.float32,
        )
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
        self.assertEqual(target_dtype("F64", "f32", "w"), "F32")
        for source, wanted in (("F64", "keep"), ("F64", "bf16"), ("I64", "f32"), ("U8", "keep")):
            with self.assertRaisesRegex(Refusal, f"tensor w: dtype {source}"):
                target_dtype(source, wanted, "w")
