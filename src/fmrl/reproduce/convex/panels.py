"""What three figures of the convex study are made of: the parts that are computed, and the rows
that claims and pictures read.

similarity   how far apart the optima lie, and two controls that say what their closeness is made
             of: the labels of each task shuffled among its samples (only what all texts share is
             left to learn); the mean feature vector of the whole set subtracted, rows scaled to
             unit length again (no common direction)
growth       the smallest L(θ) − L(θ*) at a distance from the optimum, and its α against the number
             of samples
samples      TAR against shots for every composition of the table
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fmrl import OneVsAll, Task, run, stack
from fmrl.core.algorithm import bound
from fmrl.reproduce.convex.compositions import BALL, PRESETS, SUMMED, Composition, curves, find
from fmrl.reproduce.convex.data import Config, StudySet
from fmrl.reproduce.parts import Part
from fmrl.reproduce.verdict import Row, row
from fmrl.stats import mean_interval
from fmrl.theory.bounds.geometry import enclosing_ball
from fmrl.theory.growth import estimate

REAL, PERMUTED, CENTRED = "as they are", "labels permuted", "features centred"
VARIANTS = (REAL, PERMUTED, CENTRED)
REPEATS = 5  # random labels are drawn this often
SHOWN = 300  # points drawn in a panel
MIXTURE = tuple(2**k for k in range(4, 10))  # samples in all: 16 … 512
DISTANCES = tuple(round(0.1 * k, 1) for k in range(1, 11))
LEFT, RIGHT = "Gaussian mixture", "tasks"
Asked = list[tuple[Part, Any]]  # parts with their results


def similarity_parts(config: Config) -> list[Part]:
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


def similarity_rows(asked: Asked) -> list[Row]:
    """Two rows per variant and number of shots: the radius and the rms distance from the mean."""
    made, every = [], [p.arguments["shots"] for p, _ in asked]
    for p, r in asked:
        where = p.arguments["variant"], p.arguments["shots"]
        several = len(r["radius"]) > 1
        over = "95% t interval over random labellings" if several else "none: one set, one ball"
        found = row(r["radius"], over, "any", where[0], "radius", where[1])
        shown = ["points"] if where[1] in (every[0], every[-1]) else []
        names = ("tasks", "radius_gap", "from_mean", "mean_norm", "on_sphere", *shown)
        made.append(found | {k: r[k] for k in names})
        over = "95% t interval over tasks, of the squared distances"
        found = row(r["deviation"][:1], over, "any", where[0], "deviation", where[1])
        ends = dict(zip(("low", "high"), r["deviation_interval"], strict=True))
        made.append(found | ends | {"n": r["tasks"], "tasks": r["tasks"]})
    return made


def growth_parts(config: Config) -> list[Part]:
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


def growth_rows(asked: Asked) -> list[Row]:
    """One row per data and number of samples: α with its interval, and the mean curve."""
    made = []
    for p, r in asked:
        within = LEFT if p.work is of_mixture else RIGHT
        over, shots = "95% t interval over tasks", p.arguments.get("shots")
        found = row(r["alpha"], over, "any", within, "alpha", shots)
        found |= {k: r[k] for k in ("samples", "curve", "curve_low", "multiplier")}
        made.append(found | {"distances": DISTANCES, "most": float(np.mean(r["alpha_most"]))})
    return made


def samples_parts(config: Config) -> list[Part]:
    """One part per preset, curve and number of shots."""
    asked = [(p, c) for p in config.presets for c in curves(p)]
    return [_part(config, p, c, m) for p, c in asked for m in config.shots]


def _part(config: Config, preset: str, c: Composition, m: int) -> Part:
    orders = 1 if c.same else config.ftrl_orders if c.panel.startswith("FTRL") else config.orders
    name = re.sub(", | = | ", "-", f"samples/{preset}/{c.within}/{c.method}-{m}")
    arguments = {"preset": preset, "within": c.within, "method": c.method, "shots": m}
    arguments |= {"orders": orders, "seed": config.seed}
    each = {"FTRL": 0.012 * m**2, "OGD": 0.01 * m}.get(c.panel, 0.08 * m)
    return Part(name, tar, arguments, orders * each, c.made_of(PRESETS[preset]))


def tar(
    data: StudySet, preset: str, within: str, method: str, shots: int, orders: int, seed: int
) -> dict[str, Any]:
    """TAR, its gap and the bound on it, in each of ``orders`` random orders of the tasks."""
    chosen, reading = find(within, method), PRESETS[preset]
    tasks = data.tasks(shots, reading.split, chosen.order)
    rng = np.random.default_rng(seed)
    order = np.stack([rng.permutation(len(tasks)) for _ in range(orders)])
    game = stack(tasks)
    algo = chosen.build(reading, reading.within(chosen.panel), reading.facts(game))
    history = run(algo, tasks, orders=order, keep="scalars")
    # The released preset plays with G = 1, which need not be a Lipschitz constant: the bound takes
    # the real one.
    lipschitz = game.lipschitz(BALL)[order]
    limit = bound(history.divergence, history.eta, lipschitz, history.rounds)
    return {
        "composition": repr(algo),
        "tasks": len(tasks),
        "tar": history.tar,
        "gap": float(np.mean(history.gap)),
        "bound": None if chosen.panel == SUMMED else np.mean(limit, axis=-1),
        "violations": history.violations.sum(axis=-1),
        "guess": history.guess[:, -1],
        "step": float(np.mean(history.eta)),
        "distance": float(np.mean(np.sqrt(2 * history.divergence))),
    }


def samples_rows(asked: Asked) -> list[Row]:
    """Results as rows, one per preset, curve and number of shots."""
    made = []
    for p, r in asked:
        a = p.arguments
        over = "none: TAR does not depend on the order of tasks"
        over = "95% t interval over random task orders" if len(r["tar"]) > 1 else over
        found = row(r["tar"], over, a["preset"], a["within"], a["method"], a["shots"])
        found["bound"] = None if r["bound"] is None else float(np.mean(r["bound"]))
        found |= {k: r[k] for k in ("tasks", "gap")}
        found |= {k: float(np.mean(r[k])) for k in ("guess", "violations", "step", "distance")}
        values = [round(v, 7) for v in r["tar"]]
        made.append(found | {"values": values, "composition": r["composition"]})
    return made
