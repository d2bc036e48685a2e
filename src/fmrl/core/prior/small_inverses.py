"""Inverses and solutions of many small linear systems at once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fmrl.core.arrays import Array, device, full, namespace

MANY = 64  # systems, from which on eliminating them together pays
SMALL = 10  # unknowns up to which many systems are eliminated together
HUGE = 1e10  # a diagonal beyond which adding 1 is lost in rounding


@lru_cache(maxsize=16)
def _eye(d: int) -> np.ndarray:
    return np.eye(d)


def eye_like(d: int, like: Array) -> Array:
    """The identity [d, d] in the kind of ``like``; do not write to it.

    Args:
        d: Its size.
        like: An array of the wanted namespace, dtype and device.
    """
    if isinstance(like, np.ndarray) and like.dtype == np.float64:
        return _eye(d)
    return namespace(like).eye(d, dtype=like.dtype, device=device(like))


def ridge(diagonal: Array) -> Array:
    """Return what to add to A on its diagonal for A + I: 1, or enough not to be lost in rounding.

    Args:
        diagonal: Of A, [..., d].
    """
    xp = namespace(diagonal)
    if not diagonal.shape[-1]:
        return full(diagonal.shape[:-1], 1.0, diagonal)
    most = xp.max(diagonal, axis=-1)
    return xp.where(most > HUGE, 1 + 1e-12 * most, xp.ones_like(most))


def plus_identity(A: Array) -> Array:
    """Return A + I for A [..., d, d]; more than I where that would be lost in rounding."""
    d = A.shape[-1]
    added = ridge(namespace(A).linalg.diagonal(A))[..., None, None]
    return A + added * eye_like(d, A)


def solve(A: Array, b: Array) -> Array:
    """Return A⁻¹·b of A [..., d, d] with positive leading minors, b [..., d]."""
    if _eliminated(A):
        return (inverse(A) @ b[..., None])[..., 0]
    return _linalg(A).solve(A, b[..., None])[..., 0]


def inverse(A: Array) -> Array:
    """Return A⁻¹ of A [..., d, d] with positive leading minors.

    Many small matrices are eliminated side by side (Gauss-Jordan without pivots), because a LAPACK
    call for each would cost more than its work.
    """
    if not _eliminated(A):
        return _linalg(A).inv(A)
    U = np.moveaxis(A, (-2, -1), (0, 1)).copy()
    for i in range(len(U)):
        factor, row = U[:, i].copy(), U[i] / U[i, i]
        row[i] = 1 / factor[i]
        U[:, i] = 0.0
        U -= factor[:, None] * row
        U[i] = row
    return np.moveaxis(U, (0, 1), (-2, -1))


def _linalg(A: Array) -> Any:
    return np.linalg if isinstance(A, np.ndarray) else namespace(A).linalg


def _eliminated(A: Array) -> bool:
    d = A.shape[-1]
    return isinstance(A, np.ndarray) and 0 < d <= SMALL and A.size >= MANY * d * d
