"""Images by class: bytes (or bits) once, rotations as views, batches gathered by index."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np

from fmrl.datasets.episodes import Batch, Episodes, shuffled, torch_on
from fmrl.errors import FMRLError


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
