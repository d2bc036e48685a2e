"""Compositions for the adversary: one table by kind of ingredient, from each public class to what
draws one. `missing` compares the tables with what the library has: a new public rule that nobody
draws is a failure of tests/test_soak.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isabstract
from typing import Any

import numpy as np
import own

import fmrl
from fmrl.core.ensemble import Ensemble
from fmrl.core.losses import Weighted
from fmrl.core.values import known

Rng = np.random.Generator


@dataclass(frozen=True)
class Setting:
    """What a drawn ingredient has to fit."""

    domain: Any
    dim: int
    features: int
    tasks: int
    far: float  # a distance that is typical of the domain
    steep: float  # a gradient that is typical of the losses
    expensive: bool = False  # whether FTRL has to call the slowest solver in every round

    rounds: int = 0  # of the long tasks that need long steps; 0 for others

    def guess(self, rng: Rng) -> float:
        """A guess of a distance: far too small, right, or far too large."""
        if self.rounds:
            return float(np.clip(self.far, 1e-9, 1e9) * self.rounds**0.5 * rng.uniform(0.1, 1))
        return float(np.clip(self.far * 10 ** rng.uniform(-3, 2), 1e-150, 1e150))

    def step(self, rng: Rng) -> float:
        """The same of a step."""
        return float(np.clip(self.far / self.steep * 10 ** rng.uniform(-3, 1), 1e-100, 1e100))


def size_of(rng: Rng) -> float:
    """A radius or a side: mostly tame."""
    odd = (1e-150, 1e-30, 1e-9, 1e9, 1e30, 1e140)
    return float(rng.choice(odd)) if rng.random() < 0.06 else float(10 ** rng.uniform(-1.5, 1))


def _ball(rng: Rng, dim: int) -> Any:
    radius = size_of(rng)
    centre = radius * rng.normal(size=dim) if rng.random() < 0.3 else 0.0
    return fmrl.Ball(radius, centre)


def _box(rng: Rng, dim: int, kind: Any = fmrl.Box, **extra: Any) -> Any:
    size = size_of(rng)
    low = size * rng.normal(size=dim) * (rng.random() < 0.7) - size
    return kind(low, low + size * 10 ** rng.uniform(-1, 1, dim), **extra)


def _simplex(rng: Rng, dim: int) -> Any:
    return fmrl.Simplex(
        float(rng.choice([0.0, 0.0, 0.0, 0.0, 1e-12, rng.uniform(0.02, 0.9) / dim]))
    )


DOMAINS: dict[type, Callable[[Rng, int], Any]] = {
    fmrl.Ball: _ball,
    fmrl.Box: _box,
    fmrl.Euclidean: lambda rng, dim: fmrl.Euclidean(),
    fmrl.Simplex: _simplex,
    own.Weak: lambda rng, dim: own.Weak(size_of(rng), strength=float(10 ** rng.uniform(-4, -1))),
    own.Stiff: lambda rng, dim: _box(rng, dim, own.Stiff, strength=float(rng.choice([1.0, 4.0]))),
    own.Renamed: lambda rng, dim: own.Renamed(size_of(rng)),
}

LOSSES: dict[type, Callable[[Rng], Any]] = {
    fmrl.Linear: lambda rng: fmrl.Linear(),
    fmrl.Squared: lambda rng: fmrl.Squared(),
    fmrl.Logistic: lambda rng: fmrl.Logistic(),
    fmrl.Hinge: lambda rng: fmrl.Hinge(),
    fmrl.OneVsAll: lambda rng: fmrl.OneVsAll(int(rng.integers(2, 4))),
    fmrl.Softmax: lambda rng: fmrl.Softmax(int(rng.integers(2, 4))),
    Weighted: lambda rng: Weighted(
        rng.choice(np.array([fmrl.Hinge(), fmrl.Logistic(), own.Cap(), own.Plain()], object))
    ),
    own.Cap: lambda rng: own.Cap(),
    own.Plain: lambda rng: own.Plain(),
    own.HeavyCap: lambda rng: own.HeavyCap(own.Cap()),
}

LEARNERS: dict[type, Callable[[Rng, Setting], Any]] = {
    fmrl.OMD: lambda rng, s: fmrl.OMD(),
    fmrl.OGD: lambda rng, s: fmrl.OGD(),
    fmrl.FTRL: lambda rng, s: fmrl.FTRL(),
    fmrl.NoisyGradients: lambda rng, s: fmrl.NoisyGradients(
        fmrl.OMD() if rng.random() < 0.5 else fmrl.OGD(),
        1.0,
        1e-6,
        s.steep,
        seed=int(rng.integers(9)),
    ),
    own.Lagging: lambda rng, s: own.Lagging(),
    own.Hidden: lambda rng, s: own.Hidden(),
}

UPDATES: dict[type, Callable[[Rng, Setting], Any]] = {
    fmrl.FAL: lambda rng, s: fmrl.FAL(),
    fmrl.FLIOnline: lambda rng, s: fmrl.FLIOnline(),
    fmrl.FLIBatch: lambda rng, s: fmrl.FLIBatch(),
    own.Middle: lambda rng, s: own.Middle(),
}


def _mixture(rng: Rng, s: Setting) -> Any:
    some = [fmrl.FollowLeader, fmrl.LastUpdate, fmrl.Discounted, fmrl.Window, fmrl.Restart]
    some += [fmrl.AdaptiveOGD, fmrl.Fixed, own.Slow]
    drawn = [METAS[some[i]](rng, s) for i in rng.integers(0, len(some), rng.integers(2, 4))]
    reach = 3 * s.far if isinstance(s.domain, fmrl.Euclidean) else None
    return fmrl.Mixture(drawn, float(rng.choice([0.0, 0.1])), reach)


def _tree(rng: Rng, s: Setting) -> Any:
    radius = s.far if rng.random() < 0.3 or isinstance(s.domain, fmrl.Euclidean) else None
    return fmrl.Tree(float(rng.choice([1.0, 8.0])), 1e-6, 16, radius, 4, seed=int(rng.integers(9)))


METAS: dict[type, Callable[[Rng, Setting], Any]] = {
    fmrl.FollowLeader: lambda rng, s: fmrl.FollowLeader(),
    fmrl.AdaptiveOGD: lambda rng, s: fmrl.AdaptiveOGD(),
    fmrl.LastUpdate: lambda rng, s: fmrl.LastUpdate(),
    fmrl.Interpolate: lambda rng, s: fmrl.Interpolate(1.0, float(rng.choice([0.0, 0.5])), 4),
    fmrl.Fixed: lambda rng, s: fmrl.Fixed(),
    fmrl.Discounted: lambda rng, s: fmrl.Discounted(float(rng.choice([0.03, 0.3, 1.0]))),
    fmrl.Window: lambda rng, s: fmrl.Window(int(rng.integers(1, 4))),
    fmrl.Restart: lambda rng, s: fmrl.Restart(int(rng.integers(1, 4))),
    fmrl.Mixture: _mixture,
    fmrl.Conditional: lambda rng, s: fmrl.Conditional(
        [int(rng.integers(0, s.features))], float(10 ** rng.uniform(-2, 1))
    ),
    fmrl.Tree: _tree,
    own.Slow: lambda rng, s: own.Slow(),
    own.Leaning: lambda rng, s: own.Leaning(),
}


def _first(rng: Rng, s: Setting) -> float | None:
    wanted = isinstance(s.domain, fmrl.Euclidean) or rng.random() < 0.2
    return s.guess(rng) if wanted else None


def _learned(kind: type) -> Callable[[Rng, Setting], Any]:
    return lambda rng, s: kind(s.guess(rng), s.steep * float(10 ** rng.uniform(-1, 1)))


def _known_step(rng: Rng, s: Setting) -> Any:
    step = s.step(rng)
    if s.domain.norm != "l2" or rng.random() < 0.6:
        return fmrl.KnownStep(0.0 if rng.random() < 0.2 else step)
    vector = step * 10 ** rng.uniform(-1, 1, s.dim)
    basis = np.linalg.qr(rng.normal(size=(s.dim, s.dim)))[0]
    full = basis * vector @ basis.T
    forms = [vector, full / 2 + full.T / 2, fmrl.Diagonal(vector), fmrl.Full(np.diag(vector))]
    forms += [fmrl.Spiked(vector, np.sqrt(step) * rng.normal(size=(s.dim, 1)))]
    return fmrl.KnownStep(forms[rng.integers(0, len(forms))])


def _observed(rng: Rng, s: Setting) -> Any:
    inner = [fmrl.Known, fmrl.Doubling, fmrl.AverageDeviation, fmrl.EWOO][rng.integers(0, 4)]
    return fmrl.Observed(SIMILARITIES[inner](rng, s), s.steep)


SIMILARITIES: dict[type, Callable[[Rng, Setting], Any]] = {
    fmrl.Doubling: lambda rng, s: fmrl.Doubling(
        s.guess(rng), float(rng.choice([1.0, 1.05, 1.5, 3.0])), _first(rng, s)
    ),
    fmrl.ReleasedDoubling: lambda rng, s: fmrl.ReleasedDoubling(
        s.guess(rng), float(rng.choice([1.0, 1.1, 2.0]))
    ),
    fmrl.Known: lambda rng, s: fmrl.Known(s.guess(rng)),
    fmrl.AverageDeviation: lambda rng, s: fmrl.AverageDeviation(_first(rng, s)),
    fmrl.EWOO: lambda rng, s: fmrl.EWOO(s.far * float(10 ** rng.uniform(-2, 0)), 2 * s.far, None),
    fmrl.Isotropic: _learned(fmrl.Isotropic),
    fmrl.PerCoordinate: _learned(fmrl.PerCoordinate),
    fmrl.FullMatrix: _learned(fmrl.FullMatrix),
    fmrl.LowRank: lambda rng, s: fmrl.LowRank(int(rng.integers(1, 3)), s.guess(rng), s.steep),
    fmrl.KnownStep: _known_step,
    fmrl.Observed: _observed,
    fmrl.MetaSGD: lambda rng, s: fmrl.MetaSGD(s.step(rng), 0.1),
    fmrl.Covariance: lambda rng, s: fmrl.Covariance(float(10 ** rng.uniform(-2, 1))),
    own.Fading: lambda rng, s: own.Fading(s.guess(rng)),
}


NEEDS_L2 = (
    fmrl.PerCoordinate, fmrl.FullMatrix, fmrl.LowRank, fmrl.MetaSGD, fmrl.Covariance,
)  # fmt: skip


def _hedge(rng: Rng, s: Setting) -> Any:
    """Members of any kind; or members that differ by an ulp until phi moves apart."""
    members = [composition(rng, s, member=True) for _ in range(rng.integers(2, 4))]
    if rng.random() < 0.6:
        some = (fmrl.FollowLeader, fmrl.LastUpdate, fmrl.Discounted, fmrl.Restart)
        kinds = rng.permutation(len(some))[: rng.choice([2, 2, 3])]
        like, guess = members[0], s.guess(rng)
        ulp = np.spacing(guess) * rng.choice([1, 2, 4, 16])
        rules = [fmrl.Known(float(guess + k * ulp)) for k in range(len(kinds))]
        if rng.random() < 0.4:
            rules = [like.similarity] * len(kinds)
        metas = [METAS[some[i]](rng, s) for i in kinds]
        if rng.random() < 0.5:  # one that stays where the others begin, but for an ulp
            middle = s.domain.middle(np.zeros(s.dim))
            metas[0] = fmrl.Fixed(np.nextafter(middle, rng.choice([-9.0, 9.0], s.dim)))
        same = like.domain, like.within, like.update
        members = [fmrl.FMRL(*same, meta, rule) for meta, rule in zip(metas, rules, strict=True)]
    return fmrl.Hedge(members, float(10 ** rng.uniform(-2, 1)) if rng.random() < 0.2 else None)


ENSEMBLES: dict[type, Callable[[Rng, Setting], Any]] = {
    fmrl.Hedge: _hedge,
    fmrl.Centres: lambda rng, s: fmrl.Centres(2, composition(rng, s, member=True)),
}

KINDS = {
    fmrl.Domain: DOMAINS, fmrl.Loss: LOSSES, fmrl.Learner: LEARNERS, fmrl.UpdateRule: UPDATES,
    fmrl.MetaUpdate: METAS, fmrl.SimilarityRule: SIMILARITIES, Ensemble: ENSEMBLES,
}  # fmt: skip


def missing() -> list[str]:
    """Public ingredients of the library that no table draws, by name."""
    found = []
    for kind, table in KINDS.items():
        public = {c for c in known(kind).values() if not isabstract(c)}
        public |= {
            c
            for c in (getattr(fmrl, name) for name in fmrl.__all__ if name not in fmrl._LATER)
            if isinstance(c, type) and issubclass(c, kind) and not isabstract(c) and c is not kind
        }
        ours = {c for c in public if c.__module__.startswith("fmrl.core")}
        found += [c.__name__ for c in ours if c not in table]
    return sorted(found)


def _favoured(rng: Rng, table: dict, *first: type) -> Any:
    """A class of a table: half of the time one of the paper's, which has theorems."""
    if rng.random() < 0.5:
        return first[rng.integers(0, len(first))]
    return list(table)[rng.integers(0, len(table))]


