"""The mean, covariance and noise of tasks by marginal likelihood: `estimate_prior`.

The scatter of the tasks' optima is the spread of tasks plus the noise of each task, and only the
first is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from fmrl.core.arrays import Array, device, dot, full, namespace
from fmrl.core.families import check_family, of_rank
from fmrl.core.losses import Squared
from fmrl.core.matrices import geometric_mean
from fmrl.core.metric import T, apply
from fmrl.core.posterior import Moments, moments, root_of, stacked
from fmrl.core.prior import Gaussian
from fmrl.core.tasks import Task, Tasks
from fmrl.errors import FMRLError


def estimate_prior(
    tasks: Any, family: Any = "full", *, noise: float | None = None, start: Gaussian | None = None,
    shrink: float | None = None, steps: int = 100, tolerance: float = 1e-4,
    sums: Callable[[Tasks, Gaussian], Moments] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Gaussian:  # fmt: skip
    """The mean and covariance of tasks' parameters by marginal likelihood, the noise inside tasks
    accounted for.

    A step replaces H by the geometric mean of what the tasks' leaders say and of what their rows
    could tell (the MM step for variance components), and the mean by its generalised least-squares
    estimate. Tasks may have fewer rows than features.

    Args:
        tasks: Tasks, or a list of Task.
        family: "isotropic", "diagonal", "full", a rank (so many directions and one variance for
            the rest), or a label for every parameter: those with the same label share a variance,
            and −1 says that all tasks have the same value.
        noise: s² of squared losses, if it is known.
        start: Go on from this one: it counts as what its tasks said, so that windows of tasks can
            be seen one after another.
        shrink: So many tasks' worth of the covariance without its correlations is mixed in
            (default: one for each parameter).
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
    if shrink is not None and not 0 <= shrink < math.inf:
        raise FMRLError(f"shrink must be a number of at least 0, not {shrink}")
    if sums is None:
        tasks = _as_tasks(tasks)
        stacks = stacked(tasks)
        sums = lambda _, gaussian: moments(stacks, gaussian)  # noqa: E731

    if tasks.loss.bend in (0, math.inf):
        raise FMRLError(f"{tasks.loss!r} is not a log-likelihood", fix="use Squared or Logistic")
    if noise is not None and not (isinstance(tasks.loss, Squared) and noise > 0):
        raise FMRLError(f"noise={noise} is for squared losses, and positive", fix="leave it out")
    dim, learns = tasks.dim, isinstance(tasks.loss, Squared) and noise is None
    family = check_family(family, dim)
    if start is not None and not (isinstance(start, Gaussian) and start.mean.shape == (dim,)):
        raise FMRLError(f"start must be a Gaussian of {dim} parameters")
    found = start or first_guess(tasks, sums(tasks, nothing(tasks, noise)), family)

    def told(gaussians: list[Gaussian]) -> list[Moments]:
        return [sums(tasks, gaussians[0])]

    options = {"family": family, "before": start, "learns": learns, "progress": progress}
    (found,) = climb(told, [found], steps, tolerance, **options)
    return shrunk(found, family, float(dim if shrink is None else shrink))


