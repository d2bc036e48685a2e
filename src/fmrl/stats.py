"""Means with intervals, and the rule for outliers."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

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
    from scipy import stats  # half a second, which most of those who import this do not need

    error = float(a.std(ddof=1) / np.sqrt(a.size))
    half = float(stats.t.ppf((1 + level) / 2, a.size - 1)) * error
    return Mean(mean, mean - half, mean + half, error)


def outlier_fence(distances: Any) -> tuple[float, float]:
    """The distance beyond which a task is an outlier, and z, how many robust deviations that is:

        median + z·s,    s = (upper quartile − median) / 0.674,    z = max(3.5, Φ⁻¹(1 − 0.05/T))

    z grows with the number of distances, so that of T tasks without outliers rarely one is called
    so, however large T.

    Args:
        distances: Of each task from the middle of all, [T].

    >>> fence, z = outlier_fence([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> round(fence, 2), z
    (8.19, 3.5)
    """
    a = np.asarray(distances, dtype=float)
    middle, upper = np.quantile(a, [0.5, 0.75])
    z = max(3.5, NormalDist().inv_cdf(1 - 0.05 / len(a)))
    scale = (upper - middle) / NormalDist().inv_cdf(0.75)
    if scale <= 1e-12 * upper:  # most of them are one and the same
        scale = float(a.std())
    return float(middle + z * scale + 1e-9 * (1 + upper)), z
