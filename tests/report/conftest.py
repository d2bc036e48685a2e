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
    first, second, third, fourth, *_ = ATTACKS
    pairs = list(zip(ATTACKS, numbers, strict=True))
    ends = {"low": [-90.0, -3.0, nan], "high": [inf, -1.0, nan]}
    methods = [{"name": first, "mean": [-40.0, -2.0, nan]} | ends]
    methods.append({"name": second, "mean": [None, 0.5, 0.9]})
    gain = {"against": second, "shots": None, "mean": -3.0, "low": -4.0, "high": -2.0}
    points = [
        {"name": a, "x": float(i), "y": v, "distance": 1.0, "outlier": i % 2 == 0}
        for i, (a, v) in enumerate(pairs)
    ]
    drift = {"p": nan, "path": inf, "chance": None}
    drift["changes"] = [{"after": nan, "low": first, "high": inf}]
    groups = {"p": third, "k": 2, "sizes": []} | dict.fromkeys(
        ("values", "gaps", "errors"), numbers
    )
    environment = {"sentence": first, "memory": inf, "worth_drift": nan, "worth_groups": second}
    environment |= {"drift": drift, "groups": groups}
    environment["curve"] = dict.fromkeys(("task", "all", "recent"), numbers)
    bound = {"name": first, "total": inf, "terms": {second: nan}, "place": third}
    bound["assumptions"] = [{"name": fourth, "status": "false", "detail": ""}]
    run = {"command": first, "configuration": dict.fromkeys(ATTACKS, second), "seconds": nan}
    run |= {"versions": {first: second}, "data": [{"name": third, "sha256": first}]}
    data = {"kind": "classification", "tasks": n, "classes": list(ATTACKS), "source": second}
    return {
        "title": first,
        "data": data | {"task_column": third},
        "heldout": {"metric": "r2", "shots": [1, 2, 4], "tasks": 1, "methods": methods}
        | {"differences": [gain]},
        "learned": {"coefficients": [{"feature": a, "value": v, "output": a} for a, v in pairs]},
        "curves": {"task": list(range(1, n + 1)), "name": list(ATTACKS), "of": n}
        | dict.fromkeys(("tar", "bound", "guess"), numbers),
        "similarity": {"points": points, "rule": second, "phi": (nan, 0.0)}
        | {"ball": (0.0, 0.0, inf), "environment": environment},
        "certificate": {
            "bounds": [bound],
            "refused": [{"name": first, "why": second}],
            "assumptions": [{"name": a, "status": "assumed", "detail": a} for a in ATTACKS],
            "reason": first,
            "tar": [nan, nan],
        },
        "run": run | {"created": second},
        "bibtex": first,
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
    columns = {"task": task, "tar": 5 / np.sqrt(task), "guess": guess, "distance": distance}
    curves = {name: column.tolist() for name, column in columns.items()}
    alike = report.similarity_map(optima, names)
    return {"title": "many", "curves": curves | {"name": names, "of": T}, "similarity": alike}


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One headless Chromium."""
    path = chromium.find()
    if path is None:
        pytest.skip("no Chromium: install the package chromium, or name one in FMRL_CHROMIUM")
    started = chromium.Browser(path, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()
