"""Whether the solver's gaps are true, checked by another method in 60 digits.

`problem` makes an odd problem from a seed: losses × domains × scales. `check` solves it, and then
looks for a better action by itself: in rational arithmetic for least squares without bounds, by a
barrier method in 60 digits elsewhere. A better action than the gap allows is a lie, whether or not
it is the best one, so the check cannot raise a false alarm.

    python benchmarks/soak/precise.py 17        solve and check problem 17
"""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any, NamedTuple

import mpmath
import numpy as np

import fmrl
from fmrl.core.solve import minimise

LOSSES = ("squared", "logistic", "one-vs-all", "softmax", "hinge")
DOMAINS = ("euclidean", "euclidean", "ball", "box", "simplex")
DIGITS = 60


class Problem(NamedTuple):
    """One problem: what is minimised, and where."""

    kind: str  # of the loss
    X: np.ndarray  # [n, f]
    y: np.ndarray
    domain: Any
    phi: np.ndarray | None
    eta: float | None

    @property
    def task(self) -> Any:
        outputs = {
            "squared": fmrl.Squared(), "logistic": fmrl.Logistic(), "hinge": fmrl.Hinge(),
            "one-vs-all": fmrl.OneVsAll(3), "softmax": fmrl.Softmax(3),
        }  # fmt: skip
        return fmrl.Task(self.X, self.y, loss=outputs[self.kind])


def problem(seed: int) -> Problem:
    """An odd problem: columns and rows many decades apart, repeated, nearly repeated or whole."""
    rng = np.random.default_rng([20, seed])
    kind, place = rng.choice(LOSSES), rng.choice(DOMAINS)
    n, f = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    X = rng.normal(size=(n, f))
    if rng.random() < 0.3:
        X = np.round(2 * X)
    if rng.random() < 0.6:
        X = X * 10.0 ** rng.integers(-12, 13, size=f)
    if rng.random() < 0.2:
        X = X * 10.0 ** rng.integers(-3, 4, size=(n, 1))
    one, other = rng.integers(f, size=2)
    if rng.random() < 0.25:
        X[:, one] = X[:, other] * rng.choice([1.0, 3.0, 1 / 3])
    if rng.random() < 0.2:
        X[:, one] = X[:, other] + 10.0 ** rng.integers(-12, -3) * X[:, 0]
    with np.errstate(over="ignore"):
        X = X * 10.0 ** rng.choice([0, 0, 0, 0, -150, -20, -6, 6, 14, 29, 100, 300])
    X = np.clip(X, -1e300, 1e300)
    theta = rng.normal(size=f) / np.maximum(np.abs(X).max(axis=0), 1e-290)
    with np.errstate(over="ignore", invalid="ignore"):
        z = X @ theta + rng.choice([0.0, 0.5, 3.0]) * rng.normal(size=n)
    if kind == "squared":
        y = np.nan_to_num(z) * 10.0 ** rng.choice([0, 0, 0, -8, 8])
    elif kind in ("logistic", "hinge"):
        y = (z > 0).astype(int)
    else:
        y = rng.integers(0, 3, size=n)
    outputs = 3 if kind in ("one-vs-all", "softmax") else 1
    dim = f * outputs
    radius = float(10.0 ** rng.integers(-3, 4))
    domain = {
        "euclidean": fmrl.Euclidean(), "ball": fmrl.Ball(radius),
        "box": fmrl.Box(-radius, 2 * radius), "simplex": fmrl.Simplex(),
    }[place]  # fmt: skip
    phi = eta = None
    if rng.random() < 0.3:
        eta = float(10.0 ** rng.integers(-4, 3))
        phi = rng.dirichlet(np.ones(dim)) if place == "simplex" else np.zeros(dim)
        if place == "euclidean":
            phi = rng.normal(size=dim)
    return Problem(str(kind), X, y, domain, phi, eta)


def check(seed: int) -> str | None:
    """What is wrong with the solver's answer to problem ``seed``; None if nothing is."""
    p = problem(seed)
    given = () if p.phi is None else (p.phi, np.asarray(p.eta))
    try:
        with np.errstate(all="ignore"):
            found = minimise(p.task, p.domain, *given)
    except fmrl.FMRLError as error:
        large = np.abs(p.X).max() > 1e30 or (p.kind == "squared" and np.abs(p.y).max() > 1e30)
        if "too large" in str(error):
            return None if large else f"refused, though not large: {error}"
        fits = type(p.domain) is fmrl.Euclidean and p.phi is None and p.kind not in "squared hinge"
        return None if fits and "no finite optimum" in str(error) else f"refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    value, gap, theta = float(found.value), float(found.gap), np.asarray(found.theta, float)
    if not (np.isfinite(value) and gap >= 0 and np.all(np.isfinite(theta))):
        return f"value {value}, gap {gap}, theta {theta}: not numbers"
    if not p.domain.contains(theta):
        return f"theta {theta} is outside {p.domain}"
    if gap == np.inf:
        return None if found.why.endswith("no proof") else f"an infinite gap, called {found.why}"
    with mpmath.workdps(DIGITS):
        reached = _objective(p, [mpmath.mpf(float(t)) for t in theta])
        least = _least(p, theta)
        # Float64 cannot say more of a value than this; without bounds the proof includes it.
        spare = 0 if given == () and isinstance(p.domain, fmrl.Euclidean) else _rounding(p, theta)
        if least < mpmath.mpf(value) - mpmath.mpf(gap) - spare:
            return (
                f"{p.kind} on {p.domain}: value {value!r}, gap {gap!r} ({found.why}), but "
                f"{mpmath.nstr(least, 17)} is reached, {mpmath.nstr(value - gap - least, 3)} below"
            )
        if reached > mpmath.mpf(value) + spare + mpmath.mpf(value) * mpmath.mpf(1e-15):
            return f"{p.kind} on {p.domain}: theta has {mpmath.nstr(reached, 17)}, not {value!r}"
    return None


