"""Few-shot episodes by number: which classes, which samples, as index arrays, in bulk, on the CPU
or the GPU.

Episode e is a function of (seed, e) alone. Its random numbers are positions e*k ... e*k + k-1 of
one SplitMix64 sequence, which can be entered anywhere, so episodes can be drawn in any chunks, from
any position (that is how a run resumes), on any device, and are always the same. Choosing k of n
without replacement is Floyd's algorithm, vectorised over all episodes, and a shuffle."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import array_api_compat.numpy as np

from fmrl.errors import FMRLError

# SplitMix64's constants, as signed 64-bit integers.
_GOLDEN, _MIX1, _MIX2 = -7046029254386353131, -4658895280553007687, -7723592293110705685
_CHUNK = 4096  # episodes at once on the CPU: their arrays stay in cache


@dataclass(frozen=True)
class Batch:
    """Index arrays of n episodes.

    Args:
        classes: [n, ways].
        support: [n, ways, shots], samples within a class.
        query: [n, ways, queries], samples within a class.
    """

    classes: Any
    support: Any
    query: Any


@dataclass(frozen=True)
class Episodes:
    """An endless, numbered sequence of episodes.

    Args:
        sizes: [C] the number of samples of each class.
        ways: Classes in an episode.
        shots: Support samples of each class.
        queries: Query samples of each class.
        seed: Another seed gives another sequence.
        classes: Only these are drawn, for example those of one split (default: all).

    >>> episodes = Episodes((20,) * 100, ways=5, shots=1, queries=1, seed=0)
    >>> batch = episodes.draw(0, 1000)
    >>> batch.classes.shape, batch.support.shape
    ((1000, 5), (1000, 5, 1))
    >>> bool((episodes.draw(990, 10).classes == batch.classes[990:]).all())
    True
    """

    sizes: tuple[int, ...]
    ways: int
    shots: int
    queries: int = 1
    seed: int = 0
    classes: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        kind = f"{self.ways}-way {self.shots}-shot, queries={self.queries}, seed={self.seed}"
        return f"Episodes({kind}, of {len(self._pool):,} classes)"

    def __post_init__(self):
        for name in ("sizes", "classes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(int(i) for i in getattr(self, name)))
        if min(self.ways, self.shots) < 1 or self.queries < 0:
            what = "an episode needs at least one way and one shot, and no negative queries"
            raise FMRLError(what)
        pool, all_classes = self._pool, range(len(self.sizes))
        if len(set(pool)) < len(pool) or not set(pool) <= set(all_classes):
            fix = f"choose from 0 to {len(self.sizes) - 1}"
            raise FMRLError("classes names a class twice, or one that does not exist", fix=fix)
        if len(pool) < self.ways:
            what = f"{self.ways}-way episodes need {self.ways} classes, there are {len(pool)}"
            raise FMRLError(what, fix="lower ways")
        need = self.shots + self.queries
        if short := [c for c in pool if self.sizes[c] < need]:
            what = f"class {short[0]} has {self.sizes[short[0]]} samples, {need} are needed"
            fix = "lower shots or queries, or leave the class out"
            raise FMRLError(f"{what} (shots + queries)", fix=fix)

    @property
    def _pool(self) -> Any:
        return range(len(self.sizes)) if self.classes is None else self.classes

    def draw(self, start: int, count: int, device: Any = None) -> Batch:
        """Episodes from number ``start``: NumPy int64 arrays, or torch tensors on a ``device``."""
        if start < 0 or count < 1:
            what = f"cannot draw {count} episodes from number {start}"
            raise FMRLError(what, fix="start at 0 or later and draw at least 1")
        if device is not None:
            torch_on(device)
            import array_api_compat.torch as xp

            return Batch(*self._draw(start, count, xp, device))
        end = start + count
        parts = [self._draw(i, min(_CHUNK, end - i), np) for i in range(start, end, _CHUNK)]
        return Batch(*(np.concat(p) if len(p) > 1 else p[0] for p in zip(*parts, strict=True)))

    def stream(
        self, start: int = 0, size: int = 1, device: Any = None
    ) -> Iterator[tuple[int, Batch]]:
        """(next position, batch) for ever; to resume, pass the last position as ``start``."""
        while True:
            batch = self.draw(start, size, device)
            start += size
            yield start, batch

    def _draw(self, start: int, count: int, xp: Any, device: Any = None) -> tuple:
        """Classes, support and query samples."""
        k, ways = self.shots + self.queries, self.ways
        words = 2 * ways * (1 + k)  # random words an episode takes
        first = xp.arange(start, start + count, device=device)[:, None] * words
        bits = _splitmix(first + xp.arange(words, device=device)[None, :], self.seed)
        held = np.arange(len(self.sizes)) if self.classes is None else np.asarray(self.classes)
        pool, sizes = (xp.asarray(a, device=device) for a in (held, np.asarray(self.sizes)))
        chosen = pool[_choose(bits[:, : 2 * ways], pool.shape[0], ways, xp)]
        within = bits[:, 2 * ways :].reshape(count * ways, 2 * k)
        samples = _choose(within, sizes[chosen].reshape(-1), k, xp).reshape(count, ways, k)
        return chosen, samples[..., : self.shots], samples[..., self.shots :]


def shuffled(n: int, seed: int) -> np.ndarray:
    """A permutation of 0 … n - 1, for splitting classes; it does not depend on NumPy's version.

    Args:
        n: How many numbers.
        seed: Another seed gives another permutation.

    >>> shuffled(5, seed=1).tolist() == shuffled(5, seed=1).tolist()
    True
    >>> sorted(shuffled(5, seed=1).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(_splitmix(np.arange(n), seed), stable=True)


def _splitmix(at: Any, seed: int) -> Any:
    """SplitMix64 at positions ``at``, as signed integers that wrap around on purpose."""
    key = (seed + 2**63) % 2**64 - 2**63
    z = _finish(at * 0 + key)  # neighbouring seeds must not give shifted copies of one sequence
    return _finish((at + 1) * _GOLDEN + z)


def _finish(z: Any) -> Any:
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _MIX1  # the masks make an arithmetic shift a logical one
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _MIX2
    return z ^ ((z >> 31) & (2**33 - 1))


def _choose(bits: Any, n: Any, k: int, xp: Any) -> Any:
    """k different numbers below n [rows], from 2k random words a row: Floyd, then a shuffle."""
    picked = []
    for i in range(k):
        top = n - k + i  # the largest number allowed so far
        unit = xp.astype((bits[:, i] >> 11) & (2**53 - 1), xp.float64) * 2.0**-53
        t = xp.astype(unit * (top + 1), xp.int64)
        taken = t != t
        for p in picked:
            taken = taken | (p == t)
        picked.append(xp.where(taken, top + 0 * t, t))
    order = xp.argsort(bits[:, k : 2 * k], axis=1, stable=False)
    return xp.take_along_axis(xp.stack(picked, axis=1), order, axis=1)


def torch_on(device: Any) -> Any:
    """The module torch, or an error that says why the device cannot be used."""
    try:
        import torch
    except ImportError:
        fix = "install the extra: pip install 'fmrl[deep]'"
        raise FMRLError("torch is not installed", fix=fix) from None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as e:
        what = f"the device {device!r} cannot be used: {str(e).splitlines()[0]}"
        raise FMRLError(what, fix="use device='cpu', or None for NumPy") from None
    return torch
