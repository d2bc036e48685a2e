"""What nobody can beat (Theorem B.2), and what low regret says about the risk on a new task
(Theorem B.3).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import Assumption, Bound, decide, positive
from fmrl.theory.bounds.within import weights


def lower(diameter: float, lipschitz: Any, rounds: Any) -> Bound:
    """TAR that an adversary can force on any agent when the optima lie in an l2 ball of this
    diameter.

        TAR ≥ diameter/(4T)·Σ_t G_t·√m_t          in d ≥ 3 dimensions

    ``diameter`` is in the l2 norm, which is √2 times the D* of the upper bounds. ``lipschitz`` and
    ``rounds`` may be per task.

    >>> lower(0.5, 1.0, 16).total
    0.5
    """
    positive(diameter=diameter)
    forced = diameter / 4 * float(np.mean(weights(lipschitz, rounds)))
    given = (
        Assumption("d ≥ 3 and the ball lies in the domain"),
        Assumption("the tasks are chosen by an adversary"),
    )
    return Bound("lower bound", {"forced regret": forced}, given, "Theorems 2.2 and B.2")


def online_to_batch(
    tar: float, rounds: float, tasks: int, delta: float, *, scale: float = 1.0
) -> Bound:
    """Excess risk on a new task, w.p. 1 − delta over the T tasks seen, of the mean action after a
    state drawn at random.

        E ℓ(mean action) − E_P min_θ E_P ℓ(θ) ≤ TAR/m + scale·√(8/T·log(1/delta))

    for losses in [0, scale] and tasks drawn i.i.d., m rounds each. ``tar`` is the measured TAR (its
    upper end) or any bound on it. The paper's main text prints "=" for "≤".

    >>> b = online_to_batch(2.0, 16, 800, 0.05)
    >>> {k: round(v, 6) for k, v in b.terms.items()}
    {'regret': 0.125, 'confidence': 0.173082}
    """
    if tasks < 1 or rounds < 1 or not 0 < delta < 1:
        raise FMRLError("online_to_batch needs tasks ≥ 1, rounds ≥ 1 and 0 < delta < 1")
    positive(scale=scale)
    terms = {
        "regret": tar / rounds,
        "confidence": scale * math.sqrt(8 / tasks * math.log(1 / delta)),
    }
    given = (
        Assumption("convex losses"),
        Assumption(f"losses in [0, {scale:g}]"),
        Assumption("tasks i.i.d., rounds i.i.d. in each"),
        decide("tar is finite", math.isfinite(tar)),
    )
    return Bound(
        "transfer risk", terms, given, "Theorems 3.2 and B.3", f"with probability {1 - delta:g}"
    )
