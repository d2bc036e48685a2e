"""Streams: one task whose rows come one at a time.

After k rows a stream predicts what the model of `adapt` on these rows predicts. Numbers are updated
row by row (the Kalman filter: for a row x with target y and each Gaussian N(m, C) of the prior,

    v = xᵀCx + noise,   m ← m + Cx·(y − xᵀm)/v,   C ← C − Cx·xᵀC/v),

and solved again from all rows where that would lose digits. Classes are solved again at the next
prediction after a row was learned.
"""

from __future__ import annotations

import math
import threading
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.prior.mixture import Posterior
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.prior import Margins
from fmrl.estimators.rows import drop_unit_weights
from fmrl.tables.read import read_row
from fmrl.tables.targets import encode_targets, refuse_huge, refuse_overflow

if TYPE_CHECKING:
    from fmrl.estimators.meta import Meta

MAX_UPDATED_COLUMNS = 64  # of more columns, solving from the rows again is cheaper
MAX_INFORMATION = 1e6  # prior variance over noise beyond which updates would lose digits


class Row(NamedTuple):
    """A row that a stream has."""

    x: np.ndarray  # [width] in the prior's coordinates, as are
    target: np.ndarray  # [outputs]
    weight: float
    mass: float  # of this row and those before it
    given: tuple[np.ndarray, float] | None  # x and y in the user's units; None if the task had it


class FilterState(NamedTuple):
    """What so many rows say of every Gaussian of a prior, P in all."""

    count: int
    mean: np.ndarray  # [P, w]
    spread: np.ndarray  # [P, w, w]
    evidence: np.ndarray  # [P] log shares


