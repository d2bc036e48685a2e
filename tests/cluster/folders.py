import itertools

import numpy as np
import pytest

import fmrl
from fmrl.core.checkpoint import flatten

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def make(count, features=5, seed=0, loss="squared", longest=14):
    """Ragged tasks, and the same as one Arrow table."""
    rng = np.random.default_rng(seed)
    tasks, parts = [], []
    for t in range(count):
        m = int(
            rng.integers(6, longest)
        )  # more rounds than features: optima that fit every round are slow to prove
        X = rng.normal(size=(m, features)) / 2
        y = X @ (0.3 + 0.1 * rng.normal(size=features)) + 0.1 * rng.normal(size=m)
        if loss == "logistic":
            y = (y > 0).astype(int)
            y[:2] = 0, 1
        kind = fmrl.Squared() if loss == "squared" else fmrl.Logistic((0, 1))
        tasks.append(fmrl.Task(X, y, loss=kind, name=t))
        parts.append((np.full(m, t), y, X))
    ids, y, X = (np.concatenate([p[i] for p in parts]) for i in range(3))
    return tasks, pa.table({"task": ids, "target": y} | {f"x{i}": X[:, i] for i in range(features)})


def write(folder, table, cuts, rows=67, **options):
    """The table in several files, cut anywhere, in small row groups."""
    folder.mkdir(exist_ok=True)
    edges = [0, *cuts, len(table)]
    for i, (a, b) in enumerate(itertools.pairwise(edges)):
        pq.write_table(
            table.slice(a, b - a), folder / f"part-{i:03d}.parquet", row_group_size=rows, **options
        )
    return folder


def same(found, expected, tolerance=1e-10):
    """Regret, guess, phi and all other columns of two histories, and the states after them."""
    observed = ("distance", "energy") if hasattr(expected, "distance") else ()
    for name in (
        *observed,
        "regret",
        "gap",
        "guess",
        "eta",
        "divergence",
        "deviation",
        "lipschitz",
        "rounds",
        "theta",
        "optimum",
    ):
        np.testing.assert_allclose(
            getattr(found, name), getattr(expected, name), atol=tolerance, rtol=0, err_msg=name
        )
    for one, other in zip(found.losses, expected.losses, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)
    assert found.meta_batch == expected.meta_batch
    (form, one), (other_form, other) = map(parts, (found.state, expected.state))
    assert form == other_form
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], rtol=1e-10, atol=tolerance, err_msg=name)


def parts(state):
    """What a state is made of, counts and names, and its arrays."""
    arrays = {}
    return flatten(state, arrays), arrays
