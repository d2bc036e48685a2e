"""The compositions that are compared, as data. Adding an algorithm to a figure is one line of
``TABLE``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fmrl.core.algorithm import FMRL
from fmrl.core.domains import Ball
from fmrl.core.rules.meta import Fixed, FollowLeader, LastUpdate, MetaUpdate
from fmrl.core.rules.similarity import Doubling, Known, ReleasedDoubling, SimilarityRule
from fmrl.core.rules.update import FAL, FLIBatch, FLIOnline, UpdateRule
from fmrl.core.rules.within import FTRL, OGD, OMD, Learner
from fmrl.errors import FMRLError
from fmrl.reproduce.convex.summed import SummedFTRL

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

    @property
    def own_vector(self) -> bool:
        """Whether the guess is tested with the update rule's own vector, which for FLI is not the
        optimum.
        """
        return type(self.similarity) is Doubling

    def within(self, panel: str) -> Learner:
        """The within-task learner of a panel."""
        return {"FTRL": FTRL(), "OGD": self.gradient, SUMMED: SummedFTRL()}[panel]


PRESETS = {
    "paper": Preset("paper", "all", OMD(), Doubling(0.1, 1.1), None, math.sqrt(2), False),
    "released": Preset("released", "train", OGD(), ReleasedDoubling(0.1, 1.1), 1.0, 1.0, True),
}


@dataclass(frozen=True, eq=False)
class Facts:
    """What only the omniscient composition may know: optima [T, d] of all tasks and their weights
    sigma [T].
    """

    optima: np.ndarray
    sigma: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The weighted mean of the optima."""
        return (self.sigma[:, None] * self.optima).sum(0) / self.sigma.sum()

    @property
    def deviation(self) -> float:
        """D̄ of the remark after the first theorem: the root of the weighted mean of B_R(θ*‖mean)."""
        return float(
            np.sqrt((self.sigma * BALL.divergence(self.optima, self.mean)).sum() / self.sigma.sum())
        )

    @property
    def widest(self) -> float:
        """The largest distance of an optimum from the mean."""
        return float(np.linalg.norm(self.optima - self.mean, axis=1).max())


Build = Callable[[Preset, Learner, Facts], FMRL]


def learning(update: UpdateRule, meta: MetaUpdate | None = None) -> Build:
    """Algorithm 2 with this update rule, and FollowLeader unless another meta-update is named."""
    return lambda p, within, facts: FMRL(
        BALL, within, update, meta or FollowLeader(), p.similarity, p.lipschitz
    )


def alone(p: Preset, within: Learner, facts: Facts) -> FMRL:
    """Every task on its own, from 0."""
    return FMRL(BALL, within, FAL(), Fixed(), Known(p.alone), p.lipschitz)


def told(p: Preset, within: Learner, facts: Facts) -> FMRL:
    """Told the mean and the spread of the optima."""
    return FMRL(
        BALL,
        within,
        FAL(),
        Fixed(facts.mean),
        Known(facts.widest if p.widest else facts.deviation),
        p.lipschitz,
    )


@dataclass(frozen=True)
class ByOptimum(Doubling):
    """Algorithm 2's guess, tested with the exact optimum whatever the update rule (an experiment on
    FLI).
    """

    def update(self, domain, phi, guess, memory, end):
        return super().update(domain, phi, guess, memory, end._replace(theta=end.optimum))


def exact_test(update: UpdateRule) -> Build:
    """The preset's guess, tested with the optimum as in FAL; only for presets that do not do so
    already.
    """

    def build(p: Preset, within: Learner, facts: Facts) -> FMRL:
        rule = p.similarity
        if not isinstance(rule, Doubling):
            raise FMRLError(
                f"the {p.name} preset does not test its guess with the update rule's own vector"
            )
        exact = ByOptimum(rule.epsilon, rule.gamma, rule.first)
        return FMRL(BALL, within, update, FollowLeader(), exact, p.lipschitz)

    return build


def placed(D: Callable[[Facts], float]) -> Build:
    """Told the mean of the optima, with another D."""
    return lambda p, within, facts: FMRL(
        BALL, within, FAL(), Fixed(facts.mean), Known(D(facts)), p.lipschitz
    )


@dataclass(frozen=True)
class Composition:
    """One curve. ``note`` names an experiment the paper did not draw; ``same``: TAR does not depend
    on the order of tasks.
    """

    panel: str
    method: str
    build: Build
    note: str = ""
    order: str = "file"  # of the samples inside a task
    same: bool = False
    own_vector: bool = (
        False  # only under presets whose guess is tested with the update rule's own vector
    )

    @property
    def within(self) -> str:
        """The panel, and the experiment if it is one."""
        return f"{self.panel}, {self.note}" if self.note else self.panel

    def made_of(self, p: Preset) -> str:
        """Everything it is built of under a preset, as text that is the same in every process."""
        algo = self.build(p, p.within(self.panel), _ANY)
        return f"{p!r}; {algo!r}; samples in {self.order} order"


_ANY = Facts(
    np.array([[0.0], [0.5]]), np.ones(2)
)  # stands in for facts of the data, which are keyed by its checksum


_STRAWMAN = learning(FAL(), LastUpdate())
SUMMED, BLOCKED, KNOWN, EXACT = (
    "FTRL (released objective)",
    "samples blocked by class",
    "phi known",
    "guess tested with the optimum",
)

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
    # experiment: the released code's FTRL minimises another function
    Composition(SUMMED, "FAL", learning(FAL())),
    Composition(SUMMED, "strawman", _STRAWMAN),
    Composition(SUMMED, "single-task", alone, same=True),
    Composition(SUMMED, "omniscient", told, same=True),
    # experiment: the order of the samples inside a task
    Composition("OGD", "FAL", learning(FAL()), BLOCKED, "blocked"),
    Composition("OGD", "FLI-Online", learning(FLIOnline()), BLOCKED, "blocked"),
    Composition("OGD", "FLI-Batch", learning(FLIBatch()), BLOCKED, "blocked"),
    Composition("OGD", "strawman", _STRAWMAN, BLOCKED, "blocked"),
    Composition("OGD", "single-task", alone, BLOCKED, "blocked", same=True),
    # experiment: which D is best once phi is known
    Composition("OGD", "D = widest", placed(lambda facts: facts.widest), KNOWN, same=True),
    Composition("OGD", "D = deviation", placed(lambda facts: facts.deviation), KNOWN, same=True),
    Composition("OGD", "D = 0.1", placed(lambda facts: 0.1), KNOWN, same=True),
    Composition("OGD", "D = 0.03", placed(lambda facts: 0.03), KNOWN, same=True),
    # experiment: FLI whose guess may grow as FAL's does
    Composition("OGD", "FLI-Online", exact_test(FLIOnline()), EXACT, own_vector=True),
    Composition("OGD", "FLI-Batch", exact_test(FLIBatch()), EXACT, own_vector=True),
)


def curves(preset: str) -> list[Composition]:
    """The compositions that say something under a preset."""
    return [c for c in TABLE if PRESETS[preset].own_vector or not c.own_vector]


def find(within: str, method: str) -> Composition:
    """The composition of a curve."""
    return next(c for c in TABLE if (c.within, c.method) == (within, method))
