"""Means with intervals: the one place where a spread becomes an interval."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95


class Mean(NamedTuple):
    """A mean, the ends of its interval, and its standard error."""

    mean: float
    low: float
    high: float
    error: float


def mean_interval(values: Any, level: float = LEVEL) -> Mean:
    """The mean of independent values and its Student t interval; one value has none (low = high =
    mean, no error).

    >>> found = mean_interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    a = np.asarray(values, dtype=float)
    mean = float(a.mean())
    if a.size < 2:
        return Mean(mean, mean, mean, float("nan"))
    error = float(a.std(ddof=1) / np.sqrt(a.size))
    half = float(stats.t.ppf((1 + level) / 2, a.size - 1)) * error
    return Mean(mean, mean - half, mean + half, error)
