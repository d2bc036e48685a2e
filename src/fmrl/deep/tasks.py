"""Tasks on the device: a table of inputs, and mini-batches of its rows drawn by task number."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from fmrl.datasets.episodes import Episodes, _splitmix
from fmrl.deep.checks import classes_of, pair, table, whole, with_channel
from fmrl.errors import FMRLError

ORDER = 0x5EED  # keeps the order of mini-batches independent of the draw of classes and samples


class Tasks(Protocol):
    """A numbered, endless sequence of tasks over one table; task e is a function of e alone."""

    inputs: torch.Tensor  # [N, ...]
    steps: int
    batch: int

    def draw(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of ``inputs`` [count, steps, batch] and their targets [count, steps, batch, ...]."""


class TasksWithQueries(Tasks, Protocol):
    """Tasks that also hold samples to be judged on."""

    queries: int  # of every task, or of the one that has fewest

    def queried(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor, list[Queried]]:
        """What `draw` gives, and the tasks' samples and queries, grouped by shape."""

    def with_steps(self, steps: int) -> TasksWithQueries:
        """The same tasks, cut into ``steps`` mini-batches."""


@dataclass(frozen=True, eq=False)
class Queried:
    """n tasks of one shape among those that were drawn."""

    at: torch.Tensor  # [n] which of the tasks drawn
    support: torch.Tensor  # [n, S] all their training rows
    query: torch.Tensor  # [n, Q] their query rows
    targets: torch.Tensor  # [n, Q, ...] the targets of the queries
    support_targets: torch.Tensor | None = None  # [n, S, ...] of the training rows, where known


@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """Inputs by class, on one device: class c has rows ``starts[c]`` to ``starts[c + 1] − 1``.

    Args:
        inputs: [N, channels, height, width] or [N, features], sorted by class.
        starts: [classes + 1] where each class begins.
        name: For ``repr``.
        values: What each class is called; None means 0, 1, …

    >>> pool = Pool.of(np.zeros((6, 2, 2)), np.array([1, 1, 2, 2, 3, 3]))
    >>> tasks = pool.tasks(ways=2, shots=2, batch=2, steps=4, classes=[1, 3])
    >>> [tuple(a.shape) for a in tasks.draw(0, 3)], tasks.episodes.classes
    ([(3, 4, 2), (3, 4, 2)], (0, 2))
    """

    inputs: torch.Tensor
    starts: torch.Tensor
    name: str = "arrays"
    values: tuple | None = None

    def __repr__(self):
        counts = f"{len(self.starts) - 1:,} classes, {len(self.inputs):,} inputs"
        return f"Pool({self.name!r}, {counts} {tuple(self.inputs.shape[1:])})"

    @classmethod
    def of(
        cls, X: Any, y: Any, device: Any = "cpu", name: str = "arrays", images: bool | None = None
    ) -> Pool:
        """A pool of samples with a class each.

        Args:
            X: [N, ...] inputs. Integers are kept as integers.
            y: [N] the class of each, numbers or strings; ``classes=`` of `tasks` uses these names.
            device: Where the table is kept.
            name: For ``repr``.
            images: Whether X [N, H, W] gets a channel axis; say False for sequences [N, L, F]. Left
                out it does, and a warning says so unless H = W.
        """
        X = table(X, "X")
        y = classes_of(y, len(X))
        values, counts = np.unique(y, return_counts=True)
        inputs = X[torch.as_tensor(np.argsort(y, kind="stable"), device=X.device)]
        inputs = with_channel(inputs, images)
        return cls(inputs.to(device), _starts(counts, device), name, tuple(values.tolist()))

    @classmethod
    def of_images(cls, images: Any, device: Any = "cpu", scale: float | None = None) -> Pool:
        """A pool of an image set, rotated classes written out.

        Args:
            images: An `fmrl.datasets.ImageSet`, as it was loaded.
            device: Where the table is kept.
            scale: Multiply bytes by it; None keeps them as bytes.
        """
        if not all(hasattr(images, name) for name in ("sizes", "rotations", "images", "take")):
            what = f"{type(images).__name__} is not an fmrl.datasets.ImageSet"
            raise FMRLError(what, fix="give inputs and classes: Pool.of(X, y)")
        if not isinstance(images.images, np.ndarray):
            fix = "give the set as it was loaded"
            raise FMRLError("the image set is on a device already", fix=fix)
        sizes, parts = np.array(images.sizes), []
        for turn in range(images.rotations):  # one at a time: the peak is a quarter of the table
            block = np.arange(turn * len(images.names), (turn + 1) * len(images.names))
            within = np.concatenate([np.arange(n) for n in sizes[block]])
            found = images.take(np.repeat(block, sizes[block]), within)
            parts.append(torch.as_tensor(np.ascontiguousarray(found)).to(device))
        inputs = torch.cat(parts)
        inputs = inputs[:, None] if inputs.ndim == 3 else inputs.permute(0, 3, 1, 2).contiguous()
        inputs = inputs if scale is None else inputs.float() * scale
        return cls(inputs, _starts(sizes, device), images.name)

    def tasks(
        self, ways: int, shots: int, *, batch: int, steps: int, queries: int = 0, seed: int = 0,
        classes: Sequence[Any] | None = None,
    ) -> FewShot:  # fmt: skip
        """Few-shot tasks drawn by number.

        Args:
            ways: Classes of a task.
            shots: Training samples of each class.
            batch: Samples in a mini-batch.
            steps: Mini-batches of a task, one inner step each.
            queries: Samples of each class to be judged on.
            seed: Another seed draws other tasks.
            classes: Draw from these only, named as y named them; None means all. Each must have
                ``shots + queries`` samples.
        """
        whole(1, ways=ways, shots=shots, batch=batch, steps=steps)
        whole(0, queries=queries)
        chosen, sizes = self._positions(classes), torch.diff(self.starts).tolist()
        small, need = min(chosen, key=lambda c: sizes[c]), shots + queries
        if sizes[small] < need:
            has = f"class {self._name(small)!r} has {sizes[small]} samples"
            fix = "lower shots or queries, or leave the class out; see smallest(classes)"
            needs = f"{shots} shots with {queries} queries need {need}"
            raise FMRLError(f"{has}, and {needs}", fix=fix)
        only = None if classes is None else tuple(chosen)
        episodes = Episodes(tuple(sizes), ways, shots, queries, seed, only)
        return FewShot(self, episodes, steps, batch)

    def smallest(self, classes: Sequence[Any] | None = None) -> int:
        """Samples of the smallest of ``classes`` (None: all), the most shots a task can have."""
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
        tensor = isinstance(classes, (np.ndarray, torch.Tensor))
        asked = classes.tolist() if tensor else list(classes)
        if not asked:
            raise FMRLError("classes is empty", fix="leave it out to draw from all")
        for name in asked:
            if isinstance(name, (list, torch.Tensor)) or name not in where:
                known = f"{self._name(0)!r} to {self._name(count - 1)!r}"
                fix = f"choose from the {count} classes {known}, as y named them"
                raise FMRLError(f"there is no class {name!r}", fix=fix)
        return [where[name] for name in asked]


