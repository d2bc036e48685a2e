"""Tasks: the m rounds an agent plays between two meta-updates, as data or as an opponent that
reacts.

Everything an algorithm asks of a task is the `Game` protocol. A `Task` of arrays opens into
`Rounds`, which answers for one task or for a whole stack of them (leading axes); an adversary
implements the same four methods itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fmrl.core.arrays import Array, as_float, device, full, namespace
from fmrl.core.domains import Domain
from fmrl.core.losses import Loss, weigh
from fmrl.core.losses.labels import as_labels
from fmrl.core.metric import Metric
from fmrl.core.samples import Samples, identify
from fmrl.core.solve import Leaders, MetricLeaders, Solution, minimise
from fmrl.errors import FMRLError

ELEMENTS = 1 << 19  # of X in one stack: 4 MB in float64; larger ones leave the cache
MOST = 1024  # tasks in one stack


@runtime_checkable
class Game(Protocol):
    """One task being played. ``length`` rounds at most; ``rounds`` [...] of them count (ragged
    stacks are padded).
    """

    @property
    def length(self) -> int:
        """Rounds to play, padding included."""
        ...

    @property
    def rounds(self) -> Array:
        """m_t [...]: rounds that count."""
        ...

    def reveal(self, i: int, theta: Array) -> tuple[Array, Array]:
        """Play theta [..., d] in round i: the loss suffered [...] and a subgradient there [...,
        d].
        """
        ...

    def lipschitz(self, domain: Domain) -> Array:
        """G_t [...]: root mean square over the rounds of their Lipschitz constants in the
        domain's norm.
        """
        ...

    def hindsight(self, domain: Domain) -> Solution:
        """The best fixed action for all rounds; of several, the one of least norm, on the simplex
        the one of least divergence from its middle.
        """
        ...

    def leaders(self, domain: Domain, phi: Array, eta: Array | Metric) -> Callable[[int], Array]:
        """What FTRL plays after i rounds, for i = 1, 2, …: argmin over the domain of B_R(·‖phi) +
        eta·(the first i losses), or of ½‖· − phi‖²_{H⁻¹} + (the first i losses) where eta is a
        metric H.
        """
        ...


@dataclass(frozen=True, eq=False)
class Rounds(Samples):
    """Samples as a game: the solver answers for hindsight and for FTRL."""

    def hindsight(self, domain: Domain) -> Solution:
        """The optimum in hindsight with its duality gap."""
        return minimise(self, domain)

    def leaders(self, domain: Domain, phi: Array, eta: Array | Metric) -> Callable[[int], Array]:
        """FTRL's actions, each solved from the one before."""
        if isinstance(eta, Metric):
            return MetricLeaders(self, domain, phi, eta)
        return Leaders(self, domain, phi, eta)


class Task:
    """One task: m rounds in row order.

    theta is flat, [class, feature] row-major. With ``Task(costs, loss=Linear())`` row i is the cost
    vector of round i.

    Args:
        X: Features [m, f], or costs.
        y: Labels or numbers [m].
        loss: Of a round, e.g. OneVsAll(4).
        name: By which messages and models call it.

    >>> from fmrl.core.losses import OneVsAll
    >>> task = Task([[1.0, 0.0], [0.0, 1.0]], ["cat", "dog"], loss=OneVsAll(["cat", "dog", "cow"]))
    >>> task
    Task(rounds=2, features=2, loss=OneVsAll(classes=('cat', 'dog', 'cow')))
    """

    __slots__ = ("__weakref__", "_samples", "loss", "name")

    def __init__(self, X: Any, y: Any = None, *, loss: Loss, name: Any = None):
        if not isinstance(loss, Loss):
            raise FMRLError(f"loss={loss!r} is not a loss", fix="give a value such as Squared()")
        X = as_float(X, "X")
        if X.ndim != 2:
            raise FMRLError(f"X must have shape [rounds, features], not {tuple(X.shape)}")
        m, f = X.shape
        if m == 0 or f == 0:
            raise FMRLError(f"the task is empty (X has shape {(m, f)})", fix="drop it")
        target = encoded(X, y, loss)
        weight = full((m,), 1.0, X)
        self._samples = Rounds(loss, X, target, weight, full((), float(m), X))
        self.loss, self.name = loss, name

    def __repr__(self) -> str:
        name = "" if self.name is None else f"name={self.name!r}, "
        return f"Task({name}rounds={self.rounds}, features={self.X.shape[1]}, loss={self.loss!r})"

    @property
    def X(self) -> Array:
        """Features [rounds, f]."""
        return self._samples.X

    @property
    def rounds(self) -> int:
        """How many rounds the task has, m_t."""
        return self._samples.length

    @property
    def dim(self) -> int:
        """Length of theta."""
        return self._samples.dim

    @property
    def kind(self) -> tuple[Any, ...]:
        """What tasks must have in common to be stacked: loss, width and dtype."""
        return self.loss, self.X.shape[1], self.X.dtype

    def open(self) -> Rounds:
        """The game the agent plays."""
        return self._samples

    @classmethod
    def _opened(cls, game: Rounds, name: Any) -> Task:
        """A task of rounds that were checked before."""
        task = cls.__new__(cls)
        task._samples, task.loss, task.name = game, game.loss, name
        return task


