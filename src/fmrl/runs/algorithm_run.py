"""Algorithm 2 played over the tasks of a table, window after window, in coordinates that the first
tasks decide.

A ball treats all columns alike. Where columns differ in size by more than ``UNEVEN``, each is
divided by its deviation. The ball has the radius at which a row of typical length reaches a margin
of ``MARGIN``: 10 nats of evidence, or 10 standard deviations of y. Beyond that a logistic loss is
below e⁻¹⁰ and there is nothing left to learn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.core.algorithm import FMRL
from fmrl.core.batched import play_tasks
from fmrl.core.checkpoint import load_history, save_history
from fmrl.core.domains import Ball
from fmrl.core.history import History
from fmrl.core.rules.private import promises
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.coordinates import Coordinates, scales_of

# Tasks played at once, counted from the first, so that a resumed run has the same bits.
WINDOW = 1024
MARGIN = 10.0  # nats, or standard deviations of y
UNEVEN = 3.0  # ratio of columns' deviations from which each is scaled
VECTORS = 10_000_000  # numbers of optima that a history may hold; beyond, it keeps scalars only


@dataclass
class AlgorithmRun:
    """The run of one table: its coordinates, and the history so far.

    Args:
        coordinates: In which tasks are played.
        history: What happened, and the state after it.
    """

    coordinates: Coordinates
    history: History

    @classmethod
    def begin(
        cls, tasks: Tasks, ingredients: dict[str, Any], expected: int,
        intercept: bool = True, radius: float | None = None,
    ) -> AlgorithmRun:  # fmt: skip
        """Choose coordinates and the domain from the first window.

        Args:
            tasks: The first window, in the table's units.
            ingredients: Of `FMRL`, but for its domain; None for a default.
            expected: How many tasks will come, which decides what the history can afford to keep.
            intercept: Whether models have an intercept.
            radius: Of the ball of models (default: from the data).
        """
        here, reach = ball_coordinates(tasks, intercept)
        given = {name: value for name, value in ingredients.items() if value is not None}
        algo = FMRL(domain=Ball(reach if radius is None else float(radius)), **given)
        if promises(algo):
            what = "training on a table learns coordinates and a prior from all rows, without noise"
            raise FMRLError(what, fix="for privacy use fmrl.run(fmrl.FMRL(meta=Tree(…)), tasks)")
        dim = tasks.loss.outputs * here.width
        keep = "vectors" if expected * dim <= VECTORS else "scalars"
        return cls(here, History(algo, algo.init(np.zeros(dim)), keep))

    def play(self, tasks: Tasks) -> None:
        """Play further tasks, in windows of `WINDOW`."""
        state, played = self.history.state, []
        for first in range(0, len(tasks), WINDOW):
            window = tasks.take(np.arange(first, min(first + WINDOW, len(tasks))))
            played += play_tasks(self.history.algo, state, self.coordinates.tasks(window))
            state = played[-1][1]
        for rounds, state in played:
            self.history.append(rounds, state)

    def save(self, path: Path) -> None:
        """Write the history, from which `resume` goes on."""
        save_history(self.history, path)

    def resume(self, path: Path) -> None:
        """Go on from a history that was saved by a run with the same first window."""
        history = load_history(path)
        if repr(history.algo) != repr(self.history.algo) or history.keep != self.history.keep:
            what = f"{path} is not of a run of this table"
            raise FMRLError(what, fix="delete it, and --resume starts over")
        self.history = history


def ball_coordinates(tasks: Tasks, intercept: bool) -> tuple[Coordinates, float]:
    """Coordinates in which Algorithm 2 is played, and the radius of its ball.

    Args:
        tasks: The first ones, in the table's units.
        intercept: Whether models have an intercept.
    """
    found = scales_of(tasks.take(np.arange(min(len(tasks), WINDOW))), intercept)
    spread, varying = found.spread, found.varying
    uneven = varying.any() and spread[varying].max() > UNEVEN * spread[varying].min()
    scale = found.divisor if uneven else np.ones(len(spread))
    length = math.sqrt(float(((spread / scale) ** 2).sum())) or 1.0
    constant = length / math.sqrt(len(spread)) if intercept else 0.0
    return Coordinates(found.centre, scale, constant, found.shift, found.unit), MARGIN / length
