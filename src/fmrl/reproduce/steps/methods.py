"""What is trained and what of it is tried: rules that learn the step, and starts and steps apart.

A method is trained from a start (phi) with a first step. On test tasks four pairs of them can be
tried: what was learned of both, of the start alone, of the step alone, and of neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fmrl.deep import (
    SGD,
    Adam,
    AverageDeviation,
    DoG,
    Doubling,
    Fading,
    Isotropic,
    MetaSGD,
    MetaTrainer,
    Observed,
    PerCoordinate,
    cross_entropy,
    summed_cross_entropy,
)
from fmrl.deep.adaptation import Start
from fmrl.deep.losses import Loss

BOTH, START, STEP, NEITHER = "both", "start", "step", "neither"
FADED = (BOTH, STEP)  # what is tried of ARUBA++
# Of ARUBA++, searched on training classes: the authors' range, and beyond where it has an effect.
WEIGHTS = (0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
RADIUS = 0.1  # the first D of DoG
ADAM, FIXED, ONE, ARUBA, PLUS = "Reptile + Adam", "Reptile", "ARUBA, one step", "ARUBA", "ARUBA++"
META, THEORY, DISTANCE = "Meta-SGD, first order", "D/(G√m), G observed", "DoG from D"


@dataclass(frozen=True)
class Scale:
    """What the rules of one network begin with.

    Args:
        step: The first step.
        met: √Σ‖∇‖² of one task: the largest gradient at the start times √m.
        size: Parameters.
        rate: Adam's step, the authors'.
    """

    step: float
    met: float
    size: int
    rate: float

    @property
    def each(self) -> float:
        """The same in one coordinate."""
        return self.met / math.sqrt(self.size)


@dataclass(frozen=True)
class Method:
    """One training, and which pairs of start and step are tried.

    Args:
        rules: Makes the inner rule and the similarity rule.
        pairs: Of `BOTH`, `START`, `STEP` and `NEITHER`.
        loss: Of the network.
    """

    rules: Callable[[Scale], tuple[Any, Any]]
    pairs: tuple[str, ...] = (BOTH, START, STEP)
    loss: Loss = cross_entropy


METHODS = {
    ADAM: Method(
        lambda s: (Adam(s.rate, carry=True), None), (BOTH, START, STEP, NEITHER),
        summed_cross_entropy,
    ),
    FIXED: Method(lambda s: (SGD(s.step), None), (START, NEITHER)),
    ONE: Method(lambda s: (SGD(), Isotropic(s.step * s.met, s.met))),
    ARUBA: Method(lambda s: (SGD(), PerCoordinate(s.step * s.each, s.each))),
    META: Method(lambda s: (SGD(), MetaSGD(s.step))),
    THEORY: Method(lambda s: (SGD(), _theory(s))),
    DISTANCE: Method(
        lambda s: (DoG(), AverageDeviation(first=RADIUS)), (BOTH, START, STEP, NEITHER)
    ),
}  # fmt: skip


def _theory(scale: Scale) -> Observed:
    """Algorithm 2's guess; its first D makes the first step that of the others."""
    half = scale.step * scale.met / 2
    return Observed(Doubling(half, 1.2, first=half), scale.met)


def starts(name: str, trainer: MetaTrainer) -> dict[str, Start]:
    """Every pair of start and step of a trained method, each of all its runs.

    What Adam has learned beside phi are the second moments that it carries.
    """
    runs = range(trainer.runs)
    learned, first = Start.at(trainer, runs), Start.at(trainer, runs, first=True)
    step = {"eta": learned.eta, "second": learned.second, "taken": learned.taken}
    none = {"eta": first.eta, "second": first.second, "taken": first.taken}
    pairs = {
        BOTH: learned,
        START: replace(learned, **none),
        STEP: replace(first, **step),
        NEITHER: first,
    }
    return {pair: pairs[pair] for pair in METHODS[name].pairs}


def fading(trainer: MetaTrainer, weight: float) -> dict[str, Start]:
    """ARUBA++ from its own start, and its step from the first start."""
    runs = range(trainer.runs)
    found, first = Start.at(trainer, runs, Fading(1.0)), Start.at(trainer, runs, first=True)
    # √(b/(g + w·Σ∇²)) = √((b/w)/(g/w + Σ∇²)): so all weights can be tried in one stack.
    found = replace(found, eta=found.eta / math.sqrt(weight), second=found.second / weight)
    return dict(zip(FADED, (found, replace(found, phi=first.phi)), strict=True))


def stacked(parts: Sequence[Start]) -> Start:
    """Starts with one inner rule as one, a step for every parameter where one of them has that."""
    shaped = any(p.eta.ndim == 2 for p in parts)
    eta = [p.eta[:, None].expand_as(p.phi) if shaped and p.eta.ndim == 1 else p.eta for p in parts]
    kept = [p.second for p in parts]
    if any(s is not None for s in kept):
        blank = (torch.zeros_like(p.phi) for p in parts)
        kept = [b if s is None else s for s, b in zip(kept, blank, strict=True)]
    second = None if kept[0] is None else torch.cat(kept)
    return replace(
        parts[0], phi=torch.cat([p.phi for p in parts]), eta=torch.cat(eta), second=second
    )


def alike(start: Start) -> tuple:
    """Starts that can be stacked: one inner rule (steps apart), loss, and steps behind moments."""
    within = start.within
    step = replace(within, step=1.0) if hasattr(within, "step") and within.step else within
    fixed = step if not isinstance(step, SGD) else "SGD"
    return repr(fixed), start.loss.__name__, start.taken
