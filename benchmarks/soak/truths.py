"""What is true of a run, found by code that shares nothing with the library: losses in long
double, random points and pairs of the domain, and attacks on minima.

Nothing here can raise a false alarm but by rounding, and `rounding` bounds that: a random point
that is better than a proved minimum, a pair whose slope is above G, or a segment on which a loss
is not convex each refute what was claimed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fmrl
from fmrl.core.losses import Weighted

Long = np.longdouble


def value(loss: Any, z: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Losses [..., m] of margins z [..., m, outputs] in long double."""
    if type(loss) is Weighted:
        return target[:, -1] * value(loss.loss, z, target[:, :-1])
    if type(loss) is fmrl.Linear:
        return z[..., 0]
    if type(loss) is fmrl.Squared:
        return (z[..., 0] - target[:, 0]) ** 2 / 2
    if type(loss) is fmrl.Hinge:
        return np.maximum(1 - target[:, 0] * z[..., 0], 0)
    if type(loss) is fmrl.Softmax:
        top = z.max(axis=-1, keepdims=True)
        total = top[..., 0] + np.log(np.exp(z - top).sum(axis=-1))
        return total - (target * z).sum(axis=-1)
    if type(loss) in (fmrl.Logistic, fmrl.OneVsAll):
        away = (1 - 2 * target) * z
        return (np.maximum(away, 0) + np.log1p(np.exp(-np.abs(away)))).sum(axis=-1)
    return np.asarray(loss.value(z, target), Long)  # one of the user's own


class Problem:
    """The rounds of a task of rows, as a function in long double."""

    def __init__(self, task: Any):
        game = task.open()
        about = np.finfo(game.X.dtype)
        self.loss, self.eps, self.tiny = game.loss, float(about.eps), float(about.smallest_normal)
        self.X, self.target = np.asarray(game.X, Long), np.asarray(game.target, Long)

    def margins(self, points: np.ndarray) -> np.ndarray:
        """z [k, m, outputs] of points [k, d]."""
        shape = (len(points), self.loss.outputs, self.X.shape[1])
        theta = np.reshape(np.asarray(points, Long), shape)
        return np.swapaxes(np.matmul(theta, self.X.T), -1, -2)

    def rounds(self, points: np.ndarray) -> np.ndarray:
        """Losses [k, m] at points [k, d]."""
        return value(self.loss, self.margins(points), self.target)

    def rounding(self, theta: np.ndarray) -> float:
        """By how much float arithmetic can be wrong about Σ losses at theta [d]: a margin of d
        products is off by d·eps times their sizes, which counts by the slope, and a sum of m
        losses by m·eps times theirs.
        """
        sizes = (
            np.abs(self.X) @ np.abs(np.reshape(np.asarray(theta, Long), (-1, self.X.shape[1]))).T
        )
        losses, z = self.rounds(theta[None])[0], self.margins(theta[None])[0]
        steep = np.ones_like(sizes)
        if type(self.loss) is fmrl.Squared:
            steep = np.abs(z - self.target) + self.eps * (sizes + np.abs(self.target))
            sizes = sizes + np.abs(self.target)
        wide = (self.X.shape[1] + 4) * (steep * sizes).sum() + (len(losses) + 4) * np.abs(
            losses
        ).sum()
        return float(4 * self.eps * wide + len(losses) * self.tiny)


def feasible(rng: np.random.Generator, domain: Any, like: np.ndarray, count: int) -> np.ndarray:
    """Random points of a domain [count, d] in long double, corners and borders among them."""
    d = like.shape[-1]
    if isinstance(domain, fmrl.Ball):
        away = rng.normal(size=(count, d))
        away /= np.linalg.norm(away, axis=1, keepdims=True)
        part = np.where(rng.random((count, 1)) < 0.5, 1 - 1e-15, rng.random((count, 1)))
        return np.asarray(domain.centre, Long) + Long(domain.radius) * part * away
    if isinstance(domain, fmrl.Box):
        low, high = (np.broadcast_to(np.asarray(v, Long), (d,)) for v in (domain.low, domain.high))
        part = np.clip(rng.uniform(-0.5, 1.5, (count, d)), 0, 1)
        return low + (high - low) * part
    if isinstance(domain, fmrl.Simplex):
        part = rng.exponential(size=(count, d)) ** rng.choice([1.0, 8.0], (count, 1))
        part = np.where(rng.random((count, 1)) < 0.4, np.eye(d)[rng.integers(0, d, count)], part)
        floor = Long(domain.floor)
        return floor + (1 - d * floor) * part / part.sum(axis=1, keepdims=True)
    size = np.maximum(np.abs(np.asarray(like, Long)).max(), 1)
    return like + size * 10 ** rng.uniform(-6, 3, (count, 1)) * rng.normal(size=(count, d))


def attack(rng: np.random.Generator, problem: Problem, domain: Any, theta: np.ndarray) -> Long:
    """The smallest Σ losses found near theta and anywhere in the domain."""
    best, lowest = np.asarray(theta, Long), problem.rounds(theta[None])[0].sum()
    for _ in range(2):
        far = feasible(rng, domain, best, 24)
        points = best + Long(10) ** rng.uniform(-9, 0, (24, 1)) * (far - best)
        sums = problem.rounds(points).sum(axis=1)
        k = int(np.nanargmin(sums))
        if sums[k] < lowest:
            best, lowest = points[k], sums[k]
    return lowest


