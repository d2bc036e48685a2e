"""Within-task optimisers, as values, elementwise on flat stacked parameters theta [tasks, P]."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from fmrl.errors import FMRLError


@dataclass(frozen=True)
class SGD:
    """theta ← theta − eta·gradient.

    Args:
        step: eta. Leave it out when a similarity rule sets it.
        lipschitz: G, a bound on the gradient's norm, which a similarity rule needs that sets
            eta_t = D_t / (G·√m). `fmrl.deep.gradient_norm` estimates it.
    """

    step: float | None = None
    lipschitz: float | None = None
    adaptive: ClassVar[bool] = False  # whether it keeps second moments
    carry: ClassVar[bool] = False
    beta2: ClassVar[float] = 0.0
    eps: ClassVar[float] = 0.0

    def __post_init__(self):
        _check(self)

    def gradient_bound(self, size: int) -> float | None:
        """G for a network of ``size`` parameters; None when it is not known."""
        return self.lipschitz


@dataclass(frozen=True)
class Adam:
    """Adam with beta1 = 0, as in Reptile.

    second ← beta2·second + (1 − beta2)·g²,
    theta ← theta − eta·g / (√(second/(1 − beta2^t)) + eps).

    Args:
        step: eta. Use None when a similarity rule sets it.
        beta2: Decay of the second moments.
        eps: Added to the root of the second moments.
        carry: What happens to second moments between tasks. False: they start at zero in every
            task. "in turn": they go on from task to task, as in the authors' code; the tasks of a
            meta-batch are then played one after the other (runs still side by side). True: the
            tasks of a meta-batch are played side by side from the same moments, and their squared
            gradients are added one task after the other, as if each had gone on from the one
            before.
        lipschitz: G for a similarity rule. It defaults to √P, because a step of Adam moves every
            number by about eta.
    """

    step: float | None = 1e-3
    beta2: float = 0.999
    eps: float = 1e-8
    carry: bool | str = True
    lipschitz: float | None = None
    adaptive: ClassVar[bool] = True

    def __post_init__(self):
        _check(self)
        if not 0 < self.beta2 < 1 or not self.eps > 0:
            raise FMRLError(f"{self!r}: beta2 must lie between 0 and 1 and eps above 0")
        if self.carry not in (True, False, "in turn"):
            raise FMRLError(f"{self!r}: carry must be True, False or 'in turn'")

    def gradient_bound(self, size: int) -> float | None:
        """G for a network of ``size`` parameters."""
        return self.lipschitz if self.lipschitz is not None else size**0.5


def known(within: SGD | Adam) -> SGD | Adam:
    """``within`` itself, when it is one of the two above."""
    if not isinstance(within, (SGD, Adam)):
        name = within.__name__ if isinstance(within, type) else type(within).__name__
        fix = "use fmrl.deep.SGD(step) or fmrl.deep.Adam(step)"
        raise FMRLError(f"within={name} is not an optimiser of fmrl.deep", fix=fix)
    return within


def _check(value) -> None:
    for name in ("step", "lipschitz"):
        given = getattr(value, name)
        if given is not None and not (isinstance(given, Real) and 0 < given < float("inf")):
            raise FMRLError(f"{value!r}: {name} must be positive and finite")
