"""Fewer points, the same picture: what is kept of a curve or a cloud that is too long to embed."""

from __future__ import annotations

import numpy as np

MOST = 2400  # points of a curve
CLOUD = 1500  # points of a map


def thin(columns: list[np.ndarray], most: int = MOST) -> np.ndarray:
    """Indices to keep of columns [T]: both ends, and of each stretch its first row and where each
    column is least and largest.

    Stretches are even on a logarithmic and on a linear axis, so the picture is true on both. NaN is
    nobody's extreme.

    >>> y = np.zeros(100_000)
    >>> y[777] = 5.0
    >>> kept = thin([y])
    >>> len(kept) <= MOST, 777 in kept, kept[0], kept[-1]
    (True, True, np.int64(0), np.int64(99999))
    """
    length = len(columns[0])
    if length <= most:
        return np.arange(length)
    stretches = max(2, (most - 2) // (1 + 2 * len(columns)))
    half = stretches // 2
    edges = np.unique(
        np.concatenate(
            [[0], np.geomspace(1, length, half + 1), np.linspace(0, length, stretches - half)]
        ).astype(int)
    )
    edges = edges[edges < length]
    kept = [edges, [length - 1]]
    for column in columns:
        column = np.asarray(column, dtype=float)
        good = np.isfinite(column)
        for fill, pick in ((np.inf, np.minimum), (-np.inf, np.maximum)):
            filled = np.where(good, column, fill)
            best = pick.reduceat(filled, edges)
            where = np.flatnonzero(filled == np.repeat(best, np.diff([*edges, length])))
            where = where[good[where]]
            stretch = np.searchsorted(edges, where, side="right") - 1
            kept.append(where[np.unique(stretch, return_index=True)[1]])
    return np.unique(np.concatenate(kept)).astype(np.int64)


def thin_cloud(xy: np.ndarray, always: np.ndarray, most: int = CLOUD) -> np.ndarray:
    """Indices to keep of points [T, 2]: those of ``always`` (first come), the extremes in 16
    directions, and a fixed random share.

    >>> kept = thin_cloud(np.random.default_rng(0).normal(size=(100_000, 2)), np.array([5]))
    >>> len(kept), bool(5 in kept)
    (1500, True)
    """
    if len(xy) <= most:
        return np.arange(len(xy))
    angle = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    filled = np.nan_to_num(xy, nan=0.0, posinf=0.0, neginf=0.0)
    far = np.argmax(filled @ np.stack([np.cos(angle), np.sin(angle)]), axis=0)
    shuffled = np.random.default_rng(0).permutation(len(xy))
    order = np.concatenate([np.asarray(always, dtype=int)[: most // 2], far, shuffled])
    first = np.sort(np.unique(order, return_index=True)[1])[:most]
    return np.sort(order[first])
