"""Similarity rules that learn the step, and the shape of it, from how far tasks ended from phi and
from the gradients met on the way (ARUBA: Khodak, Balcan, Talwalkar, NeurIPS 2019).

By Theorem A.1 a task played in the metric H has regret at most ½‖θ* − phi‖²_{H⁻¹} + ½Σ‖∇_i‖²_H.
With A = Σ½(θ − phi)(θ − phi)ᵀ and B = Σ∇∇ᵀ over the tasks so far, each rule plays the H that
minimises tr(H⁻¹A) + tr(HB):

    Isotropic       eta = √(tr A / tr B)
    PerCoordinate   eta_j = √(A_jj / B_jj)
    FullMatrix      H = A # B⁻¹, the matrix geometric mean
    LowRank         the same with B diagonal and A a diagonal and a few directions

epsilon² and zeta² are what A and B begin with, and epsilon²/(t + 1)^p and zeta²/(t + 1)^p are added
after task t, so that no direction is ever given up. The first step is epsilon/zeta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fmrl.core.arrays import Array, device, full, namespace
from fmrl.core.checks import numbers, positive, whole
from fmrl.core.domains import Domain
from fmrl.core.matrices import eigh, geometric_roots, identity, raised, trace_of
from fmrl.core.metric import Diagonal, Full, Metric, Spiked
from fmrl.core.rules.similarity import SimilarityRule
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class _Learned(SimilarityRule):
    """What these rules share: (t, A, B, cost, …) as memory.

    ``cost`` adds up F_t(H_t) − min F_t, where F_t(H) = tr(H⁻¹A) + tr(HB) over the tasks up to t:
    what not knowing the best H in advance costs (`fmrl.bounds.learned_metric`).

    Args:
        epsilon: How far tasks end from phi, before anything is known; a distance.
        zeta: The same for the gradients of a task.
        p: How fast the additions fade.
    """

    epsilon: float
    zeta: float = 1.0
    p: float = 1.0
    absolute: ClassVar[bool] = True

    def __post_init__(self):
        positive(epsilon=self.epsilon, zeta=self.zeta, p=self.p)

    def _fade(self, t: Array) -> Array:
        return (t + 1) ** -self.p


def needs_l2(rule: Any, domain: Domain) -> None:
    """Refuse a domain whose regulariser is not ½‖·‖²."""
    if domain.norm != "l2":
        what = f"{rule!r} learns a metric, and {domain!r} has a geometry of its own"
        raise FMRLError(what, fix="use Isotropic(epsilon)")


@dataclass(frozen=True)
class Isotropic(_Learned):
    """One step for all directions: eta_{t+1} = √(Σ_{s≤t} B_R(θ_s‖phi_s) / Σ_{s≤t} Σ_i ‖∇_{s,i}‖²).

    It is `AverageDeviation` with the gradients that were met in place of the worst case G²m.

    Args:
        epsilon: How far tasks end from phi, before anything is known; a distance.
        zeta: The same for the gradients of a task. The first step is epsilon/zeta.
        p: How fast epsilon and zeta fade.
    """

    observes: ClassVar[str] = "norms"

    def init(self, domain, phi):
        """epsilon/zeta."""
        near, steep = (full(phi.shape[:-1], v**2, phi) for v in (self.epsilon, self.zeta))
        nothing = full(phi.shape[:-1], 0.0, phi)
        return namespace(phi).sqrt(near / steep), (nothing, near, steep, nothing)

    def update(self, domain, phi, guess, memory, end):
        """The root of the ratio of two sums."""
        xp, far = namespace(phi), domain.divergence(end.theta, phi)
        far = xp.where(xp.isfinite(far), far, xp.zeros_like(far))
        met: Any = end.seen
        return _ratio(self, guess, memory, far, met[..., 0])


@dataclass(frozen=True)
class PerCoordinate(_Learned):
    """A step for every coordinate: eta_j = √(Σ ½(θ − phi)_j² / Σ ∇_j²), ARUBA's rule.

    Args:
        epsilon: How far tasks end from phi in a coordinate, before anything is known.
        zeta: The same for the gradients of a task. The first step is epsilon/zeta.
        p: How fast epsilon and zeta fade.
    """

    observes: ClassVar[str] = "squares"

    def init(self, domain, phi):
        """epsilon/zeta in every coordinate."""
        needs_l2(self, domain)
        near, steep = (full(phi.shape, v**2, phi) for v in (self.epsilon, self.zeta))
        nothing = full(phi.shape[:-1], 0.0, phi)
        return Diagonal(namespace(phi).sqrt(near / steep)), (nothing, near, steep, nothing)

    def update(self, domain, phi, guess, memory, end):
        """The roots of the ratios of two sums."""
        far = (end.theta - phi) ** 2 / 2
        steps, memory = _ratio(self, guess.steps, memory, far, end.seen)
        return Diagonal(steps), memory


def _ratio(rule: _Learned, eta: Array, memory: Any, far: Array, met: Array) -> tuple[Array, Any]:
    """√(near/steep) after one more task, by number or by coordinate, and the memory."""
    t, near, steep, cost = memory
    xp, t = namespace(near), t + 1
    fade = rule._fade(t)[..., None] if near.ndim > t.ndim else rule._fade(t)
    far, met = far + rule.epsilon**2 * fade, met + rule.zeta**2 * fade
    near, steep = near + far, steep + met
    after = xp.sqrt(near / steep)
    paid = near / eta + steep * eta - near / after - steep * after
    cost = cost + (xp.sum(paid, axis=-1) if near.ndim > t.ndim else paid)
    return after, (t, near, steep, cost)


@dataclass(frozen=True)
class FullMatrix(_Learned):
    """Any metric: H = A # B⁻¹, the matrix geometric mean, which minimises tr(H⁻¹A) + tr(HB).

    It costs d² memory and d³ time a task; for many features use `LowRank`.

    Args:
        epsilon: How far tasks end from phi in any direction, before anything is known.
        zeta: The same for the gradients of a task. The first metric is epsilon/zeta times I.
        p: How fast epsilon and zeta fade.
    """

    observes: ClassVar[str] = "products"

    def init(self, domain, phi):
        """epsilon/zeta times the identity."""
        needs_l2(self, domain)
        eye = identity(phi)
        nothing = full(phi.shape[:-1], 0.0, phi)
        near, steep = self.epsilon**2 * eye, self.zeta**2 * eye
        first = self.epsilon / self.zeta
        return Full(first * eye, eye / first**0.5), (nothing, near, steep, nothing)

    def update(self, domain, phi, guess, memory, end):
        """The geometric mean of two growing sums."""
        t, near, before, cost = memory
        xp, t = namespace(phi), t + 1
        step, fade = end.theta - phi, self._fade(t)[..., None]
        near = near + step[..., :, None] * (step / 2)[..., None, :]
        near = raised(near, self.epsilon**2 * fade)
        steep = raised(before + xp.reshape(end.seen, near.shape), self.zeta**2 * fade)
        # H·B·H = A: tr(H⁻¹A) = tr(HB) before the task.
        W, paid = guess.inverse_root, trace_of(guess.matrix, before + steep)
        paid = paid + guess.distance(step) + self.epsilon**2 * fade[..., 0] * trace_of(W, W)
        H, W, roots = geometric_roots(near, steep)
        return Full(H, W), (t, near, steep, cost + paid - 2 * xp.sum(roots, axis=-1))


@dataclass(frozen=True)
class LowRank(SimilarityRule):
    """A step for every coordinate and ``rank`` directions in which tasks differ most, for many
    features: memory and time are linear in d.

    A is kept as its diagonal and its leading directions, B as its diagonal. With y = √B and
    rest_j = A_jj less what the directions hold, H is diag(√(rest/B)) plus, along each eigenvector
    u of the directions in the coordinates y·θ, √(λ + ρ) − √ρ with ρ = Σ u_j²·B_j·rest_j. No
    meta-level regret is proved for it; the bound of every task holds as for any metric.

    Args:
        rank: How many directions.
        epsilon: How far tasks end from phi in a coordinate, before anything is known.
        zeta: The same for the gradients of a task. The first step is epsilon/zeta.
        p: How fast epsilon and zeta fade.
    """

    rank: int
    epsilon: float
    zeta: float = 1.0
    p: float = 1.0
    observes: ClassVar[str] = "squares"
    absolute: ClassVar[bool] = True

    def __post_init__(self):
        whole("rank", self.rank)
        object.__setattr__(self, "rank", int(self.rank))
        _Learned.__post_init__(self)  # type: ignore[arg-type]

    def init(self, domain, phi):
        """epsilon/zeta in every coordinate, and no directions."""
        needs_l2(self, domain)
        steps, (t, near, steep, _) = PerCoordinate(self.epsilon, self.zeta, self.p).init(
            domain, phi
        )
        directions = full((*phi.shape, self.rank), 0.0, phi)
        return Spiked(steps.steps, directions), (t, near, steep, directions)

    def update(self, domain, phi, guess, memory, end):
        """The diagonal grows; the directions take in one more and give up the least."""
        t, near, steep, directions = memory
        xp, t = namespace(phi), t + 1
        fade, step = _Learned._fade(self, t)[..., None], end.theta - phi  # type: ignore[arg-type]
        near = near + step**2 / 2 + self.epsilon**2 * fade
        steep = steep + end.seen + self.zeta**2 * fade
        wide = xp.concat([directions, step[..., None] / 2**0.5], axis=-1)
        _, basis = eigh(xp.matmul(xp.matrix_transpose(wide), wide))
        directions = xp.matmul(wide, basis[..., 1:])  # eigh's values ascend: the least is given up
        return self._metric(near, steep, directions), (t, near, steep, directions)

    def _metric(self, near: Array, steep: Array, directions: Array) -> Spiked:
        xp, y = namespace(near), namespace(near).sqrt(steep)
        rest = near - xp.sum(directions**2, axis=-1)
        rest = xp.maximum(rest, 1e-12 * near)
        seen = directions * y[..., None]
        lam, basis = eigh(xp.matmul(xp.matrix_transpose(seen), seen))
        lam = xp.maximum(lam, xp.zeros_like(lam))
        known = lam > 1e-14 * xp.max(lam, axis=-1, keepdims=True) + 1e-300
        size = xp.where(known, xp.sqrt(lam), xp.ones_like(lam))
        u = xp.matmul(seen, basis) / size[..., None, :]  # orthonormal columns where known
        rho = xp.sum(u**2 * (steep * rest)[..., None], axis=-2)
        extra = xp.where(known, xp.sqrt(lam + rho) - xp.sqrt(rho), xp.zeros_like(lam))
        factor = u * xp.sqrt(extra)[..., None, :] / y[..., None]
        return Spiked(xp.sqrt(rest / steep), factor)


@dataclass(frozen=True)
class KnownStep(SimilarityRule):
    """The same step for every task: a number, a step for every coordinate, or a metric.

    ``KnownStep(0.0)`` never moves. With `FTRL`, squared losses and H = Ω/s² it plays the BLUP of a
    mixed-effects model with known variances.

    Args:
        step: eta ≥ 0, or a vector [d] of steps, or a positive definite matrix [d, d], also as a
            `Metric`.

    >>> import numpy as np
    >>> KnownStep(np.diag([2.0, 1.0]))
    KnownStep(step=((2.0, 0.0), (0.0, 1.0)))
    """

    step: Any
    absolute: ClassVar[bool] = True
    records: ClassVar[bool] = True  # G has no part in the step, and need not exist

    def __post_init__(self):
        step = numbers(self.step.dense() if isinstance(self.step, Metric) else self.step)
        good = step.size > 0 and bool(np.isfinite(step).all()) and step.ndim <= 2
        if good and step.ndim == 2:
            square = step.shape[0] == step.shape[1] and bool(np.allclose(step, step.T))
            good = square and bool((np.linalg.eigvalsh(step) > 0).all())
        elif not (good and ((step > 0).all() or (step.ndim == 0 and step == 0))):
            good = False
        if not good:
            what = "a step must be a number ≥ 0, positive numbers or a positive definite matrix"
            raise FMRLError(f"{what}, not {self.step!r}")
        values = step.tolist()
        plain = tuple(map(tuple, values)) if step.ndim == 2 else values
        object.__setattr__(self, "step", tuple(plain) if step.ndim == 1 else plain)

    def init(self, domain, phi):
        """The step; nothing to remember."""
        xp = namespace(phi)
        if isinstance(self.step, float):
            return full(phi.shape[:-1], self.step, phi), ()
        needs_l2(self, domain)
        step = xp.asarray(self.step, dtype=phi.dtype, device=device(phi))
        if step.shape[-1] != phi.shape[-1]:
            what = f"the step is for {step.shape[-1]} parameters, but phi has {phi.shape[-1]}"
            raise FMRLError(what)
        return (Diagonal if step.ndim == 1 else Full)(step), ()

    def update(self, domain, phi, guess, memory, end):
        """The step as it is."""
        return guess, ()

    def scan(self, domain, phi, guess, memory, ends):
        """The same step for all tasks."""
        if isinstance(guess, Metric):
            return guess, guess, ()
        return guess + namespace(guess).zeros_like(ends.sigma), guess, ()
