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
from typing import NamedTuple

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.prior.gaussian import Gaussian, members_of
from fmrl.core.prior.marginal import posterior_shares
from fmrl.core.prior.padding import pieces, stacks
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
    members: Sequence[Mixture], weights: Sequence[float], tasks: Tasks, spread: bool
) -> Posterior:
    """The weighted average of the parameters that members have of some tasks.

    Args:
        members: Some.
        weights: One for each member; those without weight are left out.
        tasks: In the coordinates of the members.
        spread: Whether covariances are wanted too.
    """
    used = {m: weight for m, weight in zip(members, weights, strict=True) if weight}
    parts = [_adapt_group(group, used, tasks, spread) for group in _groups(tuple(used), len(tasks))]
    if len(parts) == 1:
        return average_posteriors(*parts[0])
    share, theta, wide = zip(*parts, strict=True)
    if any(s.ndim == 2 for s in share):  # some members have several centres, and others one
        share = [s if s.ndim == 2 else np.tile(s[:, None], len(tasks)) for s in share]
    return average_posteriors(
        np.concatenate(share), np.concatenate(theta), np.concatenate(wide) if spread else None
    )


def average_posteriors(share: np.ndarray, theta: np.ndarray, wide: np.ndarray | None) -> Posterior:
    """Parameters averaged; covariances with their disagreement.

    Args:
        share: How much each counts, [P] or for each task [P, T].
        theta: [P, T, outputs, width].
        wide: Covariances, [P, T, outputs, width, width].
    """
    if len(share) == 1:
        return Posterior(theta[0], None if wide is None else wide[0])
    mean = _weighted_sum(share, theta)
    if wide is None:
        return Posterior(mean, None)
    off = (theta - mean).transpose(1, 2, 3, 0)  # [T, outputs, width, P]
    heavy = off * (share if share.ndim == 1 else share.T[:, None, None])
    return Posterior(mean, _weighted_sum(share, wide) + heavy @ off.swapaxes(-1, -2))


def _weighted_sum(share: np.ndarray, each: np.ndarray) -> np.ndarray:
    """Σ share·each."""
    if share.ndim == 2:
        return np.einsum("pt,pt...->t...", share, each)
    return (share @ each.reshape(len(each), -1)).reshape(each.shape[1:])


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
    said = {}
    for group in _groups(tuple(members), len(tasks)):
        batch = _side_by_side(group)
        P, K = batch.mean.shape[:2]
        z, v = np.empty((2, P, len(tasks), K, X.shape[1]))
        likely = np.zeros((P, len(tasks)))
        for part, rows in pieces(tasks, P * K * (1 + X.shape[1] // max(1, X.shape[2]))):
            found = BatchedPosterior(batch, rows, tasks.loss)
            z[:, part] = found.theta() @ X[part].swapaxes(-1, -2)
            v[:, part] = found.variance(X[part])
            if len(group) < P:
                likely[:, part] = found.evidence()
        for member, own in _places(group):
            part = posterior_shares(likely[own], member.shares)[..., None, None]
            mean = (part * z[own]).sum(axis=0)
            wide = (part * (v[own] + (z[own] - mean) ** 2)).sum(axis=0)
            said[member] = mean.swapaxes(-1, -2), wide.swapaxes(-1, -2)
    z, v = zip(*(said[m] for m in members), strict=True)
    return np.stack(z), np.stack(v)


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


def _adapt_group(
    members: tuple[Mixture, ...], weights: dict[Mixture, float], tasks: Tasks, spread: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """What `average_posteriors` takes, with parameters for every member and centre: a task's rows
    say to which it belongs.
    """
    batch = _side_by_side(members)
    P, (K, w) = len(batch.noise), batch.mean.shape[1:]
    centred = len(members) < P
    share = np.array([weights[m] for m in members])
    if len(tasks) == 1 and not centred:
        ((_, rows),) = stacks(tasks)
        found = BatchedPosterior(batch, rows, tasks.loss)
        return share, found.theta(), found.spread() if spread else None
    theta = np.empty((P, len(tasks), K, w))
    wide = np.empty((P, len(tasks), K, w, w)) if spread else None
    likely = np.empty((P, len(tasks)))
    for part, rows in stacks(tasks):
        found = BatchedPosterior(batch, rows, tasks.loss)
        theta[:, part] = found.theta()
        if wide is not None:
            wide[:, part] = found.spread()
        if centred:
            likely[:, part] = found.evidence()
    if centred:
        each = [weights[m] * posterior_shares(likely[own], m.shares) for m, own in _places(members)]
        share = np.concatenate(each)
    return share, theta, wide


@lru_cache(maxsize=8)  # a prior has a handful of choices, and members do not change
def _side_by_side(members: tuple[Mixture, ...]) -> Members:
    outputs = members[0].mean.shape[1]
    return members_of([g for m in members for g in m.gaussians], outputs)
