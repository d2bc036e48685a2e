"""Whole groups held out, k rows of each given to adapt, the others scored: the same rows for all
methods. A group's scores are sums over its scored rows, averaged over the repetitions.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from groups.sets import GroupedSet

SHOTS, FOLDS, BINS, Z90 = (1, 2, 4, 8), 3, 10, 1.6448536269514722
CLIP = 1e-6  # of probabilities, in the log-loss


def repetitions(groups: int) -> int:
    """Small sets are split more often."""
    return 3 if groups <= 60 else 1


def splits(data: GroupedSet, repetition: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training groups and held-out groups, by fold."""
    rng = np.random.default_rng([zlib.crc32(data.name.encode()), repetition, 0])
    fold = rng.permutation(np.arange(data.groups) % FOLDS)
    for f in range(FOLDS):
        yield np.flatnonzero(fold != f), np.flatnonzero(fold == f)


def order(data: GroupedSet, g: int, repetition: int) -> np.ndarray:
    """The rows of a group in the order in which they are given to adapt."""
    rng = np.random.default_rng([zlib.crc32(data.name.encode()), repetition, 1 + g])
    return rng.permutation(np.flatnonzero(data.group == g))


def measure(data: GroupedSet, method: Callable[..., Any]) -> dict[str, np.ndarray]:
    """The record of a method on a set.

    Args:
        data: The set.
        method: ``method(X, y, group, binary)`` gives a fitted value as those of `peers`.

    Returns:
        Arrays by name: ``loss`` [G, K], squared errors or log-losses; ``right`` [G, K] and ``bins``
        [K, bins, 3] (rows, sum of probabilities, sum of labels) for two classes; ``covered``
        [G, K] where the method offers intervals; ``seconds`` [3], CPU of one fit, of a common part
        for all held-out rows, of one adaptation.
    """
    reps, K = repetitions(data.groups), len(SHOTS)
    loss, right = np.zeros((data.groups, K)), np.zeros((data.groups, K))
    covered, bins = np.full((data.groups, K), np.nan), np.zeros((K, BINS, 3))
    seconds, fits, adapted = np.zeros(3), 0, 0
    for repetition in range(reps):
        for train, held in splits(data, repetition):
            rows = np.flatnonzero(np.isin(data.group, train))
            ids = np.searchsorted(train, data.group[rows])
            began = time.process_time()
            fitted = method(data.X[rows], data.y[rows], ids, data.binary)
            seconds[0] += time.process_time() - began
            others = np.flatnonzero(np.isin(data.group, held))
            began = time.process_time()
            base = np.full(len(data.y), np.nan)
            base[others] = fitted.base(data.X[others])
            seconds[1] += time.process_time() - began
            fits += 1
            for g in held:
                mine = order(data, g, repetition)
                for i, k in enumerate(SHOTS):
                    if k >= len(mine):
                        break
                    few, rest = mine[:k], mine[k:]
                    began = time.process_time()
                    model = fitted.adapt(data.X[few], data.y[few], base[few])
                    seconds[2] += time.process_time() - began
                    adapted += 1
                    said = np.asarray(model.predict(data.X[rest], base[rest]))
                    y = data.y[rest]
                    if not np.isfinite(said).all():
                        raise ValueError(f"{data.name}: a prediction is not finite")
                    if data.binary:
                        p = said.clip(CLIP, 1 - CLIP)
                        loss[g, i] -= np.sum(y * np.log(p) + (1 - y) * np.log(1 - p)) / reps
                        right[g, i] += np.sum((said > 0.5) == (y > 0.5)) / reps
                        where = np.minimum((said * BINS).astype(int), BINS - 1)
                        for column, weight in enumerate((np.ones(len(y)), said, y)):
                            bins[i, :, column] += np.bincount(where, weight, BINS) / reps
                        continue
                    loss[g, i] += np.sum((said - y) ** 2) / reps
                    if hasattr(model, "interval"):
                        low, high = model.interval(data.X[rest], base[rest], Z90)
                        inside = np.sum((low <= y) & (y <= high)) / reps
                        covered[g, i] = np.nan_to_num(covered[g, i]) + inside
    found = {"loss": loss, "seconds": seconds / [fits, fits, adapted]}
    if data.binary:
        found |= {"right": right, "bins": bins}
    elif np.isfinite(covered).any():
        found["covered"] = covered
    return found


def shape(data: GroupedSet) -> dict[str, np.ndarray]:
    """What the scores of a set are divided by: ``rows`` [G, K] scored rows (0: the group has too
    few) and ``spread`` [K], their squared deviations from their mean, averaged over repetitions.
    """
    sizes = np.bincount(data.group)
    rows = np.maximum(sizes[:, None] - np.array(SHOTS), 0)
    spread, reps = np.zeros(len(SHOTS)), repetitions(data.groups)
    for repetition in range(reps):
        orders = [order(data, g, repetition) for g in range(data.groups)]
        for i, k in enumerate(SHOTS):
            scored = np.concatenate([o[k:] for o in orders])
            if len(scored):
                spread[i] += np.sum((data.y[scored] - data.y[scored].mean()) ** 2) / reps
    return {"rows": rows, "spread": spread}
