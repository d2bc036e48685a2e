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
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.prior.mixture import Mixture, predict_margins
from fmrl.core.prior.mixture_fit import TOLERANCE, FamilySums, families, fit_family, fit_mixture
from fmrl.core.tasks import Tasks
from fmrl.estimators.averaging import (
    HeldOut,
    averaged,
    best_moderation,
    best_sharpness,
    best_weights,
    beyond_error,
    by_score,
    check_scoring,
    margins,
    quantiles,
    task_losses,
)
from fmrl.estimators.sampling import evenly_spaced, fold_count, fold_of_tasks

MAX_SCORED_ROWS = 32  # rows of a task to be scored on, at most
MAX_SCORED_SINGLE_ROWS = 5000  # of a part, to be scored on where tasks have one row, at most
HELD_OUT_TOLERANCE = 0.05  # of members that are only weighed: their variances to 5 per cent
MIN_WEIGHT = 0.02  # weights below are none
COMMON = "common "  # begins the names of members with the column of a common part
SLOPE_FAMILIES = ("alike", "full")  # families that are also tried around several centres


class Choice(NamedTuple):
    """What to do with ``rounds`` rows."""

    rounds: float
    weights: tuple[float, ...]  # of the members
    moderation: float  # how far probabilities are drawn to the middle, 0 to 1; one for all rows
    tuning_score: float  # minus the loss, by task, on the tasks that chose the weights: optimistic
    errors: tuple[float, ...] = ()  # quantiles at LEVELS of |error| over its predicted deviation
    sharpness: float = 0.0  # of softmax over several classes; 0: of sigmoids, normalised; one, too


@dataclass(frozen=True)
class Rule:
    """Choices for 0, 1, 2, 4, … rows; between them the nearest, beyond them the last."""

    choices: tuple[Choice, ...] = ()

    def at(self, rounds: float) -> Choice:
        """The choice for this many rows.

        >>> none, two = Choice(0, (1.0,), 0.0, -1.0), Choice(2, (1.0,), 0.0, -0.5)
        >>> rule = Rule((none, two, Choice(8, (1.0,), 0.0, -0.2)))
        >>> rule.at(5).rounds, rule.at(0).rounds, rule.at(4).rounds
        (8, 0, 2)
        >>> rule.places(np.array([5, 0, 4])).tolist()
        [2, 0, 1]
        """
        if not rounds > 0 or len(self.choices) == 1:
            return self.choices[0]
        ratios = [max(rounds / c.rounds, c.rounds / rounds) for c in self.choices[1:]]
        return self.choices[1 + ratios.index(min(ratios))]

    def places(self, rounds: np.ndarray) -> np.ndarray:
        """Which of the choices is for so many rows, [T]."""
        if len(self.choices) == 1:
            return np.zeros(len(rounds), dtype=int)
        sizes, some = np.array([c.rounds for c in self.choices[1:]]), np.maximum(rounds, 1e-9)
        near = np.maximum(some[:, None] / sizes, sizes / some[:, None]).argmin(axis=1)
        return np.where(rounds > 0, 1 + near, 0)

    @property
    def used(self) -> list[int]:
        """Which members have weight in any choice."""
        return np.flatnonzero(np.any([c.weights for c in self.choices], axis=0)).tolist()

    def take(self, members: list[int]) -> Rule:
        """The same for some of the members; the others have no weight.

        Args:
            members: Which are kept.
        """
        few = (c._replace(weights=tuple(c.weights[i] for i in members)) for c in self.choices)
        return Rule(tuple(few))


class Members(Protocol):
    """Estimates all members from some tasks."""

    def __call__(self, tasks: Tasks, tolerance: float = TOLERANCE) -> list[Mixture]:
        """The members, with variances as exact as that."""
        ...


def members(intercept: bool, extra: int = 0, centres: int = 1, zero_mean: bool = False) -> Members:
    """How to estimate every family from some tasks, each from where the plainer one ended.

    Args:
        intercept: Whether the last column is one.
        extra: How many columns before it are the answer of a common part; families without them
            come first, those with them are called "common …".
        centres: Around how many centres tasks may lie, beside one.
        zero_mean: Whether tasks may also have no mean.
    """

    def learn(tasks: Tasks, tolerance: float = TOLERANCE) -> list[Mixture]:
        width, found = tasks.X.shape[1], list[Mixture]()
        for prefix, columns in (
            ("", own_columns(width, intercept, extra)),
            (COMMON, np.arange(width)),
        ):
            if prefix and not extra:
                break
            few = tasks if len(columns) == width else replace(tasks, X=tasks.X[:, columns])
            chain, sums = list[Mixture](), FamilySums(few)
            for name in families(len(columns), intercept):
                if name == "columns" and (prefix or centres > 1):
                    continue
                start = chain[-1] if chain else None
                free = extra if prefix else 0
                chain.append(fit_family(few, name, intercept, start, sums, tolerance, free))
            sloped = [one for one in chain if one.family in SLOPE_FAMILIES]
            if zero_mean:
                chain += [one.zero_mean(intercept) for one in sloped]
            if centres > 1:
                start = sloped[0] if sloped else None
                for one in sloped:
                    start = fit_mixture(replace(start, family=one.family), few, intercept, centres)
                    chain.append(start)
            found += [replace(m, family=prefix + m.family).embed(columns, width) for m in chain]
        return found

    return learn


