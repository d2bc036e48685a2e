"""The losses that are not logistic: Hinge, Squared and Linear, and Weighted, which puts a weight on
every round of another loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fmrl.core.arrays import Array, as_float, device, full, namespace
from fmrl.core.checks import positive
from fmrl.core.losses.base import Binary, Loss
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class Hinge(Binary):
    """Hinge loss ℓ = max(0, 1 − y·z) with y in {−1, 1}.

    Args:
        classes: The labels (negative, positive). None: they are {0, 1}, {−1, 1} or booleans.

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

    def corners(self, target):
        return target, namespace(target).ones_like(target)

    def conjugate(self, u, target):
        xp = namespace(u)
        alpha = -u * target
        return xp.where((alpha >= 0) & (alpha <= 1), -alpha, full((), math.inf, u))[..., 0]

    def excess(self, z, u, target):
        xp, alpha = namespace(z), -u * target
        most = xp.minimum(xp.maximum(alpha, xp.zeros_like(u)), xp.ones_like(u))
        rounded = xp.abs(alpha - most) <= 1e-15
        return super().excess(z, xp.where(rounded, -most * target, u), target)


@dataclass(frozen=True)
class Squared(Loss):
    """Half the squared error, ℓ = ½(z − y)².

    It is Lipschitz on bounded domains only, where its constant comes from the data.

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
    """Linear loss ℓ = ⟨c, θ⟩ of a cost vector c: learning with expert advice.

    It takes no labels: ``Task(costs, loss=Linear())``.

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


@dataclass(frozen=True)
class Weighted(Loss):
    """w·ℓ(z), with w ≥ 0 the last column of the target: targets have shape [..., outputs + 1].

    Args:
        loss: The loss that is weighted; not Squared, whose rows can be scaled instead.
        most: The largest weight, which scales the loss's constants.

    >>> import numpy as np
    >>> from fmrl.core.losses import Logistic
    >>> loss = Weighted(Logistic(), 3.0)
    >>> round(float(loss.value(np.zeros(1), np.array([1.0, 3.0]))), 4), loss.bend
    (2.0794, 0.75)
    """

    loss: Loss
    most: float = 1.0

    def __post_init__(self):
        if not isinstance(self.loss, Loss):
            raise FMRLError(f"{self.loss!r} is not a loss", fix="give Weighted(Logistic(), most)")
        positive(most=self.most)
        if self.loss.steep("l2") == math.inf:
            fix = "scale the rows of X and y by the root of their weights"
            raise FMRLError(f"{self.loss!r} needs no Weighted", fix=fix)

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.loss.outputs

    @property
    def bend(self) -> float:  # type: ignore[override]
        return self.most * self.loss.bend

    @property
    def coupled(self) -> bool:  # type: ignore[override]
        return self.loss.coupled

    @property
    def attained(self) -> bool:  # type: ignore[override]
        return self.loss.attained

    def encode(self, y, like):
        """Weights of one; put others in the last column."""
        xp = namespace(like)
        if self.most < 1:
            fix = "give Tasks with weights, or most=1"
            raise FMRLError(f"rows weigh 1 here, more than the most of {self!r}", fix=fix)
        target = self.loss.encode(y, like)
        return xp.concat([target, xp.ones_like(target[:, :1])], axis=1)

    def value(self, z, target):
        return target[..., -1] * self.loss.value(z, target[..., :-1])

    def slope(self, z, target):
        return target[..., -1:] * self.loss.slope(z, target[..., :-1])

    def curvature(self, z, target):
        weight = target[..., -1:, None] if self.coupled else target[..., -1:]
        return weight * self.loss.curvature(z, target[..., :-1])

    def _apart(self, u, target):
        """u of the loss without its weight, the loss's own target, and the weight."""
        weight = target[..., -1]
        known = namespace(u).where(weight > 0, weight, namespace(u).ones_like(weight))
        return u / known[..., None], target[..., :-1], weight

    def conjugate(self, u, target):
        u, target, weight = self._apart(u, target)
        return weight * self.loss.conjugate(u, target)

    def excess(self, z, u, target):
        u, target, weight = self._apart(u, target)
        return weight * self.loss.excess(z, u, target)

    def excess_within(self, z, u, target, reach):
        reach, _, _ = self._apart(reach, target)
        u, target, weight = self._apart(u, target)
        return weight * self.loss.excess_within(z, u, target, reach)

    def corners(self, target):
        y, size = self.loss.corners(target[..., :-1])
        return y, size * target[..., -1:]

    def steep(self, norm):
        return self.most * self.loss.steep(norm)

    def decode(self, z):
        return self.loss.decode(z)


def weigh(
    loss: Loss, X: Array, target: Array, weight: Array, heaviest: float
) -> tuple[Loss, Array, Array]:
    """The loss, rows [..., n, f] and targets [..., n, k] under weights [..., n] on the rounds.

    ½(z − y)² weighted is ½(√w·z − √w·y)², so a squared loss stays one; others become `Weighted`.
    """
    xp = namespace(X)
    if isinstance(loss, Squared):
        root = xp.sqrt(weight)[..., None]
        return loss, root * X, root * target
    return Weighted(loss, heaviest), X, xp.concat([target, weight[..., None]], axis=-1)
