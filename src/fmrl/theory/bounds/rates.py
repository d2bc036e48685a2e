"""Theorem 3.1 and Corollaries B.2 to B.4: rates of FLI-Online, FAL and FLI-Batch in closed form,
with the ε that each asks for.

Each is `upper` with the parameters of a proposition, all tasks alike, every violation that can
happen, and the terms simplified: no sum over tasks is left. docs/theory.md has the steps."""

from __future__ import annotations

import math

from fmrl.core.rules.update import FLIBatch, FLIOnline
from fmrl.errors import FMRLError
from fmrl.theory.bounds.average_regret import tuned
from fmrl.theory.bounds.bound import (
    CONVEX,
    HULL_OF_UPDATES,
    LIPSCHITZ,
    Assumption,
    Bound,
    decide,
    positive_if_given,
    probability,
    smooth,
)
from fmrl.theory.bounds.propositions import excess, sampling_error, stochastic_assumptions


def tuned_fli(
    update: FLIOnline | FLIBatch, diameter: float, tasks: int, alpha: float, lipschitz: float,
    rounds: float, *, beta: float = 1.0,
) -> dict[str, float]:  # fmt: skip
    """The choice of Corollaries B.2 and B.4, ready for `Doubling`.

        FLI-Online    ε = 4βG/(α·m^(1/6)) + D(1 + log T)/T        γ = (1 + log T)/log T
        FLI-Batch     ε = 24βG/(α·√m) + D(1 + log T)/T            the same

    Args:
        update: FLIOnline() or FLIBatch(). For FAL() (Corollary B.3) it is `tuned`.
        diameter: D, of the domain.
        tasks: T, at least 2.
        alpha: α of quadratic growth of every task's mean loss (FLI-Batch: of its risk).
        lipschitz: G of every task (FLI-Batch: of every loss).
        rounds: m of every task.
        beta: Smoothness of R.

    >>> from fmrl.core.rules.update import FLIBatch, FLIOnline
    >>> {k: round(v, 4) for k, v in tuned_fli(FLIOnline(), 1.0, 100, 1.0, 1.0, 4096).items()}
    {'epsilon': 1.0561, 'gamma': 1.2171}
    >>> round(tuned_fli(FLIBatch(), 1.0, 100, 1.0, 1.0, 57600)["epsilon"], 4)
    0.1561
    """
    positive_if_given(alpha=alpha, rounds=rounds, lipschitz=lipschitz)
    smooth(beta)
    if type(update) not in (FLIOnline, FLIBatch):
        raise FMRLError(f"update must be FLIOnline() or FLIBatch(), not {update!r}")
    choice, factor, root = tuned(diameter, tasks), 4, rounds ** (1 / 6)
    if isinstance(update, FLIBatch):
        factor, root = 24, math.sqrt(rounds)
    return choice | {"epsilon": choice["epsilon"] + factor * beta * lipschitz / (alpha * root)}


def fli_online_rate(
    task_diameter: float, diameter: float, lipschitz: float, rounds: float, tasks: int,
    alpha: float, *, C: float | None = None, beta: float = 1.0,
) -> Bound:  # fmt: skip
    """Theorem 3.1(a), Corollary B.2: TAR of FLI-Online with FTRL under quadratic growth.

        TAR ≤ ( κ√β·(3/2 + 2γ + 8√β·D*/D)·D*  +  (3κ + 1)·D·ℓ + P·ℓ  +  κ·C/(2√β·D*)·ℓ
                + κ·((γ + 3/4)·e + 2e²/D + ε') + ε'/T )·G√m

    with κ = 4β, ℓ = (1 + log T)/T, γ = (1 + log T)/log T, e = √2·D·m^(−1/6),
    ε' = 4βG/(α·m^(1/6)) and P = 2√β·D* + e. The choice of `tuned_fli` is understood. As
    printed: O(D* + D/D*·(log T/T + m^(−1/6)))·G√m. Theorem 3.1's ε = Ω(m^(−1/6)) alone is not
    enough, nor is γ = 1: the first violated guess costs D*²/ε (docs/theory.md).

    Args:
        task_diameter: D* of the optima in hindsight, positive.
        diameter: D, of the domain.
        lipschitz: G of every task.
        rounds: m of every task.
        tasks: T, at least 2.
        alpha: α of quadratic growth of every task's mean loss.
        C: Constant of the moving mean of the update vectors: G'²/2 where B_R(θ‖·) is 1-strongly
            convex, else G'·(diameter of their hull); None: R = ½‖·‖², where it is at most P²/2.
        beta: Smoothness of R.

    >>> b = fli_online_rate(0.1, 1.0, 1.0, 10**12, 10**4, 10.0)
    >>> [f"{name} {value / 10**6:.3f}" for name, value in b.terms.items()]
    ['task diameter 1.807', 'first task and guess 0.013', 'moving 0.000', 'updates not exact 0.123']
    """
    _check(alpha, beta, rounds, tasks)
    fall = rounds ** (-1 / 6)
    e, extra = math.sqrt(2) * diameter * fall, 4 * beta * lipschitz / alpha * fall
    given = (Assumption("α-quadratic growth", detail=f"mean loss of every task, α = {alpha:g}"),)
    named = "FLI-Online rate", given, "Theorem 3.1(a) and Corollary B.2"
    alike = task_diameter, diameter, lipschitz, rounds, tasks, beta, C
    return _rate(alike, named, 4 * beta, e, extra, 3 * beta * e)


