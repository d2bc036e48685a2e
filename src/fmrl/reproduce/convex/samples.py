"""The samples figure: TAR against shots for every composition of the table."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fmrl import run, stack
from fmrl.core.algorithm import bound
from fmrl.reproduce.convex.cache import Part
from fmrl.reproduce.convex.compositions import BALL, PRESETS, SUMMED, Composition, curves, find
from fmrl.reproduce.convex.data import Config, StudySet
from fmrl.reproduce.verdict import Row, row

OVER = "95% t interval over random task orders"
ALONE = "none: TAR does not depend on the order of tasks"


def parts(config: Config) -> list[Part]:
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


def rows(config: Config, results: dict[str, Any]) -> list[Row]:
    """Results as rows, one per preset, curve and number of shots."""
    made = []
    for p in parts(config):
        r, a = results[p.name], p.arguments
        over = OVER if len(r["tar"]) > 1 else ALONE
        found = row(r["tar"], over, a["preset"], a["within"], a["method"], a["shots"])
        found["bound"] = None if r["bound"] is None else float(np.mean(r["bound"]))
        found |= {k: r[k] for k in ("tasks", "gap")}
        found |= {k: float(np.mean(r[k])) for k in ("guess", "violations", "step", "distance")}
        values = [round(v, 7) for v in r["tar"]]
        made.append(found | {"values": values, "composition": r["composition"]})
    return made
