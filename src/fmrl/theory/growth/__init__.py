"""Quadratic growth: how fast a task's loss rises away from its optimum, with a proof (the paper's
appendix on computing α).

f = Σ losses of a task has α-quadratic growth on Θ if f(θ) − f(θ*) ≥ (α/2)·‖θ − θ*‖² there. At
distance δ the question is

    ε_δ = min f(θ) − f(θ*)   subject to   ‖θ − θ*‖ ≥ δ,  ‖θ‖ ≤ B,          α_δ = 2·ε_δ/δ²,

which is not convex. `estimate` encloses ε_δ (docs/theory-tools.md has the derivations):

* from below by the paper's **relaxation**, ‖θ − θ*‖ ≥ δ replaced by 2⟨θ*, θ⟩ ≤ B² − δ² + ‖θ*‖²,
  which is good when ‖θ*‖ = B, and 0 when δ² ≤ B² − ‖θ*‖²;
* from below by **curvature**, (δ²/2)·(λ + ψ(u)·λ_min(∇²f(θ*))) and better, with λ the ball's
  multiplier, u = r·δ·max‖x‖, |ℓ'''| ≤ r·ℓ'' and ψ(u) = 2(e^{−u} + u − 1)/u²;
* from above by what is **attained** in a descent on the sphere ‖θ − θ*‖ = δ within the ball.

Distances are to the least-norm optimum, not to the nearest one, so α > 0 needs a unique optimum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fmrl.core.arrays import Array, as_float, constant, device, namespace, norm, to_numpy
from fmrl.core.domains import Ball
from fmrl.core.tasks import Task
from fmrl.errors import FMRLError
from fmrl.theory.growth.enclosure import Problem


@dataclass(frozen=True, eq=False)
class Growth:
    """ε_δ at K distances: the truth lies in [difference − gap, difference].

    Args:
        distances: δ, NumPy [K] like all but the last three.
        difference: f(theta) − f(θ*), attained.
        gap: Difference minus the better of the two lower bounds.
        relaxed: Value of the paper's convex program …
        relaxed_gap: … whose minimum lies in [relaxed − relaxed_gap, relaxed].
        curvature: The lower bound from λ and the smallest eigenvalue.
        theta: Where the difference is attained, [K, d] in the task's namespace.
        optimum: θ*, [d].
        multiplier: λ; positive when the ball holds the optimum back.
    """

    distances: np.ndarray
    difference: np.ndarray
    gap: np.ndarray
    relaxed: np.ndarray
    relaxed_gap: np.ndarray
    curvature: np.ndarray
    theta: Array
    optimum: Array
    multiplier: float

    @property
    def lower(self) -> np.ndarray:
        """What is proved about ε_δ."""
        return self.difference - self.gap

    @property
    def alpha_fit(self) -> float:
        """α of the parabola α·δ²/2 closest to the proved differences in least squares."""
        square = self.distances**2
        return float(np.sum(self.lower * square / 2) / np.sum(self.distances**4 / 4))

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
        """An α that holds on all of Θ up to the largest distance, between the distances as well.

        ε_δ/δ never falls as δ grows (convexity along rays), so α_δ ≥ α_k·δ_k/δ from δ_k on; and the
        curvature bound on α only falls, so its value at δ_{k+1} serves all smaller δ."""
        order = np.argsort(self.distances)
        delta, alpha = self.distances[order], (2 * self.lower / self.distances**2)[order]
        bend = np.minimum.accumulate((2 * self.curvature / self.distances**2)[order][::-1])[::-1]
        carried = np.maximum(bend[1:], alpha[:-1] * delta[:-1] / delta[1:])
        return float(max(0.0, np.min(carried, initial=bend[0])))

    def __repr__(self) -> str:
        names = ("alpha_fit", "alpha_min", "alpha_most")
        alphas = ", ".join(f"{name}={getattr(self, name):.4g}" for name in names)
        return f"Growth(distances={self.distances.size}, {alphas})"

    def figure(self) -> Any:
        """The differences against the distance, with the fitted parabola: a matplotlib Figure."""
        from matplotlib.figure import Figure

        picture = Figure(figsize=(5, 3.6), layout="constrained")
        axes, order, alpha = picture.add_subplot(), np.argsort(self.distances), self.alpha_fit
        axes.set(xlabel="distance δ from the optimum", ylabel="least loss above the optimum")
        delta, low, high = (a[order] for a in (self.distances, self.lower, self.difference))
        axes.fill_between(delta, low, high, alpha=0.3, label="ε_δ lies here")
        axes.plot(delta, self.relaxed[order], "k:", lw=1, label="the convex relaxation")
        label = f"α·δ²/2 with α = {alpha:.3g}"
        axes.plot(delta, alpha * delta**2 / 2, "k--", lw=1, label=label)
        axes.legend(fontsize=8)
        return picture


def estimate(
    task: Task, domain: Ball | None = None, distances: Any = None, *, tolerance: float = 1e-3
) -> Growth:
    """ε_δ and α of the summed losses of a task on a ball.

    Losses are summed: divide by ``task.rounds`` for the α of their average.

    Args:
        task: Samples.
        domain: A Ball; default: the unit ball.
        distances: δ [K], each in (0, B + ‖θ*‖]. Default: 20 of them, up to the radius if the ball
            holds the optimum back, else up to sqrt(B² − ‖θ*‖²), so that every line through θ* has
            a point of the ball at that distance.
        tolerance: Frank–Wolfe gap relative to the difference.

    >>> import numpy as np, fmrl
    >>> X, y = np.diag([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3])  # Hessian diag(1, 4, 9)
    >>> growth = estimate(fmrl.Task(X, y, loss=fmrl.Squared()))
    >>> round(growth.alpha_min, 6), round(growth.alpha_fit, 6), round(growth.alpha_proved, 6)
    (1.0, 1.0, 1.0)
    """
    domain = Ball(1.0) if domain is None else domain
    if not isinstance(domain, Ball):
        raise FMRLError(f"growth is estimated on a ball, not on {domain!r}", fix="use Ball(radius)")
    if not isinstance(task, Task):
        fix = "build one with Task(X, y, loss=…)"
        raise FMRLError(f"{type(task).__name__} is not a task of samples", fix=fix)
    samples, xp, radius = task.open(), namespace(task.X), domain.radius
    optimum = samples.hindsight(domain).theta
    centre = constant(domain.centre, optimum) + xp.zeros_like(optimum)
    length = float(norm(optimum - centre))
    reach = radius + length
    if distances is None:
        room = radius**2 - length**2
        farthest = math.sqrt(room) if room > 1e-6 * radius**2 else radius
        distances = np.linspace(0, farthest, 21)[1:]
    delta = np.atleast_1d(to_numpy(as_float(distances, "distances")).astype(float))
    if delta.ndim != 1 or not (delta > 0).all() or not (delta <= reach * (1 + 1e-12)).all():
        limit = f"{reach:g}, the farthest that Θ goes from the optimum"
        raise FMRLError(f"distances must be positive and at most {limit}")
    delta_xp = xp.asarray(delta, dtype=optimum.dtype, device=device(optimum))
    problem = Problem(samples, radius, centre, optimum - centre, delta_xp)
    x, relaxed, gap = problem.relax(tolerance)
    curvature, multiplier, flattest = problem.curvature()
    theta, attained = problem.descend(x, flattest)
    lower = xp.minimum(xp.maximum(xp.maximum(relaxed - gap, curvature), 0 * gap), attained)
    columns = (attained, attained - lower, relaxed, gap, curvature)
    arrays = (to_numpy(a).astype(float) for a in columns)
    return Growth(delta, *arrays, theta=theta + centre, optimum=optimum, multiplier=multiplier)
