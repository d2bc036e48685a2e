"""Evaluation: thousands of test tasks in bulk, under a protocol that must be named."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import nn

from fmrl.deep import without
from fmrl.deep.adaptation import Start, ends
from fmrl.deep.checks import extent, sequence, whole
from fmrl.deep.engines.inner import InnerLoop, capture
from fmrl.deep.evaluation import BothProtocols, Evaluation, Variety, warn_of_shared
from fmrl.deep.losses import Loss, squared_error
from fmrl.deep.networks import present
from fmrl.deep.tasks import Arrays, Queried, TasksWithQueries
from fmrl.deep.trainer import MetaTrainer
from fmrl.errors import FMRLError

PROTOCOLS = ("transductive", "inductive")
MEASURES = ("accuracy", "loss")
STACK = 640  # tasks adapted at once
PIXELS = 8192 * 28 * 28  # of the samples predicted at once
KEPT = 4  # inner loops that a trainer keeps for its next evaluation
ADAPTED = "adapted"


def evaluate(
    learner: MetaTrainer | nn.Module | Start,
    episodes: TasksWithQueries | Sequence[TasksWithQueries], steps: int = 50, *, protocol: str,
    count: int | None = None, start: int = 0,
    within: Any = None, runs: Sequence[int] | None = None, loss: Loss | None = None,
    what: str | None = None, compare: bool = True, progress: bool = True,
) -> Evaluation | BothProtocols | list[Evaluation] | list[BothProtocols]:  # fmt: skip
    """Adapt to each test task by inner steps from phi, then judge the answers to its queries.

    Beside it, on the same samples and queries, what you would have got without meta-learning: the
    same network untrained (a trainer's modules as they were given, a module drawn anew; the same
    inner steps, and the step a trainer began with), nearest class mean, and logistic regression on
    the inputs; for numbers and the squared error ridge regression and the mean of the samples.
    ``.sentence`` says whether it helped. A warning names test classes that were trained on, where
    both are drawn from pools.

    Args:
        learner: A trainer (its within, loss, step and carried moments are used; it is not changed)
            or a module.
        episodes: Tasks with queries, from a Pool or as Arrays: one sequence, or one for each run
            over one table.
        steps: Inner steps on each task; 0 judges phi itself.
        protocol: "transductive" puts all queries of a task in one batch, so that batch norm sees
            them together; "inductive" gives each query alone, in one batch with the task's samples;
            "both" judges the same adapted networks under both. There is no default: the two differ
            by points.
        count: Test tasks. Left out, all of `Arrays`, and 1,000 of a pool's.
        start: Number of the first of them.
        within: `SGD`, `Adam` or `DoG`, for a module (default ``Adam()``); `Fading`, for a trainer
            that has learned its step.
        runs: Which runs of a trainer; None means all.
        loss: For a module. Default `cross_entropy`.
        what: "accuracy", the share of right answers, or "loss", that of the queries. Left out, it
            is the accuracy where targets are whole numbers and the loss is not the squared error.
        compare: Whether to look at what you would have got without; it takes as long again.
        progress: Whether to show a bar, on a terminal.

    Returns:
        One `Evaluation`, or for "both" one `BothProtocols` of two; a list of them for a list of
        sequences or a trainer with several runs.

    >>> from fmrl.deep import SGD, Arrays
    >>> tasks = Arrays([(torch.eye(2), [0, 1], torch.eye(2), [0, 1])] * 2, batch=2, steps=1)
    >>> evaluate(nn.Linear(2, 2), tasks, 100, protocol="inductive", within=SGD(0.5))
    Evaluation(accuracy 1.0000 [1.0000, 1.0000], inductive, 2 tasks, 100 steps)
    """
    _one_of((*PROTOCOLS, "both"), protocol=protocol)
    whole(0, steps=steps, start=start)
    begin = Start.of(learner, runs, within, loss)
    chosen, listed = len(begin.phi), isinstance(episodes, (list, tuple))
    sources = list(episodes) if listed else [episodes] * chosen
    _check(sources, chosen, begin)
    count = _count(count, sources)
    if isinstance(learner, MetaTrainer):
        warn_of_shared(learner.played.values(), sources)
    sources = [s.with_steps(steps) for s in sources]
    asked = PROTOCOLS if protocol == "both" else (protocol,)
    measured = _measure(what, sources[0], begin.loss)
    starts = {ADAPTED: begin}
    if compare and (untrained := begin.untrained(learner, runs)) is not None:
        starts[without.START] = untrained
    numbers = [(r, start + i) for r in range(chosen) for i in range(count)]
    loop, play = _loop(learner, begin, sources[0], min(len(numbers), STACK))
    for source in {id(s): s for s in sources}.values():
        loop.check(extent(source))
    found = Scores(chosen * count, asked)
    with _bar(len(numbers), progress) as advance:
        for at in range(0, len(numbers), loop.tasks):
            piece = numbers[at : at + loop.tasks]
            groups = _draw(loop, sources, piece)
            if loop.number is not None:  # masks of dropout are those of the task, however stacked
                own = torch.tensor([number for _, number in piece], device=loop.number.device)
                loop.number[: len(piece)] = own
            inputs = sources[0].inputs
            for name, from_here in starts.items():
                run = [r for r, _ in piece] + [piece[-1][0]] * (loop.tasks - len(piece))
                from_here.put(loop, torch.tensor(run, device=begin.phi.device))
                play()
                theta = ends(loop)
                for group, each in itertools.product(groups, asked):
                    outputs = _outputs(loop.apply, theta[group.at], inputs, group, each)
                    found.put(name, each, at + group.at, _judge(outputs, group, measured, begin))
            if compare and without.readable(begin.module):
                outputs = loop.apply.outputs[-1] if loop.apply.outputs else 1
                for group in groups:
                    facts = measured, begin.loss, outputs
                    for name, scores in without.scores(inputs, group, *facts).items():
                        for each in asked:
                            found.put(name, each, at + group.at, scores)
            advance(len(piece))
    variety = learner.variety if isinstance(learner, MetaTrainer) else None
    results = []
    for r in range(chosen):
        own = slice(r * count, (r + 1) * count)
        made = [found.evaluation(own, each, steps, measured, variety) for each in asked]
        results.append(BothProtocols(*made) if protocol == "both" else made[0])
    several = listed or chosen > 1 or (isinstance(learner, MetaTrainer) and learner.runs > 1)
    return results if several else results[0]


def _count(asked: int | None, sources: list[Any]) -> int:
    """Test tasks: those asked for, but none twice, which would say how sure it is and be wrong."""
    whole(1, count=1 if asked is None else asked)
    there = min([len(s.sizes) for s in sources if isinstance(s, Arrays)], default=None)
    if there is not None and (asked or 0) > there:
        what = f"there are {there} test tasks, and each is judged once, not {asked} in all"
        warnings.warn(what, RuntimeWarning, stacklevel=3)
    most = asked or 1000
    return most if there is None else min(most, there)


class Scores:
    """Scores of tasks by who made them and under which protocol."""

    def __init__(self, tasks: int, protocols: Sequence[str]):
        self.tasks, self.held = tasks, {each: {} for each in protocols}

    def put(self, name: str, protocol: str, at: torch.Tensor, scores: torch.Tensor) -> None:
        """Keep the scores of tasks ``at``."""
        empty = torch.full((self.tasks,), math.nan, dtype=torch.float64)
        self.held[protocol].setdefault(name, empty)[at.cpu()] = scores.double().cpu()

    def evaluation(
        self, own: slice, protocol: str, steps: int, what: str, variety: Variety | None
    ) -> Evaluation:
        """Of the tasks ``own``; a way that could not be tried on all of them is left out."""
        rows = {name: scores[own].clone() for name, scores in self.held[protocol].items()}
        adapted = rows.pop(ADAPTED)
        if bad := int((~adapted.isfinite()).sum()):
            what = f"the {what} of {bad} of {len(adapted)} test tasks is not a finite number"
            raise FMRLError(what, fix="take a smaller step, and look for NaN among the inputs")
        beside = {name: row for name, row in rows.items() if not bool(row.isnan().any())}
        return Evaluation(adapted, protocol, steps, what, beside, variety)


def _draw(loop: InnerLoop, sources: list[Any], piece: list[tuple[int, int]]) -> list[Queried]:
    """Put the tasks of (run, number) into the loop; their samples and queries, by shape."""
    spans = _spans([r for r, _ in piece])
    drawn = [(a, *sources[r].queried(piece[a][1], b - a)) for r, a, b in spans]
    for buffer, i in ((loop.index, 1), (loop.label, 2)):
        buffer[:, : len(piece)].copy_(torch.cat([d[i] for d in drawn]).transpose(0, 1))
    if loop.number is not None:  # masks of dropout
        loop.number[: len(piece)].copy_(torch.tensor([number for _, number in piece]))
    return _grouped([(a, queried) for a, _, _, groups in drawn for queried in groups])


def _judge(outputs: torch.Tensor, group: Queried, what: str, begin: Start) -> torch.Tensor:
    """The score of every task."""
    if what == "accuracy":
        return outputs.argmax(-1).eq(group.targets).double().mean(1)
    return begin.loss(outputs, group.targets)


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar over test tasks, on a terminal that has no other."""
    from rich.console import Console
    from rich.errors import LiveError
    from rich.progress import Progress

    console = Console(stderr=True)
    with ExitStack() as stack:
        bar = None
        if shown and (console.is_terminal or console.is_jupyter):
            with suppress(LiveError):
                bar = stack.enter_context(Progress(console=console, transient=True))
        line = None if bar is None else bar.add_task("test tasks", total=total)
        yield (lambda n: None) if bar is None else (lambda n: bar.advance(line, n))


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
    key = size, *label.shape, label.dtype, id(source.inputs), begin.within, present(begin.module)
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
        known = [q.support_targets for _, q in same]
        known = None if any(k is None for k in known) else torch.cat(known)
        found.append(Queried(at, *map(torch.cat, fields), known))
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
