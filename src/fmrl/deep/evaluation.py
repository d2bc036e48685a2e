"""What `evaluate` returns: scores of test tasks, beside those of the same tasks without
meta-learning, and one sentence on whether it helped.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from fmrl.errors import FMRLError
from fmrl.stats import mean_interval

FEW = 30  # training classes or tasks that are called few below, and three times a task's classes


class Variety(NamedTuple):
    """How many different things a learner was trained on."""

    count: int
    kind: str  # "classes" or "tasks"
    ways: int = 0  # classes of a task

    @classmethod
    def of(cls, sources: Sequence[Any]) -> Variety | None:
        """Of the sequence that has fewest; None where a sequence does not tell."""
        found = []
        for source in sources:
            episodes, sizes = getattr(source, "episodes", None), getattr(source, "sizes", None)
            if episodes is not None:
                count = len(episodes.sizes if episodes.classes is None else episodes.classes)
                found.append(cls(count, "classes", episodes.ways))
            elif sizes is not None:
                found.append(cls(len(sizes), "tasks"))
        return min(found) if found and len(found) == len(sources) else None

    @property
    def remark(self) -> str:
        """A sentence where there are few, else nothing.

        >>> Variety(7, "classes", 5).remark, Variety(1200, "classes", 5).remark
        ('7 training classes are few.', '')
        """
        few = self.count < max(FEW, 3 * self.ways)
        return f"{self.count} training {self.kind} are few." if few else ""


def warn_of_shared(trained: Iterable[Any], tested: Iterable[Any]) -> None:
    """Say which test classes were training classes, where sequences were drawn from pools.

    Classes are the same where they lie in one table, or where two tables call them by one string.
    """
    found, count = {}, 0
    for new in {id(s): s for s in tested}.values():
        theirs = _classes(new)
        count += len(theirs)
        for old in trained:
            one = old.inputs is new.inputs
            mine = _classes(old)
            keys = set(mine) if one else {n for n in mine.values() if isinstance(n, str)}
            found |= {n: None for c, n in theirs.items() if (c if one else n) in keys}
    if found:
        names = ", ".join(map(str, list(found)[:5])) + ", …" * (len(found) > 5)
        what = f"{len(found)} of the {count} test classes were trained on ({names}): the score "
        what += "does not tell how well a new class is learned. Draw tasks with other classes="
        warnings.warn(what, RuntimeWarning, stacklevel=3)


def _classes(source: Any) -> dict[int, Any]:
    """{number: name} of the classes that a sequence draws from; none where it does not tell."""
    episodes, pool = getattr(source, "episodes", None), getattr(source, "pool", None)
    if episodes is None or pool is None:
        return {}
    own = range(len(episodes.sizes)) if episodes.classes is None else episodes.classes
    return {int(c): c if pool.values is None else pool.values[c] for c in own}


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """A mean over test tasks with its interval, what it is a mean of, and what the same tasks give
    without meta-learning.

    Two are equal when the adapted scores are, whatever they were compared with.

    Args:
        tasks: [count] one number for each test task: its share of right answers, or its loss on
            the queries.
        protocol: "transductive" or "inductive".
        steps: Inner steps taken on each task.
        what: "accuracy" or "loss".
        without: The same of each way to do without meta-learning, {name: [count]}.
        variety: How many classes or tasks were trained on, where that is known.

    >>> Evaluation(torch.tensor([0.0, 1.0, 1.0, 1.0]), "inductive", 5)
    Evaluation(accuracy 0.7500 [-0.0456, 1.5456], inductive, 4 tasks, 5 steps)
    """

    tasks: torch.Tensor
    protocol: str
    steps: int
    what: str = "accuracy"
    without: Mapping[str, torch.Tensor] = field(default_factory=dict)
    variety: Variety | None = None

    @property
    def mean(self) -> float:
        """Mean over tasks."""
        return float(self.tasks.mean())

    @property
    def accuracy(self) -> float:
        """Mean share of right answers."""
        return self._only("accuracy")

    @property
    def loss(self) -> float:
        """Mean loss on the queries."""
        return self._only("loss")

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for a single task, which has none."""
        return mean_interval(self.tasks.cpu()).error

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Student t interval of the mean over tasks; NaN for a single task."""
        found = mean_interval(self.tasks.cpu())
        return (found.low, found.high) if len(self.tasks) > 1 else (math.nan, math.nan)

    @property
    def best_without(self) -> str | None:
        """The name of the best way to do without; None where nothing was compared."""
        sign = 1 if self.what == "accuracy" else -1
        means = {name: sign * float(scores.mean()) for name, scores in self.without.items()}
        return max(means, key=means.__getitem__, default=None)

    @property
    def gain(self) -> tuple[float, float, float]:
        """How much better adapting is than the best way without, and its 95 % interval over tasks,
        paired: more right answers, or less loss. NaN where nothing was compared.
        """
        if (best := self.best_without) is None:
            return math.nan, math.nan, math.nan
        better = self.tasks.cpu() - self.without[best].cpu()
        found = mean_interval(better if self.what == "accuracy" else -better)
        return (
            (found.mean, found.low, found.high)
            if len(better) > 1
            else (found.mean, *[math.nan] * 2)
        )

    @property
    def helped(self) -> bool | None:
        """Whether meta-learning helped; None where these tasks do not decide it."""
        _, low, high = self.gain
        return True if low > 0 else False if high < 0 else None

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        tasks = f"{len(self.tasks)} task{'s' * (len(self.tasks) > 1)}"
        told = f"Adapted {self.mean:.3f} ({self.what}, {self.protocol}, {tasks})"
        remark = "" if self.variety is None else self.variety.remark
        if (best := self.best_without) is None:
            return f"{told}. {remark}".strip()
        means = {name: float(scores.mean()) for name, scores in self.without.items()}
        order = sorted(means, key=means.__getitem__, reverse=self.what == "accuracy")
        told += "; without meta-learning: " + ", ".join(f"{n} {means[n]:.3f}" for n in order)
        mean, low, high = self.gain
        by = f"{abs(mean):.3f} [{min(abs(low), abs(high)):.3f}, {max(abs(low), abs(high)):.3f}]"
        verdict = {
            True: f"Meta-learning helped: better than {best} by {by}.",
            False: f"Meta-learning did not help here: {best} is better by {by}.",
            None: f"Over {tasks} it is neither clearly better nor clearly worse than {best}.",
        }[self.helped]
        return f"{told}. {verdict} {remark}".strip()

    def __repr__(self):
        low, high = self.interval
        spread = f"[{low:.4f}, {high:.4f}]" if len(self.tasks) > 1 else "without an interval"
        tasks = f"{len(self.tasks)} task{'s' * (len(self.tasks) > 1)}"
        found = f"{self.what} {self.mean:.4f} {spread}"
        return f"Evaluation({found}, {self.protocol}, {tasks}, {self.steps} steps)"

    def __eq__(self, other):
        if not isinstance(other, Evaluation):
            return NotImplemented
        mine, theirs = ((e.protocol, e.steps, e.what) for e in (self, other))
        return mine == theirs and torch.equal(self.tasks, other.tasks)

    __hash__ = None

    def _only(self, what: str) -> float:
        if self.what != what:
            fix = f"see .{self.what}, or evaluate with what={what!r}"
            raise FMRLError(f"this evaluation measured the {self.what}", fix=fix)
        return self.mean


class BothProtocols(NamedTuple):
    """The same adapted networks, judged under both protocols."""

    transductive: Evaluation
    inductive: Evaluation

    @property
    def sentence(self) -> str:
        """Both findings, in words."""
        return f"{self.transductive.sentence}\n{self.inductive.sentence}"