@dataclass(frozen=True, eq=False)
class FewShot:
    """``ways``-way tasks from a Pool, made by `Pool.tasks`.

    Mini-batches cycle through a task's samples without replacement, reshuffled each time round.

    Args:
        pool: The table.
        episodes: Which classes and samples each task has.
        steps: Mini-batches of a task.
        batch: Samples in a mini-batch.
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

    @property
    def query_labels(self) -> torch.Tensor:
        """Label of each query row, [ways·queries]."""
        labels = torch.arange(self.episodes.ways, device=self.inputs.device)
        return labels.repeat_interleave(self.episodes.queries)

    def draw(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and labels of tasks ``start`` to ``start + count − 1``, [count, steps, batch]."""
        return self.draw_queries(start, count)[:2]

    def draw_queries(self, start: int, count: int) -> tuple[torch.Tensor, ...]:
        """`draw`, all support rows [count, ways·shots] and query rows [count, ways·queries]."""
        batch = self.episodes.draw(start, count, self.inputs.device)
        where = self.pool.starts[batch.classes][..., None]
        rows, need = (where + batch.support).flatten(1), self.steps * self.batch
        order = mini_batches(start, rows.shape, need, self.episodes.seed, rows.device)
        shape = (count, self.steps, self.batch)
        index, label = rows.gather(1, order), order // self.episodes.shots
        return index.view(shape), label.view(shape), rows, (where + batch.query).flatten(1)

    def queried(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor, list[Queried]]:
        """`draw_queries` with the queries' labels, as `evaluate` takes them."""
        index, label, support, query = self.draw_queries(start, count)
        at, labels = (torch.arange(n, device=index.device) for n in (count, self.episodes.ways))
        given = (labels.repeat_interleave(n) for n in (self.queries, self.episodes.shots))
        return index, label, [Queried(at, support, query, *(g.expand(count, -1) for g in given))]

    def with_steps(self, steps: int) -> FewShot:
        """The same tasks, cut into ``steps`` mini-batches."""
        return replace(self, steps=steps)


