"""Which bounds apply to a run: the composition decides, and what does not apply says why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fmrl.core.domains import Domain
from fmrl.core.meta_level import starts_of
from fmrl.core.privacy import clipped
from fmrl.core.rules.ewoo import EWOO
from fmrl.core.rules.meta import AdaptiveOGD, End, FollowLeader
from fmrl.core.rules.moving import Conditional, Discounted, Mixture, Restart, Window
from fmrl.core.rules.private import Tree
from fmrl.core.rules.shape import FullMatrix, Isotropic, PerCoordinate
from fmrl.core.rules.similarity import AverageDeviation, Doubling, Known, rounding
from fmrl.core.rules.update import FAL, FLIBatch, FLIOnline
from fmrl.core.rules.within import FTRL
from fmrl.core.tasks import Rounds
from fmrl.errors import FMRLError
from fmrl.theory import bounds as library
from fmrl.theory.bounds import ASSUMED, CHECKED, FALSE, Assumption, Bound, Spread
from fmrl.theory.bounds.bound import HULL_OF_OPTIMA, HULL_OF_UPDATES, decide, numbers
from fmrl.theory.bounds.learned_steps import OPTIMA
from fmrl.theory.bounds.moving import FIXED, INSIDE, WITHIN, forward_regression
from fmrl.theory.bounds.privacy import UNCLIPPED
from fmrl.theory.certificate.facts import Facts
from fmrl.theory.transfer import span

Found = tuple[list[Bound], list[tuple[str, str]]]  # bounds; and the others, with the reason
UNLUCKY = 100  # one run in so many may have noise beyond the bound of a private mean
NO_MASS = "an optimum lies where phi has no mass"


def applicable_bounds(facts: Facts, growth: float | None) -> tuple[list, list, Spread | None]:
    """The bounds that apply, those that do not with the reason, and the constants of the optima."""
    optima, updates, missing = _spreads(facts)
    summed, refused = _attempt("per-task sum", lambda: _summed(facts))
    level = "meta-level theorems"
    more, why = _attempt(level, lambda: _meta_level(facts, optima, updates, growth, missing))
    bounds, refused = summed + more, refused + why
    good, gap = [], float(facts.gap.mean())
    for bound in bounds:
        bound = bound.given(*_run_assumptions(facts, bound))
        if bound.broken:
            why = "; ".join(f"{a.name}: {a.detail or 'false'}" for a in bound.broken)
            refused.append((bound.name, why))
        elif not math.isfinite(bound.total):
            refused.append((bound.name, f"it is infinite: {bound.dominant}"))
        elif why := contradiction(facts, bound):
            refused.append((bound.name, why))
        else:
            good.append(bound.plus("solver gap", gap) if gap > 0 else bound)
    return good, refused, optima


def contradiction(facts: Facts, bound: Bound) -> str:
    """Why a bound cannot hold, if it lies below what was measured; or nothing."""
    measured = float(facts.regret.mean() - facts.digit * np.abs(facts.regret).mean())
    if bound.total >= measured or "privacy" in bound.terms:  # that one may fail in one run of many
        return ""
    trust = ", ".join(a.name for a in bound.assumptions if a.status == ASSUMED)
    why = f"it is {bound.total:.4g}, and {measured:.4g} was measured"
    return f"{why}: not all is true of {trust or 'what was checked'}"


def _attempt(name: str, bounds: Callable[[], Found]) -> Found:
    """The bounds; where their numbers are no theorem's, the reason."""
    try:
        return bounds()
    except FMRLError as error:
        return [], [(name, str(error))]


def _spreads(facts: Facts) -> tuple[Spread | None, Spread | None, str]:
    """The constants of the optima and of the update vectors, or why there are none."""
    if facts.optimum is None:
        many = "an estimator keeps ten million numbers of them, fmrl.run all with keep='all'"
        return None, None, f"the optima were not kept: {many}"
    domain, exact = facts.algo.domain, facts.algo.update.exact
    try:
        optima = library.spread(domain, facts.optimum, facts.sigma)
        updates = optima if exact else library.spread(domain, facts.theta, facts.sigma)
    except FMRLError as error:
        return None, None, str(error)
    return optima, updates, ""


