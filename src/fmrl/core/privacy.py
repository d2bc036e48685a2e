"""The noise of privacy: how much a budget (epsilon, delta) needs, and how it is drawn.

The first two are counted by dp-accounting (the extra ``private``), which is imported when it is
asked for; a noise multiplier is the standard deviation of the noise over the largest change that is
hidden. Noise is drawn by SHAKE-256 from a secret key: the same key and place always give the same
numbers, and nobody without the key can tell them from fresh ones.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from fmrl.core.arrays import Array, device, namespace, norm
from fmrl.errors import FMRLError

KEY = 4  # words of 32 bits


def _library() -> Any:
    try:
        return import_module("dp_accounting")
    except ImportError:
        what = "privacy budgets are counted by dp-accounting, which is not installed"
        raise FMRLError(what, fix="pip install 'fmrl[private]'") from None


def releases(tasks: int, runs: int = 1) -> int:
    """In how many nodes of a tree a task is at most, over all runs: each is a Gaussian release.

    Args:
        tasks: How many tasks come, each of them once.
        runs: How many runs on the same tasks share the budget.
    """
    return tasks.bit_length() * runs  # blocks of 1, 2, 4, … tasks


@lru_cache
def tree_noise(epsilon: float, delta: float, tasks: int, runs: int = 1) -> float:
    """The least noise multiplier of a node with which tree aggregation is (epsilon, delta)-private.

    n Gaussian releases, also where each depends on those before, are together as private as one
    whose multiplier is √n times smaller, and for one the library's count is exact. Its Rényi count
    of `SingleEpochTreeAggregationDpEvent` asks for 5 to 8 % more noise.

    Args:
        epsilon: ε.
        delta: δ.
        tasks: How many tasks come, each of them once.
        runs: How many runs on the same tasks share the budget.
    """
    return gaussian_noise(epsilon, delta) * math.sqrt(releases(tasks, runs))


@lru_cache
def tree_epsilon(noise: float, delta: float, tasks: int, runs: int = 1) -> float:
    """The ε that ``tasks`` releases of a tree have spent: the way back from `tree_noise`.

    Args:
        noise: The multiplier of a node.
        delta: δ.
        tasks: Tasks so far.
        runs: Runs on the same tasks.
    """
    alone = noise / math.sqrt(releases(tasks, runs))
    return float(_library().get_epsilon_gaussian(alone, delta))


@lru_cache
def gaussian_noise(epsilon: float, delta: float) -> float:
    """The least noise multiplier with which one Gaussian release is (epsilon, delta)-private.

    Args:
        epsilon: ε.
        delta: δ.
    """
    # What the library's search leaves open is put on the safe side.
    return float(_library().get_sigma_gaussian(epsilon, delta)) * (1 + 1e-7)


def normals(keys: Any, place: int, size: int) -> np.ndarray:
    """Standard normal numbers [..., size] that keys [..., KEY] and a place determine.

    Args:
        keys: `KEY` words of 32 bits each.
        place: Which draw under these keys.
        size: How many numbers under each.

    >>> normals([0, 1, 2, 3], 1, 2).round(4)
    array([-0.1252, -0.8363])
    """
    keys, pairs, where = np.asarray(keys, dtype=">u4"), (size + 1) // 2, place.to_bytes(8, "big")
    texts = (key.tobytes() + where for key in keys.reshape(-1, KEY))
    bits = b"".join(hashlib.shake_256(text).digest(16 * pairs) for text in texts)
    words = np.frombuffer(bits, dtype=">u8").reshape(-1, 2, pairs) >> np.uint64(11)
    first, second = words[:, 0] / 2**53, words[:, 1] / 2**53
    length, turn = np.sqrt(-2 * np.log1p(-first)), 2 * np.pi * second  # 1 − first is not 0
    made = np.concatenate([length * np.cos(turn), length * np.sin(turn)], axis=-1)
    return made[:, :size].reshape((*keys.shape[:-1], size))


def new_key(seed: int | None, *about: Any) -> np.ndarray:
    """A secret key from the operating system, or the one that a seed determines."""
    text = secrets.token_bytes(32) if seed is None else repr((seed, *about)).encode()
    return np.frombuffer(hashlib.sha256(text).digest()[: 4 * KEY], dtype=">u4").astype(np.int64)


def drawn(keys: np.ndarray, place: int, like: Array) -> Array:
    """One draw under every key [..., KEY], in the shape [..., d] and kind of ``like``."""
    made = normals(keys, place, like.shape[-1])
    return namespace(like).asarray(made, dtype=like.dtype, device=device(like))


def clipped(vector: Array, most: Array) -> Array:
    """The vector [..., d], shortened to a length of at most ``most`` [...]."""
    xp, length = namespace(vector), norm(vector)
    if not bool(xp.all(xp.isfinite(length))):
        raise FMRLError("a NaN or an infinity cannot be clipped", fix="look at the task's rows")
    return vector * (most / xp.maximum(length, most))[..., None]


_RELEASED: dict[tuple[bytes, int], float] = {}  # by key and count of a private sum: what it was
_SECRET = secrets.randbits(128)  # two sums that differ have the same mark with probability 0
FORKS = 10**6  # sums that are remembered, the latest


def refuse_forks(keys: np.ndarray, count: int, totals: np.ndarray, scales: np.ndarray) -> None:
    """Refuse a second sum under the same noise: the difference of the two has no noise.

    Only what this process has released is known. The same tasks again are the same sum, but for
    rounding, and give away nothing new.

    Args:
        keys: Of the noise, [..., KEY].
        count: Of the tasks in the sums.
        totals: The sums, [..., d].
        scales: Standard deviation of the noise, [...].
    """
    mark = np.random.default_rng(_SECRET).standard_normal(totals.shape[-1])  # a number for a sum
    marks, scales = (totals @ mark).ravel(), np.ravel(scales)
    for key, own, scale in zip(keys.reshape(-1, KEY), marks, scales, strict=True):
        before = _RELEASED.setdefault((key.tobytes(), count), float(own))
        if abs(own - before) > 1e-6 * scale:
            what = "this private state has gone on with other tasks before, under the same noise"
            fix = "go on from the newest state, or begin a run of its own"
            raise FMRLError(f"{what}: the difference of the two phi would hide nothing", fix=fix)
    while len(_RELEASED) > FORKS:
        del _RELEASED[next(iter(_RELEASED))]
