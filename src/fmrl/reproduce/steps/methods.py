"""What is run: data sets with settings taken from the authors' runs, how much of them, rules that
learn the step, and starts and steps apart.

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
from fmrl.reproduce.deep.settings import DataSet, Run, runs

BOTH, START, STEP, NEITHER = "both", "start", "step", "neither"
FADED = (BOTH, STEP)  # what is tried of ARUBA++
# Of ARUBA++, searched on training classes: the authors' range, and beyond where it has an effect.
WEIGHTS = (0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
RADIUS = 0.1  # the first D of DoG
ADAM, FIXED, ONE, ARUBA, PLUS = "Reptile + Adam", "Reptile", "ARUBA, one step", "ARUBA", "ARUBA++"
META, THEORY, DISTANCE = "Meta-SGD, first order", "D/(G√m), G observed", "DoG from D"


@dataclass(frozen=True)
class Environment:
    """Settings that are trained alike and differ in the shots of a test task."""

    name: str  # for files
    on: DataSet
    settings: tuple[str, ...]  # the authors' runs it takes its sizes from
    step: float  # the first, of plain gradients

    def run(self, setting: str, seed: int, plan: Plan) -> Run:
        """One of the settings at a seed."""
        found = next(r for r in runs(self.on.settings) if r.name == setting)
        return replace(found, seed=seed, eval_steps=plan.steps or found.eval_steps)

    def title(self, run: Run) -> str:
        return f"{self.on.title} {run.ways}-way {run.shots}-shot"


ENVIRONMENTS = (
    Environment("omniglot-5-way", DataSet.omniglot, ("o15_i5", "o55_i5"), 0.3),
    Environment("omniglot-20-way", DataSet.omniglot, ("o120_i10", "o520_i10"), 0.3),
    Environment("tiny-imagenet-100", DataSet.tiny, ("m15_i8", "m55_i8"), 0.01),
)


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    iterations: int = 3000  # on Omniglot; a third of them on the larger pictures
    tasks: int = 200  # test tasks of a seed
    seeds: int = 3
    search: int = 50  # tasks of training classes on which ARUBA++ chooses its weight
    steps: int | None = None  # on a test task; None: the authors' 50
    precision: str = "bf16"  # of the kernels on CUDA

    def quick(self) -> Plan:
        """A few meta-iterations and test tasks: it shows that everything works."""
        return replace(self, iterations=3, tasks=2, seeds=2, search=2, steps=2)

    def length(self, on: DataSet) -> int:
        return self.iterations if on is DataSet.omniglot else max(1, self.iterations // 3)


@dataclass(frozen=True)
class Scale:
    """What the rules of one network begin with."""

    step: float  # the first
    met: float  # √Σ‖∇‖² of one task: the largest gradient at the start times √m
    size: int  # parameters
    rate: float  # Adam's step, the authors'

    @property
    def each(self) -> float:
        """The same in one coordinate."""
        return self.met / math.sqrt(self.size)


@dataclass(frozen=True)
class Method:
    """One training, and which pairs of start and step are tried."""

    rules: Callable[[Scale], tuple[Any, Any]]  # the inner rule and the similarity rule
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
    every = range(trainer.runs)
    learned, first = Start.at(trainer, every), Start.at(trainer, every, first=True)
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
    every = range(trainer.runs)
    found, first = Start.at(trainer, every, Fading(1.0)), Start.at(trainer, every, first=True)
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
