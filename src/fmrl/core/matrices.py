"""Small matrix algebra for stacks [..., d, d], in the namespace of its arrays."""

from __future__ import annotations

from fmrl.core.arrays import Array, device, dot, full, namespace
from fmrl.errors import FMRLError


def T(matrix: Array) -> Array:
    """The transpose of the last two axes."""
    return matrix.mT


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


def eigh(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues [..., d] and eigenvectors of symmetric matrices [..., d, d].

    LAPACK's quickest method now and then gives up on a harmless matrix, and not on the same one
    with its rows and columns in reverse order.
    """
    xp = namespace(matrix)
    try:
        values, vectors = xp.linalg.eigh(matrix)
    except (ValueError, RuntimeError):  # NumPy's LinAlgError, and torch's
        refuse_overflow(matrix)
        values, vectors = xp.linalg.eigh(xp.flip(matrix, axis=(-2, -1)))
        vectors = xp.flip(vectors, axis=-2)
    return values, vectors


def cholesky(matrix: Array) -> Array:
    """C [..., d, d] with C·Cᵀ = matrix, which is positive definite but for rounding.

    >>> import numpy as np
    >>> cholesky(np.array([[4.0, 2.0], [2.0, 1.0]])).round(3)
    array([[2., 0.],
           [1., 0.]])
    """
    xp = namespace(matrix)
    # Cholesky's own rounding is relative to the diagonal: units do not matter.
    room = 16 * xp.finfo(matrix.dtype).eps * xp.linalg.diagonal(matrix)
    try:
        return xp.linalg.cholesky(raised(xp.asarray(matrix, copy=True), room))
    except (ValueError, RuntimeError):
        refuse_overflow(matrix)
        raise


def definite_solve(matrix: Array, right: Array) -> Array:
    """matrix⁻¹·right [..., d, k], for a matrix that is positive definite but for rounding."""
    xp = namespace(matrix)
    try:
        return xp.linalg.solve(matrix, right)
    except (ValueError, RuntimeError):  # singular to the last bit: NumPy's error, and torch's
        refuse_overflow(matrix)
        room = 64 * xp.finfo(matrix.dtype).eps * xp.linalg.diagonal(matrix)
        return xp.linalg.solve(raised(xp.asarray(matrix, copy=True), room), right)


def root_solve(root: Array, right: Array) -> Array:
    """root⁻¹·right [..., d, k], for a root [..., d, d] of a metric."""
    try:
        return namespace(root).linalg.solve(root, right)
    except (ValueError, RuntimeError):  # NumPy's error, and torch's
        refuse_overflow(root)
        what = f"a metric has a direction of which {root.dtype} keeps nothing"
        raise FMRLError(what, fix="use float64, or a larger epsilon") from None


def refuse_overflow(matrix: Array) -> None:
    """Refuse a matrix with infinite entries."""
    if not bool(namespace(matrix).all(namespace(matrix).isfinite(matrix))):
        what = f"products of numbers this large overflow in {matrix.dtype}"
        raise FMRLError(what, fix="use float64, or scale the data")


def trace_of(A: Array, B: Array) -> Array:
    """tr(A·B) of symmetric matrices, [...]."""
    return dot(_flat(A), _flat(B))


def raised(matrix: Array, by: Array) -> Array:
    """A matrix [..., d, d] that nobody else holds, with ``by`` [...] or [..., d] more on its
    diagonal; it may be changed in place.
    """
    flat = _flat(matrix)
    flat[..., :: matrix.shape[-1] + 1] += by
    return namespace(matrix).reshape(flat, matrix.shape)


def _flat(matrix: Array) -> Array:
    """[..., d, d] as [..., d²], with no copy where it lies in one piece."""
    return namespace(matrix).reshape(matrix, (*matrix.shape[:-2], matrix.shape[-1] ** 2))


def geometric_mean(A: Array, B: Array) -> Array:
    """H = A # B⁻¹, the positive definite solution of H·B·H = A, [..., d, d].

    Args:
        A: Positive definite, [..., d, d].
        B: Positive definite, [..., d, d].

    >>> import numpy as np
    >>> geometric_mean(np.diag([4.0, 9.0]), np.diag([1.0, 4.0])).round(6)
    array([[2. , 0. ],
           [0. , 1.5]])
    """
    return geometric_roots(A, B)[0]


def geometric_roots(A: Array, B: Array) -> tuple[Array, Array, Array]:
    """H = A # B⁻¹, W with W·Wᵀ = H⁻¹, and r ≥ 0 with Σr = tr(HB) = tr(H⁻¹A).

    With A = C·Cᵀ, Cᵀ·B·C = V·r²·Vᵀ and L = C·V: H = L·diag(1/r)·Lᵀ, and H⁻¹ = L⁻ᵀ·diag(r)·L⁻¹ with
    L⁻ᵀ = B·L·diag(r⁻²).
    """
    xp, eps = namespace(A), namespace(A).finfo(A.dtype).eps
    C = cholesky(A)
    BC = xp.matmul(B, C)
    values, V = eigh(xp.matmul(T(C), BC))
    r = xp.sqrt(xp.maximum(values, eps**2 * values[..., -1:] + 1e-300))
    V /= xp.sqrt(r)[..., None, :]
    root = xp.matmul(C, V)
    V /= r[..., None, :]
    return xp.matmul(root, T(root)), xp.matmul(BC, V), r
