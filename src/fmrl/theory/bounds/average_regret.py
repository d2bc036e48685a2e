"""Task-averaged regret (TAR) of Algorithm 2: the general theorem (B.1), the FAL corollary (B.1) and
the remark on a known deviation (2.1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.basic_theorems import drift
from fmrl.theory.bounds.bound import (
    ASSUMED,
    CONVEX,
    HULL_OF_OPTIMA,
    HULL_OF_UPDATES,
    LIPSCHITZ,
    NEAR,
    Assumption,
    Bound,
    at_least,
    average,
    decide,
    nonnegative,
    positive_if_given,
)


def upper(
    sigma: Any, *, epsilon: float, gamma: float, diameter: float, task_diameter: float,
    deviation: float, C: float, violations: Any = None, kappa: float = 1.0, nu: float = 1.0,
    delta_star: Any = 0.0, delta_prime: float = 0.0, delta_max: float = 0.0,
    beta: float | None = None, assumptions: tuple[Assumption, ...] = (),
) -> Bound:  # fmt: skip
    """The general theorem (B.1): TAR of Algorithm 2 with the doubling guess and any update vectors.

        T·TAR ≤ (2κD + ε)·sigma_1 + κC/P·Σ sigma_t²/sigma_{1:t} + κ(νD̄²/P + γP + ε)·sigma_{1:T}
                + Σ sigma_t·Δ*_t/ε + κΔ'/P + Σ_k (κP²/(γ^k·ε) + γ^k·ε)·sigma_{t_k}

    with P = ρD* + E; ρ = 1 and E = 0 in the Exact case, ρ = 2√β and E = 2√(2βΔ_max) otherwise. The
    paper prints P unsquared in the violation sum, Δ*_{1:T}/ε without weights, and ρD* for P in
    three denominators, which is true but looser. docs/theory.md has the derivation.

    Args:
        sigma: Weights G_t·√m_t, [T].
        epsilon: ε of `Doubling`.
        gamma: γ of `Doubling`.
        diameter: D, of the domain.
        task_diameter: D*, of the reference parameters.
        deviation: D̄, of the reference parameters.
        C: G'²/2 where B_R(θ‖·) is 1-strongly convex, else G'·(diameter of the hull).
        violations: Tasks t_0 < t_1 < … (from 0) whose guess was violated; None: the worst case.
        kappa: κ; this and the following come from a proposition: ``**fli_online(…).values()``.
        nu: ν.
        delta_star: Δ*_t, a number or [T], with B_R(θ*_t‖phi_t) ≤ κ·B_R(θ_t‖phi_t) + Δ*_t·D_t/ε.
        delta_prime: Δ'.
        delta_max: Δ_max.
        beta: Smoothness of R in the Approx case; None in the Exact case.
        assumptions: What the parameters rest on.

    >>> reference = {"task_diameter": 0.2, "deviation": 0.1, "C": 0.04}
    >>> b = upper([1.0] * 4, epsilon=0.1, gamma=2.0, diameter=1.0, violations=[2], **reference)
    >>> {name: round(value, 6) for name, value in b.terms.items()}
    {'first task': 0.525, 'moving': 0.104167, 'deviation': 0.05, 'guess': 0.5, 'violations': 0.125}
    >>> round(b.total, 6)
    1.304167
    """
    sigma, star = nonnegative(sigma, "sigma"), nonnegative(delta_star, "delta_star")
    tasks, total = sigma.size, float(sigma.sum())
    positive_if_given(epsilon=epsilon)
    at_least(1, gamma=gamma, kappa=kappa, nu=nu, beta=beta)
    at_least(0, diameter=diameter, task_diameter=task_diameter, deviation=deviation, C=C)
    at_least(0, delta_prime=delta_prime, delta_max=delta_max)
    reach = task_diameter
    if beta is not None:
        reach = 2 * math.sqrt(beta) * task_diameter + 2 * math.sqrt(2 * beta * delta_max)
    elif np.any(star) or delta_prime or delta_max:
        fix = "give beta, the smoothness of R, for approximate updates"
        raise FMRLError("the Exact case has no deltas", fix=fix)
    given = [CONVEX, LIPSCHITZ, HULL_OF_UPDATES, decide("more than one task", tasks > 1)]
    given.append(decide("the first task has gradients", bool(sigma[0] > 0)))
    given.append(_ordered(deviation, task_diameter, diameter))
    if violations is None:
        guesses = _guesses(reach, epsilon, gamma, tasks)
        paid = np.sort(sigma[1:])[::-1][: guesses.size]  # the heaviest tasks, at the worst
    else:
        times = _times(violations, tasks)
        guesses, paid = epsilon * gamma ** np.arange(times.size), sigma[times]
        # A larger guess cannot be violated; if one was, the numbers are not of one run.
        fits = bool(np.all(guesses <= reach * NEAR))
        given.append(decide("only guesses below ρD* + E were violated", fits))
    sums = {
        "first task": (2 * kappa * diameter + epsilon) * sigma[0],
        "moving": kappa * _over(C, reach) * drift(sigma),
        "deviation": kappa * nu * _over(deviation**2, reach) * total,
        "guess": kappa * (gamma * reach + epsilon) * total,
        "violations": float(np.sum((kappa * reach**2 / guesses + guesses) * paid)),
    }
    if beta is not None:
        sums["optima not exact"] = float(np.sum(sigma * star)) / epsilon
        sums["mean not exact"] = kappa * _over(delta_prime, reach)
        given.append(Assumption("R is smooth", ASSUMED, f"β = {beta:g}"))
    name = "FAL theorem" if beta is None else "general theorem"
    return average(name, sums, tasks, (*given, *assumptions), "Theorem B.1, corrected")


def _over(value: float, by: float) -> float:
    """value/by; 0 where both are, as C and D̄ are when D* = 0 because all optima coincide."""
    return 0.0 if value == 0 else (math.inf if by == 0 else value / by)


def _ordered(deviation: float, task_diameter: float, diameter: float) -> Assumption:
    inner, outer = deviation <= task_diameter * NEAR, task_diameter <= diameter * NEAR
    return decide("D̄ ≤ D* ≤ D", inner and outer)


def _guesses(reach: float, epsilon: float, gamma: float, tasks: int) -> np.ndarray:
    """The guesses γ^k·ε below ``reach``, at most one for each task but the first."""
    if epsilon >= reach or tasks < 2:
        return np.zeros(0)
    count = tasks - 1
    if gamma > 1:
        count = min(count, math.ceil(math.log(reach / epsilon) / math.log(gamma) * NEAR) + 1)
    guesses = epsilon * gamma ** np.arange(count)
    return guesses[guesses <= reach * NEAR]


def _times(violations: Any, tasks: int) -> np.ndarray:
    times = np.asarray(violations, dtype=int).ravel()
    inside = not times.size or (times[0] >= 0 and times[-1] < tasks)
    if not inside or np.any(np.diff(times) <= 0) or np.any(times != np.ravel(violations)):
        what = f"violations must be increasing task numbers below {tasks}, not {violations!r}"
        raise FMRLError(what)
    return times


def exact(
    task_diameter: float, diameter: float, lipschitz: float, rounds: float, tasks: int, *,
    deviation: float | None = None, C: float | None = None, epsilon: float | None = None,
    gamma: float | None = None,
) -> Bound:  # fmt: skip
    """The FAL corollary (B.1): TAR when optima are exact and all tasks have the same G and m.

        given ε, γ   ( (2D + 2ε + C/D*·(1 + log T) + γ/(γ−1)·(D*²/ε + D*))/T + D̄²/D* + γD* + ε )·G√m
        tuned        ( (6D + C/D*)·(1 + log T)/T + 9/2·D* )·G√m

    where tuned means ε = D(1 + log T)/T and γ = (1 + log T)/log T. No guess is violated when
    ε ≥ D*: the fraction with γ/(γ−1) is then left out. With γ = 1 < D*/ε, every task may violate.

    Args:
        task_diameter: D*.
        diameter: D, of the domain.
        lipschitz: G of every task.
        rounds: m of every task.
        tasks: T, at least 2.
        deviation: D̄; D* if not given, which it is at most.
        C: As in `upper`; D*² if not given, its value for R = ½‖·‖².
        epsilon: ε of `Doubling`. Give both or neither; neither means the tuned choice.
        gamma: γ of `Doubling`.

    >>> b = exact(0.5, 1.0, 1.0, 16, 100)
    >>> {name: round(value, 4) for name, value in b.terms.items()}
    {'first task and guess': 1.3452, 'moving': 0.1121, 'task diameter': 9.0}
    >>> round(exact(0.5, 1.0, 1.0, 16, 100, deviation=0.25, epsilon=0.1, gamma=2.0).total, 6)
    5.340103
    """
    if tasks < 2 or int(tasks) != tasks:
        raise FMRLError(f"the corollary needs at least two tasks, not {tasks}")
    if (epsilon is None) != (gamma is None):
        raise FMRLError("give both epsilon and gamma, or neither for the tuned choice")
    positive_if_given(diameter=diameter, rounds=rounds, epsilon=epsilon)
    at_least(0, lipschitz=lipschitz, task_diameter=task_diameter, C=C)
    at_least(1, gamma=gamma)
    scale, log = lipschitz * math.sqrt(rounds), math.log(tasks)
    deviation = task_diameter if deviation is None else deviation
    moving = _over(task_diameter**2 if C is None else C, task_diameter) * (1 + log) / tasks
    given = [CONVEX, LIPSCHITZ, HULL_OF_OPTIMA, Assumption("the same G and m in every task")]
    given.append(_ordered(deviation, task_diameter, diameter))
    if epsilon is None or gamma is None:
        terms = {
            "first task and guess": 6 * diameter * (1 + log) / tasks,
            "moving": moving,
            "task diameter": 4.5 * task_diameter,
        }
        given.append(Assumption("ε = D(1 + log T)/T and γ = (1 + log T)/log T"))
    else:
        terms = {
            "first task": (2 * diameter + 2 * epsilon) / tasks,
            "moving": moving,
            "deviation": _over(deviation**2, task_diameter),
            "guess": gamma * task_diameter + epsilon,
            "violations": _all_violations(task_diameter, epsilon, gamma, tasks) / tasks,
        }
    name = "FAL corollary, tuned" if epsilon is None else "FAL corollary"
    terms = {key: value * scale for key, value in terms.items()}
    return Bound(name, terms, tuple(given), "Theorem 2.1 and Corollary B.1")


def _all_violations(reach: float, epsilon: float, gamma: float, tasks: int) -> float:
    if epsilon >= reach:
        return 0.0
    if gamma == 1:
        return (tasks - 1) * (reach**2 / epsilon + epsilon)
    return gamma / (gamma - 1) * (reach**2 / epsilon + reach)


def tuned(diameter: float, tasks: int) -> dict[str, float]:
    """The theory's own choice, ready for `Doubling`: ε = D(1 + log T)/T, γ = (1 + log T)/log T.

    Args:
        diameter: D, of the domain.
        tasks: T, at least 2.

    >>> {k: round(v, 4) for k, v in tuned(1.0, 100).items()}
    {'epsilon': 0.0561, 'gamma': 1.2171}
    """
    if tasks < 2:
        raise FMRLError("the tuned choice needs at least two tasks: log 1 = 0")
    positive_if_given(diameter=diameter)
    log = math.log(tasks)
    return {"epsilon": diameter * (1 + log) / tasks, "gamma": (1 + log) / log}


def known(sigma: Any, D: float, *, deviation: float, C: float, first: float) -> Bound:
    """Remark 2.1: TAR when the guess is the same D for every task and phi is the running mean.

        T·TAR ≤ ( sigma_1·B_R(θ_1‖phi_1) + C·Σ_{t≥2} sigma_t²/sigma_{1:t} )/D
                + (D̄²/D + D)·sigma_{1:T}

    Best at D = D̄, where the last term is 2D̄·sigma_{1:T}.

    Args:
        sigma: Weights G_t·√m_t, [T].
        D: The guess.
        deviation: D̄ of the optima.
        C: As in `upper`.
        first: B_R(θ_1‖phi_1).

    >>> known([1.0, 1.0], 0.5, deviation=0.5, C=0.5, first=0.5).total
    1.75
    """
    sigma = nonnegative(sigma, "sigma")
    positive_if_given(D=D)
    total = float(sigma.sum())
    sums = {
        "first task": sigma[0] * first / D,
        "moving": C * (drift(sigma) - sigma[0]) / D,
        "deviation": deviation**2 / D * total,
        "guess": D * total,
    }
    starts = decide("the first task has gradients", bool(sigma[0] > 0))
    given = (CONVEX, LIPSCHITZ, HULL_OF_OPTIMA, starts)
    return average("known similarity", sums, sigma.size, given, "Remark 2.1, docs/theory.md")


def adaptive(sigma: Any, divergence: Any, guess: float, *, deviation: float, C: float) -> Bound:
    """Remark 2.1 when D̄ is not known: D_{t+1}² = V_t/sigma_{1:t}, V_t = Σ_{s≤t} sigma_s·B_s.

        T·TAR ≤ (B_1/D_1 + D_1)·sigma_1 + (2 + √b + √c)·( D̄·sigma_{1:T}
                + √(sigma_{1:T}·(sigma_1·B_1 + C·Σ_{t≥2} sigma_t²/sigma_{1:t})) )

    with b = max_{t≥2} V_t/V_{t−1} and c = max_{t≥2} sigma_{1:t}/sigma_{1:t−1}. It can be computed
    after the run only: the second task may lie any number of times farther off than the first.

    Args:
        sigma: Weights G_t·√m_t, [T].
        divergence: B_t = B_R(θ_t‖phi_t), [T].
        guess: D_1.
        deviation: D̄ of the optima.
        C: As in `upper`.

    >>> round(adaptive([1.0, 1.0], [0.25, 0.25], 1.0, deviation=0.25, C=0.25).total, 6)
    3.922877
    """
    sigma, divergence = nonnegative(sigma, "sigma"), nonnegative(divergence, "divergence")
    factor, grown = growth_factor(sigma, divergence)
    weight = float(sigma.sum())
    late = sigma[0] * divergence[0] + C * (drift(sigma) - sigma[0])
    sums = {
        "first task": (divergence[0] / guess + guess) * sigma[0],
        "deviation": factor * deviation * weight,
        "moving": factor * math.sqrt(weight * late),
    }
    given, place = (CONVEX, LIPSCHITZ, HULL_OF_OPTIMA, *grown), "Remark 2.1 made causal"
    return average("average deviation", sums, sigma.size, given, f"{place}, docs/theory.md")


def growth_factor(
    sigma: np.ndarray, divergence: np.ndarray
) -> tuple[float, tuple[Assumption, Assumption]]:
    """2 + √b + √c of `adaptive`, and the conditions under which it holds."""
    V, total = np.cumsum(sigma * divergence), np.cumsum(sigma)
    with np.errstate(all="ignore"):
        ratios = [np.nan_to_num(a[1:] / a[:-1], nan=1.0) for a in (V, total)]
    b, c = (float(np.max(ratio, initial=1.0)) for ratio in ratios)
    name, detail = "growth of the measured deviation", f"b = {b:.3g}, c = {c:.3g}"
    growth = decide(name, math.isfinite(b * c), detail)
    starts = decide("the first task has gradients and moved phi", bool(V[0] > 0))
    return 2 + math.sqrt(b) + math.sqrt(c), (starts, growth)
