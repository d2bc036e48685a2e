"""EWOO: the guess D_t by exponentially weighted online optimisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fmrl.core.arrays import Array, device, full, namespace
from fmrl.core.checks import positive, positive_or_none
from fmrl.core.domains import Domain
from fmrl.core.rules.meta import running
from fmrl.core.rules.similarity import Measured
from fmrl.errors import FMRLError

POINTS = 400  # of the integrals
FALL = 40  # of the exponent, where they end


@dataclass(frozen=True)
class EWOO(Measured):
    """Exponentially weighted online optimisation of the guess: D_t is the mean of v under the
    weights exp(−a·Σ_{s<t} sigma_s·((B_R(θ_s‖phi_s) + epsilon²)/v + v)) on [epsilon, M], with
    M² = D² + epsilon² and a = 2·epsilon²·M/(sigma·D⁴).

    Its regret against the best fixed guess grows like log T (`fmrl.bounds.ewoo`), but D and the
    largest sigma have to be known in advance.

    Args:
        epsilon: Added to every distance; also the smallest guess.
        D: No task lies further from phi than this (by default the diameter of the domain).
        sigma: No task weighs more (by default the most seen so far, which is the same where all
            tasks weigh alike).
    """

    epsilon: float
    D: float | None = None
    sigma: float | None = None

    def __post_init__(self):
        positive(epsilon=self.epsilon)
        positive_or_none(D=self.D, sigma=self.sigma)

    def _most(self, domain: Domain, dim: int) -> float:
        D = domain.diameter(dim) if self.D is None else self.D
        if not math.isfinite(D):
            raise FMRLError(f"{domain!r} has no diameter", fix="give EWOO(epsilon, D=…)")
        return D

    def init(self, domain, phi):
        """The middle of [epsilon, M]; memory: Σ sigma·(B + epsilon²), Σ sigma, the largest sigma
        and D."""
        D = self._most(domain, phi.shape[-1])
        nothing = full(phi.shape[:-1], 0.0, phi)
        first = (self.epsilon + math.hypot(D, self.epsilon)) / 2
        return nothing + first, (nothing, nothing, nothing, nothing + D)

    def update(self, domain, phi, guess, memory, end):
        """The mean under the new weights."""
        far = self.measure(domain, phi, end)
        _, guess, memory = self.follow(guess, memory, far[None, ...], end.sigma[None, ...])
        return guess, memory

    def measure(self, domain, phi, end):
        """B_R(θ_t‖phi_t), and 0 where it is infinite, as in `AverageDeviation`."""
        far = domain.divergence(end.theta, phi)
        xp = namespace(phi)
        return xp.where(xp.isfinite(far), far, xp.zeros_like(far))

    def follow(self, guess, memory, measured, sigma):
        """Means under growing sums."""
        near, total, most, D = memory
        xp = namespace(guess)
        near = running(near, sigma * (measured + self.epsilon**2))[1:, ...]
        total = running(total, sigma)[1:, ...]
        if self.sigma is None:
            grown = [most]
            for t in range(sigma.shape[0]):
                grown.append(xp.maximum(grown[-1], sigma[t, ...]))
            most = xp.stack(grown[1:])
        else:
            most = full(total.shape, self.sigma, total)
        after = self._mean(near, total, most, D, guess)
        before = xp.concat([guess[None, ...], after[:-1, ...]])
        memory = near[-1, ...], total[-1, ...], most[-1, ...], D
        return before, after[-1, ...], memory

    def _mean(self, near: Array, total: Array, most: Array, D: Array, guess: Array) -> Array:
        """∫v·w(v)dv / ∫w(v)dv by Simpson's rule in log v, where w is not negligible, [n, ...]."""
        xp, low = namespace(near), self.epsilon
        high = xp.sqrt(D**2 + low**2) + xp.zeros_like(total)
        rate = 2 * low**2 * high / (xp.where(most > 0, most, xp.ones_like(most)) * D**4)
        known = total > 0
        x, y = (xp.where(known, a, xp.ones_like(a)) for a in (near, total))
        peak = xp.minimum(xp.maximum(xp.sqrt(x / y), low + xp.zeros_like(x)), high)
        # From the peak the exponent falls by rate·(v − peak)·(y − x/(v·peak)). Where that is 40 the
        # weight is below 1e-17: at the two solutions v of a quadratic, whose product is x/y.
        middle = x + y * peak**2 + FALL * peak / rate
        far = (middle + xp.sqrt(middle**2 - 4 * x * y * peak**2)) / (2 * y * peak)
        start = xp.log(xp.maximum(x / y / far, low + xp.zeros_like(peak)))
        stop = xp.log(xp.minimum(far, high))
        points = [i / POINTS for i in range(POINTS + 1)]
        grid = xp.asarray(points, dtype=near.dtype, device=device(near))
        v = xp.exp(start[..., None] + (stop - start)[..., None] * grid)
        lift = rate[..., None] * (x[..., None] / v + y[..., None] * v)
        weight = v * xp.exp(xp.min(lift, axis=-1, keepdims=True) - lift)
        simpson = [1.0] + [4.0, 2.0] * (POINTS // 2 - 1) + [4.0, 1.0]
        weight = weight * xp.asarray(simpson, dtype=near.dtype, device=device(near))
        mean = xp.sum(weight * v, axis=-1) / xp.sum(weight, axis=-1)
        return xp.where(known, mean, guess)
