"""Losses of linear models: each is a convex function of the margins z = ⟨θ_c, x⟩, one margin per output c.

A loss says how labels become targets, its value, its slope ∂ℓ/∂z, its curvature ∂²ℓ/∂z², and two constants: ``steep``, the
largest slope (so a round is steep·‖x‖-Lipschitz), and ``bend``, the largest curvature (so it is bend·‖x‖²-smooth).
Margins and targets have shape [..., outputs]; every method broadcasts over the leading axes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from fmrl.core.arrays import Array, as_array, as_float, device, dot, full, namespace
from fmrl.core.errors import FMRLError
from fmrl.core.labels import indices, labels_of, pick


def _softplus(z: Array) -> Array:
    xp = namespace(z)
    return xp.maximum(z, xp.zeros_like(z)) + xp.log1p(xp.exp(-xp.abs(z)))


def _sigmoid(z: Array) -> Array:
    xp = namespace(z)
    return 1 / (1 + xp.exp(xp.minimum(-z, full((), 708.0 if z.dtype == xp.float64 else 80.0, z))))  # beyond, exp overflows


def _entropy(p: Array) -> Array:
    """p·log p with 0·log 0 = 0, and inf outside [0, 1]; rounding just below zero counts as zero."""
    xp = namespace(p)
    inside = p * xp.log(xp.where(p > 0, p, full((), 1.0, p)))
    return xp.where((p >= -1e-15) & (p <= 1 + 1e-12), inside, full((), math.inf, p))


def _kl(p: Array, off: Array, size: Array) -> Array:
    """Σ of KL(p + off‖p) over the last axis, with all its digits; inf where p + off < 0. ``size``: of what ``off`` was taken.

    >>> import numpy as np
    >>> float(_kl(np.array([1e-50, 1.0]), np.array([1e-58, -1e-58]), np.array(1e-50)))
    5e-67
    """
    xp = namespace(p)
    off = xp.where(xp.abs(off) <= 8 * xp.finfo(p.dtype).eps * size, xp.zeros_like(off), off)  # rounding
    new, seen = p + off, p > 1e-290  # below, a ratio could overflow
    safe = xp.where(seen, p, xp.ones_like(p))
    grown = xp.where(new > 0, off / safe, xp.zeros_like(p))
    # The sum cancels to the second order; Σ off²/p, always above it, does not.
    sums, square = xp.sum(new * xp.log1p(grown), axis=-1), xp.sum(off * off / safe, axis=-1)
    outside = xp.any((new < 0) | ~seen & (xp.abs(off) > p), axis=-1)
    return xp.where(outside, full((), math.inf, p), xp.minimum(xp.maximum(sums, xp.zeros_like(sums)), square))


class Loss(ABC):
    """A convex loss of the margins. ``outputs`` margins per sample, so theta is [outputs, features], flat and row-major."""

    outputs: int = 1
    bend: ClassVar[float] = math.inf
    coupled: ClassVar[bool] = False  # True: curvature is a full matrix over the outputs
    attained: ClassVar[bool] = True  # False: the infimum may lie at infinity (separable data)
    lowest: ClassVar[float] = 0.0  # no value is below it

    @abstractmethod
    def encode(self, y: Any, like: Array) -> Array:
        """Targets [m, outputs] of the labels ``y``, in the namespace of ``like``."""

    @abstractmethod
    def value(self, z: Array, target: Array) -> Array:
        """ℓ, shape [...]."""

    @abstractmethod
    def slope(self, z: Array, target: Array) -> Array:
        """∂ℓ/∂z (a subgradient where ℓ has a corner), shape [..., outputs]."""

    @abstractmethod
    def curvature(self, z: Array, target: Array) -> Array:
        """∂²ℓ/∂z²: its diagonal [..., outputs], or [..., outputs, outputs] when ``coupled``."""

    @abstractmethod
    def conjugate(self, u: Array, target: Array) -> Array:
        """Fenchel conjugate sup_z ⟨u, z⟩ − ℓ(z), shape [...]; inf where it is."""

    def excess(self, z: Array, u: Array, target: Array) -> Array:
        """Fenchel's ℓ(z) + ℓ*(u) − ⟨u, z⟩ ≥ 0, which is 0 for u = ∂ℓ/∂z; shape [...]."""
        return self.value(z, target) + self.conjugate(u, target) - dot(u, z)

    def steep(self, norm: str) -> float:
        """sup over z of the slope's l2 norm (``norm="l2"``) or its largest entry (``"l1"``, whose dual is l∞)."""
        return 1.0

    def decode(self, z: Array) -> Array:
        """Predictions from margins [..., outputs]."""
        return z[..., 0]


