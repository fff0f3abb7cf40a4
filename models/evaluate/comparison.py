"""Means with standard errors, and two settings compared question by question."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

RESAMPLES = 4000


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its 95% interval."""

    value: float
    low: float
    high: float


def mean(grades: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    values = np.asarray(grades)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), float(error)


def _resampled(tasks: Sequence[tuple[Sequence[float], Sequence[float]]]) -> np.ndarray:
    """[RESAMPLES, 2]: means over tasks of the means of two settings, with the same questions drawn
    for both (Efron's paired bootstrap, stratified by task)."""
    random = np.random.default_rng(0)
    means = np.zeros((RESAMPLES, 2))
    for first, second in tasks:
        pairs = np.stack([np.asarray(first), np.asarray(second)], axis=1)
        for i in range(RESAMPLES):
            means[i] += pairs[random.integers(len(pairs), size=len(pairs))].mean(axis=0)
    return means / len(tasks)


def _interval(value: float, samples: np.ndarray) -> Interval:
    low, high = np.percentile(samples, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def difference(tasks: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """The mean of second minus first over tasks, each of which counts the same."""
    value = float(np.mean([np.mean(second) - np.mean(first) for first, second in tasks]))
    samples = _resampled(tasks)
    return _interval(value, samples[:, 1] - samples[:, 0])


def ratio(tasks: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval | None:
    """The mean of second over the mean of first; None where the first is 0."""
    first = float(np.mean([np.mean(a) for a, _ in tasks]))
    second = float(np.mean([np.mean(b) for _, b in tasks]))
    samples = _resampled(tasks)
    if first == 0 or (samples[:, 0] == 0).any():
        return None
    return _interval(second / first, samples[:, 1] / samples[:, 0])