class Arrays:
    """A fixed list of your own tasks, of any sizes; task e is number e modulo the list's length.

    Args:
        tasks: (X, y) each, or (X, y, Xq, yq) each with queries: X [n, ...], and y [n] labels 0, 1,
            … or [n] or [n, k] numbers. `evaluate` judges on queries, and `MAML` learns from them.
        batch: Samples in a mini-batch.
        steps: Mini-batches of a task, one inner step each.
        seed: Of the order of samples.
        device: Where the table is kept.

    >>> made = [(np.zeros((3, 4)), [0, 1, 0]), (np.ones((9, 4)), [0] * 9)]
    >>> tasks = Arrays(made, batch=2, steps=3)
    >>> tasks.draw(0, 2)[0].amax((1, 2)).tolist()
    [2, 11]
    >>> tasks
    Arrays(2 tasks of 3 to 9 samples (4,), batch=2, steps=3)
    """

    def __init__(
        self, tasks: Sequence[tuple], *, batch: int, steps: int, seed: int = 0, device: Any = "cpu"
    ):
        whole(1, batch=batch, steps=steps)
        tasks = list(tasks)
        if not tasks:
            raise FMRLError("there are no tasks")
        lengths = {len(t) if isinstance(t, (tuple, list)) else 0 for t in tasks}
        if lengths not in ({2}, {4}):
            fix = "give a list of such tuples"
            raise FMRLError("every task is (X, y), or every task is (X, y, Xq, yq)", fix=fix)
        self.batch, self.steps, self.seed, self.device = batch, steps, seed, device
        parts = [pair(t, *task[:2], "") for t, task in enumerate(tasks)]
        asked = [pair(t, *task[2:], "q") for t, task in enumerate(tasks)] if lengths == {4} else []
        for i, name in ((0, "X"), (1, "y")):
            first = parts[0][i].shape[1:]
            for n, part in enumerate([*parts, *asked]):
                if part[i].shape[1:] != first:
                    shapes = f"{tuple(part[i].shape[1:])}, that of task 0 {tuple(first)}"
                    raise FMRLError(f"a sample of {name} has shape {shapes}", task=n % len(parts))
        self.sizes, self.asked = [len(X) for X, _ in parts], [len(X) for X, _ in asked]
        self.starts = np.cumsum([0, *self.sizes, *self.asked])  # of samples, then of queries
        self.inputs = torch.cat([X.to(device) for X, _ in [*parts, *asked]])
        self.targets = torch.cat([y.to(device) for _, y in [*parts, *asked]])
        self.labels = self.targets.min().item(), self.targets.max().item()

    def __repr__(self):
        few, many = min(self.sizes), max(self.sizes)
        sizes = f"{few}" if few == many else f"{few} to {many}"
        queries = f", at least {self.queries} queries each" if self.asked else ""
        what = f"{len(self.sizes)} tasks of {sizes} samples {tuple(self.inputs.shape[1:])}{queries}"
        return f"Arrays({what}, batch={self.batch}, steps={self.steps})"

    @property
    def queries(self) -> int:
        """Queries of the task that has fewest; 0 when tasks have none."""
        return min(self.asked, default=0)

    def draw(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [count, steps, batch] and targets of tasks ``start`` to ``start + count − 1``."""
        n, need, rows = len(self.sizes), self.steps * self.batch, []
        for e in range(start, start + count):
            order = mini_batches(e, (1, self.sizes[e % n]), need, self.seed, self.device)
            rows.append(int(self.starts[e % n]) + order)
        index = torch.cat(rows).view(count, self.steps, self.batch)
        return index, self.targets[index]

    def queried(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor, list[Queried]]:
        """`draw`, and all samples and queries of those tasks, grouped by their sizes."""
        n, shapes, found = len(self.sizes), {}, []
        for i in range(count):
            e = (start + i) % n
            shapes.setdefault((self.sizes[e], self.asked[e]), []).append((i, e))
        for pairs in shapes.values():
            support, query = (torch.stack([self._rows(k + e) for _, e in pairs]) for k in (0, n))
            at = torch.tensor([i for i, _ in pairs], device=self.device)
            found.append(Queried(at, support, query, *(self.targets[i] for i in (query, support))))
        return *self.draw(start, count), found

    def with_steps(self, steps: int) -> Arrays:
        """The same tasks, cut into ``steps`` mini-batches."""
        other = copy.copy(self)
        other.steps = steps
        return other

    def _rows(self, part: int) -> torch.Tensor:
        return torch.arange(int(self.starts[part]), int(self.starts[part + 1]), device=self.device)


def _starts(counts: np.ndarray, device: Any) -> torch.Tensor:
    return torch.as_tensor(np.concatenate([[0], np.cumsum(counts)])).to(device)


def mini_batches(
    start: int, shape: tuple[int, int], need: int, seed: int, device: Any
) -> torch.Tensor:
    """``need`` positions among shape[1] samples for tasks ``start``…, by shuffled passes.

    >>> mini_batches(0, (1, 3), 9, seed=0, device="cpu").view(3, 3).sort(1).values.tolist()
    [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """
    (count, samples), passes = shape, max(1, -(-need // shape[1]))
    first = (start * passes * samples + 2**63) % 2**64 - 2**63  # far stretches wrap round
    at = torch.arange(count * passes * samples, device=device) + first
    keys = _splitmix(at, seed ^ ORDER).view(count, passes, samples)
    return keys.argsort(-1).view(count, -1)[:, :need]
