"""Images by class, kept compactly: bytes (or bits) once, rotations as views, batches gathered by
index.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fmrl.datasets.episodes import Batch, Episodes, shuffled, torch_on
from fmrl.errors import FMRLError


@dataclass(frozen=True, repr=False)
class ImageSet:
    """Images of C classes; with ``rotations=4`` every class counts four times, turned by 0, 90, 180
    and 270 degrees.

    images [N, H, W] or [N, H, W, 3] uint8 (NumPy or torch) · rows [N']: the images of class c are
    ``images[rows[starts[c]:starts[c+1]]]`` · names [C]. ``side`` is set when images are 1-bit
    drawings packed eight to a byte: then ``images`` is [N, ceil(side² / 8)] and batches are
    unpacked as they are gathered.

    >>> one = ImageSet("toy", np.arange(8, dtype=np.uint8).reshape(2, 2, 2), np.arange(2), np.array([0, 1, 2]), ("a", "b"))
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
        return f"ImageSet({self.name!r}, {len(self.names)} classes{turned}, {int(self.starts[-1]):,} images)"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Images per class, rotated classes included."""
        return tuple(np.diff(self.starts).tolist()) * self.rotations

    def rotated(self) -> "ImageSet":
        """The same images with every quarter turn of a class as a class of its own; nothing is
        copied.
        """
        if not self.side and self.images.shape[1] != self.images.shape[2]:
            what = f"images of {self.images.shape[1]}x{self.images.shape[2]} have no quarter turns of the same shape"
            raise FMRLError(what, fix="load them with size= to make them square")
        return replace(self, rotations=4)

    def view(self, turns: int) -> Any:
        """All images turned by ``turns`` quarter turns: a view of the same memory (NumPy)."""
        if self.side:
            raise FMRLError(
                "packed drawings have no pixel view", fix="load them with a size, or use take()"
            )
        return np.rot90(self.images, turns, axes=(1, 2))

    def subset(self, classes: Sequence[int], name: str | None = None) -> "ImageSet":
        """Only the given base classes, in the given order; the images themselves are shared."""
        if wrong := [c for c in classes if not 0 <= c < len(self.names)]:
            raise FMRLError(
                f"there is no class {wrong[0]}", fix=f"choose from 0 to {len(self.names) - 1}"
            )
        parts = [self.rows[self.starts[c] : self.starts[c + 1]] for c in classes]
        starts = np.concatenate([[0], np.cumsum([len(p) for p in parts])])
        rows = (
            np.concatenate(parts)
            if isinstance(self.rows, np.ndarray)
            else torch_on(self.rows.device).cat(parts)
        )
        return replace(
            self,
            name=name or self.name,
            rows=rows,
            starts=starts,
            names=tuple(self.names[c] for c in classes),
        )

    def split(self, *counts: int, seed: int = 0) -> tuple["ImageSet", ...]:
        """Base classes dealt at random into sets of the given sizes: ``train, test =
        omniglot.split(1200, 423, seed=0)``.
        """
        if sum(counts) > len(self.names) or min(counts, default=0) < 1:
            raise FMRLError(
                f"{len(self.names)} classes cannot be split into {counts}",
                fix="ask for at most as many as there are",
            )
        order, ends = shuffled(len(self.names), seed), np.cumsum(counts)
        return tuple(
            self.subset(order[end - n : end].tolist()) for n, end in zip(counts, ends, strict=True)
        )

    def take(self, classes: Any, samples: Any) -> Any:
        """Images uint8 [..., H, W(, 3)] of sample ``samples`` of class ``classes`` (integer arrays
        that broadcast).

        Both are checked: a number past the end of a class would otherwise be an image of the next
        one."""
        if not isinstance(self.images, np.ndarray):
            return self._take_torch(classes, samples)
        classes, samples = np.broadcast_arrays(np.asarray(classes), np.asarray(samples))
        self._check(classes, samples, np.asarray(self.sizes))
        base, turn = classes % len(self.names), classes // len(self.names)
        rows = self.rows[self.starts[base] + samples]
        out = self._unpack(self.images[rows.reshape(-1)])
        flat = turn.reshape(-1)
        for k in range(1, self.rotations):
            where = np.flatnonzero(flat == k)
            if where.size:
                out[where] = np.rot90(out[where], k, axes=(1, 2))
        return out.reshape(*classes.shape, *out.shape[1:])

    def gather(self, batch: Batch) -> tuple[Any, Any]:
        """(support, query) images of drawn episodes: uint8 [n, ways, shots, H, W(, 3)] and [n,
        ways, queries, H, W(, 3)].
        """
        return self.take(batch.classes[..., None], batch.support), self.take(
            batch.classes[..., None], batch.query
        )

    def episodes(
        self,
        ways: int,
        shots: int,
        queries: int = 1,
        seed: int = 0,
        classes: Sequence[int] | None = None,
    ) -> Episodes:
        """The numbered episodes over these classes."""
        return Episodes(
            self.sizes, ways, shots, queries, seed, None if classes is None else tuple(classes)
        )

    def to(self, device: Any) -> "ImageSet":
        """The set on a torch device, still as bytes, so that whole batches of episodes are gathered
        there.
        """
        torch = torch_on(device)
        held = (
            a if not isinstance(a, np.ndarray) or a.flags.writeable else np.array(a)
            for a in (self.images, self.rows)
        )
        images, rows = (torch.as_tensor(a).to(device) for a in held)
        return replace(self, images=images, rows=rows)

    def _check(self, classes: Any, samples: Any, sizes: Any) -> None:
        if bool(((classes < 0) | (classes >= len(self))).any()):
            worst = int(classes.max()) if int(classes.min()) >= 0 else int(classes.min())
            fix = f"classes are 0 to {len(self) - 1}; episodes drawn from rotated() belong to the rotated set"
            raise FMRLError(f"there is no class {worst}", fix=fix)
        if bool(((samples < 0) | (samples >= sizes[classes])).any()):
            raise FMRLError(
                "a sample is not in its class",
                fix="draw episodes from the set they are gathered on",
            )

    def _unpack(self, taken: np.ndarray) -> np.ndarray:
        if not self.side:
            return taken
        return np.unpackbits(taken, axis=1)[:, : self.side**2].reshape(-1, self.side, self.side)

    def _take_torch(self, classes: Any, samples: Any) -> Any:
        torch, device = torch_on(self.images.device), self.images.device
        classes, samples = torch.broadcast_tensors(
            *(torch.as_tensor(a, device=device) for a in (classes, samples))
        )
        self._check(classes, samples, torch.as_tensor(self.sizes, device=device))
        starts = torch.as_tensor(self.starts, device=device)
        base, turn = classes % len(self.names), classes // len(self.names)
        out = self.images[self.rows[starts[base] + samples].reshape(-1)]
        if self.side:
            bits = torch.arange(7, -1, -1, device=device, dtype=torch.uint8)
            out = (
                ((out[..., None] >> bits) & 1)
                .flatten(1)[:, : self.side**2]
                .reshape(-1, self.side, self.side)
            )
        flat = turn.reshape((-1,) + (1,) * (out.ndim - 1))
        for k in range(
            1, self.rotations
        ):  # square images: every turn has the same shape, so no index is needed
            out = torch.where(flat == k, torch.rot90(out, k, (1, 2)), out)
        return out.reshape(*classes.shape, *out.shape[1:])
