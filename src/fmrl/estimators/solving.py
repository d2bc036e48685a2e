"""The models of tasks under all members of a prior at once, in plain NumPy.

This is the MAP of `core.posterior` (a test holds them together) without the cost of going through
the members, outputs and centres one after another: a service asks for one task at a time, or for
thousands with a few rows each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.posterior import root_of
from fmrl.core.tasks import Tasks
from fmrl.estimators.stacks import MANY, Members, Stack, pieces, stacks

if TYPE_CHECKING:
    from fmrl.estimators.population import Population


class Posterior(NamedTuple):
    """Models of some tasks."""

    theta: np.ndarray  # [T, outputs, width]
    spread: np.ndarray | None  # [T, outputs, width, width] their covariance, if it was asked for


def solved(
    members: Sequence[Population], weights: Sequence[float], tasks: Tasks, spread: bool
) -> list[Posterior | None]:
    """What each member says of some tasks in its coordinates; None where its weight is 0."""
    used = tuple(m for m, weight in zip(members, weights, strict=True) if weight)
    said: dict[Population, Posterior] = {}
    for group in _groups(used, len(tasks)):
        said.update(zip(group, _solved(group, tasks, spread), strict=True))
    return [said.get(m) for m in members]


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


def _solved(members: tuple[Population, ...], tasks: Tasks, spread: bool) -> Iterator[Posterior]:
    beside = _beside(members)
    P, (K, w) = len(beside.noise), beside.mean.shape[1:]
    theta = np.empty((P, len(tasks), K, w))
    wide = np.empty((P, len(tasks), K, w, w)) if spread else None
    likely = np.empty((P, len(tasks))) if len(members) < P else None
    squared = isinstance(tasks.loss, Squared)
    for part, X, target, weight in stacks(tasks):
        found = Stack(beside, X, target, weight, squared)
        theta[:, part] = found.theta()
        if wide is not None:
            wide[:, part] = found.spread()
        if likely is not None:
            likely[:, part] = found.likely()
    return _each(members, theta, wide, likely)


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


def _each(
    members: tuple[Population, ...], theta: np.ndarray, wide: Any, likely: Any
) -> Iterator[Posterior]:
    """Members around several centres as one: a task's rows say to which it belongs."""
    first = 0
    for member in members:
        own = slice(first, first + len(member.mean))
        first = own.stop
        if len(member.mean) == 1:
            yield Posterior(theta[own.start], None if wide is None else wide[own.start])
            continue
        share = _shares(member, likely[own])
        mean = np.einsum("ct,ctkw->tkw", share, theta[own])
        if wide is None:
            yield Posterior(mean, None)
            continue
        off = theta[own] - mean
        between = np.einsum("ct,ctkv,ctkw->tkvw", share, off, off)
        yield Posterior(mean, np.einsum("ct,ctkvw->tkvw", share, wide[own]) + between)
