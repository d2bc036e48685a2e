"""What the streams of an estimator share: where they begin, how a row of any kind is read, and
which rows are refused.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from fmrl.core.meta_level import looked
from fmrl.errors import FMRLError
from fmrl.tables.any_table import from_array
from fmrl.tables.kinds import is_gap
from fmrl.tables.read import read_row
from fmrl.tables.targets import ROUNDING_RANGE, as_numpy

if TYPE_CHECKING:
    from fmrl.estimators.base import Meta


class Setting:
    """What the tasks of an estimator have in common: made when the first of them is opened, because
    a short task takes little longer than all this.
    """

    kind: Any  # of task: two classes, more, or numbers

    def __init__(self, owner: Meta):
        self.coordinates = here = owner.coordinates_
        self.algo, self.lipschitz = owner.history_.algo, owner.lipschitz_
        self.outputs = owner.state_.phi.size // here.width
        names, self.encoder = (getattr(owner, n, None) for n in ("feature_names_in_", "encoder_"))
        self.names = None if names is None else names.tolist()
        self.shape, plain = here.centre.shape, self.encoder is None or self.encoder.plain
        self.plain = self.shape if plain else None  # of rows that need no encoding
        self.labels = tuple(getattr(owner, "classes_", np.array([])).tolist())
        self.binary, self.single = len(self.labels) == 2, len(self.labels) in (0, 2)
        # What a round and the rows kept call a label: of two, the sign of its margin.
        numbers = (-1.0, 1.0) if self.binary else range(len(self.labels))
        self.place = dict(zip(self.labels, numbers, strict=True))
        self.radius2, self.far2 = here.reach**2, (ROUNDING_RANGE * here.length) ** 2
        # A row is what this becomes when x is added to it; or what ``scaled`` writes into it.
        self.origin = np.full(here.width, here.constant)
        self.scaled = None if here.only_centred else here.features
        self.waits = looked(self.algo, self.origin) is not None
        self.origin[: self.shape[0]] = -here.centre
        rule = self.algo.similarity
        # The guess of most rules is a distance D, and the step D/G for one row.
        self.per_step = 1.0 if getattr(rule, "absolute", False) else self.lipschitz
        self.observes = getattr(rule, "observes", None)
        if self.observes not in (None, "norms", "squares"):
            what = f"a stream keeps no more than sums of squares, and {rule!r} asks for more"
            raise FMRLError(what, fix="give whole tasks to partial_fit, or use PerCoordinate")

    def read(self, owner: Meta, x: Any, round: int) -> np.ndarray:
        """A row of any kind as numbers."""
        x = as_numpy(x)
        if hasattr(x, "columns"):
            fix = "give frame.iloc[0] or frame.row(0, named=True), or many rows to learn_many"
            raise FMRLError("a stream takes a row, not a table", round=round, fix=fix)
        named = type(x) is not np.ndarray and self.names is not None and hasattr(x, "iloc")
        if named and list(x.index) != self.names:
            x = self._by_name(x, round)
        row = numbers(read_row(owner, x))
        if row is None or row.shape != self.shape:
            what = f"a row is a vector of {self.shape[0]} numbers"
            raise FMRLError(what, round=round)
        return row

    def _by_name(self, x: Any, round: int) -> dict[str, Any]:
        """A row of a frame that also has the task, or lacks ids that fit left out, as for
        `predict`.
        """
        task, free = (self.encoder.task, self.encoder.left_out) if self.encoder else (None, ())
        found = dict(zip(x.index, x, strict=True))
        wanted = [n for n in self.names or () if n in found or n not in free]
        if [n for n in x.index if n != task] != wanted:
            fix = f"give the columns in the order {', '.join(map(repr, wanted[:10]))}"
            raise FMRLError("a row has other columns than fit", round=round, fix=fix)
        return found

    def filled(self, x: np.ndarray, round: int) -> np.ndarray:
        """A row that cannot be played with its gaps filled, as `predict` of the estimator does."""
        encoder, finite = self.encoder, np.isfinite(x)
        if self.plain and encoder is not None and np.isnan(x[~finite]).all() and not finite.all():
            return encoder.transform(from_array(x[None], encoder.inputs))[0]
        what, fix = f"a row is a vector of {x.size} finite numbers", "drop or impute it"
        if finite.all():
            what, fix = (
                f"a row is more than {ROUNDING_RANGE:g} of fit's units away",
                "scale x and y as in fit",
            )
        raise FMRLError(what, round=round, fix=fix)


def numbers(x: Any) -> np.ndarray | None:
    """A row of numbers of any kind as a new array, its gaps as NaN; None if it is something else.

    >>> numbers((1, None, True)), numbers(["1"])
    (array([ 1., nan,  1.]), None)
    """
    try:
        if getattr(getattr(x, "dtype", np.dtype(object)), "kind", "") == "O":
            # A list, or a row of a frame with columns of several kinds.
            x = [math.nan if is_gap(v) else v for v in x]
            real = all(isinstance(v, (Real, np.bool_)) for v in x)
            return np.array([*map(float, x)]) if real else None
        row = np.empty(np.shape(x))
        np.subtract(x, 0.0, row)  # text and complex numbers raise
        return row
    except (TypeError, ValueError):
        return None