class TaskStream:
    """One open task: ``predict(x)``, then ``learn(x, y)``. `close` it, or leave its ``with`` block,
    to give its rows to the estimator.

    Made by ``estimator.stream(task)``. Several threads may use one stream.

    >>> import numpy as np, fmrl
    >>> rng = np.random.default_rng(0)
    >>> task, X = np.repeat(np.arange(30), 8), rng.normal(size=(240, 2))
    >>> y = X[:, 0] + rng.normal(size=30)[task] + 0.1 * rng.normal(size=240)
    >>> reg = fmrl.MetaRegressor().fit(X, y, task=task)
    >>> with reg.stream("new") as stream:
    ...     stream.learn([0.0, 1.0], 2.0)
    ...     after = stream.predict([0.0, 0.0])
    >>> same = reg.adapt([[0.0, 1.0]], [2.0]).predict([[0.0, 0.0]])[0]
    >>> bool(abs(after - same) < 1e-9), "new" in reg.tasks_
    (True, True)
    """

    def __init__(self, owner: Meta, name: Any, known: Tasks | None):
        self.name, self.open = name, True
        self._owner, self._prior, self._known_rows = owner, owner._prior, owner._rows
        self._guard = threading.Lock()
        classes = self._prior.classes
        self._place = None if classes is None else {c: i for i, c in enumerate(classes.tolist())}
        encoder = getattr(owner, "encoder_", None)
        plain = encoder is None or encoder.plain
        # The order of the features, where rows of numbers need no encoding.
        self._names = owner.get_feature_names_out().tolist() if plain else None
        # A row is learned by one append, and what follows from rows is replaced as a whole: a call
        # that is interrupted leaves a stream that fits its rows.
        self._rows: list[Row] = [] if known is None else self._rows_of_task(known)
        self._began = len(self._rows)
        self._model: tuple[int, Posterior] | None = None  # of so many rows

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"TaskStream(name={self.name!r}, {state}, {self.rounds} rows)"

    def __reduce_ex__(self, protocol: Any) -> Any:
        fix = "close it first" if self.open else "its rows are in the estimator: pickle that"
        raise FMRLError("a stream cannot be pickled or copied", fix=fix)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        self.open = False

    @property
    def rounds(self) -> int:
        """How many rows were learned since it was opened."""
        return len(self._rows) - self._began

    def predict(self, x: Any) -> Any:
        """The prediction for one row: a number, or the most probable class.

        Args:
            x: The row: a vector [f], a mapping from column names, or a row of a data frame.
        """
        with self._guard:
            found = self._margins(self._read(x), spread=False)
            if self._place is None:
                return float(self._prior.numbers(found)[0])
            return self._prior.labels(found).tolist()[0]

    def predict_proba(self, x: Any) -> np.ndarray:
        """Class probabilities [classes] for one row.

        Args:
            x: The row: a vector [f], a mapping from column names, or a row of a data frame.
        """
        if self._place is None:
            raise FMRLError("a regressor has no probabilities", fix="use predict")
        with self._guard:
            return self._prior.chances(self._margins(self._read(x), spread=True))[0]

    def predict_interval(self, x: Any, level: float = 0.9) -> np.ndarray:
        """The ends [2] of an interval that holds y of one row with probability ``level``.

        Args:
            x: The row: a vector [f], a mapping from column names, or a row of a data frame.
            level: The share of rows to be covered.
        """
        if self._place is not None:
            raise FMRLError("a classifier has no intervals", fix="use predict_proba")
        with self._guard:
            return self._prior.intervals(self._margins(self._read(x), spread=True), level)[0]

    def learn(self, x: Any, y: Any, sample_weight: float = 1.0) -> None:
        """Learn one row.

        Args:
            x: The row: a vector [f], a mapping from column names, or a row of a data frame.
            y: Its label or number.
            sample_weight: How much it counts.
        """
        with self._guard:
            row = self._read(x)
            y = self._target(y)
            if not 0 <= sample_weight < math.inf:
                raise FMRLError(f"sample_weight is {sample_weight}, not a number of at least 0")
            if sample_weight == 0:
                return
            here, target = self._prior.rows(row[None])[0], self._scaled_target(y)
            weight = float(sample_weight)
            self._rows.append(Row(here, target, weight, self._mass + weight, (row, y)))

    def close(self) -> None:
        """End the stream: its rows are given to the task, if it has a name."""
        with self._owner._lock, self._guard:
            if not self.open:
                return
            if self.name is not None and self.rounds:
                self._refuse_after_fit()
                self._owner._add_rows(self._new_rows())
            self.open = False

    def _refuse_after_fit(self) -> None:
        """A new fit may have read other columns; relearning keeps them."""
        if self._owner._rows is not self._known_rows:
            what = "the estimator was fitted anew while this stream was open"
            raise FMRLError(what, fix="open it again")

    def _new_rows(self) -> Tasks:
        """The rows learned since it was opened, as a task in the user's units."""
        rows, loss = self._rows[self._began :], self._prior.loss
        X = np.array([row.given[0] for row in rows])  # type: ignore[index]
        y = encode_targets(np.array([row.given[1] for row in rows]), loss)  # type: ignore[index]
        return _one_task(loss, X, y, [row.weight for row in rows], self.name)

    def _read(self, x: Any) -> np.ndarray:
        """A row as numbers [f], its gaps filled."""
        if not self.open:
            raise FMRLError("this stream is closed", fix="open another: estimator.stream(task)")
        self._refuse_after_fit()
        try:
            row = self._as_numbers(x)
            if row is None or not math.isfinite(row.sum()):
                row = read_row(self._owner, x)
        except (TypeError, ValueError) as error:
            if isinstance(error, FMRLError):
                raise
            what = f"a row is a vector of {self._owner.n_features_in_} finite numbers"
            raise FMRLError(what, round=self.rounds, fix="give the columns of fit") from None
        refuse_huge(row)
        return row

    def _as_numbers(self, x: Any) -> np.ndarray | None:
        """A row of numbers that needs no reading, copied; None for any other."""
        names = self._names
        if names is None or type(x) not in (np.ndarray, list, tuple, dict):
            return None
        if type(x) is dict:
            x = [x[name] for name in names if name in x]
        row = np.array(x)
        if row.shape != (len(names),) or row.dtype.kind not in "iuf":
            return None
        return row.astype(np.float64, copy=False)

    def _target(self, y: Any) -> float:
        """A label as its position, or a number."""
        y = y.item() if isinstance(y, np.generic) else y
        if self._place is not None:
            try:
                return float(self._place[y])
            except (KeyError, TypeError):
                what = f"the label {y!r} is not one of the classes {list(self._place)[:10]}"
                raise FMRLError(what, round=self.rounds) from None
        if not isinstance(y, Real) or not math.isfinite(y):
            raise FMRLError(f"y is {y!r}", round=self.rounds, fix="give a finite number")
        refuse_huge(np.array([float(y)]))
        return float(y)

    @property
    def _mass(self) -> float:
        """How many rows the task counts for."""
        return self._rows[-1].mass if self._rows else 0.0

    def _scaled_target(self, y: float) -> np.ndarray:
        """A target [outputs] in the prior's coordinates."""
        loss = self._prior.loss
        if isinstance(loss, Squared):
            return np.array([self._prior.coordinates.target(y)])
        return encode_targets(np.array([y]), loss)[0]

    def _rows_of_task(self, known: Tasks) -> list[Row]:
        """The rows that the task has, from the user's units."""
        rows, target = self._prior.rows(known.X), known.target
        if isinstance(self._prior.loss, Squared):
            target = self._prior.coordinates.target(target)
        heavy = np.ones(len(rows)) if known.weight is None else np.asarray(known.weight)
        given = zip(rows, target, heavy.tolist(), heavy.cumsum().tolist(), strict=True)
        return [Row(*row, None) for row in given]

    def _margins(self, x: np.ndarray, spread: bool) -> Margins:
        """Margins of one row, and their variance."""
        row = self._prior.rows(x[None])[0]
        if self._model is None or self._model[0] != len(self._rows):
            self._model = len(self._rows), self._solve()
        theta, wide = self._model[1]
        variance = np.maximum((wide[0] @ row) @ row, 0.0)[None] if spread else None  # type: ignore[index]
        return self._finite_margins((theta[0] @ row)[None], variance)

    def _finite_margins(self, z: np.ndarray, variance: np.ndarray | None) -> Margins:
        """Margins [1, outputs] by the rule for as many rows, if they are finite."""
        if not math.isfinite(z.sum()):
            refuse_overflow(z, variance)
        return Margins(z, variance, self._prior.rule.choices.index(self._prior.rule.at(self._mass)))

    def _solve(self) -> Posterior:
        """The posterior of all rows."""
        if not self._rows:
            return self._prior.middle()
        X, target, weights, *_ = zip(*self._rows, strict=True)
        task = _one_task(self._prior.loss, np.array(X), np.array(target), weights, None)
        return self._prior.solve(task, spread=True)


