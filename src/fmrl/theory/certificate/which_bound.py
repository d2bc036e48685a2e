"""Which bounds apply to a run: the composition decides, and what does not apply says why."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fmrl.core.rules.meta import AdaptiveOGD, FollowLeader
from fmrl.core.rules.similarity import AverageDeviation, Doubling, Known
from fmrl.core.rules.update import FAL, FLIBatch, FLIOnline
from fmrl.core.rules.within import FTRL
from fmrl.errors import FMRLError
from fmrl.theory.bounds import limits, propositions, theorem, within
from fmrl.theory.bounds.bound import ASSUMED, CHECKED, FALSE, Assumption, Bound, decide
from fmrl.theory.bounds.geometry import Spread, distance, spread
from fmrl.theory.certificate.facts import Facts

Refusal = tuple[str, str]  # which bound, and why it is not given
BASE = ("convex losses", "Lipschitz losses", "within-task learner has a regret bound")
LEADS = (FollowLeader, AdaptiveOGD)


def choose(facts: Facts, growth: float | None) -> tuple[list[Bound], list[Refusal], Spread | None]:
    """Every bound that applies, every one that does not with the reason, and the constants of the
    optima.
    """
    bounds, refused = _summed(facts), []
    optima = updates = None
    if facts.optimum is None:
        refused.append(("meta-level theorems", "the optima were not kept; run with keep='all'"))
    else:
        try:
            optima = spread(facts.algo.domain, facts.optimum, facts.sigma)
            updates = (
                optima
                if isinstance(facts.algo.update, FAL)
                else spread(facts.algo.domain, facts.theta, facts.sigma)
            )
        except FMRLError as error:
            refused.append(("meta-level theorems", str(error)))
    if optima is not None and updates is not None:
        more, why = _meta_level(facts, optima, updates, growth)
        bounds += more
        refused += why
    good = []
    gap = float(facts.gap.mean())
    for bound in bounds:
        known = [a for a in facts.assumptions.values() if a.name in BASE and _concerns(a, bound)]
        bound = bound.given(*known)
        if bound.broken:
            refused.append(
                (bound.name, "; ".join(f"{a.name}: {a.detail or 'false'}" for a in bound.broken))
            )
        elif not math.isfinite(bound.total):
            refused.append((bound.name, f"it is infinite: {bound.dominant}"))
        else:
            good.append(bound.plus("solver gap", gap) if gap > 0 else bound)
    return good, refused, optima


def _concerns(assumption: Assumption, bound: Bound) -> bool:
    """Per-task bounds were made with the true constants where those are known; a wrong G is then no
    objection to them.
    """
    own = any(a.name == assumption.name and a.status == CHECKED for a in bound.assumptions)
    return not (own and assumption.status == FALSE)


def _summed(facts: Facts) -> list[Bound]:
    """The mean of each task's own bound, with the true G_t where the tasks were given."""
    constants = facts.lipschitz if facts.constants is None else np.maximum(facts.constants, 0.0)
    columns = facts.divergence, facts.eta, constants, facts.rounds
    found = [within.per_task(*columns), within.sharp(*columns)]
    names = ("per-task sum", "per-task sum, sharp")
    if facts.constants is None or facts.assumptions["Lipschitz losses"].status == ASSUMED:
        return [replace(b, name=n, terms=dict(b.terms)) for b, n in zip(found, names, strict=True)]
    true = Assumption("Lipschitz losses", CHECKED, "the true G_t of the tasks")
    return [
        replace(b, name=n, terms=dict(b.terms)).given(true)
        for b, n in zip(found, names, strict=True)
    ]


def _meta_level(
    facts: Facts, optima: Spread, updates: Spread, growth: float | None
) -> tuple[list[Bound], list[Refusal]]:
    algo = facts.algo
    what = f"{type(algo.update).__name__} + {type(algo.meta).__name__} + {type(algo.similarity).__name__}"
    if facts.earlier:
        return [], [
            (
                "meta-level theorems",
                f"the history begins after {facts.earlier} tasks; they speak of whole runs",
            )
        ]
    if facts.meta_batch > 1:
        return [], [
            (
                "meta-level theorems",
                f"phi moved once in {facts.meta_batch} tasks (meta_batch); they need it after every task",
            )
        ]
    if not isinstance(algo.meta, LEADS):
        return [], [
            (
                "meta-level theorems",
                f"phi must be the running mean of the update vectors, not {type(algo.meta).__name__}()",
            )
        ]
    if not isinstance(algo.update, (FAL, FLIOnline, FLIBatch)):
        return [], [("meta-level theorems", f"nothing is known about {algo.update!r}")]
    if isinstance(algo.similarity, Doubling):
        return (_exact if isinstance(algo.update, FAL) else _approx)(
            facts, algo.similarity, optima, updates, growth
        )
    if isinstance(algo.similarity, Known) and isinstance(algo.update, FAL):
        given = {"deviation": optima.deviation, "C": optima.C, "first": float(facts.divergence[0])}
        return [
            theorem.known(facts.sigma, algo.similarity.D, **given).given(*_geometry(optima))
        ], []
    if isinstance(algo.similarity, AverageDeviation) and isinstance(algo.update, FAL):
        given = {"deviation": optima.deviation, "C": optima.C}
        bound = theorem.adaptive(facts.sigma, facts.divergence, float(facts.guess[0]), **given)
        return [bound.given(*_geometry(optima))], []
    return [], [("meta-level theorems", f"the paper has none for {what}")]


