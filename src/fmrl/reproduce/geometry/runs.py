"""The rules that are compared, and the parts of the study: each plays one environment with all of
them and leaves the regret of every task and the loss on held-out tasks.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import fmrl
from fmrl import FMRL, FTRL, OGD, Domain, Euclidean, Task, run, stack
from fmrl.core.algorithm import step_size
from fmrl.core.batched import shared
from fmrl.core.rules.meta import Fixed
from fmrl.core.rules.similarity import SimilarityRule
from fmrl.reproduce.geometry.tasks import AXIS, CONTROL, ROTATED, Config, Data, directions
from fmrl.reproduce.parts import Part

TITLE = "tasks that differ in a few directions, and real ones"
SHOTS = (1, 2, 4, 8)  # rows of a new task, or samples of a class on Mini-Wiki
WIKI_SHOTS = 4  # of the tasks that are learned from
SCALAR, AVERAGE, DIAGONAL = "Isotropic", "AverageDeviation", "PerCoordinate"
LOW, FULL, EXACT = "LowRank(3)", "FullMatrix", "Isotropic, phi from the optima"
COVARIANCE, BEST, TRUTH = "FTRL, Covariance", "FTRL, best isotropic", "FTRL, truth known"
PRIOR = "FTRL, estimate_prior"  # not a rule: all tasks are there at once
SHAPES = (DIAGONAL, LOW, FULL)
COVARIANCES: dict[str, SimilarityRule] = {COVARIANCE: fmrl.Covariance()}
Held = dict[int, list[tuple[Task, Task]]]  # by shots: rows to adapt to, rows to predict


def rules(dim: int, epsilon: float = 0.1, zeta: float = 0.1) -> dict[str, SimilarityRule]:
    """The rules for gradient descent; all of them begin with the step epsilon/zeta."""
    root = float(np.sqrt(dim))
    return {
        SCALAR: fmrl.Isotropic(epsilon * root, zeta * root),
        AVERAGE: fmrl.AverageDeviation(1.0),
        DIAGONAL: fmrl.PerCoordinate(epsilon, zeta),
        LOW: fmrl.LowRank(min(3, dim), epsilon, zeta),
        FULL: fmrl.FullMatrix(epsilon, zeta),
    }


@dataclass(frozen=True, eq=False)
class Environment:
    """Tasks to learn from, held-out ones, and what every composition on them shares."""

    tasks: list[Task]
    held: Held
    domain: Domain
    update: Any

    def algo(self, within: Any, rule: SimilarityRule, **other: Any) -> FMRL:
        """A composition with this rule; G = 1, which only `AverageDeviation` sees."""
        return FMRL(self.domain, within, self.update, similarity=rule, lipschitz=1.0, **other)

    def play(self, algo: FMRL) -> dict[str, Any]:
        """Regret by task, and held-out losses from where it ended."""
        history = run(algo, self.tasks, keep="scalars")
        return {"regret": history.regret, "held": self.test(algo, history.state)}

    def test(self, algo: FMRL, state: Any) -> dict[int, list[float]]:
        return held_out(algo, state.phi, state.guess, self.held)

    def compare(
        self, descents: dict[str, SimilarityRule], leaders: dict[str, SimilarityRule], steps: Any
    ) -> dict[str, Any]:
        """Descent and FTRL with rules by name, and FTRL with the one of the ``steps`` (by their
        size) that had the least regret in hindsight.
        """
        found = {name: self.play(self.algo(OGD(), rule)) for name, rule in descents.items()}
        found |= {name: self.play(self.algo(FTRL(), rule)) for name, rule in leaders.items()}
        algos = {size: self.algo(FTRL(), fmrl.KnownStep(step)) for size, step in steps.items()}
        tried = {size: run(algo, self.tasks, keep="scalars") for size, algo in algos.items()}
        best = min(tried, key=lambda size: float(tried[size].tar))
        losses = self.test(algos[best], tried[best].state)
        found[BEST] = {"regret": tried[best].regret, "held": losses, "strength": best}
        return found


def isotropic(dim: int, sizes: Any) -> dict[float, np.ndarray]:
    """One step for all directions by its size, as a metric: squared losses are then solved a row
    at a time.
    """
    return {float(s): np.full(dim, s) for s in sizes}


def held_out(algo: FMRL, mean: Any, guess: Any, held: Held) -> dict[int, list[float]]:
    """Mean loss on the other rows of every held-out task, after FTRL from where a run ended has
    seen the first; by shots.
    """
    found = {}
    for shots, pairs in held.items():
        game = stack([few for few, _ in pairs])
        phi = np.broadcast_to(mean, (len(pairs), mean.size)).copy()
        eta = shared(guess, len(pairs))
        if not algo.similarity.absolute:
            eta = step_size(eta, algo.sigma(phi, game, 0))
        theta = game.leaders(algo.domain, phi, eta)(game.length)
        rest = zip((r.open() for _, r in pairs), theta, strict=True)
        found[shots] = [float(r.losses(t).mean()) for r, t in rest]
    return found


def cut(tasks: list[Task]) -> Held:
    """The first rows of regressions to adapt to and the rest to predict; those without a rest
    go.
    """

    def rows(task: Task, where: slice) -> Task:
        return Task(task.X[where], task.open().target[where, 0], loss=task.loss)

    long = {k: [t for t in tasks if t.rounds > k] for k in SHOTS}
    return {
        k: [(rows(t, slice(k)), rows(t, slice(k, None))) for t in kept]
        for k, kept in long.items()
        if kept
    }


def synthetic(
    data: Data, kind: str, rounds: int, tasks: int, held: int, dim: int, late: int, seed: int
) -> dict[str, Any]:
    """Tasks that differ in 3 directions, or in all (the control); means over tasks."""
    noise = 0.02
    made, centre, C = directions(kind, tasks + held, rounds, dim=dim, noise=noise, seed=seed)
    here = Environment(made[:tasks], cut(made[tasks:]), Euclidean(), fmrl.FAL())
    found = here.compare(rules(dim), COVARIANCES, isotropic(dim, 10 ** np.arange(0.5, 4, 0.5)))
    spread = fmrl.KnownStep(C / noise**2 + 1e-9 * np.eye(dim))
    found[TRUTH] = here.play(here.algo(FTRL(), spread, meta=Fixed(tuple(centre.tolist()))))
    return {
        name: {
            "tar": float(np.mean(r["regret"])),
            "late": float(np.mean(r["regret"][late:])),
            "held": {k: float(np.mean(v)) for k, v in r["held"].items()},
            "strength": r.get("strength"),
        }
        for name, r in found.items()
    }


def real(data: Data, name: str) -> dict[str, Any]:
    """One set of grouped regressions; the last quarter of the groups is held out.

    Optima of a few rows lie anywhere, so phi follows the last action (FLI-Online). What happens
    when it follows the optima is played once beside them.
    """
    tasks = data.sets[name]
    most, dim = 3 * len(tasks) // 4, tasks[0].dim
    here = Environment(tasks[:most], cut(tasks[most:]), Euclidean(), fmrl.FLIOnline())
    found = here.compare(rules(dim), COVARIANCES, isotropic(dim, 10 ** np.arange(-1.0, 5, 0.5)))
    prior = fmrl.estimate_prior(here.tasks)
    algo = here.algo(FTRL(), fmrl.Covariance())
    found[PRIOR] = {"held": held_out(algo, prior.mean, prior.metric, here.held)}
    wild = replace(here, update=fmrl.FAL())
    found[EXACT] = wild.play(wild.algo(OGD(), rules(dim)[SCALAR]))
    return found | {"tasks": most, "held": len(tasks) - most, "dim": dim}


def wiki(data: Data) -> dict[str, Any]:
    """Mini-Wiki (rebuilt): train tasks to learn from, other sentences of the test tasks to
    predict.

    In the unit ball optima lie nearer than rows are long: epsilon is a tenth of the others', and
    the covariance begins at 2e-5 in units of the columns, which is about 1/1000 for rows of length
    1.
    """
    assert data.wiki is not None
    learned, tests = data.wiki.tasks(WIKI_SHOTS, "train"), data.wiki.index("test")
    rest = [(t, data.wiki.held[int(t)]) for t in tests if int(t) in data.wiki.held]
    loss = learned[0].loss
    held: Held = {}
    for k in SHOTS:
        few = dict(zip(tests.tolist(), data.wiki.tasks(k, "test"), strict=True))
        held[k] = [(few[int(t)], Task(X, y, loss=loss)) for t, (X, y) in rest]
    dim = learned[0].dim
    here = Environment(learned, held, fmrl.Ball(1.0), fmrl.FAL())
    steps = {float(s): float(s) for s in 10 ** np.arange(-3.5, 0.5, 0.5)}
    leaders: dict[str, SimilarityRule] = {COVARIANCE: fmrl.Covariance(2e-5)}
    found = here.compare(rules(dim, epsilon=0.01), leaders, steps)
    return found | {"tasks": len(learned), "held": len(rest), "dim": dim}


def costs(data: Data, tasks: int, dim: int, rounds: int, repeats: int, seed: int) -> dict[str, Any]:
    """Milliseconds a task of every rule for descent, by repeat; rules take turns."""
    made, *_ = directions("rotated", tasks, rounds, dim=dim, seed=seed)
    here = Environment(made, {}, Euclidean(), fmrl.FAL())
    algos = {name: here.algo(OGD(), rule) for name, rule in rules(dim).items()}
    found: dict[str, list[float]] = {name: [] for name in algos}
    for _ in range(repeats + 1):  # the first is not counted
        for name, algo in algos.items():
            started = time.perf_counter()
            run(algo, made, keep="scalars")
            found[name].append(1e3 * (time.perf_counter() - started) / tasks)
    return {name: took[1:] for name, took in found.items()}


def plan(config: Config, data: Data) -> list[Part]:
    """Every part; what rules cost is measured alone."""
    made = []
    shared = {"tasks": config.tasks, "held": config.held, "dim": config.dim, "late": config.late}
    for kind in (AXIS, ROTATED, CONTROL):
        for rounds in config.rounds:
            for seed in range(config.seed, config.seed + config.seeds):
                name = f"geometry/{kind}-{rounds}-{seed}"
                asked = {"kind": kind, "rounds": rounds, "seed": seed}
                made.append(Part(name, synthetic, shared | asked, 2 + rounds / 2))
    for name, groups in data.sets.items():
        part, cost = "geometry/" + re.sub(r"\W+", "-", name), len(groups) / 50
        made.append(Part(part, real, {"name": name}, cost, data.checksum(name)))
    if data.wiki is not None:
        made.append(Part("geometry/mini-wiki", wiki, {}, 90, data.wiki.sha256))
    asked = {"tasks": config.cost_tasks, "dim": config.cost_dim, "rounds": config.rounds[0]}
    asked |= {"repeats": config.repeats, "seed": config.seed}
    return [*made, Part("geometry/costs", costs, asked, 10, alone=True)]
