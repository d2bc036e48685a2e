"""The linear systems of a Newton step: one symmetric matrix per class, or one for all classes when
the loss couples them.
"""

from __future__ import annotations

from collections.abc import Callable

from fmrl.core.arrays import Array, device, dot, namespace
from fmrl.core.samples import Samples

Solve = Callable[..., list[Array]]


def hessian(samples: Samples, curvature: Array) -> Array:
    """Σᵢ curvatureᵢ ⊗ xᵢxᵢᵀ as diagonal blocks [B, blocks, size, size]: a block per class, or one
    for all when coupled.
    """
    xp = namespace(samples.X)
    turned = xp.matrix_transpose(samples.X)  # [B, f, n]
    C = samples.loss.outputs

    def block(weight: Array) -> Array:
        return xp.matmul(turned * (weight * samples.weight)[..., None, :], samples.X)

    if not samples.loss.coupled:
        return xp.stack([block(curvature[..., c]) for c in range(C)], axis=-3)
    rows = [xp.concat([block(curvature[..., a, b]) for b in range(C)], axis=-1) for a in range(C)]
    return xp.concat(rows, axis=-2)[..., None, :, :]


def system(blocks: Array, diagonal: Array) -> Solve:
    """Solver for (blocks + diagonal) x = b with blocks [B, k, s, s] and diagonal [B, k·s]; one
    solution per right-hand side.
    """
    xp, shape = namespace(blocks), blocks.shape[:-1]
    # A whisper of the largest curvature keeps a flat direction of an unbounded problem solvable.
    top = xp.max(xp.reshape(xp.abs(blocks), (shape[0], -1)), axis=-1)[..., None]
    diagonal = xp.reshape(diagonal + 1e-15 * top + 1e-290, shape)
    matrix = blocks + diagonal[..., None] * xp.eye(
        shape[-1], dtype=diagonal.dtype, device=device(diagonal)
    )
    # Active constraints make entries of wildly different size; scaling the diagonal to 1 keeps the
    # solve exact.
    scale = 1 / xp.sqrt(xp.linalg.diagonal(matrix))
    matrix = matrix * scale[..., :, None] * scale[..., None, :]

    def solve(*columns: Array) -> list[Array]:
        right = xp.stack([xp.reshape(c, shape) * scale for c in columns], axis=-1)
        solved = xp.linalg.solve(matrix, right) * scale[..., None]
        return [xp.reshape(solved[..., j], columns[0].shape) for j in range(len(columns))]

    return solve


def less(solve: Solve, g: Array, most: Array) -> Solve:
    """The solver with share·ggᵀ taken off its matrix, by Sherman and Morrison; share is ``most`` or
    what leaves it positive.
    """
    xp = namespace(g)

    def solve_less(*columns: Array) -> list[Array]:
        *plain, along = solve(*columns, g)
        bent = dot(g, along)
        share = xp.minimum(most, 0.999 / (bent + 1e-300))
        return [x + (share * dot(g, x) / (1 - share * bent))[..., None] * along for x in plain]

    return solve_less
