"""What a meta-learner holds between meta-iterations, and how the core's rules move it.

The meta-update and the similarity rule are the core's own values, applied to the flat parameter
vector with R = ½‖·‖² on all of R^P. A meta-iteration gives them the tasks of a meta-batch, which
all started from the same phi. Any rule with ``init`` and ``update`` can be used, if it observes
nothing of a task's play or sums over its gradients (`OBSERVED`), and learns a number or a step for
every parameter."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch

from fmrl.core.domains import Euclidean
from fmrl.core.metric import Diagonal, Metric
from fmrl.core.rules.meta import End, FollowLeader
from fmrl.core.rules.private import Tree
from fmrl.core.rules.similarity import Known
from fmrl.core.rules.update import FLIOnline
from fmrl.deep.checks import whole
from fmrl.errors import FMRLError

DOMAIN = Euclidean()
OBSERVED = (
    None,
    "norms",
    "squares",
    "agreements",
)  # what a rule may ask to see of a network's play


class Played(NamedTuple):
    """What an update rule may ask of a network's play."""

    last: torch.Tensor | None  # [..., P] where the task ended
    average: torch.Tensor | None  # [..., P] mean of the iterates; None where no rule asks for it


@dataclass(frozen=True)
class LongRun:
    """A long inner run in place of the optimum: the FAL variant, as far as a network allows it.

    A task of m steps is drawn for ``steps`` of them, and the last iterate is taken. The step and
    the weight of a task stay those of its m steps.

    Args:
        steps: Inner steps of the long run, at least those of a task.
    """

    steps: int
    exact: ClassVar[bool] = False

    def __post_init__(self):
        whole(1, steps=self.steps)

    def vector(self, play: Any, best: Any = None) -> Any:
        """The last iterate of the long run."""
        return play.last

    def longer(self, sources: list[Any]) -> list[Any]:
        """The same tasks, drawn for ``steps`` steps; those that were one sequence stay one."""
        if self.steps < sources[0].steps:
            what = f"{self!r} plays fewer steps than the tasks' {sources[0].steps}"
            raise FMRLError(what, fix="give it more")
        made = {id(s): copy.copy(s) for s in sources}
        for source in made.values():
            object.__setattr__(source, "steps", self.steps)  # tasks may be frozen values
        return [made[id(s)] for s in sources]


