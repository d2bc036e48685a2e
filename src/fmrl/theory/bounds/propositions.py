"""When the optima are not exact: the parameters that Propositions B.1 to B.3 give to the general
theorem.

All three rest on α-quadratic growth of the mean loss L_t of every task:
α/2·‖θ − θ*‖² ≤ L_t(θ) − L_t(θ*)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import Assumption, decide, positive, same_length, vector


@dataclass(frozen=True)
class Parameters:
    """κ, ν, Δ*, Δ', Δ_max and β for `upper`, with what they rest on: ``upper(…, **p.values())``.

    Args:
        kappa: κ.
        nu: ν.
        delta_star: Δ*_t, [T].
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
    positive(alpha=alpha)
    if not beta >= 1:
        raise FMRLError(f"beta must be at least 1, not {beta}: R is 1-strongly convex")
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
    positive(epsilon=epsilon)
    far = diameter**2 * G / (alpha * epsilon * root)
    prime, most = 6 * beta * float(np.sum(far * G * root)), float(np.max(far))
    detail = f"mean loss of every task, α = {alpha:g}"
    given = (
        Assumption("α-quadratic growth", detail=detail),
        _enough(4, epsilon, 4 * beta * G / (alpha * root)),
    )
    zero = (0.0,) * G.size
    return Parameters(4 * beta, 3 * beta, zero, prime, most, beta, given, "Proposition B.1")


def excess(
    lipschitz: Any, rounds: Any, delta: float, dim: int | None, radius: float | None
) -> np.ndarray:
    """How much the risk of a task's optimum in hindsight exceeds the least risk, [T].

        with dim       ( 1 + √((d·log(1 + 4·radius·G·√m) + log(2/delta))/2) + √(log(2/delta)/2) )/√m
        without dim    √(8/m·log(2/delta))                               (Lemma B.4, as printed)

    with probability 1 − delta per task, and at most 1 since losses lie in [0, 1]. The first is
    proved by covering. The printed rate treats the optimum, which depends on all samples, as if it
    were fixed in advance; in many dimensions it is false.

    Args:
        lipschitz: G_t of every loss, a number or [T].
        rounds: m_t, a number or [T].
        delta: Probability that the rate fails in one task.
        dim: Dimensions of the domain; None for the printed rate.
        radius: Of a ball that holds the domain, in its norm; needed with dim.

    >>> excess(1.0, 10_000, 0.05, dim=2, radius=1.0).round(4)
    array([0.0516])
    """
    G, m = same_length(lipschitz=lipschitz, rounds=rounds)
    log = math.log(2 / delta)
    if dim is None:
        return np.minimum(1.0, np.sqrt(8 / m * log))
    if radius is None:
        raise FMRLError("with dim, give the radius of a ball that holds the domain, in its norm")
    cover = dim * np.log1p(4 * radius * G * np.sqrt(m))
    return np.minimum(1.0, (1 + np.sqrt((cover + log) / 2) + math.sqrt(log / 2)) / np.sqrt(m))


def _stochastic(alpha: float, dim: int | None) -> tuple[Assumption, ...]:
    detail = f"risk of every task, α = {alpha:g}, with a unique minimum"
    given = (
        Assumption("α-quadratic growth", detail=detail),
        Assumption("rounds i.i.d. in each task, losses in [0, 1]"),
    )
    name = "the optimum in hindsight generalises at the printed rate"
    return given if dim else (*given, Assumption(name, detail="give dim for a proved rate"))


def fal_stochastic(
    alpha: float, lipschitz: Any, rounds: Any, delta: float, *, beta: float = 1.0,
    tasks: int | None = None, dim: int | None = None, radius: float | None = None,
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
        dim: As in `excess`.
        radius: As in `excess`.

    >>> fal_stochastic(0.5, 1.0, 10_000, 0.05, tasks=100, dim=2, radius=1.0)
    Parameters(kappa=1, nu=3, delta_star≤0, delta_prime=7465.1, delta_max=0.124418, beta=1)
    """
    G, root, m = _tasks(alpha, beta, lipschitz, rounds, tasks)
    u = excess(G, m, delta / G.size, dim, radius)
    prime, most = 6 * beta / alpha * float(np.sum(G * root * u)), float(np.max(u)) / alpha
    given, place = _stochastic(alpha, dim), "Proposition B.2, corrected"
    return Parameters(1.0, 3 * beta, (0.0,) * G.size, prime, most, beta, given, place)


def fli_batch(
    alpha: float, epsilon: float, gamma: float, diameter: float, lipschitz: Any, rounds: Any,
    delta: float, *, beta: float = 1.0, tasks: int | None = None, dim: int | None = None,
    radius: float | None = None,
) -> Parameters:  # fmt: skip
    """Proposition B.3, corrected: FLI-Batch (the mean action) with i.i.d. rounds.

        κ = 4β    ν = 3β    Δ*_t = (4β/α)·( M·G_t/√m_t + s_t + 13/12·u_t )
        r_t = (D²/ε + M)·G_t/√m_t + s_t        Δ' = (6β/α)·Σ sigma_t·r_t        Δ_max = max_t r_t/α

    with M = max(D + ε, γD), the largest guess there can be, s_t = √(8/m_t·log(4T/delta)) and u_t =
    `excess` at delta/(2T), provided ε ≥ 24βG_t/(α√m_t); with probability 1 − delta for all tasks at
    once. The printed proposition forgets part of the deviation of the mean action (docs/theory.md).

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
        dim: As in `excess`.
        radius: As in `excess`.

    >>> fli_batch(1.0, 1.0, 1.5, 1.0, 1.0, 10_000, 0.05, tasks=100, dim=2, radius=1.0)
    Parameters(kappa=4, nu=3, delta_star≤0.6947, delta_prime=6887.55, delta_max=0.114792, beta=1)
    """
    G, root, m = _tasks(alpha, beta, lipschitz, rounds, tasks)
    positive(epsilon=epsilon)
    M = max(diameter + epsilon, gamma * diameter)
    u = excess(G, m, delta / (2 * G.size), dim, radius)
    s = np.sqrt(8 / m * math.log(4 * G.size / delta))
    r = (diameter**2 / epsilon + M) * G / root + s
    star = tuple((4 * beta / alpha * (M * G / root + s + 13 / 12 * u)).tolist())
    prime, most = 6 * beta / alpha * float(np.sum(G * root * r)), float(np.max(r)) / alpha
    given = (*_stochastic(alpha, dim), _enough(24, epsilon, 24 * beta * G / (alpha * root)))
    place = "Proposition B.3, corrected"
    return Parameters(4 * beta, 3 * beta, star, prime, most, beta, given, place)


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
    far, near = vector(divergence, "divergence"), vector(update_divergence, "update_divergence")
    vector(sigma, "sigma")
    star = tuple(np.maximum(0.0, far - near).tolist())
    name, prime = "distance from update vectors to optima", max(0.0, spread - reference_spread)
    given = (Assumption(name, "checked", "measured in the run"),)
    return Parameters(1.0, 1.0, star, prime, distance, beta, given, "Setting B.1, measured")