def _run_assumptions(facts: Facts, bound: Bound) -> list[Assumption]:
    """What is known of the run. Per-task bounds were made with the true constants where those are
    known; that the run used wrong ones does not concern them."""
    own = {a.name for a in bound.assumptions if a.status == CHECKED}
    known = [a for name, a in facts.assumptions.items() if name != INSIDE.name]
    return [a for a in known if not (a.status == FALSE and a.name in own)]


def _summed(facts: Facts) -> Found:
    """The mean of each task's own bound: of the gradients where they were observed, else with the
    true G_t where the tasks were given."""
    if facts.distance is not None:
        return [library.in_metric(facts.distance, facts.energy)], []
    if facts.metric:
        rule = facts.algo.similarity
        why = f"the step is a metric, and {rule!r} does not observe the gradients it needs"
        return [], [("per-task sum", why)]
    constants = facts.lipschitz if facts.true_lipschitz is None else facts.true_lipschitz
    columns = facts.divergence, facts.eta, constants, facts.rounds
    found = [replace(library.per_task(*columns), name="per-task sum"), library.sharp(*columns)]
    if facts.true_lipschitz is None or facts.assumptions["Lipschitz losses"].status == ASSUMED:
        return found, []
    true = Assumption("Lipschitz losses", CHECKED, "the true G_t of the tasks")
    return [bound.given(true) for bound in found], []


def _meta_level(
    facts: Facts, optima: Spread | None, updates: Spread | None, growth: float | None, missing: str
) -> Found:
    algo, batch = facts.algo, facts.meta_batch
    update, meta, similarity = rules = type(algo.update), type(algo.meta), type(algo.similarity)
    start = f"the history begins after {facts.earlier} tasks; they speak of whole runs"
    batches = f"phi moved once in {batch} tasks (meta_batch); they need it after every task"
    mean = f"phi must be the running mean of the update vectors, not {meta.__name__}()"
    none = f"the paper has none for {' + '.join(rule.__name__ for rule in rules)}"
    guess = f"with {meta.__name__} they need FAL and Known or AverageDeviation"
    guess = "with Tree they need FAL or FLI, and Known" if meta is Tree else guess
    square = f"for {meta.__name__} they need R = ½‖·‖², which {algo.domain!r} does not have"
    observed = facts.distance is not None and similarity not in LEARNED
    checks = [
        (observed, f"none is known for {algo.similarity!r}"),
        (facts.earlier, start),
        (batch > 1, batches),
        (similarity is AverageDeviation and not np.all(np.isfinite(facts.divergence)), NO_MASS),
    ]
    if similarity not in LEARNED:
        checks += [
            (meta in UNBOUNDED, UNBOUNDED.get(meta, "")),
            (meta not in (FollowLeader, AdaptiveOGD, *MOVING), mean),
            (meta in MOVING and (update, similarity) not in PAIRS_WITH_GUESS[meta is Tree], guess),
            (meta in (Discounted, Conditional) and algo.domain.norm != "l2", square),
            (update not in (FAL, FLIOnline, FLIBatch), f"nothing is known about {algo.update!r}"),
            (meta not in MOVING and (update, similarity) not in THEOREMS, none),
        ]
    for wrong, why in checks:
        if wrong:
            return [], [("meta-level theorems", why)]
    if similarity in LEARNED:
        return [LEARNED[similarity](facts).given(_of_optima(facts))], []
    if optima is None or updates is None:
        return [], [("meta-level theorems", missing)]
    if meta in MOVING:
        found, refused = MOVING[meta](facts, optima)
    else:
        found, refused = THEOREMS[update, similarity](facts, optima, updates, growth)
        found = [replace(bound, note=bound.note or FIXED) for bound in found]
    return [bound.given(*facts.domain_assumptions[1:]) for bound in found], refused


def _geometry(points: Spread) -> list[Assumption]:
    detail = "a point gives no mass to what another needs; use Simplex(floor=…)"
    if points.bounded:
        detail = f"G' = {points.lipschitz:.4g}" + (", nice" if points.nice else ", not nice")
    optima = decide(HULL_OF_OPTIMA.name, points.bounded, detail)
    return [optima, decide(HULL_OF_UPDATES.name, points.bounded, detail)]


