"""What a similarity rule may ask to observe of a task's play, each as one flat array [..., k].

* ``norms``      Σ_i ‖∇_i‖_*² in the domain's dual norm, k = 1;
* ``squares``    Σ_i ∇_i², coordinate by coordinate, k = d;
* ``agreements`` Σ_{s<i} ∇_s·∇_i, coordinate by coordinate, k = d;
* ``products``   Σ_i ∇_i∇_iᵀ, k = d²;
* ``posterior``  the regularised leader θ̂ of all rounds, ∇²Σ losses there, and for squared losses
  their residual sum of squares and m (else 0 and 0), and the diagonal of H: k = 2d + d² + 2.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, device, full, namespace
from fmrl.core.domains import Domain
from fmrl.core.losses import Squared
from fmrl.core.metric import Metric
from fmrl.core.rules.within import Play


def _norms(game: Any, domain: Domain, phi: Array, eta: Any, played: Play) -> Array:
    met: Any = played.gradients
    return namespace(phi).sum(domain.dual(met) ** 2, axis=-1)[..., None]


def _squares(game: Any, domain: Domain, phi: Array, eta: Any, played: Play) -> Array:
    met: Any = played.gradients
    return namespace(phi).sum(met**2, axis=-2)


def _agreements(game: Any, domain: Domain, phi: Array, eta: Any, played: Play) -> Array:
    met: Any = played.gradients
    return (namespace(phi).sum(met, axis=-2) ** 2 - _squares(game, domain, phi, eta, played)) / 2


def _products(game: Any, domain: Domain, phi: Array, eta: Any, played: Play) -> Array:
    xp, g = namespace(phi), played.gradients
    assert g is not None
    products = xp.matmul(xp.matrix_transpose(g), g)
    return xp.reshape(products, (*products.shape[:-2], phi.shape[-1] ** 2))


class Posterior(NamedTuple):
    """The Laplace approximation of a task, read from what was observed."""

    theta: Array  # [..., d] where it lies
    curvature: Array  # [..., d, d] of the summed losses there
    double: Array  # [...] the residual sum of squares; 0 for losses that are not squared
    rounds: Array  # [...] m; 0 for losses that are not squared
    steps: Array  # [..., d] the diagonal of the H that was played

    @classmethod
    def of(cls, seen: Array, dim: int) -> Posterior:
        """From the flat array."""
        matrix = namespace(seen).reshape(
            seen[..., dim : dim + dim * dim], (*seen.shape[:-1], dim, dim)
        )
        double, rounds = seen[..., dim + dim * dim], seen[..., dim + dim * dim + 1]
        return cls(seen[..., :dim], matrix, double, rounds, seen[..., -dim:])


def _posterior(game: Any, domain: Domain, phi: Array, eta: Metric, played: Play) -> Array:
    xp, d = namespace(phi), phi.shape[-1]
    theta: Any = played.last  # of FTRL: the leader of all rounds
    curvature = curvature_of(game, theta)
    double, rounds = 2 * xp.sum(game.losses(theta), axis=-1), game.rounds
    if not isinstance(game.loss, Squared):  # log-likelihoods as they are: no noise to be learned
        double, rounds = 0 * double, 0 * rounds
    rounds = full(double.shape, 0.0, double) + rounds
    flat = xp.reshape(curvature, (*curvature.shape[:-2], d * d))
    steps = eta.diagonal + xp.zeros_like(theta)
    return xp.concat([theta, flat, double[..., None], rounds[..., None], steps], axis=-1)


def curvature_of(samples: Any, theta: Array) -> Array:
    """∇² of the summed losses of a linear model at theta, [..., d, d]."""
    xp, X, loss = namespace(theta), samples.X, samples.loss
    bend = loss.curvature(samples.margins(theta), samples.target)
    weight = samples.weight[..., None]
    if loss.outputs == 1:
        return xp.matmul(xp.matrix_transpose(X), X * (bend * weight))
    if not loss.coupled:
        eye = xp.eye(loss.outputs, dtype=X.dtype, device=device(X))
        bend = bend[..., None] * eye
    bend = bend * weight[..., None]  # [..., n, o, o]
    outer = xp.matmul(  # Σ_n bend[n, o, q]·x_n x_nᵀ
        xp.matrix_transpose(X)[..., None, None, :, :],
        X[..., None, None, :, :] * xp.moveaxis(bend, -3, -1)[..., None],
    )  # [..., o, q, f, f]
    d = loss.outputs * X.shape[-1]
    return xp.reshape(xp.moveaxis(outer, -2, -3), (*X.shape[:-2], d, d))


OBSERVATIONS = {
    "norms": _norms, "squares": _squares, "agreements": _agreements, "products": _products,
    "posterior": _posterior,
}  # fmt: skip


def records(rule: Any) -> bool:
    """Whether a run keeps the `terms` of Theorem A.1 under this similarity rule."""
    return bool(getattr(rule, "observes", None)) or getattr(rule, "records", False)


def terms(
    optimum: Array, domain: Domain, phi: Array, eta: Array | Metric, played: Play
) -> tuple[Array, Array]:
    """The two terms of Theorem A.1 with the gradients as they were met, [...] each.

    B_R(θ*‖phi)/eta and ½·eta·Σ‖∇_i‖_*², or ½‖θ* − phi‖²_{H⁻¹} and ½Σ‖∇_i‖²_H.
    """
    xp, g = namespace(phi), played.gradients
    # A task that met no gradient has no regret, however far its optimum is.
    flat = ~xp.any(g != 0, axis=(-2, -1))
    if isinstance(eta, Metric):
        distance, energy = eta.distance(optimum - phi), xp.sum(_wide(eta).energy(g), axis=-1)
        # Rounding can leave a matrix that is not positive definite: then nothing is proved.
        proved = distance >= 0
    else:
        far, moving, steep = domain.divergence(optimum, phi), eta > 0, domain.dual(g)
        distance = far / xp.where(moving, eta, xp.ones_like(eta))
        energy = xp.sum(eta[..., None] * steep * steep, axis=-1) / 2  # squares could underflow
        proved = moving | (far <= 0)
    distance = xp.where(proved, distance, full((), math.inf, distance))
    return xp.where(flat, xp.zeros_like(distance), distance), energy


def _wide(metric: Metric) -> Metric:
    """The metric for vectors with one more axis before the last."""
    if not metric.lead:
        return metric
    return type(metric)(**{name: a[:, None, ...] for name, a in metric.arrays.items()})
