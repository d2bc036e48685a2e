"""The compositions that are compared, as data: adding an algorithm to a figure is one line of
``TABLE``. With them stands the released code's FTRL, which the library does not offer.
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

BALL = Ball(1.0)
SUMMED, BLOCKED = "FTRL (released objective)", "samples blocked by class"
KNOWN, EXACT = "phi known", "guess tested with the optimum"


@dataclass(frozen=True)
class SummedFTRL:
    """FTRL as the released code computes it: not the losses so far but one logistic of their summed
    rows. Kept so that the paper's left panel can be drawn with it; NumPy only.

    After i rounds it plays the minimiser over a ball about 0 of

        ½‖θ − phi‖² + eta·Σ_c log(1 + exp(−⟨θ_c, v_c⟩)),   v_c = Σ_{s≤i} ±x_s (+ where y_s = c),

    which is FTRL for i = 1 only. With the multiplier λ of the ball, (1 + λ)·θ_c = phi_c +
    eta·s_c·v_c where s_c = sigmoid(−⟨θ_c, v_c⟩): one scalar equation a class, solved by safeguarded
    Newton steps inside a bracketing search for λ.
    """

    def actions(self, game, domain, phi, eta):
        """As in every learner: yields an action and is sent a gradient, which this one ignores."""
        if not isinstance(domain, Ball) or domain.centre != 0.0:
            raise TypeError("SummedFTRL plays on a ball about 0")
        start = game.matrix(phi)
        total = np.zeros_like(start)
        yield phi
        for i in range(game.length):
            sign = (2 * game.target[..., i, :] - 1) * game.weight[..., i, None]
            total = total + sign[..., :, None] * game.X[..., i, None, :]
            yield leader(start, total, np.asarray(eta), domain.radius).reshape(phi.shape)


def leader(phi: np.ndarray, v: np.ndarray, eta: np.ndarray, radius: float) -> np.ndarray:
    """The minimiser; phi and v [..., C, f], eta [...]."""
    shape = phi.shape
    phi, v = (a.reshape(-1, *shape[-2:]) for a in (phi, v))
    eta = np.broadcast_to(eta, shape[:-2]).reshape(-1, 1)
    p, q = (phi * v).sum(-1), eta * (v * v).sum(-1)
    base = (phi * phi).sum((-2, -1))
    a, s = _margins(p, q, np.ones_like(eta))
    square = base + (2 * eta * s * p + eta * q * s**2).sum(-1)  # ‖θ‖² without the ball
    scale = np.ones_like(base)
    out = np.flatnonzero(square > radius**2)
    if out.size:
        p, q, weight, base, a = p[out], q[out], eta[out], base[out], a[out]

        def length(s: np.ndarray) -> np.ndarray:
            square = base + (2 * weight * s * p + weight * q * s**2).sum(-1)
            return np.sqrt(np.maximum(square, 0.0))

        low = np.ones(out.size)  # of 1 + λ
        high = (np.sqrt(base) + np.sqrt((weight * q).sum(-1))) / radius  # since s ≤ 1
        over = np.sqrt(square[out]) - radius
        under = length(_margins(p, q, high[:, None])[1]) / high - radius - 1e-300
        last = np.zeros(out.size)
        for _ in range(60):  # regula falsi; a side that stays put twice is halved (Illinois rule)
            middle = (low * under - high * over) / (under - over)
            a, found = _margins(p, q, middle[:, None], a)
            miss = length(found) / middle - radius
            if np.abs(miss).max() <= 1e-9 * radius:
                break
            up = miss > 0
            under = np.where(up, np.where(last > 0, under / 2, under), miss)
            over = np.where(up, miss, np.where(last < 0, over / 2, over))
            low, high = np.where(up, middle, low), np.where(up, high, middle)
            last = np.where(up, 1.0, -1.0)
        s[out] = found
        scale[out] = length(found) / radius
    return ((phi + (eta * s)[..., None] * v) / scale[:, None, None]).reshape(shape)


def _margins(
    p: np.ndarray, q: np.ndarray, mass: np.ndarray, a: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """a and s = sigmoid(−a) with mass·a = p + q·s, by Newton's method kept inside a bracket."""
    low, high = p / mass, (p + q) / mass
    a = (low + high) / 2 if a is None else np.clip(a, low, high)
    step = high - low
    for _ in range(80):
        s = 0.5 - 0.5 * np.tanh(a / 2)
        miss = mass * a - p - q * s
        if (np.abs(miss) <= 1e-11 * (1 + np.abs(p) + q)).all():
            break
        low, high = np.where(miss < 0, a, low), np.where(miss > 0, a, high)
        new = a - miss / (mass + q * s * (1 - s))
        # Newton may jump back and forth over the steep middle of the sigmoid: bisect unless steps
        # shrink.
        good = (new >= low) & (new <= high) & (np.abs(new - a) <= 0.5 * np.abs(step))
        new = np.where(good, new, (low + high) / 2)
        step, a = new - a, new
    return a, 0.5 - 0.5 * np.tanh(a / 2)


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