def _first_guess(facts: Facts) -> tuple[float, Assumption]:
    """D of the first task, as the run guessed it, and whether the first task was that near."""
    reach = float(facts.guess[0]) - facts.algo.similarity.epsilon
    far = math.sqrt(max(facts.divergence[0], facts.deviation[0]))
    name, detail = "the first guess covers the first task", f"{far:.4g} against {reach:.4g}"
    return reach, decide(name, far <= reach * (1 + 1e-9), detail)


def _known_similarity(facts: Facts, optima: Spread, updates: Spread, growth) -> Found:
    D, first = facts.algo.similarity.D, float(facts.divergence[0])
    given = {"deviation": optima.deviation, "C": optima.C, "first": first}
    return [library.known(facts.sigma, D, **given).given(*_geometry(optima))], []


def _average_deviation(facts: Facts, optima: Spread, updates: Spread, growth) -> Found:
    given = {"deviation": optima.deviation, "C": optima.C}
    bound = library.adaptive(facts.sigma, *_measured(facts), **given)
    return [_with_epsilon(bound, facts).given(*_geometry(optima))], []


def _measured(facts: Facts) -> tuple[np.ndarray, float]:
    """Deviations as `AverageDeviation` counts them, and its first guess."""
    near = facts.divergence <= rounding(facts.guess[:1])
    return np.where(near, 0.0, facts.divergence), float(facts.guess[0])


def _with_epsilon(bound: Bound, facts: Facts) -> Bound:
    """D_t is at most epsilon more than the root of the mean, and never less."""
    epsilon = facts.algo.similarity.epsilon  # type: ignore[attr-defined]
    return bound.plus("epsilon", epsilon * float(facts.sigma.mean())) if epsilon else bound


def _fal_doubling(facts: Facts, optima: Spread, updates: Spread, growth) -> Found:
    hull, star, rule = _geometry(optima), optima.diameter, facts.algo.similarity
    if not optima.bounded:
        return [], [("FAL theorem", hull[0].detail)]
    reach, covered = _first_guess(facts)
    D, C, T, G, m = max(reach, star), optima.C, facts.count, facts.lipschitz, facts.rounds
    choice = {"epsilon": rule.epsilon, "gamma": rule.gamma}
    shared = {"deviation": optima.deviation, "C": C, **choice}
    times = {"violations": facts.violations}
    found = [library.upper(facts.sigma, diameter=D, task_diameter=star, **times, **shared)]
    refused = []
    alike = np.ptp(G) <= 1e-9 * G.max() and np.ptp(m) == 0
    if T > 1 and alike:
        same = Assumption("the same G and m in every task", CHECKED)
        run = (star, D, float(G.max()), float(m[0]), T)
        found.append(library.exact(*run, **shared).given(covered, same))
        tuned = library.tuned(D, T)
        if all(math.isclose(choice[name], tuned[name], rel_tol=1e-6) for name in choice):
            chosen = Assumption("ε = D(1 + log T)/T and γ = (1 + log T)/log T", CHECKED)
            found.append(library.exact(*run, C=C).given(covered, same, chosen))
    elif not alike:
        refused.append(("FAL corollary", "G_t or m_t differ between tasks"))
    found = [bound.given(covered, *hull) for bound in found]
    more, why = ([], []) if growth is None else _independent_rows(facts, optima, updates, growth)
    return found + more, refused + why


def _general(
    facts: Facts, updates: Spread, name: str, parameters: library.Parameters, *,
    task_diameter: float, deviation: float, diameter: float = 0.0, scale: float = 1.0,
) -> Bound:  # fmt: skip
    """The general theorem, of losses that are divided by ``scale``."""
    rule, (reach, covered) = facts.algo.similarity, _first_guess(facts)
    given = {"task_diameter": task_diameter, "deviation": deviation, "C": updates.C}
    given |= {"violations": facts.violations, "epsilon": rule.epsilon, "gamma": rule.gamma}
    given |= {"diameter": max(diameter, reach, task_diameter), **parameters.values()}
    found = library.upper(facts.sigma / scale, **given)
    terms = {key: scale * value for key, value in found.terms.items()}
    status = ASSUMED if facts.domain_assumptions else CHECKED
    smooth = Assumption("R is smooth", status, f"β = {parameters.beta:g}")
    found = replace(found, name=f"general theorem, {name}", terms=terms)
    return found.given(covered, smooth, *_geometry(updates))


