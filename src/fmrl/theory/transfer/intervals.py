"""Monte-Carlo means with intervals, and the range that a loss can take on a domain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fmrl.core.arrays import dot, namespace, zeros
from fmrl.core.domains import Domain
from fmrl.core.tasks import Rounds
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class Estimate:
    """A Monte-Carlo mean over new tasks; ``interval`` by the normal approximation, ``proved`` for
    any n from the loss range.
    """

    mean: float
    interval: tuple[float, float]
    proved: tuple[float, float] | None
    tasks: int

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.interval[0]:.4f}, {self.interval[1]:.4f}]"


def mean(values: np.ndarray, confidence: float, bounds: tuple[float, float]) -> Estimate:
    """Mean with a normal interval and, for values in a range, the better of Hoeffding's and the
    empirical Bernstein one (Maurer & Pontil 2009).

    >>> print(mean(np.array([0.1, 0.3, 0.2, 0.2]), 0.95, (0.0, 1.0)))
    0.2000 [0.1200, 0.2800]
    """
    n, middle, spread = values.size, float(values.mean()), float(values.std(ddof=1))
    half = NormalDist().inv_cdf((1 + confidence) / 2) * spread / math.sqrt(n)
    width = bounds[1] - bounds[0]
    proved = None
    if math.isfinite(width):
        bernstein, hoeffding = (
            math.log(8 / (1 - confidence)),
            math.log(4 / (1 - confidence)),
        )  # half the failures each
        room = min(
            spread * math.sqrt(2 * bernstein / n) + 7 * width * bernstein / (3 * (n - 1)),
            width * math.sqrt(hoeffding / (2 * n)),
        )
        proved = (max(bounds[0], middle - room), min(bounds[1], middle + room))
    return Estimate(middle, (middle - half, middle + half), proved, n)


def span(game: Rounds, domain: Domain) -> tuple[float, float]:
    """Numbers a ≤ b such that every loss of ``game`` lies in [a, b] everywhere on the domain; b is
    inf where it has no bound.

    From the middle of the domain a loss rises by at most its Lipschitz constant times the distance
    to the farthest action. The losses are nonnegative; squared and linear ones have closed forms.

    >>> import numpy as np, fmrl
    >>> span(fmrl.Task([[3.0, 4.0]], [1.0], loss=fmrl.Squared()).open(), fmrl.Ball(1.0))
    (0.0, 18.0)
    """
    xp, loss = namespace(game.X), game.loss
    try:
        low, high = (dot(game.X, domain.lowest(sign * game.X)) for sign in (1, -1))
    except FMRLError:
        return 0.0, math.inf
    if loss.bend == 0:
        return float(xp.min(low)), float(xp.max(high))
    if math.isinf(loss.steep(domain.norm)):
        return 0.0, float(xp.max(game._steepest(domain)) ** 2 / 2)
    middle = domain.middle(zeros((game.dim,), game.X))
    reach = math.sqrt(2) * float(domain.reach(middle)) if domain.norm == "l2" else 2.0
    return 0.0, float(
        xp.max(game.losses(middle) + loss.steep(domain.norm) * domain.dual(game.X) * reach)
    )
