"""``features=``: columns that a transformer makes of a row (splines, random features), after the
table's encoding and before anything is learned.

A fitted transformer is part of the encoder, so every way in uses it. `describe` stores it, and the
values of this library, as plain values and arrays: only classes of scikit-learn's public packages
and of `VALUES` are made anew on reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np
from scipy.interpolate import BSpline
from sklearn.base import BaseEstimator, clone

from fmrl.core.values import Value, parse
from fmrl.errors import FMRLError, warn
from fmrl.tables.encoder import Column, Encoder, Policy

# Of scikit-learn, where transformers are: nothing else is imported for a file's sake.
PACKAGES = (
    "cluster", "compose", "cross_decomposition", "decomposition", "ensemble", "feature_extraction",
    "feature_selection", "impute", "kernel_approximation", "linear_model", "manifold", "neighbors",
    "neural_network", "pipeline", "preprocessing", "random_projection", "tree",
)  # fmt: skip
SCORES = "sklearn.feature_selection._"


def add_features(encoder: Encoder, features: Any, rows: np.ndarray, y: Any) -> Encoder:
    """An encoder with a copy of the transformer ``features``, fitted to encoded rows; as it is,
    where there is none.
    """
    if features is None:
        return encoder
    if not (hasattr(features, "fit") and hasattr(features, "transform")):
        what = f"features must be a scikit-learn transformer, not {features!r}"
        raise FMRLError(what, fix="e.g. SplineTransformer(); names of columns are X's own")
    fitted = clone(features).fit(rows, y)
    try:
        describe([features, fitted], {}, "features=")
    except FMRLError as error:
        warn(f"save will refuse this estimator: {error}")
    return replace(encoder, transformer=fitted)


def _estimator(module: str, name: str, state: dict[str, Any]) -> Any:
    """An estimator of scikit-learn with its state."""
    known = module.startswith("sklearn.") and module.split(".")[1] in PACKAGES
    try:
        kind = getattr(import_module(module), name) if known else None
    except ImportError:
        raise ValueError(f"this version of scikit-learn has no {module}") from None
    if not (isinstance(kind, type) and issubclass(kind, BaseEstimator)):
        raise ValueError(f"{module}.{name} is not an estimator of scikit-learn")
    made = kind.__new__(kind)
    made.__setstate__(state)
    return made


def _score(module: str, name: str) -> Any:
    """A function that scores columns, of scikit-learn."""
    found = getattr(import_module(module), name, None) if module.startswith(SCORES) else None
    if not (isinstance(found, FunctionType) and found.__module__ == module):
        raise ValueError(f"{module}.{name} is not a score of scikit-learn")
    return found


def _texts(kind: str, *values: Any) -> np.ndarray:
    """An array of texts or other objects, which may also be arrays of one length."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found if kind == "O" else found.astype(str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "UO" and value.ndim == 1


def _is_type(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, np.generic)


# Frozen classes of this library that a file may hold, by name: their fields are stored.
VALUES: dict[str, type] = {kind.__name__: kind for kind in (Column, Encoder, Policy)}
# What else it may hold: which values are of a kind, their parts, and the value of such parts.
_STORED: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Any], Callable[..., Any]]] = {
    "list": (lambda v: isinstance(v, list), list, lambda *v: list(v)),
    "tuple": (lambda v: isinstance(v, tuple), list, lambda *v: v),
    "set": (lambda v: isinstance(v, set), list, lambda *v: set(v)),
    "dict": (lambda v: isinstance(v, dict), dict.items, lambda *v: dict(v)),
    "texts": (_is_texts, lambda v: [v.dtype.kind, *v.tolist()], _texts),
    "dtype": (lambda v: isinstance(v, np.dtype), lambda v: [v.str], np.dtype),
    "type": (_is_type, lambda v: [np.dtype(v).str], lambda v: np.dtype(v).type),
    "slice": (lambda v: isinstance(v, slice), lambda v: [v.start, v.stop, v.step], slice),
    "spline": (lambda v: isinstance(v, BSpline), lambda v: [v.t, v.c, v.k, v.extrapolate], BSpline),
    "score": (
        lambda v: isinstance(v, FunctionType) and v.__module__.startswith(SCORES),
        lambda v: [v.__module__, v.__name__],
        _score,
    ),
    "text": (lambda v: isinstance(v, Value), lambda v: [repr(v)], parse),
    "class": (
        lambda v: isinstance(v, BaseEstimator) and type(v).__module__.startswith("sklearn."),
        lambda v: [type(v).__module__, type(v).__qualname__, dict(v.__getstate__())],
        _estimator,
    ),
}


def describe(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """A value as JSON can hold it; arrays are put aside, named after their place in it.

    Args:
        value: A transformer, a value of this library, or a part of one.
        arrays: Gets the arrays.
        name: Of the value, with which the names of its arrays begin.

    >>> from sklearn.preprocessing import StandardScaler
    >>> arrays = {}
    >>> held = describe(StandardScaler().fit([[1.0], [3.0]]), arrays, "features")
    >>> rebuild(held, arrays).transform([[5.0]])
    array([[3.]])
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        arrays[name] = value
        return {"array": name}
    if VALUES.get(kind := type(value).__name__) is type(value):
        parts = {part: getattr(value, part) for part in _fields(type(value))}
        return {kind: {n: describe(part, arrays, f"{name}.{n}") for n, part in parts.items()}}
    for kind, (is_one, parts_of, _) in _STORED.items():
        if is_one(value):
            parts = enumerate(parts_of(value))
            return {kind: [describe(part, arrays, f"{name}.{i}") for i, part in parts]}
    where = re.split(r"\.\d", name)[0]
    what = f"{where} holds a {type(value).__name__}, which cannot be stored"
    raise FMRLError(what, fix="use what scikit-learn or this library has, or pickle the estimator")


def rebuild(held: Any, arrays: dict[str, np.ndarray]) -> Any:
    """What `describe` was given; ValueError for anything it does not write.

    Args:
        held: What it gave.
        arrays: What it put aside.
    """
    if not isinstance(held, dict):
        return held
    ((kind, inside),) = held.items()
    if kind == "array":
        return arrays[inside]
    if kind in VALUES:
        return VALUES[kind](**{name: rebuild(part, arrays) for name, part in inside.items()})
    return _STORED[kind][2](*(rebuild(part, arrays) for part in inside))


def _fields(kind: Any) -> list[str]:
    """The names of a dataclass's or a NamedTuple's fields."""
    return list(getattr(kind, "_fields", None) or [field.name for field in fields(kind)])