@dataclass(frozen=True)
class OneVsAll(Loss):
    """Sum over classes of binary logistic losses: ℓ = Σ_c log(1 + e^{z_c}) − 1[y = c]·z_c, in nats. The paper's text model.

    ``classes`` is their number or the labels themselves (any hashable kind).

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
        index = indices(y, self.labels, like)  # type: ignore[attr-defined]
        return xp.astype(index[:, None] == xp.arange(self.outputs, device=device(like))[None, :], like.dtype)

    def value(self, z, target):
        # log(1 + e^z) − target·z with its larger terms already cancelled: a loss of e^−50 is still one.
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
        p, own = _sigmoid(away * z), self.slope(z, target)
        off, size = away * (u - own), xp.abs(u) + xp.abs(own)
        both = _kl(xp.stack([p, _sigmoid(-away * z)], axis=-1), xp.stack([off, -off], axis=-1), size[..., None])
        return xp.sum(both, axis=-1)

    def steep(self, norm):
        return math.sqrt(self.outputs) if norm == "l2" else 1.0

    def decode(self, z):
        """The label of the largest margin."""
        labels, index = self.labels, namespace(z).argmax(z, axis=-1)  # type: ignore[attr-defined]
        return index if labels == tuple(range(len(labels))) else pick(labels, index)


@dataclass(frozen=True)
class Softmax(OneVsAll):
    """Multinomial logistic loss ℓ = log Σ_c e^{z_c} − z_y.

    >>> import numpy as np
    >>> round(float(Softmax(2).value(np.zeros(2), np.array([1.0, 0.0]))), 4)
    0.6931
    """

    bend: ClassVar[float] = 0.5
    coupled: ClassVar[bool] = True

    def _odds(self, z, target):
        """e^(z_c − top) of the classes that are not y (0 at y), their sum, and z_y − top ≤ 0: nothing that cancels later."""
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
        p, lacking = (odds + target * own) / (rest + own), (rest + (1 - target) * own - odds) / (rest + own)
        eye = xp.eye(self.outputs, dtype=z.dtype, device=device(z))
        return eye * (p * lacking)[..., :, None] - (1 - eye) * p[..., :, None] * p[..., None, :]

    def conjugate(self, u, target):
        xp = namespace(u)
        p = u + target
        off = xp.abs(xp.sum(p, axis=-1) - 1) > 1e-9
        return xp.where(off, full((), math.inf, u), xp.sum(_entropy(p), axis=-1))

    def excess(self, z, u, target):
        xp = namespace(z)
        odds, rest, behind = self._odds(z, target)
        p, own = (odds + target * xp.exp(behind)) / (rest + xp.exp(behind)), self.slope(z, target)
        off = u - own
        off = off - p * xp.sum(off, axis=-1, keepdims=True)  # slopes sum to zero, up to rounding
        return _kl(p, off, xp.abs(u) + xp.abs(own))

    def steep(self, norm):
        return math.sqrt(2) if norm == "l2" else 1.0


@dataclass(frozen=True)
class _Binary(Loss):
    """Two labels, (negative, positive). Without ``classes``: {0, 1}, {−1, 1} or booleans."""

    classes: tuple[Hashable, ...] | None = None

    def __post_init__(self):
        if self.classes is not None:
            labels = labels_of(self.classes, 2)
            if len(labels) != 2:
                raise FMRLError(f"{type(self).__name__} takes two classes, not {len(labels)}", fix="use OneVsAll or Softmax")
            object.__setattr__(self, "classes", labels)

    def _positive(self, y, like):
        """1 for the positive label, else 0, shape [m, 1]."""
        xp = namespace(like)
        if self.classes is not None:
            return xp.astype(indices(y, self.classes, like), like.dtype)[:, None]
        y = as_array(y)
        if y.ndim != 1 or not namespace(y).isdtype(y.dtype, ("numeric", "bool")):
            raise FMRLError("y must be a vector of 0 and 1, −1 and 1, or booleans", fix="or name the two labels in classes")
        y = xp.asarray(y, device=device(like)) if namespace(y) is not xp else y
        y = xp.astype(y, like.dtype)
        bad = (y != 1) & (y != 0) & (y != -1)
        if bool(xp.any(y == 0)) and bool(xp.any(y == -1)):
            raise FMRLError("y has both 0 and −1, so neither of {0, 1} nor of {−1, 1}", fix="name the two labels in classes")
        if bool(xp.any(bad)):
            i = int(xp.argmax(xp.astype(bad, xp.int64)))
            raise FMRLError(f"label {float(y[i])!r} is neither of {{0, 1}} nor of {{−1, 1}}", round=i, fix="name it in classes")
        return xp.astype(y == 1, like.dtype)[:, None]

    def decode(self, z):
        """The label on the side of the margin's sign."""
        xp = namespace(z)
        index = xp.astype(z[..., 0] > 0, xp.int64)
        return index if self.classes is None else pick(self.classes, index)


