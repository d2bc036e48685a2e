"""The population of tasks: their models as draws from Gaussians whose mean, covariance and noise
are estimated across tasks, and what the rows of one task then say.

Tasks with k > 1 outputs (one-vs-all) are k binary tasks each: every output has its own mean, and
all share one covariance. Several centres are a mixture of such Gaussians; a task's rows say to
which it belongs. Everything here is in coordinates where columns have deviation 1 and the
intercept, if there is one, is the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from fmrl.core.ensemble import kmeans
from fmrl.core.losses import Logistic, Squared
from fmrl.core.marginal import check_family, climb, first_guess, nothing, shrunk
from fmrl.core.prior import Gaussian
from fmrl.core.tasks import Tasks
from fmrl.core.working import Moments, Warm, moments, solved, stacked
from fmrl.estimators.solving import Posterior
from fmrl.estimators.solving import solved as all_at_once

STEPS, TOLERANCE = 40, 1e-2  # of an estimate: variances to a per cent
MIXING = 20  # steps between centres
FAR = 10.0  # deviation of coefficients between tasks, at most
LEAST = 1e-8  # noise of a regression, at least: rows can be fitted exactly, and y has variance 1
WIDE = 2.5  # deviation of a class's coefficients before anything is known; 1 in a regression
FULL, RANK = 48, 8  # columns at most with all correlations; beyond, so many directions
MANY = 128  # columns beyond which all differ alike


@dataclass(frozen=True, eq=False)
class Population:
    """N(mean, covariance) of tasks around one or more centres.

    Args:
        family: In which ways tasks differ, one of `families`.
        mean: [centres, outputs, width].
        covariance: [width, width] of tasks around their centre.
        noise: s² of a regression, 1 for classes.
        shares: How common each centre is, [centres].
        tasks: How many it was learned from.
    """

    family: str
    mean: np.ndarray
    covariance: np.ndarray
    noise: float
    shares: np.ndarray
    tasks: int

    def gaussian(self, centre: int, output: int) -> Gaussian:
        """Of one output around one centre."""
        return Gaussian(self.mean[centre, output], self.covariance, self.noise, self.tasks)

    def middle(self, count: int = 1) -> Posterior:
        """What is known of ``count`` tasks without rows."""
        theta = np.einsum("c,ckw->kw", self.shares, self.mean)
        off = self.mean - theta
        spread = self.covariance + np.einsum("c,ckv,ckw->kvw", self.shares, off, off)
        return Posterior(np.tile(theta, (count, 1, 1)), np.tile(spread, (count, 1, 1, 1)))

    def adapt(self, tasks: Tasks, spread: bool = False) -> Posterior:
        """The models of tasks from their rows: posterior means, or modes for classes.

        Args:
            tasks: In these coordinates.
            spread: Whether their covariances are wanted too.
        """
        (found,) = all_at_once((self,), (1.0,), tasks, spread)
        assert found is not None
        return found

    def without_mean(self, intercept: bool) -> Population:
        """Slopes around 0: what was their mean is one more direction in which they differ."""
        mean = self.mean.copy()
        mean[..., : mean.shape[-1] - intercept] = 0.0
        off = (self.mean - mean).reshape(-1, mean.shape[-1])
        covariance = self.covariance + off.T @ off / len(off)
        return replace(self, family=f"apart {self.family}", mean=mean, covariance=covariance)

    def placed(self, columns: np.ndarray, width: int) -> Population:
        """The same among more columns, which it does not use."""
        mean = np.zeros((*self.mean.shape[:-1], width))
        covariance = np.zeros((width, width))
        mean[..., columns] = self.mean
        covariance[np.ix_(columns, columns)] = self.covariance
        return replace(self, mean=mean, covariance=covariance)


def by_output(tasks: Tasks) -> Iterator[Tasks]:
    """Tasks with one output, as they are; one-vs-all as a binary task for every class."""
    if tasks.loss.outputs == 1:
        yield tasks
        return
    for k in range(tasks.loss.outputs):
        yield replace(tasks, loss=Logistic(), target=tasks.target[:, k : k + 1])


def families(width: int, intercept: bool) -> dict[str, Any]:
    """In which ways tasks may differ, the plainest first.

    none: not at all. intercept: by a constant. alike: by a constant, and in every column by the
    same deviation. columns: in every column by its own. full: in any direction; with many columns
    in a few directions of their own and by one deviation in the rest. The last two only up to
    ``MANY`` columns.
    """
    slopes = width - intercept
    found: dict[str, Any] = {"none": (-1,) * width}
    if intercept:
        found["intercept"] = (-1,) * slopes + (0,)
    if slopes:
        found["alike"] = (0,) * slopes + (1,) * intercept
    if 1 < slopes <= MANY:
        found["columns"] = tuple(range(width))
    if 1 < width <= MANY:
        found["full"] = "full" if width <= FULL else RANK
    return found


def estimate(
    tasks: Tasks, family: str, intercept: bool, start: Population | None = None,
    tolerance: float = TOLERANCE,
) -> Population:  # fmt: skip
    """The population of some tasks around one centre, by marginal likelihood.

    Args:
        tasks: In coordinates of deviation 1.
        family: One of `families`.
        intercept: Whether the last column is one.
        start: What a plainer family found, from which to go on.
        tolerance: Of the relative change of variances in a step, with which it ends.
    """
    views, width = [stacked(view) for view in by_output(tasks)], tasks.X.shape[1]
    options, fixed = _options(tasks, family, intercept)
    kind = options["family"]
    if start is not None and start.family in ("alike", "columns", "full"):
        first = [Gaussian(mean, start.covariance, start.noise) for mean in start.mean[0]]
    else:
        one_output = next(by_output(tasks))
        told = moments(views[0], nothing(one_output, None))
        guess = first_guess(one_output, told, kind, few=True)
        guess = replace(guess, covariance=guess.covariance * ~(fixed[:, None] | fixed))
        first = [guess] * len(views)
        if start is not None:
            wide = guess.covariance * start.noise
            if start.family == "intercept":
                wide = np.where(start.covariance > 0, start.covariance, wide)
            first = [Gaussian(mean, wide, start.noise) for mean in start.mean[0]]
    warm = [Warm() for _ in views]

    def sums(found: list[Gaussian]) -> list[Moments]:
        return [moments(v, g, None, w) for v, g, w in zip(views, found, warm, strict=True)]

    found = climb(sums, first, STEPS, tolerance, **options)
    end = shrunk(found[0], kind, float(width))
    mean = np.stack([g.mean for g in found])[None]
    return Population(family, mean, end.covariance, end.noise, np.ones(1), len(tasks))


def _options(tasks: Tasks, family: str, intercept: bool) -> tuple[dict[str, Any], np.ndarray]:
    """How `climb` is to go, and which columns all tasks share."""
    width = tasks.X.shape[1]
    kind, fixed = check_family(families(width, intercept)[family], width), constant(tasks)
    if isinstance(kind, tuple):
        kind = tuple(-1 if still else label for still, label in zip(fixed, kind, strict=True))
    learns = isinstance(tasks.loss, Squared)
    how = {"family": kind, "learns": learns, "bold": True, "most": FAR**2, "least": LEAST}
    return how | {"ridge": 1.0 if learns else WIDE**-2}, fixed


def constant(tasks: Tasks) -> np.ndarray:
    """Which columns have one value within every task, [width]: no task says how their slope differs
    from the others'. Not the intercept's.
    """
    starts, lengths = tasks.starts[:-1], tasks.lengths[:, None]
    mean = np.add.reduceat(tasks.X, starts, axis=0) / lengths
    within = ((tasks.X - np.repeat(mean, tasks.lengths, axis=0)) ** 2).sum(axis=0)
    total = ((tasks.X - tasks.X.mean(axis=0)) ** 2).sum(axis=0)
    return (within <= 1e-9 * total) & (total > 0)


def around(
    one: Population, tasks: Tasks, intercept: bool, centres: int, start: Population | None = None
) -> Population:
    """The population around several centres, by expectation and maximisation from k-means of the
    tasks' models.

    Args:
        one: The population around one centre.
        tasks: Of which it was learned.
        intercept: Whether the last column is one.
        centres: How many.
        start: What a plainer family found around as many, from which to go on.
    """
    views, width = [stacked(view) for view in by_output(tasks)], tasks.X.shape[1]
    options, _ = _options(tasks, one.family, intercept)
    if start is None:
        theta = one.adapt(tasks).theta
        points = theta.reshape(len(tasks), -1)
        means, _, value = kmeans(points, centres)
        # What lies between centres is not spread around them.
        left = np.clip(value / max(points.var(axis=0).sum(), 1e-300), 0.1, 1.0)
        means = means.reshape(centres, *theta.shape[1:])
        shares = np.full(centres, 1 / centres)
        found = replace(one, mean=means, covariance=left * one.covariance, shares=shares)
    else:
        found = replace(start, family=one.family)
    places = [(c, k) for c in range(centres) for k in range(len(views))]
    warm = {place: Warm() for place in places}
    for _ in range(MIXING):
        each = [found.gaussian(c, k) for c, k in places]
        stacks = [solved(views[k], g, warm[c, k]) for (c, k), g in zip(places, each, strict=True)]
        likely = np.zeros((centres, len(tasks)))
        for (c, _k), some in zip(places, stacks, strict=True):
            for one_stack in some:
                likely[c, one_stack.part] += one_stack.fitted().evidence
        share = _softmax(likely + np.log(np.maximum(found.shares, 1e-300))[:, None])
        told = [
            reduce(add, (one_stack.moments(share[c]) for one_stack in some))
            for (c, _k), some in zip(places, stacks, strict=True)
        ]
        each = climb(lambda _, told=told: told, each, 1, TOLERANCE, **options)
        mean = np.stack([g.mean for g in each]).reshape(found.mean.shape)
        moved = float(np.abs(mean - found.mean).max())
        parts = {"covariance": each[0].covariance, "noise": each[0].noise}
        found = replace(found, mean=mean, shares=share.mean(axis=1), **parts)
        if moved < TOLERANCE:
            break
    end = shrunk(found.gaussian(0, 0), options["family"], float(width))
    return replace(found, covariance=end.covariance)


def _softmax(a: np.ndarray) -> np.ndarray:
    """Over the first axis."""
    e = np.exp(a - a.max(axis=0))
    return e / e.sum(axis=0)
