"""Array namespaces: whatever kind of array comes in goes out, and kinds are never mixed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from fmrl.errors import FMRLError

Array = Any  # any array-API array: numpy.ndarray, torch.Tensor, array_api_strict.Array, …


# Looking a namespace up costs as much as a small array operation, so it is done once.
_NAMESPACES: dict[type, Any] = {}
NUMBERS = (int, float, bool, complex)  # of Python, which live in any namespace and have none


def namespace(*arrays: Array) -> Any:
    """The one namespace all ``arrays`` live in.

    >>> namespace(np.ones(2)).__name__
    'array_api_compat.numpy'
    """
    first = type(arrays[0])
    found = _NAMESPACES.get(first)
    if found is not None:
        for a in arrays:  # a generator would cost more than what it looks at
            kind = type(a)
            if kind is not first and kind not in NUMBERS and _NAMESPACES.get(kind) is not found:
                break
        else:
            return found
    try:
        found = array_namespace(*arrays)
        _NAMESPACES.update({type(a): found for a in arrays if type(a) not in NUMBERS})
        return found
    except TypeError:
        kinds = sorted({f"{type(a).__module__}.{type(a).__name__}" for a in arrays})
        what = f"arrays of different kinds were mixed ({', '.join(kinds)})"
        what = f"an array is needed, not a {kinds[0]}" if len(kinds) == 1 else what
        raise FMRLError(what, fix="convert them all to one kind") from None


def as_array(x: Any) -> Array:
    """``x`` itself if it is an array already, else a NumPy array of it (lists, data-frame
    columns, scalars).
    """
    if is_array_api_obj(x) and not isinstance(x, np.generic):
        return x
    try:
        return np.asarray(x)
    except ValueError:
        raise FMRLError("rows have different lengths", fix="give a rectangular array") from None


def as_float(x: Any, name: str = "array") -> Array:
    """``x`` as a floating-point array: float32 and float64 are kept, integers and booleans become
    float64.

    >>> as_float([1, 2]).dtype
    dtype('float64')
    """
    x = as_array(x)
    xp = namespace(x)
    if xp.isdtype(x.dtype, "real floating"):
        return x if x.dtype in (xp.float32, xp.float64) else xp.astype(x, xp.float32)
    if xp.isdtype(x.dtype, ("integral", "bool")):
        return xp.astype(x, xp.float64)
    what = f"{name} has dtype {x.dtype}, which is not a real number"
    raise FMRLError(what, fix="give integers or floats")


def constant(value: float | tuple | Array, like: Array) -> Any:
    """A scalar unchanged, or a vector of numbers in the namespace, dtype and device of ``like``."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, tuple) and len(value) != like.shape[-1]:
        what = f"a vector of {len(value)} numbers was given where {like.shape[-1]} are needed"
        raise FMRLError(what, fix="check the domain")
    return namespace(like).asarray(value, dtype=like.dtype, device=device(like))


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Zeros with the dtype and device of ``like``."""
    return namespace(like).zeros(shape, dtype=like.dtype, device=device(like))


def full(shape: tuple[int, ...], value: float, like: Array) -> Array:
    """A constant array with the dtype and device of ``like``."""
    if type(like) is np.ndarray:  # asking for its device would cost more than the array
        return np.full(shape, value, like.dtype) if shape else np.array(value, like.dtype)
    return namespace(like).full(shape, value, dtype=like.dtype, device=device(like))


def dot(a: Array, b: Array) -> Array:
    """Inner product over the last axis, with broadcasting over the others."""
    if type(a) is np.ndarray and a.ndim == 1 and type(b) is np.ndarray and b.ndim == 1:
        return a.dot(b)  # the same sum, in a third of the time
    return namespace(a, b).vecdot(a, b)


def norm(a: Array) -> Array:
    """Euclidean norm over the last axis."""
    return namespace(a).sqrt(dot(a, a))


def scaled_norm(a: Array) -> Array:
    """Euclidean norm over the last axis, also of numbers whose squares underflow.

    >>> float(scaled_norm(np.array([3e-200, 4e-200])))
    5e-200
    """
    xp, square = namespace(a), dot(a, a)
    if not anywhere(faint := square < faintest(a)):
        return xp.sqrt(square)
    size = xp.max(xp.abs(a), axis=-1)
    size = xp.where(size > 0, size, xp.ones_like(size))
    return xp.where(faint, size * norm(a / size[..., None]), xp.sqrt(square))


def faintest(a: Array) -> float:
    """The least number of the dtype of ``a`` that has all its digits as a sum of squares."""
    about = namespace(a).finfo(a.dtype)
    return float(about.smallest_normal) / float(about.eps)


def unit(a: Array) -> Array:
    """a/‖a‖ over the last axis, or 0 where a is 0."""
    xp, length = namespace(a), norm(a)[..., None]
    return a / xp.where(length > 0, length, xp.ones_like(length))


def anywhere(mask: Array) -> bool:
    """Whether any of ``mask`` is true; quick for a single one."""
    if math.prod(mask.shape) == 1:
        return bool(mask[(0,) * mask.ndim])
    return bool(namespace(mask).any(mask))


def certain(mask: Array) -> bool:
    """Whether ``mask`` is one NumPy truth value, and true: then `where` has nothing to choose.

    Asked before work that a stream does whenever a task ends; other arrays, whose values may lie on
    a device, are not looked at.
    """
    return type(mask) is np.bool_ and bool(mask)


def floats(x: Array) -> list[float]:
    """The numbers of a vector, for a loop over them."""
    return x.tolist() if hasattr(x, "tolist") else [float(x[i]) for i in range(x.shape[0])]


def to_numpy(x: Array) -> np.ndarray:
    """A NumPy copy of any array (for records and figures; never inside an algorithm)."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().numpy()
    return np.array(x)


def stacked(values: Any) -> Any:
    """Numbers, metrics or whole states side by side on a new first axis; plain counts are those of
    all of them.
    """
    first = values[0]
    if isinstance(first, tuple):
        parts = [stacked(column) for column in zip(*values, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if hasattr(first, "arrays"):  # a metric
        return type(first)(**{n: stacked([v.arrays[n] for v in values]) for n in first.arrays})
    if first is None or isinstance(first, (int, str)):
        return first
    return namespace(as_array(first)).stack([as_array(v) for v in values])
