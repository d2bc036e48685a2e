"""Named compositions: Algorithm 2 as printed, as the authors' code runs it, and what to compare
them with.

Everywhere ``within`` is "omd", "ogd", "ftrl" or a learner, ``update`` is "fal", "fli-online",
"fli-batch" or a rule, and ``domain`` is the unit ball unless it is given.
"""

from __future__ import annotations

from typing import Any

from fmrl.core.algorithm import FMRL
from fmrl.core.arrays import Array
from fmrl.core.domains import Ball, Domain
from fmrl.core.rules.meta import Fixed, FollowLeader, LastUpdate
from fmrl.core.rules.similarity import Doubling, Known, ReleasedDoubling
from fmrl.core.rules.update import FAL, FLIBatch, FLIOnline
from fmrl.core.rules.within import FTRL, OGD, OMD
from fmrl.errors import FMRLError

WITHIN = {"omd": OMD(), "ogd": OGD(), "ftrl": FTRL()}
UPDATE = {"fal": FAL(), "fli-online": FLIOnline(), "fli-batch": FLIBatch()}


def paper(
    within: Any = "omd", update: Any = "fal", *, domain: Domain | None = None,
    epsilon: float = 0.1, gamma: float = 1.1,
) -> FMRL:  # fmt: skip
    """Algorithm 2 as printed, with the experiments' epsilon and gamma.

    Args:
        within: The learner inside a task.
        update: Which vector of a task moves phi.
        domain: The action set.
        epsilon: The smallest guess.
        gamma: By what a violation multiplies the guess.

    >>> paper().similarity
    Doubling(epsilon=0.1, gamma=1.1, first=None)
    """
    return _composed(within, update, domain, FollowLeader(), Doubling(epsilon, gamma))


def released(
    within: Any = "ogd", update: Any = "fal", *, domain: Domain | None = None,
    epsilon: float = 0.1, gamma: float = 1.1,
) -> FMRL:  # fmt: skip
    """As the authors' released code behaves: G_t = 1, the guess starts at epsilon and tests the
    plain l2 distance, OGD projects after each step. Arguments as in `paper`.

    >>> released().lipschitz
    1.0
    """
    return _composed(within, update, domain, FollowLeader(), ReleasedDoubling(epsilon, gamma), 1.0)


def single_task(
    within: Any = "omd", *, domain: Domain | None = None, D: float | None = None,
    lipschitz: float | None = None,
) -> FMRL:  # fmt: skip
    """No meta-learning: every task starts at the same phi.

    Args:
        within: The learner inside a task.
        domain: The action set.
        D: The guess; by default the diameter of the ball (released code: its radius).
        lipschitz: Replaces the G_t computed from the data.

    >>> round(single_task().similarity.D, 4)
    1.4142
    """
    domain = Ball(1.0) if domain is None else domain
    if D is None:
        if not isinstance(domain, Ball):
            what = "the diameter of this domain depends on the dimension"
            raise FMRLError(what, fix="give D=domain.diameter(dim)")
        D = domain.diameter(1)
    return _composed(within, "fal", domain, Fixed(), Known(D), lipschitz)


def strawman(
    within: Any = "omd", *, domain: Domain | None = None, epsilon: float = 0.1, gamma: float = 1.1
) -> FMRL:
    """The paper's strawman: start at the previous task's optimum; the guess as in Algorithm 2.
    Arguments as in `paper`.

    >>> strawman().meta
    LastUpdate()
    """
    return _composed(within, "fal", domain, LastUpdate(), Doubling(epsilon, gamma))


def omniscient(
    phi: Array, D: float, within: Any = "omd", *, domain: Domain | None = None,
    lipschitz: float | None = None,
) -> FMRL:  # fmt: skip
    """What could be done with the best phi and D known in advance.

    Args:
        phi: Where every task starts, [d].
        D: The guess.
        within: The learner inside a task.
        domain: The action set.
        lipschitz: Replaces the G_t computed from the data.

    >>> omniscient([0.0, 0.1], 0.3).meta
    Fixed(phi=(0.0, 0.1))
    """
    return _composed(within, "fal", domain, Fixed(phi), Known(D), lipschitz)


def _composed(within, update, domain, meta, similarity, lipschitz=None) -> FMRL:
    learner = _named(WITHIN, "within-task learner", within)
    rule = _named(UPDATE, "update rule", update)
    return FMRL(Ball(1.0) if domain is None else domain, learner, rule, meta, similarity, lipschitz)


def _named(table: dict[str, Any], what: str, choice: Any) -> Any:
    if not isinstance(choice, str):
        return choice
    if choice.lower() not in table:
        raise FMRLError(f"there is no {what} {choice!r}", fix=f"choose one of {', '.join(table)}")
    return table[choice.lower()]