def refuse_others(task: Any) -> None:
    """Refuse what is not a task.

    Args:
        task: A `Task`, or an object whose ``open()`` returns a `Game`.
    """
    if isinstance(task, type) or not hasattr(task, "open"):
        fix = "build one with Task(X, y, loss=…); a folder needs engine='ray'"
        raise FMRLError(f"{type(task).__name__} is not a task", fix=fix)


def opened(task: Any) -> Any:
    """The game of a task, or of anything else that opens as one.

    Args:
        task: A `Task`, or an object whose ``open()`` returns a `Game`.
    """
    refuse_others(task)
    return task.open()


def encoded(X: Array, y: Any, loss: Loss) -> Array:
    """The targets of rows X [m, f] with labels y [m] as the loss wants them; bad rows raise."""
    xp, finite = namespace(X), namespace(X).all(namespace(X).isfinite(X), axis=1)
    if not bool(xp.all(finite)):
        i = int(xp.argmin(xp.astype(finite, xp.int64)))
        raise FMRLError("X has a NaN or an infinity", round=i, fix="drop or impute the row")
    if y is not None:
        y = as_labels(y)
        if y.shape[0] != X.shape[0]:
            raise FMRLError(f"X has {X.shape[0]} rows but y has {y.shape[0]} labels")
        if namespace(y) is not xp and type(y).__module__ != "numpy":
            what = f"X is {type(X).__name__} but y is {type(y).__name__}"
            raise FMRLError(what, fix="convert them to one kind")
    elif loss.bend != 0:
        raise FMRLError(f"{loss!r} needs labels", fix="give Task(X, y, loss=…)")
    return loss.encode(y, X)


