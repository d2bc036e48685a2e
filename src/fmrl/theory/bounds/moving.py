"""Environments that move and environments with several centres: what Σ sigma_t·B_R(θ_t‖phi_t)
costs against comparators that are richer than one fixed phi, and what choosing among compositions
or centres costs.

`dynamic`, `mixture` and `conditional` bound that sum; `with_guess` turns such a bound into one on
the task-averaged regret. `hedge` and `centres` bound the regret itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.average_regret import growth_factor
from fmrl.theory.bounds.bound import (
    CONVEX,
    LIPSCHITZ,
    NEAR,
    Assumption,
    Bound,
    at_least,
    average,
    decide,
    nonnegative,
    numbers,
    positive_if_given,
    same_length,
)
from fmrl.theory.bounds.learned_steps import OPTIMA

WITHIN = Assumption("no phi lies further from the path than the width")
INSIDE = Assumption("optima in the domain")
FIXED = "The comparator is the best fixed phi."


def _table(value: Any, name: str, rows: int | None = None) -> np.ndarray:
    """[T, n] without NaN, T as given."""
    out = numbers(value)
    if out.ndim != 2 or not out.size or len(out) != (rows or len(out)) or np.isnan(out).any():
        raise FMRLError(f"{name} must have one row of numbers for each task, not {out.shape}")
    return out


def dynamic(
    theta: Any, path: Any, alpha: float, *, width: float, first: float, sigma: Any = 1.0
) -> Bound:
    """Σ sigma_t·B(θ_t‖phi_t) of `Discounted`, or with alpha = 0 of `FollowLeader`, against any path
    ψ_1 … ψ_T; R = ½‖·‖².

        sigma_1·B(θ_1‖phi_1) + Σ_{t≥2} sigma_t·B(θ_t‖ψ_t)/(1 − a_t)
            + sigma_2·‖θ_1 − ψ_2‖²/(2a_2) + Σ_{t≥2} cost of the step ψ_t → ψ_{t+1}

    with a_t = max(alpha, sigma_t/sigma_{1:t}). With equal sigma and a_t = alpha a step of length p
    costs at most sigma·min(width·p/alpha, p²/(2·alpha²)). Where sigma grows by more than the factor
    1/(1 − a_t) from a task to the next, the growth is charged too.

    Args:
        theta: Update vectors, [T, d].
        path: The comparator, [T, d]; equal rows are a fixed one.
        alpha: Of the rule, from 0 to 1.
        width: No phi_t after the first is further from ψ_{t−1} or ψ_t. The width of the hull of the
            update vectors is enough where the path lies in that hull.
        first: B(θ_1‖phi_1), of the first task whose sigma is not 0.
        sigma: Weights, a number or [T].

    >>> dynamic([[0.0], [1.0], [2.0], [3.0]], [[0.0], [1.0], [2.0], [3.0]], 0.5, width=3, first=0)
    Bound(path = 5: first task 0 + comparator 0 + beginning 1 + path 4)
    """
    theta = _table(theta, "theta")
    path = _table(path, "path", len(theta))
    sigma = np.broadcast_to(nonnegative(sigma, "sigma"), (len(theta),))
    at_least(0, alpha=alpha, width=width, first=first)
    if alpha > 1 or path.shape != theta.shape:
        raise FMRLError("alpha must be at most 1, and theta and path of one shape")
    # A task that weighs nothing costs nothing and moves nothing.
    theta, path, s = theta[sigma > 0], path[sigma > 0], sigma[sigma > 0]
    a = np.maximum(alpha, s / np.cumsum(s))
    with np.errstate(divide="ignore", invalid="ignore"):
        stay = s * np.sum((theta - path) ** 2, axis=1) / 2 / (1 - a)
        after, before = (s / a)[2:], (s / a / (1 - a))[1:-1]
        p = np.linalg.norm(np.diff(path[1:], axis=0), axis=1)
        # The largest after·‖phi − ψ_{t+1}‖² − before·‖phi − ψ_t‖² that the lengths allow.
        far = np.where(before > after, after * p / (before - after), np.inf)
        far = np.clip(far, 0, np.maximum(width - p, 0))
        moved = (after * np.minimum(far + p, width) ** 2 - before * far**2) / 2
    unbounded = len(s) > 1 and bool(np.any(a[1:] >= 1))  # phi is the last θ: nothing is averaged
    begin = np.sum((theta[0] - path[1]) ** 2) * s[1] / (2 * a[1]) if len(s) > 1 else 0.0
    terms = {
        "first task": s[0] * first if len(s) else 0.0,
        "comparator": math.inf if unbounded else stay[1:].sum(),
        "beginning": begin,
        "path": math.inf if unbounded else moved.sum(),
    }
    P, place = float(p.sum()), "moving comparators, docs/theory.md"
    note = f"The comparator is a path of length {P:.4g}." if P > 0 else FIXED
    return Bound("path", terms, (WITHIN,), place, note)


def mixture(costs: Any, sigma: Any, width: float | None, *, share: float = 0.0) -> Bound:
    """Σ sigma_t·B_R(θ_t‖phi_t) of `Mixture`, against the best of its K members or, with a share r,
    against the best sequence of them.

        Σ sigma_t·B_{t,k(t)} + s_T·Δ²·( log K + n·log((K − 1)/r) + (T − 1 − n)·log(1/(1 − r)) )
            + Σ (s_T/s_t − 1)·sigma_t·B_{t,k(t)},        s_t = max_{r≤t} sigma_r

    where k(t) changes n times; without a share it does not change. The last term is 0 where no
    task weighs more than the first.

    Args:
        costs: B_{t,k} = B_R(θ_t‖phi_{t,k}), what each member would have cost, [T, K].
        sigma: Weights, a number or [T].
        width: Δ of the rule, no start of a member lies further from a θ_t; None on the simplex,
            where 1 stands for Δ².
        share: r of the rule.

    >>> mixture([[0.0, 0.5], [0.0, 0.5]], 1.0, 1.0)
    Bound(best member = 0.693147: members 0 + weights 0.6931 + rate 0)
    """
    costs = _table(costs, "costs")
    (T, K), s = costs.shape, np.broadcast_to(nonnegative(sigma, "sigma"), (len(costs),))
    positive_if_given(width=width)
    if K < 2 or not 0 <= share < 1 or np.any(costs < 0):
        raise FMRLError("mixture needs costs ≥ 0 of two or more members, and a share from 0 to 1")
    scale, most = 1.0 if width is None else width**2, np.maximum.accumulate(s)
    # Distances where there is no weight, also infinite ones, do not count.
    near = np.where(s[:, None] > 0, costs, 0.0)
    paid = (s / np.where(most > 0, most, 1.0))[:, None] * near
    change = math.log((K - 1) / share) if share else math.inf
    moves = np.where(np.eye(K, dtype=bool), -math.log1p(-share), change)
    best, came = paid[0] / scale, np.zeros((T, K), dtype=int)
    for t in range(1, T):  # the cheapest sequence that ends in each member
        found = best[:, None] + moves
        came[t] = found.argmin(axis=0)
        best = paid[t] / scale + found.min(axis=0)
    who = [int(best.argmin())]
    for t in range(T - 1, 0, -1):
        who.append(int(came[t, who[-1]]))
    chosen, heaviest = np.arange(T), float(most[-1])
    who = np.array(who[::-1])
    prior = float(moves[who[:-1], who[1:]].sum())
    own = s * near[chosen, who]
    terms = {
        "members": own.sum(),
        "weights": heaviest * scale * math.log(K),
        "rate": max(0.0, float((heaviest * paid[chosen, who] - own).sum())),
    }
    n = int(np.count_nonzero(np.diff(who)))
    name, note = "best member", f"The comparator is the best of {K} members, number {who[0] + 1}."
    if share:
        terms["switches"] = heaviest * scale * prior
        name, note = "switching members", f"The comparator is {K} members in turn, {n} switches."
    reach = bool(width is None or near.max() <= width**2 / 2 * NEAR)
    given = decide("no start lies further from an optimum than the width", reach)
    return Bound(name, terms, (given,), "weighted meta-updates, docs/theory.md", note)


def conditional(theta: Any, side: Any, ridge: float, *, sigma: Any = 1.0) -> Bound:
    """Σ sigma_t·B(θ_t‖phi_t) of `Conditional`, against the best fixed linear map; R = ½‖·‖².

        max sigma·( min_M( Σ ½‖θ_t − M·s_t‖² + λ/2·‖M‖²_F )
                    + ½·Σ_j max_t θ²_{t,j}·log det(I + Σ s_t·s_tᵀ/λ) )

    The second line grows like log T.

    Args:
        theta: Update vectors, [T, d], which lie in the domain.
        side: Side information of each task, [T, k]; `Conditional` has 1 in the first column.
        ridge: λ of the rule.
        sigma: Weights, a number or [T].

    >>> b = conditional([[1.0], [1.0]], [[1.0], [1.0]], 1.0)
    >>> {name: round(value, 6) for name, value in b.terms.items()}
    {'comparator': 0.333333, 'fitting': 0.549306}
    """
    theta = _table(theta, "theta")
    side = _table(side, "side", len(theta))
    A = ridge * np.eye(side.shape[1]) + side.T @ side
    return forward_regression(theta, A, theta.T @ side, ridge, sigma)


def forward_regression(theta: Any, A: Any, moment: Any, ridge: float, sigma: Any) -> Bound:
    """`conditional` from the memory of the rule: A = λ·I + Σ s·sᵀ and Σ θ·sᵀ."""
    theta, A, moment = numbers(theta), numbers(A), numbers(moment)
    positive_if_given(ridge=ridge)
    most = float(nonnegative(sigma, "sigma").max())
    if not (np.isfinite(A).all() and np.isfinite(moment).all()):
        raise FMRLError("the side information must be finite", fix="scale its columns")
    values, vectors = np.linalg.eigh(A)
    # A as it is after rounding, or a little larger, which raises both terms.
    values = np.maximum(values, ridge) + len(values) * np.finfo(float).eps * values[-1]
    fitted = float(np.sum((moment @ vectors) ** 2 / values))
    grown = float(np.sum(np.log(values / ridge)))
    terms = {
        "comparator": most * max(0.0, float(np.sum(theta**2)) - fitted) / 2,
        "fitting": most * float(np.sum(np.max(theta**2, axis=0))) * grown / 2,
    }
    note = "The comparator is the best linear map of the side information."
    return Bound("conditional", terms, (INSIDE,), "forward regression, docs/theory.md", note)


def with_guess(summed: Bound, sigma: Any, guess: float, divergence: Any = None) -> Bound:
    """TAR of FAL from a bound V on Σ sigma_t·B_R(θ_t‖phi_t), for every way to move phi.

        Known(D):            T·TAR ≤ V/D + D·sigma_{1:T}
        AverageDeviation():  T·TAR ≤ (B_1/D_1 + D_1)·sigma_1 + (2 + √b + √c)·√(sigma_{1:T}·V)

    with b and c as in `adaptive`. In the second line each part of V keeps its share.

    Args:
        summed: `dynamic`, `mixture` or `conditional`.
        sigma: Weights G_t·√m_t, [T].
        guess: D, or D_1.
        divergence: B_t, [T], for `AverageDeviation`; None for `Known`.

    >>> meta = dynamic([[0.0], [0.0]], [[0.0], [0.0]], 0.5, width=0, first=0.5)
    >>> with_guess(meta, [1.0, 1.0], 0.5).total
    1.0
    """
    sigma = nonnegative(sigma, "sigma")
    positive_if_given(guess=guess)
    total, V = float(sigma.sum()), summed.total
    given = (CONVEX, LIPSCHITZ, OPTIMA, *summed.assumptions)
    if divergence is None:
        sums = {name: value / guess for name, value in summed.terms.items()}
        sums["guess"] = guess * total
        name = "known similarity"
    else:
        B = nonnegative(divergence, "divergence")
        factor, grown = growth_factor(sigma, B)
        factor *= math.sqrt(total / V) if V > 0 else 0.0
        sums = {name: factor * value for name, value in summed.terms.items()}
        sums["first guess"] = (B[0] / guess + guess) * sigma[0]
        given += grown
        name = "average deviation"
    found = average(f"{name}, {summed.name}", sums, sigma.size, given, summed.place)
    return replace(found, note=summed.note)


def hedge(
    tars: Any, gap: float, tasks: int, *, rate: float | None = None, first: Any = None
) -> Bound:
    """TAR of `Hedge` against the best of its K members.

        TAR ≤ min_k ( TAR_k + Δ/T·(1 + log(1/w_k)/log K) ),    which is min_k TAR_k + 2Δ/T

    where the weights w_k begin at 1/K. With a fixed rate log(1/w_k)/rate stands for the last part.
    Inside a task of `Centres` it bounds what choosing costs: ``tars`` are then the regrets from
    each centre, Δ is that of the task and T = 1.

    Args:
        tars: TAR of each member, [K].
        gap: Δ, the sum of the mixability gaps: ``history.state.similarity[1]``.
        tasks: T.
        rate: Of the rule, if fixed.
        first: w_k before the first loss, [K]; 1/K by default.

    >>> hedge([1.0, 0.5], 2.0, 10)
    Bound(hedge = 0.9: members 0.5 + weights 0.4)
    """
    tars = np.atleast_1d(numbers(tars))
    K = tars.size
    w = np.full(K, 1 / K) if first is None else nonnegative(first, "first")
    at_least(0, gap=gap)
    at_least(1, tasks=tasks)
    positive_if_given(rate=rate)
    if K < 2 or tars.ndim != 1 or w.shape != tars.shape or not np.all(w > 0):
        raise FMRLError("hedge needs two or more members, each with a weight above 0")
    cost = (gap + np.log(1 / w) * (gap / math.log(K) if rate is None else 1 / rate)) / tasks
    k = int(np.argmin(tars + cost))
    note = f"The comparator is the best of {K} members, number {k + 1}."
    terms = {"members": tars[k], "weights": cost[k]}
    return Bound("hedge", terms, (CONVEX,), "weighted compositions, docs/theory.md", note)


def centres(near: Any, sigma: Any, D: Any, gap: Any, *, first: Any = None) -> Bound:
    """TAR with K centres that stand still while each task chooses among them (`Centres`).

        T·TAR ≤ Σ_t min_k ( sigma_t·(B_R(θ_t‖ψ_k)/D + D) + Δ_t·(1 + log(1/w_{t,k})/log K) )

    So similarity is the k-means value of the optima, the mean of min_k B_R(θ_t‖ψ_k). For centres
    that move no bound on their distances is known.

    Args:
        near: B_R(θ_t‖ψ_k), [T, K].
        sigma: Weights G_t·√m_t, a number or [T].
        D: The guess, a number or [T].
        gap: Δ_t, the mixability gaps of each task's rounds, a number or [T].
        first: w_{t,k} with which tasks begin, [K] or [T, K]; 1/K by default.

    >>> centres([[0.5, 0.0], [0.0, 0.5]], 1.0, 0.5, 0.1)
    Bound(centres = 0.7: k-means 0 + guess 0.5 + choosing 0.2)
    """
    near = _table(near, "near")
    T, K = near.shape
    w = np.broadcast_to(np.full(K, 1 / K) if first is None else numbers(first), near.shape)
    s, D, gap = (np.broadcast_to(x, (T,)) for x in same_length(sigma=sigma, D=D, gap=gap))
    if K < 2 or np.any(near < 0) or not (np.all(w > 0) and np.all(D > 0)):
        raise FMRLError("centres needs two or more, distances of at least 0, weights and D above 0")
    choosing = gap[:, None] * (1 - np.log(w) / math.log(K))
    start = np.where(s[:, None] > 0, (s / D)[:, None] * near, 0.0)
    k = np.argmin(start + choosing, axis=1)[:, None]
    chosen = [float(np.take_along_axis(x, k, axis=1).sum()) for x in (start, choosing)]
    sums = {"k-means": chosen[0], "guess": float(s @ D), "choosing": chosen[1]}
    place = "weighted compositions, docs/theory.md"
    return average("centres", sums, T, (CONVEX, LIPSCHITZ), place)
