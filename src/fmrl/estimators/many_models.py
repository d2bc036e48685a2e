"""Models of many tasks at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fmrl.core.tasks import Tasks


class TaskModels(Mapping):
    """Models of many tasks by name, from `adapt_many`: a mapping, and all of them as arrays.

    A model is made when it is asked for.
    """

    def __init__(self, owner: Any, tasks: Tasks):
        self._model, self._tasks = owner._adapted_model, tasks
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
