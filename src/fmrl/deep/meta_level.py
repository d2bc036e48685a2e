"""What a meta-learner holds between meta-iterations, and how the meta-level of the core moves it.

The meta-update and the similarity rule are the core's own values, applied to the flat parameter
vector with R = ½‖·‖² on all of R^P. A meta-iteration hands them the tasks of a meta-batch, all of
which started from the same phi."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from fmrl.core.domains import Euclidean
from fmrl.core.rules.meta import End, FollowLeader
from fmrl.core.rules.similarity import Known
from fmrl.core.rules.update import FLIBatch, FLIOnline
from fmrl.deep.batches import whole
from fmrl.deep.within import Adam
from fmrl.errors import FMRLError

DOMAIN = Euclidean()


@dataclass(frozen=True)
class LongRun:
    """A long inner run stands in for the optimum: a task of m steps is drawn for ``steps`` of them,
    and the last iterate is taken.

    The FAL variant, as far as a network allows it: the step and the weight of a task stay those of
    its m steps."""

    steps: int

    def __post_init__(self):
        whole(1, steps=self.steps)

    def longer(self, sources: list[Any]) -> list[Any]:
        """The same tasks, drawn for ``steps`` steps; those that were one sequence stay one."""
        if self.steps < sources[0].steps:
            raise FMRLError(
                f"{self!r} plays fewer steps than the tasks' {sources[0].steps}", fix="give it more"
            )
        made = {id(s): copy.copy(s) for s in sources}
        for source in made.values():
            object.__setattr__(source, "steps", self.steps)  # tasks may be frozen values
        return [made[id(s)] for s in sources]


@dataclass
class MetaState:
    """Tensors are on the training device; leading axis: runs. Parameters are in the order of the
    inner loop.
    """

    phi: torch.Tensor  # [R, P] initialisation
    second: torch.Tensor | None  # [R, P] Adam's carried second moments
    guess: torch.Tensor  # [R] D_t; unused with a fixed step
    meta: Any  # the meta-update's memory
    similarity: Any  # the similarity rule's memory
    iteration: int = 0  # meta-iterations done
    taken: int = 0  # inner steps of each run, one task's after another's


@dataclass(frozen=True)
class MetaLevel:
    """The values of Algorithm 2 above the tasks."""

    within: Any
    update: Any = field(default_factory=FLIOnline)
    meta: Any = field(default_factory=FollowLeader)
    similarity: Any = None
    rounds: int = 1  # m, the inner steps

    def __post_init__(self):
        if not isinstance(self.update, (FLIOnline, FLIBatch, LongRun)):
            raise FMRLError(
                f"update={self.update!r} needs the optimum of a network, which nobody can compute",
                fix="use LongRun(steps)",
            )
        if self.similarity is None and self.within.step is None:
            raise FMRLError(
                f"{self.within!r} has no step", fix="give step=, or a similarity rule that sets it"
            )

    def init(self, phi: torch.Tensor) -> MetaState:
        """The state before the first task, phi [R, P]."""
        if not bool(torch.isfinite(phi).all()):
            raise FMRLError("the module's parameters have a NaN or an infinity")
        phi, meta = self.meta.init(DOMAIN, phi)
        guess, similarity = (self.similarity or Known(1.0)).init(DOMAIN, phi)
        second = torch.zeros_like(phi) if isinstance(self.within, Adam) else None
        return MetaState(phi.clone(), second, guess, own(meta), own(similarity))

    def sigma(self, size: int) -> float:
        """sigma = G·√m, the weight of a task and the scale of its step."""
        bound = self.within.gradient_bound(size)
        if bound is None:
            if self.similarity is not None:
                raise FMRLError(
                    f"{self.within!r}: a similarity rule needs G",
                    fix="give lipschitz=, e.g. from gradient_norm()",
                )
            bound = 1.0
        return bound * math.sqrt(self.rounds)

    def eta(self, guess: torch.Tensor, size: int, steps: torch.Tensor) -> torch.Tensor:
        """Inner step of each run [R]: fixed, or D_t / sigma."""
        return steps if self.similarity is None else guess / self.sigma(size)

    def fraction(self, memory: Any, count: int) -> tuple[float, Any]:
        """Where the meta-update keeps a plain number as its memory: the weight of theta in the next
        phi, found by asking it.
        """
        zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        moved, memory = self.meta.update(
            DOMAIN, zero, memory, End(one, one, torch.tensor(float(count)))
        )
        return float(moved), memory

    def advance(self, state: MetaState, theta: torch.Tensor, fraction: torch.Tensor | None) -> None:
        """Move phi and the guess, in place, after tasks that ended at theta [R, K, P]."""
        count = theta.shape[1]
        sigma = torch.full_like(state.guess, self.sigma(theta.shape[2]))
        if self.similarity is not None:
            guess, memory = state.guess, state.similarity
            for k in range(count):
                end = End(theta[:, k], theta[:, k], sigma)
                guess, memory = self.similarity.update(DOMAIN, state.phi, guess, memory, end)
            write(state.guess, guess)
            write(state.similarity, memory)
        self.move(state, theta.mean(1), count, fraction)

    def move(
        self, state: MetaState, mean: torch.Tensor, count: int, fraction: torch.Tensor | None
    ) -> None:
        """Move phi, in place, after ``count`` tasks whose update vectors have the mean [R, P]."""
        sigma = torch.full_like(state.guess, self.sigma(mean.shape[1]))
        if fraction is not None:
            state.phi.lerp_(mean, fraction[:, None])
        else:
            phi, memory = self.meta.update(
                DOMAIN, state.phi, state.meta, End(mean, mean, sigma * count)
            )
            write(state.meta, memory)
            state.phi.copy_(phi)

    def carry(self, second: torch.Tensor, ends: torch.Tensor, steps: int) -> None:
        """Fold the tasks' squared gradients into the carried moments one task after the other, in
        place.

        ends [R, K, P]: moments where the tasks ended, each of which began at ``second`` [R, P].
        """
        count = ends.shape[1]
        self.fold(
            second,
            sum(w * ends[:, k] for k, w in enumerate(self.weights(count, steps))),
            count,
            steps,
        )

    def weights(self, count: int, steps: int) -> list[float]:
        """What is left of each task's squared gradients after the tasks that follow it in a
        meta-batch.
        """
        decay = self.within.beta2**steps
        return [decay ** (count - 1 - k) for k in range(count)]

    def fold(self, second: torch.Tensor, total: torch.Tensor, count: int, steps: int) -> None:
        """`carry` from the weighted sum of the tasks' moments [R, P] alone, in place."""
        decay, weights = self.within.beta2**steps, self.weights(count, steps)
        second.mul_(decay**count - decay * sum(weights)).add_(total).clamp_min_(0)


def own(value: Any) -> Any:
    """The same memory with no tensor shared: it will be written in place."""
    return (
        tuple(own(v) for v in value)
        if isinstance(value, tuple)
        else value.clone()
        if isinstance(value, torch.Tensor)
        else value
    )


def write(target: Any, value: Any) -> None:
    """Copy tensors into the tensors that hold them now, through tuples."""
    if isinstance(target, tuple):
        for t, v in zip(target, value, strict=True):
            write(t, v)
    elif isinstance(target, torch.Tensor):
        target.copy_(value)