def own_columns(width: int, intercept: bool, extra: int) -> np.ndarray:
    """The columns that are not the answer of a common part."""
    return np.delete(np.arange(width), np.arange(width - intercept - extra, width - intercept))


def calibrate(
    tasks: Tasks, learn: Members, seed: int, scoring: str | None = None, drift: bool = False
) -> tuple[list[Mixture], Rule]:
    """The members that some tasks give, and how to average them.

    Args:
        tasks: The pilot, in coordinates of deviation 1.
        learn: Estimates the members.
        seed: Of the order in which rows are shown.
        scoring: One of `SCORES` instead of log-loss or squared error: then the average competes
            with each member by itself.
        drift: Whether intervals are also to cover tasks that lie further on than these.
    """
    squared = isinstance(tasks.loss, Squared)
    score = check_scoring(scoring, squared)
    every = learn(tasks)
    if len(tasks) < 2 or tasks.lengths.max() < 2:
        # Nothing says how tasks differ: they do not, as far as is known.
        plain = next(m for m in reversed(every) if m.family.endswith("none"))
        one = Choice(0, tuple(float(m is plain) for m in every), 1.0, math.nan)
        if squared and np.ptp(tasks.target):
            errors = _widths([held_out_row_predictions(tasks, learn, seed)], one.weights, every)
            one = one._replace(errors=errors)
        return every, Rule((one,))
    sheets = held_out_predictions(tasks, learn, seed)
    later = held_out_predictions(tasks, learn, seed, later=True) if drift and squared else {}
    found, sizes = [], sorted(sheets)
    before = _prior_weight(sheets[sizes[min(1, len(sizes) - 1)]], every, squared)
    # With rows known, tasks that do not differ at all are less likely beforehand.
    rare = before * [0.2 if m.family.endswith("none") else 1.0 for m in every]
    moderation, sharpness = 0.0, 0.0
    if not squared:
        said, first = [sheets[n] for n in sizes], rare / rare.sum()
        sharpness = best_sharpness(said, first, 1.0)
        moderation = best_moderation(said, first, sharpness)
    how = moderation, squared, sharpness
    # Rows count as much as their weights say, here and where a task looks its choice up.
    unit = 1.0 if tasks.weight is None else float(np.mean(tasks.weight))
    for n in sizes:
        near, first = _of_similar_sizes(sheets, n), rare if n else before
        weights = _weights(near, first / first.sum(), how, score)
        losses, _ = task_losses(sheets[n], weights, *how)
        one = Choice(n, tuple(weights.tolist()), moderation, -float(losses.mean()))
        one = one._replace(sharpness=sharpness)
        if squared:
            widths = [
                _widths(s, one.weights, every) for s in (near, _of_similar_sizes(later, n)) if s
            ]
            one = one._replace(errors=tuple(np.max(widths, axis=0).tolist()))
        found.append(one if unit == 1 else one._replace(rounds=n * unit))
    return every, Rule(tuple(found))


