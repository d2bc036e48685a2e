"""Members of a prior, averaged: what each says of rows of tasks it has not seen, and the weights
under which their average has the least loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.extmath import softmax

from fmrl.core.prior.mixture import Posterior
from fmrl.errors import FMRLError
from fmrl.tables.targets import MAX_SQUARED

DRAWN = 2.0  # tasks' worth of equal weights
SCORES = {True: ("neg_mean_absolute_error",), False: ("accuracy",)}  # of regressions, of classes
LESS = (0.5, 0.25, 0.0)  # of what uncertainty asks for, by which margins may be drawn to 0
SHARP = (0.8, 0.5, 0.6, 0.7, 0.9, 1.0, 1.2, 1.5)  # that softmax of several margins may be, by turns
LEVELS = np.linspace(0.0, 1.0, 201)


class HeldOut(NamedTuple):
    """What members say of held-out rows after n others, stacked over tasks."""

    margins: np.ndarray  # [members, P, H, outputs]
    variance: np.ndarray  # [members, P, H, outputs] of the margins
    target: np.ndarray  # [P, H, outputs]
    weight: np.ndarray  # [P, H], 0 for padding, sums to 1 over a task


def margins(X: np.ndarray, models: Posterior) -> tuple[np.ndarray, np.ndarray]:
    """Margins [P, H, outputs] of rows X [P, H, width] under one model for each P, and their
    variances (0 where the models' are not known).
    """
    z = X @ np.swapaxes(models.theta, 1, 2)
    if models.spread is None:
        return z, np.zeros_like(z)
    wide = X[:, None] @ models.spread  # [P, outputs, H, width]
    known = (wide * X[:, None]).sum(axis=-1)  # rounding may leave it below 0
    return z, np.moveaxis(np.maximum(known, 0.0), 1, -1)


def moderated(z: np.ndarray, variance: np.ndarray, moderation: Any) -> np.ndarray:
    """Margins [..., outputs] drawn to 0 as far as their uncertainty asks for: ∫ sigmoid is about
    the sigmoid of z/√(1 + π·variance/8). All outputs of a row are drawn alike, so that their order
    stays.
    """
    return z * _drawn(variance, moderation)


def _drawn(variance: np.ndarray, moderation: Any) -> np.ndarray:
    return 1 / np.sqrt(1 + moderation * math.pi / 8 * variance.mean(axis=-1, keepdims=True))


def probabilities(z: np.ndarray, classes: int, sharpness: Any = 0.0) -> np.ndarray:
    """Class probabilities [n, classes] from margins [n, outputs]: the sigmoid; where there are more
    than two classes softmax of ``sharpness``, a number or [n, 1], times the margins, or with 0 the
    sigmoids, normalised.
    """
    if classes == 1:
        return np.ones((len(z), 1))
    p = 1 / (1 + np.exp(-np.clip(z, -500, 500)))
    if classes == 2:
        return np.concatenate([1 - p, p], axis=1)
    total, z = p.sum(axis=1, keepdims=True), np.clip(z, -MAX_SQUARED, MAX_SQUARED)
    # Where every class is all but excluded the sigmoids are their margins' exponentials.
    plain = (total > 1e-100) & (np.asarray(sharpness) == 0)
    soft = softmax(np.where(np.asarray(sharpness) == 0, 1.0, sharpness) * z)
    return np.where(plain, p / np.maximum(total, 1e-100), soft)


def logarithms(p: np.ndarray) -> np.ndarray:
    """Of probabilities; of 0 a finite one."""
    return np.log(np.maximum(p, 1e-300))


def loss_and_slope(
    z: np.ndarray, target: np.ndarray, squared: bool, sharpness: float = 0.0
) -> tuple[Any, Any]:
    """Squared error or log-loss [..., n] of margins [..., n, outputs], and its slope.

    Args:
        z: The margins; of several classes, each against the rest.
        target: Numbers, or 1 for the class and 0 for the others.
        squared: Whether the loss is.
        sharpness: As in `probabilities`.
    """
    if squared:
        off = z - target
        return (off**2)[..., 0], 2 * off
    if sharpness:
        z = sharpness * (z - z.max(axis=-1, keepdims=True))
        e = np.exp(z)
        total = e.sum(axis=-1, keepdims=True)
        value = np.log(total[..., 0]) - (target * z).sum(axis=-1)
        return value, sharpness * (e / total - target)
    soft, p = np.logaddexp(0, z), 1 / (1 + np.exp(-np.clip(z, -500, 500)))
    if z.shape[-1] == 1:
        return (soft - target * z)[..., 0], p - target
    # One-vs-all: probabilities are the sigmoids, normalised.
    total = np.maximum(p.sum(axis=-1, keepdims=True), 1e-300)
    value = (target * (soft - z)).sum(axis=-1) + np.log(total)[..., 0]
    return value, p * (1 - p) / total - target * (1 - p)


def averaged(sheet: HeldOut, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Margins and variances of the average of members, their disagreement included."""
    z = np.tensordot(weights, sheet.margins, 1)
    apart = np.tensordot(weights, (sheet.margins - z) ** 2, 1)
    return z, np.tensordot(weights, sheet.variance, 1) + apart


def check_scoring(scoring: str | None, squared: bool) -> str | None:
    """None for the proper score, or the name of another that fits the task."""
    proper = "neg_mean_squared_error" if squared else "neg_log_loss"
    known = (*SCORES[squared], proper)
    if scoring is not None and scoring not in known:
        raise FMRLError(f"scoring={scoring!r} is not one of {', '.join(known)}")
    return None if scoring == proper else scoring


def by_score(sheets: list[HeldOut], weights: np.ndarray, score: str) -> np.ndarray:
    """The average, or one member, whichever scores best on tasks held out."""

    def value(w: np.ndarray) -> float:
        total = 0.0
        for s in sheets:
            z, _ = averaged(s, w)
            if score == "accuracy":
                right = s.target[..., 0] == (z[..., 0] > 0)
                if z.shape[-1] > 1:
                    right = s.target.argmax(axis=-1) == z.argmax(axis=-1)
                total += float((right * s.weight).sum())
            else:
                total -= float((np.abs(z - s.target)[..., 0] * s.weight).sum())
        return total

    return max([weights, *np.eye(len(weights))], key=value)


def beyond_error(gain: np.ndarray) -> bool:
    """Whether tasks gain something, by more than a standard error."""
    return bool(gain.mean() > gain.std() / math.sqrt(len(gain)))


def best_sharpness(sheets: list[HeldOut], weights: np.ndarray, moderation: float) -> float:
    """How sharp the softmax of several margins is best: the first of `SHARP`, or another with less
    loss. 0 for two classes, which need none.
    """
    if sheets[0].target.shape[-1] == 1:
        return 0.0

    told = [(moderated(*averaged(s, weights), moderation), s) for s in sheets]

    def loss(sharpness: float) -> float:
        each = (loss_and_slope(z, s.target, False, sharpness)[0] * s.weight for z, s in told)
        return sum(float(losses.sum()) for losses in each)

    return min(SHARP, key=loss)


def best_moderation(sheets: list[HeldOut], weights: np.ndarray, sharpness: float) -> float:
    """How far probabilities are drawn to the middle: as far as their uncertainty asks for, or less
    where that lowers the loss by more than a standard error.
    """

    def losses(moderation: float) -> np.ndarray:
        each = (task_losses(s, weights, moderation, False, sharpness)[0] for s in sheets)
        return np.concatenate(list(each))

    best, least = 1.0, losses(1.0)
    for moderation in LESS:
        found = losses(moderation)
        if beyond_error(least - found):
            best, least = moderation, found
    return best


def best_weights(
    sheets: list[HeldOut], first: np.ndarray, moderation: float, squared: bool,
    sharpness: float = 0.0,
) -> np.ndarray:  # fmt: skip
    """The weights with the least loss, drawn towards ``first``: exponentiated gradient from there.
    With classes members that disagree make the average unsure of itself, so that the loss may have
    several minima: where one member alone has less, from near it too.
    """
    count, how = sum(len(s.weight) for s in sheets), (moderation, squared, sharpness)
    products = sum(map(_products, sheets)) if squared else None

    def summed(w: np.ndarray) -> tuple[float, np.ndarray]:
        if products is not None:  # as weights sum to 1, up to what all slopes have in common
            return float(w @ products @ w), 2 * products @ w
        told = [task_losses(s, w, *how) for s in sheets]
        return sum(float(losses.sum()) for losses, _ in told), sum(slopes for _, slopes in told)

    unit = count * (max(summed(first)[0] / count, 1e-300) if squared else 1.0)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        far, pull = np.log(w / first), DRAWN / count
        value, slope = summed(w)
        return value / unit + pull * float(w @ far), slope / unit + pull * (far + 1)

    best = _descended(objective, first)
    if squared:
        return best[0]
    alone = 0.95 * np.eye(len(first)) + 0.05 * first
    near = min(alone, key=lambda w: objective(w)[0])
    if objective(near)[0] < best[1]:
        best = min(best, _descended(objective, near), key=lambda found: found[1])
    return best[0]


def _descended(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]], w: np.ndarray
) -> tuple[np.ndarray, float]:
    """A minimum over weights that sum to 1, and its value."""
    rate = 2.0
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
    return w, value


def _products(s: HeldOut) -> np.ndarray:
    """Σ of the products of members' errors, [members, members]."""
    off = (s.margins - s.target).reshape(len(s.margins), -1)
    return (off * s.weight.ravel()) @ off.T


def task_losses(
    s: HeldOut, w: np.ndarray, moderation: float, squared: bool, sharpness: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of every task [P], and the slope of their sum in the weights."""
    z, variance = averaged(s, w)
    shrink = 1.0 if squared else _drawn(variance, moderation)
    value, slope = loss_and_slope(z * shrink, s.target, squared, sharpness)
    slope = slope * shrink * s.weight[..., None]
    return (value * s.weight).sum(axis=1), np.tensordot(s.margins, slope, 3)


def quantiles(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weighted quantiles at LEVELS."""
    order = np.argsort(values)
    share = np.cumsum(weight[order])
    return np.interp(LEVELS, share / share[-1], values[order])
