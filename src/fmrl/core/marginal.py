"""The mean, covariance and noise of tasks by marginal likelihood: `estimate_prior`.

The scatter of the tasks' optima is the spread of tasks plus the noise of each task, and only the
first is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, device, dot, full, namespace
from fmrl.core.domains import Euclidean
from fmrl.core.losses import Squared
from fmrl.core.metric import T, apply
from fmrl.core.prior import Gaussian
from fmrl.core.rules.shape import geometric_mean
from fmrl.core.samples import Samples
from fmrl.core.solve import MetricLeaders
from fmrl.core.tasks import Task, Tasks
from fmrl.errors import FMRLError

FAMILIES = ("isotropic", "diagonal", "full")


class Moments(NamedTuple):
    """What the tasks say about a Gaussian, in coordinates where its H is the identity; adds up
    over tasks.
    """

    tasks: float
    rounds: float
    pull: Array  # [d] Σ a, a = J'K⁻¹r
    scatter: Array  # [d, d] Σ a·aᵀ
    information: Array  # [d, d] Σ J'K⁻¹J
    squares: float  # Σ r'K⁻¹r
    length: Array  # [f] Σ x_j²

    def __add__(self, other: Any) -> Moments:  # type: ignore[override]
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))


def moments(tasks: Tasks, gaussian: Gaussian) -> Moments:
    """Sums over tasks at the present Gaussian.

    A task is working rows J [n, d] with residuals r [n]: its own rows for squared losses, and for
    others the quadratic approximation at its MAP. K = I + J·Jᵀ is the rows' covariance.
    """
    found = None
    for _, game in tasks.stacks():
        part = _stack_moments(game, gaussian)
        found = part if found is None else found + part
    assert found is not None
    return found


def _stack_moments(game: Samples, gaussian: Gaussian) -> Moments:
    xp = namespace(game.X)
    phi = gaussian.mean + full((game.X.shape[0], gaussian.mean.shape[-1]), 0.0, game.X)
    leaders = MetricLeaders(game, Euclidean(), phi, gaussian.metric)
    J, r = _working(leaders, game)
    n, d = J.shape[-2:]
    small = n < d
    inner = xp.matmul(J, T(J)) if small else xp.matmul(T(J), J)
    inner = inner + xp.eye(min(n, d), dtype=J.dtype, device=device(J))
    inverse = xp.linalg.inv(inner)
    if small:
        solved = xp.matmul(inverse, r[..., None])
        a = xp.matmul(T(J), solved)[..., 0]
        information = xp.matmul(T(J), xp.matmul(inverse, J))
        squares = dot(r, solved[..., 0])
    else:
        a = xp.matmul(inverse, xp.matmul(T(J), r[..., None]))[..., 0]
        information = xp.eye(d, dtype=J.dtype, device=device(J)) - inverse
        squares = dot(r, r) - dot(a, xp.matmul(T(J), r[..., None])[..., 0])
    return Moments(
        float(J.shape[0]),
        float(xp.sum(game.rounds)),
        xp.sum(a, axis=0),
        xp.matmul(T(a), a),
        xp.sum(information, axis=0),
        float(xp.sum(squares)),
        xp.sum(xp.reshape(game.X**2, (-1, game.X.shape[-1])), axis=0),
    )


def _working(leaders: MetricLeaders, game: Samples) -> tuple[Array, Array]:
    """Working rows [B, N, d] and residuals [B, N] at phi, in u."""
    xp, J, n = namespace(game.X), leaders.rows, game.length
    shape = (J.shape[0], J.shape[1] * J.shape[2])
    if isinstance(game.loss, Squared):
        off = (game.target - leaders.under_phi) * game.weight[..., None]
        return xp.reshape(J, (*shape, J.shape[-1])), xp.reshape(off, shape)
    leaders(n)
    z = leaders._margins(n, leaders.u)
    slope = game.loss.slope(z, game.target) * game.weight[..., None]
    bend = game.loss.curvature(z, game.target)
    moved = z - leaders.under_phi
    if game.loss.coupled:  # W = L·Lᵀ over the outputs of a round
        values, vectors = xp.linalg.eigh(bend * game.weight[..., None, None])
        root = xp.sqrt(xp.maximum(values, full((), 1e-9, values)))
        along = xp.matrix_transpose(vectors)
        J = root[..., None] * xp.matmul(along, J)
        turned, steep = (xp.matmul(along, v[..., None])[..., 0] for v in (moved, slope))
        off = root * turned - steep / root
    else:
        root = xp.sqrt(xp.maximum(bend, full((), 1e-9, bend))) * game.weight[..., None]
        J = root[..., None] * J
        off = root * moved - slope / xp.where(root > 0, root, xp.ones_like(root))
    return xp.reshape(J, (*shape, J.shape[-1])), xp.reshape(off, shape)


def estimate_prior(
    tasks: Any,
    family: str | int = "full",
    *,
    noise: float | None = None,
    start: Gaussian | None = None,
    shrink: float | None = None,
    steps: int = 100,
    tolerance: float = 1e-4,
    sums: Callable[[Tasks, Gaussian], Moments] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Gaussian:
    """The mean and covariance of tasks' parameters by marginal likelihood, the noise inside tasks
    accounted for.

    A step replaces H by the geometric mean of what the tasks' leaders say and of what their rows
    could tell (the MM step for variance components), and the mean by its generalised least-squares
    estimate; a step never lowers the likelihood. Tasks may have fewer rows than features.

    Args:
        tasks: Tasks, or a list of Task.
        family: "isotropic", "diagonal", "full", or a rank: so many directions and one variance for
            the rest.
        noise: s² of squared losses, if it is known.
        start: Go on from this one: it counts as what its tasks said, so that windows of tasks can
            be seen one after another.
        shrink: So many tasks' worth of an isotropic covariance is mixed in (default: one
            for each parameter).
        steps: At most so many.
        tolerance: Stop when a step changes H by less, relatively.
        sums: Computes `moments` where the tasks lie elsewhere, as on a cluster; ``tasks`` may then
            be Tasks of their kind without rows.
        progress: Called with 1 after every step.

    >>> import numpy as np, fmrl
    >>> rng = np.random.default_rng(0)
    >>> def task(theta):
    ...     X = rng.normal(size=(5, 2))
    ...     return fmrl.Task(X, X @ theta + rng.normal(size=5), loss=fmrl.Squared())
    >>> tasks = [task([1.0, 0.0] + rng.normal(size=2) * [2.0, 0.5]) for _ in range(500)]
    >>> found = estimate_prior(tasks)
    >>> found.mean.round(1) + 0.0, found.std.round(1), round(found.noise, 1)
    (array([1.1, 0. ]), array([1.9, 0.5]), 1.0)
    """
    if not (family in FAMILIES or (isinstance(family, int) and family >= 1)):
        what = f"family must be one of {', '.join(map(repr, FAMILIES))} or a rank, not {family!r}"
        raise FMRLError(what)
    if shrink is not None and not 0 <= shrink < math.inf:
        raise FMRLError(f"shrink must be a number of at least 0, not {shrink}")
    if sums is None:
        tasks, sums = _as_tasks(tasks), moments
    if tasks.loss.bend in (0, math.inf):
        raise FMRLError(f"{tasks.loss!r} is not a log-likelihood", fix="use Squared or Logistic")
    if noise is not None and not (isinstance(tasks.loss, Squared) and noise > 0):
        raise FMRLError(f"noise={noise} is for squared losses, and positive", fix="leave it out")
    learns, dim = isinstance(tasks.loss, Squared) and noise is None, tasks.dim
    found = start or _begin(dim, tasks.X, noise if noise is not None else 1.0)
    if not isinstance(found, Gaussian) or found.mean.shape != (dim,):
        raise FMRLError(f"start must be a Gaussian of {dim} parameters")
    told = sums(tasks, found)
    unit = _units(told, dim)
    if start is None:  # before anything is known, a row of usual length tells one unit
        if told.rounds < 2 * dim:
            what = f"{told.rounds:g} rows are too few for {dim} parameters"
            raise FMRLError(what, fix="give more tasks, or fewer features")
        if learns and not told.squares > 0:
            raise FMRLError("every target is 0, so there is nothing to learn")
        found = replace(found, covariance=found.covariance * unit / tasks.X.shape[-1])
    least = 1e-10 * told.squares / told.rounds  # of the noise: rows can be fitted exactly
    shrink = float(dim if shrink is None else shrink)
    for _ in range(steps):
        after = _improved(sums(tasks, found), found, start, family, least if learns else None)
        change = _change(found, after)
        found = after
        if progress is not None:
            progress(1)
        if change < tolerance:
            break
    xp = namespace(found.mean)
    eye = xp.eye(dim, dtype=found.mean.dtype, device=device(found.mean))
    level = xp.mean(xp.linalg.diagonal(found.covariance) / unit)  # in units of standardised columns
    mixed = found.tasks * found.covariance + shrink * level * unit * eye
    return replace(found, covariance=_of_family(mixed / (found.tasks + shrink), family))


def _units(told: Moments, dim: int) -> Array:
    """One over the mean square of each parameter's column, [d]; refuses rows of zeros."""
    xp, length = namespace(told.length), told.length
    if not bool(xp.any(length > 0)):
        raise FMRLError("every row is 0, so there is nothing to learn")
    length = xp.where(length > 0, length, xp.max(length))
    return xp.tile(told.rounds / length, (dim // length.shape[0],))


def _begin(dim: int, like: Array, noise: float) -> Gaussian:
    xp = namespace(like)
    eye = xp.eye(dim, dtype=like.dtype, device=device(like))
    return Gaussian(full((dim,), 0.0, like), noise * eye, noise)


def _as_tasks(tasks: Any) -> Tasks:
    if isinstance(tasks, Tasks):
        return tasks
    given = list(tasks) if isinstance(tasks, Iterable) else []
    if not given or not all(isinstance(task, Task) for task in given):
        what = "there are no tasks" if not given else "these are not all of class Task"
        raise FMRLError(what, fix="give a list of Task values of one kind")
    return Tasks.of(given)


def _improved(
    sums: Moments, old: Gaussian, before: Gaussian | None, family: Any, least: float | None
) -> Gaussian:
    """One step: the mean, the noise and H from the sums at the old ones."""
    xp = namespace(old.mean)
    dim = old.mean.shape[-1]
    eye = xp.eye(dim, dtype=old.mean.dtype, device=device(old.mean))
    root = old.metric.root()
    noise = old.noise
    seen = float(before.tasks) if before is not None else 0.0
    if least is not None:
        noise = sums.squares / max(sums.rounds - (0 if before else dim), 1.0)
        noise = max(noise, least)
        if before is not None:
            share = seen / (seen + sums.tasks)
            noise = share * before.noise + (1 - share) * noise
    # What earlier windows knew of the mean pulls towards theirs.
    known, pull = sums.information, sums.pull
    if before is not None and before.information is not None:
        turned = xp.matmul(T(root), xp.matmul(before.information, root))
        away = xp.linalg.solve(root, (before.mean - old.mean)[..., None])[..., 0]
        known, pull = known + turned, pull + apply(turned, away)
    ridge = 1e-6 * xp.linalg.trace(known) / dim + 1e-12
    move = xp.linalg.solve(known + ridge * eye, pull[..., None])[..., 0]
    mean = old.mean + apply(root, move)
    inverse = xp.linalg.inv(root)
    near, count = sums.scatter / noise, sums.tasks
    if count >= 4 * dim:
        still = 1e-9 * count * eye  # a direction of which nothing is known stays as it is
        scale, _ = geometric_mean(near + still, sums.information + still)
    else:  # few tasks leave directions unseen, which that step would give up for good
        scale = eye + (near - sums.information) / count
    H = xp.matmul(root, xp.matmul(scale, T(root)))
    if before is not None and seen:
        H = (seen * before.covariance / before.noise + count * H) / (seen + count)
        count = count + seen
    H = _of_family(H, family)
    H = H + 1e-12 * xp.linalg.diagonal(H) * eye
    information = xp.matmul(T(inverse), xp.matmul(known, inverse))
    return Gaussian(mean, noise * (H + T(H)) / 2, noise, int(count), information)


def _of_family(H: Array, family: Any) -> Array:
    """H with what its family does not have averaged away."""
    xp, dim = namespace(H), H.shape[-1]
    eye = xp.eye(dim, dtype=H.dtype, device=device(H))
    if family == "full":
        return H
    if family == "isotropic":
        return eye * xp.linalg.trace(H) / dim
    if family == "diagonal":
        return eye * xp.linalg.diagonal(H)
    values, vectors = xp.linalg.eigh(H)
    if family >= dim:
        return H
    rest = xp.mean(values[: dim - family])
    top = xp.where(xp.arange(dim) >= dim - family, values, rest)
    return xp.matmul(vectors * top, xp.matrix_transpose(vectors))


def _change(old: Gaussian, new: Gaussian) -> float:
    xp = namespace(new.mean)
    a, b = old.covariance / old.noise, new.covariance / new.noise
    size = xp.sqrt(xp.sum(b**2))
    return float(xp.sqrt(xp.sum((a - b) ** 2)) / size)
