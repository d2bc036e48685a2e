"""History: the record of a run, task after task, as columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmrl.core.algorithm import FMRL, Round, bound
from fmrl.core.arrays import Array, device, namespace
from fmrl.core.meta_level import State
from fmrl.core.metric import Metric
from fmrl.core.rules.meta import running
from fmrl.core.rules.similarity import SimilarityRule

SCALARS = (
    "regret", "gap", "guess", "eta", "divergence", "deviation", "lipschitz", "rounds",
    "row_checksum", "target_checksum", "convex",
)  # fmt: skip
VECTORS = ("theta", "optimum")
OBSERVED = ("distance", "energy")  # there where the similarity rule observes gradients
COLUMNS = (*SCALARS, *OBSERVED, *VECTORS, "losses")
KEEP = {
    "all": (*SCALARS, *VECTORS, "losses"),
    "vectors": (*SCALARS, *VECTORS),
    "scalars": SCALARS,
    "totals": (),
}


class History:
    """Columns of every `Round` played, the State before the first (``start``) and after the last
    (``state``).

    ``regret``, ``gap``, ``guess``, ``eta``, ``divergence``, ``deviation``, ``lipschitz``,
    ``rounds``, ``row_checksum``, ``target_checksum`` and ``convex`` have shape [T] (or [orders,
    T]); so have ``distance`` and ``energy``, the two terms of ``bound``, where the similarity rule
    observes gradients. ``theta`` and ``optimum`` [T, d] are there unless only scalars were kept,
    the list ``losses`` if all was. ``meta_batch``: how many tasks shared one phi; 1 is Algorithm 2.
    With keep="totals" there are no columns at all, only ``tar``, ``interval``, ``len`` and the
    states: memory does not grow with T."""

    def __init__(self, algo: FMRL, state: State, keep: str = "all", meta_batch: int = 1):
        self.algo, self.keep, self.meta_batch = algo, keep, meta_batch
        self.start = self.state = state
        self._parts: dict[str, list[Array]] = {name: [] for name in COLUMNS}
        self._joined: dict[str, Array] = {}
        # Σ regret and Σ gap, when only totals are kept.
        self._totals: tuple[Array, ...] | None = None

    def append(self, rounds: Round, state: State) -> None:
        """Add a block of rounds, stacked over tasks on axis −1 of the scalars: scalars [..., n],
        vectors [..., n, d].
        """
        self.state = state
        if self.keep == "totals":
            # One task after another, so that the sums do not depend on how tasks were stacked.
            before = self._totals or (0 * rounds.regret[..., 0],) * 2
            columns = zip(before, (rounds.regret, rounds.gap), strict=True)
            self._totals = tuple(
                running(total, namespace(c).moveaxis(c, -1, 0))[-1, ...] for total, c in columns
            )
            return
        for name in (*KEEP[self.keep], *OBSERVED):
            if name in KEEP[self.keep] or getattr(rounds, name) is not None:
                self._parts[name].append(getattr(rounds, name))
        self._joined.clear()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in COLUMNS:
            raise AttributeError(name)
        if name in OBSERVED and not self._parts[name]:
            rule = self.algo.similarity or self.algo  # an ensemble has none of its own
            raise AttributeError(f"{name}: {rule!r} does not observe gradients")
        if name not in KEEP[self.keep] and name not in OBSERVED:
            raise AttributeError(
                f"{name} was not kept: this history holds {self.keep} only (keep={self.keep!r})"
            )
        if name not in self._joined:
            parts = self._parts[name]
            axis = -2 if name in VECTORS else -1
            if not parts:
                return namespace(self.state.phi).reshape(
                    self.state.phi[..., :0], (0,) if name in SCALARS else (0, 0)
                )
            joined = parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts, axis=axis)
            self._parts[name], self._joined[name] = [joined], joined
        return self._joined[name]

    @property
    def losses(self) -> list[Array]:
        """The losses suffered, one array [m_t] (or [orders, m_t]) per task."""
        if self.keep != "all":
            raise AttributeError  # __getattr__ says why
        blocks = self._parts["losses"]
        rows = [block[..., i, :] for block in blocks for i in range(block.shape[-2])]
        lengths = self.rounds
        flat = lengths if lengths.ndim == 1 else None
        return rows if flat is None else [row[: int(m)] for row, m in zip(rows, flat, strict=True)]

    def __len__(self) -> int:
        return self.state.tasks - self.start.tasks

    def __repr__(self) -> str:
        if not len(self):
            return "History(tasks=0)"
        tar = np.asarray(self.tar.tolist() if hasattr(self.tar, "tolist") else self.tar)
        batch = "" if self.meta_batch == 1 else f", meta_batch={self.meta_batch}"
        return f"History(tasks={len(self)}{batch}, tar={np.array2string(tar, precision=6)})"

    @property
    def tar(self) -> Array:
        """Task-averaged regret (Definition 2.1), [...]; the true one lies in [tar, tar + mean
        gap].
        """
        return self._mean("regret", 0)

    @property
    def interval(self) -> tuple[Array, Array]:
        """The interval that holds the true TAR, whatever the solver left undone."""
        return self.tar, self.tar + self._mean("gap", 1)

    def _mean(self, name: str, place: int) -> Array:
        if self._totals is not None:
            return self._totals[place] / len(self)
        column = getattr(self, name)
        return namespace(column).mean(column, axis=-1)

    @property
    def bound(self) -> Array:
        """Theorem A.1's bound on each task's regret, [..., T]; with FMRL(lipschitz=…) it trusts
        that number, unless the gradients themselves were observed.
        """
        if self._parts["distance"]:
            return self.distance + self.energy
        return bound(self.divergence, self.eta, self.lipschitz, self.rounds)

    @property
    def violations(self) -> Array:
        """Whether each task violated its guess, [..., T]; none does where a step is guessed, or
        where several compositions play.
        """
        xp, rule = namespace(self.guess), self.algo.similarity
        if rule is None or isinstance(self.state.guess, Metric):
            return xp.zeros_like(self.guess) > 0
        after = xp.concat([self.guess[..., 1:], self.state.guess[..., None]], axis=-1)
        known = rule if isinstance(rule, SimilarityRule) else SimilarityRule()
        return known.violated(self.guess, after, self.deviation)

    def running_tar(self) -> Array:
        """TAR after 1, 2, …, T tasks, [..., T]."""
        xp = namespace(self.regret)
        seen = xp.arange(1, len(self) + 1, dtype=self.regret.dtype, device=device(self.regret))
        return xp.cumulative_sum(self.regret, axis=-1) / seen
