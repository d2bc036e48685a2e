"""Within-task optimisers, as values, on flat stacked parameters theta [tasks, P].

`SGD` and `Adam` are written into the engines. Others have ``move``, which takes one step in place.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch

from fmrl.errors import FMRLError


class _Plain:
    """A rule without moments, which its own task begins and ends."""

    adaptive: ClassVar[bool] = False  # whether it keeps second moments
    carry: ClassVar[bool] = False
    beta2: ClassVar[float] = 0.0
    eps: ClassVar[float] = 0.0

    def __post_init__(self):
        _check(self)


@dataclass(frozen=True)
class SGD(_Plain):
    """theta ← theta − eta·gradient.

    Args:
        step: eta. Leave it out when a similarity rule sets it.
        lipschitz: G, a bound on the gradient's norm, which a similarity rule needs that sets
            eta_t = D_t / (G·√m). `fmrl.deep.gradient_norm` estimates it.
    """

    step: float | None = None
    lipschitz: float | None = None

    def gradient_bound(self, size: int) -> float | None:
        """G for a network of ``size`` parameters; None when it is not known."""
        return self.lipschitz


@dataclass(frozen=True)
class DoG(_Plain):
    """Distance over gradients: theta ← theta − r_i/√(Σ_{s≤i}‖∇_s‖²)·∇_i inside a task.

    r_i is the largest distance from phi so far in this task, and at first the radius that earlier
    tasks give: 2·D_t/√(m+1) where a similarity rule guesses D_t, so that D is all that is learned
    and no step is chosen. With that radius a task of m gradients that have nothing in common ends
    at the distance √2·D it was guessed to end at: D grows where gradients agree and falls where
    they turn. Started from 1e-6, as DoG is where there is one task, a few steps lead nowhere.

    Args:
        step: The first radius. Leave it out when a similarity rule guesses it.
    """

    step: float | None = None
    lipschitz: ClassVar[None] = None

    def gradient_bound(self, size: int) -> float | None:
        """1: gradients are observed, so all tasks weigh alike."""
        return 1.0

    def scaled(self, guess: torch.Tensor, rounds: int) -> torch.Tensor:
        """The first radius that goes with the guess D and ``rounds`` steps."""
        return guess * 2 / (rounds + 1) ** 0.5

    def move(
        self, theta: torch.Tensor, gradient: torch.Tensor, radius: torch.Tensor, second: Any,
        held: Any,
    ) -> Any:  # fmt: skip
        """One step of T tasks; ``held``: phi, Σ‖∇‖² and the largest distance (None: none yet)."""
        phi, met, far = (theta.clone(), 0.0, radius) if held is None else held
        met = met + gradient.square().sum(1, keepdim=True)
        far = torch.maximum(far, (theta - phi).norm(dim=1, keepdim=True))
        theta -= gradient * (far / (met + 1e-20).sqrt())
        return phi, met, far


@dataclass(frozen=True)
class Fading(_Plain):
    """ARUBA++, at test time: the learned step falls with the gradients of the test task itself,
    eta_i = √(b/(g + weight·Σ_{s<i}∇_s²)), by coordinate or, after `Isotropic`, as one number.

    Give it as ``within=`` to `adapt` or `evaluate` with a trainer whose similarity rule is
    `Isotropic` or `PerCoordinate`: b and g are what that rule has added up.

    Args:
        weight: Of a gradient of the test task against those of all training tasks.
    """

    weight: float = 1.0
    step: ClassVar[None] = None
    adaptive: ClassVar[bool] = True  # ``second`` holds g

    def __post_init__(self):
        if not (isinstance(self.weight, Real) and 0 <= self.weight < float("inf")):
            raise FMRLError(f"{self!r}: weight must be a finite number, at least 0")

    def move(
        self, theta: torch.Tensor, gradient: torch.Tensor, root: torch.Tensor,
        second: torch.Tensor, held: Any,
    ) -> None:  # fmt: skip
        """One step of T tasks; ``root`` is √b, [T, 1] or [T, P]."""
        theta.addcdiv_(gradient * root, second.sqrt(), value=-1)
        square = gradient.square()
        square = square.sum(1, keepdim=True) if root.shape[1] == 1 else square
        second += self.weight * square


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


def known(within: SGD | Adam | DoG) -> SGD | Adam | DoG:
    """``within`` itself, when a network can be trained with it."""
    if isinstance(within, Fading):
        fix = "train with SGD() and PerCoordinate(…), then give it to evaluate or adapt"
        raise FMRLError(f"{within!r} is for test tasks", fix=fix)
    if not isinstance(within, (SGD, Adam, DoG)):
        name = within.__name__ if isinstance(within, type) else type(within).__name__
        fix = "use fmrl.deep.SGD(step), fmrl.deep.Adam(step) or fmrl.deep.DoG()"
        raise FMRLError(f"within={name} is not an optimiser of fmrl.deep", fix=fix)
    return within


def warn_unused(within: SGD | Adam | DoG, similarity: Any) -> None:
    """Say that a similarity rule sets the step, where ``within`` was given one of its own.

    >>> warn_unused(SGD(), "a rule"), warn_unused(SGD(0.05), None)
    (None, None)
    """
    if similarity is not None and within.step not in (None, type(within)().step):
        what = f"{within!r}: its step is not used, because {similarity!r} sets the step"
        warnings.warn(f"{what}: leave one of the two out", RuntimeWarning, stacklevel=3)


def _check(value) -> None:
    for name in ("step", "lipschitz"):
        given = getattr(value, name)
        if given is not None and not (isinstance(given, Real) and 0 < given < float("inf")):
            raise FMRLError(f"{value!r}: {name} must be positive and finite")
