"""Few-shot tasks on the device: a table of inputs by class, and mini-batches of it by number, drawn
in bulk where the table lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fmrl.datasets.episodes import Episodes
from fmrl.deep.arrays import Arrays
from fmrl.deep.batches import Queried, Tasks, TasksWithQueries, mini_batches, table, whole
from fmrl.errors import FMRLError

__all__ = ["Arrays", "FewShot", "Pool", "Queried", "Tasks", "TasksWithQueries", "mini_batches"]


@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """Inputs by class, on one device: those of the c-th class are inputs[starts[c] : starts[c +
    1]].

    >>> pool = Pool.of(np.zeros((6, 2, 2)), np.array([1, 1, 2, 2, 3, 3]))
    >>> tasks = pool.tasks(ways=2, shots=2, batch=2, steps=4, classes=[1, 3])
    >>> [tuple(a.shape) for a in tasks.draw(0, 3)], tasks.episodes.classes
    ([(3, 4, 2), (3, 4, 2)], (0, 2))
    """

    inputs: torch.Tensor  # [N, channels, height, width] or [N, features]
    starts: torch.Tensor  # [classes + 1]
    name: str = "arrays"
    values: tuple | None = None  # what each class was called; None: 0, 1, …

    def __repr__(self):
        return f"Pool({self.name!r}, {len(self.starts) - 1:,} classes, {len(self.inputs):,} inputs {tuple(self.inputs.shape[1:])})"

    @classmethod
    def of(
        cls, X: Any, y: Any, device: Any = "cpu", name: str = "arrays", images: bool = True
    ) -> Pool:
        """From inputs X [N, ...] and the class of each, y [N]: numbers or strings, which
        ``classes=`` of `tasks` then means.

        Whole numbers stay whole. With ``images`` X [N, H, W] becomes [N, 1, H, W]; images=False
        keeps sequences [N, L, F] as they are."""
        X = table(X, "X")
        y = y.detach().cpu().numpy() if isinstance(y, torch.Tensor) else np.asarray(y)
        y = np.asarray(y.tolist()) if y.dtype == object else y  # a column of strings
        if y.shape != (len(X),) or not len(X):
            raise FMRLError(
                f"X has {len(X)} samples and y the shape {y.shape}",
                fix="give one class for each sample, y [N]",
            )
        if y.dtype.kind not in "iubUS" and not (y.dtype.kind == "f" and np.isfinite(y).all()):
            raise FMRLError(
                f"classes of type {y.dtype} cannot be told apart",
                fix="give whole numbers or strings",
            )
        order = np.argsort(y, kind="stable")
        values, counts = np.unique(y, return_counts=True)
        inputs = X[torch.as_tensor(order, device=X.device)]
        inputs = inputs[:, None] if images and inputs.ndim == 3 else inputs
        starts = torch.as_tensor(np.concatenate([[0], np.cumsum(counts)])).to(device)
        return cls(inputs.to(device), starts, name, tuple(values.tolist()))

    @classmethod
    def of_images(cls, images: Any, device: Any = "cpu", scale: float | None = None) -> Pool:
        """From an `fmrl.datasets.ImageSet`, rotated classes written out. scale: multiply bytes by
        it (None keeps them).
        """
        if not all(hasattr(images, name) for name in ("sizes", "rotations", "images", "take")):
            raise FMRLError(
                f"{type(images).__name__} is no fmrl.datasets.ImageSet",
                fix="give inputs and classes: Pool.of(X, y)",
            )
        sizes = np.array(images.sizes)
        parts = []
        for turn in range(
            images.rotations
        ):  # one rotation at a time: the peak is a quarter of the table
            block = np.arange(turn * len(images.names), (turn + 1) * len(images.names))
            at = [
                np.repeat(block, sizes[block]),
                np.concatenate([np.arange(n) for n in sizes[block]]),
            ]
            parts.append(torch.as_tensor(np.ascontiguousarray(_numpy(images).take(*at))).to(device))
        inputs = torch.cat(parts)
        inputs = inputs[:, None] if inputs.ndim == 3 else inputs.permute(0, 3, 1, 2).contiguous()
        inputs = inputs if scale is None else inputs.float() * scale
        return cls(
            inputs, torch.as_tensor(np.concatenate([[0], np.cumsum(sizes)])).to(device), images.name
        )

    def tasks(
        self,
        ways: int,
        shots: int,
        *,
        batch: int,
        steps: int,
        queries: int = 0,
        seed: int = 0,
        classes: Sequence[Any] | None = None,
    ) -> FewShot:
        """Few-shot tasks over ``classes`` (default: all), named as y named them; each must have
        ``shots + queries`` samples.
        """
        whole(1, ways=ways, shots=shots, batch=batch, steps=steps)
        whole(0, queries=queries)
        chosen, sizes = self._positions(classes), torch.diff(self.starts).tolist()
        small = min(chosen, key=lambda c: sizes[c])
        if sizes[small] < shots + queries:
            raise FMRLError(
                f"class {self._name(small)!r} has {sizes[small]} samples, and {shots} shots with {queries} queries need {shots + queries}",
                fix="lower shots or queries, or leave the class out; smallest(classes) is the size of the smallest class",
            )
        episodes = Episodes(
            tuple(sizes), ways, shots, queries, seed, None if classes is None else tuple(chosen)
        )
        return FewShot(self, episodes, steps, batch)

    def smallest(self, classes: Sequence[Any] | None = None) -> int:
        """Samples of the smallest of ``classes`` (default: all): the most shots that tasks without
        queries can have.
        """
        sizes = torch.diff(self.starts).tolist()
        return min(sizes[c] for c in self._positions(classes))

    def _name(self, position: int) -> Any:
        return position if self.values is None else self.values[position]

    def _positions(self, classes: Sequence[Any] | None) -> Sequence[int]:
        """Where the named classes lie."""
        count = len(self.starts) - 1
        if classes is None:
            return range(count)
        where = {self._name(c): c for c in range(count)}
        asked = (
            classes.tolist() if isinstance(classes, (np.ndarray, torch.Tensor)) else list(classes)
        )
        if not asked:
            raise FMRLError("classes names no class", fix="leave it out to draw from all")
        for name in asked:
            if isinstance(name, (list, torch.Tensor)) or name not in where:
                known = f"{self._name(0)!r} to {self._name(count - 1)!r}"
                raise FMRLError(
                    f"there is no class {name!r}",
                    fix=f"choose from the {count} classes {known}, as y named them",
                )
        return [where[name] for name in asked]


def _numpy(images: Any) -> Any:
    if not isinstance(images.images, np.ndarray):
        raise FMRLError("the image set is on a device already", fix="give the set as it was loaded")
    return images


@dataclass(frozen=True, eq=False)
class FewShot:
    """``ways``-way tasks from a Pool: mini-batches cycle through the task's samples without
    replacement, reshuffled each time round.
    """

    pool: Pool
    episodes: Episodes
    steps: int
    batch: int

    @property
    def inputs(self) -> torch.Tensor:
        """The pool's table."""
        return self.pool.inputs

    @property
    def queries(self) -> int:
        """Queries of every class."""
        return self.episodes.queries

    @property
    def labels(self) -> tuple[int, int]:
        """The smallest and the largest label."""
        return 0, self.episodes.ways - 1

    def draw(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and labels of tasks ``start`` to ``start + count − 1``, [count, steps, batch]."""
        return self._cut(*self._support(start, count), start)

    def draw_queries(self, start: int, count: int) -> tuple[torch.Tensor, ...]:
        """Mini-batches as `draw` gives them, then all support rows [count, ways·shots] and query
        rows [count, ways·queries].
        """
        rows, batch = self._support(start, count)
        where = self.pool.starts[batch.classes]
        index, label = self._cut(rows, batch, start)
        return index, label, rows, (where[..., None] + batch.query).flatten(1)

    def queried(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor, list[Queried]]:
        """`draw_queries` with the queries' labels, as `evaluate` takes them."""
        index, label, support, query = self.draw_queries(start, count)
        at = torch.arange(count, device=self.inputs.device)
        return index, label, [Queried(at, support, query, self.query_labels.expand(count, -1))]

    def with_steps(self, steps: int) -> FewShot:
        """The same tasks, cut into ``steps`` mini-batches."""
        return replace(self, steps=steps)

    @property
    def query_labels(self) -> torch.Tensor:
        """Label of each query row."""
        return torch.arange(self.episodes.ways, device=self.inputs.device).repeat_interleave(
            self.episodes.queries
        )

    def _support(self, start: int, count: int):
        batch = self.episodes.draw(start, count, self.inputs.device)
        return (self.pool.starts[batch.classes][..., None] + batch.support).flatten(1), batch

    def _cut(self, rows, batch, start):
        order = mini_batches(
            start, rows.shape, self.steps * self.batch, self.episodes.seed, rows.device
        )
        shape = (rows.shape[0], self.steps, self.batch)
        return rows.gather(1, order).view(shape), (order // self.episodes.shots).view(shape)
