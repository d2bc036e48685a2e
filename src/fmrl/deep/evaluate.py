"""Evaluation: thousands of test tasks in bulk, under a protocol that must be named."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fmrl.deep.adaptation import Start, ends
from fmrl.deep.checks import extent, sequence, whole
from fmrl.deep.engines.inner import InnerLoop, capture
from fmrl.deep.losses import Loss, squared_error
from fmrl.deep.tasks import Queried, TasksWithQueries
from fmrl.deep.trainer import MetaTrainer
from fmrl.errors import FMRLError
from fmrl.stats import mean_interval

PROTOCOLS = ("transductive", "inductive")
MEASURES = ("accuracy", "loss")
STACK = 640  # tasks adapted at once
PIXELS = 8192 * 28 * 28  # of the samples predicted at once
KEPT = 4  # inner loops that a trainer keeps for its next evaluation


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """A mean over test tasks with its interval, and what it is a mean of.

    Args:
        tasks: [count] one number for each test task: its share of right answers, or its loss on
            the queries.
        protocol: "transductive" or "inductive".
        steps: Inner steps taken on each task.
        what: "accuracy" or "loss".

    >>> Evaluation(torch.tensor([0.0, 1.0, 1.0, 1.0]), "inductive", 5)
    Evaluation(accuracy 0.7500 [-0.0456, 1.5456], inductive, 4 tasks, 5 steps)
    """

    tasks: torch.Tensor
    protocol: str
    steps: int
    what: str = "accuracy"

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


def evaluate(
    learner: MetaTrainer | nn.Module, episodes: TasksWithQueries | Sequence[TasksWithQueries],
    steps: int = 50, *, protocol: str, count: int = 1000, start: int = 0, within: Any = None,
    runs: Sequence[int] | None = None, loss: Loss | None = None, what: str | None = None,
) -> Evaluation | list[Evaluation]:  # fmt: skip
    """Adapt to each test task by inner steps from phi, then judge the answers to its queries.

    Args:
        learner: A trainer (its within, loss, step and carried moments are used; it is not changed)
            or a module.
        episodes: Tasks with queries, from a Pool or as Arrays: one sequence, or one for each run
            over one table.
        steps: Inner steps on each task; 0 judges phi itself.
        protocol: "transductive" puts all queries of a task in one batch, so that batch norm sees
            them together; "inductive" gives each query alone, in one batch with the task's samples.
            There is no default: the two differ by points.
        count: Test tasks.
        start: Number of the first of them.
        within: `SGD` or `Adam`, for a module. Default ``Adam()``.
        runs: Which runs of a trainer; None means all.
        loss: For a module. Default `cross_entropy`.
        what: "accuracy", the share of right answers, or "loss", that of the queries. Left out, it
            is the accuracy where targets are whole numbers and the loss is not the squared error.

    Returns:
        One `Evaluation`; a list of them for a list of sequences or a trainer with several runs.

    >>> from fmrl.deep import SGD, Arrays
    >>> tasks = Arrays([(torch.eye(2), [0, 1], torch.eye(2), [0, 1])], batch=2, steps=1)
    >>> evaluate(nn.Linear(2, 2), tasks, 100, protocol="inductive", count=2, within=SGD(0.5))
    Evaluation(accuracy 1.0000 [1.0000, 1.0000], inductive, 2 tasks, 100 steps)
    """
    _one_of(PROTOCOLS, protocol=protocol)
    whole(1, count=count)
    whole(0, steps=steps, start=start)
    begin = Start.of(learner, runs, within, loss)
    chosen, listed = len(begin.phi), isinstance(episodes, (list, tuple))
    sources = list(episodes) if listed else [episodes] * chosen
    _check(sources, chosen, begin)
    sources = [s.with_steps(steps) for s in sources]
    what, inputs = _measure(what, sources[0], begin.loss), sources[0].inputs
    numbers = [(r, start + i) for r in range(chosen) for i in range(count)]
    size = min(len(numbers), STACK)
    loop, play = _loop(learner, begin, sources[0], size)
    for source in {id(s): s for s in sources}.values():
        loop.check(extent(source))
    answers = torch.empty(chosen, count, dtype=torch.float64)
    for at in range(0, len(numbers), size):
        piece = numbers[at : at + size]
        run = [r for r, _ in piece] + [piece[-1][0]] * (size - len(piece))
        drawn = [
            (a, *sources[r].queried(piece[a][1], b - a)) for r, a, b in _spans(run[: len(piece)])
        ]
        for buffer, i in ((loop.index, 1), (loop.label, 2)):
            buffer[:, : len(piece)].copy_(torch.cat([d[i] for d in drawn]).transpose(0, 1))
        begin.put(loop, torch.tensor(run, device=begin.phi.device))
        play()
        theta = ends(loop)
        for group in _grouped([(a, queried) for a, _, _, groups in drawn for queried in groups]):
            outputs = _outputs(loop.apply, theta[group.at], inputs, group, protocol)
            if what == "accuracy":
                scores = outputs.argmax(-1).eq(group.targets).double().mean(1)
            else:
                scores = begin.loss(outputs, group.targets)
            answers.view(-1)[at + group.at.cpu()] = scores.double().cpu()
    results = [Evaluation(row, protocol, steps, what) for row in answers]
    several = listed or (isinstance(learner, MetaTrainer) and learner.runs > 1)
    return results if several else results[0]


def _one_of(known: tuple[str, ...], **given: str) -> None:
    for name, value in given.items():
        if value not in known:
            fix = f"say {' or '.join(map(repr, known))}"
            raise FMRLError(f"{name}={value!r} is unknown", fix=fix)


def _check(sources: list[Any], chosen: int, begin: Start) -> None:
    """One sequence of tasks for every run, over one table, with queries, suited to the network."""
    if odd := [type(s).__name__ for s in sources if not hasattr(s, "queried")]:
        fix = "use Pool.of(X, y).tasks(…, queries=1) or Arrays([(X, y, Xq, yq), …])"
        raise FMRLError(f"{odd[0]} is not a sequence of tasks with queries", fix=fix)
    if len(sources) != chosen:
        raise FMRLError(f"there are {len(sources)} sequences of tasks for {chosen} runs")
    for source in sources:
        if source.queries < 1:
            fix = "draw them with queries=1 or more, or give Arrays (X, y, Xq, yq)"
            raise FMRLError("the test tasks have no queries", fix=fix)
        same = {
            "table": source.inputs is sources[0].inputs,
            "batch": source.batch == sources[0].batch,
        }
        for name in (n for n, equal in same.items() if not equal):
            what = f"runs are evaluated together on tasks with one {name}"
            raise FMRLError(what, fix=f"evaluate those with another {name} by themselves")
        sequence(source, begin.module)


def _measure(what: str | None, source: Any, loss: Loss) -> str:
    """What is measured: the accuracy of answers that are classes, else the loss."""
    targets = source.queried(0, 1)[2][0].targets
    classes = not targets.is_floating_point() and targets.ndim == 2
    if what is None:
        return "accuracy" if classes and loss is not squared_error else "loss"
    _one_of(MEASURES, what=what)
    if what == "accuracy" and not classes:
        raise FMRLError("accuracy needs targets that are classes", fix="say what='loss'")
    return what


def _loop(learner: Any, begin: Start, source: Any, size: int) -> tuple[InnerLoop, Any]:
    """An inner loop of the right size; a trainer keeps the last few that it captured.

    Where memory runs out, tasks go through the network in smaller pieces.
    """
    own = isinstance(learner, MetaTrainer)
    held = learner.__dict__.setdefault("_evaluations", {}) if own else {}
    label = source.draw(0, 1)[1]
    key = (size, *label.shape, label.dtype, id(source.inputs))
    found, piece = held.pop(key, None), size
    while found is None:
        try:
            loop = begin.loop(source.inputs, label, size, piece)
            found = loop, capture(loop.play, loop.theta.device)
        except torch.OutOfMemoryError:
            if piece == 1:
                raise
        if found is None:  # outside the handler, whose traceback would hold the memory
            loop, piece = None, (piece + 1) // 2
            held.clear()
            torch.cuda.empty_cache()
    held[key] = found  # the last used is the last to go
    while len(held) > KEPT:
        del held[next(iter(held))]
    return found


def _grouped(groups: Sequence[tuple[int, Queried]]) -> list[Queried]:
    """Tasks of equal shape as one group, counted from the start of the piece."""
    shapes: dict[tuple, list[tuple[int, Queried]]] = {}
    for offset, q in groups:
        shapes.setdefault((q.support.shape[1], q.query.shape[1]), []).append((offset, q))
    found = []
    for same in shapes.values():
        at = torch.cat([offset + q.at for offset, q in same])
        fields = zip(*((q.support, q.query, q.targets) for _, q in same), strict=True)
        found.append(Queried(at, *map(torch.cat, fields)))
    return found


@torch.no_grad()
def _outputs(apply, theta, inputs, group: Queried, protocol) -> torch.Tensor:
    """What the adapted networks say of each query [n, Q, ...], a bounded number at a time."""
    samples = group.query.shape[1] if protocol == "transductive" else group.support.shape[1] + 1
    size, found = samples * math.prod(inputs.shape[1:][-2:]), []
    many = max(1, PIXELS // size)
    for start in range(0, len(theta), many):
        rows = slice(start, start + many)
        if protocol == "transductive":
            found.append(apply(theta[rows], inputs[group.query[rows]]))
            continue
        each = []
        for q in range(group.query.shape[1]):
            at = torch.cat([group.support[rows], group.query[rows, q : q + 1]], 1)
            each.append(apply(theta[rows], inputs[at])[:, -1])
        found.append(torch.stack(each, 1))
    return torch.cat(found)


def _spans(runs: list[int]) -> list[tuple[int, int, int]]:
    """(value, start, stop) of the stretches of equal values."""
    edges = [0] + [i for i in range(1, len(runs)) if runs[i] != runs[i - 1]] + [len(runs)]
    return [(runs[a], a, b) for a, b in itertools.pairwise(edges)]
