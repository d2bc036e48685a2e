"""Few-shot data: images by class (bytes or bits once, rotations as views), and episodes of them by
number: which classes, which samples, as index arrays, in bulk, on the CPU or the GPU.

Episode e is a function of (seed, e) alone. Its random numbers are positions e*k ... e*k + k-1 of
one SplitMix64 sequence, which can be entered anywhere, so episodes can be drawn in any chunks, from
any position (that is how a run resumes), on any device, and are always the same. Choosing k of n
without replacement is Floyd's algorithm, vectorised over all episodes, and a shuffle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
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
        torch = None if device is None else torch_on(device)
        if torch is not None and torch.device(device).type != "cpu":
            import array_api_compat.torch as xp

            return Batch(*self._draw(start, count, xp, device))
        end = start + count  # NumPy takes a quarter of torch's time on a CPU, and draws the same
        parts = [self._draw(i, min(_CHUNK, end - i), np) for i in range(start, end, _CHUNK)]
        found = (np.concat(p) if len(p) > 1 else p[0] for p in zip(*parts, strict=True))
        return Batch(*(found if torch is None else map(torch.from_numpy, found)))

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


@dataclass(frozen=True, repr=False)
class ImageSet:
    """Images of C classes; with ``rotations=4`` every class counts four times, turned by 0, 90, 180
    and 270 degrees.

    Args:
        name: Of the set.
        images: uint8 [N, H, W] or [N, H, W, 3], NumPy or torch. Packed drawings are
            [N, ceil(side² / 8)].
        rows: [N'] the images of class c are ``images[rows[starts[c]:starts[c+1]]]``.
        starts: [C + 1].
        names: [C] of the classes.
        rotations: 1 or 4.
        side: Set when images are 1-bit drawings packed eight to a byte; batches are unpacked as
            they are gathered.

    >>> pixels = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    >>> one = ImageSet("toy", pixels, np.arange(2), np.array([0, 1, 2]), ("a", "b"))
    >>> four = one.rotated()
    >>> len(four), four.take([0, 2], [0, 0]).tolist()
    (8, [[[0, 1], [2, 3]], [[1, 3], [0, 2]]])
    """

    name: str
    images: Any
    rows: Any
    starts: np.ndarray
    names: tuple[str, ...]
    rotations: int = 1
    side: int | None = None

    def __len__(self) -> int:
        return len(self.names) * self.rotations

    def __repr__(self) -> str:
        turned = f" x {self.rotations} rotations" if self.rotations > 1 else ""
        images = f"{int(self.starts[-1]):,} images"
        return f"ImageSet({self.name!r}, {len(self.names)} classes{turned}, {images})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Images per class, rotated classes included."""
        return tuple(np.diff(self.starts).tolist()) * self.rotations

    def rotated(self) -> "ImageSet":
        """The same images, every quarter turn of a class as its own class; nothing is copied."""
        if not self.side and self.images.shape[1] != self.images.shape[2]:
            size = f"{self.images.shape[1]}x{self.images.shape[2]}"
            what = f"images of {size} have no quarter turns of the same shape"
            raise FMRLError(what, fix="load them with size= to make them square")
        return replace(self, rotations=4)

    def view(self, turns: int) -> Any:
        """All images turned by ``turns`` quarter turns: a view of the same memory (NumPy)."""
        if self.side:
            fix = "load them with a size, or use take()"
            raise FMRLError("packed drawings have no pixel view", fix=fix)
        return np.rot90(self.images, turns, axes=(1, 2))

    def subset(self, classes: Sequence[int], name: str | None = None) -> "ImageSet":
        """Only the given base classes, in the given order; the images themselves are shared."""
        if wrong := [c for c in classes if not 0 <= c < len(self.names)]:
            fix = f"choose from 0 to {len(self.names) - 1}"
            raise FMRLError(f"there is no class {wrong[0]}", fix=fix)
        parts = [self.rows[self.starts[c] : self.starts[c + 1]] for c in classes]
        rows = array_api_compat.array_namespace(self.rows).concat(parts)
        starts = np.cumsum([0, *map(len, parts)])
        names = tuple(self.names[c] for c in classes)
        return replace(self, name=name or self.name, rows=rows, starts=starts, names=names)

    def split(self, *counts: int, seed: int = 0) -> tuple["ImageSet", ...]:
        """Base classes dealt at random: ``train, test = omniglot.split(1200, 423, seed=0)``."""
        if sum(counts) > len(self.names) or min(counts, default=0) < 1:
            what = f"{len(self.names)} classes cannot be split into {counts}"
            raise FMRLError(what, fix="ask for at most as many as there are")
        order = shuffled(len(self.names), seed)[: sum(counts)]
        parts = np.split(order, np.cumsum(counts)[:-1])
        return tuple(self.subset(part.tolist()) for part in parts)

    def take(self, classes: Any, samples: Any) -> Any:
        """Images of classes by their number in the class.

        Both are checked: a number past the end of a class would otherwise be an image of the next
        one.

        Args:
            classes: Integer array of classes, rotated ones included.
            samples: Integer array that broadcasts with it.

        Returns:
            uint8 [..., H, W(, 3)].
        """
        xp, device = array_api_compat.array_namespace(self.images), self.images.device
        classes, samples = xp.broadcast_arrays(
            *(xp.asarray(a, device=device) for a in (classes, samples))
        )
        starts, sizes = (xp.asarray(a, device=device) for a in (self.starts, self.sizes))
        if bool(((classes < 0) | (classes >= len(self))).any()):
            worst = int(classes.max()) if int(classes.min()) >= 0 else int(classes.min())
            fix = f"classes are 0 to {len(self) - 1}; episodes drawn from rotated() belong to "
            raise FMRLError(f"there is no class {worst}", fix=fix + "the rotated set")
        if bool(((samples < 0) | (samples >= sizes[classes])).any()):
            fix = "draw episodes from the set they are gathered on"
            raise FMRLError("a sample is not in its class", fix=fix)
        base, turn = classes % len(self.names), (classes // len(self.names)).reshape(-1)
        out = self.images[self.rows[starts[base] + samples].reshape(-1)]
        numpy = isinstance(out, np.ndarray)
        if self.side:
            bits = xp.asarray([7, 6, 5, 4, 3, 2, 1, 0], dtype=xp.uint8, device=device)
            out = np.unpackbits(out, axis=1) if numpy else ((out[..., None] >> bits) & 1).flatten(1)
            out = out[:, : self.side**2].reshape(-1, self.side, self.side)
        for k in range(1, self.rotations):
            turned = turn == k
            if numpy:
                out[turned] = np.rot90(out[turned], k, (1, 2))
            else:  # an index would wait for the device; squares need none
                turned = turned.reshape(-1, *(1,) * (out.ndim - 1))
                out = xp.where(turned, xp.rot90(out, k, (1, 2)), out)
        return out.reshape(*classes.shape, *out.shape[1:])

    def gather(self, batch: Batch) -> tuple[Any, Any]:
        """(support, query) images of episodes: uint8 [n, ways, shots or queries, H, W(, 3)]."""
        classes = batch.classes[..., None]
        return self.take(classes, batch.support), self.take(classes, batch.query)

    def episodes(
        self,
        ways: int,
        shots: int,
        queries: int = 1,
        seed: int = 0,
        classes: Sequence[int] | None = None,
    ) -> Episodes:
        """The numbered `Episodes` over these classes."""
        only = None if classes is None else tuple(classes)
        return Episodes(self.sizes, ways, shots, queries, seed, only)

    def to(self, device: Any) -> "ImageSet":
        """The set on a torch device, still as bytes, so that batches are gathered there."""
        torch = torch_on(device)
        held = (
            np.require(a, requirements="W") if isinstance(a, np.ndarray) else a
            for a in (self.images, self.rows)
        )
        images, rows = (torch.as_tensor(a).to(device) for a in held)
        return replace(self, images=images, rows=rows)
