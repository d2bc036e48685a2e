"""Quadratic growth: how fast a task's loss rises away from its optimum, with a proof (the paper's
appendix on computing α).

f = Σ losses of a task has α-quadratic growth on Θ if f(θ) − f(θ*) ≥ (α/2)·‖θ − θ*‖² there. At
distance δ the question is

    ε_δ = min f(θ) − f(θ*)   subject to   ‖θ − θ*‖ ≥ δ,  ‖θ‖ ≤ B,          α_δ = 2·ε_δ/δ²,

which is not convex. `estimate` encloses ε_δ from both sides.

* **Relaxation** (the paper's). ‖θ‖ ≤ B turns the first constraint into the half-space 2⟨θ*, θ⟩ ≤ B²
  − δ² + ‖θ*‖², a convex
  program, solved by Frank–Wolfe. It is a lower bound, a good one when ‖θ*‖ = B, and a vacuous one
  when θ* is inside: θ* itself satisfies the half-space as soon as δ² ≤ B² − ‖θ*‖².
* **Curvature.** Let λ ≥ 0 be the ball's multiplier, ∇f(θ*) = −λ·θ*. Then ⟨∇f(θ*), θ − θ*⟩ ≥
  (λ/2)·‖θ − θ*‖² on the ball, and
  with |ℓ'''| ≤ r·ℓ'' (r = 0 squared, 1 logistic) and u = r·δ·max‖x‖ Taylor's formula gives ε_δ ≥
  (δ²/2)·(λ + ψ(u)·λ_min(∇²f(θ*))), ψ(u) = 2(e^{−u} + u − 1)/u², sharpened in
  `fmrl.theory.growth.curvature`. For a quadratic inside the ball this is exact.
* **Attained.** Descent on the sphere ‖θ − θ*‖ = δ within the ball, from the relaxed solution and
  from the flattest directions:
  a value some action really has, so an upper bound. (f is convex, so ε_δ is attained on the
  sphere.)

The optimum must be unique for α > 0 here: distances are to the least-norm optimum, not to the
nearest one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fmrl.core.arrays import Array, as_float, constant, device, namespace, norm, to_numpy
from fmrl.core.domains import Ball
from fmrl.core.tasks import Task
from fmrl.errors import FMRLError
from fmrl.theory.growth.sides import Problem


@dataclass(frozen=True, eq=False)
class Growth:
    """ε_δ at K distances: the truth lies in [difference − gap, difference]. NumPy arrays [K], theta
    in the task's namespace.
    """

    distances: np.ndarray  # δ
    difference: np.ndarray  # f(theta) − f(θ*), attained
    gap: np.ndarray  # difference minus the better of the two lower bounds
    relaxed: np.ndarray  # value of the paper's convex program …
    relaxed_gap: (
        np.ndarray
    )  # … and its Frank–Wolfe gap: its minimum lies in [relaxed − relaxed_gap, relaxed]
    curvature: np.ndarray  # the lower bound from λ and the smallest eigenvalue
    theta: Array  # [K, d] where the difference is attained
    optimum: Array  # [d]
    multiplier: float  # λ; positive when the ball holds the optimum back

    @property
    def lower(self) -> np.ndarray:
        """What is proved about ε_δ."""
        return self.difference - self.gap

    @property
    def alpha_fit(self) -> float:
        """α of the parabola α·δ²/2 closest to the proved differences in least squares."""
        return _fit(self.distances, self.lower)

    @property
    def alpha_min(self) -> float:
        """The least 2·ε_δ/δ² over the distances, from what is proved."""
        return float(np.min(2 * self.lower / self.distances**2))

    @property
    def alpha_most(self) -> float:
        """No α above this is true: the least 2·ε_δ/δ² over the distances, from what is attained."""
        return float(np.min(2 * self.difference / self.distances**2))

    @property
    def alpha_proved(self) -> float:
        """α-quadratic growth holds on all of Θ up to the largest distance, between the distances as
        well.

        ε_δ/δ never falls as δ grows (convexity along rays), so α_δ ≥ α_k·δ_k/δ from δ_k on; and the
        curvature bound on α only falls, so its value at δ_{k+1} serves all smaller δ."""
        order = np.argsort(self.distances)
        delta, alpha = self.distances[order], (2 * self.lower / self.distances**2)[order]
        bend = np.minimum.accumulate((2 * self.curvature / self.distances**2)[order][::-1])[::-1]
        carried = np.maximum(bend[1:], alpha[:-1] * delta[:-1] / delta[1:])
        return float(max(0.0, min(bend[0], *carried)) if delta.size > 1 else max(0.0, bend[0]))

    def __repr__(self) -> str:
        return (
            f"Growth(distances={self.distances.size}, alpha_fit={self.alpha_fit:.4g}, "
            f"alpha_min={self.alpha_min:.4g}, alpha_most={self.alpha_most:.4g})"
        )

    def figure(self) -> Any:
        """The differences against the distance, with the fitted parabola: a matplotlib Figure."""
        from matplotlib.figure import Figure

        picture = Figure(figsize=(5, 3.6), layout="constrained")
        axes = picture.add_subplot(
            xlabel="distance δ from the optimum", ylabel="least loss above the optimum"
        )
        order = np.argsort(self.distances)
        delta = self.distances[order]
        axes.fill_between(
            delta, self.lower[order], self.difference[order], alpha=0.3, label="ε_δ lies here"
        )
        axes.plot(delta, self.relaxed[order], "k:", lw=1, label="the convex relaxation")
        axes.plot(
            delta,
            self.alpha_fit * delta**2 / 2,
            "k--",
            lw=1,
            label=f"α·δ²/2 with α = {self.alpha_fit:.3g}",
        )
        axes.legend(fontsize=8)
        return picture


def _fit(delta: np.ndarray, epsilon: np.ndarray) -> float:
    return float(np.sum(epsilon * delta**2 / 2) / np.sum(delta**4 / 4))


def estimate(
    task: Task, domain: Ball | None = None, distances: Any = None, *, tolerance: float = 1e-3
) -> Growth:
    """ε_δ and α of the summed losses of ``task`` on ``domain``, a Ball (default: the unit ball).

    distances: δ [K], each in (0, B + ‖θ*‖]. By default 20 of them, up to the radius if the ball
    holds the optimum back, else up to sqrt(B² − ‖θ*‖²), so that along every line through θ* the
    ball goes on to that distance at one end or the other.
    tolerance: Frank–Wolfe gap relative to the difference. Losses are summed: divide by
    ``task.rounds`` for the α of their average.

    >>> import numpy as np, fmrl
    >>> task = fmrl.Task(np.diag([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3]), loss=fmrl.Squared())  # Hessian diag(1, 4, 9)
    >>> growth = estimate(task)
    >>> round(growth.alpha_min, 6), round(growth.alpha_fit, 6), round(growth.alpha_proved, 6)
    (1.0, 1.0, 1.0)
    """
    domain = Ball(1.0) if domain is None else domain
    if not isinstance(domain, Ball):
        raise FMRLError(f"growth is estimated on a ball, not on {domain!r}", fix="use Ball(radius)")
    if not isinstance(task, Task):
        raise FMRLError(
            f"{type(task).__name__} is not a task of samples",
            fix="build one with Task(X, y, loss=…)",
        )
    samples, xp = task.open(), namespace(task.X)
    optimum = samples.hindsight(domain).theta
    centre = constant(domain.centre, optimum) + xp.zeros_like(optimum)
    point = optimum - centre
    reach = domain.radius + float(norm(point))
    if distances is None:
        room = domain.radius**2 - float(norm(point)) ** 2
        distances = np.linspace(
            0, math.sqrt(room) if room > 1e-6 * domain.radius**2 else domain.radius, 21
        )[1:]
    delta = np.atleast_1d(to_numpy(as_float(distances, "distances")).astype(float))
    if delta.ndim != 1 or not (delta > 0).all() or not (delta <= reach * (1 + 1e-12)).all():
        raise FMRLError(
            f"distances must be positive and at most {reach:g}, the farthest that Θ goes from the optimum"
        )
    problem = Problem(
        samples,
        domain.radius,
        centre,
        point,
        xp.asarray(delta, dtype=optimum.dtype, device=device(optimum)),
    )
    x, relaxed, gap = problem.relax(tolerance)
    curvature, multiplier, flattest = problem.curvature()
    theta, attained = problem.descend(x, flattest)
    lower = xp.minimum(xp.maximum(xp.maximum(relaxed - gap, curvature), 0 * gap), attained)
    arrays = (
        to_numpy(a).astype(float) for a in (attained, attained - lower, relaxed, gap, curvature)
    )
    return Growth(delta, *arrays, theta=theta + centre, optimum=optimum, multiplier=multiplier)