def _geometry(updates: Spread) -> tuple[Assumption, ...]:
    detail = f"G' = {updates.lipschitz:.4g}" + (", nice" if updates.nice else ", not nice")
    status = CHECKED if updates.bounded else FALSE
    detail = (
        detail
        if updates.bounded
        else "a point gives no mass to what another needs; use Simplex(floor=…)"
    )
    names = ("the hull of the optima", "the hull of the update vectors")
    return tuple(Assumption(f"B_R(θ‖·) is Lipschitz on {name}", status, detail) for name in names)


def _first(facts: Facts, rule: Doubling) -> tuple[float, Assumption]:
    """D of the first task, as the run guessed it, and whether that covers where the first task
    really was.
    """
    reach = float(facts.guess[0]) - rule.epsilon
    far = math.sqrt(max(facts.divergence[0], facts.deviation[0]))
    return reach, decide(
        "the first guess covers the first task",
        far <= reach * (1 + 1e-9),
        f"{far:.4g} against {reach:.4g}",
    )


def _exact(facts: Facts, rule: Doubling, optima: Spread, updates: Spread, growth: float | None):
    reach, covered = _first(facts, rule)
    D = max(reach, optima.diameter)
    shared: dict[str, Any] = {
        "deviation": optima.deviation,
        "C": optima.C,
        "epsilon": rule.epsilon,
        "gamma": rule.gamma,
    }
    hull = _geometry(optima)
    if not optima.bounded:
        return [], [("FAL theorem", hull[0].detail)]
    bounds = [
        theorem.upper(
            facts.sigma,
            diameter=D,
            task_diameter=optima.diameter,
            violations=facts.violations,
            **shared,
        ).given(covered, *hull)
    ]
    refused: list[Refusal] = []
    G, m = facts.lipschitz, facts.rounds
    if facts.tasks > 1 and np.ptp(G) <= 1e-9 * G.max() and np.ptp(m) == 0:
        same = Assumption("the same G and m in every task", CHECKED)
        numbers = (optima.diameter, D, float(G.max()), float(m[0]), facts.tasks)
        bounds.append(theorem.exact(*numbers, **shared).given(covered, same, *hull))
        choice = theorem.tuned(D, facts.tasks)
        if all(
            math.isclose(getattr(rule, name), value, rel_tol=1e-6) for name, value in choice.items()
        ):
            bounds.append(theorem.exact(*numbers, C=optima.C).given(covered, same, *hull))
    else:
        refused.append(
            ("FAL corollary", "G_t or m_t differ between tasks; the theorem above allows that")
        )
    return bounds, refused


def _approx(facts: Facts, rule: Doubling, optima: Spread, updates: Spread, growth: float | None):
    domain, sigma = facts.algo.domain, facts.sigma
    if not math.isfinite(optima.beta):
        return [], [("general theorem", f"R is not smooth on {domain!r}; use Simplex(floor=…)")]
    if not (optima.bounded and updates.bounded):
        return [], [("general theorem", _geometry(updates)[0].detail)]
    reach, covered = _first(facts, rule)
    shared = {
        "task_diameter": optima.diameter,
        "deviation": optima.deviation,
        "C": updates.C,
        "violations": facts.violations,
        "epsilon": rule.epsilon,
        "gamma": rule.gamma,
    }
    assert facts.theta is not None and facts.optimum is not None
    total = float(sigma.sum())
    run = propositions.measured(
        facts.divergence,
        facts.deviation,
        sigma,
        updates.deviation**2 * total,
        optima.deviation**2 * total,
        float(np.max(distance(domain, facts.theta, facts.optimum))),
        beta=optima.beta,
    )
    hull = _geometry(updates)
    found = theorem.upper(
        sigma, diameter=max(reach, optima.diameter), **shared, **run.values()
    ).given(covered, *hull)
    bounds = [replace(found, name="general theorem, measured", terms=dict(found.terms))]
    refused: list[Refusal] = []
    if isinstance(facts.algo.update, FLIBatch):
        refused.append(
            (
                "Proposition B.3",
                "it compares with risk minimisers, which a history does not hold; see bounds.fli_batch",
            )
        )
    elif growth is None:
        refused.append(
            (
                "Proposition B.1",
                "it needs α-quadratic growth; give growth=α (fmrl.theory.growth estimates it)",
            )
        )
    elif not (isinstance(facts.algo.within, FTRL) or facts.linear):
        refused.append(
            (
                "Proposition B.1",
                f"its last action must be FTRL's, not that of {facts.algo.within!r}",
            )
        )
    else:
        D = domain.diameter(facts.optimum.shape[1])
        p = propositions.fli_online(
            growth, rule.epsilon, D, facts.lipschitz, facts.rounds, beta=optima.beta
        )
        if math.isfinite(D):
            found = theorem.upper(sigma, diameter=max(D, reach), **shared, **p.values()).given(
                covered, *hull
            )
            bounds.append(
                replace(found, name="general theorem, by growth", terms=dict(found.terms))
            )
        else:
            refused.append(("Proposition B.1", f"{domain!r} has no diameter"))
    return bounds, refused


def limit(facts: Facts, optima: Spread | None) -> Bound | None:
    """What an adversary could force with optima as far apart as these; None where the theorem is
    silent.
    """
    if (
        optima is None
        or not (optima.nice and optima.tight)
        or facts.optimum is None
        or facts.optimum.shape[1] < 3
        or not optima.width > 0
    ):
        return None
    return limits.lower(optima.width, facts.lipschitz, facts.rounds)
