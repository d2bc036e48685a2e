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
from fmrl.core.families import check_family
from fmrl.core.losses import Logistic, Squared
from fmrl.core.marginal import climb, first_guess, shrunk
from fmrl.core.posterior import Moments, root_of
from fmrl.core.prior import Gaussian
from fmrl.core.tasks import Tasks
from fmrl.estimators.side_by_side import pieces, shortened
from fmrl.estimators.solving import Posterior
from fmrl.estimators.solving import solved as all_at_once
from fmrl.estimators.stack import Members, Stack

STEPS, TOLERANCE = 40, 1e-2  # of an estimate: variances to a per cent
FEW = 12  # steps of all correlations of classes, at most: what more would find is noise
CLOSE = 0.03  # the last step of a task on the way: what is left is about its square
MIXING = 20  # steps between centres
FAR = 10.0  # deviation of coefficients between tasks, at most
LEAST = 1e-8  # noise of a regression, at least: rows can be fitted exactly, and y has variance 1
WIDE = 2.5  # deviation of a class's coefficients before anything is known; 1 in a regression
STRIDE = 2.0  # of a class's mean in a step of its estimate, at most
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
        """The models of tasks from their rows: posterior means; of classes, means of the Gaussians
        nearest to the posteriors.

        Args:
            tasks: In these coordinates.
            spread: Whether their covariances are wanted too.
        """
        return all_at_once((self,), (1.0,), tasks, spread)

    def without_mean(self, intercept: bool) -> Population:
        """Slopes around 0: what was their mean is one more direction in which they differ."""
        mean = self.mean.copy()
        mean[..., : mean.shape[-1] - intercept] = 0.0
        off = (self.mean - mean).reshape(-1, mean.shape[-1])
        covariance = self.covariance + off.T @ off / len(off)
        return replace(self, family=f"apart {self.family}", mean=mean, covariance=covariance)

    def among(self, columns: np.ndarray) -> Population:
        """The same without the other columns, which it does not use: `placed` taken back."""
        few = self.covariance[np.ix_(columns, columns)]
        return replace(self, mean=self.mean[..., columns], covariance=few)

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


class Sums:
    """What some tasks say about Gaussians that share covariance and noise: `Moments`, at models
    that are remembered from one time to the next.
    """

    def __init__(self, tasks: Tasks):
        self.squared, self.mass = isinstance(tasks.loss, Squared), tasks.mass
        self.fixed = constant(tasks)
        self.parts = list(pieces(shortened(tasks), tasks.loss.outputs))
        self.at: dict[tuple[int, int], Any] = {}  # by the stack, and by what p is

    def __call__(self, found: list[Gaussian], centres: int = 1) -> list[Moments]:
        """Their sums under Gaussians [centres · outputs].

        Args:
            found: The Gaussians.
            centres: How many of them every output has.
        """
        told = (one.moments(self.mass[part]) for part, one in self.solved(found, centres))
        return [reduce(add, some) for some in zip(*told, strict=True)]

    def solved(self, found: list[Gaussian], centres: int = 1) -> list[tuple[Any, Stack]]:
        """The tasks at their models, stack by stack."""
        mean = np.stack([g.mean for g in found]).reshape(centres, -1, len(found[0].mean))
        R, noise = root_of(found[0]), np.full(centres, found[0].noise)
        H = found[0].covariance / found[0].noise
        R = R if R.shape[1] else np.zeros((len(H), 1))
        members = Members(mean, *(np.stack([a] * centres) for a in (H, R)), noise)
        done = []
        for i, (part, *rows) in enumerate(self.parts):
            key = i, R.shape[1] if R.shape[1] <= rows[0].shape[1] else 0
            last = self.at.get(key) if R.any() else None
            one = Stack(members, *rows, self.squared, last, CLOSE)
            if not (self.squared or one.alike):
                self.at[key] = one.at
            done.append((part, one))
        return done


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
    sums: Sums | None = None, tolerance: float = TOLERANCE, free: int = 0,
) -> Population:  # fmt: skip
    """The population of some tasks around one centre, by marginal likelihood.

    Args:
        tasks: In coordinates of deviation 1.
        family: One of `families`.
        intercept: Whether the last column is one.
        start: What a plainer family found, from which to go on.
        sums: Of the same tasks, if they were stacked before.
        tolerance: Of the relative change of variances in a step, with which it ends.
        free: How many columns before the intercept answer for themselves: their mean is not drawn
            to 0 with the others'.
    """
    sums, width = sums or Sums(tasks), tasks.X.shape[1]
    sums.at.clear()  # under another family tasks may be more than a step away
    options, fixed = _options(tasks, family, intercept, sums.fixed), sums.fixed
    kind = options["family"]
    if start is not None and start.family in ("alike", "columns", "full"):
        first = [Gaussian(mean, start.covariance, start.noise) for mean in start.mean[0]]
    else:
        guess = first_guess(next(by_output(tasks)), _first(tasks), kind, few=True)
        guess = replace(guess, covariance=guess.covariance * ~(fixed[:, None] | fixed))
        first = [guess] * tasks.loss.outputs
        if start is not None:
            wide = guess.covariance * start.noise
            if start.family == "intercept":
                wide = np.where(start.covariance > 0, start.covariance, wide)
            first = [Gaussian(mean, wide, start.noise) for mean in start.mean[0]]
    steps = STEPS if sums.squared or family != "full" else FEW
    options["drawn"] = np.arange(width) < width - intercept - free
    with np.errstate(invalid="ignore"):  # of a direction of which rows say nothing
        found = climb(sums, first, steps, tolerance, **options)
    end = shrunk(found[0], kind, float(width))
    mean = np.stack([g.mean for g in found])[None]
    return Population(family, mean, end.covariance, end.noise, np.ones(1), len(tasks))


