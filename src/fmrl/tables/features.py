"""``features=``: columns that a transformer makes of a row (splines, random features), after the
table's encoding and before anything is learned.

A fitted transformer is part of the encoder, so every way in uses it. It is stored as plain values
and arrays: only classes of scikit-learn's public packages are made anew on reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np
from scipy.interpolate import BSpline
from sklearn.base import BaseEstimator, clone

from fmrl.errors import FMRLError, warn
from fmrl.tables.encoder import Encoder

# Of scikit-learn, where transformers are: nothing else is imported for a file's sake.
PACKAGES = (
    "cluster", "compose", "cross_decomposition", "decomposition", "ensemble", "feature_extraction",
    "feature_selection", "impute", "kernel_approximation", "linear_model", "manifold", "neighbors",
    "neural_network", "pipeline", "preprocessing", "random_projection", "tree",
)  # fmt: skip
SCORES = "sklearn.feature_selection._"


@dataclass(frozen=True)
class Expanded(Encoder):
    """An encoding of tables, and a fitted transformer of what it gives."""

    transformer: Any = None

    @cached_property
    def plain(self) -> bool:
        """Numbers do not stay as they are."""
        return False

    @property
    def names(self) -> list[str]:
        """Names of the transformer's columns."""
        own = Encoder.names.fget(self)  # type: ignore[attr-defined]
        if hasattr(self.transformer, "get_feature_names_out"):
            return [str(n) for n in self.transformer.get_feature_names_out(own)]
        return [f"feature {i}" for i in range(self.expand(np.zeros((1, len(own)))).shape[1])]

    @cached_property
    def table(self) -> Encoder:
        """The encoding alone."""
        return Encoder(self.columns, self.policy, self.task)

    def transform(self, frame: Any, rows: np.ndarray | None = None) -> np.ndarray:
        """Encode rows of a table, and transform them."""
        return self.expand(self.table.transform(frame, rows))

    def expand(self, rows: np.ndarray) -> np.ndarray:
        """Rows that are numbers [n, f] as the transformer's columns [n, g]."""
        made = self.transformer.transform(rows) if len(rows) else np.empty((0, len(self.names)))
        made = made.toarray() if hasattr(made, "toarray") else made
        made = np.ascontiguousarray(made, dtype=np.float64)
        if made.ndim != 2 or len(made) != len(rows) or not np.isfinite(made).all():
            what = f"features={self.transformer!r} does not give finite numbers for every row"
            raise FMRLError(what, fix="scale the columns before it, or use another")
        return made


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
        describe([features, fitted], {}, "features")
    except FMRLError as error:
        warn(f"save will refuse this estimator: {error}")
    return Expanded(encoder.columns, encoder.policy, encoder.task, fitted)


def describe(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """A transformer as values of JSON; arrays are put aside under names that begin with ``name``.

    >>> from sklearn.preprocessing import StandardScaler
    >>> arrays = {}
    >>> held = describe(StandardScaler().fit([[1.0], [3.0]]), arrays, "features")
    >>> rebuild(held, arrays).transform([[5.0]])
    array([[3.]])
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        place = f"{name}.{sum(key.startswith(name) for key in arrays)}"
        arrays[place] = value.copy()
        return {"array": place}
    if isinstance(value, (list, tuple, set)):
        kind = type(value).__name__
        return {kind: [describe(v, arrays, name) for v in value]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "UO" and value.ndim == 1:
        return {"texts": [describe(v, arrays, name) for v in value.tolist()]}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"dtype" if isinstance(value, np.dtype) else "type": [np.dtype(value).str]}
    if isinstance(value, FunctionType) and value.__module__.startswith(SCORES):
        return {"score": [value.__module__, value.__name__]}  # of SelectKBest and its like
    if isinstance(value, slice):
        return {"slice": [describe(v, arrays, name) for v in (value.start, value.stop, value.step)]}
    if isinstance(value, dict):
        pairs = [[describe(k, arrays, name), describe(v, arrays, name)] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, BSpline):
        parts = (value.t, value.c, value.k, value.extrapolate)
        return {"spline": [describe(v, arrays, name) for v in parts]}
    kind = type(value)
    if isinstance(value, BaseEstimator) and kind.__module__.startswith("sklearn."):
        state = describe(dict(value.__getstate__()), arrays, name)
        return {"class": [kind.__module__, kind.__qualname__], "state": state}
    what = f"features= holds a {kind.__name__}, which cannot be stored"
    raise FMRLError(what, fix="use a transformer of scikit-learn, or pickle the estimator")


def rebuild(held: Any, arrays: dict[str, np.ndarray]) -> Any:
    """What `describe` was given; ValueError for anything it does not write."""
    if not isinstance(held, dict):
        return held
    if "class" in held:
        module, name = held["class"]
        known = module.startswith("sklearn.") and module.split(".")[1] in PACKAGES
        try:
            kind = getattr(import_module(module), name) if known else None
        except ImportError:
            raise ValueError(f"this version of scikit-learn has no {module}") from None
        if not (isinstance(kind, type) and issubclass(kind, BaseEstimator)):
            raise ValueError(f"{module}.{name} is not an estimator of scikit-learn")
        made = kind.__new__(kind)
        made.__setstate__(rebuild(held["state"], arrays))
        return made
    ((kind, inside),) = held.items()
    if kind == "array":
        return arrays[inside]
    if kind == "dict":
        return {rebuild(k, arrays): rebuild(v, arrays) for k, v in inside}
    parts = [rebuild(v, arrays) for v in inside]
    if kind == "texts":
        texts = np.empty(len(parts), dtype=object)  # which may also be arrays of one length
        texts[:] = parts
        return texts
    if kind == "score":
        return _score(*parts)
    makers = {"list": list, "tuple": tuple, "set": set}
    if kind in makers:
        return makers[kind](parts)
    makers = {"slice": slice, "spline": BSpline, "dtype": np.dtype}
    return np.dtype(*parts).type if kind == "type" else makers[kind](*parts)


def _score(module: str, name: str) -> Any:
    """A function that scores columns, of scikit-learn."""
    found = getattr(import_module(module), name, None) if module.startswith(SCORES) else None
    if not (isinstance(found, FunctionType) and found.__module__ == module):
        raise ValueError(f"{module}.{name} is not a score of scikit-learn")
    return found
