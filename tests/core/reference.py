"""The same problems stated to cvxpy: an independent solver, deliberately naive."""

from __future__ import annotations

import cvxpy as cp
import numpy as np

import fmrl

TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "max_iter": 500}


def losses(loss, X, y, theta):
    """Σ losses as a cvxpy expression of theta [outputs·f]."""
    if isinstance(loss, fmrl.Linear):
        return cp.sum(X @ theta)
    Z = X @ cp.reshape(theta, (loss.outputs, X.shape[1]), order="C").T
    if isinstance(loss, fmrl.Squared):
        return cp.sum_squares(Z[:, 0] - y) / 2
    if isinstance(loss, fmrl.Hinge):
        return cp.sum(cp.pos(1 - cp.multiply(2 * np.asarray(y) - 1, Z[:, 0])))
    if isinstance(loss, fmrl.Logistic):
        return cp.sum(cp.logistic(Z[:, 0])) - y @ Z[:, 0]
    one = np.eye(loss.outputs)[np.asarray(y)]
    if isinstance(loss, fmrl.Softmax):
        return cp.sum(cp.log_sum_exp(Z, axis=1)) - cp.sum(cp.multiply(one, Z))
    return cp.sum(cp.logistic(Z)) - cp.sum(cp.multiply(one, Z))


def inside(domain, theta):
    """The domain as constraints."""
    if isinstance(domain, fmrl.Ball):
        return [cp.norm(theta - np.broadcast_to(domain.centre, theta.shape)) <= domain.radius]
    if isinstance(domain, fmrl.Box):
        return [
            theta >= np.broadcast_to(domain.low, theta.shape),
            theta <= np.broadcast_to(domain.high, theta.shape),
        ]
    if isinstance(domain, fmrl.Simplex):
        return [theta >= domain.floor, cp.sum(theta) == 1]
    return []


def divergence(domain, theta, phi):
    """B_R(theta‖phi)."""
    return (
        cp.sum(cp.kl_div(theta, phi))
        if isinstance(domain, fmrl.Simplex)
        else cp.sum_squares(theta - phi) / 2
    )


def minimise(loss, X, y, domain, phi=None, eta=None):
    """argmin and minimum of Σ losses [+ B_R/eta] over the domain."""
    theta = cp.Variable(loss.outputs * X.shape[1])
    goal = losses(loss, X, y, theta)
    if phi is not None:
        goal = eta * goal + divergence(domain, theta, phi)
    problem = cp.Problem(cp.Minimize(goal), inside(domain, theta))
    problem.solve(solver=cp.CLARABEL, **TIGHT)
    return polish(theta.value, loss, X, y, domain, phi, eta), problem.value / (
        1 if eta is None else eta
    )


def polish(theta, loss, X, y, domain, phi, eta):
    """Projected gradient steps from cvxpy's answer: its value is exact to 1e-10, but its
    minimiser only to 1e-5.
    """
    if loss.bend in (0.0, np.inf) or isinstance(domain, fmrl.Simplex):
        return theta
    game, step = fmrl.Task(X, y, loss=loss).open(), 1 if eta is None else eta
    steepness = step * loss.bend * np.linalg.norm(X, ord=2) ** 2 + (phi is not None)
    for _ in range(3000):
        gradient = step * game.gather(loss.slope(game.margins(theta), game.target))
        gradient = gradient if phi is None else gradient + theta - phi
        theta = domain.project(theta - gradient / steepness)
    return theta


def shortest(domain, X, margins, outputs):
    """The point of least norm in the domain with the given margins X·θ_c (equalities)."""
    theta = cp.Variable(outputs * X.shape[1])
    Z = X @ cp.reshape(theta, (outputs, X.shape[1]), order="C").T
    problem = cp.Problem(cp.Minimize(cp.sum_squares(theta)), [margins == Z, *inside(domain, theta)])
    problem.solve(solver=cp.CLARABEL, tol_feas=1e-10, tol_gap_abs=1e-12, tol_gap_rel=1e-12)
    return theta.value
