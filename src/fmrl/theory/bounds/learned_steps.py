"""Steps that are learned: Theorem A.1 in a metric and with the gradients that were met, and the
regret of the rules that learn a metric (`Isotropic`, `PerCoordinate`, `FullMatrix`) or the guess
(`EWOO`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import (
    CONVEX,
    LIPSCHITZ,
    NEAR,
    Assumption,
    Bound,
    at_least,
    average,
    decide,
    numbers,
    positive_if_given,
    same_length,
)

OPTIMA = Assumption("update vectors are the optima, at finite distances from phi")


def in_metric(distance: Any, energy: Any) -> Bound:
    """Theorem A.1 in a metric, averaged over tasks; OMD, OGD and FTRL.

        TAR ≤ (1/T)·Σ_t ( ½‖θ*_t − phi_t‖²_{H_t⁻¹} + ½Σ_i ‖∇_{t,i}‖²_{H_t} )

    The gradients are those met, so no Lipschitz constant is assumed. For a step that is a number
    the terms are B_R(θ*‖phi)/eta and ½·eta·Σ‖∇_i‖_*². It holds for every way to choose phi_t and
    H_t before the task.

    Args:
        distance: The first terms, `history.distance`, a number or [T]; may be infinite.
        energy: The second terms, `history.energy`, a number or [T].

    >>> in_metric([2.0, 1.0], [1.0, 1.0])
    Bound(per-task sum, observed = 2.5: start 1.5 + steps 1)
    """
    distance, energy = same_length(distance=distance, energy=energy)
    terms = {"start": distance.mean(), "steps": energy.mean()}
    place = "Theorem A.1 in a metric, docs/theory.md"
    return Bound("per-task sum, observed", terms, (CONVEX,), place)


def learned_metric(
    near: Any, steep: Any, cost: float, *, epsilon: float, zeta: float, tasks: int
) -> Bound:
    """TAR of FAL with `Isotropic`, `PerCoordinate` or `FullMatrix`, against the best fixed metric.

        T·TAR ≤ min_H ( tr(H⁻¹·near) + tr(H·steep) ) − f_0(H_1) + cost

    The minimum is 2√(near·steep) for a number, 2Σ_j √(near_j·steep_j) for a step by coordinate and
    2·tr((near^½·steep·near^½)^½) for a matrix; f_0(H_1) = 2εζ by number, 2dεζ else. It holds for
    every way to move phi.

    Args:
        near: ε² and, summed over the tasks, ½(θ − phi)(θ − phi)ᵀ + ε²(t + 1)^−p: a number, [d] or
            [d, d]. This and the next two are the memory ``history.state.similarity[1:4]``.
        steep: The same of Σ∇∇ᵀ and ζ.
        cost: What not knowing the best H in advance cost; `learning_cost` bounds it.
        epsilon: ε of the rule.
        zeta: ζ of the rule.
        tasks: T.

    >>> learned_metric([4.0, 9.0], [1.0, 4.0], 2.0, epsilon=0.5, zeta=1.0, tasks=10)
    Bound(learned metric = 1.6: best metric 1.4 + learning 0.2)
    """
    A, B = numbers(near), numbers(steep)
    positive_if_given(epsilon=epsilon, zeta=zeta)
    at_least(0, cost=cost)
    at_least(1, tasks=tasks)
    if A.shape != B.shape or A.ndim > 2 or A.shape[:-1] not in ((), A.shape[-1:]):
        what = f"near and steep must be numbers, [d] or [d, d], not {A.shape} and {B.shape}"
        raise FMRLError(what)
    if not (np.isfinite(A).all() and np.isfinite(B).all()):
        raise FMRLError("near and steep must be finite", fix="scale the rows")
    if A.ndim == 2:
        least = 2 * float(np.linalg.svd(_root(A) @ _root(B).T, compute_uv=False).sum())
    else:
        least = 2 * float(np.sum(np.sqrt(A * B)))
    first = 2 * epsilon * zeta * (A.shape[-1] if A.ndim else 1)
    sums = {"best metric": max(0.0, least - first), "learning": float(cost)}
    place = "follow the leader on metrics, docs/theory.md"
    return average("learned metric", sums, int(tasks), (CONVEX, OPTIMA), place)


def _root(matrix: np.ndarray) -> np.ndarray:
    """W with WᵀW at least the matrix, in spite of rounding: a sum of outer products whose sizes
    differ by more than the digits of a number is not positive definite any more."""
    values, vectors = np.linalg.eigh(matrix)
    lost = len(values) * np.finfo(float).eps * max(float(values[-1]), 0.0)
    return np.sqrt(np.maximum(values, 0.0) + lost)[:, None] * vectors.T


def learning_cost(far: Any, met: Any) -> float:
    """What learning a number, or a step by coordinate, can cost: at most

        Σ_t Σ_j (c·eta − a/eta)² / (4√(near_{t+1}·steep_{t+1})),    eta = √(near_t/steep_t)

    where a = far_t and c = met_t are what task t adds to near and steep. It can stand for ``cost``
    in `learned_metric`, and grows like log T where a and c are bounded and the sums grow like t.

    Args:
        far: a_0 = ε², then a_1 … a_T; [T + 1] or [T + 1, d].
        met: c_0 = ζ², then c_1 … c_T; likewise.

    >>> round(learning_cost([1.0, 3.0], [1.0, 1.0]), 6)  # (1 − 3)²/(4√(4·2))
    0.353553
    """
    far, met = numbers(far), numbers(met)
    near, steep = np.cumsum(far, axis=0), np.cumsum(met, axis=0)
    eta = np.sqrt(near[:-1] / steep[:-1])
    slope = met[1:] * eta - far[1:] / eta
    return float(np.sum(slope**2 / (4 * np.sqrt(near[1:] * steep[1:]))))


def ewoo(
    sigma: Any, divergence: Any, epsilon: float, D: float, *, heaviest: float | None = None
) -> Bound:
    """TAR of FAL with the guess of `EWOO`, against the best fixed guess.

        T·TAR ≤ 2V·sigma_{1:T} + 2(√(V² + ε²) − V)·sigma_{1:T} + (1 + log(T + 1))/a

    with V² = Σ sigma_t·B_t/sigma_{1:T}, a = 2ε²M/(heaviest·D⁴) and M = √(D² + ε²). It holds for
    every way to move phi.

    Args:
        sigma: Weights G_t·√m_t, [T].
        divergence: B_t = B_R(θ_t‖phi_t), [T].
        epsilon: ε of the rule.
        D: D of the rule: no B_t is above D².
        heaviest: ``sigma`` of the rule: no task weighs more. None: the first task's.

    >>> b = ewoo([1.0, 1.0], [0.25, 0.25], 0.5, 1.0)
    >>> {name: round(value, 6) for name, value in b.terms.items()}
    {'deviation': 1.0, 'epsilon': 0.414214, 'learning': 1.877056}
    """
    sigma, divergence = same_length(sigma=sigma, divergence=divergence)
    positive_if_given(epsilon=epsilon, D=D, heaviest=heaviest)
    total, most = float(sigma.sum()), float(sigma[0]) if heaviest is None else heaviest
    inside = decide("no task lies further than D", bool(divergence.max() <= D**2 * NEAR))
    detail = f"{sigma.max():.4g} against {most:.4g}"
    light = decide("no task weighs more than EWOO took", bool(sigma.max() <= most * NEAR), detail)
    V = math.sqrt(float(sigma @ np.minimum(divergence, D**2)) / (total or 1.0))
    sums = {
        "deviation": 2 * V * total,
        "epsilon": 2 * (math.hypot(V, epsilon) - V) * total,
        "learning": (1 + math.log(sigma.size + 1)) * most * D**4
        / (2 * epsilon**2 * math.hypot(D, epsilon)),
    }  # fmt: skip
    given = (CONVEX, LIPSCHITZ, OPTIMA, inside, light)
    place = "exponentially weighted guesses, docs/theory.md"
    return average("exponentially weighted guess", sums, sigma.size, given, place)
