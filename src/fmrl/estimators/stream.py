"""Streaming: tasks whose rows come one at a time, many tasks open at once.

Inside a task the learner is lazy OMD from phi (Algorithm 2's choice). When a task closes, its
last action moves phi and the guess (FLI-Online), and its latest rows say what every task's rows
say about the prior. Regret is bracketed without an optimum: convexity gives

    Σ ℓ_i(θ_i) − Σ ℓ_i(phi)  ≤  regret  ≤  Σ ⟨∇_i, θ_i⟩ + R·‖Σ ∇_i‖       (R: the ball's radius).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from math import exp, log1p, sqrt
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy import ndarray
from scipy.linalg.blas import daxpy, ddot

from fmrl.core.meta_level import looked
from fmrl.core.rules.meta import End
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.encoding import read_row
from fmrl.estimators.inputs import grouped
from fmrl.estimators.task_models import probabilities

if TYPE_CHECKING:
    from fmrl.estimators.base import Meta

DOUBLE = np.dtype(np.float64)
FAR = 1e100  # of a row or a margin: beyond, its square and what is summed of it could overflow
FAR2 = FAR * FAR
KEPT = 4096  # rows of an open task, the latest, of which its model is made when it is closed


class Streams(NamedTuple):
    """All closed streams together: what was suffered, and an interval for the summed regret."""

    tasks: int = 0
    rounds: int = 0
    loss: float = 0.0
    regret: tuple[float, float] = (0.0, 0.0)

    def with_task(self, rounds: int, loss: float, regret: tuple[float, float]) -> Streams:
        """One more closed stream."""
        both = self.regret[0] + regret[0], self.regret[1] + regret[1]
        return Streams(self.tasks + 1, self.rounds + rounds, self.loss + loss, both)


class OpenTask:
    """One task being played: ``predict(x)``, then ``learn(x, y)``. Close it (or leave its
    ``with`` block) to learn across tasks.

    rounds: how many are expected; the step is D/(G·√rounds). Without it the step is D/(G·√i) in
    round i.

    The action is θ = s·(phi − eta·total), total the sum of gradients and s what keeps it in the
    ball. Products of the row with phi, total and itself give the margins of θ and of phi, and all
    that ‖θ‖ needs to follow. Rounds from several threads are played one after another."""

    __slots__ = (
        "__weakref__", "_all", "_change", "_classes", "_coordinates", "_cross", "_eta", "_fixed",
        "_found", "_guard", "_head", "_kept", "_labels", "_names", "_outputs", "_owner", "_phi",
        "_phi2", "_place", "_plain", "_played", "_radius", "_rate", "_raw", "_row", "_shape",
        "_shrink", "_side", "_squares", "_start", "_sum", "_targets", "_total", "_total2", "_waits",
        "_width", "_z", "loss", "loss_of_phi", "name", "open", "rounds",
    )  # fmt: skip

    def __init__(self, owner: Meta, rounds: int | None, name: Any):
        if rounds is not None and not (isinstance(rounds, (int, np.integer)) and rounds >= 1):
            what = f"rounds must be a positive integer, not {rounds!r}"
            raise FMRLError(what, fix="or leave it out")
        here, algo, phi = owner.coordinates_, owner.history_.algo, owner.state_.phi
        self._width = here.width
        self._outputs = k = phi.size // self._width
        self.name, self.rounds, self.open = name, 0, True
        self._guard = threading.RLock()
        self.loss = self.loss_of_phi = 0.0
        self._owner, self._coordinates, self._change = owner, here, here.one_by_one()
        names, encoder = getattr(owner, "feature_names_in_", None), getattr(owner, "encoder_", None)
        self._names = None if names is None else names.tolist()
        self._shape = here.centre.shape
        self._plain = self._shape if encoder is None or encoder.plain else None  # of plain rows
        self._classes = classes = getattr(owner, "classes_", None)
        if classes is not None:
            self._labels = tuple(classes)  # as they are given back
            self._place = {label: i for i, label in enumerate(classes.tolist())}
        self._all = np.zeros((2 * k + 1, self._width))  # phi, total and the row looked at last
        self._phi, self._total, self._row = self._all[:k], self._all[k:-1], self._all[-1]
        self._phi[:], self._row[-1] = phi.reshape(k, -1), here.constant
        self._head = self._row[: here.centre.size]
        self._start, self._sum = self._phi[0], self._total[0]  # all, where there is one output
        self._radius, self._rate = here.reach, owner.guess_ / owner.lipschitz_
        self._fixed = 0.0 if rounds is None else self._rate / math.sqrt(rounds)
        self._eta, self._shrink = 0.0, 1.0
        self._played = 0.0  # Σ ⟨∇_i, θ_i⟩
        # ‖phi‖², ⟨phi, total⟩, ‖total‖²
        self._phi2, self._cross, self._total2 = ddot(phi, phi), 0.0, 0.0
        self._squares = _squares(algo.similarity, self._total)
        self._side: np.ndarray | None = None  # what is known of the task since its first row
        self._waits = looked(algo, self._row) is not None
        # The row looked at last, in the user's units, and what was found of it: neither after
        # something was learned.
        self._raw: bytes | None = None
        self._found: Sequence[float] = ()
        self._kept: deque[bytes] = deque(maxlen=KEPT)
        self._targets: deque[float] = deque(maxlen=KEPT)

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"OpenTask(name={self.name!r}, {state}, {self.rounds} rounds)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        self.open = False

    def _look(self, x: Any) -> Sequence[float]:
        """Products of a row with phi and with total, an output after another, and with itself."""
        if not self.open:
            raise FMRLError("this task is closed", fix="open another: estimator.task()")
        if not (type(x) is ndarray and x.dtype is DOUBLE and x.shape == self._plain):
            x = self._read(x)
        raw = x.tobytes()  # a copy: the user may use one buffer for all rows
        if raw == self._raw:
            return self._found
        self._raw = None
        self._change(x, self._head)
        if self._waits and not self.rounds:
            self._begin()
        if self._outputs > 1:
            found = self._products()
        else:  # here and not in a method, of which the call would cost as much as two products
            row = self._row
            found = ddot(self._start, row), ddot(self._sum, row), ddot(row, row)
        if not found[-1] < FAR2:  # NaN is not
            what, fix = f"a row is a vector of {x.size} finite numbers", "drop or impute it"
            if np.isfinite(x).all():
                what = f"a row is more than {FAR:g} of fit's units away"
                fix = "scale x and y as in fit"
            raise FMRLError(what, round=self.rounds, fix=fix)
        self._raw, self._found = raw, found
        return found

    def _read(self, x: Any) -> np.ndarray:
        """A row of any kind as numbers."""
        if hasattr(x, "columns"):
            fix = "give frame.iloc[0] or frame.row(0), or many rows to learn_many"
            raise FMRLError("a stream takes a row, not a table", round=self.rounds, fix=fix)
        named = type(x) is not np.ndarray and self._names is not None and hasattr(x, "iloc")
        if named and list(x.index) != self._names:
            fix = f"give the columns in the order {', '.join(map(repr, self._names[:10]))}"
            raise FMRLError("a row has other columns than fit", round=self.rounds, fix=fix)
        x = read_row(self._owner, x) if self._plain is None else x
        if getattr(getattr(x, "dtype", None), "kind", "") == "O" and all(map(_real, x)):
            x = np.array([*map(float, x)])  # a row of a frame with columns of several kinds
        row = np.empty(self._shape)
        try:
            if np.shape(x) == self._shape:
                np.subtract(x, 0.0, row)  # which text and complex numbers are no part of
                return row
        except (TypeError, ValueError):
            pass
        raise FMRLError(f"a row is a vector of {row.size} numbers", round=self.rounds) from None

    def _begin(self) -> None:
        """Start where the meta-update puts a task with this first row."""
        algo, state = self._owner.history_.algo, self._owner.state_
        self._side = looked(algo, self._row)
        if not np.isfinite(self._side).all():
            return
        phi = algo.meta.begin(algo.domain, state.phi, state.meta, self._side)
        self._phi[:] = phi.reshape(self._outputs, -1)
        self._phi2 = float(phi @ phi)

    def predict(self, x: Any) -> Any:
        """The prediction for one row x [f], from what this task has taught so far."""
        self._guard.acquire()  # quicker than ``with``
        try:
            return self._answer(self._look(x))
        finally:
            self._guard.release()

    def predict_proba(self, x: Any) -> np.ndarray:
        """Class probabilities [classes] for one row."""
        if self._classes is None:
            raise FMRLError("a regressor has no probabilities", fix="use predict")
        with self._guard:
            z = self._margins(self._look(x))
        return probabilities(np.array([z]), len(self._classes))[0]

    def learn(self, x: Any, y: Any) -> float:
        """Play one round: suffer the loss of the present action on (x, y), return it, and move."""
        self._guard.acquire()
        try:
            return self._move(self._look(x), y)
        finally:
            self._guard.release()

    def play(self, x: Any, y: Any) -> Any:
        """One whole round: the prediction for x, made before y is looked at; then learn from y."""
        with self._guard:
            found = self._look(x)
            answer = self._answer(found)
            self._move(found, y)
            return answer

    # A round of two classes; `stream_kinds` has the others.

    def _margins(self, found: Sequence[float]) -> list[float]:
        """Margins of θ."""
        return [self._shrink * (found[0] - self._eta * found[1])]

    def _answer(self, found: Sequence[float]) -> Any:
        """The prediction."""
        return self._labels[self._shrink * (found[0] - self._eta * found[1]) > 0]

    def _unknown(self, y: Any) -> FMRLError:
        what = f"the label {y!r} is not one of the classes {list(self._place)[:10]}"
        return FMRLError(what, round=self.rounds)

    def _move(self, found: Sequence[float], y: Any) -> float:
        """Suffer, and move against the gradient."""
        try:
            place = self._place[y]
        except (KeyError, TypeError):  # an array or a list has no hash
            raise self._unknown(y) from None
        under_phi, under_total, square = found
        z = self._shrink * (under_phi - self._eta * under_total)
        right, base = (z, under_phi) if place else (-z, -under_phi)  # the label's own margins
        if right >= 0:  # sigmoid and softplus of one margin from one exponential
            e = exp(-right)
            g, loss = e / (1 + e), log1p(e)
        else:
            e = exp(right)
            g, loss = 1 / (1 + e), log1p(e) - right
        if place:
            g = -g
        self.loss_of_phi += log1p(exp(-base)) if base >= 0 else log1p(exp(base)) - base
        self.loss += loss
        self._kept.append(self._raw)  # type: ignore[arg-type]
        self._targets.append(place)
        daxpy(self._row, self._sum, self._width, g)  # total += g·row, in place
        if self._squares is not None:
            self._squares += (g * self._row) ** 2
        self._follow(g * z, g * under_phi, g * (2 * under_total + g * square))
        return loss

    def _follow(self, played: float, cross: float, change: float) -> None:
        """After a gradient was added to total: keep ‖θ‖ = ‖phi − eta·total‖ in the ball, by numbers
        already at hand.
        """
        self._raw = None
        self.rounds += 1
        self._played += played
        self._cross += cross
        self._total2 += change
        self._eta = eta = self._fixed or self._rate / sqrt(self.rounds)
        size, radius = self._phi2 + eta * (eta * self._total2 - 2 * self._cross), self._radius
        self._shrink = 1.0 if size <= radius * radius else radius / sqrt(size)

    @property
    def rows(self) -> Tasks:
        """Its latest rows as a task in the user's units."""
        X = np.frombuffer(bytearray().join(self._kept)).reshape(len(self._kept), -1)
        one = grouped(self._owner._loss(), X, np.array(self._targets), None, None)
        one.names[0] = self.name  # type: ignore[index]
        return one

    @property
    def phi(self) -> np.ndarray:
        """Where the task started [d], in the estimator's coordinates."""
        return self._phi.ravel()

    @property
    def theta(self) -> np.ndarray:
        """The present action [d], in the estimator's coordinates."""
        theta = (self._phi - self._eta * self._total).ravel()
        size = sqrt(ddot(theta, theta))
        return theta * (self._radius / size) if size > self._radius else theta

    @property
    def regret(self) -> tuple[float, float]:
        """An interval that holds the regret of predict-then-learn so far, against the best fixed
        model of the ball.
        """
        low = self.loss - self.loss_of_phi
        total = self._total.ravel()
        return low, max(low, self._played + self._radius * sqrt(ddot(total, total)))

    def close(self) -> None:
        """End the task: its last action moves phi and the guess. A task without rounds leaves no
        trace.
        """
        # The owner's lock first: its `_close` takes it too, and two orders could wait for ever.
        with self._owner._lock, self._guard:
            try:
                self._end()
            finally:
                self.open = False

    def _end(self) -> None:
        if self.open and getattr(self._owner, "coordinates_", None) is not self._coordinates:
            what = "the estimator was fitted anew while this task was open"
            raise FMRLError(what, fix="open it again")
        if self.open and self.rounds:
            theta, G = self.theta, self._owner.lipschitz_
            sigma = np.asarray(G * math.sqrt(self.rounds))
            seen = None if self._squares is None else self._squares.ravel()
            if getattr(self._owner.history_.algo.similarity, "observes", None) == "norms":
                seen = seen.sum(keepdims=True)  # type: ignore[union-attr]
            self._owner._close(self, End(theta, theta, sigma, seen, self._side))


def _real(value: Any) -> bool:
    return isinstance(value, Real)


def _squares(rule: Any, like: np.ndarray) -> np.ndarray | None:
    """Where a stream adds up squared gradients, if the similarity rule asks for them."""
    observes = getattr(rule, "observes", None)
    if observes not in (None, "norms", "squares"):
        what = f"a stream keeps no more than sums of squares, and {rule!r} asks for more"
        raise FMRLError(what, fix="give whole tasks to partial_fit, or use PerCoordinate")
    return None if observes is None else np.zeros_like(like)
