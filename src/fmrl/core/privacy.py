"""The noise of privacy: how much a budget (epsilon, delta) needs, and how it is drawn.

The first two are counted by dp-accounting (the extra ``private``), which is imported when it is
asked for; a noise multiplier is the standard deviation of the noise over the largest change that is
hidden. Noise is drawn by SHAKE-256 from a secret key: the same key and place always give the same
numbers, and nobody without the key can tell them from fresh ones.
"""

from __future__ import annotations

import hashlib
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


def _accountant(dp: Any) -> Any:
    # The library counts tree aggregation for a record that is replaced by zero, a change of one
    # clip in every node it reaches. With the multiplier relative to the change of a swap, two
    # clips, the pair of Gaussians in every node is the same one, and so is the count.
    return dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)


def _tree(dp: Any, noise: float, tasks: int, runs: int) -> Any:
    return dp.SelfComposedDpEvent(dp.SingleEpochTreeAggregationDpEvent(noise, tasks), runs)


@lru_cache
def tree_noise(epsilon: float, delta: float, tasks: int, runs: int = 1) -> float:
    """The least noise multiplier of a node with which tree aggregation is (epsilon, delta)-private.

    Args:
        epsilon: ε.
        delta: δ.
        tasks: How many tasks come, each of them once.
        runs: How many runs on the same tasks share the budget.
    """
    dp = _library()
    make = (lambda: _accountant(dp)), (lambda noise: _tree(dp, noise, tasks, runs))
    try:
        return float(dp.calibrate_dp_mechanism(*make, epsilon, delta))
    except dp.mechanism_calibration.NoBracketIntervalFoundError:  # its Rényi orders end at 1024
        what = f"dp-accounting finds no noise for epsilon {epsilon:g} at delta {delta:g}"
        raise FMRLError(what, fix="take a larger epsilon or delta") from None


@lru_cache
def tree_epsilon(noise: float, delta: float, tasks: int, runs: int = 1) -> float:
    """The ε that ``tasks`` releases of a tree have spent: the way back from `tree_noise`.

    Args:
        noise: The multiplier of a node.
        delta: δ.
        tasks: Tasks so far.
        runs: Runs on the same tasks.
    """
    dp = _library()
    return float(_accountant(dp).compose(_tree(dp, noise, tasks, runs)).get_epsilon(delta))


@lru_cache
def gaussian_noise(epsilon: float, delta: float) -> float:
    """The least noise multiplier with which one Gaussian release is (epsilon, delta)-private.

    Args:
        epsilon: ε.
        delta: δ.
    """
    return float(_library().get_sigma_gaussian(epsilon, delta))


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
