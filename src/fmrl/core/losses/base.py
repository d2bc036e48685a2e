"""What a loss of a linear model is: a convex function of the margins z = ⟨θ_c, x⟩, one margin per
output c.

A loss says how labels become targets, its value, its slope ∂ℓ/∂z, its curvature ∂²ℓ/∂z², and two
constants: ``steep``, the largest slope (so a round is steep·‖x‖-Lipschitz), and ``bend``, the
largest curvature (so it is bend·‖x‖²-smooth). Margins and targets have shape [..., outputs]; every
method broadcasts over the leading axes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from fmrl.core.arrays import Array, as_array, device, dot, namespace
from fmrl.core.losses.labels import indices, labels_of, pick
from fmrl.core.values import Value
from fmrl.errors import FMRLError


class Loss(Value, ABC):
    """A convex loss of the margins.

    A sample has ``outputs`` margins, so theta is [outputs, features], flat and row-major. A loss of
    your own subclasses this as a frozen dataclass and sets the constants below.
    """

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
        """At least Fenchel's ℓ(z) + ℓ*(u) − ⟨u, z⟩ ≥ 0, and 0 for u = ∂ℓ/∂z; shape [...]."""
        return self.value(z, target) + self.conjugate(u, target) - dot(u, z)

    def excess_within(self, z: Array, u: Array, target: Array, reach: Array) -> Array:
        """At least the excess of any slopes whose entries are within ``reach`` of u, shape [...].

        The excess is convex in u and a sum over the outputs of terms ≥ 0.
        """
        xp = namespace(z)
        above, below = (self.excess(z, u + side * reach, target) for side in (1, -1))
        return xp.maximum(above, below) if self.outputs == 1 else above + below

    def steep(self, norm: str) -> float:
        """sup over z of the slope's l2 norm (``norm="l2"``) or of its largest entry (``"l1"``,
        whose dual is l∞).
        """
        return 1.0

    def corners(self, target: Array) -> tuple[Array, Array]:
        """Of a loss size·max(0, 1 − y·z): y and size, [..., 1] each."""
        what = f"{self!r} has corners that the solver does not know"
        raise FMRLError(what, fix="use Hinge(), or set `bend` if the loss is smooth")

    def decode(self, z: Array) -> Array:
        """Predictions from margins [..., outputs]."""
        return z[..., 0]


@dataclass(frozen=True)
class Binary(Loss):
    """A loss of two labels.

    Args:
        classes: The labels (negative, positive). None: they are {0, 1}, {−1, 1} or booleans.
    """

    classes: tuple[Hashable, ...] | None = None

    def __post_init__(self):
        if self.classes is None:
            return
        labels = labels_of(self.classes, 2)
        if len(labels) != 2:
            what = f"{type(self).__name__} takes two classes, not {len(labels)}"
            raise FMRLError(what, fix="use OneVsAll or Softmax")
        object.__setattr__(self, "classes", labels)

    def _positive(self, y, like):
        """1 for the positive label, else 0, shape [m, 1]."""
        xp = namespace(like)
        if self.classes is not None:
            return xp.astype(indices(y, self.classes, like), like.dtype)[:, None]
        y = as_array(y)
        if y.ndim != 1 or not namespace(y).isdtype(y.dtype, ("numeric", "bool")):
            what = "y must be a vector of 0 and 1, −1 and 1, or booleans"
            raise FMRLError(what, fix="or name the two labels in classes")
        y = xp.asarray(y, device=device(like)) if namespace(y) is not xp else y
        y = xp.astype(y, like.dtype)
        if bool(xp.any(y == 0)) and bool(xp.any(y == -1)):
            what = "y has both 0 and −1, so neither of {0, 1} nor of {−1, 1}"
            raise FMRLError(what, fix="name the two labels in classes")
        bad = (y != 1) & (y != 0) & (y != -1)
        if bool(xp.any(bad)):
            i = int(xp.argmax(xp.astype(bad, xp.int64)))
            what = f"label {float(y[i])!r} is neither of {{0, 1}} nor of {{−1, 1}}"
            raise FMRLError(what, round=i, fix="name it in classes")
        return xp.astype(y == 1, like.dtype)[:, None]

    def decode(self, z):
        """The label on the side of the margin's sign."""
        xp = namespace(z)
        index = xp.astype(z[..., 0] > 0, xp.int64)
        return index if self.classes is None else pick(self.classes, index)