def _fli_doubling(facts: Facts, optima: Spread, updates: Spread, growth: float | None) -> Found:
    (domain, rule), sigma = (facts.algo.domain, facts.algo.similarity), facts.sigma
    if not math.isfinite(optima.beta):
        return [], [("general theorem", f"R is not smooth on {domain!r}; use Simplex(floor=…)")]
    if not (optima.bounded and updates.bounded):
        return [], [("general theorem", _geometry(updates)[0].detail)]
    spreads = (s.deviation**2 * float(sigma.sum()) for s in (updates, optima))
    far = float(np.max(library.distance(domain, facts.theta, facts.optimum)))
    columns = facts.divergence, facts.deviation, sigma
    parameters = library.measured(*columns, *spreads, far, beta=optima.beta)
    known = {"task_diameter": optima.diameter, "deviation": optima.deviation}
    near = Assumption("distance from update vectors to optima", CHECKED, "measured in the run")
    bounds = [_general(facts, updates, "measured", parameters, **known).given(near)]
    D, within, why = domain.diameter(optima.mean.size), facts.algo.within, ""
    if type(facts.algo.update) is FLIBatch:
        more, refused = _independent_rows(facts, optima, updates, growth)
        return bounds + more, refused
    if growth is None:
        why = "it needs α-quadratic growth of mean losses; give growth=α, that of the summed losses"
        why += " (fmrl.theory.growth estimates it) divided by the rounds"
    elif not (type(within) is FTRL or facts.linear):
        why = f"its last action must be FTRL's, not that of {within!r}"
    elif not math.isfinite(D):
        why = f"{domain!r} has no diameter"
    else:
        per_task = (facts.lipschitz, facts.rounds)
        grown = library.fli_online(growth, rule.epsilon, D, *per_task, beta=optima.beta)
        bounds.append(_general(facts, updates, "by growth", grown, **known, diameter=D))
    return bounds, [("general theorem, by growth", why)] if why else []


def _independent_rows(facts: Facts, optima: Spread, updates: Spread, growth: float | None) -> Found:
    """Setting 3.1(b): against the minimisers of the tasks' risks, where rows are i.i.d. Chance and
    growth say how far from the optima these may be.
    """
    domain, rule = facts.algo.domain, facts.algo.similarity
    batch = type(facts.algo.update) is FLIBatch
    D, name = domain.diameter(optima.mean.size), "general theorem, i.i.d. rows"
    if growth is None:
        return [], [(name, "it needs α-quadratic growth of the risks; give growth=α")]
    if facts.tasks is None or facts.has_foreign_losses:
        return [], [(name, "it needs tasks of this library's losses; give tasks=")]
    if domain.norm != "l2" or not math.isfinite(D):
        return [], [(name, f"it needs a bounded set with R = ½‖·‖², not {domain!r}")]
    games = [task.open() for task in facts.tasks]
    low, high = np.transpose([span(game, domain) for game in games])
    scale = max(float(high.max() - low.min()), 1e-300)  # the theorem is of losses in [0, 1]
    G = np.array([_steepest(game, domain) for game in games]) / scale
    linear = all(game.loss.outputs == 1 for game in games)
    given: dict[str, Any] = {"dim": "linear" if linear else optima.mean.size, "radius": D}
    alpha, failure = growth / scale, 1 / UNLUCKY
    u = library.excess(G, facts.rounds, failure / (2 * facts.count), **given, alpha=alpha)
    far = math.sqrt(float(u.max()) / alpha)  # √B between an optimum and the minimiser of its risk
    star = optima.diameter + 2 * far
    if batch:
        steps = rule.epsilon, rule.gamma, D, G, facts.rounds, failure
        parameters = library.fli_batch(alpha, *steps, **given, task_diameter=star)
    else:
        parameters = library.fal_stochastic(alpha, G, facts.rounds, failure, **given)
    known = {"task_diameter": star, "deviation": min(star, optima.deviation + far)}
    bound = _general(facts, updates, "i.i.d. rows", parameters, **known, scale=scale)
    detail = f"or in [{low.min():.4g}, {high.max():.4g}], as those at hand"
    rows = Assumption("rounds i.i.d. in each task, losses in [0, 1]", ASSUMED, detail)
    form = [Assumption("losses of one linear form, in l2", CHECKED)] if linear else []
    note = f"{FIXED[:-1]} for the minimisers of the tasks' risks, in all but 1 run of {UNLUCKY}."
    return [replace(bound, note=note).given(rows, *form)], []


