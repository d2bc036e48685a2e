"""The compositions that are compared, as data: adding an algorithm to a figure is one line of
``TABLE``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import fmrl
from fmrl import FAL, FMRL, Ball, Doubling, Fixed, FollowLeader, Known, ReleasedDoubling
from fmrl.core.rules.meta import MetaUpdate
from fmrl.core.rules.similarity import SimilarityRule
from fmrl.core.rules.update import UpdateRule
from fmrl.core.rules.within import Learner
from fmrl.reproduce.convex.baselines import SummedFTRL

BALL = Ball(1.0)
SUMMED, BLOCKED = "FTRL (released objective)", "samples blocked by class"
KNOWN, EXACT = "phi known", "guess tested with the optimum"


@dataclass(frozen=True)
class Preset:
    """A reading of Algorithm 2: what the paper prints, or what the authors' released code does.

    ``widest``: the omniscient D is the largest distance of an optimum from the mean, else the root
    mean square √B_R.
    """

    name: str
    split: str  # which tasks are played
    gradient: Learner  # what "OGD" means
    similarity: SimilarityRule
    lipschitz: float | None  # G_t, None to compute it
    alone: float  # the single-task baseline's D
    widest: bool

    @property
    def own_vector(self) -> bool:
        """Whether the guess is tested with the update rule's own vector (FLI: not the optimum)."""
        return isinstance(self.similarity, Doubling)

    def within(self, panel: str) -> Learner:
        """The within-task learner of a panel."""
        return {"FTRL": fmrl.FTRL(), "OGD": self.gradient, SUMMED: SummedFTRL()}[panel]

    def constant(self, game) -> np.ndarray:
        """G_t of every task of a stack [T]."""
        if self.lipschitz is None:
            return game.lipschitz(BALL)
        return np.full(np.shape(game.rounds), self.lipschitz)

    def facts(self, game) -> Facts:
        """What the omniscient composition is told about a stack of tasks."""
        return Facts(game.hindsight(BALL).theta, self.constant(game) * np.sqrt(game.rounds))


PRESETS = {
    "paper": Preset("paper", "all", fmrl.OMD(), Doubling(0.1, 1.1), None, math.sqrt(2), False),
    "released": Preset("released", "train", fmrl.OGD(), ReleasedDoubling(0.1, 1.1), 1.0, 1.0, True),
}


@dataclass(frozen=True, eq=False)
class Facts:
    """What the omniscient composition is told: optima [T, d] and weights sigma [T] of all tasks."""

    optima: np.ndarray
    sigma: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The weighted mean of the optima."""
        return (self.sigma[:, None] * self.optima).sum(0) / self.sigma.sum()

    @property
    def deviation(self) -> float:
        """D̄ of the remark after the first theorem: the root of the mean of B_R(θ*‖mean)."""
        apart = self.sigma * BALL.divergence(self.optima, self.mean)
        return float(np.sqrt(apart.sum() / self.sigma.sum()))

    @property
    def widest(self) -> float:
        """The largest distance of an optimum from the mean."""
        return float(np.linalg.norm(self.optima - self.mean, axis=1).max())


Build = Callable[[Preset, Learner, Facts], FMRL]


@dataclass(frozen=True)
class ByOptimum(Doubling):
    """Algorithm 2's guess, tested with the optimum whatever the update rule (an experiment)."""

    def update(self, domain, phi, guess, memory, end):
        return super().update(domain, phi, guess, memory, end._replace(theta=end.optimum))


def learning(update: UpdateRule, meta: MetaUpdate | None = None, exact: bool = False) -> Build:
    """Algorithm 2 with these rules; ``exact``: its guess is tested with the optimum."""

    def build(p: Preset, within: Learner, facts: Facts) -> FMRL:
        rule = p.similarity
        rule = ByOptimum(rule.epsilon, rule.gamma, rule.first) if exact else rule
        return FMRL(BALL, within, update, meta or FollowLeader(), rule, p.lipschitz)

    return build


