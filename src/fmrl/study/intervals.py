"""Means with intervals, and nothing else."""

from __future__ import annotations

import numpy as np
from scipy import stats

LEVEL = 0.95


def t_interval(values: np.ndarray | list[float]) -> tuple[float, float, float]:
    """Mean and the 95 % Student t interval of it; one value has no interval (low = high = mean).

    >>> mean, low, high = t_interval([1.0, 2.0, 3.0])
    >>> mean, round(low, 3), round(high, 3)
    (2.0, -0.484, 4.484)
    """
    a = np.asarray(values, dtype=float)
    mean = float(a.mean())
    if a.size < 2:
        return mean, mean, mean
    half = float(stats.t.ppf((1 + LEVEL) / 2, a.size - 1) * a.std(ddof=1) / np.sqrt(a.size))
    return mean, mean - half, mean + half
