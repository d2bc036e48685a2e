"""Weighted: a loss with a weight on every round, so that the rest of the library need not know
about weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from fmrl.core.arrays import Array, namespace
from fmrl.core.losses.base import Loss
from fmrl.core.losses.basic import Squared
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class Weighted(Loss):
    """w·ℓ(z), with w ≥ 0 the last column of the target: targets have shape [..., outputs + 1].

    ``most`` is the largest weight, which scales the loss's constants.

    >>> import numpy as np
    >>> from fmrl.core.losses import Logistic
    >>> loss = Weighted(Logistic(), 3.0)
    >>> round(float(loss.value(np.zeros(1), np.array([1.0, 3.0]))), 4), loss.bend
    (2.0794, 0.75)
    """

    loss: Loss
    most: float = 1.0

    def __post_init__(self):
        if self.loss.steep("l2") == float("inf"):
            raise FMRLError(
                f"{self.loss!r} needs no Weighted",
                fix="scale the rows of X and y by the root of their weights",
            )

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """As many margins as the loss has."""
        return self.loss.outputs

    @property
    def bend(self) -> float:  # type: ignore[override]
        """The largest curvature."""
        return self.most * self.loss.bend

    @property
    def coupled(self) -> bool:  # type: ignore[override]
        """As the loss."""
        return self.loss.coupled

    @property
    def attained(self) -> bool:  # type: ignore[override]
        """As the loss."""
        return self.loss.attained

    def encode(self, y, like):
        """Weights of one; put others in the last column."""
        xp = namespace(like)
        target = self.loss.encode(y, like)
        return xp.concat([target, xp.ones_like(target[:, :1])], axis=1)

    def value(self, z, target):
        return target[..., -1] * self.loss.value(z, target[..., :-1])

    def slope(self, z, target):
        return target[..., -1:] * self.loss.slope(z, target[..., :-1])

    def curvature(self, z, target):
        weight = target[..., -1:]
        return (weight[..., None] if self.coupled else weight) * self.loss.curvature(
            z, target[..., :-1]
        )

    def conjugate(self, u, target):
        xp, weight = namespace(u), target[..., -1]
        known = xp.where(weight > 0, weight, xp.ones_like(weight))
        return weight * self.loss.conjugate(u / known[..., None], target[..., :-1])

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
