"""How much a new task may differ from the others, decided on tasks that were held out.

`population` can say that tasks do not differ, that they differ by a constant, in every column
alike, in every column by its own deviation, or in any direction. Each of these is a member: it
adapts to n rows in its own way. A pilot of the tasks is split into folds; every member is estimated
without a fold, adapted to n rows of the fold's tasks and asked for their other rows, n = 0, 1, 2,
4, …. For every n the members' models are then averaged with the weights under which the average
has the least loss there (squared error, or log-loss), drawn a little towards equal weights. An
average of linear models is a linear model, so this costs nothing later.

The same held-out answers say how wide an interval must be to cover, and how far probabilities are
to be drawn to the middle because a task's model is uncertain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.tasks import Tasks
from fmrl.estimators.population import Population, Posterior, around, estimate, families

HELD = 32  # rows of a task to be scored on, at most
DRAWN = 2.0  # tasks' worth of equal weights
LEAST = 0.02  # weights below are none
WIDE = ("alike", "full")  # families that are also tried around several centres
MODERATION = (0.0, 0.25, 0.5, 1.0)
LEVELS = np.linspace(0.0, 1.0, 201)


class Choice(NamedTuple):
    """What to do with ``rounds`` rows."""

    rounds: int
    weights: tuple[float, ...]  # of the members
    moderation: float  # how far probabilities are drawn to the middle, 0 to 1
    score: float  # on the pilot: minus the log-loss or the squared error, by task
    errors: tuple[float, ...] = ()  # quantiles at LEVELS of |error| over its predicted deviation


@dataclass(frozen=True)
class Rule:
    """Choices for 0, 1, 2, 4, … rows; between them the nearest, beyond them the last."""

    choices: tuple[Choice, ...] = ()

    def at(self, rounds: float) -> Choice:
        """The choice for this many rows.

        >>> none, two = Choice(0, (1.0,), 0.0, -1.0), Choice(2, (1.0,), 0.0, -0.5)
        >>> rule = Rule((none, two, Choice(8, (1.0,), 0.0, -0.2)))
        >>> rule.at(5).rounds, rule.at(0).rounds
        (8, 0)
        """
        return self.choices[int(self.places(np.array([rounds]))[0])]

    def places(self, rounds: np.ndarray) -> np.ndarray:
        """Which of the choices is for so many rows, [T]."""
        if len(self.choices) == 1:
            return np.zeros(len(rounds), dtype=int)
        sizes = np.log([c.rounds for c in self.choices[1:]])
        near = np.abs(np.log(np.maximum(rounds, 1e-9))[:, None] - sizes).argmin(axis=1)
        return np.where(rounds > 0, 1 + near, 0)


class Answers(NamedTuple):
    """What members say of held-out rows after n others, stacked over tasks."""

    margins: np.ndarray  # [members, P, H, outputs]
    variance: np.ndarray  # [members, P, H, outputs] of the margins
    target: np.ndarray  # [P, H, outputs]
    weight: np.ndarray  # [P, H], 0 for padding, sums to 1 over a task


Members = Callable[[Tasks], list[Population]]  # estimates all members from some tasks


def spaced(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the places 0 … count − 1, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def members(intercept: bool, extra: int = 0, centres: int = 1) -> Members:
    """Estimates every family from some tasks, each from where the plainer one before it ended.

    Args:
        intercept: Whether the last column is one.
        extra: How many columns before it are the answer of a common part; families without them
            come first, those with them are called "common …".
        centres: Around how many centres tasks may lie, beside one.
    """

    def learn(tasks: Tasks) -> list[Population]:
        width = tasks.X.shape[1]
        own = np.delete(np.arange(width), np.arange(width - intercept - extra, width - intercept))
        found: list[Population] = []
        for prefix, columns in (("", own), ("common ", np.arange(width)))[: 1 + (extra > 0)]:
            few = tasks if len(columns) == width else replace(tasks, X=tasks.X[:, columns])
            chain: list[Population] = []
            for name in families(len(columns), intercept):
                if not (prefix and name == "columns"):
                    start = chain[-1] if chain else None
                    chain.append(estimate(few, name, intercept, start))
            if centres > 1:
                chain += [
                    around(one, few, intercept, centres) for one in chain if one.family in WIDE
                ]
            named = (replace(one, family=prefix + one.family) for one in chain)
            found += [one.placed(columns, width) for one in named]
        return found

    return learn


def calibrate(tasks: Tasks, learn: Members, seed: int) -> tuple[list[Population], Rule]:
    """The members that some tasks give, and how to average them.

    Args:
        tasks: The pilot, in coordinates of deviation 1.
        learn: Estimates the members.
        seed: Of the order in which rows are shown.
    """
    every = learn(tasks)
    if len(tasks) < 2 or tasks.lengths.max() < 2:
        # Nothing says how tasks differ: they do not, as far as is known.
        plain = next(m for m in reversed(every) if m.family.endswith("none"))
        alone = tuple(float(m is plain) for m in every)
        return every, Rule((Choice(0, alone, 1.0, math.nan),))
    sheets = answers(tasks, learn, seed)
    found, sizes = [], sorted(sheets)
    for n in sizes:
        near = [sheets[k] for k in {n // 2, n, 2 * n} & set(sizes) if (k > 0) == (n > 0)]
        found.append(_choice(n, sheets[n], near, isinstance(tasks.loss, Squared), every))
    return every, Rule(tuple(found))


def answers(tasks: Tasks, learn: Members, seed: int) -> dict[int, Answers]:
    """What members that were estimated without a task say of it, by the number of rows shown."""
    rng, count = np.random.default_rng(seed), len(tasks)
    folds = min(count, 4 if count < 60 else 3 if count < 200 else 2)
    fold = np.arange(count) % folds
    enough = [(tasks.lengths >= n + max(1, n // 3)).sum() >= 2 for n in 2 ** np.arange(20)]
    sizes = [0, *(2 ** np.flatnonzero(enough)).tolist()]
    repeats = max(1, min(4, 200 // count))
    orders = [
        [
            first + rng.permutation(n)
            for first, n in zip(tasks.starts[:-1], tasks.lengths, strict=True)
        ]
        for _ in range(repeats)
    ]
    found: dict[int, list[Answers]] = {n: [] for n in sizes}
    for f in range(folds):
        held = np.flatnonzero(fold == f)
        group = learn(tasks.take(np.flatnonzero(fold != f)))
        for n in sizes:
            able = held[tasks.lengths[held] >= n + max(1, n // 3)]
            if len(able):
                rows = [order[t] for order in orders for t in able]
                found[n].append(ask(tasks, group, rows, n))
    return {n: _join(parts) for n, parts in found.items() if parts}


def ask(tasks: Tasks, group: list[Population], order: list[np.ndarray], n: int) -> Answers:
    """Show n rows of some tasks to every member and ask for others."""
    after = [rows[n : n + HELD] for rows in order]
    index = np.zeros((len(order), max(map(len, after))), dtype=int)
    weight = np.zeros(index.shape)
    for b, rows in enumerate(after):
        index[b, : len(rows)] = rows
        weight[b, : len(rows)] = 1.0 if tasks.weight is None else tasks.weight[rows]
    weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-290)
    X = tasks.X[index]
    shown = tasks.rows(np.stack([rows[:n] for rows in order])) if n else None
    said = [m.middle(len(order)) if shown is None else m.adapt(shown, True) for m in group]
    z, v = zip(*(margins(X, one) for one in said), strict=True)
    return Answers(np.stack(z), np.stack(v), tasks.target[index], weight)


def _join(parts: list[Answers]) -> Answers:
    longest = max(p.weight.shape[1] for p in parts)

    def padded(name: str, axis: int) -> np.ndarray:
        arrays = [getattr(p, name) for p in parts]
        room = [[(0, 0)] * a.ndim for a in arrays]
        for r, a in zip(room, arrays, strict=True):
            r[axis] = (0, longest - a.shape[axis])
        return np.concatenate([np.pad(a, r) for a, r in zip(arrays, room, strict=True)], axis - 1)

    return Answers(padded("margins", 2), padded("variance", 2), padded("target", 1),
                   padded("weight", 1))  # fmt: skip


def margins(X: np.ndarray, models: Posterior) -> tuple[np.ndarray, np.ndarray]:
    """Margins [P, H, outputs] of rows X [P, H, width] under one model for each P, and their
    variances (0 where the models' are not known).
    """
    z = X @ np.swapaxes(models.theta, 1, 2)
    if models.spread is None:
        return z, np.zeros_like(z)
    wide = X[:, None] @ models.spread  # [P, outputs, H, width]
    return z, np.moveaxis((wide * X[:, None]).sum(axis=-1), 1, -1)


def moderated(z: np.ndarray, variance: np.ndarray, moderation: Any) -> np.ndarray:
    """Margins [..., outputs] drawn to 0 as far as their uncertainty asks for: ∫ sigmoid is about
    the sigmoid of z/√(1 + π·variance/8). All outputs of a row are drawn alike, so that their order
    stays.
    """
    return z * _drawn(variance, moderation)


def _drawn(variance: np.ndarray, moderation: Any) -> np.ndarray:
    return 1 / np.sqrt(1 + moderation * math.pi / 8 * variance.mean(axis=-1, keepdims=True))


def loss_and_slope(z: np.ndarray, target: np.ndarray, squared: bool) -> tuple[Any, Any]:
    """Squared error or log-loss [..., n] of margins [..., n, outputs], and its slope."""
    if squared:
        off = z - target
        return (off**2)[..., 0], 2 * off
    soft, p = np.logaddexp(0, z), 1 / (1 + np.exp(-np.clip(z, -500, 500)))
    if z.shape[-1] == 1:
        return (soft - target * z)[..., 0], p - target
    # One-vs-all: probabilities are the sigmoids, normalised.
    total = np.maximum(p.sum(axis=-1, keepdims=True), 1e-300)
    value = (target * (soft - z)).sum(axis=-1) + np.log(total)[..., 0]
    return value, p * (1 - p) / total - target * (1 - p)


def averaged(sheet: Answers, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Margins and variances of the average of members, their disagreement included."""
    z = np.tensordot(weights, sheet.margins, 1)
    apart = np.tensordot(weights, (sheet.margins - z) ** 2, 1)
    return z, np.tensordot(weights, sheet.variance, 1) + apart


def _choice(
    n: int, own: Answers, near: list[Answers], squared: bool, group: list[Population]
) -> Choice:
    """Weights, moderation and widths for n rows."""
    first = np.array([0.2 if m.family.endswith("none") and n else 1.0 for m in group])
    weights, moderation = first / first.sum(), 0.0
    if not squared:
        moderation = _moderation(near, weights)
    weights = _weigh(near, weights, moderation, squared)
    weights[weights < LEAST] = 0.0
    weights /= weights.sum()
    if not squared:
        moderation = _moderation(near, weights)
    z, variance = averaged(own, weights)
    told = z if squared else moderated(z, variance, moderation)
    score = -float((loss_and_slope(told, own.target, squared)[0] * own.weight).sum(axis=1).mean())
    errors: tuple[float, ...] = ()
    if squared:
        noise = sum(w * m.noise for w, m in zip(weights, group, strict=True))
        ratio = np.abs(z - own.target)[..., 0] / np.sqrt(variance[..., 0] + noise)
        errors = tuple(_quantiles(ratio[own.weight > 0], own.weight[own.weight > 0]))
    return Choice(n, tuple(weights.tolist()), moderation, score, errors)


def _moderation(sheets: list[Answers], weights: np.ndarray) -> float:
    def loss(moderation: float) -> float:
        total = 0.0
        for s in sheets:
            z = moderated(*averaged(s, weights), moderation)
            total += float((loss_and_slope(z, s.target, False)[0] * s.weight).sum())
        return total

    return min(MODERATION, key=loss)


def _weigh(
    sheets: list[Answers], first: np.ndarray, moderation: float, squared: bool
) -> np.ndarray:
    """The weights with the least loss, drawn towards ``first``: exponentiated gradient."""
    count = sum(len(s.weight) for s in sheets)
    start = sum(float((_loss(s, first, moderation, squared)[0]).sum()) for s in sheets) / count
    unit = max(start, 1e-300) if squared else 1.0

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = 0.0, np.zeros_like(w)
        for s in sheets:
            losses, slopes = _loss(s, w, moderation, squared)
            value += float(losses.sum())
            slope += slopes
        far = np.log(w / first)
        pull = DRAWN / count
        return value / count / unit + pull * float(w @ far), slope / count / unit + pull * (far + 1)

    w, rate = first.copy(), 2.0
    value, slope = objective(w)
    for _ in range(100):
        step = np.clip(-rate * (slope - slope @ w), -3, 3)
        new = np.maximum(w * np.exp(step), 1e-9)
        new /= new.sum()
        after, steep = objective(new)
        if after <= value:
            done = value - after < 1e-6
            w, value, slope, rate = new, after, steep, 1.5 * rate
            if done:
                break
        else:
            rate /= 3
            if rate < 1e-6:
                break
    return w


def _loss(
    s: Answers, w: np.ndarray, moderation: float, squared: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of every task [P], and the slope of their sum in the weights."""
    z, variance = averaged(s, w)
    shrink = 1.0 if squared else _drawn(variance, moderation)
    value, slope = loss_and_slope(z * shrink, s.target, squared)
    slope = slope * shrink * s.weight[..., None]
    return (value * s.weight).sum(axis=1), np.tensordot(s.margins, slope, 3)


def _quantiles(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weighted quantiles at LEVELS."""
    order = np.argsort(values)
    share = np.cumsum(weight[order])
    return np.interp(LEVELS, share / share[-1], values[order])
