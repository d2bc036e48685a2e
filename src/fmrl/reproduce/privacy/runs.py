"""The parts of the study: one draw of an environment, played without privacy, with every budget,
and without meta-learning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import fmrl
from fmrl import FMRL, OMD, Ball, Fixed, Known, NoisyGradients, Task, Tree
from fmrl.core.batched import play_solved, solve
from fmrl.core.privacy import tree_epsilon
from fmrl.core.tasks import Tasks
from fmrl.theory.bounds import private, with_guess

CENTRE, SPREAD, NOISE, DELTA = 0.5, 0.1, 0.05, 1e-6
FAL, SINGLE = "FAL, not private", "single-task"
FIXED = 4.0  # a noise multiplier for all numbers of tasks


@dataclass(frozen=True)
class Nothing:
    """The study draws its own data."""

    skipped: dict[str, str] = field(default_factory=dict)
    sha256: str = "drawn"


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
    data: Any, tasks: int, dim: int, rounds: int, epsilons: tuple[float, ...], seed: int
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
        found["tar"][str(epsilon)] = run(replace(base, private=tree)).regret.mean()
        summed = private(best.theta, 2.0 * tree.noise, **given)  # radius 1: a swap moves 2
        found["bound"][str(epsilon)] = with_guess(summed, sigma, base.similarity.D).total
    tree = Tree(tree_epsilon(FIXED, DELTA, tasks), DELTA, tasks, seed=seed)
    noisy = run(replace(base, private=tree))
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
