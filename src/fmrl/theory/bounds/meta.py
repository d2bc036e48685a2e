"""Regret of the meta-update: how much worse than the best fixed initialisation the moving one is
(Lemma B.2, corrected).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import CHECKED, Assumption, Bound, decide, vector


def drift(sigma: Any) -> float:
    """Σ_t sigma_t²/sigma_{1:t}, the sum that grows like the logarithm of T when all weights are
    equal.

    >>> round(drift([2.0, 2.0, 2.0]), 6)  # 2·(1 + 1/2 + 1/3)
    3.666667
    """
    sigma = vector(sigma, "sigma")
    total = np.cumsum(sigma)
    return float(np.sum(sigma**2 / np.where(total > 0, total, 1.0)))


def psi(w: Any) -> np.ndarray:
    """ψ(w) = w + (1 − w)·log(1 − w), between w²/2 and w²; ψ(1) = 1.

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
    """Regret of FTL or AOGD on the meta-losses sigma_t·B_R(θ_t‖·), t = 1 … T, against the best
    fixed initialisation.

        nice      Σ_t sigma_t·(B_R(θ_t‖phi_t) − B_R(θ_t‖phi̅)) ≤ sigma_1·B_R(θ_1‖phi_1) + (G'²/2)·Σ_{t≥2} sigma_t²/sigma_{1:t}
        general   the same with  G'·diameter·Σ_{t≥2} sigma_{1:t}·ψ(sigma_t/sigma_{1:t}),   ψ(w) = w + (1−w)·log(1−w) ≤ w²

    ``lipschitz`` is G', the Lipschitz constant of every B_R(θ_t‖·) on the hull of the θ_t;
    ``first`` is B_R(θ_1‖phi_1).
    Nice: B_R(θ‖·) is 1-strongly convex, as for R = ½‖·‖². Otherwise give ``diameter``, that of the
    hull in the same norm as G'. The paper's Lemma B.2 prints (G'² + 1)/2·Σ sigma_t/sigma_{1:t},
    which is false; see docs/theory.md.

    >>> meta_regret([1.0, 1.0, 1.0], 2.0)  # 2·(1/2 + 1/3)
    Bound(meta-regret = 1.66667: first task 0 + moving 1.667)
    """
    sigma = vector(sigma, "sigma")
    if not (lipschitz >= 0 and first >= 0):
        raise FMRLError("lipschitz and first must not be negative")
    if diameter is None:
        moving = lipschitz**2 / 2 * (drift(sigma) - sigma[0])
        how = Assumption("B_R(θ‖·) is 1-strongly convex")
    else:
        total = np.cumsum(sigma)
        share = sigma / np.where(total > 0, total, 1.0)
        moving = lipschitz * diameter * float(np.sum((total * psi(share))[1:]))
        how = Assumption("B_R(θ‖·) is Lipschitz on the hull of the update vectors")
    given = (
        how,
        decide("the first weight is positive", bool(sigma[0] > 0)),
        Assumption("positive weights", CHECKED),
    )
    return Bound(
        "meta-regret",
        {"first task": sigma[0] * first, "moving": moving},
        given,
        "Lemma B.2 and Theorem A.2, corrected",
    )