@dataclass(frozen=True)
class Logistic(_Binary):
    """Binary logistic loss ℓ = log(1 + e^z) − y·z.

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


@dataclass(frozen=True)
class Hinge(_Binary):
    """Hinge loss ℓ = max(0, 1 − y·z) with y in {−1, 1}.

    >>> import numpy as np
    >>> float(Hinge().value(np.array([0.25]), np.array([1.0])))
    0.75
    """

    def encode(self, y, like):
        return 2 * self._positive(y, like) - 1

    def value(self, z, target):
        xp = namespace(z)
        return xp.maximum(1 - target * z, xp.zeros_like(z))[..., 0]

    def slope(self, z, target):
        xp = namespace(z)
        return xp.where(target * z < 1, -target, xp.zeros_like(z))

    def curvature(self, z, target):
        return namespace(z).zeros_like(z)

    def conjugate(self, u, target):
        xp = namespace(u)
        alpha = -u * target
        return xp.where((alpha >= -1e-15) & (alpha <= 1 + 1e-15), -alpha, full((), math.inf, u))[..., 0]  # up to rounding


@dataclass(frozen=True)
class Squared(Loss):
    """Half the squared error, ℓ = ½(z − y)². Lipschitz on bounded domains only, where its constant comes from the data.

    >>> import numpy as np
    >>> float(Squared().value(np.array([3.0]), np.array([1.0])))
    2.0
    """

    bend: ClassVar[float] = 1.0

    def encode(self, y, like):
        y = as_float(y, "y")
        if y.ndim != 1:
            raise FMRLError(f"y must be one-dimensional, not of shape {tuple(y.shape)}")
        xp = namespace(like)
        y = y if namespace(y) is xp else xp.asarray(y, device=device(like))
        if not bool(xp.all(xp.isfinite(y))):
            i = int(xp.argmax(xp.astype(~xp.isfinite(y), xp.int64)))
            raise FMRLError(f"y is {float(y[i])}", round=i, fix="drop or impute it")
        return xp.astype(y, like.dtype)[:, None]

    def value(self, z, target):
        return ((z - target) ** 2 / 2)[..., 0]

    def slope(self, z, target):
        return z - target

    def curvature(self, z, target):
        return namespace(z).ones_like(z)

    def conjugate(self, u, target):
        return (u * u / 2 + u * target)[..., 0]

    def excess(self, z, u, target):
        return ((z - target - u) ** 2 / 2)[..., 0]

    def steep(self, norm):
        return math.inf


@dataclass(frozen=True)
class Linear(Loss):
    """Linear loss ℓ = ⟨c, θ⟩ of a cost vector c: learning with expert advice. ``Task(costs, loss=Linear())``.

    >>> import numpy as np
    >>> float(Linear().value(np.array([0.3]), np.zeros(1)))
    0.3
    """

    bend: ClassVar[float] = 0.0
    lowest: ClassVar[float] = -math.inf

    def encode(self, y, like):
        if y is not None:
            raise FMRLError("Linear takes no labels", fix="call Task(costs, loss=Linear())")
        return like[:, :1] * 0

    def value(self, z, target):
        return z[..., 0]

    def slope(self, z, target):
        return namespace(z).ones_like(z)

    def curvature(self, z, target):
        return namespace(z).zeros_like(z)

    def conjugate(self, u, target):
        return full(u.shape[:-1], 0.0, u)
