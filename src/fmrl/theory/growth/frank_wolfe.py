"""The convex program behind `fmrl.growth`: minimise a smooth convex f over a ball cut by a
half-space, C = {x : ‖x‖ ≤ B, ⟨a, x⟩ ≤ b}, by Frank–Wolfe. a is a unit vector, or 0 for the whole
ball; −B ≤ b.

Linear minimisation and projection are the ball's own where that satisfies the half-space. Otherwise
the answer lies on the flat face or on its rim, x = b·a + sqrt(B² − b²)·p/‖p‖ with p ⊥ a.

Frank–Wolfe alone zigzags towards a minimiser on the flat face (its gap falls like 1/k), so between
two of its steps come accelerated projected-gradient steps. The gap reported is Frank–Wolfe's own:
⟨∇f(x), x − s⟩ with s the linear minimiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fmrl.core.arrays import Array, dot, namespace, norm, unit

INNER = 20  # projected-gradient steps between two Frank–Wolfe steps
OUTER = 400  # Frank–Wolfe steps at most
STALL = 15  # … and as many without any gap falling by a tenth end it


class Cut(NamedTuple):
    """C for a stack of half-spaces with one normal: radius B, unit normal a [d] (or 0), offsets b
    [K]."""

    radius: float
    normal: Array
    offset: Array

    def lowest(self, g: Array) -> Array:
        """argmin over C of ⟨g, ·⟩, shape [K, d].

        >>> import numpy as np
        >>> cut = Cut(1.0, np.array([1.0, 0.0]), np.array([0.6, 2.0]))
        >>> cut.lowest(np.array([[-1.0, -0.1], [-0.6, -0.8]])).round(6)
        array([[0.6, 0.8],
               [0.6, 0.8]])
        """
        return self._or(-self.radius * unit(g), lambda: self._rim(-g))

    def project(self, y: Array) -> Array:
        """The nearest point of C, shape [K, d].

        >>> import numpy as np
        >>> cut = Cut(1.0, np.array([1.0, 0.0]), np.array([0.6, 0.6]))
        >>> cut.project(np.array([[2.0, 0.0], [3.0, 2.0]])).round(6)
        array([[0.6, 0. ],
               [0.6, 0.8]])
        """
        xp, length = namespace(y), norm(y)[..., None]
        ball = y * (self.radius / xp.maximum(length, xp.zeros_like(length) + self.radius))

        def cut():
            above = xp.maximum(dot(y, self.normal) - self.offset, xp.zeros_like(self.offset))
            flat = y - above[..., None] * self.normal
            return xp.where((norm(flat) <= self.radius)[..., None], flat, self._rim(y))

        return self._or(ball, cut)

    def _or(self, point: Array, otherwise: Callable[[], Array]) -> Array:
        """``point`` where it satisfies the half-space."""
        xp, inside = namespace(point), (dot(point, self.normal) <= self.offset)[..., None]
        return point if bool(xp.all(inside)) else xp.where(inside, point, otherwise())

    def _rim(self, y: Array) -> Array:
        """The point of the rim ‖x‖ = B, ⟨a, x⟩ = b in the direction of y."""
        xp = namespace(y)
        across = y - dot(y, self.normal)[..., None] * self.normal
        height = xp.sqrt(xp.maximum(self.radius**2 - self.offset**2, xp.zeros_like(self.offset)))
        return self.offset[..., None] * self.normal + height[..., None] * unit(across)


class Function(NamedTuple):
    """A convex function for the solver, evaluated on a stack of points [K, d]."""

    value: Callable[[Array], tuple]  # value [K], gradient [K, d], gap owed to rounded corners [K]
    smoothness: float  # Lipschitz constant of the gradient
    good: Callable[[Array, Array], Array]  # (value, gap) → whether that is good enough [K]


def frank_wolfe(f: Function, cut: Cut, x: Array) -> tuple[Array, Array, Array]:
    """Minimise f over C from x [K, d] in C.

    Returns:
        The point [K, d], its value [K] and a gap [K] such that min f ≥ value − gap.

    >>> import numpy as np
    >>> target = np.array([[2.0, 1.0]])
    >>> value = lambda x: (np.sum((x - target) ** 2, -1) / 2, x - target, np.zeros(1))
    >>> f = Function(value, 1.0, lambda value, gap: gap < 1e-9)
    >>> cut = Cut(1.0, np.array([1.0, 0.0]), np.array([0.6]))
    >>> x, value, gap = frank_wolfe(f, cut, np.zeros((1, 2)))
    >>> x.round(6), value.round(6)
    (array([[0.6, 0.8]]), array([1.]))
    """
    xp, best, since, mark = namespace(x), (), 0, None
    for _ in range(OUTER):
        value, g, corner = f.value(x)
        s = cut.lowest(g)
        gap = dot(g, x - s) + corner
        if not best:
            best = x, value, gap
        else:  # keep the lowest value and the best proof; both are about the same minimum
            proved = xp.maximum(best[1] - best[2], value - gap)
            lower = value < best[1]
            lowest = xp.where(lower, value, best[1])
            best = xp.where(lower[..., None], x, best[0]), lowest, lowest - proved
        good = f.good(best[1], best[2])
        falling = mark is None or bool(xp.any(~good & (best[2] < 0.9 * mark)))
        since, mark = (0, best[2]) if falling else (since + 1, mark)
        if bool(xp.all(good)) or since == STALL:
            break
        x = _corrected(f, cut, _towards(g, f.smoothness, x, s))
    x, value, gap = best
    return x, value, xp.maximum(gap, xp.zeros_like(gap))


def _towards(g: Array, smoothness: float, x: Array, s: Array) -> Array:
    """The Frank–Wolfe step: towards s as far as the quadratic model goes down."""
    xp, bend = namespace(x), smoothness * dot(s - x, s - x)
    step = dot(g, x - s) / xp.where(bend > 0, bend, xp.ones_like(bend))
    step = xp.where(bend > 0, xp.clip(step, 0.0, 1.0), xp.ones_like(step))
    return x + step[..., None] * (s - x)


def _corrected(f: Function, cut: Cut, x: Array) -> Array:
    """Accelerated projected-gradient steps, restarted wherever momentum points uphill."""
    if f.smoothness == 0:
        return x
    xp, y, age = namespace(x), x, namespace(x).zeros_like(x[..., 0])
    for _ in range(INNER):
        new = cut.project(y - f.value(y)[1] / f.smoothness)
        uphill = dot(y - new, new - x) > 0
        age = xp.where(uphill, xp.zeros_like(age), age + 1)
        y = new + (age / (age + 3))[..., None] * (new - x)
        x = new
    return x
