"""Task-averaged regret of Algorithm 2: the general theorem (B.1), the FAL corollary (B.1) and the
remark on a known deviation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import CHECKED, Assumption, Bound, at_least, decide, positive, vector
from fmrl.theory.bounds.meta import drift
from fmrl.theory.bounds.within import CONVEX, LIPSCHITZ

NEAR = 1 + 1e-9  # room for rounding in comparisons of diameters


def _over(value: float, by: float) -> float:
    """value/by, where both vanish together: with D* = 0 all optima coincide, and C and D̄ are 0 as
    well.
    """
    return 0.0 if value == 0 else (math.inf if by == 0 else value / by)


def _guesses(reach: float, epsilon: float, gamma: float, tasks: int) -> np.ndarray:
    """The guesses γ^k·ε that can be violated: those below ``reach``, at most one for each task but
    the first.
    """
    if epsilon >= reach or tasks < 2:
        return np.zeros(0)
    count = (
        tasks - 1
        if gamma == 1
        else min(tasks - 1, math.ceil(math.log(reach / epsilon) / math.log(gamma) * NEAR) + 1)
    )
    guesses = epsilon * gamma ** np.arange(count)
    return guesses[guesses <= reach * NEAR]


def upper(
    sigma: Any,
    *,
    epsilon: float,
    gamma: float,
    diameter: float,
    task_diameter: float,
    deviation: float,
    C: float,
    violations: Any = None,
    kappa: float = 1.0,
    nu: float = 1.0,
    delta_star: Any = 0.0,
    delta_prime: float = 0.0,
    delta_max: float = 0.0,
    beta: float | None = None,
    assumptions: tuple[Assumption, ...] = (),
) -> Bound:
    """The general theorem: TAR of Algorithm 2 with the doubling guess, any update vectors, any
    weights sigma_t = G_t·√m_t.

        T·TAR ≤ (2κD + ε)·sigma_1 + κC/P·Σ sigma_t²/sigma_{1:t} + κ(νD̄²/P + γP + ε)·sigma_{1:T}
                + Σ sigma_t·Δ*_t/ε + κΔ'/P + Σ_k (κP²/(γ^k·ε) + γ^k·ε)·sigma_{t_k}          with P = ρD* + E

    ``task_diameter`` D* and ``deviation`` D̄ are of the reference parameters, ``diameter`` is D,
    ``C`` is G'²/2 where B_R(θ‖·) is 1-strongly convex and G'·(diameter of the hull) otherwise.
    ``violations`` are the tasks t_0 < t_1 < … (counted from 0) whose guess was violated; without
    them, the worst that can happen is charged. ``beta``: None in the Exact case (ρ = 1, E = 0), the
    smoothness of R in the Approx case (ρ = 2√β, E = 2√(2βΔ_max)). κ, ν, Δ*, Δ', Δ_max come from a
    proposition: ``upper(…, **fli_online(…).values())``.

    The paper prints P unsquared in the violation sum, Δ*_{1:T}/ε without weights, and ρD* for P in
    three denominators, which is true but looser. docs/theory.md has the derivation.

    >>> b = upper([1.0] * 4, epsilon=0.1, gamma=2.0, diameter=1.0, task_diameter=0.2, deviation=0.1, C=0.04, violations=[2])
    >>> {name: round(value, 6) for name, value in b.terms.items()}
    {'first task': 0.525, 'moving': 0.104167, 'deviation': 0.05, 'guess': 0.5, 'violations': 0.125}
    >>> round(b.total, 6)
    1.304167
    """
    sigma = vector(sigma, "sigma")
    tasks, total = sigma.size, float(sigma.sum())
    positive(epsilon=epsilon)
    at_least(1, gamma=gamma, kappa=kappa, nu=nu, **({} if beta is None else {"beta": beta}))
    at_least(0, diameter=diameter, task_diameter=task_diameter, deviation=deviation, C=C)
    at_least(0, delta_prime=delta_prime, delta_max=delta_max)
    if beta is None and (np.any(vector(delta_star, "delta_star")) or delta_prime or delta_max):
        raise FMRLError(
            "the Exact case has no deltas",
            fix="give beta, the smoothness of R, for approximate updates",
        )
    rho, extra = (
        (1.0, 0.0) if beta is None else (2 * math.sqrt(beta), 2 * math.sqrt(2 * beta * delta_max))
    )
    reach = rho * task_diameter + extra
    if violations is None:
        guesses = _guesses(reach, epsilon, gamma, tasks)
        paid = np.sort(sigma[1:])[::-1][: guesses.size]  # the heaviest tasks, at the worst
    else:
        times = np.asarray(violations, dtype=int).ravel()
        if times.size and (
            np.any(np.diff(times) <= 0)
            or times[0] < 0
            or times[-1] >= tasks
            or np.any(times != np.ravel(violations))
        ):
            raise FMRLError(
                f"violations must be increasing task numbers below {tasks}, not {violations!r}"
            )
        guesses, paid = epsilon * gamma ** np.arange(times.size), sigma[times]
    terms = {
        "first task": (2 * kappa * diameter + epsilon) * sigma[0],
        "moving": kappa * _over(C, reach) * drift(sigma),
        "deviation": kappa * nu * _over(deviation**2, reach) * total,
        "guess": kappa * (gamma * reach + epsilon) * total,
        "violations": float(np.sum((kappa * reach**2 / guesses + guesses) * paid)),
    }
    if beta is not None:
        terms["optima not exact"] = (
            float(np.sum(sigma * vector(delta_star, "delta_star"))) / epsilon
        )
        terms["mean not exact"] = kappa * _over(delta_prime, reach)
    given = (
        CONVEX,
        LIPSCHITZ,
        Assumption("B_R(θ‖·) is Lipschitz on the hull of the update vectors"),
        decide("more than one task", tasks > 1),
        decide("the first task has gradients", bool(sigma[0] > 0)),
        decide(
            "D̄ ≤ D* ≤ D", deviation <= task_diameter * NEAR and task_diameter <= diameter * NEAR
        ),
        *_consistent(guesses, reach, violations),
        *(() if beta is None else (decide("R is smooth", 1 <= beta < math.inf, f"β = {beta:g}"),)),
        *assumptions,
    )
    name = "FAL theorem" if beta is None else "general theorem"
    return Bound(
        name, {key: value / tasks for key, value in terms.items()}, given, "Theorem B.1, corrected"
    )


def _consistent(guesses: np.ndarray, reach: float, violations: Any) -> tuple[Assumption, ...]:
    """Guesses at or above ρD* + E cannot be violated; if one was, the numbers do not belong
    together.
    """
    if violations is None:
        return ()
    fits = bool(np.all(guesses <= reach * NEAR))
    return (decide("only guesses below ρD* + E were violated", fits),)


def exact(
    task_diameter: float,
    diameter: float,
    lipschitz: float,
    rounds: float,
    tasks: int,
    *,
    deviation: float | None = None,
    C: float | None = None,
    epsilon: float | None = None,
    gamma: float | None = None,
) -> Bound:
    """The FAL corollary: TAR when the optima are exact and all tasks have the same G and m.

        given ε, γ   ( (2D + 2ε + C/D*·(1 + log T) + γ/(γ−1)·(D*²/ε + D*))/T + D̄²/D* + γD* + ε )·G√m
        tuned        ( (6D + C/D*)·(1 + log T)/T + 9/2·D* )·G√m      with ε = D(1 + log T)/T, γ = (1 + log T)/log T

    Without ``epsilon`` and ``gamma`` the tuned choice is meant. ``deviation`` D̄ is D* if not given
    (at most it is), and ``C`` is D*², its value for R = ½‖·‖². No guess is ever violated when ε ≥
    D*, so then the fraction with γ/(γ−1) is left out; with γ = 1 below that, every task may
    violate.

    >>> exact(0.5, 1.0, 1.0, 16, 100)
    Bound(FAL corollary, tuned = 10.4573: first task and guess 1.345 + moving 0.1121 + task diameter
    9)
    >>> round(exact(0.5, 1.0, 1.0, 16, 100, deviation=0.25, epsilon=0.1, gamma=2.0).total, 6)
    5.340103
    """
    if tasks < 2 or int(tasks) != tasks:
        raise FMRLError(f"the corollary needs at least two tasks, not {tasks}")
    if (epsilon is None) != (gamma is None):
        raise FMRLError("give both epsilon and gamma, or neither for the tuned choice")
    positive(diameter=diameter, rounds=rounds, **({} if epsilon is None else {"epsilon": epsilon}))
    at_least(0, lipschitz=lipschitz, task_diameter=task_diameter, **({} if C is None else {"C": C}))
    at_least(1, **({} if gamma is None else {"gamma": gamma}))
    scale, log = lipschitz * math.sqrt(rounds), math.log(tasks)
    deviation = task_diameter if deviation is None else deviation
    moving = _over(task_diameter**2 if C is None else C, task_diameter) * (1 + log) / tasks
    given = (
        CONVEX,
        LIPSCHITZ,
        Assumption("B_R(θ‖·) is Lipschitz on the hull of the optima"),
        Assumption("the same G and m in every task"),
        decide(
            "D̄ ≤ D* ≤ D", deviation <= task_diameter * NEAR and task_diameter <= diameter * NEAR
        ),
    )
    if epsilon is None or gamma is None:
        terms = {
            "first task and guess": 6 * diameter * (1 + log) / tasks,
            "moving": moving,
            "task diameter": 4.5 * task_diameter,
        }
        given = (*given, Assumption("ε = D(1 + log T)/T and γ = (1 + log T)/log T", CHECKED))
        name = "FAL corollary, tuned"
    else:
        positive(epsilon=epsilon)
        terms = {
            "first task": (2 * diameter + 2 * epsilon) / tasks,
            "moving": moving,
            "deviation": _over(deviation**2, task_diameter),
            "guess": gamma * task_diameter + epsilon,
            "violations": _all_violations(task_diameter, epsilon, gamma, tasks) / tasks,
        }
        name = "FAL corollary"
    return Bound(
        name,
        {key: value * scale for key, value in terms.items()},
        given,
        "Theorem 2.1 and Corollary B.1",
    )


def _all_violations(reach: float, epsilon: float, gamma: float, tasks: int) -> float:
    if epsilon >= reach:
        return 0.0
    if gamma == 1:
        return (tasks - 1) * (reach**2 / epsilon + epsilon)
    return gamma / (gamma - 1) * (reach**2 / epsilon + reach)


def tuned(diameter: float, tasks: int) -> dict[str, float]:
    """The theory's own choice, ready for `Doubling`: ε = D(1 + log T)/T, γ = (1 + log T)/log T.

    >>> {k: round(v, 4) for k, v in tuned(1.0, 100).items()}
    {'epsilon': 0.0561, 'gamma': 1.2171}
    """
    if tasks < 2:
        raise FMRLError("the tuned choice needs at least two tasks: log 1 = 0")
    positive(diameter=diameter)
    log = math.log(tasks)
    return {"epsilon": diameter * (1 + log) / tasks, "gamma": (1 + log) / log}


def known(sigma: Any, D: float, *, deviation: float, C: float, first: float) -> Bound:
    """The remark after the first theorem: TAR when the guess is the same D > 0 for every task and
    phi is the running mean.

        T·TAR ≤ ( sigma_1·B_R(θ_1‖phi_1) + C·Σ_{t≥2} sigma_t²/sigma_{1:t} )/D + (D̄²/D +
        D)·sigma_{1:T}

    Best at D = D̄, where the last term is 2D̄·sigma_{1:T}. ``first`` is B_R(θ_1‖phi_1).

    >>> known([1.0, 1.0], 0.5, deviation=0.5, C=0.5, first=0.5).total
    1.75
    """
    sigma = vector(sigma, "sigma")
    positive(D=D)
    total, tasks = float(sigma.sum()), sigma.size
    terms = {
        "first task": sigma[0] * first / D,
        "moving": C * (drift(sigma) - sigma[0]) / D,
        "deviation": deviation**2 / D * total,
        "guess": D * total,
    }
    given = (
        CONVEX,
        LIPSCHITZ,
        Assumption("B_R(θ‖·) is Lipschitz on the hull of the optima"),
        decide("the first task has gradients", bool(sigma[0] > 0)),
    )
    return Bound(
        "known similarity",
        {k: v / tasks for k, v in terms.items()},
        given,
        "Remark 2.1, docs/theory.md",
    )


def adaptive(sigma: Any, divergence: Any, guess: float, *, deviation: float, C: float) -> Bound:
    """The same remark when nobody knows D̄: D_{t+1}² = V_t/sigma_{1:t} with V_t = Σ_{s≤t}
    sigma_s·B_R(θ_s‖phi_s).

        T·TAR ≤ (B_1/D_1 + D_1)·sigma_1 + (2 + √b + √c)·( D̄·sigma_{1:T} +
        √(sigma_{1:T}·(sigma_1·B_1 + C·Σ_{t≥2} sigma_t²/sigma_{1:t})) )

    with b = max_{t≥2} V_t/V_{t−1} and c = max_{t≥2} sigma_{1:t}/sigma_{1:t−1}: nothing can be
    promised before the run, since the second task may lie any number of times further off than the
    first. ``divergence`` are the B_R(θ_t‖phi_t), [T].

    >>> round(adaptive([1.0, 1.0], [0.25, 0.25], 1.0, deviation=0.25, C=0.25).total, 6)
    3.922877
    """
    sigma, divergence = vector(sigma, "sigma"), vector(divergence, "divergence")
    spread, total = np.cumsum(sigma * divergence), np.cumsum(sigma)
    with np.errstate(divide="ignore", invalid="ignore"):
        b, c = (
            float(np.max(np.nan_to_num(a[1:] / a[:-1], nan=1.0), initial=1.0))
            for a in (spread, total)
        )
    factor, whole = 2 + math.sqrt(b) + math.sqrt(c), float(total[-1])
    late = sigma[0] * divergence[0] + C * (drift(sigma) - sigma[0])
    terms = {
        "first task": (divergence[0] / guess + guess) * sigma[0],
        "deviation": factor * deviation * whole,
        "moving": factor * math.sqrt(whole * late),
    }
    given = (
        CONVEX,
        LIPSCHITZ,
        Assumption("B_R(θ‖·) is Lipschitz on the hull of the optima"),
        decide("the first task has gradients and moved phi", bool(spread[0] > 0)),
        Assumption("growth of the measured deviation", CHECKED, f"b = {b:.3g}, c = {c:.3g}"),
    )
    return Bound(
        "average deviation",
        {k: v / sigma.size for k, v in terms.items()},
        given,
        "Remark 2.1 made causal, docs/theory.md",
    )
