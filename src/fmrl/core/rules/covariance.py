"""A similarity rule that learns how tasks differ without taking the noise inside tasks for it.

The optimum of a task with few rows is mostly noise, and the scatter of such optima is not the
spread of tasks. Here a task is a draw θ ~ N(phi, s²·H) whose losses are −log-likelihoods (squared
losses divided by the noise s²), and H is learned by expectation–maximisation, one task at a time:
given the task, θ is about N(θ̂, s²·S) with θ̂ the regularised leader of all rounds and
S = (H⁻¹ + ∇²Σℓ(θ̂))⁻¹, exactly so for squared losses (Laplace's approximation for others), and

    H ← (1 − γ_t)·H + γ_t·( (θ̂ − phi)(θ̂ − phi)ᵀ/s² + S ),     γ_t = (t + 1)^−rate.

It begins with a diagonal in units of one over the mean squares of the first task's columns: then
neither the units of a column nor those of the target matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fmrl.core.arrays import Array, device, full, namespace
from fmrl.core.matrices import identity
from fmrl.core.metric import Diagonal, Full, Relative
from fmrl.core.rules.observe import Posterior
from fmrl.core.rules.shape import needs_l2
from fmrl.core.rules.similarity import SimilarityRule, positive
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class Covariance(SimilarityRule):
    """H is the covariance of tasks around phi over the noise: FTRL in it is MAP under N(phi, s²·H),
    and with squared losses the BLUP of a mixed-effects model.

    No meta-level regret is proved for it; Theorem A.1 holds for every task as in any metric.

    Args:
        first: H before anything is known, in units of one over the mean square of each column of
            the first task: √first is how far a coefficient times its column may vary from task to
            task, in units of the noise. Wide is safer than narrow: what a narrow H leaves
            unfitted is taken for noise for a long time. Losses that are log-likelihoods have no
            noise to be learned; begin with about 1 or less there.
        noise: s² of squared losses, where it is known; by default it is learned. It is 1 for other
            losses.
        rate: How fast new tasks lose weight, between ½ and 1.
    """

    first: float = 10.0
    noise: float | None = None
    rate: float = 0.95
    observes: ClassVar[str] = "posterior"
    absolute: ClassVar[bool] = True
    played_by: ClassVar[str] = "FTRL"

    def __post_init__(self):
        positive("first", self.first)
        if self.noise is not None:
            positive("noise", self.noise)
        if not 0.5 < self.rate <= 1:
            raise FMRLError(f"rate must lie above ½ and at most at 1, not {self.rate}")

    def init(self, domain, phi):
        """``first`` in units of the columns; memory: t, and the noise as a ratio of two means."""
        needs_l2(self, domain)
        nothing = full(phi.shape[:-1], 0.0, phi)
        return Relative(self.first * identity(phi)), (nothing, nothing, nothing)

    def update(self, domain, phi, guess, memory, end):
        """One step of expectation–maximisation."""
        t, left, freedom = memory
        xp, t = namespace(phi), t + 1
        seen, H = Posterior.of(end.seen, phi.shape[-1]), guess.matrix
        if isinstance(guess, Relative):  # the first task: as it was played
            H = Diagonal(seen.steps).dense()
        step, spread = seen.theta - phi, posterior_spread(H, seen.curvature)
        gain = (t + 1) ** -self.rate
        # Σ(y − xθ̂)² has m − tr(∇²·S) degrees of freedom: what the fit did not use up.
        used = xp.sum(seen.curvature * spread, axis=(-2, -1))
        left = left + gain * (seen.double - left)
        freedom = freedom + gain * (seen.rounds - used - freedom)
        noise = self._noise(left, freedom)
        found = step[..., :, None] * step[..., None, :] / noise[..., None, None] + spread
        return Full(H + gain[..., None, None] * (found - H)), (t, left, freedom)

    def noise_of(self, memory: tuple[Array, ...]) -> Array:
        """s² as it is known after the tasks so far, [...]."""
        return self._noise(memory[1], memory[2])

    def _noise(self, left: Array, freedom: Array) -> Array:
        """s², [...]."""
        xp = namespace(left)
        if self.noise is not None:
            return full(left.shape, self.noise, left)
        known = (left > 0) & (freedom > 0)
        ratio = left / xp.where(known, freedom, xp.ones_like(freedom))
        return xp.where(known, ratio, xp.ones_like(left))


def posterior_spread(H: Array, curvature: Array) -> Array:
    """(H⁻¹ + C)⁻¹ = R·(I + Rᵀ·C·R)⁻¹·Rᵀ with H = R·Rᵀ: what is left to know of a task; [..., d, d].

    Args:
        H: Positive definite, [..., d, d].
        curvature: C ⪰ 0, [..., d, d].
    """
    xp = namespace(H)
    T = xp.matrix_transpose
    R = xp.linalg.cholesky(H)
    inner = xp.matmul(T(R), xp.matmul(curvature, R))
    eye = xp.eye(H.shape[-1], dtype=H.dtype, device=device(H))
    spread = xp.matmul(R, xp.linalg.solve(inner + eye, T(R) + xp.zeros_like(inner)))
    return (spread + T(spread)) / 2