@dataclass
class MetaState:
    """Tensors are on the training device, parameters in the order of the inner loop."""

    phi: torch.Tensor  # [R, P] initialisation
    second: torch.Tensor | None  # [R, P] Adam's carried second moments
    guess: torch.Tensor  # [R] D_t (unused with a fixed step), or steps [R, P]
    meta: Any  # the meta-update's memory
    similarity: Any  # the similarity rule's memory
    iteration: int = 0  # meta-iterations done
    taken: int = 0  # inner steps of each run, one task's after another's

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the state, through tuples."""
        return list(leaves((self.phi, self.second, self.guess, self.meta, self.similarity)))


@dataclass(frozen=True)
class MetaLevel:
    """The values of Algorithm 2 above the tasks."""

    within: Any
    update: Any = field(default_factory=FLIOnline)
    meta: Any = field(default_factory=FollowLeader)
    similarity: Any = None
    rounds: int = 1  # m, the inner steps

    def __post_init__(self):
        fix = "give Interpolate, FollowLeader or AdaptiveOGD"
        if not hasattr(self.meta, "update"):
            raise FMRLError(f"meta={self.meta!r} is not a meta-update", fix=fix)
        if isinstance(self.meta, Tree):
            what = "there is no private mean for networks, whose meta-batches are not counted"
            raise FMRLError(what, fix=fix)
        for role in ("update", "meta", "similarity"):
            if isinstance(rule := getattr(self, role), type):
                what = f"{role}={rule.__name__} is a class, not a value of it"
                raise FMRLError(what, fix=f"give {rule.__name__}(…)")
        if getattr(self.update, "exact", True):
            what = f"update={self.update!r} needs the optimum of a network, which is not known"
            raise FMRLError(what, fix="use LongRun(steps)")
        _ = self.averages  # refuses a rule that asks for more than a network keeps
        if self.similarity is None and self.within.step is None:
            fix = "give step=, or a similarity rule that sets it"
            raise FMRLError(f"{self.within!r} has no step", fix=fix)
        if self.observes not in OBSERVED:
            raise _too_much(self.similarity)
        scaled = "Adam" if self.within.adaptive else "DoG" if self._scaled else None
        if (self.observes and scaled) or (self.absolute and scaled == "DoG"):
            what = (
                f"{self.similarity!r} learns the step of plain gradients, which {scaled} rescales"
            )
            raise FMRLError(what, fix=f"use SGD(), or {scaled} with Doubling or AverageDeviation")
        if self.observes == "agreements" and hasattr(self.update, "longer"):
            what = f"{self.similarity!r} looks at where a task's own steps end"
            raise FMRLError(what, fix="use FLIOnline() or FLIBatch()")

    @property
    def observes(self) -> str | None:
        """What the similarity rule asks to see of a task's play."""
        return getattr(self.similarity, "observes", None)

    @property
    def absolute(self) -> bool:
        """Whether the guess is the step itself."""
        return getattr(self.similarity, "absolute", False)

    @property
    def _scaled(self) -> Any:
        """How the inner rule makes its scale of a guess D, if not by D/sigma."""
        return getattr(self.within, "scaled", None)

    @property
    def averages(self) -> bool:
        """Whether the update rule asks for the mean of the iterates."""
        asked = _Asked()
        self.update.vector(asked, None)
        return "average" in asked.names

    def init(self, phi: torch.Tensor) -> MetaState:
        """The state before the first task, phi [R, P]."""
        if not bool(torch.isfinite(phi).all()):
            raise FMRLError("the module's parameters have a NaN or an infinity")
        phi, meta = self.meta.init(DOMAIN, phi)
        guess, similarity = (self.similarity or Known(1.0)).init(DOMAIN, phi)
        if isinstance(guess, Diagonal):
            guess = guess.steps + torch.zeros_like(phi)
        if isinstance(guess, Metric):
            raise _too_much(self.similarity)
        second = torch.zeros_like(phi) if self.within.adaptive else None
        meta = meta if self._scheduled(meta) else _own(meta, phi)
        return MetaState(phi.clone(), second, _own(guess, phi), meta, _own(similarity, phi))

    def sigma(self, size: int) -> float:
        """sigma = G·√m, the weight of a task and the scale of its step."""
        bound = self.within.gradient_bound(size)
        if bound is None and self.similarity is not None and not self.absolute:
            fix = "give lipschitz=, e.g. from gradient_norm()"
            raise FMRLError(f"{self.within!r}: a similarity rule needs G", fix=fix)
        return (1.0 if bound is None else bound) * math.sqrt(self.rounds)

    def eta(self, guess: torch.Tensor, size: int, steps: torch.Tensor) -> torch.Tensor:
        """Inner step of each run: fixed [R], D_t / sigma, or the guess itself, [R] or [R, P]."""
        if self.similarity is None or self.absolute:
            return steps if self.similarity is None else guess
        if self._scaled:
            return self._scaled(guess, self.rounds)
        return guess / self.sigma(size)

    def fraction(self, memory: int, count: int) -> tuple[float, Any]:
        """The weight of theta in the next phi, of a meta-update that `_scheduled` accepts."""
        return self._moved(0.0, 1.0, memory, count)

    def _moved(self, phi: float, theta: float, memory: Any, count: int) -> tuple[float, Any]:
        """Ask the meta-update on a line."""
        start, end = (torch.full((1,), v, dtype=torch.float64) for v in (phi, theta))
        end = End(end, end, torch.tensor(float(count)))
        moved, memory = self.meta.update(DOMAIN, start, memory, end)
        return float(moved), memory

    def _scheduled(self, memory: Any) -> bool:
        """Whether phi moves by a fraction of theta − phi that depends on a counter alone.

        Such fractions can be computed on the host for many meta-iterations ahead.
        """
        if not isinstance(memory, int):
            return False
        fraction, _ = self.fraction(memory, 1)
        return abs(self._moved(2.0, 5.0, memory, 1)[0] - (2.0 + 3.0 * fraction)) < 1e-12

    def seen(
        self, squares: torch.Tensor | None, last: torch.Tensor | None = None,
        state: MetaState | None = None,
    ) -> torch.Tensor | None:  # fmt: skip
        """What the similarity rule sees, [R, K, 1] or [R, K, P], of tasks whose squared gradients
        [R, K, P] were added up and that ended at ``last`` [R, K, P].
        """
        if squares is None or self.observes == "squares":
            return squares
        if self.observes == "norms":
            return squares.sum(-1, keepdim=True)
        eta = state.guess if state.guess.ndim == 2 else state.guess[:, None]
        total = (state.phi[:, None] - last.view(squares.shape)) / eta[:, None]  # Σ∇
        return (total.square() - squares) / 2

    def advance(
        self, state: MetaState, theta: torch.Tensor, fraction: torch.Tensor | None,
        seen: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Move phi and the guess, in place, after tasks that ended at theta [R, K, P].

        The similarity rule sees the K tasks one after the other, all from the same phi; the
        meta-update sees their mean once, with the sum of their weights.
        """
        if self.similarity is not None:
            sigma = self.weight(state)
            ends, sights = theta.unbind(1), [None] * theta.shape[1]
            sights = sights if seen is None else seen.unbind(1)
            pairs = zip(ends, sights, strict=True)
            self.learn(state, state.phi, [End(end, end, sigma, s) for end, s in pairs])
        self.move(state, theta.mean(1), theta.shape[1], fraction)

    def learn(self, state: MetaState, phi: torch.Tensor, ends: list[End]) -> None:
        """Move the guess, in place, after tasks that started at ``phi``."""
        guess: Any = Diagonal(state.guess) if state.guess.ndim == 2 else state.guess
        memory = state.similarity
        for end in ends:
            guess, memory = self.similarity.update(DOMAIN, phi, guess, memory, end)
        guess = guess.steps if isinstance(guess, Diagonal) else guess
        _write((state.similarity, state.guess), (memory, guess))

    def weight(self, state: MetaState) -> torch.Tensor:
        """sigma of one task in each run, [R]."""
        like = state.guess[:, 0] if state.guess.ndim == 2 else state.guess
        return torch.full_like(like, self.sigma(state.phi.shape[1]))

    def move(
        self, state: MetaState, mean: torch.Tensor, count: int, fraction: torch.Tensor | None
    ) -> None:
        """Move phi, in place, after ``count`` tasks whose update vectors have the mean [R, P]."""
        if fraction is not None:
            state.phi.lerp_(mean, fraction[:, None])
        else:
            end = End(mean, mean, self.weight(state) * count)
            phi, memory = self.meta.update(DOMAIN, state.phi, state.meta, end)
            _write((state.meta, state.phi), (memory, phi))

    def weights(self, count: int, steps: int) -> list[float]:
        """What remains of each task's squared gradients after the later tasks of a meta-batch."""
        decay = self.within.beta2**steps
        return [decay ** (count - 1 - k) for k in range(count)]

    def carry(self, second: torch.Tensor, ends: torch.Tensor, steps: int) -> None:
        """Fold the tasks' squared gradients into the carried moments one by one, in place.

        ends [R, K, P]: moments where the tasks ended, each of which began at ``second`` [R, P].
        """
        count, decay = ends.shape[1], self.within.beta2**steps
        later = torch.arange(count - 1, -1, -1, dtype=torch.float64, device=ends.device)
        total = (decay**later).to(ends.dtype) @ ends  # `weights`, made on the device
        self.fold(second, total, count, steps)

    def fold(self, second: torch.Tensor, total: torch.Tensor, count: int, steps: int) -> None:
        """`carry` from the weighted sum of the tasks' moments [R, P] alone, in place."""
        decay, weights = self.within.beta2**steps, self.weights(count, steps)
        second.mul_(decay**count - decay * sum(weights)).add_(total).clamp_min_(0)


def _too_much(rule: Any) -> FMRLError:
    what = f"{rule!r} learns more of a network than a step for every parameter"
    return FMRLError(what, fix="use PerCoordinate(epsilon) or Isotropic(epsilon)")


class _Asked:
    """Notes which fields of a play an update rule reads."""

    def __init__(self):
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> torch.Tensor:
        if name not in Played._fields:
            what = f"the update rule asks for the play's {name}, which a network does not keep"
            raise FMRLError(what, fix=f"use {' and '.join(Played._fields)}")
        self.names.add(name)
        return torch.zeros(1)


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from leaves(part)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nested tuples with every tensor changed."""
    if isinstance(value, tuple):
        return tuple(mapped(v, change) for v in value)
    return change(value) if isinstance(value, torch.Tensor) else value


def _own(value: Any, like: torch.Tensor) -> Any:
    """A memory that can be written in place: no tensor shared, and numbers as tensors."""
    if isinstance(value, tuple):
        return tuple(_own(v, like) for v in value)
    if isinstance(value, torch.Tensor):
        return value.clone(memory_format=torch.contiguous_format)
    return None if value is None else torch.tensor(value, dtype=torch.float64, device=like.device)


def _write(target: Any, value: Any) -> None:
    """Copy values into the tensors that hold them now, through tuples."""
    if isinstance(target, tuple):
        for t, v in zip(target, value, strict=True):
            _write(t, v)
    elif target is not None:
        target.copy_(value) if isinstance(value, torch.Tensor) else target.fill_(value)
