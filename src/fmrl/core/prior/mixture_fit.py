"""Mixtures of Gaussians over tasks, estimated from their rows.

Everything here is in coordinates where columns have deviation 1 and the intercept, if there is one,
is the last of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fmrl.core.ensemble import kmeans
from fmrl.core.losses import Logistic, OneVsAll, Squared
from fmrl.core.prior.gaussian import Gaussian
from fmrl.core.prior.marginal import (
    Search,
    TaskSums,
    cap_variances,
    check_family,
    first_guess,
    fit_by_mm,
    mm_step,
    no_spread,
    shrink_correlations,
)  # fmt: skip
from fmrl.core.prior.mixture import ZERO_MEAN, Mixture
from fmrl.core.prior.statistics import Moments
from fmrl.core.tasks import Tasks

MM_STEPS, TOLERANCE = 40, 1e-2  # of an estimate: variances to a per cent
MM_STEPS_OF_CLASSES = 12  # of all correlations of classes, at most: what more would find is noise
MIXTURE_STEPS = 20  # steps between centres
LARGEST_DEVIATION = 10.0  # deviation of coefficients between tasks, at most
LEAST_NOISE = (
    1e-8  # noise of a regression, at least: rows can be fitted exactly, and y has variance 1
)
CLASS_DEVIATION = (
    2.5  # deviation of a class's coefficients before anything is known; 1 in a regression
)
LONGEST_MOVE = 2.0  # of a class's mean in a step of its estimate, at most
MOST_COLUMNS_FULL, RANK = 48, 8  # columns at most with all correlations; beyond, so many directions
MOST_COLUMNS = 128  # columns beyond which all differ alike


class FamilySums(TaskSums):
    """`TaskSums` of outputs with means of their own, and which columns are constant in tasks.

    Args:
        tasks: In coordinates of deviation 1.
    """

    def __init__(self, tasks: Tasks):
        super().__init__(tasks, joint=False)
        self.fixed, self.squared = constant_in_tasks(tasks), isinstance(self.loss, Squared)
        self.width = tasks.X.shape[1]


def families(width: int, intercept: bool) -> dict[str, Any]:
    """In which ways tasks may differ, the plainest first.

    none: not at all. intercept: by a constant. alike: by a constant, and in every column by the
    same deviation. columns: in every column by its own. full: in any direction; with many columns
    in a few directions of their own and by one deviation in the rest. The last two only up to
    ``MOST_COLUMNS`` columns.
    """
    slopes = width - intercept
    found: dict[str, Any] = {"none": (-1,) * width}
    if intercept:
        found["intercept"] = (-1,) * slopes + (0,)
    if slopes:
        found["alike"] = (0,) * slopes + (1,) * intercept
    if 1 < slopes <= MOST_COLUMNS:
        found["columns"] = tuple(range(width))
    if 1 < width <= MOST_COLUMNS:
        found["full"] = "full" if width <= MOST_COLUMNS_FULL else RANK
    return found


def fit_family(
    tasks: Tasks, family: str, intercept: bool, start: Mixture | None = None,
    sums: FamilySums | None = None, tolerance: float = TOLERANCE, free: int = 0,
    steps: int | None = None,
) -> Mixture:  # fmt: skip
    """The population of some tasks around one centre, by marginal likelihood.

    Args:
        tasks: In coordinates of deviation 1.
        family: One of `families`.
        intercept: Whether the last column is one.
        start: What this family found of other tasks, or a plainer one, from which to go on.
        sums: Of the same tasks, if they were stacked before.
        tolerance: Of the relative change of variances in a step, with which it ends.
        free: How many columns before the intercept answer for themselves: their mean is not drawn
            to 0 with the others'.
        steps: At most so many (default: until variances stand still to the tolerance; of the
            correlations of classes a dozen).
    """
    sums = sums or FamilySums(tasks)
    sums.at.clear()  # under another family tasks may be more than a step away
    search, fixed, width = _search(sums, family, intercept), sums.fixed, sums.width
    kind = search.family
    if start is not None and start.family in ("alike", "columns", "full"):
        some = ~(fixed[:, None] | fixed)  # what varies in no task says nothing about a variance
        first = [Gaussian(mean, start.covariance * some, start.noise) for mean in start.mean[0]]
    else:
        loss = Logistic() if isinstance(sums.loss, OneVsAll) else sums.loss
        guess = no_spread(width, np.zeros(1))
        guess = first_guess(guess, loss, _first(tasks), kind, width, few=True)
        guess = replace(guess, covariance=guess.covariance * ~(fixed[:, None] | fixed))
        first = [guess] * sums.loss.outputs
        if start is not None:
            wide = guess.covariance * start.noise
            if start.family == "intercept":
                wide = np.where(start.covariance > 0, start.covariance, wide)
            first = [Gaussian(mean, wide, start.noise) for mean in start.mean[0]]
    usual = MM_STEPS if sums.squared or family != "full" else MM_STEPS_OF_CLASSES
    search = replace(search, shrunk_entries=np.arange(width) < width - intercept - free)
    with np.errstate(invalid="ignore"):  # of a direction of which rows say nothing
        found = fit_by_mm(sums, first, steps or usual, tolerance, search)
    end = shrink_correlations(found[0], kind, float(width))
    mean = np.stack([g.mean for g in found])[None]
    return Mixture(family, mean, end.covariance, end.noise, np.ones(1), len(tasks))


def _first(tasks: Tasks) -> Moments:
    """What one output of tasks says before anything is known: how long their columns are."""
    heavy = tasks.X if tasks.weight is None else (tasks.X.T * tasks.weight).T
    length = np.einsum("nw,nw->w", tasks.X, heavy)
    none, known = np.zeros(0), np.diag(tasks.loss.bend * length)
    return Moments(float(len(tasks)), float(tasks.mass.sum()), none, known, none, none, 0.0)


def _search(sums: FamilySums, family: str, intercept: bool) -> Search:
    """What a search for this family goes by."""
    kind, fixed = check_family(families(sums.width, intercept)[family], sums.width), sums.fixed
    if isinstance(kind, tuple):
        kind = tuple(-1 if still else label for still, label in zip(fixed, kind, strict=True))
    search = Search(
        kind, False, LEAST_NOISE, ridge=CLASS_DEVIATION**-2, double_steps=True,
        largest_variance=LARGEST_DEVIATION**2,
    )  # fmt: skip
    if sums.squared:
        return replace(search, learns=True, ridge=1.0)
    return replace(search, longest_move=LONGEST_MOVE)


def constant_in_tasks(tasks: Tasks) -> np.ndarray:
    """Which columns have one value within every task, [width]: no task says how their slope differs
    from the others'. Not the intercept's; one that is 0 everywhere is a column without a value.
    """
    least, most = (end.reduceat(tasks.X, tasks.starts[:-1]) for end in (np.minimum, np.maximum))
    within, total = (most - least).max(axis=0), most.max(axis=0) - least.min(axis=0)
    return (within <= 3e-5 * total) & ((total > 0) | ~tasks.X.any(axis=0))


def fit_again(
    member: Mixture, tasks: Tasks, intercept: bool, sums: FamilySums, free: int, steps: int
) -> Mixture:
    """A population estimated from other tasks than it was, going on from where it stands.

    Args:
        member: What `fit_family` or `fit_mixture` found of some tasks.
        tasks: The others, in the same coordinates.
        intercept: Whether the last column is one.
        sums: Of these tasks.
        free: As in `fit_family`.
        steps: At most so many.
    """
    family = member.family.removeprefix(ZERO_MEAN)
    start = replace(member, family=family)
    if len(member.mean) > 1:
        found = fit_mixture(start, tasks, intercept, len(member.mean), sums, steps)
    else:
        found = fit_family(tasks, family, intercept, start, sums, free=free, steps=steps)
    return found if family == member.family else found.zero_mean(intercept)


def fit_mixture(
    start: Mixture, tasks: Tasks, intercept: bool, centres: int, sums: FamilySums | None = None,
    steps: int = MIXTURE_STEPS,
) -> Mixture:  # fmt: skip
    """The population around several centres, by expectation and maximisation.

    Args:
        start: From which to go on: the population around as many centres, or around one. Then the
            first centres are those of k-means of the tasks' models.
        tasks: Of which it is learned.
        intercept: Whether the last column is one.
        centres: How many.
        sums: Of the same tasks, if they were stacked before.
        steps: At most so many.
    """
    sums = sums or FamilySums(tasks)
    search, found = _search(sums, start.family, intercept), start
    if len(start.mean) < centres:
        theta = start.adapt(tasks).theta
        points = theta.reshape(len(tasks), -1)
        means, _, value = kmeans(points, centres)
        # What lies between centres is not spread around them.
        left = np.clip(value / max(points.var(axis=0).sum(), 1e-300), 0.1, 1.0)
        means = means.reshape(centres, *theta.shape[1:])
        shares = np.full(centres, 1 / centres)
        found = replace(start, mean=means, covariance=left * start.covariance, shares=shares)
    for _ in range(steps):
        each = found.gaussians
        told = sums(each, found.shares)
        after = mm_step(told, each, search)
        mean = np.stack([g.mean for g in after]).reshape(found.mean.shape)
        moved = float(np.abs(mean - found.mean).max())
        if not np.isfinite(moved):
            break
        end = cap_variances(after[0], search.largest_variance)
        parts = {"covariance": end.covariance, "noise": end.noise}
        shares = np.array([one.tasks for one in told[:: len(each) // centres]]) / len(tasks)
        found = replace(found, mean=mean, shares=shares, **parts)
        if moved < TOLERANCE:
            break
    end = shrink_correlations(found.gaussian(0, 0), search.family, float(sums.width))
    return replace(found, covariance=end.covariance, tasks=len(tasks))
