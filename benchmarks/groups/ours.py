"""The library's estimators as a method of the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Ours:
    """A fitted meta-estimator.

    Args:
        estimator: Unfitted; a classifier for two classes.
        X: Rows of the training groups, [n, f].
        y: Their targets.
        group: Their groups.
        binary: Whether there are two classes.
    """

    def __init__(
        self, estimator: Any, X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool
    ):
        self.fitted = estimator.fit(X, y.astype(int) if binary else y, task=group)
        self.binary = binary

    def base(self, X: np.ndarray) -> np.ndarray:
        """Nothing is computed beforehand."""
        return np.zeros(len(X))

    def adapt(self, X: np.ndarray, y: np.ndarray, base: np.ndarray) -> Any:
        """The model of a new group."""
        model = self.fitted.adapt(X, y.astype(int) if self.binary else y)
        return (_Intervals if hasattr(model, "predict_interval") else _Model)(model, self.binary)


class _Model:
    def __init__(self, model: Any, binary: bool):
        self.model, self.binary = model, binary

    def predict(self, X: np.ndarray, base: np.ndarray) -> np.ndarray:
        return self.model.predict_proba(X)[:, 1] if self.binary else self.model.predict(X)


class _Intervals(_Model):
    def interval(self, X: np.ndarray, base: np.ndarray, z: float) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.asarray(self.model.predict_interval(X, level=0.9)).T
        return low, high


def default(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> Ours:
    """`MetaRegressor()` or `MetaClassifier()`."""
    import fmrl

    return Ours(fmrl.MetaClassifier() if binary else fmrl.MetaRegressor(), X, y, group, binary)


def variant(expression: str) -> Callable[..., Ours]:
    """A method from a Python expression, which may use ``fmrl``, ``np`` and ``binary``, as in
    "(fmrl.MetaClassifier if binary else fmrl.MetaRegressor)(fit_intercept=False)".
    """
    import fmrl

    def method(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> Ours:
        names = {"fmrl": fmrl, "np": np, "binary": binary}
        return Ours(eval(expression, names), X, y, group, binary)

    return method