def climb(
    sums: Callable[[list[Gaussian]], list[Moments]], found: list[Gaussian], steps: int,
    tolerance: float, *, family: Any, learns: bool, before: Gaussian | None = None,
    ridge: float = 0.0, drawn: Array | None = None, bold: bool = False, most: float = math.inf,
    least: float | None = None, stride: float = math.inf,
    progress: Callable[[int], None] | None = None,
) -> list[Gaussian]:  # fmt: skip
    """Steps of `improved` until none changes much.

    Args:
        sums: What tasks say about Gaussians that share covariance and noise.
        found: Where to begin.
        steps: At most so many.
        tolerance: Of the relative change of a step.
        family: As `check_family` gives it.
        learns: Whether the noise is learned.
        before: What earlier windows said.
        ridge: Draws means towards 0 like one over the variance of a prior.
        drawn: Entries [d] of the means for which that variance is learned, one for all of them;
            it is at most that of ``ridge``.
        bold: Whether steps are twice as long: faster, but some may lower the likelihood.
        most: The largest variance, where tasks that are fitted without error ask for any.
        least: The least noise (default: 1e-10 of what is left at the start).
        stride: By how much a mean moves in a step, at most: classes that can be told apart without
            error say little about how far.
        progress: Called with 1 after every step.
    """
    pulled = ridge
    for _ in range(steps):
        told = sums(found)
        if least is None:  # rows can be fitted exactly
            least = 1e-10 * told[0].squares / max(told[0].rounds, 1.0)
        noise = least if learns else None
        after = improved(told, found, family, before, noise, pulled, bold, stride)
        if drawn is not None:
            pulled = _learned_ridge(after, pulled, drawn, ridge)
        change = max(map(_change, found, after, told))
        if not math.isfinite(change):
            break
        found = [_capped(g, most) for g in after] if most < math.inf else after
        if progress is not None:
            progress(1)
        if change < tolerance:
            break
    return found


def _learned_ridge(found: Sequence[Gaussian], ridge: Any, drawn: Array, least: float) -> Array:
    """One over the variance of some entries of the means, [d]: how many of them are known, of which
    noise is none, over their squares (MacKay's fixed point).
    """
    xp, known, squares = namespace(drawn), 0.0, 0.0
    for g in found:
        known += float(xp.sum(_told(g.information, ridge * g.noise)[drawn]))
        squares += float(xp.sum(g.mean[drawn] ** 2))
    one = max(known / max(squares, 1e-290), least)
    return xp.where(drawn, full((), one, found[0].mean), full((), least, found[0].mean))


def _told(information: Array, drawn: Array) -> Array:
    """How much of each entry of a mean is known from rows, 0 to 1, [d]; the rest is a prior's.

    Args:
        information: Of rows and prior together, [d, d].
        drawn: The prior's, [d].
    """
    xp = namespace(information)
    chance = drawn * xp.linalg.diagonal(xp.linalg.inv(information))
    return 1 - xp.clip(chance, 0.0, 1.0)


def _capped(gaussian: Gaussian, most: float) -> Gaussian:
    """With no variance above ``most``."""
    xp = namespace(gaussian.mean)
    size = xp.linalg.diagonal(gaussian.covariance)
    down = xp.sqrt(full((), most, size) / xp.maximum(size, full((), most, size)))
    return replace(gaussian, covariance=gaussian.covariance * down[:, None] * down)


def nothing(tasks: Tasks, noise: float | None) -> Gaussian:
    """Before anything is known: no task differs from 0."""
    like, dim = tasks.X, tasks.dim
    level = 1.0 if noise is None else noise
    return Gaussian(full((dim,), 0.0, like), full((dim, dim), 0.0, like), level)


def first_guess(tasks: Tasks, told: Moments, family: Any, few: bool = False) -> Gaussian:
    """Where to begin: a row of usual length tells one unit.

    Args:
        tasks: Of which kind.
        told: What they say about `nothing`.
        family: As `check_family` gives it.
        few: Whether there may be fewer rows than parameters.
    """
    none, dim, f = nothing(tasks, None), tasks.dim, tasks.X.shape[-1]
    xp = namespace(none.mean)
    length = xp.linalg.diagonal(told.information) / tasks.loss.bend  # Σ x_j², about
    if not few:
        if told.rounds < 2 * dim:
            what = f"{told.rounds:g} rows are too few for {dim} parameters"
            raise FMRLError(what, fix="give more tasks, or fewer features")
        if isinstance(tasks.loss, Squared) and not told.squares > 0:
            raise FMRLError("every target is 0, so there is nothing to learn")
        if not bool(xp.any(length > 0)):
            raise FMRLError("every row is 0, so there is nothing to learn")
    length = xp.where(length > 0, length, xp.max(length))
    unit = told.rounds / xp.where(length > 0, length, xp.ones_like(length))
    if isinstance(family, tuple):  # those with one label begin alike, and −1 stays as it is
        for label in set(family):
            mine = xp.asarray([i == label for i in family], device=device(unit))
            level_of = xp.mean(unit[mine]) if label >= 0 else full((), 0.0, unit)
            unit = xp.where(mine, level_of, unit)
    eye = xp.eye(dim, dtype=unit.dtype, device=device(unit))
    return replace(none, covariance=eye * unit / f)