def _first(tasks: Tasks) -> Moments:
    """What one output of tasks says before anything is known: how long their columns are."""
    mass, heavy = tasks.mass, tasks.X if tasks.weight is None else tasks.X.T * tasks.weight
    length = np.einsum("nw,nw->w", tasks.X, heavy if tasks.weight is None else heavy.T)
    none = np.zeros(0)
    return Moments(float(len(mass)), float(mass.sum()), none,
                   np.diag(tasks.loss.bend * length), none, none, 0.0)  # fmt: skip


def _options(tasks: Tasks, family: str, intercept: bool, fixed: np.ndarray) -> dict[str, Any]:
    """How `climb` is to go."""
    width = tasks.X.shape[1]
    kind = check_family(families(width, intercept)[family], width)
    if isinstance(kind, tuple):
        kind = tuple(-1 if still else label for still, label in zip(fixed, kind, strict=True))
    learns = isinstance(tasks.loss, Squared)
    how = {"family": kind, "learns": learns, "bold": True, "most": FAR**2, "least": LEAST}
    return how | ({"ridge": 1.0} if learns else {"ridge": WIDE**-2, "stride": STRIDE})


def constant(tasks: Tasks) -> np.ndarray:
    """Which columns have one value within every task, [width]: no task says how their slope differs
    from the others'. Not the intercept's; one that is 0 everywhere is a column without a value.
    """
    starts, lengths = tasks.starts[:-1], tasks.lengths[:, None]
    mean = np.add.reduceat(tasks.X, starts, axis=0) / lengths
    within = ((tasks.X - np.repeat(mean, tasks.lengths, axis=0)) ** 2).sum(axis=0)
    total = ((tasks.X - tasks.X.mean(axis=0)) ** 2).sum(axis=0)
    return (within <= 1e-9 * total) & ((total > 0) | ~tasks.X.any(axis=0))


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
    sums, width, outputs = Sums(tasks), tasks.X.shape[1], range(tasks.loss.outputs)
    options = _options(tasks, one.family, intercept, sums.fixed)
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
    for _ in range(MIXING):
        each = [found.gaussian(c, k) for c in range(centres) for k in outputs]
        at, likely = sums.solved(each, centres), np.empty((centres, len(tasks)))
        for part, one_stack in at:
            likely[:, part] = one_stack.likely()
        share = _softmax(likely + np.log(np.maximum(found.shares, 1e-300))[:, None])
        parts = (one_stack.moments(sums.mass[part], share[:, part]) for part, one_stack in at)
        told = [reduce(add, some) for some in zip(*parts, strict=True)]
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
