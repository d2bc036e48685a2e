"""Rounds of a linear model as arrays: margins, losses, gradients and constants, for one task or a
stack of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from fmrl.core.arrays import Array, dot, namespace
from fmrl.core.domains import Domain
from fmrl.core.losses import Loss
from fmrl.errors import FMRLError


@dataclass(frozen=True, eq=False)
class Samples:
    """Rounds of a linear model: round i has loss ℓ(⟨θ_c, x_i⟩ + offset, target_i), c = 1 …
    outputs. Stacks on leading axes.
    """

    loss: Loss
    X: Array  # [..., n, f]
    target: Array  # [..., n, outputs]
    weight: Array  # [..., n]: 1 for a round, 0 for padding, whose X is 0 too
    rounds: Array  # [...]: how many rounds count
    offset: Array | None = None  # [..., n, outputs]: constant part of the margins

    @property
    def length(self) -> int:
        """Rounds including padding."""
        return self.X.shape[-2]

    @property
    def dim(self) -> int:
        """Length of theta: outputs × features."""
        return self.loss.outputs * self.X.shape[-1]

    def matrix(self, theta: Array) -> Array:
        """theta [..., d] as [..., outputs, f]."""
        return namespace(theta).reshape(
            theta, (*theta.shape[:-1], self.loss.outputs, self.X.shape[-1])
        )

    def margins(self, theta: Array, offset: bool = True) -> Array:
        """z of every round, shape [..., n, outputs]; without the offset, the change of z along a
        step theta.
        """
        xp = namespace(theta)
        z = xp.matmul(self.X, xp.matrix_transpose(self.matrix(theta)))
        return z + self.offset if offset and self.offset is not None else z

    def losses(self, theta: Array) -> Array:
        """The loss of one action in every round, shape [..., n]."""
        return self.loss.value(self.margins(theta), self.target) * self.weight

    def gather(self, slope: Array) -> Array:
        """Σᵢ slopeᵢ ⊗ xᵢ: slopes [..., n, outputs] to a flat gradient [..., d]."""
        xp = namespace(slope)
        g = xp.matmul(xp.matrix_transpose(slope), self.X)
        return xp.reshape(g, (*g.shape[:-2], self.dim))

    def first(self, i: int) -> Self:
        """The first i rounds."""
        offset = None if self.offset is None else self.offset[..., :i, :]
        return replace(
            self,
            X=self.X[..., :i, :],
            target=self.target[..., :i, :],
            weight=self.weight[..., :i],
            offset=offset,
        )

    def take(self, index: Array) -> Self:
        """The tasks at ``index`` of a stack [B, …]."""
        xp = namespace(self.X)
        names = ("X", "target", "weight", "rounds") + (() if self.offset is None else ("offset",))
        return replace(
            self, **{name: xp.take(getattr(self, name), index, axis=0) for name in names}
        )

    def reveal(self, i: int, theta: Array) -> tuple[Array, Array]:
        """Loss and gradient of round i at theta."""
        xp = namespace(theta)
        x = self.X[..., i, :]
        z = dot(self.matrix(theta), x[..., None, :])
        target = self.target[..., i, :]
        g = self.loss.slope(z, target)[..., :, None] * x[..., None, :]
        return self.loss.value(z, target) * self.weight[..., i], xp.reshape(
            g, (*g.shape[:-2], self.dim)
        )

    def lipschitz(self, domain: Domain) -> Array:
        """Root mean square of the rounds' Lipschitz constants: the dual norm of slope ⊗ x at its
        largest.
        """
        xp = namespace(self.X)
        steep = self.loss.steep(domain.norm)
        constant = domain.dual(self.X) * (steep if math.isfinite(steep) else self._steepest(domain))
        return xp.sqrt(xp.sum(self.weight * constant**2, axis=-1) / self.rounds)

    def _steepest(self, domain: Domain) -> Array:
        """max over the domain of |⟨θ, x⟩ − y| per round, for losses whose slope grows with the
        margin; shape [..., n].
        """
        xp = namespace(self.X)
        try:
            high, low = (dot(s * self.X, domain.lowest(s * self.X)) for s in (-1, 1))
        except FMRLError:
            raise FMRLError(
                f"{self.loss!r} is not Lipschitz on {domain!r}",
                fix="use a bounded domain or FMRL(lipschitz=…)",
            ) from None
        y = self.target[..., 0]
        return xp.maximum(xp.abs(-high - y), xp.abs(low - y))

    def smoothness(self, domain: Domain) -> Array:
        """Smoothness constant of the summed losses in the domain's norm, at most bend·Σ‖x‖²_*,
        the bound returned; [...].
        """
        return self.loss.bend * namespace(self.X).sum(
            self.weight * domain.dual(self.X) ** 2, axis=-1
        )
