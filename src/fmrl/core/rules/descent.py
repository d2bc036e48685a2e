"""Similarity rules that set the step from gradients met, without ARUBA's trade-off: the theory's
D/(G·√m) with observed gradients in place of G, and Meta-SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fmrl.core.arrays import full, namespace
from fmrl.core.checks import positive
from fmrl.core.metric import Diagonal
from fmrl.core.rules.shape import needs_l2
from fmrl.core.rules.similarity import SimilarityRule
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class Observed(SimilarityRule):
    """The paper's step with the gradients that were met in place of the worst case:
    eta_{t+1} = D_{t+1} / √(mean over s ≤ t of Σ_i ‖∇_{s,i}‖²).

    D is another rule's guess. With `AverageDeviation` it is `Isotropic` without its additions.

    Args:
        rule: Guesses D: `Doubling`, `AverageDeviation`, `EWOO`, `Known`.
        zeta: In place of the root before the first task.

    >>> from fmrl.core.rules.similarity import Known
    >>> Observed(Known(0.5), zeta=2.0)
    Observed(rule=Known(D=0.5), zeta=2.0)
    """

    rule: SimilarityRule
    zeta: float = 1.0
    absolute: ClassVar[bool] = True
    observes: ClassVar[str] = "norms"

    def __post_init__(self):
        positive(zeta=self.zeta)
        if not (hasattr(self.rule, "init") and hasattr(self.rule, "update")):
            raise FMRLError(f"rule={self.rule!r} is not a similarity rule", fix="give Doubling(…)")
        if getattr(self.rule, "absolute", False) or getattr(self.rule, "observes", None):
            fix = "give a rule that guesses D, such as Doubling"
            raise FMRLError(f"{self.rule!r} sets the step by itself", fix=fix)

    def init(self, domain, phi):
        """D_1/zeta; memory: tasks seen, what they met, D and the rule's own."""
        D, memory = self.rule.init(domain, phi)
        nothing = full(phi.shape[:-1], 0.0, phi)
        return D / self.zeta, (nothing, nothing, D, memory)

    def update(self, domain, phi, guess, memory, end):
        """The rule's next D over the root of the mean."""
        t, met, D, inner = memory
        D, inner = self.rule.update(domain, phi, D, inner, end)
        seen: Any = end.seen
        t, met = t + 1, met + seen[..., 0]
        xp, known = namespace(met), met > 0  # zeta stands in where nothing was met
        mean = xp.where(known, met, xp.ones_like(met)) / xp.where(known, t, xp.ones_like(t))
        root = xp.where(known, xp.sqrt(mean), self.zeta + xp.zeros_like(met))
        return D / root, (t, met, D, inner)


@dataclass(frozen=True)
class MetaSGD(SimilarityRule):
    """A step for every coordinate, by gradient descent on the losses met inside tasks, first order.

    To first order d/d eta_j of Σ_i ℓ_i(θ_i) is −Σ_{s<i} ∇_{s,j}·∇_{i,j}: a step grows where the
    gradients of a task agree, and falls where they turn. With u = eta_j·Σ_{s<i} ∇_{s,j}·∇_{i,j},
    the slope in log eta_j,

        v ← decay·v + (1 − decay)·u²,    log eta_j ← log eta_j + rate·u/√(v/(1 − decay^t)).

    Meta-SGD (Li et al., 2017) differentiates the loss on other samples through the steps, and its
    steps may become negative; here no second derivatives are taken and steps stay positive. No
    bound is known for it.

    Args:
        step: The first step.
        rate: By about how much the logarithm of a step moves in one task.
        decay: Of the second moments of u.
    """

    step: float
    rate: float = 0.01
    decay: float = 0.99
    absolute: ClassVar[bool] = True
    observes: ClassVar[str] = "agreements"

    def __post_init__(self):
        positive(step=self.step, rate=self.rate, decay=self.decay)
        if self.decay >= 1:
            raise FMRLError(f"decay must lie between 0 and 1, not {self.decay!r}")

    def init(self, domain, phi):
        """The same step in every coordinate; memory: t, log eta and v."""
        needs_l2(self, domain)
        xp, start = namespace(phi), full(phi.shape, self.step, phi)
        memory = full(phi.shape[:-1], 0.0, phi), xp.log(start), xp.zeros_like(start)
        return Diagonal(start), memory

    def update(self, domain, phi, guess, memory, end):
        """One step uphill in agreement."""
        t, log, second = memory
        xp, t = namespace(phi), t + 1
        u = guess.steps * end.seen
        second = self.decay * second + (1 - self.decay) * u**2
        size = xp.sqrt(second / (1 - self.decay**t)[..., None])
        log = log + self.rate * u / xp.where(size > 0, size, xp.ones_like(size))
        return Diagonal(xp.exp(log)), (t, log, second)
