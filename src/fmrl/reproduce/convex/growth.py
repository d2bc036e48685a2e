"""The growth figure: the smallest L(θ) − L(θ*) at a distance from the optimum, and its α against
the number of samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmrl import OneVsAll, Task
from fmrl.reproduce.convex.cache import Part
from fmrl.reproduce.convex.data import Config, StudySet
from fmrl.reproduce.verdict import Row, row
from fmrl.theory.growth import estimate

MIXTURE = tuple(2**k for k in range(4, 10))  # samples in all: 16 … 512
DISTANCES = tuple(round(0.1 * k, 1) for k in range(1, 11))
OVER = "95% t interval over tasks"
LEFT, RIGHT = "Gaussian mixture", "tasks"


def parts(config: Config) -> list[Part]:
    """One part per data and number of samples."""
    common = {"repeats": config.repeats, "seed": config.seed}
    sizes = MIXTURE if len(config.shots) == 6 else MIXTURE[::2]
    made = [
        Part(f"growth/mixture-{m}", of_mixture, {"samples": m} | common, 0.01 * m + 8)
        for m in sizes
    ]
    return made + [
        Part(f"growth/tasks-{m}", of_tasks, {"shots": m} | common, 0.1 * m + 8)
        for m in config.shots
    ]


def of_mixture(data: StudySet, samples: int, repeats: int, seed: int) -> dict[str, Any]:
    """Four Gaussians in 50 dimensions: x = mu_y + u, mu standard normal, u on the sphere."""
    tasks = []
    for r in range(repeats):
        rng = np.random.default_rng([seed, r])
        mu, y = rng.standard_normal((4, 50)), rng.integers(4, size=MIXTURE[-1])
        u = rng.standard_normal((MIXTURE[-1], 50))
        X = mu[y] + u / np.linalg.norm(u, axis=1, keepdims=True)
        tasks.append(Task(X[:samples], y[:samples], loss=OneVsAll(4)))
    return _measured(tasks)


def of_tasks(data: StudySet, shots: int, repeats: int, seed: int) -> dict[str, Any]:
    """The study's own tasks, as many of them drawn at random."""
    every = data.tasks(shots)
    count = min(repeats, len(every))
    chosen = np.random.default_rng(seed).choice(len(every), size=count, replace=False)
    return _measured([every[t] for t in chosen])


def _measured(tasks: list[Task]) -> dict[str, Any]:
    found = [estimate(task, distances=np.array(DISTANCES)) for task in tasks]
    return {
        "samples": tasks[0].rounds,
        "alpha": [g.alpha_min for g in found],
        "alpha_most": [g.alpha_most for g in found],
        "curve": np.mean([g.difference for g in found], axis=0),
        "curve_low": np.mean([g.lower for g in found], axis=0),
        "multiplier": float(np.mean([g.multiplier for g in found])),
    }


def rows(config: Config, results: dict[str, Any]) -> list[Row]:
    """One row per data and number of samples: α with its interval, and the mean curve."""
    made = []
    for p in parts(config):
        r, within = results[p.name], LEFT if p.work is of_mixture else RIGHT
        found = row(r["alpha"], OVER, "any", within, "alpha", p.arguments.get("shots"))
        found |= {k: r[k] for k in ("samples", "curve", "curve_low", "multiplier")}
        made.append(found | {"distances": DISTANCES, "most": float(np.mean(r["alpha_most"]))})
    return made
