"""The models of tasks under all members of a prior at once, in plain NumPy.

For a squared loss this is the MAP of `core.posterior` (a test holds them together) without the cost
of going through the members, outputs and centres one after another: a service asks for one task at
a time, or for thousands with a few rows each. Classes are solved at the mean of the nearest
Gaussian instead (`stack`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.posterior import root_of
from fmrl.core.tasks import Tasks
from fmrl.estimators.side_by_side import pieces, stacks
from fmrl.estimators.stack import Members, Stack
from fmrl.estimators.systems import MANY

if TYPE_CHECKING:
    from fmrl.estimators.population import Population


class Posterior(NamedTuple):
    """Models of some tasks."""

    theta: np.ndarray  # [T, outputs, width]
    spread: np.ndarray | None  # [T, outputs, width, width] their covariance, if it was asked for


def solved(
    members: Sequence[Population], weights: Sequence[float], tasks: Tasks, spread: bool
) -> Posterior:
    """The weighted average of the models that members have of some tasks."""
    used = {m: weight for m, weight in zip(members, weights, strict=True) if weight}
    parts = [_solved(group, used, tasks, spread) for group in _groups(tuple(used), len(tasks))]
    if len(parts) == 1:
        return averaged(*parts[0])
    share, theta, wide = zip(*parts, strict=True)
    if any(s.ndim == 2 for s in share):  # some members have several centres, and others one
        share = [s if s.ndim == 2 else np.tile(s[:, None], len(tasks)) for s in share]
    return averaged(
        np.concatenate(share), np.concatenate(theta), np.concatenate(wide) if spread else None
    )


def averaged(share: np.ndarray, theta: np.ndarray, wide: np.ndarray | None) -> Posterior:
    """Models averaged; covariances with their disagreement.

    Args:
        share: How much each counts, [P] or for each task [P, T].
        theta: [P, T, outputs, width].
        wide: Covariances, [P, T, outputs, width, width].
    """
    if len(share) == 1:
        return Posterior(theta[0], None if wide is None else wide[0])
    mean = _weighed(share, theta)
    if wide is None:
        return Posterior(mean, None)
    off = (theta - mean).transpose(1, 2, 3, 0)  # [T, outputs, width, P]
    heavy = off * (share if share.ndim == 1 else share.T[:, None, None])
    return Posterior(mean, _weighed(share, wide) + heavy @ off.swapaxes(-1, -2))


def _weighed(share: np.ndarray, each: np.ndarray) -> np.ndarray:
    """Σ share·each."""
    if share.ndim == 2:
        return np.einsum("pt,pt...->t...", share, each)
    return (share @ each.reshape(len(each), -1)).reshape(each.shape[1:])


def asked(
    members: Sequence[Population], tasks: Tasks, X: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Margins that members give to other rows of some tasks, and their variances, [members, T, H,
    K].

    Args:
        members: Some.
        tasks: Those of which each knows the rows.
        X: The others, [T, H, w].
    """
    squared, said = isinstance(tasks.loss, Squared), {}
    for group in _groups(tuple(members), len(tasks)):
        beside = _beside(group)
        P, K = beside.mean.shape[:2]
        z, v = np.empty((2, P, len(tasks), K, X.shape[1]))
        share = np.zeros((P, len(tasks)))
        for part, *rows in pieces(tasks, P * K * (1 + X.shape[1] // max(1, X.shape[2]))):
            found = Stack(beside, *rows, squared)
            z[:, part] = found.theta() @ X[part].swapaxes(-1, -2)
            v[:, part] = found.variance(X[part])
            if len(group) < P:
                share[:, part] = found.likely()
        first = 0
        for member in group:
            own = slice(first, first := first + len(member.mean))
            part = _shares(member, share[own])[..., None, None]
            mean = (part * z[own]).sum(axis=0)
            wide = (part * (v[own] + (z[own] - mean) ** 2)).sum(axis=0)
            said[member] = mean.swapaxes(-1, -2), wide.swapaxes(-1, -2)
    z, v = zip(*(said[m] for m in members), strict=True)
    return np.stack(z), np.stack(v)


def evidence(member: Population, tasks: Tasks) -> np.ndarray:
    """Log-likelihood of the rows of each task around each centre without its parameters, of classes
    a lower bound; [centres, T].
    """
    beside, squared = _beside((member,)), isinstance(tasks.loss, Squared)
    found = np.empty((len(member.mean), len(tasks)))
    for part, *rows in pieces(tasks, beside.mean[..., 0].size):
        found[:, part] = Stack(beside, *rows, squared).likely()
    return found - squared * tasks.mass * math.log(2 * math.pi * member.noise) / 2


def _groups(members: tuple[Population, ...], tasks: int) -> list[tuple[Population, ...]]:
    """Members to be solved together: of many tasks, those with one direction at most need less
    work.
    """
    if tasks < MANY:
        return [members]
    plain = tuple(m for m in members if np.count_nonzero(m.covariance.diagonal()) <= 1)
    return [g for g in (plain, tuple(m for m in members if m not in plain)) if g]


def _shares(member: Population, likely: np.ndarray) -> np.ndarray:
    """How much each centre counts for each task, [centres, T]."""
    if len(member.mean) == 1:
        return np.ones_like(likely)
    share = likely + np.log(np.maximum(member.shares, 1e-300))[:, None]
    share = np.exp(share - share.max(axis=0))
    return share / share.sum(axis=0)


def _solved(
    members: tuple[Population, ...], weights: dict[Population, float], tasks: Tasks, spread: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """What `averaged` takes, with a model for every member and centre: a task's rows say to which
    it belongs.
    """
    beside = _beside(members)
    P, (K, w) = len(beside.noise), beside.mean.shape[1:]
    squared, centred = isinstance(tasks.loss, Squared), len(members) < P
    share = np.array([weights[m] for m in members])
    if len(tasks) == 1 and not centred:
        (found,) = (Stack(beside, *rows, squared) for _, *rows in stacks(tasks))
        return share, found.theta(), found.spread() if spread else None
    theta = np.empty((P, len(tasks), K, w))
    wide = np.empty((P, len(tasks), K, w, w)) if spread else None
    likely = np.empty((P, len(tasks)))
    for part, *rows in stacks(tasks):
        found = Stack(beside, *rows, squared)
        theta[:, part] = found.theta()
        if wide is not None:
            wide[:, part] = found.spread()
        if centred:
            likely[:, part] = found.likely()
    if centred:
        first, each = 0, []
        for member in members:
            own = slice(first, first := first + len(member.mean))
            each.append(weights[member] * _shares(member, likely[own]))
        share = np.concatenate(each)
    return share, theta, wide


@lru_cache(maxsize=8)  # a prior has a handful of choices, and members do not change
def _beside(members: tuple[Population, ...]) -> Members:
    pairs = [(m, c) for m in members for c in range(len(m.mean))]
    noise = np.array([m.noise for m, _ in pairs])
    H = np.stack([m.covariance for m, _ in pairs]) / noise[:, None, None]
    roots = [root_of(m.gaussian(0, 0)) for m, _ in pairs]
    R = np.zeros((*H.shape[:2], max(1, *(root.shape[1] for root in roots))))
    for whole, root in zip(R, roots, strict=True):
        whole[:, : root.shape[1]] = root
    return Members(np.stack([m.mean[c] for m, c in pairs]), H, R, noise)
