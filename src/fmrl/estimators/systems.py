"""Many small linear systems side by side, in plain NumPy."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fmrl.core.posterior import beside

MANY = 64  # from which on it pays to handle them together
SMALL = 10  # unknowns up to which many are eliminated side by side
HUGE = 1e10  # beyond, `beside` is more than 1


@lru_cache(maxsize=8)
def eye(d: int) -> np.ndarray:
    """The identity; not to be written to."""
    return np.eye(d)


def with_one(A: np.ndarray) -> np.ndarray:
    """A + I, in place; more than I where that would be lost in rounding."""
    diagonal, one = A.diagonal(axis1=-2, axis2=-1), eye(A.shape[-1])
    A += beside(diagonal)[..., None, None] * one
    return A


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Σ a·b over the last axis."""
    return np.add.reduce(a * b, axis=-1)


def solve(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A⁻¹·b of A [..., d, d] with positive minors, b [..., d]."""
    if A.shape[-1] > SMALL or b[..., 0].size < MANY:
        return np.linalg.solve(A, b[..., None])[..., 0]
    return (inverse(A) @ b[..., None])[..., 0]


def inverse(A: np.ndarray) -> np.ndarray:
    """Of matrices with positive minors. Many small ones are eliminated side by side: a LAPACK call
    each would cost more than its work.
    """
    d = A.shape[-1]
    if d > SMALL or A[..., 0, 0].size < MANY:
        return np.linalg.inv(A)
    U = np.moveaxis(A, (-2, -1), (0, 1)).copy()
    for i in range(d):
        factor, row = U[:, i].copy(), U[i] / U[i, i]
        row[i] = 1 / factor[i]
        U[:, i] = 0.0
        U -= factor[:, None] * row
        U[i] = row
    return np.moveaxis(U, (0, 1), (-2, -1))
