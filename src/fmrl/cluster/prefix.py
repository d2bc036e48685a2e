"""phi as a weighted prefix mean: what a block adds to it is one sum, so blocks need not wait for
each other.

phi_{t+1} = Σ_{s≤t} sigma_s·θ_s / Σ_{s≤t} sigma_s. With W and phi before a block, and Σsigma and
Σsigma·θ of the block, phi after it is (W·phi + Σsigma·θ) / (W + Σsigma); inside the block the same
formula over running sums gives phi before every task. AdaptiveOGD is the same mean: a step
1/sigma_{1:t} along sigma_t·(θ_t − phi) lands on it, inside the (convex) domain."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fmrl.core.rules.meta import AdaptiveOGD, Fixed, FollowLeader, LastUpdate

MEANS, JUMPS = (FollowLeader, AdaptiveOGD), (FollowLeader, AdaptiveOGD, LastUpdate, Fixed)


class Sums(NamedTuple):
    """What a block of tasks adds to the meta-level."""

    count: int
    weight: float  # Σ sigma
    moment: np.ndarray  # [d] Σ sigma·θ
    optima: np.ndarray  # [d] Σ sigma·θ*
    plain: np.ndarray  # [2, d] Σ θ and Σ θ*, for tasks none of which weighs anything
    last: np.ndarray  # [d] the last θ

    @classmethod
    def of(cls, theta: np.ndarray, optimum: np.ndarray, sigma: np.ndarray) -> Sums:
        """Sums over tasks: theta, optimum [n, d], sigma [n]."""
        moment = sigma @ theta
        plain = np.stack([theta.sum(0), theta.sum(0) if optimum is theta else optimum.sum(0)])
        return cls(
            len(sigma),
            float(sigma.sum()),
            moment,
            moment if optimum is theta else sigma @ optimum,
            plain,
            theta[-1],
        )

    def __add__(self, other: Sums) -> Sums:  # type: ignore[override]
        return Sums(*(a + b for a, b in zip(self[:-1], other[:-1], strict=True)), other.last)


def jumps(meta: Any) -> bool:
    """Whether phi after a block follows from the block's sums alone."""
    return type(meta) in JUMPS


def after(meta: Any, phi: np.ndarray, memory: Any, sums: Sums) -> tuple[np.ndarray, Any]:
    """phi and the meta-update's memory after a block.

    >>> theta = np.array([[1.0], [0.25]])
    >>> after(FollowLeader(), np.zeros(1), np.array(0.0), Sums.of(theta, theta, np.array([2.0, 1.0])))
    (array([0.75]), array(3.))
    """
    if isinstance(meta, MEANS):
        total = np.asarray(memory + sums.weight)
        return (memory * phi + sums.moment) / total if total > 0 else phi, total
    return (sums.last if isinstance(meta, LastUpdate) else phi), memory


def before_each(
    meta: Any, phi: np.ndarray, memory: Any, theta: np.ndarray, sigma: np.ndarray
) -> np.ndarray:
    """phi before every task of a block that begins with ``phi`` and ``memory``, [n, d].

    >>> theta = np.array([[1.0], [0.25], [0.0]])
    >>> before_each(FollowLeader(), np.zeros(1), np.array(0.0), theta, np.array([2.0, 1.0, 1.0])).ravel()
    array([0.  , 1.  , 0.75])
    """
    out = np.empty_like(theta)
    out[0] = phi
    if isinstance(meta, MEANS):
        total = (memory + np.cumsum(sigma[:-1]))[:, None]
        moment = memory * phi + np.cumsum(sigma[:-1, None] * theta[:-1], axis=0)
        out[1:] = np.where(total > 0, moment / np.where(total > 0, total, 1.0), phi)
    else:
        out[1:] = theta[:-1] if isinstance(meta, LastUpdate) else phi
    return out
