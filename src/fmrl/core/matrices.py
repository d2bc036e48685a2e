"""Small matrix algebra for stacks [..., d, d], in the namespace of its arrays."""

from __future__ import annotations

from fmrl.core.arrays import Array, device, full, namespace


def T(matrix: Array) -> Array:
    """The transpose of the last two axes."""
    return namespace(matrix).matrix_transpose(matrix)


def apply(matrix: Array, v: Array) -> Array:
    """matrix [..., k, d] times v [..., d]."""
    xp = namespace(v)
    if matrix.ndim == 2:
        return xp.matmul(v, T(matrix))
    return xp.matmul(matrix, v[..., None])[..., 0]


def identity(phi: Array) -> Array:
    """The identity [..., d, d] with the leading axes of phi."""
    xp = namespace(phi)
    eye = xp.eye(phi.shape[-1], dtype=phi.dtype, device=device(phi))
    return eye + full((*phi.shape, 1), 0.0, phi)


def basis_of(columns: Array) -> Array:
    """Orthonormal columns [..., d, k] that span these."""
    return namespace(columns).linalg.qr(columns)[0]


def trace_of(A: Array, B: Array) -> Array:
    """tr(A·B) of symmetric matrices, [...]."""
    return namespace(A).sum(A * B, axis=(-2, -1))


def geometric_mean(A: Array, B: Array) -> tuple[Array, Array]:
    """H = A # B⁻¹, the positive definite solution of H·B·H = A, and H⁻¹; [..., d, d] each.

    Args:
        A: Positive definite, [..., d, d].
        B: Positive definite, [..., d, d].

    >>> import numpy as np
    >>> geometric_mean(np.diag([4.0, 9.0]), np.diag([1.0, 4.0]))[0].round(6)
    array([[2. , 0. ],
           [0. , 1.5]])
    """
    xp, half = namespace(A), geometric_root(A, B)[0]
    back = xp.linalg.inv(half)
    return xp.matmul(half, T(half)), xp.matmul(T(back), back)


def geometric_root(A: Array, B: Array) -> tuple[Array, Array, Array]:
    """R with R·Rᵀ = A # B⁻¹, and L and r with R = L·diag(r^−½) and Lᵀ·B·L = diag(r²).

    With A = C·Cᵀ and Cᵀ·B·C = V·r²·Vᵀ: L = C·V."""
    xp = namespace(A)
    # In coordinates where A has ones on its diagonal: units of columns do not matter.
    unit = xp.sqrt(xp.linalg.diagonal(A))
    room = 16 * xp.finfo(A.dtype).eps * xp.eye(A.shape[-1], dtype=A.dtype, device=device(A))
    even = A / (unit[..., :, None] * unit[..., None, :]) + room
    C = xp.linalg.cholesky(even) * unit[..., :, None]
    values, vectors = xp.linalg.eigh(xp.matmul(T(C), xp.matmul(B, C)))
    tiny = xp.finfo(A.dtype).eps ** 2 * values[..., -1:] + 1e-300
    roots, L = xp.sqrt(xp.maximum(values, tiny)), xp.matmul(C, vectors)
    return L / xp.sqrt(roots)[..., None, :], L, roots
