"""When the optima are not exact: the parameters that three propositions (B.1 to B.3) give to the
general theorem.

All three rest on α-quadratic growth of the mean loss L_t of every task: α/2·‖θ − θ*‖² ≤ L_t(θ) −
L_t(θ*). ``lipschitz`` and ``rounds`` are numbers or one per task, [T]; with plain numbers,
``tasks`` says how many there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import Assumption, broadcast, decide, positive, vector

SMOOTH = Assumption("R is smooth")


@dataclass(frozen=True)
class Parameters:
    """κ, ν, Δ*, Δ', Δ_max and β for `upper`, with what they rest on. ``upper(…, **p.values())``."""

    kappa: float
    nu: float
    delta_star: tuple[float, ...]  # [T]
    delta_prime: float
    delta_max: float
    beta: float
    assumptions: tuple[Assumption, ...]
    place: str

    def values(self) -> dict[str, Any]:
        """Keyword arguments of `upper`."""
        names = ("kappa", "nu", "delta_star", "delta_prime", "delta_max", "beta", "assumptions")
        return {name: getattr(self, name) for name in names}

    def __repr__(self):
        star = max(self.delta_star)
        return (
            f"Parameters(kappa={self.kappa:g}, nu={self.nu:g}, delta_star≤{star:.4g}, delta_prime={self.delta_prime:.6g}, "
            f"delta_max={self.delta_max:.6g}, beta={self.beta:g})"
        )


def _tasks(lipschitz: Any, rounds: Any, tasks: int | None) -> tuple[np.ndarray, np.ndarray]:
    G, m = broadcast(("lipschitz", "rounds"), lipschitz, rounds)
    if G.size == 1 and tasks is not None:
        G, m = np.repeat(G, tasks), np.repeat(m, tasks)
    if tasks is not None and tasks != G.size:
        raise FMRLError(f"lipschitz and rounds are of {G.size} tasks, not {tasks}")
    if np.any(m < 1):
        raise FMRLError("rounds must be at least 1")
    return G, m


def _growth(alpha: float, beta: float) -> None:
    positive(alpha=alpha)
    if not beta >= 1:
        raise FMRLError(f"beta must be at least 1, not {beta}: R is 1-strongly convex")


def fli_online(
    alpha: float,
    epsilon: float,
    diameter: float,
    lipschitz: Any,
    rounds: Any,
    *,
    beta: float = 1.0,
    tasks: int | None = None,
) -> Parameters:
    """FLI-Online with FTRL inside the tasks; the reference parameters are the optima in hindsight
    (nearest to the last action).

        κ = 4β    ν = 3β    Δ*_t = 0    Δ' = 6βD²/(αε)·Σ G_t·sigma_t/√m_t    Δ_max = max_t D²G_t/(αε√m_t)

    provided ε ≥ 4βG_t/(α√m_t) in every task. ``diameter`` is D, that of the whole domain.

    >>> fli_online(alpha=1.0, epsilon=2.0, diameter=1.0, lipschitz=1.0, rounds=16, tasks=10)
    Parameters(kappa=4, nu=3, delta_star≤0, delta_prime=30, delta_max=0.125, beta=1)
    """
    _growth(alpha, beta)
    positive(epsilon=epsilon)
    G, m = _tasks(lipschitz, rounds, tasks)
    least = float(np.max(4 * beta * G / (alpha * np.sqrt(m))))
    far = diameter**2 * G / (alpha * epsilon * np.sqrt(m))
    return Parameters(
        kappa=4 * beta,
        nu=3 * beta,
        delta_star=(0.0,) * G.size,
        delta_prime=6 * beta * float(np.sum(far * G * np.sqrt(m))),
        delta_max=float(np.max(far)),
        beta=beta,
        assumptions=(
            Assumption("α-quadratic growth", detail=f"mean loss of every task, α = {alpha:g}"),
            decide("ε ≥ 4βG/(α√m)", epsilon >= least * (1 - 1e-12), f"needs ε ≥ {least:.4g}"),
        ),
        place="Proposition B.1",
    )


def excess(
    lipschitz: Any, rounds: Any, delta: float, dim: int | None, radius: float | None
) -> np.ndarray:
    """How much larger the risk of a task's optimum in hindsight is than the least risk, w.p. 1 −
    delta per task; [T].

        dim given       ( 1 + √((d·log(1 + 4·radius·G·√m) + log(2/delta))/2) + √(log(2/delta)/2) )/√m     (covering, proved)
        dim not given   √(8/m·log(2/delta))                                                              (Lemma B.4, as printed)

    The printed rate treats the optimum, which depends on all samples, as if it were fixed in
    advance; in many dimensions it is false. Losses lie in [0, 1], so the excess is at most 1.

    >>> excess(1.0, 10_000, 0.05, dim=2, radius=1.0).round(4)
    array([0.0516])
    """
    G, m = broadcast(("lipschitz", "rounds"), lipschitz, rounds)
    log = math.log(2 / delta)
    if dim is None:
        return np.minimum(1.0, np.sqrt(8 / m * log))
    if radius is None:
        raise FMRLError("with dim, give the radius of a ball that holds the domain, in its norm")
    cover = dim * np.log1p(4 * radius * G * np.sqrt(m))
    return np.minimum(1.0, (1 + np.sqrt((cover + log) / 2) + math.sqrt(log / 2)) / np.sqrt(m))


def _stochastic(alpha: float, dim: int | None) -> tuple[Assumption, ...]:
    generalises = Assumption(
        "the optimum in hindsight generalises at the printed rate",
        detail="give dim for a proved rate",
    )
    return (
        Assumption(
            "α-quadratic growth", detail=f"risk of every task, α = {alpha:g}, with a unique minimum"
        ),
        Assumption("rounds i.i.d. in each task, losses in [0, 1]"),
        *((generalises,) if dim is None else ()),
    )


