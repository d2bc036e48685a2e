"""In which ways the covariance of tasks may vary, and matrices of such a kind."""

from __future__ import annotations

from typing import Any

from fmrl.core.arrays import Array, device, namespace
from fmrl.core.matrices import eigh
from fmrl.errors import FMRLError

FAMILIES = ("isotropic", "diagonal", "full")


def check_family(family: Any, dim: int) -> Any:
    """A family as "full", a rank, or a tuple of labels."""
    if isinstance(family, str) and family in FAMILIES:
        labels = {"isotropic": (0,) * dim, "diagonal": tuple(range(dim))}
        return labels.get(family, family)
    if isinstance(family, int) and not isinstance(family, bool) and family >= 1:
        return family
    labels: Any = getattr(family, "tolist", lambda: family)()
    if isinstance(labels, (list, tuple)) and all(isinstance(i, int) for i in labels):
        if len(labels) == dim:
            return tuple(labels)
        raise FMRLError(f"family has {len(labels)} labels, and there are {dim} parameters")
    names = ", ".join(map(repr, FAMILIES))
    raise FMRLError(f"family must be one of {names}, a rank or labels, not {family!r}")


def of_rank(H: Array, family: Any) -> Array:
    """H with one variance for all but so many directions, where the family is a rank."""
    dim = H.shape[-1]
    if not isinstance(family, int) or family >= dim:
        return H
    xp = namespace(H)
    values, vectors = eigh(H)
    rest = xp.mean(values[: dim - family])
    top = xp.where(xp.arange(dim, device=device(values)) >= dim - family, values, rest)
    return xp.matmul(vectors * top, xp.matrix_transpose(vectors))
