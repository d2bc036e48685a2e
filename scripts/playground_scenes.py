"""Record scenes of the playground: what the library itself makes of lists of points.

    python scripts/playground_scenes.py          write tests/playground/scenes.json
    python scripts/playground_scenes.py --check  only say whether it is as the library says

The tests hold the page's arithmetic against these numbers.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

import fmrl
from fmrl.files import write

PATH = Path(__file__).parents[1] / "tests" / "playground" / "scenes.json"
KEPT = ("regret", "bound", "guess", "eta", "divergence")
GOLDEN = math.pi * (3 - math.sqrt(5))


def directions(rounds: int, size: int = 2) -> np.ndarray:
    """Passes over all axes [rounds, size], the first two turned a little further each time."""
    i = np.arange(rounds)
    found, angle = np.eye(size)[i % size], (i // size) * GOLDEN + (i % size) * (math.pi / 2)
    flat = i % size < 2
    found[flat, 0], found[flat, 1] = np.cos(angle[flat]), np.sin(angle[flat])
    return found


def scenes() -> list[dict[str, Any]]:
    """Points and settings: alike, apart, drifting, in groups, at the border, at zero, alone."""
    rng, usual = np.random.default_rng(19), {"rounds": 16, "epsilon": 0.1, "gamma": 1.1}
    turned = [[0.6 * math.cos(0.4 * t), 0.6 * math.sin(0.4 * t)] for t in range(10)]
    two = np.where(rng.random((10, 1)) < 0.5, [[0.5, 0.4]], [[-0.5, 0.1]])
    far = rng.normal(size=(8, 2))
    made = {
        "alike": (rng.normal([0.4, 0.3], 0.05, (12, 2)), usual),
        "apart": (rng.normal(0, 0.35, (12, 2)).clip(-0.65, 0.65), usual | {"rounds": 8}),
        "drift": (turned, usual | {"gamma": 1.5}),
        "groups": (two + rng.normal(0, 0.05, (10, 2)), usual | {"epsilon": 0.3}),
        "border": (far / np.linalg.norm(far, axis=1, keepdims=True) * 0.98, usual | {"gamma": 2.0}),
        "zero": (np.zeros((4, 2)), usual | {"rounds": 2}),
        "deep": (rng.normal([0.1, 0, 0.7, 0, 0.1], 0.08, (12, 5)), usual | {"rounds": 6}),
        "alone": ([[0.3, -0.6]], usual | {"gamma": 1.0, "epsilon": 0.02, "rounds": 48}),
    }
    return [
        {"name": name, "points": np.round(points, 6).tolist(), "settings": how | {"radius": 1.0}}
        for name, (points, how) in made.items()
    ]


def played(scene: dict[str, Any]) -> dict[str, Any]:
    """The library's numbers for a scene, of Algorithm 2, the strawman and each task alone."""
    how, size = scene["settings"], len(scene["points"][0])
    X = directions(how["rounds"] * size // 2, size)
    tasks = [fmrl.Task(X, X @ np.array(c), loss=fmrl.Squared()) for c in scene["points"]]
    given = {"epsilon": how["epsilon"], "gamma": how["gamma"]}
    algorithms = {
        "algorithm": fmrl.presets.paper(**given),
        "strawman": fmrl.presets.strawman(**given),
        "single": fmrl.presets.single_task(),
    }
    found = {}
    for name, algo in algorithms.items():
        history = fmrl.run(algo, tasks, np.zeros(size))
        found[name] = {key: getattr(history, key).tolist() for key in KEPT}
        found[name] |= {"tar": float(history.tar), "after": history.state.phi.tolist()}
        found[name] |= {"next": float(history.state.guess)}
    return found


def record() -> list[dict[str, Any]]:
    """All scenes with their numbers."""
    return [scene | {"expected": played(scene)} for scene in scenes()]


if __name__ == "__main__":
    if "--check" in sys.argv:
        same = json.loads(PATH.read_text()) == json.loads(json.dumps(record()))
        print("as recorded, to the last bit" if same else "other bits than recorded")
    else:
        lines = ",\n".join(json.dumps(scene) for scene in record())
        print(write(PATH, f"[{lines}]\n"))
