"""Regret inside a task (Theorem A.1) and of the meta-update (Lemma B.2), what nobody can beat
(Theorem B.2), and what low regret says about new rounds (Propositions A.1 and A.2, Corollary A.1)
and about a new task (Theorem B.3)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import (
    CONVEX,
    HULL_OF_UPDATES,
    LIPSCHITZ,
    Assumption,
    Bound,
    at_least,
    decide,
    nonnegative,
    positive_if_given,
    probability,
    same_length,
)

IID = Assumption("rounds i.i.d.")


def regret(divergence: float, eta: float, lipschitz: float, rounds: float) -> Bound:
    """Regret of OMD, OGD or FTRL on one task, against any action θ* (Theorem A.1).

        R_m ≤ B_R(θ*‖phi)/eta + eta·G²·m

    The second term is twice what the sharpest analysis gives (`sharp`), as in the paper.

    Args:
        divergence: B_R(θ*‖phi).
        eta: The step.
        lipschitz: G of the losses.
        rounds: m.

    >>> regret(0.5, 0.25, 1.0, 16)
    Bound(regret = 6: start 2 + steps 4)
    """
    return per_task(divergence, eta, lipschitz, rounds)


def per_task(divergence: Any, eta: Any, lipschitz: Any, rounds: Any) -> Bound:
    """Task-averaged regret as the mean of each task's own bound (Theorem A.1).

        TAR ≤ (1/T)·Σ_t ( B_R(θ*_t‖phi_t)/eta_t + eta_t·G_t²·m_t )

    It can be computed after the run only. It holds for every way to choose phi_t and eta_t.

    Args:
        divergence: B_R(θ*_t‖phi_t), a number or [T]; may be infinite.
        eta: Steps, a number or [T].
        lipschitz: G_t, a number or [T].
        rounds: m_t, a number or [T].

    >>> per_task([0.5, 0.02], 0.25, 1.0, 16).total
    5.04
    """
    divergence, eta, lipschitz, rounds = same_length(
        divergence=divergence, eta=eta, lipschitz=lipschitz, rounds=rounds
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        start = divergence / eta
    # A task whose losses are constant has no regret, however far its optimum is.
    nothing = np.isnan(start) | (np.isinf(start) & (lipschitz == 0))
    terms = {
        "start": np.where(nothing, 0.0, start).mean(),
        "steps": (eta * lipschitz * lipschitz * rounds).mean(),  # G² alone could underflow
    }
    name = "regret" if start.size == 1 else "per-task sum"
    return Bound(name, terms, (CONVEX, LIPSCHITZ), "Theorem A.1 (OMD and FTRL)")


def sharp(divergence: Any, eta: Any, lipschitz: Any, rounds: Any) -> Bound:
    """`per_task` with the constant ½ that the proofs allow.

        TAR ≤ (1/T)·Σ_t ( B_R(θ*_t‖phi_t)/eta_t + ½·eta_t·G_t²·m_t )

    Args:
        divergence: B_R(θ*_t‖phi_t), a number or [T]; may be infinite.
        eta: Steps, a number or [T].
        lipschitz: G_t, a number or [T].
        rounds: m_t, a number or [T].

    >>> sharp(0.5, 0.25, 1.0, 16).total
    4.0
    """
    full = per_task(divergence, eta, lipschitz, rounds)
    terms = {"start": full.terms["start"], "steps": full.terms["steps"] / 2}
    place = "Theorem A.1 with the constant of docs/theory.md"
    return replace(full, name="per-task sum, sharp", terms=terms, place=place)


def weights(lipschitz: Any, rounds: Any) -> np.ndarray:
    """sigma_t = G_t·√m_t, [T].

    Args:
        lipschitz: G_t, a number or [T].
        rounds: m_t, a number or [T].

    >>> weights([1.0, 2.0], 9)
    array([3., 6.])
    """
    lipschitz, rounds = same_length(lipschitz=lipschitz, rounds=rounds)
    return lipschitz * np.sqrt(rounds)


def drift(sigma: Any) -> float:
    """Σ_t sigma_t²/sigma_{1:t}, which grows like log T when all weights are equal.

    Args:
        sigma: Weights of the tasks, [T].

    >>> round(drift([2.0, 2.0, 2.0]), 6)  # 2·(1 + 1/2 + 1/3)
    3.666667
    """
    sigma = nonnegative(sigma, "sigma")
    total = np.cumsum(sigma)
    return float(np.sum(sigma**2 / np.where(total > 0, total, 1.0)))


def psi(w: Any) -> np.ndarray:
    """ψ(w) = w + (1 − w)·log(1 − w), between w²/2 and w²; ψ(1) = 1.

    Args:
        w: Shares in [0, 1], any shape.

    >>> psi([0.5, 1.0]).round(6).tolist()
    [0.153426, 1.0]
    """
    w = np.asarray(w, dtype=float)
    left = np.where(w < 1, 1 - w, 1.0)
    series = w**2 / 2 + w**3 / 6 + w**4 / 12  # the closed form loses digits near 0
    return np.where(w < 1e-4, series, w + np.where(w < 1, (1 - w) * np.log(left), 0.0))


def meta_regret(
    sigma: Any, lipschitz: float, diameter: float | None = None, *, first: float = 0.0
) -> Bound:
    """Regret of FTL or AOGD on the meta-losses sigma_t·B_R(θ_t‖·) against the best fixed phi.

        nice      Σ_t sigma_t·(B_R(θ_t‖phi_t) − B_R(θ_t‖phi̅))
                      ≤ sigma_1·B_R(θ_1‖phi_1) + (G'²/2)·Σ_{t≥2} sigma_t²/sigma_{1:t}
        general   the same with G'·diameter·Σ_{t≥2} sigma_{1:t}·ψ(sigma_t/sigma_{1:t})
                  in place of the last sum, where ψ is `psi`

    Nice means that B_R(θ‖·) is 1-strongly convex, as for R = ½‖·‖². The paper's Lemma B.2 prints
    (G'² + 1)/2·Σ sigma_t/sigma_{1:t}, which is false; see docs/theory.md.

    Args:
        sigma: Weights of the tasks, [T].
        lipschitz: G' of every B_R(θ_t‖·) on the hull of the θ_t.
        diameter: Of the hull, in the norm of G'. None in the nice case.
        first: B_R(θ_1‖phi_1).

    >>> meta_regret([1.0, 1.0, 1.0], 2.0)  # 2·(1/2 + 1/3)
    Bound(meta-regret = 1.66667: first task 0 + moving 1.667)
    """
    sigma = nonnegative(sigma, "sigma")
    if not (lipschitz >= 0 and first >= 0):
        raise FMRLError("lipschitz and first must not be negative")
    if diameter is None:
        moving = lipschitz**2 / 2 * (drift(sigma) - sigma[0])
        how = Assumption("B_R(θ‖·) is 1-strongly convex")
    else:
        total = np.cumsum(sigma)
        share = sigma / np.where(total > 0, total, 1.0)
        moving = lipschitz * diameter * float(np.sum((total * psi(share))[1:]))
        how = HULL_OF_UPDATES
    starts = decide("the first weight is positive", bool(sigma[0] > 0))
    terms = {"first task": sigma[0] * first, "moving": moving}
    return Bound("meta-regret", terms, (how, starts), "Lemma B.2 and Theorem A.2, corrected")


def lower(diameter: float, lipschitz: Any, rounds: Any) -> Bound:
    """TAR that an adversary can force on any agent (Theorem B.2).

        TAR ≥ diameter/(4T)·Σ_t G_t·√m_t          in d ≥ 3 dimensions

    Args:
        diameter: Of the l2 ball that holds the optima; √2 times the D* of the upper bounds.
        lipschitz: G_t, a number or [T].
        rounds: m_t, a number or [T].

    >>> lower(0.5, 1.0, 16).total
    0.5
    """
    positive_if_given(diameter=diameter)
    forced = diameter / 4 * float(np.mean(weights(lipschitz, rounds)))
    given = (
        Assumption("d ≥ 3 and the ball lies in the domain"),
        Assumption("the tasks are chosen by an adversary"),
    )
    return Bound("lower bound", {"forced regret": forced}, given, "Theorems 2.2 and B.2")


def mean_action_risk(regret: float, rounds: float) -> Bound:
    """Expected excess risk of the mean action of an online learner (Proposition A.1).

        E ℓ(mean of θ_1 … θ_m) − E ℓ(θ*) ≤ R_m/m          for every θ*

    over the m rounds, which are drawn i.i.d. from one distribution, and over one more.

    Args:
        regret: R_m, a bound on the regret that holds whatever is drawn.
        rounds: m.

    >>> mean_action_risk(2.0, 16)
    Bound(risk of the mean action = 0.125: regret 0.125)
    """
    at_least(1, rounds=rounds)
    given = CONVEX, IID, decide("regret is finite", math.isfinite(regret))
    terms, name = {"regret": regret / rounds}, "risk of the mean action"
    return Bound(name, terms, given, "Proposition A.1", "in expectation")


def loss_to_risk(rounds: float, delta: float, *, scale: float = 1.0) -> Bound:
    """How far the mean risk of the actions played may lie from their mean loss (Proposition A.2).

        |(1/m)·Σ_i E ℓ(θ_i) − (1/m)·Σ_i ℓ_i(θ_i)| ≤ scale·√(2/m·log(1/delta))

    each side with probability 1 − delta, for rounds i.i.d. and every way to choose θ_i from earlier
    rounds. Half of it is enough: the paper uses that losses differ from their mean by at most
    scale, and not that they lie in an interval of this length.

    Args:
        rounds: m.
        delta: Probability that one side fails.
        scale: Losses lie in [0, scale].

    >>> round(loss_to_risk(800, 0.05).total, 6)
    0.086541
    """
    positive_if_given(scale=scale)
    at_least(1, rounds=rounds)
    probability(delta)
    terms = {"confidence": scale * math.sqrt(2 / rounds * math.log(1 / delta))}
    given, note = (Assumption(f"losses in [0, {scale:g}]"), IID), f"with probability {1 - delta:g}"
    return Bound("from loss to risk", terms, given, "Proposition A.2", note)


def random_action_risk(
    regret: float, rounds: float, delta: float, *, scale: float = 1.0
) -> Bound:  # fmt: skip
    """Excess risk of an action drawn from those played (Corollary A.1).

        (1/m)·Σ_i E ℓ(θ_i) − E ℓ(θ*) ≤ R_m/m + scale·√(8/m·log(1/delta))          for one θ*

    with probability 1 − delta over the rounds, which are i.i.d. The paper applies Proposition A.2
    twice, which would fail with twice delta; once, on ℓ_i(θ_i) − ℓ_i(θ*), is enough, and half of
    the second term. For convex losses the mean action has no more risk.

    Args:
        regret: R_m, measured or any bound on it.
        rounds: m.
        delta: Probability that the bound fails.
        scale: Losses lie in [0, scale].

    >>> b = random_action_risk(2.0, 800, 0.05)
    >>> {k: round(v, 6) for k, v in b.terms.items()}
    {'regret': 0.0025, 'confidence': 0.173082}
    """
    chance, finite = loss_to_risk(rounds, delta, scale=scale), math.isfinite(regret)
    terms = {"regret": regret / rounds, "confidence": 2 * chance.total}
    chance = chance.given(decide("regret is finite", finite))
    return replace(chance, name="risk of a random action", terms=terms, place="Corollary A.1")


def online_to_batch(
    tar: float, rounds: float, tasks: int, delta: float, *, scale: float = 1.0
) -> Bound:
    """Excess risk on a new task of the mean action after a random state of the run (Theorem B.3).

        E ℓ(mean action) − E_P min_θ E_P ℓ(θ) ≤ TAR/m + scale·√(8/T·log(1/delta))

    with probability 1 − delta over the T tasks seen, which are drawn i.i.d. The paper's main text
    prints "=" for "≤".

    Args:
        tar: The measured TAR (its upper end) or any bound on it.
        rounds: m, the same in every task.
        tasks: T.
        delta: Probability that the bound fails.
        scale: Losses lie in [0, scale].

    >>> b = online_to_batch(2.0, 16, 800, 0.05)
    >>> {k: round(v, 6) for k, v in b.terms.items()}
    {'regret': 0.125, 'confidence': 0.173082}
    """
    at_least(1, tasks=tasks, rounds=rounds)
    chance = loss_to_risk(tasks, delta, scale=scale)  # of regret/(2m) + ½, which lies in [0, 1]
    given = (
        CONVEX,
        Assumption(f"losses in [0, {scale:g}]"),
        Assumption("tasks i.i.d., rounds i.i.d. in each"),
        decide("tar is finite", math.isfinite(tar)),
    )
    terms = {"regret": tar / rounds, "confidence": 2 * chance.total}
    return Bound("transfer risk", terms, given, "Theorems 3.2 and B.3", chance.note)