def fal_stochastic(
    alpha: float,
    lipschitz: Any,
    rounds: Any,
    delta: float,
    *,
    beta: float = 1.0,
    tasks: int | None = None,
    dim: int | None = None,
    radius: float | None = None,
) -> Parameters:
    """FAL when rounds are i.i.d. and similarity is that of the risk minimisers θ'_t; w.p. 1 − delta
    for all tasks at once.

        κ = 1    ν = 3β    Δ*_t = 0    Δ' = (6β/α)·Σ sigma_t·u_t    Δ_max = max_t u_t/α

    where u_t = `excess` at delta/T. ``lipschitz`` bounds every loss, not their mean. See `excess`
    for ``dim`` and ``radius``.

    >>> fal_stochastic(0.5, 1.0, 10_000, 0.05, tasks=100, dim=2, radius=1.0)
    Parameters(kappa=1, nu=3, delta_star≤0, delta_prime=7465.1, delta_max=0.124418, beta=1)
    """
    _growth(alpha, beta)
    G, m = _tasks(lipschitz, rounds, tasks)
    u = excess(G, m, delta / G.size, dim, radius)
    return Parameters(
        kappa=1.0,
        nu=3 * beta,
        delta_star=(0.0,) * G.size,
        delta_prime=6 * beta / alpha * float(np.sum(G * np.sqrt(m) * u)),
        delta_max=float(np.max(u)) / alpha,
        beta=beta,
        assumptions=_stochastic(alpha, dim),
        place="Proposition B.2, corrected",
    )


def fli_batch(
    alpha: float,
    epsilon: float,
    gamma: float,
    diameter: float,
    lipschitz: Any,
    rounds: Any,
    delta: float,
    *,
    beta: float = 1.0,
    tasks: int | None = None,
    dim: int | None = None,
    radius: float | None = None,
) -> Parameters:
    """FLI-Batch (mean action) when rounds are i.i.d.; w.p. 1 − delta for all tasks at once.

        κ = 4β    ν = 3β    Δ*_t = (4β/α)·( M·G_t/√m_t + s_t + 13/12·u_t )
        r_t = (D²/ε + M)·G_t/√m_t + s_t        Δ' = (6β/α)·Σ sigma_t·r_t        Δ_max = max_t r_t/α

    with M = max(D + ε, γD), the largest guess there can be, s_t = √(8/m_t·log(4T/delta)), u_t =
    `excess` at delta/(2T), provided ε ≥ 24βG_t/(α√m_t). The printed proposition forgets part of the
    deviation of the mean action; docs/theory.md says where.

    >>> fli_batch(1.0, 1.0, 1.5, 1.0, 1.0, 10_000, 0.05, tasks=100, dim=2, radius=1.0)
    Parameters(kappa=4, nu=3, delta_star≤0.6947, delta_prime=6887.55, delta_max=0.114792, beta=1)
    """
    _growth(alpha, beta)
    positive(epsilon=epsilon)
    G, m = _tasks(lipschitz, rounds, tasks)
    most = max(diameter + epsilon, gamma * diameter)
    least = float(np.max(24 * beta * G / (alpha * np.sqrt(m))))
    u = excess(G, m, delta / (2 * G.size), dim, radius)
    s = np.sqrt(8 / m * math.log(4 * G.size / delta))
    r = (diameter**2 / epsilon + most) * G / np.sqrt(m) + s
    star = 4 * beta / alpha * (most * G / np.sqrt(m) + s + 13 / 12 * u)
    return Parameters(
        kappa=4 * beta,
        nu=3 * beta,
        delta_star=tuple(star.tolist()),
        delta_prime=6 * beta / alpha * float(np.sum(G * np.sqrt(m) * r)),
        delta_max=float(np.max(r)) / alpha,
        beta=beta,
        assumptions=(
            *_stochastic(alpha, dim),
            decide("ε ≥ 24βG/(α√m)", epsilon >= least * (1 - 1e-12), f"needs ε ≥ {least:.4g}"),
        ),
        place="Proposition B.3, corrected",
    )


def measured(
    divergence: Any,
    update_divergence: Any,
    sigma: Any,
    spread: float,
    reference_spread: float,
    distance: float,
    *,
    beta: float,
) -> Parameters:
    """The parameters a finished run had: no growth condition, nothing assumed, and nothing known in
    advance.

        κ = 1    Δ*_t = max(0, B_R(θ*_t‖phi_t) − B_R(θ_t‖phi_t))
        ν = 1    Δ' = max(0, Σ sigma_t·B_R(θ_t‖mean of θ) − Σ sigma_t·B_R(θ*_t‖mean of θ*))    Δ_max = max_t ½‖θ*_t − θ_t‖²

    ``divergence`` and ``update_divergence`` are the B_R to phi_t of optima and update vectors [T],
    ``spread`` and ``reference_spread`` the two weighted sums, ``distance`` is Δ_max.

    >>> measured([0.5, 0.2], [0.4, 0.3], [1.0, 1.0], 0.6, 0.5, 0.01, beta=1.0)
    Parameters(kappa=1, nu=1, delta_star≤0.1, delta_prime=0.1, delta_max=0.01, beta=1)
    """
    far, near = vector(divergence, "divergence"), vector(update_divergence, "update_divergence")
    vector(sigma, "sigma")
    return Parameters(
        kappa=1.0,
        nu=1.0,
        delta_star=tuple(np.maximum(0.0, far - near).tolist()),
        delta_prime=max(0.0, spread - reference_spread),
        delta_max=distance,
        beta=beta,
        assumptions=(
            Assumption("distance from update vectors to optima", "checked", "measured in the run"),
        ),
        place="Setting B.1, measured",
    )