def composition(rng: Rng, s: Setting, member: bool = False) -> Any:
    """One `FMRL` on the domain of a setting; only what fits together.

    Args:
        rng: Random numbers.
        s: What it has to fit.
        member: Whether it is one of an ensemble, where nothing may promise privacy.
    """
    similar = _favoured(
        rng, SIMILARITIES, fmrl.Doubling, fmrl.Known, fmrl.AverageDeviation, fmrl.Doubling
    )
    within = _favoured(rng, LEARNERS, fmrl.OMD, fmrl.OGD, fmrl.FTRL)
    if s.rounds and rng.random() < 0.7:
        similar, within = fmrl.Known, (fmrl.OMD, fmrl.OGD, fmrl.FTRL)[rng.integers(0, 3)]
    if within is fmrl.FTRL and s.expensive and rng.random() < 0.8:
        within = fmrl.OGD
    meta = _favoured(rng, METAS, fmrl.FollowLeader)
    if s.domain.norm != "l2":  # what needs ½‖·‖² is refused there, and that is seen often enough
        similar = fmrl.Doubling if similar in NEEDS_L2 and rng.random() < 0.9 else similar
        within = fmrl.OGD if within is fmrl.NoisyGradients and rng.random() < 0.9 else within
        meta = fmrl.FollowLeader if meta is fmrl.Tree and rng.random() < 0.9 else meta
    update = _favoured(rng, UPDATES, fmrl.FAL)
    private = meta is fmrl.Tree or within is fmrl.NoisyGradients
    if private and member:
        meta, within = fmrl.FollowLeader, fmrl.OMD
    lipschitz = None
    if within is fmrl.NoisyGradients:
        lipschitz, update = s.steep, fmrl.FLIOnline
        meta = fmrl.FollowLeader if meta in (own.Slow, own.Leaning, fmrl.Conditional) else meta
    if meta is fmrl.Tree or within is fmrl.NoisyGradients:
        similar = fmrl.Known
    if similar is fmrl.Covariance:
        within = fmrl.FTRL
    elif lipschitz is None and rng.random() < 0.08:
        lipschitz = s.steep * float(rng.choice([1.0, 30.0, 0.3, 0.01]))
    rules = LEARNERS[within](rng, s), UPDATES[update](rng, s), METAS[meta](rng, s)
    return fmrl.FMRL(s.domain, *rules, SIMILARITIES[similar](rng, s), lipschitz)
