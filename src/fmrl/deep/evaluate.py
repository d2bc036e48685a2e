"""Evaluation and adaptation: thousands of test tasks in bulk, under a protocol that is always said."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fmrl.core.errors import FMRLError
from fmrl.deep.inner import InnerLoop, capture, cross_entropy
from fmrl.deep.layout import Layout
from fmrl.deep.stacked import stack
from fmrl.deep.tasks import Arrays, FewShot
from fmrl.deep.trainer import MetaTrainer
from fmrl.deep.within import Adam

PROTOCOLS = ("transductive", "inductive")
STACK = 640  # tasks adapted at once
PIXELS = 8192 * 28 * 28  # of the samples predicted at once


@dataclass(frozen=True)
class Evaluation:
    """Accuracy on test tasks; ``tasks`` [count] holds each task's share of right answers."""

    tasks: torch.Tensor
    protocol: str
    steps: int

    @property
    def accuracy(self) -> float:
        """Mean over tasks."""
        return float(self.tasks.mean())

    @property
    def error(self) -> float:
        """Standard error of that mean."""
        return float(self.tasks.std(correction=1)) / math.sqrt(len(self.tasks)) if len(self.tasks) > 1 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval over tasks."""
        return self.accuracy - 1.96 * self.error, self.accuracy + 1.96 * self.error

    def __repr__(self):
        low, high = self.interval
        return f"Evaluation({self.accuracy:.4f} [{low:.4f}, {high:.4f}], {self.protocol}, {len(self.tasks)} tasks, {self.steps} steps)"


def evaluate(
    learner: MetaTrainer | nn.Module, episodes: FewShot | Sequence[FewShot], steps: int = 50, *, protocol: str,
    count: int = 1000, start: int = 0, within: Any = None, runs: Sequence[int] | None = None,
) -> Evaluation | list[Evaluation]:  # fmt: skip
    """Adapt to each of ``count`` test tasks with ``steps`` inner steps from phi, then classify its queries.

    protocol: "transductive" puts all queries of a task in one batch, so that batch norm sees them together; "inductive" gives each
    query alone, in one batch with the task's shots. There is no default: the two differ by points.
    learner: a trainer (its within, step and carried moments are used; everything is left as it was) or a module (with ``within``).
    episodes: tasks with queries, one sequence, or one per run of equal shape; then, and for a trainer with several runs, a list comes back.
    """
    if protocol not in PROTOCOLS:
        raise FMRLError(f"protocol={protocol!r} is unknown", fix=f"say {' or '.join(map(repr, PROTOCOLS))}")
    several = isinstance(learner, MetaTrainer) and learner.runs > 1
    chosen = list(range(learner.runs)) if runs is None and isinstance(learner, MetaTrainer) else list(runs or [0])
    sources = list(episodes) if isinstance(episodes, (list, tuple)) else [episodes] * len(chosen)
    if (
        len(sources) != len(chosen)
        or len({(s.batch, s.episodes.ways, s.episodes.shots, s.episodes.queries) for s in sources}) > 1
    ):
        raise FMRLError("runs are evaluated together on tasks of one shape", fix="evaluate those of another shape apart")
    if sources[0].episodes.queries < 1:
        raise FMRLError("the test tasks have no queries", fix="draw them with queries=1 or more")
    phi, second, taken, eta, within, kept = _start(learner, chosen, within)
    sources = [replace(s, steps=steps) for s in sources]
    numbers = [(r, start + i) for r in range(len(chosen)) for i in range(count)]
    size = min(len(numbers), STACK)
    loop, play = _loop(learner, kept, within, sources[0], size, steps)
    answers = torch.empty(len(chosen), count)
    labels = sources[0].query_labels
    for at in range(0, len(numbers), size):
        piece = numbers[at : at + size]
        run = [r for r, _ in piece] + [piece[-1][0]] * (size - len(piece))
        drawn = [sources[r].draw_queries(piece[a][1], b - a) for r, a, b in _spans([r for r, _ in piece])]
        index, label, support, query = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        loop.index[:, : len(piece)].copy_(index.transpose(0, 1))
        loop.label[:, : len(piece)].copy_(label.transpose(0, 1))
        pick = torch.tensor(run, device=phi.device)
        _put(loop, phi[pick], None if second is None else second[pick], eta[pick], taken)
        play()
        theta = _module_order(loop)[: len(piece)]
        right = _predict(loop.apply, theta, sources[0].inputs, support, query, protocol).eq(labels).float().mean(1).cpu()
        answers.view(-1)[at : at + len(piece)] = right
    results = [Evaluation(row, protocol, steps) for row in answers]
    return results if several or isinstance(episodes, (list, tuple)) else results[0]


def adapt(
    learner: MetaTrainer | nn.Module, X: Any, y: Any, steps: int = 50, *, batch: int | None = None, within: Any = None,
    run: int = 0, seed: int = 0,
) -> nn.Module:  # fmt: skip
    """A plain nn.Module adapted to one task's X [n, ...] and y [n] by ``steps`` inner steps from phi.

    >>> module = adapt(nn.Linear(2, 2), torch.eye(2), [0, 1], steps=100, within=Adam(0.1))
    >>> module(torch.eye(2)).argmax(1).tolist()
    [0, 1]
    """
    phi, second, taken, eta, within, module = _start(learner, [run], within)
    n = len(X)
    tasks = Arrays([(X, y)], batch=min(batch or n, n), steps=steps, seed=seed, device=phi.device)
    loss = learner.loss if isinstance(learner, MetaTrainer) else cross_entropy
    inputs = tasks.inputs if tasks.inputs.is_floating_point() else tasks.inputs.to(phi.dtype)
    index, label = tasks.draw(0, 1)
    loop = InnerLoop(module, within, inputs, tasks=1, steps=steps, batch=tasks.batch, loss=loss, targets=label.dtype)
    loop.index.copy_(index.transpose(0, 1))
    loop.label.copy_(label.transpose(0, 1))
    _put(loop, phi, second, eta, taken)
    loop.play()
    return Layout.of(module).module(module, _module_order(loop)[0])


def gradient_norm(module: nn.Module, tasks: Any, count: int = 20, loss: Any = cross_entropy) -> float:
    """The largest norm of the gradient at ``module`` over first mini-batches of ``count`` tasks: a G for SGD(lipschitz=…)."""
    phi = Layout.of(module).flat(module)
    index, label = tasks.draw(0, count)
    theta = phi.expand(count, -1).clone().requires_grad_()
    values = loss(stack(module)(theta, tasks.inputs[index[:, 0]].to(phi.dtype)), label[:, 0])
    return float(torch.autograd.grad(values.sum(), theta)[0].norm(dim=1).max())


def _start(learner, chosen, within):
    """phi, carried moments, steps behind them, eta, within and a module, for the chosen runs."""
    if isinstance(learner, MetaTrainer):
        if within is not None:
            raise FMRLError("a trainer is evaluated with its own within", fix="give trainer.trained() to use another")
        second = None if learner.second is None else learner.second[chosen]
        return learner.phi[chosen], second, learner.count, learner.eta[chosen], learner.within, learner.module
    phi = Layout.of(learner).flat(learner)[None]
    within = within or Adam()
    if within.step is None:
        raise FMRLError(f"{within!r} has no step", fix="give step=")
    return phi.expand(len(chosen), -1), None, 0, torch.full((len(chosen),), within.step).to(phi), within, learner


def _loop(learner, module, within, source, size, steps):
    """An inner loop of the right size; a trainer keeps the ones it captured."""
    held = learner.__dict__.setdefault("_evaluations", {}) if isinstance(learner, MetaTrainer) else {}
    key = (size, steps, source.batch, id(source.inputs))
    if key not in held:
        shared = ("path", "precision", "loss")
        options = {name: getattr(learner, name) for name in shared} if isinstance(learner, MetaTrainer) else {}
        piece = size
        while True:
            try:
                loop = InnerLoop(
                    module, within, source.inputs, tasks=size, steps=steps, batch=source.batch, piece=piece, **options
                )  # fmt: skip
                held[key] = loop, capture(loop.play, loop.theta.device)
                break
            except torch.cuda.OutOfMemoryError:
                if piece == 1:
                    raise
                piece = (piece + 1) // 2
                torch.cuda.empty_cache()
    return held[key]


def _put(loop, phi, second, eta, taken) -> None:
    loop.theta.copy_(phi if loop.order is None else phi[:, loop.order])
    if loop.second is not None and second is None:
        loop.second.zero_()
    elif loop.second is not None:
        loop.second.copy_(second if loop.order is None else second[:, loop.order])
    loop.eta.copy_(eta)
    loop.bias.copy_(loop.bias_at(taken))


def _module_order(loop: InnerLoop) -> torch.Tensor:
    if loop.order is None:
        return loop.theta
    theta = torch.empty_like(loop.theta)
    theta[:, loop.order] = loop.theta
    return theta


@torch.no_grad()
def _predict(apply, theta, inputs, support, query, protocol) -> torch.Tensor:
    """Predicted class of each query [T, Q], a bounded number of samples at a time."""
    whole = query.shape[1] if protocol == "transductive" else support.shape[1] + 1
    found = []
    size = whole * math.prod(inputs.shape[-2:])
    for rows in torch.arange(len(theta), device="cpu").split(max(1, PIXELS // size)):
        rows = slice(int(rows[0]), int(rows[-1]) + 1)
        if protocol == "transductive":
            found.append(apply(theta[rows], inputs[query[rows]].to(theta.dtype)).argmax(-1))
            continue
        each = []
        for q in range(query.shape[1]):
            at = torch.cat([support[rows], query[rows, q : q + 1]], 1)
            each.append(apply(theta[rows], inputs[at].to(theta.dtype))[:, -1].argmax(-1))
        found.append(torch.stack(each, 1))
    return torch.cat(found)


def _spans(runs: list[int]) -> list[tuple[int, int, int]]:
    """(value, start, stop) of the stretches of equal values."""
    edges = [0] + [i for i in range(1, len(runs)) if runs[i] != runs[i - 1]] + [len(runs)]
    return [(runs[a], a, b) for a, b in itertools.pairwise(edges)]