def shrunk(found: Gaussian, family: Any, shrink: float) -> Gaussian:
    """With correlations drawn to 0 as ``shrink`` tasks without any would."""
    xp = namespace(found.mean)
    eye = xp.eye(found.mean.shape[-1], dtype=found.mean.dtype, device=device(found.mean))
    part = found.tasks / (found.tasks + shrink)
    return replace(found, covariance=of_rank(found.covariance * (part + (1 - part) * eye), family))


def _as_tasks(tasks: Any) -> Tasks:
    if isinstance(tasks, Tasks):
        return tasks
    given = list(tasks) if isinstance(tasks, Iterable) else []
    if not given or not all(isinstance(task, Task) for task in given):
        what = "there are no tasks" if not given else "these are not all of class Task"
        raise FMRLError(what, fix="give a list of Task values of one kind")
    return Tasks.of(given)


def improved(
    sums: Sequence[Moments], old: Sequence[Gaussian], family: Any,
    before: Gaussian | None = None, least: float | None = None, ridge: Any = 0.0,
    bold: bool = False, stride: float = math.inf,
) -> list[Gaussian]:  # fmt: skip
    """One step for Gaussians that share covariance and noise: means, noise and H from the sums at
    the old ones.

    Args:
        sums: One for every Gaussian.
        old: The Gaussians.
        family: As `check_family` gives it.
        before: What earlier windows said, of one Gaussian.
        least: The least noise; None where it is known.
        ridge: As in `climb`.
        bold: As in `climb`.
        stride: As in `climb`.
    """
    root, noise = root_of(old[0]), old[0].noise
    seen = float(before.tasks) if before is not None else 0.0
    if least is not None:
        spent = 0.0 if seen else sum(_spent(s, ridge * noise) for s in sums)
        rounds = sum(s.rounds for s in sums)
        noise = max(sum(s.squares for s in sums) / max(rounds - spent, rounds / 10), least, 1e-300)
        if before is not None:
            share = seen / (seen + sums[0].tasks)
            noise = share * before.noise + (1 - share) * noise
    count = sum(s.tasks for s in sums)
    near, gain = (reduce(add, (getattr(s, name) for s in sums)) for name in ("scatter", "gain"))
    H = _step(root, near / noise, gain, count, family, bold)
    if before is not None and seen:
        H = (seen * before.covariance / before.noise + count * H) / (seen + count)
        H, count = of_rank(H, family), count + seen
    found = []
    for s, g in zip(sums, old, strict=True):
        mean, known = _mean(s, g, before, ridge, stride)
        found.append(Gaussian(mean, noise * (H + T(H)) / 2, noise, int(count), known))
    return found


def _spent(sums: Moments, drawn: Any) -> float:
    """How many numbers of a mean are taken from the rows: all, where it is not drawn to 0."""
    xp, dim = namespace(sums.information), sums.information.shape[-1]
    drawn = drawn + full((dim,), 0.0, sums.information)
    if not bool(xp.any(drawn > 0)):
        return float(dim)
    eye = xp.eye(dim, dtype=drawn.dtype, device=device(drawn))
    return float(xp.sum(_told(sums.information + drawn * eye, drawn)))


