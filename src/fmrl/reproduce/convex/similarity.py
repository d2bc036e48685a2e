"""The similarity figure: how far apart the optima lie, and two controls that say what their
closeness is made of.

as they are        the tasks themselves
labels permuted    the labels of each task shuffled among its samples: only what all texts share is
                   left to learn
features centred   the mean feature vector of the whole set subtracted, rows scaled to unit length
                   again: no common direction
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmrl import OneVsAll, Task, stack
from fmrl.reproduce.convex.cache import Part
from fmrl.reproduce.convex.compositions import BALL
from fmrl.reproduce.convex.data import Config, StudySet
from fmrl.reproduce.verdict import Row, row
from fmrl.stats import mean_interval
from fmrl.theory.similarity import enclosing_ball

REAL, PERMUTED, CENTRED = "as they are", "labels permuted", "features centred"
VARIANTS = (REAL, PERMUTED, CENTRED)
REPEATS = 5  # random labels are drawn this often
SHOWN = 300  # points drawn in a panel


def parts(config: Config) -> list[Part]:
    """One part per variant and number of shots."""
    made = []
    for v in VARIANTS:
        for m in config.shots:
            arguments = {"variant": v, "shots": m, "seed": config.seed}
            made.append(Part(f"similarity/{v.replace(' ', '-')}-{m}", spread, arguments, 0.1 * m))
    return made


def spread(data: StudySet, variant: str, shots: int, seed: int) -> dict[str, Any]:
    """The smallest ball that holds the optima, their distances, and a random projection of them."""
    rng = np.random.default_rng(seed)
    repeats = REPEATS if variant == PERMUTED else 1
    optima = [_optima(data, variant, shots, rng) for _ in range(repeats)]
    balls = [enclosing_ball(theta, tolerance=1e-4) for theta in optima]
    theta, features = optima[0], optima[0].shape[1]
    # The same projection for all panels.
    flat = np.random.default_rng(seed).standard_normal((features, 2)) / np.sqrt(features)
    squares = [((t - t.mean(0)) ** 2).sum(1) for t in optima]
    low, high = mean_interval(squares[0])[1:3]
    return {
        "tasks": len(theta),
        "radius": [b.radius for b in balls],
        "radius_gap": max(b.gap for b in balls),
        "from_mean": [float(np.linalg.norm(t - t.mean(0), axis=1).max()) for t in optima],
        "deviation": [float(np.sqrt(s.mean())) for s in squares],
        "deviation_interval": [float(np.sqrt(max(v, 0.0))) for v in (low, high)],
        "mean_norm": float(np.linalg.norm(theta.mean(0))),
        "on_sphere": float(np.mean(np.linalg.norm(theta, axis=1) > 1 - 1e-6)),
        "points": np.round(theta[:SHOWN] @ flat, 4),
    }


def _optima(data: StudySet, variant: str, shots: int, rng: np.random.Generator) -> np.ndarray:
    X, y = data.arrays(shots, "all")
    if variant == CENTRED:
        X = X - data.X[max(data.X)].reshape(-1, X.shape[-1]).mean(0)
        length = np.linalg.norm(X, axis=-1, keepdims=True)
        X = X / np.where(length > 0, length, 1.0)
    if variant == PERMUTED:
        y = rng.permuted(y, axis=1)
    loss = OneVsAll(data.classes)
    game = stack([Task(x, labels, loss=loss) for x, labels in zip(X, y, strict=True)])
    return game.hindsight(BALL).theta


def rows(config: Config, results: dict[str, Any]) -> list[Row]:
    """Two rows per variant and number of shots: the radius and the rms distance from the mean."""
    made = []
    for p in parts(config):
        r, where = results[p.name], (p.arguments["variant"], p.arguments["shots"])
        several = len(r["radius"]) > 1
        over = "95% t interval over random labellings" if several else "none: one set, one ball"
        found = row(r["radius"], over, "any", where[0], "radius", where[1])
        shown = ["points"] if where[1] in (config.shots[0], config.shots[-1]) else []
        names = ("tasks", "radius_gap", "from_mean", "mean_norm", "on_sphere", *shown)
        made.append(found | {k: r[k] for k in names})
        over = "95% t interval over tasks, of the squared distances"
        found = row(r["deviation"][:1], over, "any", where[0], "deviation", where[1])
        ends = dict(zip(("low", "high"), r["deviation_interval"], strict=True))
        made.append(found | ends | {"n": r["tasks"], "tasks": r["tasks"]})
    return made