def fal_stochastic_rate(
    task_diameter: float, diameter: float, lipschitz: float, rounds: float, tasks: int,
    alpha: float, delta: float, *, dim: int | str | None = None, radius: float | None = None,
    C: float | None = None, beta: float = 1.0,
) -> Bound:  # fmt: skip
    """Theorem 3.1(b), Corollary B.3: TAR of FAL when rounds are i.i.d.

        TAR ≤ ( √β·(3/2 + 2γ + 8√β·D*/D)·D*  +  4·D·ℓ + P·ℓ  +  C/(2√β·D*)·ℓ
                + (γ + 3/4)·e + 2e²/D )·G√m

    with probability 1 − delta, where ℓ = (1 + log T)/T, γ = (1 + log T)/log T, e = 2√(2βu/α) with
    u = `excess` at delta/T, and P = 2√β·D* + e. The choice of `tuned` is understood. With dim the
    last terms fall like √(d·log m/m), without it like (log(T/delta)/m)^(1/4), both faster than
    the printed m^(−1/6).

    Args:
        task_diameter: D* of the risk minimisers, positive.
        diameter: D, of the domain.
        lipschitz: G of every loss.
        rounds: m of every task.
        tasks: T, at least 2.
        alpha: α of quadratic growth of every task's risk.
        delta: Probability that the bound fails.
        dim: Dimensions of the domain; "linear" for losses of one linear form in l2, where they do
            not matter; None for the printed rate, which is then assumed.
        radius: Of a ball that holds the domain, in its norm; needed where dim is given.
        C: Constant of the moving mean of the update vectors: G'²/2 where B_R(θ‖·) is 1-strongly
            convex, else G'·(diameter of their hull); None: R = ½‖·‖², where it is at most P²/2.
        beta: Smoothness of R.

    >>> b = fal_stochastic_rate(0.1, 1.0, 1.0, 10**8, 10**4, 1.0, 0.05, dim=2, radius=1.0)
    >>> [f"{name} {value / 10**4:.3f}" for name, value in b.terms.items()]
    ['task diameter 0.452', 'first task and guess 0.004', 'moving 0.000', 'updates not exact 0.008']
    """
    _check(alpha, beta, rounds, tasks, delta)
    u = float(excess(lipschitz, rounds, delta / tasks, dim, radius, alpha)[0])
    e = 2 * math.sqrt(2 * beta * u / alpha)
    given, place = stochastic_assumptions(alpha, dim), "Theorem 3.1(b) and Corollary B.3"
    named = "FAL rate, stochastic", given, place
    alike = task_diameter, diameter, lipschitz, rounds, tasks, beta, C
    return _rate(alike, named, 1.0, e, 0.0, 0.75 * e, delta=delta)


