"""The default rule: how an estimator without settings chooses where a new task starts and how far
it may go.

Adapting to n rows is FTRL's action after n rounds, argmin B_R(·‖start) + eta·(their losses), with

    eta = step / √n.

The theorem's step is D/G, but G is the steepest a loss can be and losses are mostly flatter;
Theorem A.1 holds from any start and with any step. So two things are left open, the step (`scale`
says how many times D/G it is) and where tasks start:

    phi      the mean of the optima, as Algorithm 2 has it
    origin   nothing: tasks that share nothing gain nothing by phi
    pooled   the minimiser of all tasks' losses together, which is better than a mean of optima where tasks are the same

Both are what did best on tasks not seen, among a pilot of the tasks: half of them give the starts,
the other half are adapted to from n of their rows and scored on the rest, for n = 0, 1, 2, 4, …;
then the halves change places."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fmrl.core.domains import Ball, Euclidean
from fmrl.core.losses import Loss
from fmrl.core.solve.majorise import Rotation, majorise
from fmrl.core.solve.minimise import minimise
from fmrl.core.tasks import Rounds
from fmrl.estimators.coordinates import Chart
from fmrl.estimators.pack import Table, groups, stack

PILOT = 96  # tasks at most
ROWS = 20_000  # of the pooled start, at most
STARTS = ("phi", "origin", "pooled")
HELD = 64  # rows of a task to score on, at most
STEPS = 4.0 ** np.arange(-1, 7)  # of eta·√n·length²


class Choice(NamedTuple):
    """What to do with ``rounds`` rows."""

    rounds: int
    start: str  # one of STARTS
    step: float  # eta·√rounds
    score: float  # on the pilot: accuracy, or −(mean squared error)


@dataclass(frozen=True)
class Rule:
    """Choices for 0, 1, 2, 4, … rows; between them the nearest, beyond them the last. No choices:
    there was one task only.
    """

    lipschitz: float  # G, root mean square over the pilot
    choices: tuple[Choice, ...] = ()
    pooled: float = 0.0  # step eta·√N·length² of the pooled start

    def at(self, rounds: float) -> Choice:
        """The choice for this many rows.

        >>> rule = Rule(1.0, (Choice(0, "phi", 0.0, 0.4), Choice(2, "phi", 3.0, 0.5), Choice(8, "origin", 9.0, 0.6)))
        >>> rule.at(5).rounds, rule.at(0).rounds
        (8, 0)
        """
        if not rounds:
            return self.choices[0]
        sizes = np.log([c.rounds for c in self.choices[1:]])
        return self.choices[1 + int(np.argmin(abs(sizes - math.log(rounds))))]

    def eta(self, rounds: float) -> float:
        """The step for this many rows."""
        return self.at(rounds).step / math.sqrt(rounds)

    def scale(self, rounds: float, guess: float) -> float:
        """How many times the theory's step D/(G·√rounds) that is."""
        return self.at(rounds).step * self.lipschitz / guess


def optima(tasks: Table, chart: Chart, loss: Loss, regression: bool) -> np.ndarray:
    """The optima in hindsight, [T, d]."""
    out = np.empty((len(tasks), loss.outputs * chart.width))
    for index in groups(tasks, chart.width):
        out[index] = minimise(
            stack(tasks.select(index), chart, loss, regression), chart.domain
        ).theta
    return out


def leader(game: Rounds, domain: Ball, phi: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """FTRL's action after all rounds, [B, d]; the ball is only looked at where it matters."""
    theta = minimise(game, Euclidean(), phi, eta).theta
    (far,) = np.nonzero(np.sqrt((theta * theta).sum(axis=-1)) > domain.radius)
    if far.size:
        theta[far] = minimise(game.take(far), domain, phi[far], eta[far]).theta
    return theta


def pool(
    tasks: Table, chart: Chart, loss: Loss, regression: bool, steps: list[float]
) -> list[np.ndarray]:
    """The minimisers [d] of all rows' losses and B_R, for steps eta·√N·length² from small to large,
    to three digits.
    """
    rows = tasks.rows()
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), ROWS)).astype(int))]
    game = stack(tasks.take(rows[None, :]), chart, loss, regression)
    origin = np.zeros((1, loss.outputs * chart.width))
    return [theta[0] for theta in _path(game, origin, chart, len(rows), steps)]


def learn(
    tasks: Table, options: list[Chart], loss: Loss, regression: bool, seed: int
) -> tuple[Chart, Rule]:
    """The chart and the rule that did best on a pilot of these tasks."""
    pilot = tasks.select(
        np.unique(np.linspace(0, len(tasks) - 1, min(PILOT, len(tasks))).astype(int))
    )
    if len(pilot) < 2 or pilot.sizes.max() < 2:
        return options[-1], Rule(_lipschitz(pilot, options[-1], loss, regression))
    found = [_choices(pilot, tasks, chart, loss, regression, seed) for chart in options]
    best = max(range(len(options)), key=lambda i: np.mean([c.score for c in found[i].choices]))
    return options[best], found[best]


def _lipschitz(tasks: Table, chart: Chart, loss: Loss, regression: bool) -> float:
    parts = [
        stack(tasks.select(i), chart, loss, regression).lipschitz(chart.domain)
        for i in groups(tasks, chart.width)
    ]
    return max(float(np.sqrt(np.mean(np.concatenate(parts) ** 2))), 1e-290)


