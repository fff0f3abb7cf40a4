#!/usr/bin/env python3
"""Prints SamplingDigest::kExpected, computed by numpy: one rounding an operation, nothing fused."""

from __future__ import annotations

import numpy

F, D, U = numpy.float32, numpy.float64, numpy.uint64
LOG2 = (-0.14581161737442017, 0.23404233157634735, -0.24887686967849731, 0.2870987057685852,
        -0.3602396249771118, 0.48092323541641235, -0.7213528156280518, 1.442694902420044)
COUNT = 1 << 20


def split(x: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Exponents and fractions of positive floats, about the square root of 1/2."""
    bits = x.view(numpy.int32)
    exponent = (bits - numpy.int32(0x3f3504f3)) >> 23
    return exponent.astype(F), (bits - (exponent << 23)).view(F) - F(1)


def log2(exponent: numpy.ndarray, fraction: numpy.ndarray) -> numpy.ndarray:
    """Base two, by the polynomial."""
    p = numpy.full_like(fraction, F(LOG2[0]))
    for coefficient in LOG2[1:]:
        p = p * fraction + F(coefficient)
    return exponent + p * fraction


def noise(word: numpy.ndarray, temperature: float) -> numpy.ndarray:
    """The race's noise."""
    upper = word >= 1 << 31
    distance = numpy.where(upper, ~word, word).astype(numpy.int32).astype(F)
    small = (distance + F(0.5)) * F(2**-32)
    exponent, fraction = split(numpy.where(upper, small, F(1) - small))
    time = -log2(exponent, numpy.where(exponent == 0, -small, fraction))
    return -(F(temperature) * F(0.6931471805599453) * log2(*split(time)))


def weight(x: numpy.ndarray, temperature: float) -> numpy.ndarray:
    """exp(x / temperature)."""
    scaled = numpy.maximum(x.astype(D) * (D(1) / D(F(temperature))), -200).astype(F)
    clamped = numpy.maximum(scaled, F(-87))
    n = (clamped * F(1.44269504) - F(0.5)).astype(numpy.int32)
    fn = n.astype(F)
    r = (clamped - fn * F(0.693359375)) + fn * F(2.12194440e-4)
    p = numpy.full_like(r, F(1) / F(5040))
    for divisor in (720, 120, 24, 6, 2, 1, 1):
        p = p * r + F(1) / F(divisor)
    return numpy.where(scaled < -87, F(0), p * ((n + 127) << 23).view(F))


def main() -> None:
    """Prints the digest."""
    i = numpy.arange(COUNT, dtype=numpy.uint32)
    word = (i * numpy.uint32(2654435761)) >> (i % numpy.uint32(29))
    high = noise(word, 0.7).view(numpy.uint32).astype(U) << U(32)
    low = weight(i.astype(F) * F(-1.375 * 2**-14), 0.9).view(numpy.uint32).astype(U)
    print(hex(((high | low) * (U(2) * i.astype(U) + U(1))).sum(dtype=U)))


if __name__ == "__main__":
    main()
