"""certify: from the history of a run to a certificate of how good it was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fmrl.core.history import History
from fmrl.theory.bounds.bound import ASSUMED, FALSE, Assumption
from fmrl.theory.certificate.facts import Facts, gather
from fmrl.theory.certificate.value import POINTS, Certificate
from fmrl.theory.certificate.which_bound import choose, limit

__all__ = ["Certificate", "certify"]


def certify(
    history: History,
    tasks: Iterable[Any] | None = None,
    *,
    loss: Any = None,
    growth: float | None = None,
    order: int | None = None,
) -> Certificate:
    """Measure a run against every bound that applies to the composition which produced it.

    ``tasks``, in the order they were played, lets convexity and Lipschitz constants be checked
    rather than assumed; so does ``loss``, for a run of the library's own linear models that were
    all played with it. ``growth`` is α, if the tasks' mean losses are known to grow quadratically
    (for FLI-Online). ``order`` picks one of several orders. A run that no theorem speaks of —
    foreign, non-convex, an unknown learner — yields a certificate that says so and why.

    >>> import numpy as np, fmrl
    >>> tasks = [fmrl.Task(np.eye(3), t * np.array([0.1, 0.2, 0.0]), loss=fmrl.Squared()) for t in (0.5, 1.0, 1.5, 2.0)]
    >>> c = certify(fmrl.run(fmrl.presets.paper(), tasks), tasks)
    >>> [b.name for b in c.bounds]
    ['per-task sum, sharp', 'per-task sum', 'FAL theorem']
    >>> c.violations, round(c.similarity["D*"], 4)
    ((2, 3), 0.2372)
    """
    if not isinstance(history, History):
        what = type(history).__name__
        why = (
            getattr(history, "nonconvex", None)
            or "no theorem here speaks of it: only a History of convex tasks can be certified"
        )
        return Certificate(composition=what, reason=f"{what}: {why}")
    if not len(history):
        return Certificate(composition=repr(history.algo), reason="no task was played")
    if history.keep == "totals":
        return Certificate(
            composition=repr(history.algo),
            reason="only totals were kept; run with keep='scalars' or 'all'",
        )
    facts = gather(history, tasks, order, loss)
    bounds, refused, optima = choose(facts, growth)
    bounds.sort(key=lambda b: b.total)
    similarity = {}
    if optima is not None:
        similarity = {
            "D*": optima.diameter,
            "D̄": optima.deviation,
            "D": facts.algo.domain.diameter(optima.mean.size),
        }
        if not optima.tight:
            refused.append(
                ("exact D*", "there are many tasks; D* is an upper bound, at most twice too large")
            )
    low = float(facts.regret.mean())
    return Certificate(
        composition=repr(facts.algo),
        tasks=facts.tasks,
        interval=(low, low + float(facts.gap.mean())),
        similarity=similarity,
        violations=facts.violations,
        bounds=tuple(bounds),
        refused=tuple(refused),
        limit=limit(facts, optima),
        assumptions=_table(facts, bounds, growth),
        curves=_curves(facts),
        reason="" if bounds else "; ".join(f"{name}: {why}" for name, why in refused),
    )


def _table(facts: Facts, bounds: list, growth: float | None) -> tuple[Assumption, ...]:
    """Every assumption of the run and of its bounds, once; false beats assumed beats checked."""
    rank = {FALSE: 0, ASSUMED: 1}
    table = dict(facts.assumptions)
    for bound in bounds:
        for a in bound.assumptions:
            if a.name not in table or (
                a.name not in facts.assumptions
                and rank.get(a.status, 2) < rank.get(table[a.name].status, 2)
            ):
                table[a.name] = a
    if not facts.algo.update.exact and growth is None:
        table.setdefault(
            "α-quadratic growth",
            Assumption("α-quadratic growth", ASSUMED, "not supplied, and not used"),
        )
    return tuple(table.values())


def _curves(facts: Facts) -> dict[str, tuple[float, ...]]:
    """Running means, thinned to what a figure needs."""
    T = facts.tasks
    from fmrl.core.algorithm import bound

    each = bound(
        facts.divergence,
        facts.eta,
        facts.lipschitz if facts.constants is None else facts.constants,
        facts.rounds,
    )
    count = np.arange(1, T + 1)
    keep = np.unique(np.geomspace(1, T, min(T, POINTS)).round().astype(int)) - 1
    columns = {
        "task": count,
        "tar": np.cumsum(facts.regret) / count,
        "bound": np.cumsum(each) / count,
    }
    return {name: tuple(float(x) for x in column[keep]) for name, column in columns.items()}
