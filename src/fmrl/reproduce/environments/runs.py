"""The rules that are compared, and the parts of the study: each plays one stream of tasks with all
of them and leaves the regret of every task and the loss on its later rows.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

import fmrl
from fmrl import FMRL, OGD, Ball, Discounted, FollowLeader, Restart, Task, Window, run
from fmrl.core.rules.meta import MetaUpdate
from fmrl.reproduce.environments.tasks import (
    CLUSTERS,
    KINDS,
    SIDES,
    Config,
    regressions,
)  # fmt: skip
from fmrl.reproduce.grouped import Data
from fmrl.reproduce.parts import Part

TITLE = "tasks that move, jump or come in groups, and real streams"
SHOTS = (4, 8)  # rows of the next task that are there when the others are predicted
LEADER, DISCOUNTED, WINDOW, RESTART = "FollowLeader", "Discounted(0.1)", "Window(30)", "Restart(50)"
MIXTURE, SHARED, CONDITIONAL = "Mixture", "Mixture, share 0.01", "Conditional"
HEDGE, TWO_CENTRES, FIVE_CENTRES = "Hedge", "Centres(2)", "Centres(5)"
KNOWN = "cluster known"  # not a rule: it is told
RULES = (
    LEADER, DISCOUNTED, WINDOW, RESTART, MIXTURE, SHARED, CONDITIONAL, HEDGE, TWO_CENTRES,
    FIVE_CENTRES,
)  # fmt: skip
# Other settings of the rules with one number, from which the best in hindsight is chosen too.
OTHERS: dict[str, MetaUpdate] = {
    f"{type(meta).__name__}({value})": meta
    for kind, values in {
        Discounted: (0.01, 0.03, 0.3), Window: (10, 100), Restart: (100,)
    }.items()
    for value in values
    for meta in (kind(value),)
}  # fmt: skip
MIXED: dict[str, MetaUpdate] = {
    LEADER: FollowLeader(),
    **{name: meta for name, meta in OTHERS.items() if isinstance(meta, Discounted)},
    DISCOUNTED: Discounted(0.1),
}
WINDOWS = (WINDOW, *(name for name, meta in OTHERS.items() if isinstance(meta, Window)))


def rules(radius: float, dim: int, side: tuple[int, ...]) -> dict[str, Any]:
    """Every composition by name: gradient descent in a ball from the optima (FAL), with one step
    learned from the gradients that were met (`Isotropic`).

    `Mixture` takes the radius for the largest distance between two starts, half of what its bound
    needs. `Hedge` has the rules of the mixture, and one that does not move inside a task.
    """
    root = float(np.sqrt(dim))
    step = fmrl.Isotropic(0.1 * root, 0.1 * root)

    def algo(meta: MetaUpdate, similarity: Any = step) -> FMRL:
        return FMRL(Ball(radius), OGD(), meta=meta, similarity=similarity)

    metas = MIXED | {WINDOW: Window(30), RESTART: Restart(50)} | OTHERS
    metas |= {MIXTURE: fmrl.Mixture(MIXED.values(), reach=radius)}
    metas |= {SHARED: fmrl.Mixture(MIXED.values(), share=0.01, reach=radius)}
    metas |= {CONDITIONAL: fmrl.Conditional(side)}
    made: dict[str, Any] = {name: algo(meta) for name, meta in metas.items()}
    still = algo(FollowLeader(), fmrl.KnownStep(0.0))
    made[HEDGE] = fmrl.Hedge([*(made[name] for name in MIXED), still])
    made[TWO_CENTRES] = fmrl.Centres(2, made[LEADER])
    made[FIVE_CENTRES] = fmrl.Centres(5, made[LEADER])
    return made


def play(
    algo: Any, tasks: list[Task], begin: int, cluster: Any = None, best: Any = None
) -> dict[str, Any]:
    """Regret by task, and from the task ``begin`` on the mean loss on its other rows after a few of
    them, by their number. With ``cluster`` every task is told which state is its own; ``best`` are
    the tasks' optima, which all rules share.
    """
    best = optima(algo, tasks) if best is None else best
    start = algo.init(np.zeros(tasks[0].dim))
    states: dict[int, Any] = {}
    regret, held = [], {k: [] for k in SHOTS}
    for t, task in enumerate(tasks):
        own = 0 if cluster is None else int(cluster[t])
        state, game = states.get(own, start), task.open()
        for k in SHOTS if t >= begin else ():
            few = Task(task.X[:k], game.target[:k, 0], loss=task.loss)
            held[k].append(float(game.losses(algo.adapt(state, few))[k:].mean()))
        states[own], round = algo.step_solved(algo.starting(state, game), game, best[t])
        regret.append(float(round.regret))
    return {"regret": regret, "held": held}


def optima(algo: Any, tasks: list[Task]) -> list[Any]:
    """In hindsight, of every task."""
    return [task.open().hindsight(algo.domain) for task in tasks]


def synthetic(
    data: Data, kind: str, tasks: int, rounds: int, dim: int, recover: int, seed: int
) -> dict[str, Any]:
    """One draw of an environment; means over tasks.

    Of the second half, ``recover`` tasks after its beginning count as recovered from a switch;
    they are compared with as many before it.
    """
    made, cluster = regressions(kind, tasks, rounds, dim=dim, seed=seed)
    side = tuple(range(dim, dim + SIDES))
    algos = rules(2.0, dim, side)
    best = optima(algos[LEADER], made)
    found = {name: play(algo, made, recover, None, best) for name, algo in algos.items()}
    if kind in CLUSTERS:
        found[KNOWN] = play(algos[LEADER], made, recover, cluster, best)
    half = tasks // 2
    return {
        name: {
            "tar": float(np.mean(r["regret"])),
            "held": {k: float(np.mean(v)) for k, v in r["held"].items()},
            "before": float(np.mean(r["regret"][half - recover : half])),
            "after": float(np.mean(r["regret"][half + recover : half + 2 * recover])),
        }
        for name, r in found.items()
    }


def real(data: Data, name: str, shuffled: int | None = None) -> dict[str, Any]:
    """One stream in its own order, or its tasks shuffled with that seed: there regret alone."""
    tasks = data.sets[name]
    algos = rules(10.0, tasks[0].dim, (tasks[0].dim - 1,))
    if shuffled is None:
        given = tasks, len(tasks) // 4, None, optima(algos[LEADER], tasks)
        return {rule: play(algo, *given) for rule, algo in algos.items()}
    order = np.random.default_rng(shuffled).permutation(len(tasks))
    tasks = [tasks[i] for i in order]
    return {
        rule: {"regret": run(algo, tasks, keep="scalars").regret, "held": {}}
        for rule, algo in algos.items()
    }


def plan(config: Config, data: Data) -> list[Part]:
    """Every part."""
    made = []
    shared = {"tasks": config.tasks, "rounds": config.rounds, "dim": config.dim}
    for kind in KINDS:
        for seed in range(config.seed, config.seed + config.seeds):
            name = f"environments/{kind.replace(' ', '-')}-{seed}"
            asked = shared | {"kind": kind, "recover": config.recover, "seed": seed}
            made.append(Part(name, synthetic, asked, config.tasks / 40))
    for stream, tasks in data.sets.items():
        made_of, name = data.checksum(stream), "environments/" + re.sub(r"\W+", "-", stream)
        asked, cost = {"name": stream}, len(tasks) / 25
        made.append(Part(name, real, asked, cost, made_of))
        asked = asked | {"shuffled": config.seed}
        made.append(Part(f"{name}-shuffled", real, asked, cost / 2, made_of))
    return made