def _choices(
    pilot: Table, tasks: Table, chart: Chart, loss: Loss, regression: bool, seed: int
) -> Rule:
    rng = np.random.default_rng(seed)
    order = [
        start + rng.permutation(size) for start, size in zip(pilot.starts, pilot.sizes, strict=True)
    ]
    half = np.arange(len(pilot)) % 2
    theta = optima(pilot, chart, loss, regression)
    phi = np.stack([theta[half != h].mean(axis=0) for h in (0, 1)])[
        half
    ]  # of the other half, [P, d]
    zero, pooled, step = _unadapted(pilot, order, half, phi, chart, loss, regression)
    starts = dict(zip(STARTS, (phi, np.zeros_like(phi), pooled), strict=True))
    sizes = [int(n) for n in 2 ** np.arange(20) if (pilot.sizes >= n + max(1, n // 3)).sum() >= 2]
    if not sizes:
        sizes = [1]
    scores = np.stack(
        [_scores(pilot, order, n, starts, chart, loss, regression) for n in sizes]
    )  # [sizes, starts, steps]
    smooth = np.pad(scores, ((1, 1), (0, 0), (0, 0)), mode="edge")
    smooth = (
        smooth[:-2] + 2 * smooth[1:-1] + smooth[2:]
    ) / 4  # neighbouring sizes want nearly the same
    choices = [zero]
    for n, row, true in zip(sizes, smooth, scores, strict=True):
        best = np.unravel_index(np.argmax(row), row.shape)
        choices.append(
            Choice(n, STARTS[best[0]], float(STEPS[best[1]]) / chart.length**2, float(true[best]))
        )
    return Rule(_lipschitz(pilot, chart, loss, regression), tuple(choices), step)


def _unadapted(
    pilot: Table,
    order: list,
    half: np.ndarray,
    phi: np.ndarray,
    chart: Chart,
    loss: Loss,
    regression: bool,
):
    """The choice for no rows at all, the pooled start [P, d] of the other half, and the step that
    made it.
    """
    held = _held([rows[:HELD] for rows in order], pilot, chart, regression)

    def scored(theta: np.ndarray) -> float:
        return _score(
            held[0] @ np.swapaxes(theta.reshape(len(pilot), loss.outputs, -1), 1, 2),
            *held[1:],
            regression,
        )

    paths = [
        pool(pilot.select(np.flatnonzero(half != h)), chart, loss, regression, list(STEPS))
        for h in (0, 1)
    ]
    pooled = [np.stack(pair)[half] for pair in zip(*paths, strict=True)]
    scores = [scored(theta) for theta in pooled]
    best = int(np.argmax(scores))
    of_phi = scored(phi)
    zero = (
        Choice(0, "phi", 0.0, of_phi)
        if of_phi >= scores[best]
        else Choice(0, "pooled", 0.0, scores[best])
    )
    return zero, pooled[best], float(STEPS[best])


def _scores(
    pilot: Table, order: list, n: int, starts: dict, chart: Chart, loss: Loss, regression: bool
) -> np.ndarray:
    """Mean score over tasks of adapting to n rows, [starts, steps]."""
    (able,) = np.nonzero(pilot.sizes >= n + max(1, n // 3))
    if not able.size:
        return np.zeros((len(starts), len(STEPS)))
    game = stack(pilot.take(np.stack([order[t][:n] for t in able])), chart, loss, regression)
    held = _held([order[t][n : n + HELD] for t in able], pilot, chart, regression)
    scores = np.zeros((len(starts), len(STEPS)))
    for i, start in enumerate(starts.values()):
        for j, theta in enumerate(_path(game, start[able], chart, n, list(STEPS))):
            z = held[0] @ np.swapaxes(theta.reshape(len(able), loss.outputs, -1), 1, 2)
            scores[i, j] = _score(z, *held[1:], regression)
    return scores


def _path(
    game: Rounds, phi: np.ndarray, chart: Chart, n: int, steps: list[float]
) -> Iterator[np.ndarray]:
    """FTRL's actions [B, d] for one step after another, each from the one before, to three digits."""
    rotation = Rotation(game, Euclidean(), phi)
    v: np.ndarray = rotation.phi  # type: ignore[assignment]
    for step in steps:
        problem, curvature = rotation.objective(
            n, np.full(len(phi), step / (chart.length**2 * math.sqrt(n)))
        )
        v = majorise(problem, curvature, v, 1e-3)[0]
        yield chart.domain.project(rotation.up(v))


def _held(
    rows: list[np.ndarray], tasks: Table, chart: Chart, regression: bool
) -> tuple[np.ndarray, ...]:
    """Rows to score on, padded: X [B, H, width], y [B, H] and weights [B, H] that sum to one in
    every task.
    """
    index = np.zeros((len(rows), max(map(len, rows))), dtype=int)
    weight = np.zeros(index.shape)
    for b, r in enumerate(rows):
        index[b, : len(r)], weight[b, : len(r)] = (
            r,
            1.0 if tasks.weight is None else tasks.weight[r],
        )
    weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-290)
    y = tasks.y[index]
    return chart.rows(tasks.X[index]), chart.target(y) if regression else y, weight


def _score(z: np.ndarray, y: np.ndarray, weight: np.ndarray, regression: bool) -> float:
    """Accuracy, or minus the mean squared error, of margins [B, H, outputs]."""
    if regression:
        return -float(((z[..., 0] - y) ** 2 * weight).sum(axis=1).mean())
    guess = z.argmax(axis=-1) if z.shape[-1] > 1 else z[..., 0] > 0
    return float(((guess == y) * weight).sum(axis=1).mean())