def fli_batch_rate(
    task_diameter: float, diameter: float, lipschitz: float, rounds: float, tasks: int,
    alpha: float, delta: float, *, dim: int | str | None = None, radius: float | None = None,
    C: float | None = None, beta: float = 1.0,
) -> Bound:  # fmt: skip
    """Theorem 3.1(b), Corollary B.4: TAR of FLI-Batch when rounds are i.i.d.

        TAR ≤ ( κ√β·(3/2 + aγ + 2a²√β·D*/D)·D*  +  (3κ + 1)·D·ℓ + (1 + κ/8)·P·ℓ  +  κ·C/(2√β·D*)·ℓ
                + κ·(γe + 2e²/D + ε' + 2.55·√β(4β+1)·√c) + ε'/T
                + 18βG/(5α√m) + (u + 6n/5)·√m/(8G) )·G√m

    with probability 1 − delta, where κ = 18β/5, ℓ = (1 + log T)/T, γ = (1 + log T)/log T, a = 3.15,
    e = 2.96·√(βc), ε' = 24βG/(α·√m), P = a√β·D* + e, and c, n, u are those of `fli_batch`. The
    choice of `tuned_fli` is understood. Where dim is given all terms in the last two rows
    vanish: √c falls like m^(−1/4), u·√m like d·log m/√m, or 1/√m for linear models. So the printed
    ε has a rate, faster than the printed m^(−1/6). Without dim, u·√m does not vanish, and whether
    the corollary holds for all convex losses whatever their dimensions is open (docs/theory.md).

    Args:
        task_diameter: D* of the risk minimisers, positive.
        diameter: D, of the domain.
        lipschitz: G of every loss.
        rounds: m of every task.
        tasks: T, at least 2.
        alpha: α of quadratic growth of every task's risk.
        delta: Probability that the bound fails.
        dim: Dimensions of the domain; "linear" for losses of one linear form in l2, where they do
            not matter; None for the printed rate, which is then assumed.
        radius: Of a ball that holds the domain, in its norm; needed where dim is given.
        C: Constant of the moving mean of the update vectors: G'²/2 where B_R(θ‖·) is 1-strongly
            convex, else G'·(diameter of their hull); None: R = ½‖·‖², where it is at most P²/2.
        beta: Smoothness of R.

    >>> b = fli_batch_rate(0.1, 1.0, 1.0, 10**12, 10**4, 1.0, 0.05, dim=2, radius=1.0)
    >>> [f"{name} {value / 10**6:.3f}" for name, value in b.terms.items()]
    ['task diameter 2.510', 'first task and guess 0.013', 'moving 0.001', 'updates not exact 0.100']
    """
    _check(alpha, beta, rounds, tasks, delta)
    G, D, root = lipschitz, diameter, math.sqrt(rounds)
    choice = tuned_fli(FLIBatch(), D, tasks, alpha, G, rounds, beta=beta)
    u = float(excess(G, rounds, delta / (2 * tasks), dim, radius, alpha)[0])
    n = float(sampling_error(alpha, G, rounds, delta / (2 * tasks)))
    c = (max(3 * D + choice["epsilon"], choice["gamma"] * D) * G / root + n) / alpha
    # x of `fli_batch` is at most (1 + √12)/11·D* + √(12/11·c), as q ≤ 1/12.
    a, e = 2 + 2 * math.sqrt(2) * (1 + math.sqrt(12)) / 11, 2 * math.sqrt(24 / 11 * beta * c)
    kappa, extra = 3.6 * beta, 24 * beta * G / (alpha * root)
    error = kappa * 3.6 / math.sqrt(2) * math.sqrt(beta * c) * (4 * beta + 1)
    error += 3.6 * beta * G / (alpha * root) + (u + 1.2 * n) * root / (8 * G)
    place = "Theorem 3.1(b) and Corollary B.4, with another proof"
    named = "FLI-Batch rate", stochastic_assumptions(alpha, dim), place
    alike = task_diameter, D, G, rounds, tasks, beta, C
    return _rate(alike, named, kappa, e, extra, error, a=a, prime_share=kappa / 8, delta=delta)


def _check(alpha: float, beta: float, rounds: float, tasks: float, delta: float = 0.5) -> None:
    positive_if_given(alpha=alpha)
    probability(delta)
    smooth(beta)
    for name, value, least in (("rounds", rounds, 1), ("tasks", tasks, 2)):
        if not (value >= least and value == int(value)):
            raise FMRLError(f"{name} must be a whole number of at least {least}, not {value}")


def _rate(
    alike: tuple, named: tuple, kappa: float, e: float, extra: float, error: float, *,
    a: float = 2.0, prime_share: float = 0.0, delta: float = 0.0,
) -> Bound:  # fmt: skip
    """`upper` simplified, where P = ρD* + E is at most a√β·D* + e, ε = extra + D(1 + log T)/T, and
    what Δ* and Δ' cost is at most error + prime_share·P·(1 + log T)/T."""
    (star, D, G, m, tasks, beta, C), (name, given, place) = alike, named
    positive_if_given(task_diameter=star, diameter=D, lipschitz=G, C=C)
    gamma, log_rate, root = tuned(D, tasks)["gamma"], tuned(1.0, tasks)["epsilon"], math.sqrt(beta)
    P = a * root * star + e
    terms = {
        "task diameter": kappa * root * (1.5 + gamma * a + 2 * a**2 * root * star / D) * star,
        "first task and guess": ((3 * kappa + 1) * D + (1 + prime_share) * P) * log_rate,
        "moving": kappa * (P / 2 if C is None else C / (2 * root * star)) * log_rate,
        "updates not exact": kappa * (gamma * e + 2 * e**2 / D + extra) + extra / tasks + error,
    }
    terms = {key: value * G * math.sqrt(m) for key, value in terms.items()}
    even = Assumption("R is smooth", detail=f"β = {beta:g}")
    same, order = Assumption("the same G and m in every task"), decide("D* ≤ D", star <= D)
    given = CONVEX, LIPSCHITZ, HULL_OF_UPDATES, same, order, even, *given
    return Bound(name, terms, given, place, f"with probability {1 - delta:g}" if delta else "")
