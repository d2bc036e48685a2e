"""The compositions that are compared, as data. Adding an algorithm to a figure is one line of ``TABLE``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fmrl.core.algorithm import FMRL
from fmrl.core.domains import Ball
from fmrl.core.meta import Fixed, FollowLeader, LastUpdate, MetaUpdate
from fmrl.core.similarity import Doubling, Known, ReleasedDoubling, SimilarityRule
from fmrl.core.update import FAL, FLIBatch, FLIOnline, UpdateRule
from fmrl.core.within import FTRL, OGD, OMD, Learner
from fmrl.study.summed import SummedFTRL

BALL = Ball(1.0)


@dataclass(frozen=True)
class Preset:
    """A reading of Algorithm 2: what the paper prints, or what the authors' released code does."""

    name: str
    split: str  # which tasks are played
    gradient: Learner  # what "OGD" means
    similarity: SimilarityRule
    lipschitz: float | None  # G_t, None to compute it
    alone: float  # the single-task baseline's D
    widest: bool  # the omniscient D: the largest distance of an optimum from the mean, else the root mean square √B_R

    def within(self, panel: str) -> Learner:
        """The within-task learner of a panel."""
        return {"FTRL": FTRL(), "OGD": self.gradient, "FTRL (released objective)": SummedFTRL()}[panel]


PRESETS = {
    "paper": Preset("paper", "all", OMD(), Doubling(0.1, 1.1), None, math.sqrt(2), False),
    "released": Preset("released", "train", OGD(), ReleasedDoubling(0.1, 1.1), 1.0, 1.0, True),
}


@dataclass(frozen=True, eq=False)
class Facts:
    """What only the omniscient composition may know: optima [T, d] of all tasks and their weights sigma [T]."""

    optima: np.ndarray
    sigma: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The weighted mean of the optima."""
        return (self.sigma[:, None] * self.optima).sum(0) / self.sigma.sum()

    @property
    def deviation(self) -> float:
        """D̄ of the remark after the first theorem: the root of the weighted mean of B_R(θ*‖mean)."""
        return float(np.sqrt((self.sigma * BALL.divergence(self.optima, self.mean)).sum() / self.sigma.sum()))

    @property
    def widest(self) -> float:
        """The largest distance of an optimum from the mean."""
        return float(np.linalg.norm(self.optima - self.mean, axis=1).max())


Build = Callable[[Preset, Learner, Facts], FMRL]


def learning(update: UpdateRule, meta: MetaUpdate | None = None) -> Build:
    """Algorithm 2 with this update rule, and FollowLeader unless another meta-update is named."""
    return lambda p, within, facts: FMRL(BALL, within, update, meta or FollowLeader(), p.similarity, p.lipschitz)


def alone(p: Preset, within: Learner, facts: Facts) -> FMRL:
    """Every task on its own, from 0."""
    return FMRL(BALL, within, FAL(), Fixed(), Known(p.alone), p.lipschitz)


def told(p: Preset, within: Learner, facts: Facts) -> FMRL:
    """Told the mean and the spread of the optima."""
    return FMRL(BALL, within, FAL(), Fixed(facts.mean), Known(facts.widest if p.widest else facts.deviation), p.lipschitz)


@dataclass(frozen=True)
class Composition:
    """One curve. ``order``: of the samples inside a task. ``same``: TAR does not depend on the order of tasks."""

    panel: str
    method: str
    build: Build
    order: str = "file"
    same: bool = False

    @property
    def within(self) -> str:
        """The panel, with the sample order where it is not the file's."""
        return self.panel if self.order == "file" else f"{self.panel}, {self.order} samples"


_STRAWMAN = learning(FAL(), LastUpdate())

TABLE: tuple[Composition, ...] = (
    # the paper's left panel
    Composition("FTRL", "FAL", learning(FAL())),
    Composition("FTRL", "strawman", _STRAWMAN),
    Composition("FTRL", "single-task", alone, same=True),
    Composition("FTRL", "omniscient", told, same=True),
    # the paper's right panel, and the strawman there too
    Composition("OGD", "FAL", learning(FAL())),
    Composition("OGD", "FLI-Online", learning(FLIOnline())),
    Composition("OGD", "FLI-Batch", learning(FLIBatch())),
    Composition("OGD", "strawman", _STRAWMAN),
    Composition("OGD", "single-task", alone, same=True),
    Composition("OGD", "omniscient", told, same=True),
    # why the released code's left panel looks as it does: its FTRL minimises another function
    Composition("FTRL (released objective)", "FAL", learning(FAL())),
    Composition("FTRL (released objective)", "strawman", _STRAWMAN),
    Composition("FTRL (released objective)", "single-task", alone, same=True),
    Composition("FTRL (released objective)", "omniscient", told, same=True),
    # what the order of the samples inside a task does
    Composition("OGD", "FAL", learning(FAL()), order="blocked"),
    Composition("OGD", "FLI-Online", learning(FLIOnline()), order="blocked"),
    Composition("OGD", "FLI-Batch", learning(FLIBatch()), order="blocked"),
    Composition("OGD", "strawman", _STRAWMAN, order="blocked"),
    Composition("OGD", "single-task", alone, order="blocked", same=True),
    Composition("OGD", "omniscient", told, order="blocked", same=True),
)


def find(within: str, method: str) -> Composition:
    """The composition of a curve."""
    return next(c for c in TABLE if (c.within, c.method) == (within, method))