def _of_similar_sizes(sheets: dict[int, HeldOut], n: int) -> list[HeldOut]:
    """Those of n rows, and of half and twice as many."""
    return [sheets[k] for k in {n // 2, n, 2 * n} & set(sheets) if (k > 0) == (n > 0)]


def held_out_predictions(
    tasks: Tasks, learn: Members, seed: int, later: bool = False
) -> dict[int, HeldOut]:
    """What members that were estimated without a task say of it, by the number of rows shown: of
    every task, or of the ``later`` half, by members of the earlier half.
    """
    rng, count = np.random.default_rng(seed), len(tasks)
    every, fold = np.arange(count), fold_of_tasks(count, folds := fold_count(count), seed)
    parts = [every[count // 2 :]] if later else [every[fold == f] for f in range(folds)]
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
    found: dict[int, list[HeldOut]] = {n: [] for n in sizes}
    for held in parts:
        group = learn(tasks.take(np.setdiff1d(every, held)), HELD_OUT_TOLERANCE)
        for n in sizes:
            able = held[tasks.lengths[held] >= n + max(1, n // 3)]
            if len(able):
                rows = [order[t] for order in orders for t in able]
                found[n].append(predict_held_out(tasks, group, rows, n))
    return {n: _stacked(said) for n, said in found.items() if said}


def held_out_row_predictions(tasks: Tasks, learn: Members, seed: int) -> HeldOut:
    """What members that were estimated without a row say of it, where there is nothing else to hold
    out: of the rows of one task, or of tasks of one row. Copies of a row are held out together.
    """
    rows, parts = np.concatenate([tasks.X, tasks.target], axis=1), []
    _, same = np.unique(rows, axis=0, return_inverse=True)
    count = int(same.max()) + 1
    fold = fold_of_tasks(count, folds := fold_count(count), seed)[same.ravel()]
    for f in range(folds):
        known, held = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        group = learn(tasks.rows(known[None] if len(tasks) == 1 else known[:, None]))
        parts.append(
            predict_held_out(
                tasks, group, [*held[evenly_spaced(len(held), MAX_SCORED_SINGLE_ROWS), None]], 0
            )
        )
    return _stacked(parts)


def predict_held_out(
    tasks: Tasks, group: list[Mixture], order: list[np.ndarray], n: int
) -> HeldOut:
    """Show n rows of some tasks to every member and ask for others."""
    after = [rows[n : n + MAX_SCORED_ROWS] for rows in order]
    index = np.zeros((len(order), max(map(len, after))), dtype=int)
    weight = np.zeros(index.shape)
    for b, rows in enumerate(after):
        index[b, : len(rows)] = rows
        weight[b, : len(rows)] = 1.0 if tasks.weight is None else tasks.weight[rows]
    weight /= max(float(weight.sum(axis=1).mean()), 1e-290)
    X = tasks.X[index]
    if n:
        z, v = predict_margins(group, tasks.rows(np.stack([rows[:n] for rows in order])), X)
    else:
        z, v = map(np.stack, zip(*(margins(X, one.middle()) for one in group), strict=True))
    return HeldOut(z, v, tasks.target[index], weight)


def _stacked(parts: list[HeldOut]) -> HeldOut:
    longest = max(p.weight.shape[1] for p in parts)

    def padded(name: str, axis: int) -> np.ndarray:
        arrays = [getattr(p, name) for p in parts]
        room = [[(0, 0)] * a.ndim for a in arrays]
        for r, a in zip(room, arrays, strict=True):
            r[axis] = (0, longest - a.shape[axis])
        return np.concatenate([np.pad(a, r) for a, r in zip(arrays, room, strict=True)], axis - 1)

    return HeldOut(padded("margins", 2), padded("variance", 2), padded("target", 1),
                   padded("weight", 1))  # fmt: skip


def _prior_weight(sheet: HeldOut, group: list[Mixture], squared: bool) -> np.ndarray:
    """How much each member is thought of beforehand: with classes those with a common part only
    where they lower the loss of the others' average by more than a standard error.
    """
    plain = np.array([not m.family.startswith(COMMON) for m in group])
    if squared or plain.all():
        return np.ones(len(group))
    losses = []
    for some in (plain, np.ones_like(plain)):
        one = sheet._replace(margins=sheet.margins[some], variance=sheet.variance[some])
        first = np.full(some.sum(), 1 / some.sum())
        sharpness = best_sharpness([one], first, 1.0)
        how = best_moderation([one], first, sharpness), False, sharpness
        losses.append(task_losses(one, best_weights([one], first, *how), *how)[0])
    return np.where(plain | beyond_error(losses[0] - losses[1]), 1.0, MIN_WEIGHT)


def _weights(
    near: list[HeldOut], first: np.ndarray, how: tuple[float, bool, float], scoring: str | None
) -> np.ndarray:
    """Weights of the members, drawn towards ``first``; small ones are 0."""
    weights = best_weights(near, first, *how)
    weights[weights < MIN_WEIGHT] = 0.0
    weights /= weights.sum()
    return weights if scoring is None else by_score(near, weights, scoring)


def _widths(
    sheets: list[HeldOut], weights: tuple[float, ...], group: list[Mixture]
) -> tuple[float, ...]:
    """Quantiles at LEVELS of errors of held-out rows in predicted deviations. Every task counts
    once, or as much as its rows weigh on average: long tasks do not speak for short ones.
    """
    noise, ratios, counts = sum(w * m.noise for w, m in zip(weights, group, strict=True)), [], []
    for s in sheets:
        z, variance = averaged(s, np.array(weights))
        there = s.weight > 0
        ratios.append((np.abs(z - s.target)[..., 0] / np.sqrt(variance[..., 0] + noise))[there])
        counts.append((s.weight / np.maximum(there.sum(axis=1, keepdims=True), 1))[there])
    return tuple(quantiles(np.concatenate(ratios), np.concatenate(counts)))
