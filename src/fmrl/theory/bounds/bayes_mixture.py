"""What predicting by a learned prior costs: the log-loss of the exact Bayes mixture, for every
sequence of rows.

Before each row the mixture predicts by p(y | x, the rows before), the prior's posterior predictive.
Its losses sum to −log Z, the evidence of the task's rows, and −log∫e^{−L}dP ≤ E_Q L + KL(Q‖P) for
every Q. Each direction of the parameters pays ½ log(1 + c·λ): those in which tasks agree are free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fmrl.core.arrays import to_numpy
from fmrl.core.losses import Logistic, Loss, OneVsAll, Softmax, Squared, Weighted
from fmrl.core.prior.gaussian import Gaussian
from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import (
    Assumption,
    Bound,
    nonnegative,
    numbers,
    positive_if_given,
)

BEFORE = Assumption("the prior, the weights and the columns were fixed before the task")
PLACE = "Bayes mixtures, docs/theory.md"
AGREE = 1e-12  # correlations' eigenvalues up to this are rounding: in that direction tasks agree
NODES = np.polynomial.legendre.leggauss(300)  # on [0, 40], beyond which log(1 + e^{−z}) is 0
HERMITE = np.polynomial.hermite_e.hermegauss(60)


def bayes_mixture(
    task: Any, priors: Any, *, weights: Any = None, gamma: float = 1.0, theta: Any = None
) -> Bound:
    """Log-loss of a task's rows, predicted one after another from a prior or a mixture of them.

        Σ −log p(y_i | past) ≤ Σ loss_i(θ) + ½‖θ − φ‖²_{Σ⁺} + ½ log det(I + c·Σ·XᵀX)
                               + log(1/w_k)/gamma

    for every θ in φ + range Σ and every prior k, with a loss whose curvature in the margin is at
    most c: 1/4 for classes (each against the rest), 1/s² for numbers with noise s², and for softmax
    ½ in the directions that change probabilities. Of numbers and one prior it is an equality at the
    best θ. Priors are mixed in every round with weights ∝ w_k·e^{−gamma·loss so far}: gamma = 1 is
    Bayes' rule.

    Args:
        task: A Task of rows without weights, whose loss is a log-loss: Logistic, Softmax, Squared
            (with the noise of the prior), or OneVsAll for the sum of its binary log-losses.
        priors: A `Gaussian`, or several.
        weights: w_k before the task, [K]; they sum to 1 (default: 1/K).
        gamma: 0 < gamma ≤ 1.
        theta: The comparator (default: the θ, of all priors, with the least bound).

    >>> import numpy as np, fmrl
    >>> task = fmrl.Task([[1.0], [2.0]], [0, 1], loss=fmrl.Logistic())
    >>> said = bayes_mixture(task, fmrl.Gaussian(np.zeros(1), np.eye(1)))
    >>> round(said.total, 4), {name: round(value, 3) for name, value in said.terms.items()}
    (1.736, {'comparator': 1.305, 'distance': 0.025, 'directions': 0.405, 'prior': 0.0})
    """
    given = [priors] if isinstance(priors, Gaussian) else list(priors)
    rates = np.full(len(given), 1 / max(len(given), 1)) if weights is None else weights
    rates = nonnegative(rates, "weights")
    positive_if_given(gamma=gamma)
    if gamma > 1 or rates.shape != (len(given),) or abs(rates.sum() - 1) > 1e-9:
        what = f"weights must be {len(given)} numbers that sum to 1, and gamma at most 1"
        raise FMRLError(f"{what}, not {weights!r} and {gamma!r}")
    each = [TaskUnderPrior(task, prior) for prior in given]
    terms, one = best_member(each, rates.tolist(), gamma, theta)
    given_ = [BEFORE]
    if type(one.loss) not in (Logistic, OneVsAll, Softmax, Squared):
        given_.append(Assumption(f"a log-loss whose curvature is at most {one.bend:.4g}"))
    note = f"The comparator is prior {each.index(one) + 1} of {len(given)}."
    return Bound("Bayes mixture", terms, tuple(given_), PLACE, note if len(given) > 1 else "")


def negative_elbo(task: Any, prior: Gaussian) -> float:
    """E_Q L + KL(Q‖P) of a task's rows at the posterior's nearest Gaussian Q: at least the log-loss
    of the exact mixture, and at most `bayes_mixture`; in nats.

    Args:
        task: As in `bayes_mixture`.
        prior: P.

    >>> import numpy as np, fmrl
    >>> task = fmrl.Task([[1.0], [2.0]], [0, 1], loss=fmrl.Logistic())
    >>> round(negative_elbo(task, fmrl.Gaussian(np.zeros(1), np.eye(1))), 4)
    1.6919
    """
    return TaskUnderPrior(task, prior).negative_elbo()


@dataclass(frozen=True, eq=False)
class TaskUnderPrior:
    """The rows of a task in coordinates θ = φ + R·u in which the prior is N(0, I).

    Args:
        task: As in `bayes_mixture`.
        prior: Of its parameters.
    """

    task: Any
    prior: Gaussian

    def __post_init__(self):
        if not hasattr(self.task, "open") or not hasattr(self.task, "X"):
            raise FMRLError(f"a Task of rows is needed, not {self.task!r:.60}")
        bend = self.loss.bend
        if not 0 < bend < math.inf:
            raise FMRLError(f"{self.loss!r} is no smooth log-loss", fix="use Logistic or Squared")
        if isinstance(self.loss, Weighted):
            raise FMRLError("rows with weights have a mixed loss, not a log-loss")
        if self.rows.dim != self.prior.mean.shape[-1]:
            what = f"the task has {self.rows.dim} parameters, the prior {len(self.prior.mean)}"
            raise FMRLError(what)

    @cached_property
    def rows(self) -> Any:
        """The opened task."""
        return self.task.open()

    @property
    def loss(self) -> Loss:
        """Of its rounds."""
        return self.task.loss

    @property
    def noise(self) -> float:
        """s² of squared losses; the others are log-losses as they are."""
        return float(self.prior.noise) if isinstance(self.loss, Squared) else 1.0

    @property
    def bend(self) -> float:
        """c, in nats."""
        return float(self.loss.bend) / self.noise

    @cached_property
    def root(self) -> np.ndarray:
        """R [d, r] with R·Rᵀ = Σ, without directions in which tasks agree but for rounding."""
        covariance = numbers(self.prior.covariance)
        size = np.sqrt(np.diagonal(covariance))
        unit = np.where(size > 0, size, 1.0)  # of correlations: units of columns do not matter
        values, vectors = np.linalg.eigh(covariance / unit[:, None] / unit)
        some = values > AGREE
        return unit[:, None] * vectors[:, some] * np.sqrt(values[some])

    @cached_property
    def slopes(self) -> np.ndarray:
        """Change of the margins along u, [m, outputs, r]."""
        X, K, r = numbers(self.rows.X), self.loss.outputs, self.root.shape[1]
        return np.einsum("md,kdr->mkr", X, self.root.reshape(K, X.shape[-1], r))

    @cached_property
    def known(self) -> np.ndarray:
        """c·JᵀJ [r, r], more than the losses can ever curve along u."""
        J = self.slopes
        if isinstance(self.loss, Softmax):  # what all classes share changes no probability
            J = J - J.mean(axis=1, keepdims=True)
        J = J.reshape(J.shape[0] * J.shape[1], J.shape[2])
        return self.bend * J.T @ J

    @cached_property
    def best(self) -> np.ndarray:
        """u of the θ with the least Σ loss + distance."""
        return self._coordinates(to_numpy(self.prior.adapt(self.task).mean))[0]

    def inside(self, theta: Any) -> np.ndarray | None:
        """u of a comparator; None for one that the prior excludes."""
        u, left = self._coordinates(numbers(theta).ravel())
        length = np.abs(self.root).max(initial=0.0) + np.abs(self.root @ u).max(initial=0.0)
        return u if left <= AGREE**0.5 * length else None

    def _coordinates(self, theta: np.ndarray) -> tuple[np.ndarray, float]:
        off = theta - numbers(self.prior.mean)
        if off.shape != (self.rows.dim,):
            raise FMRLError(f"theta must have {self.rows.dim} numbers, not {len(theta)}")
        u = np.linalg.lstsq(self.root, off, rcond=None)[0]
        return u, float(np.abs(self.root @ u - off).max(initial=0.0))

    def margins(self, u: np.ndarray) -> np.ndarray:
        """[m, outputs]."""
        return numbers(self.rows.margins(self.prior.mean)) + self.slopes @ u

    def log_loss(self, z: np.ndarray) -> np.ndarray:
        """Of every row [m] at margins [m, outputs], in nats."""
        value = np.asarray(self.loss.value(z, numbers(self.rows.target)), dtype=float)
        constant = math.log(2 * math.pi * self.noise) / 2
        return value / self.noise + (constant if isinstance(self.loss, Squared) else 0.0)

    def terms(self, u: np.ndarray | None) -> dict[str, float]:
        """Of the bound, against the comparator φ + R·u."""
        if u is None:
            return {"comparator": 0.0, "distance": math.inf, "directions": 0.0}
        return {
            "comparator": float(self.log_loss(self.margins(u)).sum()),
            "distance": float(u @ u) / 2,
            "directions": float(self.directions.sum()),
        }

    @property
    def directions(self) -> np.ndarray:
        """½ log(1 + λ) of each direction [r], the dearest first."""
        values = np.linalg.eigvalsh(self.known)[::-1]
        return np.log1p(np.maximum(values, 0.0)) / 2

    def negative_elbo(self) -> float:
        """The least of E_Q L + KL(Q‖P) over two Gaussians Q around the best θ: one as wide as
        Laplace's approximation, and the one that proves the bound.
        """
        z, J, eye = self.margins(self.best), self.slopes, np.eye(len(self.best))
        curvature = self.loss.curvature(z, numbers(self.rows.target)) / self.noise
        if self.loss.coupled:
            W = np.asarray(curvature, dtype=float)
            laplace = np.einsum("mkr,mkl,mls->rs", J, W, J)
        else:
            laplace = np.einsum("mkr,mk,mks->rs", J, np.asarray(curvature, dtype=float), J)
        return min(self._elbo(z, eye + laplace), self._elbo(z, eye + self.known))

    def _elbo(self, z: np.ndarray, precision: np.ndarray) -> float:
        spread = np.linalg.inv(precision)
        u, logdet = self.best, float(np.linalg.slogdet(precision)[1])
        far = (float(np.trace(spread)) + float(u @ u) - len(u) + logdet) / 2
        return float(self._expected(z, spread)) + far

    def _expected(self, z: np.ndarray, spread: np.ndarray) -> float:
        """E_Q of the summed log-losses, or a bound on it by curvature."""
        v = np.einsum("mkr,rs,mks->mk", self.slopes, spread, self.slopes)
        if type(self.loss) in (Logistic, OneVsAll):
            target = numbers(self.rows.target)
            return float((_expected_softplus(z, v) - target * z).sum())
        return float(self.log_loss(z).sum()) + float(np.sum(self.known * spread)) / 2


def best_member(
    each: Sequence[TaskUnderPrior], weights: Sequence[float], gamma: float, theta: Any = None
) -> tuple[dict[str, float], TaskUnderPrior]:
    """The terms of the least bound of several priors, and whose it is.

    Args:
        each: The task under each prior.
        weights: w_k before the task.
        gamma: As in `bayes_mixture`.
        theta: The comparator; None: the best under each prior.
    """
    found = []
    for one, weight in zip(each, weights, strict=True):
        terms = one.terms(one.best if theta is None else one.inside(theta))
        price = math.log(1 / weight) / gamma if weight else math.inf
        found.append((terms | {"prior": price}, one))
    return min(found, key=lambda pair: sum(pair[0].values()))


def _expected_softplus(z: np.ndarray, v: np.ndarray) -> np.ndarray:
    """E log(1 + e^x) of x ~ N(z, v)."""
    s = np.sqrt(v)
    nodes, shares = HERMITE
    narrow = np.logaddexp(0, z[..., None] + s[..., None] * nodes) @ (shares / shares.sum())
    # Of wide ones E max(x, 0) has a closed form, and what is left over ends within 40 of 0.
    s = np.maximum(s, 1.0)
    t, dt = 20 * (NODES[0] + 1), 20 * NODES[1]
    density = sum(
        np.exp(-(((sign * t - z[..., None]) / s[..., None]) ** 2) / 2) for sign in (-1.0, 1.0)
    )
    bump = (density * np.log1p(np.exp(-t))) @ dt / (s * math.sqrt(2 * math.pi))
    near = np.exp(-((z / s) ** 2) / 2) / math.sqrt(2 * math.pi)
    below = np.vectorize(lambda a: math.erfc(-a / math.sqrt(2)) / 2, otypes=[float])(z / s)
    return np.where(v <= 1.0, narrow, z * below + s * near + bump)
