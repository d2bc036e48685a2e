"""The default rule: how an estimator without settings chooses where a new task starts and how far
it may go.

Adapting to n rows is FTRL's action after n rounds, argmin B_R(·‖start) + eta·(their losses), with

    eta = step / √n.

The theorem's step is D/G, but G is the steepest a loss can be and losses are mostly flatter;
Theorem A.1 holds from any start and with any step. So two things are left open, the step
(`Rule.scale` says how many times D/G it is) and where tasks start:

    phi      the mean of the optima, as Algorithm 2 has it
    origin   nothing: tasks that share nothing gain nothing by phi
    pooled   the minimiser of all tasks' losses together, better than a mean of optima where tasks
             are the same

Both are what did best on tasks not seen, among a pilot of the tasks: half of them give the
starts, the other half are adapted to from n of their rows and scored on the rest, for n = 0, 1,
2, 4, …; then the halves change places."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fmrl.core.domains import Ball, Euclidean
from fmrl.core.losses import Squared
from fmrl.core.solve import minimise
from fmrl.core.solve.majorise import Rotation, majorise
from fmrl.core.tasks import Rounds, Tasks
from fmrl.estimators.coordinates import Coordinates

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

        >>> phi, two = Choice(0, "phi", 0.0, 0.4), Choice(2, "phi", 3.0, 0.5)
        >>> rule = Rule(1.0, (phi, two, Choice(8, "origin", 9.0, 0.6)))
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


def spaced(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the places 0 … count − 1, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def optima(tasks: Tasks, domain: Ball) -> np.ndarray:
    """The optima in hindsight, [T, d]."""
    out = np.empty((len(tasks), tasks.dim))
    for part, game in tasks.stacks():
        out[part] = minimise(game, domain).theta
    return out


def leader(game: Rounds, domain: Ball, phi: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """FTRL's action after all rounds, [B, d]; the ball is only looked at where it matters."""
    theta = minimise(game, Euclidean(), phi, eta).theta
    (far,) = np.nonzero(np.sqrt((theta * theta).sum(axis=-1)) > domain.radius)
    if far.size:
        theta[far] = minimise(game.take(far), domain, phi[far], eta[far]).theta
    return theta


def pool(tasks: Tasks, here: Coordinates, steps: list[float]) -> list[np.ndarray]:
    """The minimisers [d] of all rows' losses and B_R, for steps eta·√N·length² from small to
    large, to three digits. The tasks are in the user's units.
    """
    rows = here.tasks(tasks.rows(spaced(len(tasks.X), ROWS)[None, :]))
    return [theta[0] for theta in _leaders(rows.stack(), np.zeros((1, rows.dim)), here, steps)]


def learn(tasks: Tasks, options: list[Coordinates], seed: int) -> tuple[Coordinates, Rule]:
    """The coordinates and the rule that did best on a pilot of these tasks."""
    pilot = tasks.take(spaced(len(tasks), PILOT))
    if len(pilot) < 2 or pilot.lengths.max() < 2:
        last = options[-1]
        return last, Rule(_lipschitz(last.tasks(pilot), last))
    found = [_Pilot(pilot, here, seed).rule() for here in options]
    best = max(range(len(options)), key=lambda i: np.mean([c.score for c in found[i].choices]))
    return options[best], found[best]


def _lipschitz(tasks: Tasks, here: Coordinates) -> float:
    """Root mean square of G over tasks in their coordinates."""
    parts = [game.lipschitz(here.domain) for _, game in tasks.stacks()]
    return max(float(np.sqrt(np.mean(np.concatenate(parts) ** 2))), 1e-290)


