"""Named compositions: Algorithm 2 as printed, as the authors' code runs it, and what to compare
them with.
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


def _named(table: dict[str, Any], what: str, choice: Any) -> Any:
    if not isinstance(choice, str):
        return choice
    if choice.lower() not in table:
        raise FMRLError(f"there is no {what} {choice!r}", fix=f"choose one of {', '.join(table)}")
    return table[choice.lower()]


def paper(
    within="omd", update="fal", *, domain: Domain | None = None, epsilon=0.1, gamma=1.1
) -> FMRL:
    """Algorithm 2 as printed, with the experiments' epsilon = 0.1 and gamma = 1.1 on the unit ball.

    >>> paper().similarity
    Doubling(epsilon=0.1, gamma=1.1, first=None)
    """
    return FMRL(
        domain or Ball(1.0),
        _named(WITHIN, "within-task learner", within),
        _named(UPDATE, "update rule", update),
        FollowLeader(),
        Doubling(epsilon, gamma),
    )


def released(
    within="ogd", update="fal", *, domain: Domain | None = None, epsilon=0.1, gamma=1.1
) -> FMRL:
    """As the authors' released code behaves: G_t = 1, the guess starts at epsilon and tests the
    plain l2 distance, OGD projects after each step.

    >>> released().lipschitz
    1.0
    """
    return FMRL(
        domain or Ball(1.0),
        _named(WITHIN, "within-task learner", within),
        _named(UPDATE, "update rule", update),
        FollowLeader(),
        ReleasedDoubling(epsilon, gamma),
        lipschitz=1.0,
    )


def single_task(
    within="omd",
    *,
    domain: Domain | None = None,
    D: float | None = None,
    lipschitz: float | None = None,
) -> FMRL:
    """No meta-learning: every task starts at the same phi with D = the diameter of the domain
    (released code: its radius).

    >>> round(single_task().similarity.D, 4)
    1.4142
    """
    domain = domain or Ball(1.0)
    if D is None:
        if not isinstance(domain, Ball):
            raise FMRLError(
                "the diameter of this domain depends on the dimension",
                fix="give D=domain.diameter(dim)",
            )
        D = domain.diameter(1)
    return FMRL(
        domain, _named(WITHIN, "within-task learner", within), FAL(), Fixed(), Known(D), lipschitz
    )


def strawman(within="omd", *, domain: Domain | None = None, epsilon=0.1, gamma=1.1) -> FMRL:
    """The paper's strawman: start at the previous task's optimum; the guess as in Algorithm 2.

    >>> strawman().meta
    LastUpdate()
    """
    learner = _named(WITHIN, "within-task learner", within)
    return FMRL(domain or Ball(1.0), learner, FAL(), LastUpdate(), Doubling(epsilon, gamma))


def omniscient(
    phi: Array,
    D: float,
    within="omd",
    *,
    domain: Domain | None = None,
    lipschitz: float | None = None,
) -> FMRL:
    """What could be done with the best phi and D known in advance.

    >>> omniscient([0.0, 0.1], 0.3).meta
    Fixed(phi=(0.0, 0.1))
    """
    learner = _named(WITHIN, "within-task learner", within)
    return FMRL(domain or Ball(1.0), learner, FAL(), Fixed(phi), Known(D), lipschitz)
