"""When the optima are not exact: the parameters that Propositions B.1 to B.3 give to the general
theorem.

All three rest on α-quadratic growth of the mean loss L_t of every task:
α/2·‖θ − θ*‖² ≤ L_t(θ) − L_t(θ*)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import (
    Assumption,
    at_least,
    decide,
    nonnegative,
    positive_if_given,
    probability,
    same_length,
    smooth,
)


@dataclass(frozen=True)
class Parameters:
    """κ, ν, Δ*, Δ', Δ_max and β for `upper`, with what they rest on: ``upper(…, **p.values())``.

    Args:
        kappa: κ.
        nu: ν.
        delta_star: Δ*_t, [T]: B_R(θ*_t‖phi_t) ≤ κ·B_R(θ_t‖phi_t) + Δ*_t·D_t/ε.
        delta_prime: Δ'.
        delta_max: Δ_max.
        beta: Smoothness of R.
        assumptions: What they rest on.
        place: Where they are proved.
    """

    kappa: float
    nu: float
    delta_star: tuple[float, ...]
    delta_prime: float
    delta_max: float
    beta: float
    assumptions: tuple[Assumption, ...]
    place: str

    def values(self) -> dict[str, Any]:
        """Keyword arguments of `upper`."""
        return {name: value for name, value in vars(self).items() if name != "place"}

    def __repr__(self):
        return (
            f"Parameters(kappa={self.kappa:g}, nu={self.nu:g}, "
            f"delta_star≤{max(self.delta_star):.4g}, delta_prime={self.delta_prime:.6g}, "
            f"delta_max={self.delta_max:.6g}, beta={self.beta:g})"
        )


def _tasks(alpha, beta, lipschitz, rounds, tasks) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """G_t, √m_t and m_t [T], after checking them."""
    positive_if_given(alpha=alpha)
    smooth(beta)
    G, m = same_length(lipschitz=lipschitz, rounds=rounds)
    if G.size == 1 and tasks is not None:
        G, m = np.repeat(G, tasks), np.repeat(m, tasks)
    if tasks is not None and tasks != G.size:
        raise FMRLError(f"lipschitz and rounds are of {G.size} tasks, not {tasks}")
    if np.any(m < 1):
        raise FMRLError("rounds must be at least 1")
    return G, np.sqrt(m), m


def _enough(factor: int, epsilon: float, rate: np.ndarray) -> Assumption:
    """ε ≥ factor·βG_t/(α√m_t) in every task; ``rate`` are the right-hand sides."""
    least = float(np.max(rate))
    detail = f"needs ε ≥ {least:.4g}"
    return decide(f"ε ≥ {factor}βG/(α√m)", epsilon >= least * (1 - 1e-12), detail)


def fli_online(
    alpha: float, epsilon: float, diameter: float, lipschitz: Any, rounds: Any, *,
    beta: float = 1.0, tasks: int | None = None,
) -> Parameters:  # fmt: skip
    """Proposition B.1: FLI-Online with FTRL inside the tasks.

        κ = 4β    ν = 3β    Δ*_t = 0    Δ' = 6βD²/(αε)·Σ G_t·sigma_t/√m_t
        Δ_max = max_t D²G_t/(αε√m_t)        provided ε ≥ 4βG_t/(α√m_t) in every task

    The reference parameters are the optima in hindsight, nearest to the last action.

    Args:
        alpha: α of quadratic growth.
        epsilon: ε of `Doubling`.
        diameter: D, of the domain.
        lipschitz: G_t, a number or [T].
        rounds: m_t, a number or [T].
        beta: Smoothness of R.
        tasks: T, where lipschitz and rounds are plain numbers.

    >>> fli_online(alpha=1.0, epsilon=2.0, diameter=1.0, lipschitz=1.0, rounds=16, tasks=10)
    Parameters(kappa=4, nu=3, delta_star≤0, delta_prime=30, delta_max=0.125, beta=1)
    """
    G, root, _ = _tasks(alpha, beta, lipschitz, rounds, tasks)
    positive_if_given(epsilon=epsilon, diameter=diameter)
    far = diameter**2 * G / (alpha * epsilon * root)
    prime, most = 6 * beta * float(np.sum(far * G * root)), float(np.max(far))
    grows = Assumption("α-quadratic growth", detail=f"mean loss of every task, α = {alpha:g}")
    given = grows, _enough(4, epsilon, 4 * beta * G / (alpha * root))
    zero = (0.0,) * G.size
    return Parameters(4 * beta, 3 * beta, zero, prime, most, beta, given, "Proposition B.1")


def excess(
    lipschitz: Any, rounds: Any, delta: float, dim: int | str | None, radius: float | None,
    alpha: float | None = None,
) -> np.ndarray:  # fmt: skip
    """How much the risk of a task's optimum in hindsight exceeds the least risk, [T].

        dim           ( 1 + √((d·log(1 + 4·radius·G·√m) + log(2/delta))/2) + √(log(2/delta)/2) )/√m
        and alpha     G²/(αm)·( 3 + 4·d·log(1 + 2·radius·αm/G) + 4·log(1/delta) ), if smaller
        "linear"      2·radius·K, with alpha 2K²/α if smaller, K = G·(2 + √(2·log(1/delta)))/√m
        None          √(8/m·log(2/delta))                              (Lemma B.4, as printed)

    with probability 1 − delta per task, and at most 1 since losses lie in [0, 1]. The printed rate
    treats the optimum, which depends on all samples, as if it were fixed in advance; in many
    dimensions it is false. The others are proved (docs/theory.md): by covering, or for linear
    models by contraction; with alpha the optimum is near the minimiser, where losses differ little.

    Args:
        lipschitz: G_t of every loss, a number or [T].
        rounds: m_t, a number or [T].
        delta: Probability that the rate fails in one task.
        dim: Dimensions of the domain; "linear" where every loss is a function of one linear form
            ⟨x, θ⟩ and the norm is l2, so that dimensions do not matter; None for the printed rate.
        radius: Of a ball that holds the domain, in its norm; needed where dim is given.
        alpha: α of quadratic growth of the risk; None where it is not known.

    >>> excess(1.0, 10_000, 0.05, dim=2, radius=1.0).round(4)
    array([0.0516])
    >>> excess(1.0, 10_000, 0.05, dim=2, radius=1.0, alpha=1.0).round(4)
    array([0.0094])
    >>> excess(1.0, 10_000, 0.05, dim="linear", radius=1.0, alpha=1.0).round(4)
    array([0.004])
    """
    G, m = same_length(lipschitz=lipschitz, rounds=rounds)
    probability(delta)
    positive_if_given(alpha=alpha, radius=radius)
    log, alpha = math.log(1 / delta), alpha or 1e-100  # where α is not known, fast is infinite
    if dim is None:
        return np.minimum(1.0, np.sqrt(8 / m * (log + math.log(2))))
    if radius is None:
        raise FMRLError("with dim, give the radius of a ball that holds the domain, in its norm")
    if dim == "linear":
        K = G * (2 + math.sqrt(2 * log)) / np.sqrt(m)
        return np.minimum(1.0, np.minimum(2 * radius * K, 2 * K**2 / alpha))
    if not (isinstance(dim, Integral) and dim >= 1) or isinstance(dim, bool):
        raise FMRLError(f'dim must be a number of dimensions, "linear" or None, not {dim!r}')
    cover, both = dim * np.log1p(4 * radius * G * np.sqrt(m)), log + math.log(2)
    slow = (1 + np.sqrt((cover + both) / 2) + math.sqrt(both / 2)) / np.sqrt(m)
    cover = dim * np.log1p(2 * radius * alpha * m / np.maximum(G, 1e-100))
    fast = G**2 / (alpha * m) * (3 + 4 * cover + 4 * log)
    return np.minimum(1.0, np.minimum(slow, fast))


def sampling_error(alpha: float, lipschitz: Any, rounds: Any, delta: float) -> np.ndarray:
    """What chance adds to the mean excess risk of the actions of a task, beyond twice their regret.

        (1/m)·Σ_i L(θ_i) − L(θ') ≤ 2/m·R_m(θ') + n,
        n = min( 4G²/(αm)·log(1/delta), √(2/m·log(1/delta)) )

    with probability 1 − delta, where R_m(θ') ≥ 0 is any bound on the regret against the risk
    minimiser θ' and L grows quadratically around it: actions near θ' differ little in loss from
    it, so chance cannot add much. The second form is for losses in [0, 1].

    Args:
        alpha: α of quadratic growth of the risk.
        lipschitz: G of every loss, a number or [T].
        rounds: m, a number or [T].
        delta: Probability that it fails in one task.

    >>> float(sampling_error(1.0, 1.0, 10_000, 0.05).round(6))
    0.001198
    """
    probability(delta)
    positive_if_given(alpha=alpha)
    same_length(lipschitz=lipschitz, rounds=rounds)
    G, m, log = np.asarray(lipschitz), np.asarray(rounds), math.log(1 / delta)
    return np.minimum(4 * G**2 / (alpha * m) * log, np.sqrt(2 / m * log))


def stochastic_assumptions(alpha: float, dim: int | str | None) -> tuple[Assumption, ...]:
    """What Propositions B.2 and B.3 rest on, besides ε.

    Args:
        alpha: α of quadratic growth of the risk.
        dim: Dimensions of the domain, "linear" or None: which rate `excess` uses.

    >>> [a.name for a in stochastic_assumptions(1.0, "linear")][-1]
    'losses of one linear form, in l2'
    """
    detail = f"risk of every task, α = {alpha:g}, with a unique minimum"
    grows, fixed = Assumption("α-quadratic growth", detail=detail), "give dim for a proved rate"
    given = grows, Assumption("rounds i.i.d. in each task, losses in [0, 1]")
    if dim == "linear":
        return *given, Assumption("losses of one linear form, in l2")
    name = "the optimum in hindsight generalises at the printed rate"
    return given if dim else (*given, Assumption(name, detail=fixed))


def fal_stochastic(
    alpha: float, lipschitz: Any, rounds: Any, delta: float, *, beta: float = 1.0,
    tasks: int | None = None, dim: int | str | None = None, radius: float | None = None,
) -> Parameters:  # fmt: skip
    """Proposition B.2, corrected: FAL with i.i.d. rounds and the similarity of risk minimisers.

        κ = 1    ν = 3β    Δ*_t = 0    Δ' = (6β/α)·Σ sigma_t·u_t    Δ_max = max_t u_t/α

    where u_t is `excess` at delta/T; with probability 1 − delta for all tasks at once.

    Args:
        alpha: α of quadratic growth of the risk.
        lipschitz: G_t of every loss (not of their mean), a number or [T].
        rounds: m_t, a number or [T].
        delta: Probability that the parameters fail.
        beta: Smoothness of R.
        tasks: T, where lipschitz and rounds are plain numbers.
        dim: Dimensions of the domain; "linear" for losses of one linear form in l2, where they do
            not matter; None for the printed rate, which is then assumed.
        radius: Of a ball that holds the domain, in its norm; needed where dim is given.

    >>> fal_stochastic(0.5, 1.0, 10_000, 0.05, tasks=100, dim=2, radius=1.0)
    Parameters(kappa=1, nu=3, delta_star≤0, delta_prime=2570.09, delta_max=0.0428349, beta=1)
    """
    G, root, m = _tasks(alpha, beta, lipschitz, rounds, tasks)
    u = excess(G, m, delta / G.size, dim, radius, alpha)
    prime, most = 6 * beta / alpha * float(np.sum(G * root * u)), float(np.max(u)) / alpha
    given, place = stochastic_assumptions(alpha, dim), "Proposition B.2, corrected"
    return Parameters(1.0, 3 * beta, (0.0,) * G.size, prime, most, beta, given, place)


def fli_batch(
    alpha: float, epsilon: float, gamma: float, diameter: float, lipschitz: Any, rounds: Any,
    delta: float, *, beta: float = 1.0, tasks: int | None = None, dim: int | str | None = None,
    radius: float | None = None, task_diameter: float | None = None,
) -> Parameters:  # fmt: skip
    """Proposition B.3, corrected: FLI-Batch (the mean action) with i.i.d. rounds.

        κ = 18β/5    ν = 3β    Δ*_t = (3β/α)·( u_t + (6/5)·(ε·G_t/√m_t + n_t) )
        Δ_max = min( x², q·D²/β + c )       x = (q·D* + √(q·D*² + (1 − q)·c))/(1 − q)
        Δ' = (6β/α)·min( Σ sigma_t·((2S/ε + M)·G_t/√m_t + n_t),
                         (6/5)·Σ sigma_t·((4β + 1)·M·G_t/√m_t + n_t) + 2S/ε·K·max_t G_t² )

    with M = max(3D + ε, γD), which no guess exceeds, S = min(D², β(D* + √Δ_max)²), from which no
    task but the first begins farther, c = max_t (M·G_t/√m_t + n_t)/α, q = max_t 2βG_t/(αε√m_t),
    K = min(γ/(γ−1), T − 1), or 0 where no guess can be violated, n_t = `sampling_error` and u_t =
    `excess`, both at delta/(2T), provided ε ≥ 24βG_t/(α√m_t), which is q ≤ 1/12; with probability
    1 − delta for all tasks at once.

    The printed proposition forgets part of the deviation of the mean action. Tasks whose guess is
    not violated end near the minimum of their risk however far they might have begun, which is what
    Corollary B.4 needs; docs/theory.md has the proof.

    Args:
        alpha: α of quadratic growth of the risk.
        epsilon: ε of `Doubling`.
        gamma: γ of `Doubling`.
        diameter: D, of the domain.
        lipschitz: G_t of every loss, a number or [T].
        rounds: m_t, a number or [T].
        delta: Probability that the parameters fail.
        beta: Smoothness of R.
        tasks: T, where lipschitz and rounds are plain numbers.
        dim: Dimensions of the domain; "linear" for losses of one linear form in l2, where they do
            not matter; None for the printed rate, which is then assumed.
        radius: Of a ball that holds the domain, in its norm; needed where dim is given.
        task_diameter: D* of the risk minimisers; None: D, which it is at most.

    >>> p = fli_batch(1.0, 1.0, 1.5, 1.0, 1.0, 10_000, 0.05, tasks=100, dim=2, radius=1.0)
    >>> p.kappa, p.nu, round(p.delta_star[0], 6), round(p.delta_prime, 2), round(p.delta_max, 6)
    (3.6, 3.0, 0.082565, 3799.06, 0.063318)
    """
    G, root, m = _tasks(alpha, beta, lipschitz, rounds, tasks)
    positive_if_given(epsilon=epsilon, diameter=diameter)
    at_least(0, task_diameter=task_diameter)
    D, T = diameter, G.size
    star = D if task_diameter is None else min(task_diameter, D)
    M = max(3 * D + epsilon, gamma * D)
    u = excess(G, m, delta / (2 * T), dim, radius, alpha)
    n = sampling_error(alpha, G, m, delta / (2 * T))
    enough = _enough(24, epsilon, 24 * beta * G / (alpha * root))
    q = min(1 / 12, float(np.max(2 * beta * G / (alpha * epsilon * root))))
    c = float(np.max(M * G / root + n)) / alpha
    x = (q * star + math.sqrt(q * star**2 + (1 - q) * c)) / (1 - q)
    most = min(x**2, q * D**2 / beta + c)
    far = min(D**2, beta * (star + math.sqrt(most)) ** 2)
    reach = 2 * math.sqrt(beta) * star + 2 * math.sqrt(2 * beta * most)
    violations = min(gamma / (gamma - 1) if gamma > 1 else math.inf, T - 1) * (epsilon < reach)
    by_start = float(np.sum(G * root * ((2 * far / epsilon + M) * G / root + n)))
    by_guess = 1.2 * float(np.sum(G * root * ((4 * beta + 1) * M * G / root + n)))
    by_guess += 2 * far / epsilon * float(np.max(G)) ** 2 * violations
    error = 3 * beta / alpha * (u + 1.2 * (epsilon * G / root + n))
    given, place = (*stochastic_assumptions(alpha, dim), enough), "Proposition B.3, corrected"
    kappa, nu, prime = 3.6 * beta, 3 * beta, 6 * beta / alpha * min(by_start, by_guess)
    return Parameters(kappa, nu, tuple(error.tolist()), prime, most, beta, given, place)


def measured(
    divergence: Any, update_divergence: Any, sigma: Any, spread: float, reference_spread: float,
    distance: float, *, beta: float,
) -> Parameters:  # fmt: skip
    """The parameters a finished run had: no growth condition, nothing assumed.

        κ = 1    Δ*_t = max(0, B_R(θ*_t‖phi_t) − B_R(θ_t‖phi_t))    Δ_max = max_t ½‖θ*_t − θ_t‖²
        ν = 1    Δ' = max(0, Σ sigma_t·B_R(θ_t‖mean of θ) − Σ sigma_t·B_R(θ*_t‖mean of θ*))

    Args:
        divergence: B_R(θ*_t‖phi_t) of the optima, [T].
        update_divergence: B_R(θ_t‖phi_t) of the update vectors, [T].
        sigma: Weights G_t·√m_t, [T].
        spread: The first sum of Δ', over the update vectors.
        reference_spread: The second sum of Δ', over the optima.
        distance: Δ_max.
        beta: Smoothness of R.

    >>> measured([0.5, 0.2], [0.4, 0.3], [1.0, 1.0], 0.6, 0.5, 0.01, beta=1.0)
    Parameters(kappa=1, nu=1, delta_star≤0.1, delta_prime=0.1, delta_max=0.01, beta=1)
    """
    far, near = (
        nonnegative(divergence, "divergence"),
        nonnegative(update_divergence, "update_divergence"),
    )
    nonnegative(sigma, "sigma")
    star = tuple(np.maximum(0.0, far - near).tolist())
    name, prime = "distance from update vectors to optima", max(0.0, spread - reference_spread)
    given = (Assumption(name, detail="as measured"),)
    return Parameters(1.0, 1.0, star, prime, distance, beta, given, "Setting B.1, measured")