def _steepest(game: Rounds, domain: Domain) -> float:
    """The largest Lipschitz constant of a round: each as a task of its own."""
    apart = {"X": game.X[:, None, :], "target": game.target[:, None, :], "rounds": game.weight}
    constants = replace(game, **apart, weight=game.weight[:, None]).lipschitz(domain)
    return float(np.max(numbers(constants)))


def _of_optima(facts: Facts) -> Assumption:
    """Whether the rule measured the distances of which Theorem A.1 speaks."""
    update, finite = facts.algo.update, bool(np.all(np.isfinite(facts.deviation)))
    detail = "" if finite else NO_MASS
    if type(update) is not FAL:
        detail = f"the rule was told the distance to the vectors of {update!r}"
    return decide(OPTIMA.name, type(update) is FAL and finite, detail)


def _learned_metric(facts: Facts) -> Bound:
    rule, (near, steep, cost) = facts.algo.similarity, map(facts.of_this_order, facts.memory[1:4])
    given = {"epsilon": rule.epsilon, "zeta": rule.zeta, "tasks": facts.count}
    return library.learned_metric(near, steep, max(0.0, float(cost)), **given)


def _weighted_guess(facts: Facts) -> Bound:
    rule, D = facts.algo.similarity, float(facts.of_this_order(facts.memory[3]))
    return library.ewoo(facts.sigma, facts.deviation, rule.epsilon, D, heaviest=rule.sigma)


def _guessed(facts: Facts, summed: Bound) -> Bound:
    """TAR from a bound on Σ sigma·B, by the rule that guesses."""
    rule = facts.algo.similarity
    if type(rule) is Known:
        return library.with_guess(summed, facts.sigma, rule.D).given(_of_optima(facts))
    far, first = _measured(facts)
    found = library.with_guess(summed, facts.sigma, first, far)
    return _with_epsilon(found, facts).given(_of_optima(facts))


