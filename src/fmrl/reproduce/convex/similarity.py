"""The similarity figure: how far apart the optima lie, and two controls that say what their
closeness is made of.

as they are        the tasks themselves
labels permuted    the labels of each task shuffled among its samples: nothing is left to learn but what all texts share
features centred   the mean feature vector of the whole set subtracted, rows scaled to unit length again: no common direction
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmrl.core.losses import OneVsAll
from fmrl.core.tasks import Task, stack
from fmrl.reproduce.convex.config import Config
from fmrl.reproduce.convex.parts import Part
from fmrl.reproduce.convex.sets import StudySet
from fmrl.reproduce.convex.table import BALL
from fmrl.stats import mean_interval
from fmrl.theory.similarity import enclosing_ball

REAL, PERMUTED, CENTRED = "as they are", "labels permuted", "features centred"
VARIANTS = (REAL, PERMUTED, CENTRED)
REPEATS = 5  # random labels are drawn this often
SHOWN = 300  # points drawn in a panel


def parts(config: Config) -> list[Part]:
    """One part per variant and number of shots."""
    return [
        Part(
            f"similarity/{v.replace(' ', '-')}-{m}",
            "similarity:part",
            {"variant": v, "shots": m, "seed": config.seed},
            0.1 * m,
        )
        for v in VARIANTS
        for m in config.shots
    ]


def part(data: StudySet, variant: str, shots: int, seed: int) -> dict[str, Any]:
    """Radius of the smallest ball that holds the optima, their distances from their mean, and a
    random projection of them.
    """
    rng = np.random.default_rng(seed)
    repeats = REPEATS if variant == PERMUTED else 1
    optima = [_optima(data, variant, shots, rng) for _ in range(repeats)]
    balls = [enclosing_ball(theta, tolerance=1e-4) for theta in optima]
    theta = optima[0]
    flat = np.random.default_rng(seed).standard_normal((theta.shape[1], 2)) / np.sqrt(
        theta.shape[1]
    )  # the same for all panels
    return {
        "tasks": len(theta),
        "radius": [b.radius for b in balls],
        "radius_gap": max(b.gap for b in balls),
        "from_mean": [float(np.linalg.norm(t - t.mean(0), axis=1).max()) for t in optima],
        "deviation": [_deviation(t) for t in optima],
        "deviation_interval": [
            float(np.sqrt(max(v, 0.0))) for v in mean_interval(_squares(theta))[1:3]
        ],
        "mean_norm": float(np.linalg.norm(theta.mean(0))),
        "on_sphere": float(np.mean(np.linalg.norm(theta, axis=1) > 1 - 1e-6)),
        "points": np.round(theta[:SHOWN] @ flat, 4),
    }


def _squares(theta: np.ndarray) -> np.ndarray:
    return ((theta - theta.mean(0)) ** 2).sum(1)


def _deviation(theta: np.ndarray) -> float:
    return float(np.sqrt(_squares(theta).mean()))


def _optima(data: StudySet, variant: str, shots: int, rng: np.random.Generator) -> np.ndarray:
    X, y = data.arrays(shots, "all")
    if variant == CENTRED:
        every = data.X[max(data.X)].reshape(-1, X.shape[-1])
        X = X - every.mean(0)
        length = np.linalg.norm(X, axis=-1, keepdims=True)
        X = X / np.where(length > 0, length, 1.0)
    if variant == PERMUTED:
        y = rng.permuted(y, axis=1)
    loss = OneVsAll(data.classes)
    game = stack([Task(x, labels, loss=loss) for x, labels in zip(X, y, strict=True)])
    return game.hindsight(BALL).theta


def rows(config: Config, results: dict[str, Any]) -> list[dict[str, Any]]:
    """Two rows per variant and number of shots: the radius, and the root mean square distance from
    the mean.
    """
    made = []
    for p in parts(config):
        r, a = results[p.name], p.arguments
        common = {"preset": "any", "within": a["variant"], "shots": a["shots"], "tasks": r["tasks"]}
        mean, low, high, _ = mean_interval(r["radius"])
        n = len(r["radius"])
        kind = "95% t interval over random labellings" if n > 1 else "none: one set, one ball"
        made.append(
            common
            | {"method": "radius", "mean": mean, "low": low, "high": high, "n": n, "interval": kind}
            | {k: r[k] for k in ("radius_gap", "from_mean", "mean_norm", "on_sphere")}
            | ({"points": r["points"]} if a["shots"] in (config.shots[0], config.shots[-1]) else {})
        )
        low, high = r["deviation_interval"]
        made.append(
            common
            | {
                "method": "deviation",
                "mean": r["deviation"][0],
                "low": low,
                "high": high,
                "n": r["tasks"],
            }
            | {"interval": "95% t interval over tasks, of the squared distances"}
        )
    return made
