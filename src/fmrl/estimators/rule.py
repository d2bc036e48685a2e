"""The default rule: how an estimator without settings chooses where a new task starts and how far it may go.

Adapting to n rows is FTRL's action after n rounds, argmin B_R(·‖start) + eta·(their losses), with

    eta = scale·D / (G·√n),

the theory's step times a factor, because the theorem's G is the steepest a loss can be and losses are mostly flatter. Two things
are left open: whether tasks start at phi or at nothing (tasks that share nothing gain nothing by phi), and the scale. Both are
what did best on tasks not seen, among a pilot of the tasks: half of them give phi, the other half are adapted to from n of their
rows and scored on the rest, for n = 1, 2, 4, …; then the halves change places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fmrl.core.domains import Ball, Euclidean
from fmrl.core.losses import Loss
from fmrl.core.solver import minimise
from fmrl.core.tasks import Rounds
from fmrl.estimators.chart import Chart
from fmrl.estimators.pack import Table, groups, stack

PILOT = 96  # tasks at most
STEPS = 4.0 ** np.arange(6, -2, -1)  # of eta·√n·length², largest first


class Choice(NamedTuple):
    """What to do with ``rounds`` rows."""

    rounds: int
    start: float  # 1: phi, 0: the origin
    scale: float  # times the theory's step
    score: float  # on the pilot: accuracy, or −(mean squared error)


@dataclass(frozen=True)
class Rule:
    """Choices for 1, 2, 4, … rows; between them the nearest, beyond them the last. No choices: there was one task only."""

    lipschitz: float  # G, root mean square over the pilot
    choices: tuple[Choice, ...] = ()

    def at(self, rounds: float) -> Choice:
        """The choice for this many rows.

        >>> Rule(1.0, (Choice(2, 1.0, 3.0, 0.5), Choice(8, 0.0, 9.0, 0.6))).at(5).rounds
        8
        """
        sizes = np.log([c.rounds for c in self.choices])
        return self.choices[int(np.argmin(abs(sizes - math.log(max(rounds, 1e-9)))))]

    def step(self, guess: float, rounds: float) -> tuple[float, float]:
        """Where to start (a factor of phi) and eta."""
        choice = self.at(rounds)
        return choice.start, choice.scale * guess / (self.lipschitz * math.sqrt(rounds))


def optima(tasks: Table, chart: Chart, loss: Loss, regression: bool) -> np.ndarray:
    """The optima in hindsight, [T, d]."""
    out = np.empty((len(tasks), loss.outputs * chart.width))
    for index in groups(tasks, chart.width):
        out[index] = minimise(stack(tasks.select(index), chart, loss, regression), chart.domain).theta
    return out


def leader(game: Rounds, domain: Ball, phi: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """FTRL's action after all rounds, [B, d]; the ball is only looked at where it matters."""
    theta = minimise(game, Euclidean(), phi, eta).theta
    (far,) = np.nonzero(np.sqrt((theta * theta).sum(axis=-1)) > domain.radius)
    if far.size:
        theta[far] = minimise(game.take(far), domain, phi[far], eta[far]).theta
    return theta


def learn(tasks: Table, options: list[Chart], loss: Loss, regression: bool, seed: int) -> tuple[Chart, Rule]:
    """The chart and the rule that did best on a pilot of these tasks."""
    pilot = tasks.select(np.unique(np.linspace(0, len(tasks) - 1, min(PILOT, len(tasks))).astype(int)))
    if len(pilot) < 2 or pilot.sizes.max() < 2:
        return options[-1], Rule(_lipschitz(pilot, options[-1], loss, regression))
    found = [_choices(pilot, chart, loss, regression, seed) for chart in options]
    best = max(range(len(options)), key=lambda i: np.mean([c.score for c in found[i].choices]))
    return options[best], found[best]


def _lipschitz(tasks: Table, chart: Chart, loss: Loss, regression: bool) -> float:
    parts = [stack(tasks.select(i), chart, loss, regression).lipschitz(chart.domain) for i in groups(tasks, chart.width)]
    return max(float(np.sqrt(np.mean(np.concatenate(parts) ** 2))), 1e-290)


def _choices(pilot: Table, chart: Chart, loss: Loss, regression: bool, seed: int) -> Rule:
    theta = optima(pilot, chart, loss, regression)
    half = np.arange(len(pilot)) % 2
    phi = np.stack([theta[half != h].mean(axis=0) for h in (0, 1)])[half]  # of the other half, [P, d]
    guess = math.sqrt(max(float(chart.domain.divergence(theta, theta.mean(axis=0)).mean()), 1e-300))
    lipschitz, rng = _lipschitz(pilot, chart, loss, regression), np.random.default_rng(seed)
    order = [start + rng.permutation(size) for start, size in zip(pilot.starts, pilot.sizes, strict=True)]
    sizes = [n for n in 2 ** np.arange(20) if (pilot.sizes >= n + max(1, n // 3)).sum() >= min(2, len(pilot))]
    scores = np.stack([_scores(pilot, order, int(n), phi, chart, loss, regression) for n in sizes])  # [sizes, 2, steps]
    smooth = np.pad(scores, ((1, 1), (0, 0), (0, 0)), mode="edge")
    smooth = (smooth[:-2] + 2 * smooth[1:-1] + smooth[2:]) / 4  # neighbouring sizes want nearly the same
    choices = []
    for n, row, true in zip(sizes, smooth, scores, strict=True):
        start, step = np.unravel_index(np.argmax(row), row.shape)
        scale = STEPS[step] / chart.length**2 * lipschitz / guess
        choices.append(Choice(int(n), float(1 - start), float(scale), float(true[start, step])))
    return Rule(lipschitz, tuple(choices))


def _scores(
    pilot: Table, order: list, n: int, phi: np.ndarray, chart: Chart, loss: Loss, regression: bool
) -> np.ndarray:
    """Mean score over tasks of adapting to n rows, [2 (from phi, from the origin), steps]."""
    (able,) = np.nonzero(pilot.sizes >= n + max(1, n // 3))
    game = stack(pilot.take(np.stack([order[t][:n] for t in able])), chart, loss, regression)
    held = Table(pilot.X, pilot.y, pilot.weight, pilot.starts, pilot.sizes)
    scores = np.zeros((2, len(STEPS)))
    for i, start in enumerate((1.0, 0.0)):
        for j, step in enumerate(STEPS):
            eta = np.full(len(able), step / (chart.length**2 * math.sqrt(n)))
            theta = leader(game, chart.domain, start * phi[able], eta)
            scores[i, j] = np.mean([_score(held, order[t][n:], w, chart, loss, regression) for t, w in zip(able, theta, strict=True)])
    return scores


def _score(tasks: Table, rows: np.ndarray, theta: np.ndarray, chart: Chart, loss: Loss, regression: bool) -> float:
    z = chart.rows(tasks.X[rows]) @ theta.reshape(loss.outputs, -1).T
    weight = None if tasks.weight is None else tasks.weight[rows]
    if weight is not None and not weight.sum():
        return 0.0
    if regression:
        return -float(np.average((z[:, 0] - chart.target(tasks.y[rows])) ** 2, weights=weight))
    guess = z.argmax(axis=1) if loss.outputs > 1 else z[:, 0] > 0
    return float(np.average(guess == tasks.y[rows], weights=weight))