def _discounted(facts: Facts, optima: Spread) -> Found:
    """The best of several paths: one point, and moving averages of the optima of several widths."""
    rule: Any = facts.algo.meta
    theta: Any = facts.optimum
    sigma = facts.sigma
    paths = {0: np.broadcast_to(optima.mean, theta.shape)}
    total = np.concatenate([np.zeros((1, theta.shape[1])), np.cumsum(theta, axis=0)])
    at, size = np.arange(len(theta)), 1
    while size < len(theta):
        low, high = np.maximum(at - size // 2, 0), np.minimum(at + size // 2 + 1, len(theta))
        paths[size] = (total[high] - total[low]) / (high - low)[:, None]
        size *= 3
    first = float(facts.divergence[np.argmax(sigma > 0)])
    given = {"width": optima.width, "first": first, "sigma": sigma}
    found = {n: library.dynamic(theta, path, rule.alpha, **given) for n, path in paths.items()}
    size = min(found, key=lambda n: found[n].total)
    best, later = found[size], np.flatnonzero(sigma > 0)[1:]  # the first is not moved to the hull
    near = bool(np.all(facts.divergence[later] <= optima.width**2 / 2 * (1 + 1e-6)))
    hull = decide(WITHIN.name, near, "the path and phi lie in the hull of the optima")
    if size:
        best = replace(best, note=f"{best.note[:-1]}: the optima averaged over {size} tasks.")
    return [_guessed(facts, best.given(hull))], []


def _mixture(facts: Facts, optima: Spread) -> Found:
    """What the members would have cost, each played again on the optima."""
    algo, rule, costs = facts.algo, facts.algo.meta, []
    assert isinstance(rule, Mixture)
    _, starts, _, owns = facts.of_this_order(facts.meta[0])
    ends = End(facts.optimum, facts.optimum, facts.sigma)
    for k, (meta, own) in enumerate(zip(rule.metas, owns, strict=True)):
        phi, _, _ = starts_of(replace(algo, meta=meta), starts[k], own, ends)
        costs.append(algo.domain.divergence(facts.optimum, phi))
    wide = math.sqrt(rule._width(algo.domain, optima.mean.size))
    width = wide if algo.domain.norm == "l2" else None
    found = library.mixture(np.stack(costs, axis=1), facts.sigma, width, share=rule.share)
    return [_guessed(facts, found)], []


def _conditional(facts: Facts, optima: Spread) -> Found:
    rule: Any = facts.algo.meta
    A, moment, first = facts.of_this_order(facts.meta[1])
    found = forward_regression(facts.optimum - first, A, moment, rule.ridge, facts.sigma)
    return [_guessed(facts, found.given(facts.assumptions[INSIDE.name]))], []


def _private(facts: Facts, optima: Spread) -> Found:
    """The noisy mean, but for one run in `UNLUCKY`."""
    domain, rule, theta = facts.algo.domain, facts.algo.meta, np.asarray(facts.theta)
    assert isinstance(rule, Tree)
    _, _, _, start, scale, _ = facts.of_this_order(facts.meta[0])
    sent = start + clipped(domain.project(theta) - start, rule.reach(domain, start)[0])
    given: dict[str, Any] = {"failure": 1 / UNLUCKY, "sigma": facts.sigma}
    given |= {"most": domain.diameter(theta.shape[1]) ** 2}
    given |= {"scale": float(scale), "first": float(domain.divergence(sent[0], start))}
    if type(facts.algo.update) is FAL and np.allclose(sent, theta, rtol=0, atol=1e-6):
        found = library.private(theta, **given).given(decide(UNCLIPPED.name, True))
        return [_guessed(facts, found)], []
    found = library.private(sent, optimum=facts.optimum, **given)
    found = library.with_guess(found, facts.sigma, facts.algo.similarity.D)
    measured = Assumption(OPTIMA.name, CHECKED, "how far optima are from them is measured")
    return [found.given(measured)], []


# Meta-updates with a bound on Σ sigma·B of their own, and the rules that need no more than it.
MOVING = {
    Discounted: _discounted, Mixture: _mixture, Conditional: _conditional, Tree: _private,
}  # fmt: skip
PAIRS_WITH_GUESS = {
    False: ((FAL, Known), (FAL, AverageDeviation)),
    True: ((FAL, Known), (FLIOnline, Known), (FLIBatch, Known)),  # a private mean
}
UNBOUNDED = {
    Window: "no bound is known for a Window by itself; in a Mixture it needs none",
    Restart: "none is stated for a Restart by itself; in a Mixture it needs none",
}

# Rules that learn the step. Their theorems hold for every way to move phi.
LEARNED = {
    Isotropic: _learned_metric,
    PerCoordinate: _learned_metric,
    FullMatrix: _learned_metric,
    EWOO: _weighted_guess,
}

# By the exact types of the update and the similarity rule: a subclass may change anything.
THEOREMS = {
    (FAL, Doubling): _fal_doubling,
    (FAL, Known): _known_similarity,
    (FAL, AverageDeviation): _average_deviation,
    (FLIOnline, Doubling): _fli_doubling,
    (FLIBatch, Doubling): _fli_doubling,
}


def limit(facts: Facts, optima: Spread | None) -> Bound | None:
    """What an adversary could force with optima as far apart as these; None where it is silent."""
    if optima is None or not (optima.nice and optima.tight and optima.width > 0):
        return None
    enough = optima.mean.size >= 3
    return library.lower(optima.width, facts.lipschitz, facts.rounds) if enough else None