def alone(p: Preset, within: Learner, facts: Facts) -> FMRL:
    """Every task on its own, from 0."""
    return FMRL(BALL, within, FAL(), Fixed(), Known(p.alone), p.lipschitz)


def told(D: Callable[[Preset, Facts], float]) -> Build:
    """Told the mean of the optima and this D."""
    return lambda p, within, facts: FMRL(
        BALL, within, FAL(), Fixed(facts.mean), Known(D(p, facts)), p.lipschitz
    )


@dataclass(frozen=True)
class Composition:
    """One curve. ``note`` names an experiment the paper did not draw; ``same``: TAR does not depend
    on the order of tasks; ``own_vector``: only under presets that test the guess with the update
    rule's own vector.
    """

    panel: str
    method: str
    build: Build
    note: str = ""
    order: str = "file"  # of the samples inside a task
    same: bool = False
    own_vector: bool = False

    @property
    def within(self) -> str:
        """The panel, and the experiment if it is one."""
        return f"{self.panel}, {self.note}" if self.note else self.panel

    def made_of(self, p: Preset) -> str:
        """Everything it is built of under a preset, as text that is the same in every process."""
        any_facts = Facts(np.array([[0.0], [0.5]]), np.ones(2))  # the data has its own checksum
        algo = self.build(p, p.within(self.panel), any_facts)
        return f"{p!r}; {algo!r}; samples in {self.order} order"


METHODS: dict[str, Build] = {
    "FAL": learning(FAL()),
    "FLI-Online": learning(fmrl.FLIOnline()),
    "FLI-Batch": learning(fmrl.FLIBatch()),
    "strawman": learning(FAL(), fmrl.LastUpdate()),
    "single-task": alone,
    "omniscient": told(lambda p, facts: facts.widest if p.widest else facts.deviation),
}


def panel(name: str, *methods: str, note: str = "", order: str = "file") -> list[Composition]:
    """Several curves of one panel."""
    same = ("single-task", "omniscient")
    return [Composition(name, m, METHODS[m], note, order, m in same) for m in methods]


_FLI, _REST = ("FLI-Online", "FLI-Batch"), ("strawman", "single-task", "omniscient")
TABLE: tuple[Composition, ...] = (
    # the paper's left panel
    *panel("FTRL", "FAL", *_REST),
    # the paper's right panel, and the strawman there too
    *panel("OGD", "FAL", *_FLI, *_REST),
    # experiment: the released code's FTRL minimises another function
    *panel(SUMMED, "FAL", *_REST),
    # experiment: the order of the samples inside a task
    *panel("OGD", "FAL", *_FLI, *_REST[:2], note=BLOCKED, order="blocked"),
    # experiment: which D is best once phi is known
    Composition("OGD", "D = widest", told(lambda p, facts: facts.widest), KNOWN, same=True),
    Composition("OGD", "D = deviation", told(lambda p, facts: facts.deviation), KNOWN, same=True),
    Composition("OGD", "D = 0.1", told(lambda p, facts: 0.1), KNOWN, same=True),
    Composition("OGD", "D = 0.03", told(lambda p, facts: 0.03), KNOWN, same=True),
    # experiment: FLI whose guess may grow as FAL's does
    Composition("OGD", _FLI[0], learning(fmrl.FLIOnline(), exact=True), EXACT, own_vector=True),
    Composition("OGD", _FLI[1], learning(fmrl.FLIBatch(), exact=True), EXACT, own_vector=True),
)


def curves(preset: str) -> list[Composition]:
    """The compositions that say something under a preset."""
    return [c for c in TABLE if PRESETS[preset].own_vector or not c.own_vector]


def find(within: str, method: str) -> Composition:
    """The composition of a curve."""
    return next(c for c in TABLE if (c.within, c.method) == (within, method))