@dataclass(frozen=True, eq=False)
class Tasks:
    """Many tasks of one loss and width as a few arrays: task t is the rows starts[t] … starts[t +
    1].

    This is what a table becomes and what every solver and learner is fed from, so that a million
    tasks are not a million Python objects, and ragged tasks need no padding until they are
    stacked.

    >>> from fmrl.core.losses import Squared
    >>> one = Task([[1.0], [2.0]], [0.5, 1.0], loss=Squared())
    >>> tasks = Tasks.of([one, Task([[3.0]], [1.5], loss=Squared())])
    >>> len(tasks), tasks.starts.tolist(), [game.X.shape for _, game in tasks.stacks()]
    (2, [0, 2, 3], [(1, 1, 1), (1, 2, 1)])
    """

    loss: Loss
    X: Array  # [N, f] the rows of all tasks
    target: Array  # [N, targets] as the loss encodes them
    starts: np.ndarray  # [n + 1] where tasks begin, and N
    names: Sequence[Any]  # [n]
    weight: Array | None = None  # [N] how much each row counts; None for 1
    heaviest: float = 1.0  # the largest weight of the run these tasks belong to

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def dim(self) -> int:
        """Length of theta."""
        return self.loss.outputs * self.X.shape[1]

    @property
    def lengths(self) -> np.ndarray:
        """m_t of every task, [n]."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def mass(self) -> np.ndarray:
        """How many rows each task counts for: its length, or the sum of its weights; [n]."""
        if self.weight is None:
            return self.lengths.astype(float)
        return np.add.reduceat(np.asarray(self.weight), self.starts[:-1])

    @property
    def first(self) -> Array:
        """The first row of every task, [n, f]."""
        return _rows(self.X, self.starts[:-1])

    @classmethod
    def of(cls, tasks: Sequence[Task], first: int = 0) -> Tasks:
        """From Task values of one loss, width, dtype and kind of array.

        Args:
            tasks: At least one.
            first: The number of tasks[0], by which tasks without a name are called.
        """
        if not (isinstance(tasks, Sequence) and len(tasks)):
            raise FMRLError("there are no tasks", fix="give a list of at least one Task")
        games = [opened(task) for task in tasks]
        xp = namespace(*(g.X for g in games))
        for i, task in enumerate(tasks):
            if task.kind != tasks[0].kind:
                what = "tasks that are played together need one loss, width and dtype"
                raise FMRLError(what, task=first + i)
        X, target = (xp.concat([getattr(g, name) for g in games]) for name in ("X", "target"))
        starts = np.cumsum([0, *(g.length for g in games)])
        names = [first + i if task.name is None else task.name for i, task in enumerate(tasks)]
        return cls(tasks[0].loss, X, target, starts, names)

    @cached_property
    def identity(self) -> dict[str, Array]:
        """What `identify` says of every task, [n] each."""
        found = [(places, identify(game, game.rounds)) for places, game in self.stacks()]
        order = np.argsort(np.concatenate([places for places, _ in found]), kind="stable")
        return {
            name: _rows(namespace(self.X).concat([each[name] for _, each in found]), order)
            for name in found[0][1]
        }

    def take(self, places: np.ndarray) -> Tasks:
        """Some of the tasks, in the order of ``places``."""
        lengths = self.lengths[places]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        if (np.diff(places) == 1).all():  # they lie together: views
            ends = self.starts[[places[0], places[-1] + 1]].tolist()
            rows: np.ndarray | slice = slice(*ends)
        else:
            rows = np.repeat(self.starts[places] - starts[:-1], lengths) + np.arange(starts[-1])
        names = self.names
        taken = names[places] if isinstance(names, np.ndarray) else [names[i] for i in places]  # type: ignore[index]
        return self._rows(rows, starts, taken)

    def copied(self) -> Tasks:
        """The same tasks in memory of their own, whatever happens to that which was given."""
        weight = None if self.weight is None else self.weight + 0
        return replace(self, X=self.X + 0, target=self.target + 0, weight=weight)

    def rows(self, rows: np.ndarray) -> Tasks:
        """Tasks of row numbers [n, m], m rows each."""
        starts = np.arange(rows.shape[0] + 1) * rows.shape[1]
        return self._rows(rows.ravel(), starts, range(rows.shape[0]))

    def _rows(self, rows: np.ndarray | slice, starts: np.ndarray, names: Sequence[Any]) -> Tasks:
        X, target = _rows(self.X, rows), _rows(self.target, rows)
        weight = None if self.weight is None else _rows(self.weight, rows)
        return replace(self, X=X, target=target, starts=starts, names=names, weight=weight)

    def task(self, place: int) -> Task:
        """One task by itself."""
        game = self.stack(np.array([place]))  # its loss and rows as their weights make them
        alone = {name: getattr(game, name)[0, ...] for name in ("X", "target", "weight", "rounds")}
        return Task._opened(replace(game, **alone), self.names[place])

    def stacks(self, places: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, Rounds]]:
        """The tasks at ``places`` (default: all) as stacked games, and which of ``places`` each
        holds.

        Tasks of similar length lie together, each stack small enough to stay in cache.
        """
        places = np.arange(len(self)) if places is None else places
        if len(places) == 1:
            yield np.zeros(1, int), self.stack(places)
            return
        lengths = self.lengths[places]
        scale = np.frexp(lengths)[1]  # lengths within a factor of two
        for s in np.unique(scale):
            (like,) = np.nonzero(scale == s)
            size = max(1, min(MOST, ELEMENTS // (int(lengths[like].max()) * self.X.shape[1])))
            for i in range(0, len(like), size):
                part = like[i : i + size]
                yield part, self.stack(places[part])

    def stack(self, places: np.ndarray | None = None) -> Rounds:
        """The tasks at ``places`` side by side as one game; padding rounds do not count."""
        places = np.arange(len(self)) if places is None else places
        lengths, begins = self.lengths[places], self.starts[places]
        n, longest = len(places), int(lengths.max())
        counts = np.arange(longest) < lengths[:, None]
        if counts.all() and (np.diff(begins) == longest).all():  # side by side already: a view
            rows: np.ndarray | slice = slice(int(begins[0]), int(begins[-1]) + longest)
        else:
            rows = np.where(counts, begins[:, None] + np.arange(longest), 0).ravel()
        xp = namespace(self.X)
        X, target = (
            xp.reshape(_rows(a, rows), (n, longest, a.shape[1])) for a in (self.X, self.target)
        )
        weight, rounds = (
            xp.asarray(a.astype(float), dtype=X.dtype, device=device(X)) for a in (counts, lengths)
        )
        loss = self.loss
        if self.weight is not None:
            heavy = xp.reshape(_rows(self.weight, rows), (n, longest))
            loss, X, target = weigh(loss, X, target, heavy, self.heaviest)
        if not counts.all():
            X, target = X * weight[..., None], target * weight[..., None]
        return Rounds(loss, X, target, weight, rounds)


def _rows(array: Array, rows: np.ndarray | slice) -> Array:
    if isinstance(rows, slice):
        return array[rows, ...]
    if isinstance(array, np.ndarray):
        return array[rows]
    xp = namespace(array)
    return xp.take(array, xp.asarray(rows, device=device(array)), axis=0)


def stack(tasks: Sequence[Task]) -> Rounds:
    """Tasks side by side as one game with a leading axis, the shorter ones padded with rounds
    that do not count.
    """
    return Tasks.of(tasks).stack()
