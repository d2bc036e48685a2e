"""AdaHedge (de Rooij, van Erven, Grünwald, Koolen, JMLR 2014): weights that follow losses.

w_k ∝ exp(−rate·L_k) with rate = log K/Δ, where Δ adds up the mixability gaps
Σ_k w_k·l_k + log(Σ_k w_k·e^{−rate·l_k})/rate. Neither the range of the losses nor their number has
to be known, and the regret against the best is at most 2Δ, a number that is known after the run.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fmrl.core.arrays import Array, full, namespace


class Weights(NamedTuple):
    """AdaHedge's memory: what each has cost, and the sum of the mixability gaps."""

    cost: Array  # [K] Σ losses
    gap: Array  # [] Δ

    @classmethod
    def begin(cls, count: int, like: Array) -> Weights:
        """Nothing lost yet."""
        return cls(full((count,), 0.0, like), full((), 0.0, like))

    def shares(self, rate: float | None = None, first: Array | None = None) -> Array:
        """w [K], which sum to one; ``first`` are those before anything was lost.

        >>> import numpy as np
        >>> Weights(np.array([1.0, 2.0]), np.array(np.log(2.0))).shares().round(3)
        array([0.731, 0.269])
        """
        xp, rate = namespace(self.cost), self._rate(rate)
        above = self.cost - xp.min(self.cost)
        plain = xp.exp(-rate * above) if math.isfinite(rate) else xp.astype(above <= 0, above.dtype)
        plain = plain if first is None else plain * first
        return plain / xp.sum(plain)

    def after(self, lost: Array, rate: float | None = None, first: Array | None = None) -> Weights:
        """The memory after each has lost [K] more."""
        xp, share, rate = namespace(lost), self.shares(rate, first), self._rate(rate)
        mean = xp.sum(share * lost)
        if math.isfinite(rate):  # in logarithms: a share may be too small to be a number
            before = -rate * (self.cost - xp.min(self.cost))
            before = before if first is None else before + xp.log(first)
            mixed = (_log_sum(before) - _log_sum(before - rate * lost)) / rate
        else:
            mixed = xp.min(xp.where(share > 0, lost, full((), math.inf, lost)))
        gap = xp.maximum(mean - mixed, xp.zeros_like(mean))
        return Weights(self.cost + lost, self.gap + gap)

    def _rate(self, given: float | None) -> float:
        """log K/Δ, infinite until something tells them apart; or the one given."""
        if given is not None:
            return given
        gap = float(self.gap)
        return math.log(self.cost.shape[0]) / gap if gap > 0 else math.inf


def _log_sum(x: Array) -> Array:
    """log Σ exp(x)."""
    xp, most = namespace(x), namespace(x).max(x)
    return most + xp.log(xp.sum(xp.exp(x - most)))
