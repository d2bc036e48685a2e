"""Tasks on the device: a table of inputs, and mini-batches of it by number, drawn in bulk where the table lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from fmrl.core.errors import FMRLError
from fmrl.data.episodes import Episodes, _splitmix

ORDER = 0x5EED  # keeps the order of mini-batches independent of the draw of classes and samples


class Tasks(Protocol):
    """A numbered, endless sequence of tasks over one table. Task e is a function of e alone, so any run can resume anywhere."""

    inputs: torch.Tensor  # [N, ...]
    steps: int
    batch: int

    def draw(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of ``inputs`` [count, steps, batch] and their targets, same shape."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """Inputs by class, on one device: those of class c are inputs[starts[c] : starts[c + 1]].

    >>> pool = Pool.of(np.zeros((6, 2, 2)), np.array([0, 0, 1, 1, 2, 2]))
    >>> tasks = pool.tasks(ways=2, shots=2, batch=2, steps=4)
    >>> [tuple(a.shape) for a in tasks.draw(0, 3)]
    [(3, 4, 2), (3, 4, 2)]
    """

    inputs: torch.Tensor  # [N, channels, height, width] or [N, features]
    starts: torch.Tensor  # [classes + 1]
    name: str = "arrays"

    def __repr__(self):
        return (
            f"Pool({self.name!r}, {len(self.starts) - 1:,} classes, {len(self.inputs):,} inputs {tuple(self.inputs.shape[1:])})"
        )

    @classmethod
    def of(cls, X: Any, y: Any, device: Any = "cpu", name: str = "arrays") -> Pool:
        """From inputs [N, ...] and class numbers [N]. [N, H, W] becomes [N, 1, H, W]; whole numbers stay whole."""
        y = np.asarray(y)
        order, X = np.argsort(y, kind="stable"), np.asarray(X)
        counts = np.unique(y, return_counts=True)[1]
        inputs = torch.as_tensor(X[order][:, None] if X.ndim == 3 else X[order])
        return cls(inputs.to(device), torch.as_tensor(np.concatenate([[0], np.cumsum(counts)])).to(device), name)

    @classmethod
    def of_images(cls, images: Any, device: Any = "cpu", scale: float | None = None) -> Pool:
        """From an `fmrl.data.ImageSet`, rotated classes written out. scale: multiply bytes by it (None keeps them)."""
        sizes = np.array(images.sizes)
        parts = []
        for turn in range(images.rotations):  # one rotation at a time: the peak is a quarter of the table
            block = np.arange(turn * len(images.names), (turn + 1) * len(images.names))
            at = [np.repeat(block, sizes[block]), np.concatenate([np.arange(n) for n in sizes[block]])]
            parts.append(torch.as_tensor(np.ascontiguousarray(_numpy(images).take(*at))).to(device))
        inputs = torch.cat(parts)
        inputs = inputs[:, None] if inputs.ndim == 3 else inputs.permute(0, 3, 1, 2).contiguous()
        inputs = inputs if scale is None else inputs.float() * scale
        return cls(inputs, torch.as_tensor(np.concatenate([[0], np.cumsum(sizes)])).to(device), images.name)

    def tasks(
        self,
        ways: int,
        shots: int,
        *,
        batch: int,
        steps: int,
        queries: int = 0,
        seed: int = 0,
        classes: Sequence[int] | None = None,
    ) -> FewShot:
        """Few-shot tasks over ``classes`` (default: all). A class with fewer than ``shots`` samples gives all it has."""
        sizes = torch.diff(self.starts).tolist()
        pool = range(len(sizes)) if classes is None else classes
        most = min(sizes[c] for c in pool) - queries
        episodes = Episodes(tuple(sizes), ways, min(shots, most), queries, seed, None if classes is None else tuple(classes))
        return FewShot(self, episodes, steps, batch)


def _numpy(images: Any) -> Any:
    if not isinstance(images.images, np.ndarray):
        raise FMRLError("the image set is on a device already", fix="give the set as it was loaded")
    return images


@dataclass(frozen=True, eq=False)
class FewShot:
    """``ways``-way tasks from a Pool: mini-batches cycle through the task's samples without replacement, reshuffled each time round."""

    pool: Pool
    episodes: Episodes
    steps: int
    batch: int

    @property
    def inputs(self) -> torch.Tensor:
        """The pool's table."""
        return self.pool.inputs

    def draw(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and labels of tasks ``start`` to ``start + count − 1``, [count, steps, batch]."""
        return self._cut(*self._support(start, count), start)

    def draw_queries(self, start: int, count: int) -> tuple[torch.Tensor, ...]:
        """Mini-batches as `draw` gives them, then all support rows [count, ways·shots] and query rows [count, ways·queries]."""
        rows, batch = self._support(start, count)
        where = self.pool.starts[batch.classes]
        index, label = self._cut(rows, batch, start)
        return index, label, rows, (where[..., None] + batch.query).flatten(1)

    @property
    def query_labels(self) -> torch.Tensor:
        """Label of each query row."""
        return torch.arange(self.episodes.ways, device=self.inputs.device).repeat_interleave(self.episodes.queries)

    def _support(self, start: int, count: int):
        batch = self.episodes.draw(start, count, self.inputs.device)
        return (self.pool.starts[batch.classes][..., None] + batch.support).flatten(1), batch

    def _cut(self, rows, batch, start):
        order = mini_batches(start, rows.shape, self.steps * self.batch, self.episodes.seed, rows.device)
        shape = (rows.shape[0], self.steps, self.batch)
        return rows.gather(1, order).view(shape), (order // self.episodes.shots).view(shape)


class Arrays:
    """A fixed list of tasks given as arrays, of any sizes; task e is number e modulo the list's length.

    >>> tasks = Arrays([(np.zeros((3, 4)), [0, 1, 0]), (np.ones((9, 4)), [0] * 9)], batch=2, steps=3)
    >>> tasks.draw(0, 2)[0].amax((1, 2)).tolist()
    [2, 11]
    """

    def __init__(self, tasks: Sequence[tuple[Any, Any]], *, batch: int, steps: int, seed: int = 0, device: Any = "cpu"):
        if not tasks:
            raise FMRLError("there are no tasks")
        self.batch, self.steps, self.seed, self.device = batch, steps, seed, device
        self.sizes = [len(X) for X, _ in tasks]
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)])
        self.inputs = torch.cat([torch.as_tensor(np.asarray(X)) for X, _ in tasks]).to(device)
        self.targets = torch.cat([torch.as_tensor(np.asarray(y)) for _, y in tasks]).to(device)
        if len(self.targets) != len(self.inputs):
            raise FMRLError(f"there are {len(self.inputs)} inputs but {len(self.targets)} targets")

    def draw(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and targets of tasks ``start`` to ``start + count − 1``, [count, steps, batch]."""
        n, need = len(self.sizes), self.steps * self.batch
        rows = [
            int(self.starts[e % n]) + mini_batches(e, (1, self.sizes[e % n]), need, self.seed, self.device)
            for e in range(start, start + count)
        ]
        index = torch.cat(rows).view(count, self.steps, self.batch)
        return index, self.targets[index]


def mini_batches(start: int, shape: tuple[int, int], need: int, seed: int, device: Any) -> torch.Tensor:
    """For tasks ``start``…: ``need`` positions among shape[1] samples, by shuffled passes. [shape[0], need]."""
    count, samples = shape
    passes = -(-need // samples)
    at = torch.arange(start * passes * samples, (start + count) * passes * samples, device=device)
    keys = _splitmix(at, seed ^ ORDER).view(count, passes, samples)
    return keys.argsort(-1).view(count, -1)[:, :need]
