"""Models of many tasks at once: those that were asked for, and those that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fmrl.core.tasks import Tasks


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


class ModelCache:
    """Models that were asked for, until their tasks get more rows.

    Args:
        most: How many numbers are kept; None for all.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._models: dict[Any, np.ndarray] = {}

    @property
    def nbytes(self) -> int:
        """What they take in memory."""
        return len(self._models) * next((m.nbytes for m in self._models.values()), 0)

    def find(self, names: Sequence[Any]) -> list[np.ndarray | None]:
        """The models [outputs, width] of these tasks; None where there is none."""
        return [self._models.get(name) for name in names]

    def put(self, names: Sequence[Any], found: np.ndarray) -> None:
        """Keep models [T, outputs, width]; all others go where they would be too many."""
        size = max(found[:1].size, 1)
        if self.most is not None and (len(self._models) + len(names)) * size > self.most:
            self._models = {}
            names, found = names[: self.most // size], found[: self.most // size]
        self._models.update(zip(names, found, strict=True))

    def drop(self, names: Sequence[Any]) -> None:
        """Forget the models of some tasks."""
        for name in names if self._models else ():
            self._models.pop(name, None)
