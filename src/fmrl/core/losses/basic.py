"""Losses of linear models: each is a convex function of the margins z = ⟨θ_c, x⟩, one margin per
output c.

A loss says how labels become targets, its value, its slope ∂ℓ/∂z, its curvature ∂²ℓ/∂z², and two
constants: ``steep``, the largest slope (so a round is steep·‖x‖-Lipschitz), and ``bend``, the
largest curvature (so it is bend·‖x‖²-smooth). Margins and targets have shape [..., outputs]; every
method broadcasts over the leading axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fmrl.core.arrays import as_float, device, full, namespace
from fmrl.core.losses.base import Binary, Loss
from fmrl.core.losses.logistic import Logistic, OneVsAll, Softmax
from fmrl.errors import FMRLError

__all__ = ["Hinge", "Linear", "Logistic", "Loss", "OneVsAll", "Softmax", "Squared"]


@dataclass(frozen=True)
class Hinge(Binary):
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
        return xp.where((alpha >= 0) & (alpha <= 1), -alpha, full((), math.inf, u))[..., 0]

    def excess(self, z, u, target):
        xp, alpha = namespace(z), -u * target
        most = xp.minimum(xp.maximum(alpha, xp.zeros_like(u)), xp.ones_like(u))
        return super().excess(
            z, xp.where(xp.abs(alpha - most) <= 1e-15, -most * target, u), target
        )  # up to rounding


@dataclass(frozen=True)
class Squared(Loss):
    """Half the squared error, ℓ = ½(z − y)². Lipschitz on bounded domains only, where its constant
    comes from the data.

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
    """Linear loss ℓ = ⟨c, θ⟩ of a cost vector c: learning with expert advice. ``Task(costs,
    loss=Linear())``.

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
