"""Regret inside one task (Theorem A.1), and its mean over tasks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fmrl.theory.bounds.bound import ASSUMED, Assumption, Bound, broadcast, vector

CONVEX = Assumption("convex losses", ASSUMED)
LIPSCHITZ = Assumption(
    "Lipschitz losses", ASSUMED, "G² is at least the mean square of the rounds' constants"
)
PLACE = "Theorem A.1 (OMD and FTRL)"


def regret(divergence: float, eta: float, lipschitz: float, rounds: float) -> Bound:
    """Regret of OMD, OGD or FTRL on one task, against any action θ*.

        R_m ≤ B_R(θ*‖phi)/eta + eta·G²·m

    ``divergence`` is B_R(θ*‖phi). The second term is twice what the sharpest analysis gives; it is
    kept as the paper has it.

    >>> regret(0.5, 0.25, 1.0, 16)
    Bound(regret = 6: start 2 + steps 4)
    """
    return per_task(divergence, eta, lipschitz, rounds)


def per_task(divergence: Any, eta: Any, lipschitz: Any, rounds: Any) -> Bound:
    """Task-averaged regret as the mean of each task's own bound; all arguments are numbers or one
    per task, [T].

        TAR ≤ (1/T)·Σ_t ( B_R(θ*_t‖phi_t)/eta_t + eta_t·G_t²·m_t )

    It needs the run to be over, and nothing about the meta-update: it holds for every way to choose
    phi_t and eta_t.

    >>> per_task([0.5, 0.02], 0.25, 1.0, 16).total
    5.04
    """
    divergence = np.where(
        np.isposinf(np.asarray(divergence, dtype=float)), 1e300, divergence
    )  # infinite is legal here
    divergence, eta, lipschitz, rounds = broadcast(
        ("divergence", "eta", "lipschitz", "rounds"), divergence, eta, lipschitz, rounds
    )
    moving = eta > 0
    start = np.where(
        moving,
        divergence / np.where(moving, eta, 1.0),
        np.where(divergence * lipschitz > 0, math.inf, 0.0),
    )
    start = np.where(
        (divergence >= 1e300) & (lipschitz > 0), math.inf, np.where(divergence >= 1e300, 0.0, start)
    )
    steps = eta * lipschitz**2 * rounds
    name = "regret" if start.size == 1 else "per-task sum"
    return Bound(name, {"start": start.mean(), "steps": steps.mean()}, (CONVEX, LIPSCHITZ), PLACE)


def sharp(divergence: Any, eta: Any, lipschitz: Any, rounds: Any) -> Bound:
    """`per_task` with the constant ½ that both proofs allow: (1/T)·Σ_t ( B_t/eta_t +
    ½·eta_t·G_t²·m_t ).

    >>> sharp(0.5, 0.25, 1.0, 16).total
    4.0
    """
    full = per_task(divergence, eta, lipschitz, rounds)
    terms = {"start": full.terms["start"], "steps": full.terms["steps"] / 2}
    return Bound(
        "per-task sum, sharp",
        terms,
        full.assumptions,
        "Theorem A.1 with the constant of docs/theory.md",
    )


def weights(lipschitz: Any, rounds: Any) -> np.ndarray:
    """sigma_t = G_t·√m_t, [T]."""
    lipschitz, rounds = broadcast(("lipschitz", "rounds"), lipschitz, rounds)
    return lipschitz * np.sqrt(vector(rounds, "rounds"))
