"""Tasks: the m rounds an agent plays between two meta-updates, as data or as an opponent that
reacts.

Everything an algorithm asks of a task is the `Game` protocol. A `Task` of arrays opens into
`Rounds`, which answers for one task or for a whole stack of them (leading axes); an adversary
implements the same four methods itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from fmrl.core.arrays import Array, as_float, full, namespace, zeros
from fmrl.core.domains import Domain
from fmrl.core.losses import Loss
from fmrl.core.losses.labels import as_labels
from fmrl.core.samples import Samples
from fmrl.core.solve.minimise import Leaders, Solution, minimise
from fmrl.errors import FMRLError


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
        """Play theta [..., d] in round i: the loss suffered [...] and a subgradient there [..., d]."""
        ...

    def lipschitz(self, domain: Domain) -> Array:
        """G_t [...]: root mean square over the rounds of their Lipschitz constants in the domain's
        norm.
        """
        ...

    def hindsight(self, domain: Domain) -> Solution:
        """The best fixed action for all rounds; of several, the one of least norm."""
        ...

    def leaders(self, domain: Domain, phi: Array, eta: Array) -> Callable[[int], Array]:
        """What FTRL plays after i rounds, for i = 1, 2, …: argmin over the domain of B_R(·‖phi) +
        eta·(the first i losses).
        """
        ...


@dataclass(frozen=True, eq=False)
class Rounds(Samples):
    """Samples as a game: the solver answers for hindsight and for FTRL."""

    def hindsight(self, domain: Domain) -> Solution:
        """The optimum in hindsight with its duality gap."""
        return minimise(self, domain)

    def leaders(self, domain: Domain, phi: Array, eta: Array) -> Callable[[int], Array]:
        """FTRL's actions, each solved from the one before."""
        return Leaders(self, domain, phi, eta)


class Task:
    """One task: m rounds in row order.

    ``Task(X, y, loss=OneVsAll(4))`` — X [m, f], labels or numbers y [m]; theta is flat, [class,
    feature] row-major. ``Task(costs, loss=Linear())`` — row i is the cost vector of round i.

    >>> from fmrl.core.losses import OneVsAll
    >>> task = Task([[1.0, 0.0], [0.0, 1.0]], ["cat", "dog"], loss=OneVsAll(["cat", "dog", "cow"]))
    >>> task
    Task(rounds=2, features=2, loss=OneVsAll(classes=('cat', 'dog', 'cow')))
    """

    __slots__ = ("_samples", "loss", "name")

    def __init__(self, X: Any, y: Any = None, *, loss: Loss, name: Any = None):
        X = as_float(X, "X")
        xp = namespace(X)
        if X.ndim != 2:
            raise FMRLError(f"X must have shape [rounds, features], not {tuple(X.shape)}")
        m, f = X.shape
        if m == 0 or f == 0:
            raise FMRLError(f"the task is empty (X has shape {(m, f)})", fix="drop it")
        finite = xp.all(xp.isfinite(X), axis=1)
        if not bool(xp.all(finite)):
            i = int(xp.argmin(xp.astype(finite, xp.int64)))
            raise FMRLError("X has a NaN or an infinity", round=i, fix="drop or impute the row")
        if y is not None:
            y = as_labels(y)
            if y.shape[0] != m:
                raise FMRLError(f"X has {m} rows but y has {y.shape[0]} labels")
            if namespace(y) is not xp and type(y).__module__ != "numpy":
                raise FMRLError(
                    f"X is {type(X).__name__} but y is {type(y).__name__}",
                    fix="convert them to one kind",
                )
        elif loss.bend != 0:
            raise FMRLError(f"{loss!r} needs labels", fix="give Task(X, y, loss=…)")
        target = loss.encode(y, X)
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

    def open(self) -> Rounds:
        """The game the agent plays."""
        return self._samples


def stack(tasks: list[Task]) -> Rounds:
    """Tasks side by side as one game with a leading axis, the shorter ones padded with rounds that
    do not count.
    """
    games = [task.open() for task in tasks]
    first = games[0]
    xp = namespace(*(g.X for g in games))
    length = max(g.length for g in games)
    if all(g.length == length for g in games):
        return replace(
            first,
            **{
                name: xp.stack([getattr(g, name) for g in games])
                for name in ("X", "target", "weight", "rounds")
            },
        )

    def padded(name: str) -> Array:
        shape = getattr(first, name).shape
        out = zeros((len(games), length, *shape[1:]), first.X)
        for row, g in enumerate(games):
            out[row, : g.length, ...] = getattr(g, name)
        return out

    rounds = xp.stack([g.rounds for g in games])
    return replace(
        first, X=padded("X"), target=padded("target"), weight=padded("weight"), rounds=rounds
    )
