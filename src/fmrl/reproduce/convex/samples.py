"""The samples figure: TAR against shots for every composition of the table."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmrl.core.algorithm import bound
from fmrl.core.run import run
from fmrl.core.tasks import stack
from fmrl.reproduce.convex.config import Config
from fmrl.reproduce.convex.parts import Part
from fmrl.reproduce.convex.sets import StudySet
from fmrl.reproduce.convex.table import BALL, PRESETS, SUMMED, Composition, Facts, curves, find
from fmrl.stats import mean_interval

OVER = "95% t interval over random task orders"


def parts(config: Config) -> list[Part]:
    """One part per preset, curve and number of shots."""
    return [
        _part(config, preset, c, m)
        for preset in config.presets
        for c in curves(preset)
        for m in config.shots
    ]


def _part(config: Config, preset: str, c: Composition, m: int) -> Part:
    orders = 1 if c.same else config.ftrl_orders if c.panel.startswith("FTRL") else config.orders
    name = (
        f"samples/{preset}/{c.within}/{c.method}-{m}".replace(", ", "-")
        .replace(" = ", "-")
        .replace(" ", "-")
    )
    arguments = {
        "preset": preset,
        "within": c.within,
        "method": c.method,
        "shots": m,
        "orders": orders,
        "seed": config.seed,
    }
    each = {"FTRL": 0.012 * m**2, "OGD": 0.01 * m}.get(c.panel, 0.08 * m)
    return Part(name, "samples:part", arguments, orders * each, c.made_of(PRESETS[preset]))


def part(
    data: StudySet, preset: str, within: str, method: str, shots: int, orders: int, seed: int
) -> dict[str, Any]:
    """TAR, its certified excess and the bound on it, in each of ``orders`` random orders of the
    tasks.
    """
    chosen, reading = find(within, method), PRESETS[preset]
    tasks = data.tasks(shots, reading.split, chosen.order)
    rng = np.random.default_rng(seed)
    order = np.stack([rng.permutation(len(tasks)) for _ in range(orders)])
    game = stack(tasks)
    lipschitz = game.lipschitz(BALL)
    constant = lipschitz if reading.lipschitz is None else np.full(len(tasks), reading.lipschitz)
    facts = Facts(game.hindsight(BALL).theta, constant * np.sqrt(game.rounds))
    algo = chosen.build(reading, reading.within(chosen.panel), facts)
    history = run(algo, tasks, orders=order, keep="scalars")
    # The released preset plays with G = 1, which is no Lipschitz constant; the bound needs the real
    # one.
    limit = bound(history.divergence, history.eta, lipschitz[order], history.rounds)
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


def rows(config: Config, results: dict[str, Any]) -> list[dict[str, Any]]:
    """Results as rows, one per preset, curve and number of shots."""
    made = []
    for p in parts(config):
        r, a = results[p.name], p.arguments
        mean, low, high, _ = mean_interval(r["tar"])
        made.append(
            {
                "preset": a["preset"],
                "within": a["within"],
                "method": a["method"],
                "shots": a["shots"],
                "mean": mean,
                "low": low,
                "high": high,
                "n": len(r["tar"]),
                "interval": OVER
                if len(r["tar"]) > 1
                else "none: TAR does not depend on the order of tasks",
                "bound": None if r["bound"] is None else float(np.mean(r["bound"])),
                "tasks": r["tasks"],
                "gap": r["gap"],
                "guess": float(np.mean(r["guess"])),
                "violations": float(np.mean(r["violations"])),
                "step": r["step"],
                "distance": r["distance"],
                "values": [round(v, 7) for v in r["tar"]],
                "composition": r["composition"],
            }
        )
    return made