def _rows(p: Problem) -> list[list[Any]]:
    return [[mpmath.mpf(float(a)) for a in row] for row in p.X]


def _margins(p: Problem, theta: list[Any]) -> list[list[Any]]:
    rows, f = _rows(p), p.X.shape[1]
    classes = [theta[i : i + f] for i in range(0, len(theta), f)]
    return [[mpmath.fdot(row, c) for c in classes] for row in rows]


def _softplus(z: Any) -> Any:
    return max(z, mpmath.mpf(0)) + mpmath.log1p(mpmath.exp(-abs(z)))


def _loss(p: Problem, z: list[Any], y: Any) -> Any:
    if p.kind == "squared":
        return (z[0] - mpmath.mpf(float(y))) ** 2 / 2
    if p.kind == "logistic":
        return _softplus(-z[0] if y else z[0])
    if p.kind == "hinge":
        return max(mpmath.mpf(0), 1 - z[0] if y else 1 + z[0])
    if p.kind == "one-vs-all":
        return mpmath.fsum(_softplus(-a if c == y else a) for c, a in enumerate(z))
    top = max(z)
    return top + mpmath.log(mpmath.fsum(mpmath.exp(a - top) for a in z)) - z[int(y)]


def _objective(p: Problem, theta: list[Any]) -> Any:
    """F, or F + B_R/eta."""
    total = mpmath.fsum(_loss(p, z, y) for z, y in zip(_margins(p, theta), p.y, strict=True))
    if p.phi is None:
        return total
    phi = [mpmath.mpf(float(a)) for a in p.phi]
    if isinstance(p.domain, fmrl.Simplex):
        pairs = zip(theta, phi, strict=True)
        pull = mpmath.fsum(t * mpmath.log(t / a) - t + a if t > 0 else a for t, a in pairs)
    else:
        pull = mpmath.fsum((t - a) ** 2 for t, a in zip(theta, phi, strict=True)) / 2
    return total + pull / mpmath.mpf(p.eta)


def _rounding(p: Problem, theta: np.ndarray) -> Any:
    """What float64 leaves of the value: a few units in the last place of each margin's terms."""
    size = np.abs(theta).reshape(-1, p.X.shape[1])
    terms = np.abs(p.X) @ size.T  # [n, outputs]
    steep = np.ones_like(terms)
    if p.kind == "squared":
        steep = np.abs(p.X @ theta.reshape(-1, p.X.shape[1]).T - p.y[:, None]) + 1e-16 * terms
    total = mpmath.mpf(float(np.sum(steep * terms))) + _objective(p, [mpmath.mpf(t) for t in theta])
    if p.phi is not None:
        total += mpmath.mpf(float(np.sum(np.abs(p.phi) + np.abs(theta))) / p.eta)
    return total * mpmath.mpf(64 * 2.0**-53)


def _least(p: Problem, theta: np.ndarray) -> Any:
    """The least value found by another way than the solver's."""
    if isinstance(p.domain, fmrl.Euclidean) and p.phi is None and p.kind == "squared":
        exact = least_squares(p.X, p.y)
        return mpmath.mpf(exact.numerator) / mpmath.mpf(exact.denominator)
    from barrier import search

    return search(p, theta)


def least_squares(X: np.ndarray, y: np.ndarray) -> Fraction:
    """min ½‖Xθ − y‖² in rational arithmetic: what is left of y beside the columns of X."""
    left = [Fraction(float(b)) for b in y]
    basis: list[list[Fraction]] = []
    for column in X.T:
        c = [Fraction(float(a)) for a in column]
        for q in basis:
            c = _beside(c, q)
        if any(c):
            basis.append(c)
            left = _beside(left, c)
    return sum((r * r for r in left), Fraction(0)) / 2


def _beside(a: list[Fraction], q: list[Fraction]) -> list[Fraction]:
    share = sum(x * w for x, w in zip(a, q, strict=True)) / sum(w * w for w in q)
    return [x - share * w for x, w in zip(a, q, strict=True)]


if __name__ == "__main__":
    print(problem(int(sys.argv[1])), check(int(sys.argv[1])) or "sound", sep="\n")
