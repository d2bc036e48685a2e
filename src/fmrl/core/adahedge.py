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
        if math.isfinite(rate):
            plain = xp.exp(-_scaled(above, rate))
        else:
            plain = xp.astype(above <= 0, above.dtype)
        plain = plain if first is None else plain * first
        return plain / xp.sum(plain)

    def after(self, lost: Array, rate: float | None = None, first: Array | None = None) -> Weights:
        """The memory after each has lost [K] more.

        The mixability gap of a round is Σ_k w_k·l_k − (Φ(L + l) − Φ(L)), with the potential
        Φ(L) = −log(Σ_k first_k·e^{−rate·L_k})/rate. At an infinite rate Φ(L) = min_k L_k, the least
        cost of all and not that of the present leaders alone: a leader by one ulp that is overtaken
        costs a gap, and the rate becomes finite.

        >>> import numpy as np
        >>> ahead = Weights.begin(2, np.zeros(1)).after(np.array([1.0, 1 + 2**-52]))
        >>> round(float(ahead.after(np.array([10.0, 0.0])).gap), 6)
        8.0
        """
        xp, rate = namespace(lost), self._rate(rate)
        # Losses above the least loss and costs above the least cost: what all have in common does
        # not count, and its rounding would drown small differences.
        above, worse = self.cost - xp.min(self.cost), lost - xp.min(lost)
        mean, after = xp.sum(self.shares(rate, first) * worse), above + worse
        mixed = xp.min(after)
        if math.isfinite(rate):
            mixed = mixed + _potential(after - mixed, rate, first) - _potential(above, rate, first)
        gap = xp.maximum(mean - mixed, xp.zeros_like(mean))
        return Weights(self.cost + lost, self.gap + gap)

    def _rate(self, given: float | None) -> float:
        """log K/Δ, infinite until something tells them apart; or the one given."""
        gap, most = float(self.gap), float(namespace(self.gap).finfo(self.gap.dtype).max)
        rate = math.log(self.cost.shape[0]) / gap if gap > 0 else math.inf
        rate = rate if given is None else given
        return rate if rate < most else math.inf


def _scaled(above: Array, rate: float) -> Array:
    """rate·above for an exponent, at most 800: e^−800 is 0, and a product could overflow."""
    return rate * namespace(above).minimum(above, full((), 800 / rate, above))


def _potential(above: Array, rate: float, first: Array | None) -> Array:
    """−log(Σ_k first_k·e^{−rate·above_k})/rate for costs above the least, which is 0; exact also
    for rates so small that the exponentials are 1 up to rounding.
    """
    xp = namespace(above)
    less = xp.expm1(-_scaled(above, rate))
    return -xp.log1p(xp.mean(less) if first is None else xp.sum(first * less)) / rate
