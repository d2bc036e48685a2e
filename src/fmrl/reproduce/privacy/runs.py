"""The parts of the study: one draw of an environment, played without privacy, with every budget,
and without meta-learning.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fmrl
from fmrl import FMRL, OMD, Ball, Fixed, Known, NoisyGradients, Task, Tree
from fmrl.core.batched import play_solved, solve
from fmrl.core.privacy import tree_epsilon
from fmrl.core.tasks import Tasks
from fmrl.reproduce.grouped import Data
from fmrl.reproduce.parts import Part
from fmrl.theory.bounds import private, with_guess

TITLE = "linear regressions around one centre, drawn"
CENTRE, SPREAD, NOISE, DELTA = 0.5, 0.1, 0.05, 1e-6
FAL, SINGLE = "FAL, not private", "single-task"
FIXED = 4.0  # a noise multiplier for all numbers of tasks


def regressions(tasks: int, dim: int, rounds: int, seed: int) -> list[Task]:
    """Linear regressions whose slopes lie about `SPREAD` from a centre of length `CENTRE`."""
    rng = np.random.default_rng([seed, tasks, dim, rounds])
    centre = rng.normal(size=dim)
    centre *= CENTRE / np.linalg.norm(centre)
    made = []
    for _ in range(tasks):
        X = rng.normal(size=(rounds, dim)) / math.sqrt(dim)
        slope = centre + SPREAD * rng.normal(size=dim) / math.sqrt(dim)
        made.append(Task(X, X @ slope + NOISE * rng.normal(size=rounds), loss=fmrl.Squared()))
    return made


def draw(
    data: Data, tasks: int, dim: int, rounds: int, epsilons: tuple[float, ...], seed: int
) -> dict[str, Any]:
    """TAR by epsilon and of the baselines, the bound on each, Σ B with a fixed noise, and TAR with
    noisy gradients.
    """
    played = regressions(tasks, dim, rounds, seed)
    stack, start = Tasks.of(played), np.zeros(dim)
    # The guess is fixed in advance: what the spread of the environment makes of √divergence.
    base = FMRL(Ball(1.0), OMD(), similarity=Known(SPREAD / math.sqrt(2)))
    best, sigma = solve(base, stack, start)

    def run(algo: FMRL) -> Any:
        (piece,) = play_solved(algo, algo.init(start), stack, best, sigma)
        return piece[0]

    alone = replace(base, meta=Fixed(), similarity=Known(CENTRE / math.sqrt(2)))
    plain = run(base)
    found = {"tar": {FAL: plain.regret.mean(), SINGLE: run(alone).regret.mean()}, "bound": {}}
    given = {"first": float(plain.divergence[0]), "sigma": sigma}
    given["most"] = base.domain.diameter(dim) ** 2
    for number, epsilon in enumerate(epsilons):
        tree = Tree(epsilon, DELTA, tasks, seed=1000 * seed + number)
        found["tar"][str(epsilon)] = run(replace(base, meta=tree)).regret.mean()
        summed = private(best.theta, 2.0 * tree.noise, **given)  # radius 1: a swap moves 2
        found["bound"][str(epsilon)] = with_guess(summed, sigma, base.similarity.D).total
    tree = Tree(tree_epsilon(FIXED, DELTA, tasks), DELTA, tasks, seed=seed)
    noisy = run(replace(base, meta=tree))
    found["excess"] = float(noisy.divergence.sum() - plain.divergence.sum())
    summed = private(best.theta, 2.0 * tree.noise, **given | {"sigma": 1.0})
    found["price"] = summed.terms["privacy"]
    found["rows"] = _rows(base, played, epsilons, seed)
    return found


def _rows(base: FMRL, played: list[Task], epsilons: Any, seed: int) -> dict[str, float]:
    """TAR with FLI-Online whose gradients are noised: the second notion, at the largest budget; and
    the same without noise.
    """
    some, G = played[:200], 2.0
    online = replace(base, update=fmrl.FLIOnline(), lipschitz=G)
    learner = NoisyGradients(OMD(), max(epsilons), DELTA, clip=G, seed=seed)
    made = {"without": online, "with": replace(online, within=learner)}
    return {name: float(fmrl.run(a, some, keep="totals").tar) for name, a in made.items()}


@dataclass(frozen=True)
class Config:
    """Sizes of a run; ``Config().quick()`` is a look that takes seconds and decides nothing."""

    seed: int = 0
    seeds: int = 5
    tasks: tuple[int, ...] = (100, 1000, 10_000)
    dims: tuple[int, ...] = (2, 8)
    rounds: tuple[int, ...] = (8, 32)
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)

    def quick(self) -> Config:
        small = {"seeds": 2, "tasks": (20, 60), "dims": (2,), "rounds": (8,)}
        return replace(self, **small, epsilons=(1.0, 4.0, 16.0))

    def read(self, folder: Path | None = None) -> Data:
        """No data; says at once if the extra is missing."""
        _ = Tree(1.0, DELTA, 2).noise
        return Data()


def plan(config: Config, data: Data) -> list[Part]:
    """Every part."""
    sizes = itertools.product(config.tasks, config.dims, config.rounds)
    seeds = range(config.seed, config.seed + config.seeds)
    made = []
    for (tasks, dim, rounds), seed in itertools.product(sizes, seeds):
        name = f"privacy/tasks-{tasks}-dim-{dim}-rounds-{rounds}-{seed}"
        asked = {"tasks": tasks, "dim": dim, "rounds": rounds, "epsilons": config.epsilons}
        made.append(Part(name, draw, asked | {"seed": seed}, tasks / 1000))
    return made
