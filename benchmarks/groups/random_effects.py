"""What a random-effects model with known components says of a new group from its rows, exactly for
Gaussian noise and by quadrature or Laplace's method for two classes.

    y = base(x) + ⟨z, b⟩ + noise,   b ~ N(0, omega),   z = 1 or (1, some standardised features)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, log_expit

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


@dataclass(frozen=True, eq=False)
class Design:
    """Rows z of the random effects: a 1, and the chosen features in units of their spread."""

    index: np.ndarray
    centre: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, index: Any = ()) -> Design:
        """Centre and spread from the training rows."""
        index = np.asarray(index, dtype=int)
        return cls(index, X[:, index].mean(axis=0), X[:, index].std(axis=0))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(X)), (X[:, self.index] - self.centre) / self.spread])


@dataclass(frozen=True, eq=False)
class Common:
    """A fitted model: the common part and the components of the groups' parts."""

    base: Callable[[np.ndarray], np.ndarray]  # a prediction, or a log-odds
    design: Design
    omega: np.ndarray
    noise: float | None  # variance; None: two classes

    def adapt(self, X: np.ndarray, y: np.ndarray, base: np.ndarray) -> Any:
        """The model of a group from its rows and their common part."""
        Z = self.design(X)
        if self.noise is not None:
            return gaussian(self, Z, y - base)
        return (quadrature if Z.shape[1] == 1 else laplace)(self, Z, y, base)


@dataclass(frozen=True, eq=False)
class GaussianGroup:
    """b ~ N(mean, cov) given the rows."""

    common: Common
    mean: np.ndarray
    cov: np.ndarray

    def predict(self, X: np.ndarray, base: np.ndarray) -> np.ndarray:
        """The expected target, or the probability of class 1."""
        Z = self.common.design(X)
        centre = base + Z @ self.mean
        if self.common.noise is not None:
            return centre
        spread = np.sqrt(np.einsum("ij,jk,ik->i", Z, self.cov, Z).clip(0))
        return expit(centre[:, None] + spread[:, None] * NODES) @ WEIGHTS

    def interval(self, X: np.ndarray, base: np.ndarray, z: float) -> tuple[np.ndarray, np.ndarray]:
        """Prediction intervals of ± z standard deviations."""
        Z = self.common.design(X)
        spread = np.sqrt(np.einsum("ij,jk,ik->i", Z, self.cov, Z) + self.common.noise)
        centre = self.predict(X, base)
        return centre - z * spread, centre + z * spread


def gaussian(common: Common, Z: np.ndarray, rest: np.ndarray) -> GaussianGroup:
    """The best linear unbiased prediction of b, and its variance."""
    gain = np.linalg.solve(
        Z @ common.omega @ Z.T + common.noise * np.eye(len(Z)), Z @ common.omega
    ).T
    return GaussianGroup(common, gain @ rest, common.omega - gain @ Z @ common.omega)


def laplace(common: Common, Z: np.ndarray, y: np.ndarray, base: np.ndarray) -> GaussianGroup:
    """The most probable b by Newton's method, in b = root·u, u ~ N(0, I), and the curvature."""
    values, vectors = np.linalg.eigh(common.omega)
    root = vectors * np.sqrt(values.clip(0))
    A, u = Z @ root, np.zeros(len(values))

    def objective(u: np.ndarray) -> float:
        z = base + A @ u
        return float(u @ u / 2 - np.sum(y * log_expit(z) + (1 - y) * log_expit(-z)))

    for _ in range(100):
        p = expit(base + A @ u)
        hessian = np.eye(len(u)) + (A * (p * (1 - p))[:, None]).T @ A
        step = np.linalg.solve(hessian, u - A.T @ (y - p))
        size, now = 1.0, objective(u)
        while objective(u - size * step) > now and size > 1e-6:
            size /= 2
        u = u - size * step
        if np.abs(size * step).max() < 1e-9:
            break
    p = expit(base + A @ u)
    hessian = np.eye(len(u)) + (A * (p * (1 - p))[:, None]).T @ A
    return GaussianGroup(common, root @ u, root @ np.linalg.inv(hessian) @ root.T)


@dataclass(frozen=True, eq=False)
class QuadratureGroup:
    """A random intercept on a grid."""

    points: np.ndarray
    weights: np.ndarray

    def predict(self, X: np.ndarray, base: np.ndarray) -> np.ndarray:
        """The probability of class 1."""
        return expit(base[:, None] + self.points) @ self.weights


def quadrature(common: Common, Z: np.ndarray, y: np.ndarray, base: np.ndarray) -> QuadratureGroup:
    """The whole posterior of an intercept."""
    points = np.sqrt(common.omega[0, 0]) * NODES
    z = base[:, None] + points
    signs = (2 * y - 1)[:, None]
    log = np.log(WEIGHTS) + log_expit(signs * z).sum(axis=0)
    weights = np.exp(log - log.max())
    return QuadratureGroup(points, weights / weights.sum())


def intercept_variance(
    y: np.ndarray, base: np.ndarray, group: np.ndarray, binary: bool
) -> tuple[float, float | None]:
    """Empirical Bayes: the variance of the groups' intercepts about a given common part, and that
    of the noise: moments (one-way analysis of variance) or, for two classes, marginal likelihood.
    """
    groups = group.max() + 1
    n = np.bincount(group, minlength=groups)
    if not binary:
        rest = y - base
        rest = rest - rest.mean()
        means = np.bincount(group, rest, groups) / n
        noise = float(np.sum((rest - means[group]) ** 2) / (len(y) - groups))
        size = (len(y) - np.sum(n**2) / len(y)) / (groups - 1)
        between = float(np.sum(n * means**2) / (groups - 1))
        return max((between - noise) / size, 0.0), noise
    signs = 2 * y - 1
    best = (-np.inf, 0.0)
    for tau in (0.0, *np.geomspace(0.05, 5.0, 40)):
        log = np.empty((len(NODES), groups))
        for i, node in enumerate(NODES):
            log[i] = np.bincount(group, log_expit(signs * (base + tau * node)), groups)
        log += np.log(WEIGHTS)[:, None]
        top = log.max(axis=0)
        best = max(best, (float(np.sum(top + np.log(np.exp(log - top).sum(axis=0)))), tau))
    return best[1] ** 2, None
