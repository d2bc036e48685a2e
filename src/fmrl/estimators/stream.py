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
from math import exp, log1p, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
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

FAR = 1e100  # of a margin: beyond, its square and what is summed of it could overflow
KEPT = 4096  # rows of an open task, the latest, of which its model is made when it is closed


class Streams(NamedTuple):
    """All closed streams together: what was suffered, and an interval for the summed regret."""

    tasks: int = 0
    rounds: int = 0
    loss: float = 0.0
    regret: tuple[float, float] = (0.0, 0.0)

    def with_task(self, rounds: int, loss: float, regret: tuple[float, float]) -> Streams:
        """One more closed stream."""
        low, high = (a + b for a, b in zip(self.regret, regret, strict=True))
        return Streams(self.tasks + 1, self.rounds + rounds, self.loss + loss, (low, high))


class OpenTask:
    """One task being played: ``predict(x)``, then ``learn(x, y)``. Close it (or leave its
    ``with`` block) to learn across tasks.

    rounds: how many are expected; the step is D/(G·√rounds). Without it the step is D/(G·√i) in
    round i.

    The action is θ = s·(phi − eta·total), total the sum of gradients and s what keeps it in the
    ball. One product of the row with phi and total gives the margins of θ and of phi, and all
    that ‖θ‖ needs to follow. Rounds from several threads are played one after another."""

    def __init__(self, owner: Meta, rounds: int | None, name: Any):
        if rounds is not None and not (isinstance(rounds, (int, np.integer)) and rounds >= 1):
            what = f"rounds must be a positive integer, not {rounds!r}"
            raise FMRLError(what, fix="or leave it out")
        here, loss, phi = owner.coordinates_, owner._loss(), owner.state_.phi
        k, classes = loss.outputs, getattr(owner, "classes_", None)
        self.name, self.rounds, self.open = name, 0, True
        self._guard = threading.RLock()
        self.loss, self.loss_of_phi = 0.0, 0.0
        self._owner, self._coordinates, self._outputs = owner, here, k
        self._classes, self._features = classes, here.centre.size
        names = getattr(owner, "feature_names_in_", None)
        self._names = None if names is None else names.tolist()
        encoder = getattr(owner, "encoder_", None)
        self._plain = encoder is None or encoder.plain
        labels = None if classes is None else classes.tolist()
        self._place = None if labels is None else {label: i for i, label in enumerate(labels)}
        self._both = np.zeros((2 * k, here.width))  # phi above, total below
        self._both[:k] = phi.reshape(k, here.width)
        self._total = self._both[k:]
        self._radius, self._rate = float(here.domain.radius), owner.guess_ / owner.lipschitz_
        self._fixed = 0.0 if rounds is None else self._rate / math.sqrt(rounds)
        self._eta, self._shrink = 0.0, 1.0
        self._played = 0.0  # Σ ⟨∇_i, θ_i⟩
        # ‖phi‖², ⟨phi, total⟩, ‖total‖²
        self._phi2, self._cross, self._total2 = float(phi @ phi), 0.0, 0.0
        self._row = np.full(here.width, here.constant)
        self._head = self._row[: self._features]
        self._sums = tuple(self._total)  # a vector an output, in the same memory
        self._squares = _squares(owner.history_.algo.similarity, self._total)
        self._side: np.ndarray | None = None  # what is known of the task since its first row
        self._waits = looked(owner.history_.algo, self._row) is not None
        self._given: Any = None  # the row looked at last, in the user's units
        # The row predicted last, and what was found of it.
        self._seen: tuple[Any, bytes, list[float]] | None = None
        self._kept: deque[tuple[np.ndarray, float]] = deque(maxlen=KEPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        self.open = False

    def _look(self, x: Any) -> list[float]:
        """Margins of a row under phi, and its products with total."""
        if not self.open:
            raise FMRLError("this task is closed", fix="open another: estimator.task()")
        self._seen = None
        named = type(x) is not np.ndarray and self._names is not None and hasattr(x, "iloc")
        if named and list(x.index) != self._names:
            fix = f"give the columns in the order {', '.join(map(repr, self._names[:10]))}"
            raise FMRLError("a row has other columns than fit", round=self.rounds, fix=fix)
        self._given = x = x if self._plain else read_row(self._owner, x)
        try:
            fits = len(x) == self._features
            self._coordinates.features(x, self._head)
        except (TypeError, ValueError):
            what = f"a row is a vector of {self._features} numbers"
            raise FMRLError(what, round=self.rounds) from None
        if self._waits and fits and not self.rounds:
            self._begin()
        found = self._both.dot(self._row).tolist()
        if not (fits and math.isfinite(sum(found))):
            what = f"a row is a vector of {self._features} finite numbers"
            raise FMRLError(what, round=self.rounds, fix="drop or impute it")
        return found

    def _begin(self) -> None:
        """Start where the meta-update puts a task with this first row."""
        algo, state = self._owner.history_.algo, self._owner.state_
        self._side = looked(algo, self._row)
        if not np.isfinite(self._side).all():
            return
        phi = algo.meta.begin(algo.domain, state.phi, state.meta, self._side)
        self._both[: self._outputs] = phi.reshape(self._outputs, -1)
        self._phi2 = float(phi @ phi)

    def _margins(self, found: list[float]) -> list[float]:
        """Margins of θ."""
        k, eta, shrink = self._outputs, self._eta, self._shrink
        return [shrink * (found[c] - eta * found[k + c]) for c in range(k)]

    def predict(self, x: Any) -> Any:
        """The prediction for one row x [f], from what this task has taught so far."""
        with self._guard:
            found = self._look(x)
            if type(x) is np.ndarray:
                self._seen = (x, x.tobytes(), found)
            return self._answer(self._margins(found))

    def _answer(self, z: list[float]) -> Any:
        if self._classes is None:
            return self._coordinates.prediction(z[0])
        return self._classes[z.index(max(z)) if len(z) > 1 else int(z[0] > 0)]

    def predict_proba(self, x: Any) -> np.ndarray:
        """Class probabilities [classes] for one row."""
        if self._classes is None:
            raise FMRLError("a regressor has no probabilities", fix="use predict")
        with self._guard:
            z = self._margins(self._look(x))
        return probabilities(np.array([z]), len(self._classes))[0]

    def learn(self, x: Any, y: Any) -> float:
        """Play one round: suffer the loss of the present action on (x, y), return it, and move."""
        with self._guard:
            seen = self._seen
            if seen is not None and seen[0] is x and self.open and seen[1] == x.tobytes():
                return self._move(seen[2], y)  # predicted just now, and the same numbers still
            return self._move(self._look(x), y)

    def play(self, x: Any, y: Any) -> Any:
        """One whole round: the prediction for x, made before y is looked at; then learn from y."""
        with self._guard:
            found = self._look(x)
            answer = self._answer(self._margins(found))
            self._move(found, y)
            return answer

    def _move(self, found: list[float], y: Any) -> float:
        """Suffer, and move against the gradient slope ⊗ row. One loop over the outputs, because
        this is where the time goes.
        """
        if self._place is None:
            return self._regress(found, y)
        try:
            place = self._place.get(y)
        except TypeError:  # an array or a list
            place = None
        if place is None:
            known = list(self._place)[:10]
            raise FMRLError(f"the label {y!r} is not one of the classes {known}", round=self.rounds)
        self._kept.append((np.array(self._given, dtype=np.float64), place))
        k, eta, shrink = self._outputs, self._eta, self._shrink
        own = 0 if k == 1 else place
        truth = place if k == 1 else 1  # of output ``own``; the others have 0
        slopes, loss, base, played, cross, change, square = [], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for c in range(k):
            under_phi, under_total = found[c], found[k + c]
            z = shrink * (under_phi - eta * under_total)
            if z >= 0:  # sigmoid and softplus of one margin from one exponential
                e = exp(-z)
                g = 1 / (1 + e)
                loss += z + log1p(e)
            else:
                e = exp(z)
                g = e / (1 + e)
                loss += log1p(e)
            base += under_phi + log1p(exp(-under_phi)) if under_phi >= 0 else log1p(exp(under_phi))
            if c == own:
                g -= truth
                loss -= truth * z
                base -= truth * under_phi
            slopes.append(g)
            played += g * z
            cross += g * under_phi
            change += g * under_total
            square += g * g
        self.loss_of_phi += base
        self._follow(slopes, loss, played, cross, 2 * change, square)
        return loss

    def _regress(self, found: list[float], y: Any) -> float:
        """``_move`` for the squared loss."""
        try:
            target = self._coordinates.target(float(y))
        except (TypeError, ValueError):
            raise FMRLError(f"y is {y!r}", round=self.rounds, fix="give a finite number") from None
        z = self._shrink * (found[0] - self._eta * found[1])
        g, off = z - target, found[0] - target
        # A NaN is between no two numbers.
        near = -FAR < g < FAR and -FAR < off < FAR
        if not (near and -FAR < found[0] < FAR and -FAR < found[1] < FAR):
            if not math.isfinite(target):
                raise FMRLError(f"y is {y!r}", round=self.rounds, fix="give a finite number")
            what = f"a prediction or y is more than {FAR:g} of fit's units away"
            raise FMRLError(what, round=self.rounds, fix="scale x and y as in fit")
        self._kept.append((np.array(self._given, dtype=np.float64), float(y)))
        self.loss_of_phi += off * off / 2
        self._follow([g], g * g / 2, g * z, g * found[0], 2 * g * found[1], g * g)
        return g * g / 2

    def _follow(
        self, slopes: list[float], loss: float, played: float, cross: float, change: float,
        square: float,
    ) -> None:  # fmt: skip
        """Add the gradient to total, and keep ‖θ‖ = ‖phi − eta·total‖ in the ball by numbers
        already at hand.
        """
        row = self._row
        self.loss += loss
        self.rounds += 1
        self._played += played
        self._cross += cross
        self._total2 += change + square * ddot(row, row)
        for total, slope in zip(self._sums, slopes, strict=True):
            daxpy(row, total, a=slope)  # total += slope·row, in place
        if self._squares is not None:
            self._squares += np.outer(slopes, row) ** 2
        self._seen = None
        self._eta = eta = self._fixed or self._rate / sqrt(self.rounds)
        size = sqrt(max(self._phi2 - 2 * eta * self._cross + eta * eta * self._total2, 0.0))
        self._shrink = self._radius / size if size > self._radius else 1.0

    @property
    def rows(self) -> Tasks:
        """Its latest rows as a task in the user's units."""
        rows, y = zip(*self._kept, strict=True)
        X, y = np.concatenate(rows).reshape(len(rows), -1), np.array(y)
        one = grouped(self._owner._loss(), X, y, None, None)
        one.names[0] = self.name  # type: ignore[index]
        return one

    @property
    def phi(self) -> np.ndarray:
        """Where the task started [d], in the estimator's coordinates."""
        return self._both[: self._outputs].ravel()

    @property
    def theta(self) -> np.ndarray:
        """The present action [d], in the estimator's coordinates."""
        theta = (self._both[: self._outputs] - self._eta * self._total).ravel()
        size = float(np.sqrt(theta @ theta))
        return theta * (self._radius / size) if size > self._radius else theta

    @property
    def regret(self) -> tuple[float, float]:
        """An interval that holds the regret of predict-then-learn so far, against the best fixed
        model of the ball.
        """
        low = self.loss - self.loss_of_phi
        return low, max(low, self._played + self._radius * float(np.sqrt((self._total**2).sum())))

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


def _squares(rule: Any, like: np.ndarray) -> np.ndarray | None:
    """Where a stream adds up squared gradients, if the similarity rule asks for them."""
    observes = getattr(rule, "observes", None)
    if observes not in (None, "norms", "squares"):
        what = f"a stream keeps no more than sums of squares, and {rule!r} asks for more"
        raise FMRLError(what, fix="give whole tasks to partial_fit, or use PerCoordinate")
    return None if observes is None else np.zeros_like(like)
