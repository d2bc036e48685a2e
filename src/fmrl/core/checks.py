"""What arguments have to be: checks that answer for anything a user may give, whatever its type."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from fmrl.core.arrays import to_numpy
from fmrl.errors import FMRLError


def number(value: Any) -> float:
    """A real number as a float; NaN, which meets no condition, for anything else.

    Args:
        value: Whatever was given.

    >>> number(2), number("2"), 0 < number(None) < 1
    (2.0, nan, False)
    """
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.inf


def positive(**values: Any) -> None:
    """Refuse what is not a positive finite number.

    Args:
        values: Whatever was given, by name.
    """
    for name, value in values.items():
        if not 0 < number(value) < math.inf:
            raise FMRLError(f"{name} must be positive and finite, not {value!r}")


def positive_or_none(**values: Any) -> None:
    """As `positive`, but None is good too.

    Args:
        values: Whatever was given, by name.
    """
    positive(**{name: value for name, value in values.items() if value is not None})


def whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``; True is none.

    Args:
        name: What it is called.
        value: Whatever was given.
        least: The smallest that is good.
    """
    if not (isinstance(value, (int, np.integer)) and type(value) is not bool and value >= least):
        raise FMRLError(f"{name} must be a whole number of at least {least}, not {value!r}")


def generator(seed: Any) -> np.random.Generator:
    """A generator of random numbers.

    Args:
        seed: A whole number of at least 0, or a generator.
    """
    if not isinstance(seed, np.random.Generator):
        whole("seed", seed, least=0)
    return np.random.default_rng(seed)


def listed(value: Any) -> tuple[Any, ...]:
    """The items of a collection; none of what is not one.

    Args:
        value: Whatever was given.
    """
    return tuple(value) if hasattr(value, "__iter__") else ()


def numbers(value: Any) -> np.ndarray:
    """Numbers as a NumPy array of floats; one NaN for anything else.

    Args:
        value: Whatever was given.
    """
    try:
        return to_numpy(value).astype(float)
    except (TypeError, ValueError):
        return np.array(math.nan)


def vector(name: str, value: Any) -> float | tuple[float, ...]:
    """A finite number, or a vector of them as a tuple, so that a value stays hashable and prints
    itself.

    Args:
        name: What it is called.
        value: Whatever was given.
    """
    found = numbers(value)
    if found.ndim > 1 or not found.size or not math.isfinite(float(abs(found).sum())):
        raise FMRLError(f"{name} must be a finite number or a vector of them, not {value!r}")
    return float(found) if found.ndim == 0 else tuple(found.tolist())