def _mean(
    sums: Moments, old: Gaussian, before: Gaussian | None, ridge: Any, stride: float
) -> tuple[Array, Array]:
    """The generalised least-squares estimate, and how well it is known."""
    xp, known, pull = namespace(old.mean), sums.information, sums.pull
    eye = xp.eye(old.mean.shape[-1], dtype=old.mean.dtype, device=device(old.mean))
    known = known + ridge * old.noise * eye
    pull = pull - ridge * old.noise * old.mean
    if before is not None and before.information is not None:
        known = known + before.information
        pull = pull + apply(before.information, before.mean - old.mean)
    # Where columns are collinear, or nothing is known, the mean stays.
    size = xp.linalg.diagonal(known)
    size = xp.where(size > 0, size, xp.ones_like(size))
    unit = 1 / xp.sqrt(size)
    scaled = known * unit[:, None] * unit
    move = unit * xp.linalg.solve(scaled + 1e-6 * eye, (unit * pull)[:, None])[:, 0]
    if stride < math.inf:
        move = move * min(1.0, stride / max(math.sqrt(float(dot(move, move))), 1e-290))
    return old.mean + move, known


def _step(root: Array, A: Array, B: Array, count: float, family: Any, bold: bool) -> Array:
    """H after one step of its family, from the scatter A and the gain B."""
    xp = namespace(root)
    dim, r = root.shape
    if isinstance(family, tuple):
        # Roots of diagonal matrices have one entry in every column.
        labels = [family[i] for i in xp.argmax(xp.abs(root), axis=0)]
        H = xp.sum(root**2, axis=1)
        a, b = xp.linalg.diagonal(A), xp.linalg.diagonal(B)
        for label in sorted(set(labels)):
            mine = xp.asarray([i == label for i in labels], device=device(H))
            up, down = (xp.sum(xp.where(mine, v, xp.zeros_like(v))) for v in (a, b))
            ratio = up / down if bool(down > 1e-12 * count) else full((), 1.0, a)
            ratio = ratio if bold else xp.sqrt(ratio)
            ratio = xp.minimum(xp.maximum(ratio, full((), 0.1, a)), full((), 10.0, a))
            places = xp.asarray([i == label for i in family], device=device(H))
            H = xp.where(places, H * ratio, H)
        return xp.eye(dim, dtype=H.dtype, device=device(H)) * H
    eye = xp.eye(r, dtype=A.dtype, device=device(A))
    if count >= 4 * dim:
        # A direction of which nothing is known stays as it is: columns that sum to a constant have
        # one. Rounding speaks in it as loud as the root of its size, hence no less than this.
        still = 1e-6 * count * eye
        scale = geometric_mean(A + still, B + still)
        scale = xp.matmul(scale, scale) if bold else scale
    else:  # few tasks leave directions unseen, which that step would give up for good
        scale = eye + (A - B) / count
    H = xp.matmul(root, xp.matmul(scale, T(root)))
    return of_rank(
        H + 1e-12 * xp.linalg.diagonal(H) * xp.eye(dim, dtype=H.dtype, device=device(H)), family
    )


def _change(old: Gaussian, new: Gaussian, told: Moments) -> float:
    """How far a step moved what a task's rows are weighed against: variances and correlations,
    relatively and by how much of them the rows can tell, and the mean in units of its own
    uncertainty.
    """
    xp = namespace(new.mean)
    size = xp.linalg.diagonal(old.covariance) / old.noise
    some = xp.nonzero(size > 0)[0]
    step = new.covariance / new.noise - old.covariance / old.noise
    step = xp.take(xp.take(step, some, axis=0), some, axis=1)
    share = xp.sqrt(xp.linalg.diagonal(told.gain) / told.tasks / xp.take(size, some))
    change = xp.abs(step) * share[:, None] * share
    move = new.mean - old.mean
    sure = dot(move, apply(new.information, move)) / new.noise / move.shape[-1]
    most = xp.max(change) if change.shape[0] else xp.zeros_like(sure)
    return float(xp.maximum(most, xp.sqrt(xp.maximum(sure, xp.zeros_like(sure)))))
