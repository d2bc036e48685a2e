"""A barrier method in many digits, written for `precise` and sharing no code with the solver.

Newton's method on t·objective + barrier for growing t, with a plain Cholesky. For the hinge, the
losses are variables of their own. It returns the objective of an action inside the domain, so that
whatever goes wrong here, the number is one that can be reached.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
from mpmath import mpf

import fmrl

STAGES, STEPS = 16, 40  # of t, by 100 each, and of Newton's method in each


def search(p: Any, theta: np.ndarray) -> Any:
    """The least objective found from near ``theta`` on."""
    from precise import _objective

    method = _Barrier(p)
    v = method.inside(theta)
    best = min(_objective(p, [mpf(float(t)) for t in theta]), _objective(p, method.theta(v)))
    scale = abs(best) + mpf(10) ** -40
    for stage in range(STAGES if method.bounded else 1):
        t = mpf(10) ** (2 * stage + 2) / scale if method.bounded else 1 / scale
        v = method.descend(v, t)
        best = min(best, _objective(p, method.theta(v)))
    return best


class _Barrier:
    """The problem in free variables: theta, without its last entry on the simplex; then losses."""

    def __init__(self, p: Any):
        self.p, self.rows = p, [[mpf(float(a)) for a in row] for row in p.X]
        self.n, self.f = p.X.shape
        self.outputs = 3 if p.kind in ("one-vs-all", "softmax") else 1
        self.dim = self.f * self.outputs
        self.hinge = p.kind == "hinge"
        self.simplex = isinstance(p.domain, fmrl.Simplex)
        self.bounded = self.hinge or not isinstance(p.domain, fmrl.Euclidean)
        self.phi = None if p.phi is None else [mpf(float(a)) for a in p.phi]

    def theta(self, v: list) -> list:
        head = v[: self.dim - self.simplex]
        return [*head, 1 - mpmath.fsum(head)] if self.simplex else head

    def inside(self, theta: np.ndarray) -> list:
        """Near theta and away from every edge."""
        domain, t = self.p.domain, [mpf(float(a)) for a in theta]
        share = mpf(10) ** -3
        if self.simplex:
            t = [(1 - share) * a + share / self.dim for a in t][:-1]
        elif isinstance(domain, fmrl.Ball):
            t = [(1 - share) * a for a in t]
        elif isinstance(domain, fmrl.Box):
            middle = (mpf(domain.low) + mpf(domain.high)) / 2
            t = [(1 - share) * a + share * middle for a in t]
        if self.hinge:
            t = t + [max(mpf(0), a) + share for a in self._short(self.theta(t))]
        return t

    def _short(self, theta: list) -> list:
        """1 − y·z of every round of the hinge."""
        sign = [1 if y else -1 for y in self.p.y]
        pairs = zip(sign, self.rows, strict=True)
        return [1 - s * mpmath.fdot(row, theta) for s, row in pairs]

    def slacks(self, v: list) -> list:
        """What must stay above 0."""
        theta, domain = self.theta(v), self.p.domain
        found: list = []
        if self.simplex:
            found = list(theta)
        elif isinstance(domain, fmrl.Ball):
            found = [mpf(domain.radius) ** 2 - mpmath.fsum(a * a for a in theta)]
        elif isinstance(domain, fmrl.Box):
            low, high = mpf(domain.low), mpf(domain.high)
            found = [a - low for a in theta] + [high - a for a in theta]
        if self.hinge:
            losses = v[-self.n :]
            pairs = zip(losses, self._short(theta), strict=True)
            found = found + losses + [a - short for a, short in pairs]
        return found

    def value(self, v: list, t: Any) -> Any:
        """t·objective + barrier; infinite outside."""
        slacks = self.slacks(v)
        if any(s <= 0 for s in slacks):
            return mpf("inf")
        return t * self._smooth(v)[0] - mpmath.fsum(mpmath.log(s) for s in slacks)

    def _smooth(self, v: list) -> tuple:
        """The objective, its gradient and Hessian in theta, and the losses' own gradient."""
        p, f, theta = self.p, self.f, self.theta(v)
        g = [mpf(0)] * self.dim
        H = [[mpf(0)] * self.dim for _ in range(self.dim)]
        total = mpf(0)
        if self.hinge:
            total = mpmath.fsum(v[-self.n :])
        else:
            for row, y in zip(self.rows, p.y, strict=True):
                z = [mpmath.fdot(row, theta[c * f : (c + 1) * f]) for c in range(self.outputs)]
                value, slope, bend = _derivatives(p.kind, z, y)
                total += value
                for c in range(self.outputs):
                    for i in range(f):
                        g[c * f + i] += slope[c] * row[i]
                    for d in range(self.outputs):
                        if bend[c][d]:
                            for i in range(f):
                                part, line = bend[c][d] * row[i], H[c * f + i]
                                for j in range(f):
                                    line[d * f + j] += part * row[j]
        if self.phi is not None:
            eta = mpf(p.eta)
            for i, (a, b) in enumerate(zip(theta, self.phi, strict=True)):
                if self.simplex:
                    total += (a * mpmath.log(a / b) - a + b) / eta if a > 0 else 0
                    g[i] += mpmath.log(a / b) / eta if a > 0 else 0
                    H[i][i] += 1 / (a * eta) if a > 0 else 0
                else:
                    total += (a - b) ** 2 / (2 * eta)
                    g[i] += (a - b) / eta
                    H[i][i] += 1 / eta
        return total, g, H

    def _system(self, v: list, t: Any) -> tuple[list, list]:
        """Gradient and Hessian of t·objective + barrier in the free variables."""
        theta, domain = self.theta(v), self.p.domain
        _, g, H = self._smooth(v)
        g = [t * a for a in g]
        H = [[t * a for a in line] for line in H]
        if self.simplex:
            for i, a in enumerate(theta):
                g[i] -= 1 / a
                H[i][i] += 1 / a**2
        elif isinstance(domain, fmrl.Ball):
            (room,) = self.slacks(v)[:1]
            for i, a in enumerate(theta):
                g[i] += 2 * a / room
                H[i][i] += 2 / room
                for j, b in enumerate(theta):
                    H[i][j] += 4 * a * b / room**2
        elif isinstance(domain, fmrl.Box):
            for i, a in enumerate(theta):
                above, below = a - mpf(domain.low), mpf(domain.high) - a
                g[i] += 1 / below - 1 / above
                H[i][i] += 1 / above**2 + 1 / below**2
        if self.hinge:
            g, H = self._with_losses(v, t, g, H)
        if self.simplex:
            last = self.dim - 1
            keep = [i for i in range(len(g)) if i != last]
            inner = [int(i < last) for i in range(len(g))]
            H = [
                [
                    H[i][j] - inner[j] * H[i][last] - inner[i] * H[last][j]
                    + inner[i] * inner[j] * H[last][last]
                    for j in keep
                ]
                for i in keep
            ]  # fmt: skip
            g = [g[i] - inner[i] * g[last] for i in keep]
        return g, H

    def _with_losses(self, v: list, t: Any, g: list, H: list) -> tuple[list, list]:
        """The hinge's losses as variables after theta."""
        losses, short = v[-self.n :], self._short(self.theta(v))
        size = self.dim + self.n
        g = g + [t] * self.n
        H = [line + [mpf(0)] * self.n for line in H] + [[mpf(0)] * size for _ in losses]
        for k, (a, s) in enumerate(zip(losses, short, strict=True)):
            at, room, sign = self.dim + k, a - s, 1 if self.p.y[k] else -1
            g[at] -= 1 / a + 1 / room
            H[at][at] += 1 / a**2 + 1 / room**2
            for i, x in enumerate(self.rows[k]):  # room grows by sign·x with theta
                g[i] -= sign * x / room
                H[i][at] += sign * x / room**2
                H[at][i] += sign * x / room**2
                for j, w in enumerate(self.rows[k]):
                    H[i][j] += x * w / room**2
        return g, H

    def descend(self, v: list, t: Any) -> list:
        """Newton's method with halved steps."""
        value = self.value(v, t)
        for _ in range(STEPS):
            g, H = self._system(v, t)
            step = _solve(H, [-a for a in g])
            fall = -mpmath.fdot(g, step)
            if not fall > mpf(10) ** -30 * (1 if self.bounded else value):
                break
            length = mpf(1)
            for _ in range(80):
                new = [a + length * b for a, b in zip(v, step, strict=True)]
                reached = self.value(new, t)
                if reached <= value - length * fall / 10**4:
                    break
                length /= 2
            else:
                break
            v, value = new, reached
        return v


