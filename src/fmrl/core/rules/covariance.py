"""A similarity rule that learns how tasks differ without taking the noise inside tasks for it.

The optimum of a task with few rows is mostly noise, and the scatter of such optima is not the
spread of tasks. Here a task is a draw θ ~ N(phi, s²·H) whose losses are −log-likelihoods (squared
losses divided by the noise s²), and H is learned by expectation–maximisation, one task at a time:
given the task, θ is about N(θ̂, s²·S) with θ̂ the regularised leader of all rounds and
S = (H⁻¹ + ∇²Σℓ(θ̂))⁻¹, exactly so for squared losses (Laplace's approximation for others), and

    H ← (1 − γ_t)·H + γ_t·( (θ̂ − phi)(θ̂ − phi)ᵀ/s² + S ),     γ_t = (t + 1)^−rate.

Few tasks say little about d² correlations, and to play by what chance made of them costs regret
where there are none. So what is played lies between H and its diagonal: by how likely each made
the rows of the tasks so far, every task looked at before it was learned from.

It begins with a diagonal in units of one over the mean squares of the first task's columns: then
neither the units of a column nor those of the target matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fmrl.core.arrays import Array, full, namespace
from fmrl.core.checks import number, positive, positive_or_none
from fmrl.core.matrices import apply, identity
from fmrl.core.metric import Diagonal, Full, Relative
from fmrl.core.prior.statistics import evidence, posterior_spread
from fmrl.core.rules.observe import Posterior
from fmrl.core.rules.shape import needs_l2
from fmrl.core.rules.similarity import SimilarityRule
from fmrl.core.rules.within import FTRL
from fmrl.errors import FMRLError

SURE = 20.0  # log-odds between H and its diagonal at most: a few tasks can turn them round


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
    played_by: ClassVar[type] = FTRL

    def __post_init__(self):
        positive(first=self.first)
        positive_or_none(noise=self.noise)
        if not 0.5 < number(self.rate) <= 1:
            raise FMRLError(f"rate must lie above ½ and at most at 1, not {self.rate}")

    def init(self, domain, phi):
        """``first`` in units of the columns; memory: t, the noise as a ratio of two means, H, and
        the log-odds of its diagonal.
        """
        needs_l2(self, domain)
        nothing, H = full(phi.shape[:-1], 0.0, phi), self.first * identity(phi)
        return Relative(H), (nothing, nothing, nothing, H, nothing)

    def update(self, domain, phi, guess, memory, end):
        """One step of expectation–maximisation, and of the odds."""
        t, left, freedom, H, odds = memory
        xp, t = namespace(phi), t + 1
        seen = Posterior.of(end.seen, phi.shape[-1])
        if isinstance(guess, Relative):  # the first task: as it was played
            H = Diagonal(seen.steps).dense()
            guess = Full(H)
        step, spread = seen.theta - phi, posterior_spread(guess.matrix, seen.curvature)
        gain = (t + 1) ** -self.rate
        # Σ(y − xθ̂)² has m − tr(∇²·S) degrees of freedom: what the fit did not use up.
        used = xp.sum(seen.curvature * spread, axis=(-2, -1))
        left = left + gain * (seen.double - left)
        freedom = freedom + gain * (seen.rounds - used - freedom)
        noise = self._noise(left, freedom)
        pull = guess.solve(step) + apply(seen.curvature, step)  # −∇Σℓ(phi)
        eye, sure = identity(phi), full((), SURE, phi)
        alone, whole = (evidence(M, seen.curvature, pull, noise) for M in (H * eye, H))
        odds = xp.minimum(xp.maximum(odds + alone - whole, -sure), sure)
        spread = posterior_spread(H, seen.curvature)
        step = apply(spread, pull)  # θ̂ − phi under H itself
        found = step[..., :, None] * step[..., None, :] / noise[..., None, None] + spread
        H = H + gain[..., None, None] * (found - H)
        share = (1 / (1 + xp.exp(odds)))[..., None, None]
        return Full(H * (share + (1 - share) * eye)), (t, left, freedom, H, odds)

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
