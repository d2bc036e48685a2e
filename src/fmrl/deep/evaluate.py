"""Evaluation: thousands of test tasks in bulk, under a protocol that is always said."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fmrl.deep.adaptation import Start, adapt, ends, gradient_norm
from fmrl.deep.batches import Queried, TasksWithQueries, whole
from fmrl.deep.checks import extent, sequence
from fmrl.deep.engines.inner import InnerLoop, capture
from fmrl.deep.evaluation import Evaluation
from fmrl.deep.losses import Loss, squared_error
from fmrl.deep.trainer import MetaTrainer
from fmrl.errors import FMRLError

__all__ = ["PROTOCOLS", "Evaluation", "adapt", "evaluate", "gradient_norm"]

PROTOCOLS = ("transductive", "inductive")
MEASURES = ("accuracy", "loss")
STACK = 640  # tasks adapted at once
PIXELS = 8192 * 28 * 28  # of the samples predicted at once
KEPT = 4  # inner loops that a trainer keeps for its next evaluation


def evaluate(
    learner: MetaTrainer | nn.Module, episodes: TasksWithQueries | Sequence[TasksWithQueries], steps: int = 50, *, protocol: str,
    count: int = 1000, start: int = 0, within: Any = None, runs: Sequence[int] | None = None, loss: Loss | None = None,
    what: str | None = None,
) -> Evaluation | list[Evaluation]:  # fmt: skip
    """Adapt to each of ``count`` test tasks with ``steps`` inner steps from phi, then judge the
    answers to its queries.

    protocol: "transductive" puts all queries of a task in one batch, so that batch norm sees them
    together; "inductive" gives each query alone, in one batch with the task's samples. There is no
    default: the two differ by points.
    learner: a trainer (its within, loss, step and carried moments are used; everything is left as
    it was) or a module (with ``within`` and ``loss``, else Adam() and cross-entropy).
    episodes: tasks with queries, from a Pool or as Arrays, one sequence, or one per run over one
    table; then, and for a trainer with several runs, a list comes back. steps=0 judges phi itself.
    what: "accuracy", the share of right answers, or "loss", that of the queries; left out, it is
    the accuracy where targets are whole numbers and the loss is not the squared error.

    >>> from fmrl.deep import SGD, Arrays
    >>> tasks = Arrays([(torch.eye(2), [0, 1], torch.eye(2), [0, 1])], batch=2, steps=1)
    >>> evaluate(nn.Linear(2, 2), tasks, 100, protocol="inductive", count=2, within=SGD(0.5))
    Evaluation(accuracy 1.0000 [1.0000, 1.0000], inductive, 2 tasks, 100 steps)
    """
    if protocol not in PROTOCOLS:
        raise FMRLError(
            f"protocol={protocol!r} is unknown", fix=f"say {' or '.join(map(repr, PROTOCOLS))}"
        )
    whole(1, count=count)
    whole(0, steps=steps, start=start)
    begin = Start.of(learner, runs, within, loss)
    chosen = len(begin.phi)
    listed = isinstance(episodes, (list, tuple))
    sources = [
        s.with_steps(steps)
        for s in _sources(list(episodes) if listed else [episodes] * chosen, chosen, begin)
    ]
    what = _measure(what, sources, begin.loss)
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
            (a, *sources[r].queried(piece[a][1], b - a))
            for r, a, b in _spans([r for r, _ in piece])
        ]
        loop.index[:, : len(piece)].copy_(
            torch.cat([index for _, index, _, _ in drawn]).transpose(0, 1)
        )
        loop.label[:, : len(piece)].copy_(
            torch.cat([label for _, _, label, _ in drawn]).transpose(0, 1)
        )
        begin.put(loop, torch.tensor(run, device=begin.phi.device))
        play()
        theta = ends(loop)
        for group in _together([(a, queried) for a, _, _, groups in drawn for queried in groups]):
            outputs = _outputs(loop.apply, theta[group.at], sources[0].inputs, group, protocol)
            answers.view(-1)[at + group.at.cpu()] = (
                _score(outputs, group.targets, what, begin.loss).double().cpu()
            )
    results = [Evaluation(row, protocol, steps, what) for row in answers]
    return (
        results if listed or (isinstance(learner, MetaTrainer) and learner.runs > 1) else results[0]
    )


def _sources(sources: list[Any], chosen: int, begin: Start) -> list[Any]:
    """One sequence of tasks for every run, over one table, with queries, suited to the network."""
    if odd := [type(s).__name__ for s in sources if not hasattr(s, "queried")]:
        raise FMRLError(
            f"{odd[0]} is no sequence of tasks with queries",
            fix="use Pool.of(X, y).tasks(…, queries=1) or Arrays([(X, y, Xq, yq), …])",
        )
    if len(sources) != chosen:
        raise FMRLError(f"there are {len(sources)} sequences of tasks for {chosen} runs")
    for source in sources:
        if source.queries < 1:
            raise FMRLError(
                "the test tasks have no queries",
                fix="draw them with queries=1 or more, or give Arrays (X, y, Xq, yq)",
            )
        if source.inputs is not sources[0].inputs:
            raise FMRLError(
                "runs are evaluated together on tasks over one table",
                fix="evaluate those over another table apart",
            )
        if source.batch != sources[0].batch:
            raise FMRLError(
                "runs are evaluated together on tasks with one batch",
                fix="evaluate those with another batch apart",
            )
        sequence(source, begin.module)
    return sources


def _measure(what: str | None, sources: Sequence[Any], loss: Loss) -> str:
    """What is measured: the accuracy of answers that are classes, else the loss."""
    targets = sources[0].queried(0, 1)[2][0].targets
    classes = not targets.is_floating_point() and targets.ndim == 2
    if what is None:
        return "accuracy" if classes and loss is not squared_error else "loss"
    if what not in MEASURES:
        raise FMRLError(f"what={what!r} is unknown", fix=f"say {' or '.join(map(repr, MEASURES))}")
    if what == "accuracy" and not classes:
        raise FMRLError("there is no accuracy where targets are no classes", fix="say what='loss'")
    return what


def _loop(learner: Any, begin: Start, source: Any, size: int) -> tuple[InnerLoop, Any]:
    """An inner loop of the right size, in smaller pieces where memory runs out; a trainer keeps the
    last few it captured.
    """
    held = (
        learner.__dict__.setdefault("_evaluations", {}) if isinstance(learner, MetaTrainer) else {}
    )
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


def _together(groups: Sequence[tuple[int, Queried]]) -> list[Queried]:
    """Tasks of equal shape as one group, counted from the start of the piece."""
    shapes: dict[tuple, list[tuple[int, Queried]]] = {}
    for offset, q in groups:
        shapes.setdefault((q.support.shape[1], q.query.shape[1]), []).append((offset, q))
    return [
        Queried(
            torch.cat([offset + q.at for offset, q in same]),
            *(
                torch.cat([getattr(q, name) for _, q in same])
                for name in ("support", "query", "targets")
            ),
        )
        for same in shapes.values()
    ]


@torch.no_grad()
def _outputs(apply, theta, inputs, group: Queried, protocol) -> torch.Tensor:
    """What the adapted networks say of each query [n, Q, ...], a bounded number of samples at a
    time.
    """
    samples = group.query.shape[1] if protocol == "transductive" else group.support.shape[1] + 1
    size = samples * math.prod(inputs.shape[1:][-2:])
    found = []
    for rows in torch.arange(len(theta)).split(max(1, PIXELS // size)):
        rows = slice(int(rows[0]), int(rows[-1]) + 1)
        if protocol == "transductive":
            found.append(apply(theta[rows], inputs[group.query[rows]]))
            continue
        each = []
        for q in range(group.query.shape[1]):
            at = torch.cat([group.support[rows], group.query[rows, q : q + 1]], 1)
            each.append(apply(theta[rows], inputs[at])[:, -1])
        found.append(torch.stack(each, 1))
    return torch.cat(found)


def _score(outputs: torch.Tensor, targets: torch.Tensor, what: str, loss: Loss) -> torch.Tensor:
    """One number for each task."""
    return (
        outputs.argmax(-1).eq(targets).double().mean(1)
        if what == "accuracy"
        else loss(outputs, targets)
    )


def _spans(runs: list[int]) -> list[tuple[int, int, int]]:
    """(value, start, stop) of the stretches of equal values."""
    edges = [0] + [i for i in range(1, len(runs)) if runs[i] != runs[i - 1]] + [len(runs)]
    return [(runs[a], a, b) for a, b in itertools.pairwise(edges)]