def _derivatives(kind: str, z: list, y: Any) -> tuple[Any, list, list]:
    """A round's loss, its slopes and its curvature in the margins."""
    if kind == "squared":
        off = z[0] - mpf(float(y))
        return off**2 / 2, [off], [[mpf(1)]]
    if kind in ("logistic", "one-vs-all"):
        wants = [bool(y)] if kind == "logistic" else [c == y for c in range(len(z))]
        value, slope, bend = mpf(0), [], [[mpf(0)] * len(z) for _ in z]
        for c, (a, want) in enumerate(zip(z, wants, strict=True)):
            away = -a if want else a
            less = mpmath.exp(-abs(away))
            chance = 1 / (1 + less) if away > 0 else less / (1 + less)
            value += max(away, mpf(0)) + mpmath.log1p(less)
            slope.append(-chance if want else chance)
            bend[c][c] = less / (1 + less) ** 2
        return value, slope, bend
    top = max(z)
    odds = [mpmath.exp(a - top) for a in z]
    total = mpmath.fsum(odds)
    p = [a / total for a in odds]
    slope = [a - (c == y) for c, a in enumerate(p)]
    bend = [[a * ((c == d) - b) for d, b in enumerate(p)] for c, a in enumerate(p)]
    return top + mpmath.log(total) - z[int(y)], slope, bend


def _solve(H: list, b: list) -> list:
    """H⁻¹b by Cholesky after scaling the diagonal to 1; a trace is added for flat directions."""
    k, small = len(b), mpf(10) ** -45
    scale = [1 / mpmath.sqrt(H[i][i]) if H[i][i] > 0 else mpf(1) for i in range(k)]
    L: list = [[mpf(0)] * k for _ in range(k)]
    for i in range(k):
        for j in range(i + 1):
            a = H[i][j] * scale[i] * scale[j] + (small if i == j else 0)
            a -= mpmath.fdot(L[i][:j], L[j][:j])
            L[i][j] = mpmath.sqrt(max(a, small)) if i == j else a / L[j][j]
    x = [b[i] * scale[i] for i in range(k)]
    for i in range(k):
        x[i] = (x[i] - mpmath.fdot(L[i][:i], x[:i])) / L[i][i]
    for i in reversed(range(k)):
        x[i] = (x[i] - mpmath.fsum(L[j][i] * x[j] for j in range(i + 1, k))) / L[i][i]
    return [a * s for a, s in zip(x, scale, strict=True)]
