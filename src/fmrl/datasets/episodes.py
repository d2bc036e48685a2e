"""Few-shot episodes by number: which classes, which samples, as index arrays, in bulk, on the CPU
or the GPU.

Episode e is a function of (seed, e) alone. Its random numbers are positions e*k ... e*k + k-1 of
one SplitMix64 sequence, which can be entered anywhere, so episodes can be drawn in any chunks, from
any position (that is how a run resumes), on any device, and are always the same. Choosing k of n
without replacement is Floyd's algorithm, vectorised over all episodes, and a shuffle."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fmrl.errors import FMRLError

_GOLDEN, _MIX1, _MIX2 = (
    -7046029254386353131,
    -4658895280553007687,
    -7723592293110705685,
)  # SplitMix64's, as signed 64-bit
_CHUNK = 4096  # episodes at once on the CPU: their arrays stay in cache


@dataclass(frozen=True)
class Batch:
    """Index arrays of n episodes: classes [n, ways] · support [n, ways, shots] · query [n, ways,
    queries] (samples within a class).
    """

    classes: Any
    support: Any
    query: Any


@dataclass(frozen=True)
class Episodes:
    """An endless, numbered sequence of episodes over classes of the given sizes.

    ``sizes[c]`` is the number of samples of class c; ``classes`` restricts the draw to those of one
    split.

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
        of = len(self.sizes if self.classes is None else self.classes)
        return f"Episodes({self.ways}-way {self.shots}-shot, queries={self.queries}, seed={self.seed}, of {of:,} classes)"

    def __post_init__(self):
        for name in ("sizes", "classes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(int(i) for i in getattr(self, name)))
        if min(self.ways, self.shots) < 1 or self.queries < 0:
            raise FMRLError(
                "an episode needs at least one way and one shot, and no negative queries"
            )
        pool = range(len(self.sizes)) if self.classes is None else self.classes
        if self.classes is not None and (
            len(set(pool)) < len(pool) or not set(pool) <= set(range(len(self.sizes)))
        ):
            raise FMRLError(
                "classes names a class twice, or one that is not there",
                fix=f"choose from 0 to {len(self.sizes) - 1}",
            )
        if len(pool) < self.ways:
            raise FMRLError(
                f"{self.ways}-way episodes need {self.ways} classes, there are {len(pool)}",
                fix="lower ways",
            )
        need = self.shots + self.queries
        if short := [c for c in pool if self.sizes[c] < need]:
            what = f"class {short[0]} has {self.sizes[short[0]]} samples, {need} are needed (shots + queries)"
            raise FMRLError(what, fix="lower shots or queries, or leave the class out")

    def draw(self, start: int, count: int, device: Any = None) -> Batch:
        """Episodes ``start`` to ``start + count - 1``: NumPy int64 arrays, or torch tensors when a
        ``device`` is named.
        """
        if start < 0 or count < 1:
            raise FMRLError(
                f"cannot draw {count} episodes from number {start}",
                fix="start at 0 or later and draw at least 1",
            )
        if device is not None:
            return self._draw(start, count, _Torch(device))
        parts = [
            self._draw(i, min(_CHUNK, start + count - i), np)
            for i in range(start, start + count, _CHUNK)
        ]
        if len(parts) == 1:
            return parts[0]
        return Batch(
            *(
                np.concatenate([getattr(p, f) for p in parts])
                for f in ("classes", "support", "query")
            )
        )

    def stream(
        self, start: int = 0, size: int = 1, device: Any = None
    ) -> Iterator[tuple[int, Batch]]:
        """(next position, batch) for ever; to resume, pass the last position as ``start``."""
        while True:
            batch = self.draw(start, size, device)
            start += size
            yield start, batch

    def _draw(self, start: int, count: int, xp: Any) -> Batch:
        k, ways = self.shots + self.queries, self.ways
        per_episode = 2 * ways * (1 + k)
        at = (xp.arange(start, start + count) * per_episode)[:, None] + xp.arange(0, per_episode)[
            None, :
        ]
        bits = _splitmix(at, self.seed)
        pool = xp.asarray(
            np.arange(len(self.sizes)) if self.classes is None else np.array(self.classes)
        )
        sizes = xp.asarray(np.array(self.sizes))
        chosen = pool[_choose(bits[:, : 2 * ways], pool.shape[0], ways, xp)]
        within = bits[:, 2 * ways :].reshape(count * ways, 2 * k)
        samples = _choose(within, sizes[chosen].reshape(-1), k, xp).reshape(count, ways, k)
        return Batch(chosen, samples[..., : self.shots], samples[..., self.shots :])


def shuffled(n: int, seed: int) -> np.ndarray:
    """A permutation of 0..n-1 that depends on ``seed`` alone (not on NumPy's version): for
    splitting classes.

    >>> shuffled(5, seed=1).tolist() == shuffled(5, seed=1).tolist() and sorted(shuffled(5, 1)) == [0, 1, 2, 3, 4]
    True
    """
    return np.argsort(_splitmix(np.arange(n), seed), kind="stable")


def _splitmix(at: Any, seed: int) -> Any:
    """SplitMix64's outputs at positions ``at``, as signed integers; two's-complement overflow is
    the arithmetic meant.
    """
    key = int(np.uint64(seed % 2**64).astype(np.int64))
    z = _finish(at * 0 + key)  # neighbouring seeds must not give shifted copies of one sequence
    return _finish((at + 1) * _GOLDEN + z)


def _finish(z: Any) -> Any:
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _MIX1  # the masks make an arithmetic shift a logical one
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _MIX2
    return z ^ ((z >> 31) & (2**33 - 1))


def _choose(bits: Any, n: Any, k: int, xp: Any) -> Any:
    """k different numbers below n [rows] in random order, from 2k random words a row: Floyd's
    algorithm, then a shuffle.
    """
    picked = []
    for i in range(k):
        top = n - k + i  # the largest number allowed so far
        unit = _cast((bits[:, i] >> 11) & (2**53 - 1), xp.float64) * 2.0**-53
        t = _cast(unit * (top + 1), xp.int64)
        taken = t != t
        for p in picked:
            taken = taken | (p == t)
        picked.append(xp.where(taken, top + 0 * t, t))
    order = xp.argsort(bits[:, k : 2 * k], axis=1)
    return xp.take_along_axis(xp.stack(picked, axis=1), order, axis=1)


def _cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype) if isinstance(x, np.ndarray) else x.to(dtype)


def torch_on(device: Any) -> Any:
    """The module torch, or an error that says why the device cannot be used."""
    try:
        import torch
    except ImportError:
        raise FMRLError(
            "torch is not installed", fix="install the extra: pip install 'fmrl[deep]'"
        ) from None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as e:
        why = str(e).splitlines()[0]
        raise FMRLError(
            f"the device {device!r} cannot be used: {why}",
            fix="use device='cpu', or None for NumPy",
        ) from None
    return torch


class _Torch:
    """The few functions used above, in torch's spelling and on one device."""

    def __init__(self, device: Any):
        torch = torch_on(device)
        self.torch, self.device, self.int64, self.float64 = (
            torch,
            device,
            torch.int64,
            torch.float64,
        )

    def arange(self, start, stop):
        return self.torch.arange(start, stop, device=self.device)

    def asarray(self, x):
        return self.torch.as_tensor(x, device=self.device)

    def where(self, condition, x, y):
        return self.torch.where(condition, x, y)

    def argsort(self, x, axis):
        return self.torch.argsort(x, dim=axis)

    def stack(self, arrays, axis):
        return self.torch.stack(arrays, dim=axis)

    def take_along_axis(self, x, order, axis):
        return self.torch.take_along_dim(x, order, dim=axis)