class NumberStream(TaskStream):
    """A stream of a regression, updated row by row."""

    def __init__(self, owner: Meta, name: Any, known: Tasks | None):
        super().__init__(owner, name, known)
        weights = np.array([choice.weights for choice in self._prior.rule.choices])
        self._used = np.flatnonzero(weights.any(axis=0))  # members that have a say
        members = [self._prior.members[i] for i in self._used]
        pairs = [(m, c) for m in members for c in range(len(m.mean))]
        self._owners = np.array([i for i, m in enumerate(members) for _ in m.mean])
        self._noise = np.array([m.noise for m, _ in pairs])
        self._begins = np.flatnonzero(np.diff(self._owners, prepend=-1))
        self._several = len(pairs) > len(members)
        mean = np.stack([m.mean[c, 0] for m, c in pairs])
        spread = np.stack([m.covariance for m, _ in pairs])
        shares = np.concatenate([np.log(np.maximum(m.shares, 1e-300)) for m in members])
        self._state: FilterState | None = FilterState(0, mean, spread, shares)

    def _filter_state(self) -> FilterState | None:
        """What all rows say; None if that has to be solved."""
        while self._state is not None and self._state.count < len(self._rows):
            self._state = self._filter_step(self._state, self._rows[self._state.count])
        return self._state

    def _filter_step(self, state: FilterState, row: Row) -> FilterState | None:
        """One step of the Kalman filter, for all Gaussians at once; None if it loses digits."""
        along = state.spread @ row.x  # [P, w]
        own, noise = along @ row.x, self._noise / row.weight
        if (own > MAX_INFORMATION * noise).any():
            return None
        v, off = own + noise, float(row.target[0]) - state.mean @ row.x
        evidence = state.evidence
        if self._several:
            evidence = evidence - (np.log(v) + off * off / v) / 2
        mean = state.mean + along * (off / v)[:, None]
        spread = state.spread - along[:, :, None] * (along / v[:, None])[:, None, :]
        return FilterState(state.count + 1, mean, spread, evidence)

    def _margins(self, x, spread):
        if (state := self._filter_state()) is None:
            return super()._margins(x, spread)
        row, choice = self._prior.rows(x[None])[0], self._prior.rule.at(self._mass)
        share = np.array(choice.weights)[self._used]
        if self._several:  # of a member, every centre counts by how likely it makes the rows
            most = np.maximum.reduceat(state.evidence, self._begins)[self._owners]
            own = np.exp(state.evidence - most)
            share = share[self._owners] * own / np.add.reduceat(own, self._begins)[self._owners]
        each = state.mean @ row
        z, variance = share @ each, None
        if spread:
            own = np.maximum((state.spread @ row) @ row, 0.0)
            variance = np.array([[share @ (own + (each - z) ** 2)]])
        return self._finite_margins(np.array([[z]]), variance)


def _one_task(loss: Any, X: np.ndarray, target: np.ndarray, weights: Any, name: Any) -> Tasks:
    """Rows of one task as a value."""
    return drop_unit_weights(
        Tasks(loss, X, target, np.array([0, len(X)]), [name], np.array(weights))
    )