class _Pilot:
    """Some tasks in two halves: each half is adapted to from the starts that the other gives."""

    def __init__(self, tasks: Tasks, here: Coordinates, seed: int):
        rng = np.random.default_rng(seed)
        self.given, self.tasks, self.here = tasks, here.tasks(tasks), here
        self.half = np.arange(len(tasks)) % 2
        begins = zip(tasks.starts[:-1], tasks.lengths, strict=True)
        self.order = [start + rng.permutation(size) for start, size in begins]  # rows of each task

    def rule(self) -> Rule:
        tasks, here, half = self.tasks, self.here, self.half
        theta = optima(tasks, here.domain)
        phi = np.stack([theta[half != h].mean(axis=0) for h in (0, 1)])[half]  # of the other half
        zero, pooled, step = self._unadapted(phi)
        starts = (phi, np.zeros_like(phi), pooled)
        enough = [(tasks.lengths >= n + max(1, n // 3)).sum() >= 2 for n in 2 ** np.arange(20)]
        sizes = (2 ** np.flatnonzero(enough)).tolist() or [1]
        scores = np.stack([self._scores(n, starts) for n in sizes])  # [sizes, starts, steps]
        # Neighbouring sizes want nearly the same.
        padded = np.pad(scores, ((1, 1), (0, 0), (0, 0)), mode="edge")
        smooth = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
        choices = [zero]
        for n, row, true in zip(sizes, smooth, scores, strict=True):
            best = np.unravel_index(np.argmax(row), row.shape)
            eta = float(STEPS[best[1]]) / here.length**2
            choices.append(Choice(n, STARTS[best[0]], eta, float(true[best])))
        return Rule(_lipschitz(tasks, here), tuple(choices), step)

    def _unadapted(self, phi: np.ndarray) -> tuple[Choice, np.ndarray, float]:
        """The choice for no rows, the pooled start [P, d] of the other half, and its step."""
        held = self._held([rows[:HELD] for rows in self.order])
        others = [self.given.take(np.flatnonzero(self.half != h)) for h in (0, 1)]
        paths = [pool(tasks, self.here, list(STEPS)) for tasks in others]
        pooled = [np.stack(pair)[self.half] for pair in zip(*paths, strict=True)]
        scores = [self._score(theta, *held) for theta in pooled]
        best, of_phi = int(np.argmax(scores)), self._score(phi, *held)
        zero = Choice(0, "phi", 0.0, of_phi)
        if of_phi < scores[best]:
            zero = Choice(0, "pooled", 0.0, scores[best])
        return zero, pooled[best], float(STEPS[best])

    def _scores(self, n: int, starts: tuple[np.ndarray, ...]) -> np.ndarray:
        """Mean score over tasks of adapting to n rows, [starts, steps]."""
        (able,) = np.nonzero(self.tasks.lengths >= n + max(1, n // 3))
        if not able.size:
            return np.zeros((len(starts), len(STEPS)))
        game = self.tasks.rows(np.stack([self.order[t][:n] for t in able])).stack()
        held = self._held([self.order[t][n : n + HELD] for t in able])
        paths = [_leaders(game, start[able], self.here, list(STEPS)) for start in starts]
        return np.array([[self._score(theta, *held) for theta in path] for path in paths])

    def _held(self, rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows to score on, padded: X [B, H, width], targets [B, H, k] and weights [B, H] that
        sum to one in every task.
        """
        tasks, index = self.tasks, np.zeros((len(rows), max(map(len, rows))), dtype=int)
        weight = np.zeros(index.shape)
        for b, r in enumerate(rows):
            index[b, : len(r)] = r
            weight[b, : len(r)] = 1.0 if tasks.weight is None else tasks.weight[r]
        weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-290)
        return tasks.X[index], tasks.target[index], weight

    def _score(
        self, theta: np.ndarray, X: np.ndarray, target: np.ndarray, weight: np.ndarray
    ) -> float:
        """Accuracy, or minus the mean squared error, of models theta [B, d]."""
        z = X @ np.swapaxes(theta.reshape(len(X), self.tasks.loss.outputs, -1), 1, 2)
        if isinstance(self.tasks.loss, Squared):
            return -float(((z[..., 0] - target[..., 0]) ** 2 * weight).sum(axis=1).mean())
        if z.shape[-1] > 1:
            right = np.take_along_axis(target, z.argmax(axis=-1)[..., None], axis=-1)[..., 0]
        else:
            right = (z[..., 0] > 0) == target[..., 0]
        return float((right * weight).sum(axis=1).mean())


def _leaders(
    game: Rounds, phi: np.ndarray, here: Coordinates, steps: list[float]
) -> Iterator[np.ndarray]:
    """FTRL's actions [B, d] for one step after another, each from the one before, to three
    digits.
    """
    rotation, n = Rotation(game, Euclidean(), phi), game.length
    v: np.ndarray = rotation.phi  # type: ignore[assignment]
    for step in steps:
        eta = np.full(len(phi), step / (here.length**2 * math.sqrt(n)))
        problem, curvature = rotation.objective(n, eta)
        v = majorise(problem, curvature, v, 1e-3)[0]
        yield here.domain.project(rotation.up(v))