def slsqp(problem: Problem, domain: Any, theta: np.ndarray) -> Long:
    """What a local method finds from theta, put back into the domain."""
    from scipy.optimize import minimize

    bounds = None
    if isinstance(domain, fmrl.Box):
        bounds = list(
            zip(*(np.broadcast_to(v, theta.shape) for v in (domain.low, domain.high)), strict=True)
        )
    size = max(1.0, float(np.abs(problem.rounds(theta[None])).sum()))
    rule: list[dict] = []
    if isinstance(domain, fmrl.Ball):
        centre = np.broadcast_to(domain.centre, theta.shape)
        rule = [
            {
                "type": "ineq",
                "fun": lambda v: 1 - ((v - centre) / domain.radius) @ (v - centre) / domain.radius,
            }
        ]
    if isinstance(domain, fmrl.Simplex):
        bounds, rule = (
            [(domain.floor, 1.0)] * theta.size,
            [{"type": "eq", "fun": lambda v: v.sum() - 1}],
        )
    goal = lambda v: float(problem.rounds(v[None]).sum()) / size  # noqa: E731
    found = minimize(goal, theta, method="SLSQP", bounds=bounds, constraints=rule).x
    if not np.isfinite(found).all():
        return Long(np.inf)
    found = np.asarray(domain.project(np.abs(found) if isinstance(domain, fmrl.Simplex) else found))
    return problem.rounds(found[None])[0].sum()


def norm_of(domain: Any, step: np.ndarray) -> np.ndarray:
    """The norm in which R is to be strongly convex, [...]."""
    if domain.norm == "l1":
        return np.abs(step).sum(axis=-1)
    size = np.abs(step).max(axis=-1, keepdims=True)  # squares of odd scales do not exist
    part = step / np.where(size > 0, size, 1)
    return size[..., 0] * np.sqrt((part**2).sum(axis=-1))


def steepest(rng: np.random.Generator, problem: Problem, domain: Any, theta: np.ndarray) -> float:
    """Root mean square over the rounds of the steepest slope between random pairs: never above
    the true G.
    """
    a, b = (feasible(rng, domain, theta, 24) for _ in range(2))
    near = a + Long(1e-3) * (b - a)
    pairs = np.concatenate([a, a]), np.concatenate([b, near])
    ends = problem.rounds(pairs[0]), problem.rounds(pairs[1])
    # What long double itself may be wrong about the difference of the two losses.
    sizes = np.abs(problem.X).sum(axis=1) * np.abs(np.concatenate(pairs)).max()
    sizes = 64 * np.finfo(Long).eps * (np.abs(ends[0]) + np.abs(ends[1]) + sizes)
    if type(problem.loss) is fmrl.Squared:
        sizes = sizes * (1 + np.sqrt(np.maximum(*ends)) + np.abs(problem.target[:, 0]))
    rise = np.maximum(np.abs(ends[0] - ends[1]) - sizes, 0)
    length = norm_of(domain, pairs[0] - pairs[1])
    apart = length > 1e-6 * length.max()  # the difference of two losses is rounded too
    slopes = rise[apart] / length[apart][:, None]
    return float(np.sqrt((slopes.max(axis=0) ** 2).mean())) if len(slopes) else 0.0


def convex(rng: np.random.Generator, problem: Problem, domain: Any, theta: np.ndarray) -> bool:
    """Whether no random segment refutes that every round is convex."""
    a, b = (feasible(rng, domain, theta, 24) for _ in range(2))
    part = Long(10) ** rng.uniform(-3, 0, (24, 1)) / 2
    ends, inside = (problem.rounds(x) for x in (a, b)), problem.rounds((1 - part) * a + part * b)
    low, high = ends
    chord = (1 - part) * low + part * high
    room = (
        1e-12 * (np.abs(low) + np.abs(high))
        + 1e-15 * np.abs(problem.X).sum() * norm_of(domain, np.abs(a) + np.abs(b))[:, None]
    )
    return bool(np.all(inside <= chord + room))


def strongly_convex(rng: np.random.Generator, domain: Any, theta: np.ndarray) -> bool:
    """Whether no random pair refutes B_R(a‖b) ≥ ½‖a − b‖²."""
    a, b = (np.asarray(feasible(rng, domain, theta, 24), float) for _ in range(2))
    far = norm_of(domain, a - b)
    room = 1e-12 * (norm_of(domain, a) + norm_of(domain, b)) ** 2
    return bool(np.all(np.asarray(domain.divergence(a, b)) >= far**2 / 2 * (1 - 1e-6) - room))


def inside(domain: Any, points: np.ndarray) -> bool:
    """Whether all points [n, d] lie in the domain, up to a millionth of its size and rounding."""
    eps = 4 * np.finfo(points.dtype).eps
    points = np.asarray(points, Long)
    if isinstance(domain, fmrl.Ball):
        centre = np.asarray(domain.centre, Long)
        room = 1e-6 * domain.radius + eps * norm_of(domain, points)
        return bool(np.all(norm_of(domain, points - centre) <= domain.radius + room))
    if isinstance(domain, fmrl.Box):
        low, high = np.asarray(domain.low, Long), np.asarray(domain.high, Long)
        room = 1e-6 * (high - low) + eps * np.abs(points)
        return bool(np.all((points >= low - room) & (points <= high + room)))
    if isinstance(domain, fmrl.Simplex):
        total = np.abs(points.sum(-1) - 1)
        return bool(np.all(points >= domain.floor - 1e-6) and np.all(total <= 1e-6))
    return bool(np.all(np.isfinite(points)))
