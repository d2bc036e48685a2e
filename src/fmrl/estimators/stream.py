"""Streaming: tasks whose rows come one at a time, many tasks open at once.

Inside a task the learner is lazy OMD from phi (Algorithm 2's choice). When a task closes, its
last action moves phi and the guess (FLI-Online), and its latest rows say what every task's rows
say about the prior. Regret is bracketed without an optimum: convexity gives

    Σ ℓ_i(θ_i) − Σ ℓ_i(phi)  ≤  regret  ≤  Σ ⟨∇_i, θ_i⟩ + R·‖Σ ∇_i‖       (R: the ball's radius).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain
from math import exp, log1p, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy import ndarray
from scipy.linalg.blas import daxpy, dcopy, ddot

from fmrl.core.meta_level import looked
from fmrl.core.metric import mean_step
from fmrl.core.rules.meta import End
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.averaging import probabilities
from fmrl.estimators.stream_setting import Setting
from fmrl.tables.targets import encode_targets

if TYPE_CHECKING:
    from fmrl.estimators.base import Meta

DOUBLE = np.dtype(np.float64)
HIGH = 700.0  # of a margin: beyond, its exponential could overflow, and softplus is linear
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
        "__weakref__", "_binary", "_cross", "_eta", "_far2", "_fixed", "_found", "_given",
        "_kept", "_labels", "_origin", "_owner", "_phi", "_phi2", "_place", "_plain", "_played",
        "_radius2", "_rate", "_raw", "_row", "_scaled", "_setting", "_shrink", "_side", "_single",
        "_squares", "_total", "_total2", "_turn", "_waits", "loss", "loss_of_phi",
        "name", "open", "rounds",
    )  # fmt: skip

    def __init__(self, owner: Meta, setting: Setting, rounds: int | None, name: Any):
        if rounds is not None and not (isinstance(rounds, (int, np.integer)) and rounds >= 1):
            what = f"rounds must be a positive integer, not {rounds!r}"
            raise FMRLError(what, fix="or leave it out")
        self.name, self.rounds, self.open = name, 0, True
        self._owner, self._setting, self._turn = owner, setting, [True]
        self._plain, self._origin, self._scaled = setting.plain, setting.origin, setting.scaled
        self._far2, self._radius2, self._waits = setting.far2, setting.radius2, setting.waits
        self._binary, self._labels, self._place = setting.binary, setting.labels, setting.place
        self._single = setting.single
        state = owner.state_
        self._rate = mean_step(state.guess) / setting.per_step
        self._eta = self._fixed = 0.0 if rounds is None else self._rate / sqrt(rounds)
        self._shrink = 1.0
        self._row = setting.origin.copy()  # that was looked at last
        # Σ ⟨∇_i, θ_i⟩, ⟨phi, total⟩ and ‖total‖²
        self.loss = self.loss_of_phi = self._played = self._cross = self._total2 = 0.0
        self._start(state.phi)
        self._squares = None if setting.observes is None else np.zeros_like(self._total)
        self._side: np.ndarray | None = None  # what is known of the task since its first row
        # The row looked at last (``_found`` is of it), unless something was learned since.
        self._given: ndarray | None = None
        self._raw: bytes | None = None
        self._kept: deque[tuple[Any, float]] = deque(maxlen=KEPT)  # rows, and their targets

    def _start(self, phi: np.ndarray) -> None:
        """Begin at phi [d]."""
        self._phi, self._phi2, self._total = phi, ddot(phi, phi), np.zeros(phi.size)

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"OpenTask(name={self.name!r}, {state}, {self.rounds} rounds)"

    def __reduce_ex__(self, protocol: Any) -> Any:
        fix = "close it first" if self.open else "what it taught is in its estimator: pickle that"
        raise FMRLError("a stream cannot be pickled or copied", fix=fix)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        self.open = False

    def _look(self, x: Any) -> Sequence[Any]:
        """What a round needs of a row: margins of θ, products with phi and with total, and the
        row's square.
        """
        if not self.open:
            raise FMRLError("this task is closed", fix="open another: estimator.task()")
        given = x
        if not (type(x) is ndarray and x.dtype is DOUBLE and x.shape == self._plain):
            given, x = None, self._setting.read(self._owner, x, self.rounds)
        raw = x.tobytes()  # a copy: the user may use one buffer for all rows
        if raw == self._raw:
            return self._found
        self._raw = None
        row = self._row
        if self._scaled is None:  # x − centre, by the quickest calls there are
            dcopy(self._origin, row)
            daxpy(x, row)
        else:
            self._scaled(x, row[: x.size])
        if self._waits and not self.rounds:
            self._begin()
        if self._single:  # here and not in a method, of which the call would cost as much
            under_phi, under_total = ddot(self._phi, row), ddot(self._total, row)
            z = self._shrink * (under_phi - self._eta * under_total)
            found = z, under_phi, under_total, ddot(row, row)
        else:
            found = self._products()
        if not found[3] < self._far2:  # NaN is not
            return self._look(self._setting.filled(x, self.rounds))
        self._given, self._raw, self._found = given, raw, found
        return found

    def _begin(self) -> None:
        """Start where the meta-update puts a task with this first row."""
        algo, state = self._setting.algo, self._owner._state  # nobody may wait for a lock here
        self._side = looked(algo, self._row)
        if np.isfinite(self._side).all():
            self._start(algo.meta.begin(algo.domain, state.phi, state.meta, self._side))

    # Threads take turns: it is that of the thread which took the one entry out of ``_turn``. Alone,
    # that takes a fifth of the time of a lock; and ``del`` cannot be interrupted as a call can.

    def predict(self, x: Any) -> Any:
        """The prediction for one row x [f], from what this task has taught so far."""
        turn = self._turn
        try:
            del turn[0]
        except IndexError:
            _wait(turn)
        try:
            z = self._look(x)[0]
            return self._labels[z > 0] if self._binary else self._answer(z)
        finally:
            turn.append(True)

    def predict_proba(self, x: Any) -> np.ndarray:
        """Class probabilities [classes] for one row."""
        if not self._labels:
            raise FMRLError("a regressor has no probabilities", fix="use predict")
        z = np.array(self._alone(partial(self._look, x))[0]).reshape(1, -1)
        return probabilities(z, len(self._labels))[0]

    def learn(self, x: Any, y: Any) -> float:
        """Play one round: suffer the loss of the present action on (x, y), return it, and move."""
        turn = self._turn
        try:
            del turn[0]
        except IndexError:
            _wait(turn)
        try:
            same = x is self._given and self.open and x.tobytes() == self._raw  # after `predict`
            return self._move(self._found if same else self._look(x), y)
        except BaseException:
            self._mend()
            raise
        finally:
            turn.append(True)

    def play(self, x: Any, y: Any) -> Any:
        """One whole round: the prediction for x, made before y is looked at; then learn from y."""
        turn = self._turn
        try:
            del turn[0]
        except IndexError:
            _wait(turn)
        try:
            found = self._look(x)
            z = found[0]
            answer = self._labels[z > 0] if self._binary else self._answer(z)
            self._move(found, y)
            return answer
        except BaseException:
            self._mend()
            raise
        finally:
            turn.append(True)

    def _move(self, found: Sequence[Any], y: Any) -> float:
        """Suffer, move against the gradient, and keep ‖θ‖ = ‖phi − eta·total‖ in the ball by
        numbers already at hand.
        """
        if self._binary:  # `stream_kinds` has the others
            try:
                target = self._place[y]
            except (KeyError, TypeError):
                raise self._unknown(y) from None
            z, under_phi, under_total, square = found
            right, base = target * z, target * under_phi  # the label's own margins
            if right > -HIGH:  # sigmoid and softplus from one exponential
                e = exp(-right)
                g, loss = -target * e / (1 + e), log1p(e)
            else:
                g, loss = -target, -right
            base = log1p(exp(-base)) if base > -HIGH else -base
            played, cross, change = g * z, g * under_phi, g * (2 * under_total + g * square)
            daxpy(self._row, self._total, None, g)  # total += g·row, in place
            if self._squares is not None:
                self._squares += (g * self._row) ** 2
        else:
            target, loss, base, played, cross, change = self._suffer(found, y)
        self._kept.append((self._raw, target))
        self._raw = None
        self.rounds = rounds = self.rounds + 1
        self.loss += loss
        self.loss_of_phi += base
        self._played += played
        self._cross = cross = self._cross + cross
        self._total2 = total2 = self._total2 + change
        eta = self._fixed
        if not eta:
            self._eta = eta = self._rate / sqrt(rounds)
        size = self._phi2 + eta * (eta * total2 - 2 * cross)
        self._shrink = 1.0 if size <= self._radius2 else sqrt(self._radius2 / size)
        return loss

    def _mend(self) -> None:
        """What follows from the sum of gradients, after a round that Ctrl-C may have stopped."""
        self._cross, self._total2 = ddot(self._phi, self._total), ddot(self._total, self._total)
        size = self._phi2 + self._eta * (self._eta * self._total2 - 2 * self._cross)
        self._shrink = 1.0 if size <= self._radius2 else sqrt(self._radius2 / size)
        self._raw = None

    def _alone(self, call: Callable[[], Any]) -> Any:
        """Something that must not be asked in the middle of another thread's round."""
        _wait(self._turn)
        try:
            return call()
        finally:
            self._turn.append(True)

    def _unknown(self, y: Any) -> FMRLError:
        what = f"the label {y!r} is not one of the classes {list(self._place)[:10]}"
        return FMRLError(what, round=self.rounds)

    @property
    def rows(self) -> Tasks:
        """Its latest rows as a task in the user's units."""
        return self._alone(partial(rows_of, [self]))

    @property
    def phi(self) -> np.ndarray:
        """Where the task started [d], in the estimator's coordinates."""
        return self._phi.copy()  # the estimator's own, which nobody may write to

    @property
    def theta(self) -> np.ndarray:
        """The present action [d], in the estimator's coordinates."""
        return self._alone(self._action)

    def _action(self) -> np.ndarray:
        theta = daxpy(self._total, self._phi.copy(), None, -self._eta)
        size, radius = sqrt(ddot(theta, theta)), self._setting.coordinates.reach
        return theta * (radius / size) if size > radius else theta

    @property
    def regret(self) -> tuple[float, float]:
        """An interval that holds the regret of predict-then-learn so far, against the best fixed
        model of the ball.
        """
        return self._alone(self._bracket)

    def _bracket(self) -> tuple[float, float]:
        low, total = self.loss - self.loss_of_phi, self._total
        return low, max(low, self._played + sqrt(self._radius2 * ddot(total, total)))

    def close(self) -> None:
        """End the task: its last action moves phi and the guess. A task without rounds leaves no
        trace.
        """
        # The owner's lock first: its `_close` needs it too, and two orders could wait for ever.
        with self._owner._lock:
            _wait(self._turn)
            try:
                self._end()
            finally:
                self.open = False
                self._turn.append(True)

    def _end(self) -> None:
        if not self.open:
            return
        setting = self._setting
        if getattr(self._owner, "coordinates_", None) is not setting.coordinates:
            what = "the estimator was fitted anew while this task was open"
            raise FMRLError(what, fix="open it again")
        if self.rounds:
            theta, sigma = self._action(), np.float64(setting.lipschitz * sqrt(self.rounds))
            seen = self._squares
            if setting.observes == "norms":
                seen = seen.sum(keepdims=True)  # type: ignore[union-attr]
            self._owner._close(self, End(theta, theta, sigma, seen, self._side))


def rows_of(streams: Sequence[OpenTask]) -> Tasks:
    """The latest rows of streams of one estimator, as tasks in the user's units."""
    setting, loss = streams[0]._setting, streams[0]._owner._loss()
    kept = list(chain.from_iterable([stream._kept for stream in streams]))
    X = np.frombuffer(bytearray().join([raw for raw, _ in kept])).reshape(-1, setting.shape[0])
    y = np.array([target for _, target in kept], dtype=float)
    starts = np.array([0, *accumulate([len(stream._kept) for stream in streams])])
    y = encode_targets(y > 0 if setting.binary else y, loss)
    return Tasks(loss, X, y, starts, [stream.name for stream in streams])


def _wait(turn: list[bool]) -> None:
    """Take a turn when there is one."""
    while True:
        try:
            del turn[0]
            return
        except IndexError:
            time.sleep(0)  # lets the thread run that has it
