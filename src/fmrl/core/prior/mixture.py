"""Mixtures of Gaussians over tasks, and what the rows of a task then say.

A `Mixture` is one family of tasks around one or more centres, which share covariance and noise; a
task's rows say to which centre it belongs. Several mixtures (members) are averaged with given
weights, or with weights that a task's rows change. Tasks with K > 1 outputs (one-vs-all) are K
binary tasks each: every output has its own mean, and all share one covariance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.prior.gaussian import Gaussian, members_of
from fmrl.core.prior.marginal import posterior_shares
from fmrl.core.prior.padding import pieces
from fmrl.core.prior.posterior import BatchedPosterior, Members
from fmrl.core.prior.small_inverses import MANY
from fmrl.core.tasks import Tasks

ZERO_MEAN = "apart "  # begins the names of families whose slopes lie around 0


class Posterior(NamedTuple):
    """Parameters of some tasks."""

    theta: np.ndarray  # [T, outputs, width]
    spread: np.ndarray | None  # [T, outputs, width, width] their covariance, if it was asked for


@dataclass(frozen=True, eq=False)
class Mixture:
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
        """The Gaussian of one output around one centre."""
        return Gaussian(self.mean[centre, output], self.covariance, self.noise, self.tasks)

    @property
    def gaussians(self) -> list[Gaussian]:
        """Those of every centre and output, [centres · outputs]."""
        centres, outputs = self.mean.shape[:2]
        return [self.gaussian(c, k) for c in range(centres) for k in range(outputs)]

    def middle(self, count: int = 1) -> Posterior:
        """What is known of ``count`` tasks without rows."""
        theta = np.einsum("c,ckw->kw", self.shares, self.mean)
        off = self.mean - theta
        spread = self.covariance + np.einsum("c,ckv,ckw->kvw", self.shares, off, off)
        return Posterior(np.tile(theta, (count, 1, 1)), np.tile(spread, (count, 1, 1, 1)))

    def adapt(self, tasks: Tasks, spread: bool = False) -> Posterior:
        """The parameters of tasks from their rows: posterior means; of classes, means of the
        Gaussians nearest to the posteriors.

        Args:
            tasks: In the coordinates of the mixture.
            spread: Whether their covariances are wanted too.
        """
        return adapt_members((self,), (1.0,), tasks, spread)

    def zero_mean(self, intercept: bool) -> Mixture:
        """Slopes around 0: what was their mean is one more direction in which they differ.

        Args:
            intercept: Whether the last column is one, whose mean stays.
        """
        mean = self.mean.copy()
        mean[..., : mean.shape[-1] - intercept] = 0.0
        off = (self.mean - mean).reshape(-1, mean.shape[-1])
        covariance = self.covariance + off.T @ off / len(off)
        return replace(self, family=ZERO_MEAN + self.family, mean=mean, covariance=covariance)

    def select(self, columns: np.ndarray) -> Mixture:
        """The same without the other columns, which it does not use: `embed` taken back.

        Args:
            columns: Which columns are kept.
        """
        few = self.covariance[np.ix_(columns, columns)]
        return replace(self, mean=self.mean[..., columns], covariance=few)

    def embed(self, columns: np.ndarray, width: int) -> Mixture:
        """The same among more columns, which it does not use.

        Args:
            columns: Where its own columns come to be.
            width: How many there are then.
        """
        mean = np.zeros((*self.mean.shape[:-1], width))
        covariance = np.zeros((width, width))
        mean[..., columns] = self.mean
        covariance[np.ix_(columns, columns)] = self.covariance
        return replace(self, mean=mean, covariance=covariance)


def adapt_members(
    members: Sequence[Mixture], weights: Any, tasks: Tasks, spread: bool
) -> Posterior:
    """The weighted average of the parameters that members have of some tasks.

    Args:
        members: Some.
        weights: Of each member, for all tasks [M] or for each [M, T]; those without are left out.
        tasks: In the coordinates of the members.
        spread: Whether covariances are wanted too.
    """
    pairs = zip(members, weights, strict=True)
    used = {m: w for m, w in pairs if np.count_nonzero(w) or not len(tasks)}
    groups = [(group, _side_by_side(group)) for group in _groups(tuple(used), len(tasks))]
    K, w = groups[0][1].mean.shape[1:]
    theta = np.empty((len(tasks), K, w))
    wide = np.empty((len(tasks), K, w, w)) if spread else None
    for part, rows in pieces(tasks, K * sum(len(batch.noise) for _, batch in groups)):
        found = [BatchedPosterior(batch, rows, tasks.loss) for _, batch in groups]
        own = {m: w[part] for m, w in used.items()} if np.ndim(weights[0]) else used
        share = [_shares(one, group, own) for one, (group, _) in zip(found, groups, strict=True)]
        spreads = _joined([one.spread() for one in found]) if spread else None
        one = average_posteriors(_joined(share), _joined([one.theta() for one in found]), spreads)
        if len(tasks) == 1:
            return one
        theta[part] = one.theta
        if wide is not None:
            wide[part] = one.spread
    return Posterior(theta, wide)


def average_posteriors(share: np.ndarray, theta: np.ndarray, wide: np.ndarray | None) -> Posterior:
    """Parameters averaged; covariances with their disagreement.

    Args:
        share: How much each counts for each task, [P, T], or for all, [P, 1].
        theta: [P, T, outputs, width].
        wide: Covariances, [P, T, outputs, width, width].
    """
    heavy = share[..., None, None]
    mean = (heavy * theta).sum(axis=0)
    if wide is None:
        return Posterior(mean, None)
    off = theta - mean
    apart = (heavy * off).transpose(1, 2, 3, 0) @ off.transpose(1, 2, 0, 3)
    return Posterior(mean, (heavy[..., None] * wide).sum(axis=0) + apart)


def predict_margins(
    members: Sequence[Mixture], tasks: Tasks, X: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Margins that members give to other rows of some tasks, and their variances, [members, T, H,
    K].

    Args:
        members: Some.
        tasks: Those of which each knows the rows.
        X: The others, [T, H, w].
    """
    place, K = {m: i for i, m in enumerate(members)}, members[0].mean.shape[1]
    z, v = np.empty((2, len(members), len(tasks), K, X.shape[1]))
    for group in _groups(tuple(members), len(tasks)):
        batch = _side_by_side(group)
        times = len(batch.noise) * K * (1 + X.shape[1] // max(1, X.shape[2]))
        for part, rows in pieces(tasks, times):
            found = BatchedPosterior(batch, rows, tasks.loss)
            near, wide = found.theta() @ X[part].swapaxes(-1, -2), found.variance(X[part])
            shares = _shares(found, group, dict.fromkeys(group, 1.0))[..., None, None]
            for m, own in _places(group):
                mean = (shares[own] * near[own]).sum(axis=0)
                z[place[m], part] = mean
                v[place[m], part] = (shares[own] * (wide[own] + (near[own] - mean) ** 2)).sum(
                    axis=0
                )
    return z.swapaxes(-1, -2), v.swapaxes(-1, -2)


def log_evidence(member: Mixture, tasks: Tasks) -> np.ndarray:
    """Log marginal likelihood of the rows of each task around each centre, of classes a lower
    bound; [centres, T].

    Args:
        member: A mixture.
        tasks: In its coordinates.
    """
    batch = _side_by_side((member,))
    found = np.empty((len(member.mean), len(tasks)))
    for part, rows in pieces(tasks, batch.mean[..., 0].size):
        found[:, part] = BatchedPosterior(batch, rows, tasks.loss).evidence()
    squared = isinstance(tasks.loss, Squared)
    return found - squared * tasks.mass * math.log(2 * math.pi * member.noise) / 2


def _groups(members: tuple[Mixture, ...], tasks: int) -> list[tuple[Mixture, ...]]:
    """Members to be solved together: of many tasks, those with one direction at most need less
    work.
    """
    if tasks < MANY:
        return [members]
    plain = tuple(m for m in members if np.count_nonzero(m.covariance.diagonal()) <= 1)
    return [g for g in (plain, tuple(m for m in members if m not in plain)) if g]


def _places(members: Sequence[Mixture]) -> list[tuple[Mixture, slice]]:
    """Each member with where its centres are among those of all."""
    ends = np.cumsum([len(m.mean) for m in members]).tolist()
    return [(m, slice(end - len(m.mean), end)) for m, end in zip(members, ends, strict=True)]


def _shares(
    found: BatchedPosterior, group: Sequence[Mixture], weights: dict[Mixture, Any]
) -> np.ndarray:
    """How much each centre of each member counts for each task, [P, B] or for all [P, 1]: a task's
    rows say to which centre it belongs.
    """
    if len(group) == len(found.members.noise):
        return np.array([weights[m] for m in group]).reshape(len(group), -1)
    likely = found.evidence()
    each = [weights[m] * posterior_shares(likely[own], m.shares) for m, own in _places(group)]
    return np.concatenate(each)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Arrays one after another; those that are the same for all tasks are repeated for each."""
    if len(parts) == 1:
        return parts[0]
    tasks = max(part.shape[1] for part in parts)
    return np.concatenate([np.repeat(p, tasks // p.shape[1], axis=1) for p in parts])


@lru_cache(maxsize=8)  # a prior has a handful of choices, and members do not change
def _side_by_side(members: tuple[Mixture, ...]) -> Members:
    outputs = members[0].mean.shape[1]
    return members_of([g for m in members for g in m.gaussians], outputs)
