"""Gaps without bounds: on `Euclidean()` weak duality needs slopes u with Xᵀu = 0 exactly.

Slopes in float64 miss that by rounding, e = Xᵀu, and without a bound on theta no remainder is
small enough to ignore. So it is taken off on paper: with any weights w ≥ 0 on the rounds and A =
√w·X of the same rank r as X,

    δ = −√w·(Aᵀ)⁺e    has    Xᵀ(u + δ) = 0    and    |δᵢ| ≤ √wᵢ·‖e‖ / σ_r(A),

so the excess of u + δ, taken at its worst within that distance of u, proves a gap. Weights that
vanish where a slope is at the edge of what its loss has keep u + δ inside. σ_r is known up to
rounding times σ₁, and the rank r exactly: either nothing is near 0, or it is counted in integers.
Where σ_r drowns in rounding there is no proof, and the gap is infinite.

Everything happens in NumPy, in the longest floats there are.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from fmrl.core.arrays import Array, constant, to_numpy
from fmrl.core.samples import Samples

LONG = np.longdouble
PRIMES = (2_147_483_647, 2_147_483_629)  # a product of two fits into 62 bits
NEAR = 1e-7  # of a corner's largest slope: an interior-point method ends this near to its edge

MOST = 2_000  # entries of X up to which slopes are solved for in rational arithmetic


def prove(samples: Samples, theta: Array, slopes: Array) -> tuple[Array, Array]:
    """Upper bounds on F(theta) and on F(theta) − min F, [B]; no rounding makes them untrue.

    Args:
        samples: Rounds with X [B, n, f] in float64.
        theta: The answer, [B, d].
        slopes: Those that the solver ended with, [B, n, outputs].
    """
    rows, size = _plain(samples)
    shape = (*theta.shape[:-1], samples.loss.outputs, rows.X.shape[-1])
    action = to_numpy(theta).reshape(shape).astype(LONG) * size
    action = action.reshape(theta.shape)
    z, step = rows.margins(action), float(np.finfo(LONG).eps)
    terms = replace(rows, X=np.abs(rows.X)).margins(np.abs(action), offset=False)
    blur = (rows.X.shape[-1] + 2) * step * (terms + np.abs(z))  # of z, by rounding
    own = rows.loss.slope(z, rows.target)
    counts = rows.weight > 0
    value = np.sum(np.where(counts, rows.loss.value(z, rows.target), 0), axis=-1)
    bend = min(rows.loss.bend, 1e300)
    moved = np.sum(blur * (np.abs(own) + bend * blur if bend < 1e300 else 1.0), axis=-1)
    error = np.sum(np.where(counts, moved, 0), axis=-1) + (rows.length + 8) * step * value
    gap = np.full(value.shape, math.inf, LONG)
    rank, around = ranks(rows.X.astype(np.float64)), None
    smooth = rows.loss.bend < math.inf
    for u in (own, to_numpy(slopes).astype(LONG)) if smooth else (to_numpy(slopes).astype(LONG),):
        if smooth:
            around = _room(rows, z) if around is None else around
        else:
            edge = rows.loss.corners(rows.target)[1]
            near = np.abs(u) <= NEAR * edge
            u = np.where(near, 0, np.where(np.abs(u) >= (1 - NEAR) * edge, edge * np.sign(u), u))
            around = np.maximum(np.minimum(np.abs(u), edge - np.abs(u)), 0)
        gap = np.fmin(gap, _excess(rows, z, u, blur, around, rank))
        if bool(np.all(gap <= 1e-12 * value)):
            break
    top = value + error
    high = top.astype(np.float64)
    high = np.where(high < top, np.nextafter(high, math.inf), high)
    with np.errstate(invalid="ignore"):
        wide = np.nextafter((high - value + error + gap).astype(np.float64), math.inf)
    wide = np.where(np.isnan(wide), math.inf, wide)
    wide = np.where((high == 0) & (gap == 0), 0.0, wide)
    return constant(high, theta), constant(wide, theta)


def ranks(X: np.ndarray) -> np.ndarray:
    """The exact rank of every matrix of a stack [B, n, f] of float64.

    A full rank is seen from the singular values; any other is counted modulo two primes, which is
    never too high, and too low only for entries made to be multiples of both.

    >>> ranks(np.array([[[1.0, 2.0], [0.1, 0.2]], [[1.0, 2.0], [0.1, 0.3]]])).tolist()
    [1, 2]
    """
    n, f = X.shape[-2:]
    most = min(n, f)
    strength = np.linalg.svd(X, compute_uv=False)
    full = strength[..., -1] > _blur(X, strength)
    found = np.full(X.shape[:-2], most)
    if not np.all(full):
        found[~full] = np.maximum(*(_rank_modulo(X[~full], p) for p in PRIMES))
    return found


def _blur(X: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """By how much rounding may have moved the singular values, [...]."""
    return 10 * max(X.shape[-2:]) * np.finfo(np.float64).eps * strength[..., 0]


def _rank_modulo(X: np.ndarray, prime: int) -> np.ndarray:
    """Rank [B] of the integers that X [B, n, f] is after scaling by a power of two, modulo a prime.

    Args:
        X: Finite numbers.
        prime: Below 2³¹.
    """
    part, exponent = np.frexp(X)
    whole = np.asarray(np.ldexp(part, 53), np.int64) % prime
    powers = np.array([pow(2, int(e) - 53, prime) for e in range(-1100, 1101)], np.int64)
    left = whole * powers[exponent + 1100] % prime
    if left.shape[-2] < left.shape[-1]:
        left = np.swapaxes(left, -1, -2)
    left = left.copy()
    count, length = len(left), left.shape[-2]
    rank, each = np.zeros(count, np.int64), np.arange(count)
    for column in range(left.shape[-1]):
        below = (left[:, :, column] != 0) & (np.arange(length) >= rank[:, None])
        found, pivot = np.any(below, axis=1), np.argmax(below, axis=1)
        here = np.minimum(rank, length - 1)
        pivot = np.where(found, pivot, here)
        left[each, here], left[each, pivot] = left[each, pivot], left[each, here]
        inverse = _inverse(np.where(found, left[each, here, column], 1), prime)
        factor = left[:, :, column] * inverse[:, None] % prime
        later = found[:, None] & (np.arange(length) > rank[:, None])
        factor = np.where(later, factor, 0)
        row = left[each, here]
        left = (left - factor[:, :, None] * row[:, None, :] % prime) % prime
        rank = rank + found
    return rank


def _inverse(a: np.ndarray, prime: int) -> np.ndarray:
    """a⁻¹ modulo a prime, by Fermat's little theorem."""
    result, power, left = np.ones_like(a), a, prime - 2
    while left:
        result = result * power % prime if left & 1 else result
        power, left = power * power % prime, left >> 1
    return result


