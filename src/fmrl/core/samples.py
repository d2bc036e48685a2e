"""Rounds of a linear model as arrays: margins, losses, gradients and constants, of one task or a
stack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self
from zlib import crc32

import numpy as np

from fmrl.core.arrays import Array, constant, dot, faintest, full, namespace
from fmrl.core.domains import Domain
from fmrl.core.losses import Loss
from fmrl.core.values import foreign
from fmrl.errors import FMRLError


@dataclass(frozen=True, eq=False)
class Samples:
    """Rounds of a linear model, stacked on leading axes.

    Round i has the loss ℓ(⟨θ_c, x_i⟩ + offset, target_i), c = 1 … outputs.
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
        shape = (*theta.shape[:-1], self.loss.outputs, self.X.shape[-1])
        return namespace(theta).reshape(theta, shape)

    def margins(self, theta: Array, offset: bool = True) -> Array:
        """z of every round, [..., n, outputs]; without the offset, its change along a step."""
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
        X, target, weight = self.X[..., :i, :], self.target[..., :i, :], self.weight[..., :i]
        offset = None if self.offset is None else self.offset[..., :i, :]
        rounds = namespace(X).minimum(self.rounds, full((), float(i), self.rounds))
        return replace(self, X=X, target=target, weight=weight, rounds=rounds, offset=offset)

    def take(self, index: Array) -> Self:
        """The tasks at ``index`` of a stack [B, …]."""
        xp = namespace(self.X)
        names = ("X", "target", "weight", "rounds") + (() if self.offset is None else ("offset",))
        taken = {name: xp.take(getattr(self, name), index, axis=0) for name in names}
        return replace(self, **taken)

    def reveal(self, i: int, theta: Array) -> tuple[Array, Array]:
        """Loss and gradient of round i at theta."""
        x, target = self.X[..., i, :], self.target[..., i, :]
        z = dot(self.matrix(theta), x[..., None, :])
        g = self.loss.slope(z, target)[..., :, None] * x[..., None, :]
        g = namespace(theta).reshape(g, (*g.shape[:-2], self.dim))
        return self.loss.value(z, target) * self.weight[..., i], g

    def lipschitz(self, domain: Domain) -> Array:
        """Root mean square of the rounds' Lipschitz constants, the largest ‖slope ⊗ x‖_*; [...]."""
        xp = namespace(self.X)
        steep = self.loss.steep(domain.norm)
        constant = domain.dual(self.X) * (steep if math.isfinite(steep) else self._steepest(domain))
        mean = xp.sum(self.weight * constant**2, axis=-1) / self.rounds
        least, some = faintest(mean), xp.any(self.weight * constant > 0, axis=-1)
        # A larger constant is one too. Squares of a smaller one would underflow here and in bounds.
        return xp.sqrt(xp.where(some & (mean < least), full((), least, mean), mean))

    def _steepest(self, domain: Domain) -> Array:
        """max over the domain of |⟨θ, x⟩ − y|, for losses whose slope grows with it; [..., n]."""
        xp = namespace(self.X)
        try:
            high, low = (dot(s * self.X, domain.lowest(s * self.X)) for s in (-1, 1))
        except FMRLError:
            what = f"{self.loss!r} is not Lipschitz on {domain!r}"
            raise FMRLError(what, fix="use a bounded domain or FMRL(lipschitz=…)") from None
        y = self.target[..., 0]
        return xp.maximum(xp.abs(-high - y), xp.abs(low - y))

    def smoothness(self, domain: Domain) -> Array:
        """bend·Σ‖x‖²_*, a smoothness constant of the summed losses in the domain's norm; [...]."""
        square = self.weight * domain.dual(self.X) ** 2
        return self.loss.bend * namespace(square).sum(square, axis=-1)

    def checksums(self) -> tuple[Array, Array]:
        """Numbers that tell these rows and their targets from others, shape [...] each.

            (1 + code)·Σᵢ cos(i)·Σⱼ cos(√2·j)·xᵢⱼ        Σᵢ cos(i)·Σₖ cos(√3·k)·targetᵢₖ

        where ``code`` is of the kind of loss. Padding adds nothing, so a task has the same numbers
        in every stack, up to rounding.
        """
        rounds = (a @ _waves(a, square) for a, square in ((self.X, 2), (self.target, 3)))
        rows, targets = (each @ _waves(each, 1) for each in rounds)
        return (1 + _code(type(self.loss), type(getattr(self.loss, "loss", None)))) * rows, targets


def _waves(like: Array, square: int) -> Array:
    """cos(√square·k) for k = 1, 2, … along the last axis of ``like``, in its namespace."""
    waves = _cosines(like.shape[-1], square)
    return waves if like.dtype == waves.dtype else constant(waves, like)


@lru_cache(maxsize=256)
def _cosines(count: int, square: int) -> np.ndarray:
    return np.cos(math.sqrt(square) * np.arange(1, count + 1))


@lru_cache(maxsize=256)
def _code(*kinds: type) -> float:
    """A number from 0 to 1 for the names of classes."""
    return crc32(" ".join(map(repr, kinds)).encode()) / 2**32


def identify(game: Any, like: Array) -> dict[str, Array]:
    """What a record keeps to know a task again, in the shape of ``like``: two checksums, NaN where
    it is not made of rows, and ``convex``, 1 where its losses are the library's own, else 0.

    >>> import fmrl
    >>> game = fmrl.Task([[1.0, 2.0]], [0.5], loss=fmrl.Squared()).open()
    >>> found = identify(game, game.rounds)
    >>> list(found), float(found["convex"])
    (['row_checksum', 'target_checksum', 'convex'], 1.0)
    """
    known, sums = 0.0, (full(like.shape, math.nan, like),) * 2
    if isinstance(game, Samples):
        sums = game.checksums()
        known = 0.0 if foreign(game) or foreign(game.loss) else 1.0
    convex = full(like.shape, known, like)
    return {"row_checksum": sums[0], "target_checksum": sums[1], "convex": convex}
