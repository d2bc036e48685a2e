"""Update rules: which vector θ_t of a finished task moves the initialisation (the three variants
of Algorithm 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fmrl.core.arrays import Array
from fmrl.core.rules.within import Play
from fmrl.core.solve import Solution
from fmrl.core.values import Value


class UpdateRule(Value):
    """From what happened in a task to its update vector. ``exact`` rules need the optimum alone,
    so tasks can be batched.
    """

    exact: ClassVar[bool] = False

    def vector(self, play: Play, best: Solution) -> Array:
        """θ_t [..., d]; of an exact rule's play only the losses may be known."""
        raise NotImplementedError


@dataclass(frozen=True)
class FAL(UpdateRule):
    """Follow the average leader: θ_t is the optimum in hindsight. Of several it is the one of least
    norm, as in the paper; on the simplex, the one of least divergence from the uniform distribution
    (`minimise`), which is another one in general.
    """

    exact: ClassVar[bool] = True

    def vector(self, play, best):
        """The optimum."""
        return best.theta


@dataclass(frozen=True)
class FLIOnline(UpdateRule):
    """Follow the last iterate: θ_t is the action after the last round."""

    def vector(self, play, best):
        """The last action."""
        return play.last


@dataclass(frozen=True)
class FLIBatch(UpdateRule):
    """Follow the average iterate, for tasks whose rounds are i.i.d.: θ_t is the mean of the
    actions played.
    """

    def vector(self, play, best):
        """The mean action."""
        return play.average
