"""Models of many tasks at once: those that were asked for, and those that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fmrl.core.tasks import Tasks
from fmrl.estimators.rows import lookup


class TaskModels(Mapping):
    """Models of many tasks by name, from `adapt_many`: a mapping, and all of them as arrays.

    A model is made when it is asked for.
    """

    def __init__(self, owner: Any, tasks: Tasks):
        self._model, self._tasks = owner._model_of, tasks
        self._places = {name: i for i, name in enumerate(tasks.names)}
        self.prior = owner.prior_
        coef, intercept = self.prior.models(tasks)
        one = self.prior.classes is None
        coef = coef[..., : self.prior.features]
        self.coef_ = coef[:, 0] if one else coef
        self.intercept_ = intercept[:, 0] if one else intercept

    def __getitem__(self, name: Any) -> Any:
        place = self._places[name.item() if isinstance(name, np.generic) else name]
        return self._model(self._tasks.take(np.array([place])), self.prior)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"TaskModels({len(self)} tasks, coef_ {self.coef_.shape})"


class Thetas:
    """Models that were asked for, until their tasks get more rows.

    Args:
        most: How many numbers are kept; None for all.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most, self._slots = most, {}
        self._values, self._valid = np.zeros((0, 0, 0)), np.zeros(0, dtype=bool)

    @property
    def nbytes(self) -> int:
        """What they take in memory."""
        return self._values.nbytes + self._valid.nbytes

    def find(self, names: Sequence[Any]) -> np.ndarray:
        """Where the models of these tasks are, [T]; −1 where there is none."""
        slots = lookup(self._slots, names)
        if len(self._valid):
            slots[~self._valid[slots]] = -1
        return slots

    def at(self, slots: np.ndarray) -> np.ndarray:
        """The models [T, outputs, width] in some slots."""
        return self._values[slots]

    def put(self, names: Sequence[Any], found: np.ndarray) -> None:
        """Keep models [T, outputs, width]; all others go where they would be too many."""
        size = max(found[:1].size, 1)
        if self.most is not None and (len(self._slots) + len(names)) * size > self.most:
            self.__init__(self.most)
            names, found = names[: self.most // size], found[: self.most // size]
        slots = lookup(self._slots, names)
        new = np.flatnonzero(slots < 0)
        first, last = len(self._slots), len(self._slots) + len(new)
        if last > len(self._values):
            room = max(last, 2 * len(self._values))
            values, valid = np.empty((room, *found.shape[1:])), np.zeros(room, dtype=bool)
            if first:
                values[:first], valid[:first] = self._values[:first], self._valid[:first]
            self._values, self._valid = values, valid
        slots[new] = np.arange(first, last)
        self._slots.update(zip([names[i] for i in new], range(first, last), strict=True))
        self._values[slots], self._valid[slots] = found, True

    def drop(self, names: Sequence[Any]) -> None:
        """Forget the models of some tasks."""
        if self._slots:
            slots = lookup(self._slots, names)
            self._valid[slots[slots >= 0]] = False
