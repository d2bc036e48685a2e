"""The logistic losses: one margin for two classes (Logistic), or one for each class, by itself
(OneVsAll) or against the others (Softmax).

Values, slopes and curvatures keep their digits however far a sample is on its right side: a loss of
e^−200 is still one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from fmrl.core.arrays import Array, device, dot, full, namespace
from fmrl.core.losses.base import Binary, Loss
from fmrl.core.losses.labels import indices, labels_of, pick


def _softplus(z: Array) -> Array:
    xp = namespace(z)
    return xp.maximum(z, xp.zeros_like(z)) + xp.log1p(xp.exp(-xp.abs(z)))


def _sigmoid(z: Array) -> Array:
    xp = namespace(z)
    most = 80.0 if z.dtype == xp.float32 else 708.0  # beyond, exp overflows
    return 1 / (1 + xp.exp(xp.minimum(-z, full((), most, z))))


def _entropy(p: Array) -> Array:
    """p·log p with 0·log 0 = 0, and inf outside [0, 1]; rounding just below zero counts as zero."""
    xp = namespace(p)
    inside = p * xp.log(xp.where(p > 0, p, full((), 1.0, p)))
    return xp.where((p >= -1e-15) & (p <= 1 + 1e-12), inside, full((), math.inf, p))


def _chi_square(p: Array, off: Array) -> Array:
    """Σ off²/p over the last axis, which is at least KL(p + off‖p); inf where p + off < 0.

    >>> import numpy as np
    >>> f"{float(_chi_square(np.array([1e-50, 1.0]), np.array([1e-58, -1e-58]))):.1e}"
    '1.0e-66'
    """
    xp, seen = namespace(p), p > 1e-150  # below, a ratio could overflow
    terms = xp.where(seen, off * (off / xp.where(seen, p, xp.ones_like(p))), xp.abs(off))
    outside = xp.any((p + off < 0) | ~seen & (xp.abs(off) > p), axis=-1)
    return xp.where(outside, full((), math.inf, p), xp.sum(terms, axis=-1))


@dataclass(frozen=True)
class OneVsAll(Loss):
    """Sum over classes of binary logistic losses, ℓ = Σ_c log(1 + e^{z_c}) − 1[y = c]·z_c, in nats:
    the paper's text model.

    Args:
        classes: Their number, or the labels themselves (any hashable kind).

    >>> import numpy as np
    >>> round(float(OneVsAll(4).value(np.zeros(4), np.array([1.0, 0, 0, 0]))), 4)
    2.7726
    """

    classes: int | tuple[Hashable, ...]
    bend: ClassVar[float] = 0.25
    attained: ClassVar[bool] = False

    def __post_init__(self):
        object.__setattr__(self, "labels", labels_of(self.classes, 1))
        if not isinstance(self.classes, int):
            object.__setattr__(self, "classes", self.labels)  # type: ignore[attr-defined]

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """One margin per class."""
        return len(self.labels)  # type: ignore[attr-defined]

    def encode(self, y, like):
        xp = namespace(like)
        index = indices(y, self.labels, like)[:, None]  # type: ignore[attr-defined]
        return xp.astype(index == xp.arange(self.outputs, device=device(like)), like.dtype)

    def value(self, z, target):
        # log(1 + e^z) − target·z with its larger terms already cancelled.
        return namespace(z).sum(_softplus((1 - 2 * target) * z), axis=-1)

    def slope(self, z, target):
        away = 1 - 2 * target
        return away * _sigmoid(away * z)

    def curvature(self, z, target):
        p = _sigmoid(-namespace(z).abs(z))
        return p * (1 - p)

    def conjugate(self, u, target):
        p = u + target
        return namespace(u).sum(_entropy(p) + _entropy(1 - p), axis=-1)

    def excess(self, z, u, target):
        xp, away = namespace(z), 1 - 2 * target
        p = xp.stack([_sigmoid(away * z), _sigmoid(-away * z)], axis=-1)
        off = away * u - p[..., 0]
        return xp.sum(_chi_square(p, xp.stack([off, -off], axis=-1)), axis=-1)

    def steep(self, norm):
        return math.sqrt(self.outputs) if norm == "l2" else 1.0

    def decode(self, z):
        """The label of the largest margin."""
        labels, index = self.labels, namespace(z).argmax(z, axis=-1)  # type: ignore[attr-defined]
        return index if labels == tuple(range(len(labels))) else pick(labels, index)


@dataclass(frozen=True)
class Softmax(OneVsAll):
    """Multinomial logistic loss ℓ = log Σ_c e^{z_c} − z_y.

    Args:
        classes: Their number, or the labels themselves (any hashable kind).

    >>> import numpy as np
    >>> round(float(Softmax(2).value(np.zeros(2), np.array([1.0, 0.0]))), 4)
    0.6931
    """

    bend: ClassVar[float] = 0.5
    coupled: ClassVar[bool] = True

    def _odds(self, z, target):
        """e^(z_c − top) of the classes other than y (0 at y), their sum, and z_y − top ≤ 0."""
        xp = namespace(z)
        own = dot(target, z)[..., None]
        top = xp.maximum(xp.max(z, axis=-1, keepdims=True), own)
        odds = (1 - target) * xp.exp(z - top)
        return odds, xp.sum(odds, axis=-1, keepdims=True), own - top

    def value(self, z, target):
        xp = namespace(z)
        _, rest, behind = self._odds(z, target)
        return (xp.log1p(rest + xp.expm1(behind)) - behind)[..., 0]

    def slope(self, z, target):
        odds, rest, behind = self._odds(z, target)
        return (odds - target * rest) / (rest + namespace(z).exp(behind))

    def curvature(self, z, target):
        xp = namespace(z)
        odds, rest, behind = self._odds(z, target)
        own = xp.exp(behind)
        p = (odds + target * own) / (rest + own)
        lacking = (rest + (1 - target) * own - odds) / (rest + own)
        eye = xp.eye(self.outputs, dtype=z.dtype, device=device(z))
        return eye * (p * lacking)[..., :, None] - (1 - eye) * p[..., :, None] * p[..., None, :]

    def conjugate(self, u, target):
        xp = namespace(u)
        p = u + target
        off = xp.abs(xp.sum(p, axis=-1) - 1) > 1e-9
        return xp.where(off, full((), math.inf, u), xp.sum(_entropy(p), axis=-1))

    def _chances(self, z, target):
        """The chances of the classes, [..., outputs]."""
        odds, rest, behind = self._odds(z, target)
        own = namespace(z).exp(behind)
        return (odds + target * own) / (rest + own)

    def excess(self, z, u, target):
        xp = namespace(z)
        p, own = self._chances(z, target), self.slope(z, target)
        off = u - own
        off = off - p * xp.sum(off, axis=-1, keepdims=True)  # slopes sum to zero, up to rounding
        rounded = xp.abs(off) <= 8 * xp.finfo(z.dtype).eps * (xp.abs(u) + xp.abs(own))
        return _chi_square(p, xp.where(rounded, xp.zeros_like(off), off))

    def excess_within(self, z, u, target, reach):
        # Slopes that sum to 0, so none of the differences cancels between classes.
        xp = namespace(z)
        p, own = self._chances(z, target), self.slope(z, target)
        rounded = 8 * xp.finfo(z.dtype).eps * (xp.abs(u) + xp.abs(own))
        outside = xp.any(u + target < reach, axis=-1)
        worst = _chi_square(p, xp.abs(u - own) + reach + rounded)
        return xp.where(outside, full((), math.inf, worst), worst)

    def steep(self, norm):
        return math.sqrt(2) if norm == "l2" else 1.0


@dataclass(frozen=True)
class Logistic(Binary):
    """Binary logistic loss ℓ = log(1 + e^z) − y·z.

    Args:
        classes: The labels (negative, positive). None: they are {0, 1}, {−1, 1} or booleans.

    >>> import numpy as np
    >>> round(float(Logistic().value(np.zeros(1), np.ones(1))), 4)
    0.6931
    """

    bend: ClassVar[float] = 0.25
    attained: ClassVar[bool] = False

    def encode(self, y, like):
        return self._positive(y, like)

    value, slope, curvature = OneVsAll.value, OneVsAll.slope, OneVsAll.curvature
    conjugate, excess = OneVsAll.conjugate, OneVsAll.excess
