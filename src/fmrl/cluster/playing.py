"""Playing tasks of a Pack: from given phi and guesses, or meta-batch after meta-batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmrl.cluster.pack import Pack
from fmrl.cluster.tables import Skipped
from fmrl.core.algorithm import FMRL, State, _step_size
from fmrl.core.history import SCALARS
from fmrl.core.metabatch import move
from fmrl.core.rules.within import play
from fmrl.core.solve.minimise import Solution
from fmrl.errors import FMRLError

OPTIMA = ("optimum", "value", "gap", "sigma")


def solve_pack(
    algo: FMRL, pack: Pack, skip: bool, phi: np.ndarray
) -> tuple[np.ndarray, dict[str, Any], list[Skipped]]:
    """Optima of every task: positions that could be solved, their columns, and what could not.

    >>> from fmrl.core.losses import Squared
    >>> from fmrl.core.tasks import Task
    >>> pack = Pack.of([Task([[1.0]], [0.5], loss=Squared()), Task([[1.0]], [2.0], loss=Squared())])
    >>> solve_pack(FMRL(), pack, False, np.zeros(1))[1]["optimum"].round(6).ravel()
    array([0.5, 1. ])
    """
    n, dim = len(pack), pack.dim
    columns: dict[str, Any] = {"optimum": np.empty((n, dim), pack.X.dtype)}
    columns |= {name: np.empty(n, pack.X.dtype) for name in OPTIMA[1:]}
    good, skipped = np.ones(n, bool), []
    todo = [(places, game) for places, game in pack.games(np.arange(n))]
    for places, game in todo:
        try:
            sigma, best = algo.sigma(phi, game, 0), game.hindsight(algo.domain)
        except FMRLError as error:
            if len(places) > 1:  # one by one, to find out which
                todo.extend(
                    (places[i : i + 1], game.take(np.array([i]))) for i in range(len(places))
                )
                continue
            what = f"task {pack.names[places[0]]!r}: {error.what}"
            if not skip:
                raise FMRLError(what, fix=error.fix) from None
            good[places] = False
            skipped.append(Skipped(f"task {pack.names[places[0]]!r}", error.what))
            continue
        for name, values in zip(OPTIMA, (best.theta, best.value, best.gap, sigma), strict=True):
            columns[name][places] = values
    kept = np.flatnonzero(good)
    return kept, {name: values[kept] for name, values in columns.items()}, skipped


class Record:
    """Columns of the rounds of a block, filled in as its tasks are played."""

    def __init__(self, pack: Pack, kept: np.ndarray, exact: bool):
        n, dtype = len(kept), pack.X.dtype
        self.pack, self.kept = pack, kept
        self.columns = {name: np.empty(n, dtype) for name in SCALARS}
        self.theta = None if exact else np.empty((n, pack.dim), dtype)
        self.losses = np.zeros(len(pack.X), dtype)

    def play(
        self, algo: FMRL, at: np.ndarray, phi: np.ndarray, guess: np.ndarray, best: dict[str, Any]
    ) -> None:
        """Play the tasks at positions ``at`` of ``kept``: phi [len(at), d], guess [len(at)]."""
        for places, game in self.pack.games(self.kept[at]):
            rows = at[places]
            state = State(0, phi[places], guess[places], (), ())
            found = Solution(*(best[name][rows] for name in OPTIMA[:3]))
            played = play(
                algo.within,
                game,
                algo.domain,
                state.phi,
                _step_size(state.guess, best["sigma"][rows]),
            )
            theta = algo.update.vector(played, found)
            happened = algo.record(state, game, played, found, theta, best["sigma"][rows])
            for name in SCALARS:
                self.columns[name][rows] = getattr(happened, name)
            if self.theta is not None:
                self.theta[rows] = theta
            place, counts = self.pack.rows_of(self.kept[rows], game.length)
            self.losses[place] = happened.losses[counts]

    def ragged(self) -> tuple[np.ndarray, np.ndarray]:
        """The losses as values and offsets."""
        lengths = self.pack.lengths[self.kept]
        if len(self.kept) == len(self.pack):
            return self.losses, self.pack.starts
        keep = np.concatenate(
            [np.arange(self.pack.starts[p], self.pack.starts[p + 1]) for p in self.kept]
        )
        return self.losses[keep], np.concatenate([[0], np.cumsum(lengths)])


def play_in_turn(
    algo: FMRL, record: Record, state: State, best: dict[str, Any], meta_batch: int
) -> State:
    """Meta-batch after meta-batch of a block, each from the phi that the one before left."""
    for first in range(0, len(record.kept), meta_batch):
        at = np.arange(first, min(first + meta_batch, len(record.kept)))
        phi = np.broadcast_to(state.phi, (len(at), len(state.phi)))
        record.play(algo, at, np.ascontiguousarray(phi), np.full(len(at), state.guess), best)
        theta = best["optimum"][at] if record.theta is None else record.theta[at]
        state = move(algo, state, theta, best["optimum"][at], best["sigma"][at])
    return state


def replay(
    algo: FMRL, state: State, theta: np.ndarray, best: dict[str, Any], meta_batch: int
) -> State:
    """The state after a block that was played before, from its update vectors alone."""
    for first in range(0, len(theta), meta_batch):
        at = slice(first, first + meta_batch)
        state = move(algo, state, theta[at], best["optimum"][at], best["sigma"][at])
    return state