def _plain(samples: Samples) -> tuple[Samples, np.ndarray]:
    """The samples in NumPy's longest floats, columns near 1 in size, and those sizes [B, 1, f]."""
    parts: dict[str, Any] = {}
    for name in ("X", "target", "weight", "offset"):
        a = getattr(samples, name)
        parts[name] = None if a is None else to_numpy(a).astype(LONG)
    size = np.max(np.abs(parts["X"]), axis=-2, keepdims=True)
    size = np.where(size > 0, size, 1)
    size = LONG(2.0) ** np.round(np.log2(size))
    return replace(samples, **parts | {"X": parts["X"] / size}), size


def _room(rows: Samples, z: np.ndarray) -> np.ndarray:
    """Weights of the correction: how far a slope may move, [B, n, outputs]."""
    bend = rows.loss.curvature(z, rows.target)
    if rows.loss.coupled:  # one weight for all classes of a round, whose slopes sum to 0
        bend = np.min(np.diagonal(bend, axis1=-2, axis2=-1), axis=-1, keepdims=True)
    return np.broadcast_to(np.maximum(bend, 0), z.shape) * (rows.weight > 0)[..., None]


def _excess(
    rows: Samples, z: np.ndarray, u: np.ndarray, blur: np.ndarray, around: np.ndarray,
    rank: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The gap that slopes u prove after their correction, [B]."""
    step = float(np.finfo(LONG).eps)
    X, counts = rows.X, rows.weight > 0
    u = np.where(counts[..., None], u, 0)
    root = np.sqrt(np.moveaxis(around, -1, -2)).astype(np.float64)  # [B, outputs, n]
    alike = rows.loss.bend == 1.0 and bool(np.all((root == 1) | (root == 0)))
    A = X.astype(np.float64)[..., None, :, :] * (root[:, :1] if alike else root)[..., None]
    U, strength, V = np.linalg.svd(A, full_matrices=False)
    last = np.maximum(rank - 1, 0)[:, None, None]
    at = np.take_along_axis(strength, np.broadcast_to(last, (*strength.shape[:-1], 1)), axis=-1)
    weakest = at[..., 0] - _blur(X, strength)  # [B, outputs]
    good = (weakest > 0) & (rank > 0)[:, None]
    kept = np.arange(strength.shape[-1]) < rank[:, None, None]
    inverse = np.where(kept & good[..., None], 1 / np.where(kept, strength, 1), 0)
    for _ in range(2):  # the second time takes off what rounding left of the first
        e = np.einsum("bnf,bno->bof", X, u).astype(np.float64)
        change = np.einsum("...nr,...r,...rf,...f->...n", U, inverse, V, e, optimize=True)
        u = u - np.moveaxis(root * change, -2, -1)
    e = np.einsum("bnf,bno->bof", X, u)
    unsure = np.abs(u) * (rows.length + 2) * step
    if rows.loss.coupled:  # the slopes meant sum to 0
        unsure = unsure + np.abs(np.sum(u, axis=-1, keepdims=True))
    e = np.abs(e) + np.einsum("bnf,bno->bof", np.abs(X), unsure)
    left = np.sqrt(np.sum(e * e, axis=-1))  # [B, outputs]
    length = np.sqrt(np.sum(X * X, axis=-1))[:, None, :]  # [B, 1, n]
    weak = np.where(good, weakest, 1.0)[..., None]
    reach = np.minimum(root / weak, root**2 * length / weak**2) * left[..., None]
    reach = np.moveaxis(reach, -2, -1) * (1 + 1e-12)
    with np.errstate(invalid="ignore", over="ignore"):
        excess = rows.loss.excess_within(z, u, rows.target, reach + unsure)
        slack = np.sum(blur * (np.abs(rows.loss.slope(z, rows.target) - u) + reach), axis=-1)
    if rows.loss.bend < math.inf:
        slack = slack + rows.loss.bend * np.sum(blur * blur, axis=-1)
    total = np.sum(np.where(counts, np.maximum(excess, 0) + slack, 0), axis=-1) * (1 + 1e-12)
    proved = np.all(good | (left == 0), axis=-1)
    if rows.loss.bend == math.inf and rows.loss.outputs == 1 and X[0].size <= MOST:
        for b in np.flatnonzero(~proved | np.isinf(total)):
            exact = _balanced(X[b].astype(np.float64), u[b, :, 0], around[b, :, 0] > 0)
            if exact is not None:
                worst = rows.loss.excess_within(
                    z[b], exact[:, None], rows.target[b], 2.0**-53 * (around[b] > 0)
                )
                total[b] = np.sum(np.where(counts[b], np.maximum(worst, 0) + slack[b], 0))
                proved[b] = True
    return np.where(proved & ~np.isnan(total), total, math.inf)


def _balanced(X: np.ndarray, u: np.ndarray, free: np.ndarray) -> np.ndarray | None:
    """Slopes [n] with Xᵀu = 0 in rational arithmetic, or None: those of ``free`` rounds are solved
    for, the others stay as they are.
    """
    (free_at,) = np.nonzero(free)
    rows = [[Fraction(a) for a in map(float, row)] for row in X]
    fixed = [(row, int(u[i])) for i, row in enumerate(rows) if not free[i] and u[i] != 0]
    if any(u[i] != int(u[i]) for i in np.flatnonzero(~free)):
        return None
    width = len(free_at)
    lines = [
        [*(rows[i][j] for i in free_at), -sum((row[j] * s for row, s in fixed), Fraction(0))]
        for j in range(X.shape[1])
    ]
    pivots: list[int] = []
    for column in range(width):
        at = next((k for k in range(len(pivots), len(lines)) if lines[k][column]), None)
        if at is None:
            continue
        here = len(pivots)
        lines[here], lines[at] = lines[at], lines[here]
        top = lines[here] = [a / lines[here][column] for a in lines[here]]
        for k, line in enumerate(lines):
            if k != here and line[column]:
                lines[k] = [a - line[column] * b for a, b in zip(line, top, strict=True)]
        pivots.append(column)
    if any(line[-1] for line in lines[len(pivots) :]):
        return None
    solved = u.copy()
    others = {c: Fraction(float(u[free_at[c]])) for c in range(width) if c not in pivots}
    for c, value in others.items():
        solved[free_at[c]] = float(value)
    for line, c in zip(lines, pivots, strict=False):
        value = line[-1] - sum((line[o] * value for o, value in others.items()), Fraction(0))
        if not 0 < abs(value) < 1 or (value > 0) != (u[free_at[c]] > 0):
            return None
        solved[free_at[c]] = float(value)
    return solved
