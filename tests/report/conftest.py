"""Facts for the tests: a real run, a hostile one, and a very large one."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fmrl import report

from . import chromium

EXAMPLE = Path(__file__).parents[2] / "scripts" / "example_report.py"
ATTACKS = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    '"><svg onload=window.hacked=3>',
    "<!--<script>",
    "{{script}}{{data}}",
    "javascript:window.hacked=4",
    "\u202eright to left \u2066\u2028\u2029",
    "lone \ud800 surrogate, NUL \x00, bell \x07",
    "数据 données данные 🙂",
    "x" * 10_000,
    "",
)


@pytest.fixture(scope="session")
def example():
    """The example script as a module."""
    spec = importlib.util.spec_from_file_location("example_report", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def real(example):
    """Facts of a real, smaller regression run."""
    return example.regression_facts(tasks=320)


@pytest.fixture(scope="session")
def classes(example):
    """Facts of a real run on three classes."""
    return example.digits_facts(rounds=32, classes=3)


@pytest.fixture
def hostile():
    """Every string an attack, every number that can go wrong gone wrong."""
    nan, inf = float("nan"), float("inf")
    n = len(ATTACKS)
    numbers = [nan, inf, -inf, None, -3.0, 0.0, 1e-300, 1e300, 2.0, 1.0, 5.0]
    point = {"name": "p", "x": 0.0, "y": 0.0, "distance": 1.0}
    return {
        "title": ATTACKS[0],
        "data": {
            "kind": "classification",
            "tasks": n,
            "classes": list(ATTACKS),
            "source": ATTACKS[1],
            "task_column": ATTACKS[2],
        },
        "heldout": {
            "metric": "r2",
            "shots": [1, 2, 4],
            "tasks": 1,
            "methods": [
                {
                    "name": ATTACKS[0],
                    "mean": [-40.0, -2.0, nan],
                    "low": [-90.0, -3.0, nan],
                    "high": [inf, -1.0, nan],
                },
                {"name": ATTACKS[1], "mean": [None, 0.5, 0.9]},
            ],
            "differences": [
                {"against": ATTACKS[1], "shots": None, "mean": -3.0, "low": -4.0, "high": -2.0}
            ],
        },
        "learned": {
            "coefficients": [
                {"feature": a, "value": v, "output": a}
                for a, v in zip(ATTACKS, numbers, strict=True)
            ]
        },
        "curves": {
            "task": list(range(1, n + 1)),
            "name": list(ATTACKS),
            "tar": numbers,
            "bound": numbers,
            "guess": numbers,
            "of": n,
        },
        "similarity": {
            "points": [
                point | {"name": a, "x": float(i), "y": v, "outlier": i % 2 == 0}
                for i, (a, v) in enumerate(zip(ATTACKS, numbers, strict=True))
            ],
            "rule": ATTACKS[1],
            "phi": (nan, 0.0),
            "ball": (0.0, 0.0, inf),
            "environment": {
                "sentence": ATTACKS[0],
                "memory": inf,
                "worth_drift": nan,
                "worth_groups": ATTACKS[1],
                "drift": {
                    "p": nan,
                    "path": inf,
                    "chance": None,
                    "changes": [{"after": nan, "low": ATTACKS[0], "high": inf}],
                },
                "groups": {
                    "p": ATTACKS[2],
                    "k": 2,
                    "sizes": [],
                    "values": numbers,
                    "gaps": numbers,
                    "errors": numbers,
                },
                "curve": {"task": numbers, "all": numbers, "recent": numbers},
            },
        },
        "certificate": {
            "bounds": [
                {
                    "name": ATTACKS[0],
                    "total": inf,
                    "terms": {ATTACKS[1]: nan},
                    "place": ATTACKS[2],
                    "assumptions": [{"name": ATTACKS[3], "status": "false", "detail": ""}],
                }
            ],
            "refused": [{"name": ATTACKS[0], "why": ATTACKS[1]}],
            "assumptions": [{"name": a, "status": "assumed", "detail": a} for a in ATTACKS],
            "reason": ATTACKS[0],
            "tar": [nan, nan],
        },
        "run": {
            "command": ATTACKS[0],
            "configuration": dict.fromkeys(ATTACKS, ATTACKS[1]),
            "versions": {ATTACKS[0]: ATTACKS[1]},
            "data": [{"name": ATTACKS[2], "sha256": ATTACKS[0]}],
            "seconds": nan,
            "created": ATTACKS[1],
        },
        "bibtex": ATTACKS[0],
    }


@pytest.fixture(scope="session")
def large():
    """100,000 tasks, given whole."""
    T, rng = 100_000, np.random.default_rng(0)
    task = np.arange(1, T + 1)
    guess = 1 / np.sqrt(task)
    guess[77_777] = 9.0  # what thinning must not lose
    distance = rng.exponential(size=T)
    optima = rng.normal(size=(T, 6))
    optima[500] += 60
    names = [f"user {i}" for i in range(T)]
    return {
        "title": "many",
        "curves": {
            "task": task.tolist(),
            "name": names,
            "tar": (5 / np.sqrt(task)).tolist(),
            "guess": guess.tolist(),
            "distance": distance.tolist(),
            "of": T,
        },
        "similarity": report.similarity_map(optima, names),
    }


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One headless Chromium."""
    path = chromium.find()
    if path is None:
        pytest.skip("no Chromium: install the package chromium, or name one in FMRL_CHROMIUM")
    started = chromium.Browser(path, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()
