"""Labels of any hashable kind, mapped once to positions and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

from fmrl.core.arrays import Array, as_array, device, namespace
from fmrl.errors import FMRLError

MOST = 1_000_000  # classes: a margin each, and theta is classes × features


def as_labels(y: Any) -> Array:
    """``y`` as a one-dimensional array, every label as it is (NumPy would make a row of (1, 2) and
    strings of [1, "1"]).

    >>> as_labels([1, "1", (1, 2)]).tolist()
    [1, '1', (1, 2)]
    """
    if not is_array_api_obj(y) and hasattr(y, "__iter__") and not isinstance(y, (str, bytes)):
        values = list(y)
        plain = (str,), (bytes,), (int, float, np.generic), (object,)
        kind = next(kind for kind in plain if all(isinstance(v, kind) for v in values))
        if kind == (object,) and not all(is_array_api_obj(v) for v in values):
            y = np.empty(len(values), dtype=object)
            for i, value in enumerate(values):
                y[i] = value
    y = as_array(y)
    if y.ndim != 1:
        raise FMRLError(f"y must be one-dimensional, not of shape {tuple(y.shape)}")
    return y


def labels_of(classes: Any, least: int) -> tuple[Hashable, ...]:
    """The labels meant by ``classes``: that many integers, or the labels themselves."""
    if isinstance(classes, (int, np.integer)) and not isinstance(classes, bool):
        if classes > MOST:
            raise FMRLError(f"{int(classes):,} classes are more than {MOST:,}")
        labels: Sequence = range(int(classes))
    elif isinstance(classes, (str, bytes, bool)) or not isinstance(classes, Iterable):
        raise FMRLError(
            f"classes must be a number of classes or the labels themselves, not {classes!r}"
        )
    else:
        labels = getattr(classes, "tolist", lambda: list(classes))()
    good = all(isinstance(label, Hashable) for label in labels)
    if not good or len(set(labels)) != len(labels) or len(labels) < least:
        raise FMRLError(f"classes must be at least {least} different labels, not {classes!r}")
    return tuple(labels)


def indices(y: Any, labels: tuple[Hashable, ...], like: Array) -> Array:
    """The position of every label of ``y`` in ``labels``, shape [m]."""
    xp = namespace(like)
    y = as_labels(y)
    counted = labels == tuple(range(len(labels)))
    if counted and namespace(y) is xp and xp.isdtype(y.dtype, ("integral", "bool")):
        index = xp.astype(y, xp.int64)
        bad = (index < 0) | (index >= len(labels))
        if bool(xp.any(bad)):
            i = int(xp.argmax(xp.astype(bad, xp.int64)))
            raise _unknown(int(y[i]), labels, i)
        return index
    position = {label: i for i, label in enumerate(labels)}
    values = y.tolist() if hasattr(y, "tolist") else [y[i] for i in range(y.shape[0])]
    try:
        found = [position.get(v if isinstance(v, Hashable) else repr(v), -1) for v in values]
    except TypeError:
        raise FMRLError("labels must be hashable") from None
    if -1 in found:
        i = found.index(-1)
        raise _unknown(values[i], labels, i)
    return xp.asarray(np.asarray(found, dtype=np.int64), device=device(like))


def _unknown(label: Any, labels: tuple[Hashable, ...], i: int) -> FMRLError:
    what = f"label {label!r} is not among the classes {labels}"
    return FMRLError(
        what, round=i, fix="give the labels to the loss, e.g. OneVsAll(['cat', 'dog'])"
    )


def pick(labels: tuple[Hashable, ...], index: Array) -> np.ndarray:
    """Back from positions to labels."""
    out = np.empty(len(labels), dtype=object)
    out[:] = labels
    kinds = {type(label) for label in labels}
    plain = kinds <= {int, float} or kinds == {str}
    return (np.asarray(labels) if plain else out)[np.asarray(index.tolist())]
