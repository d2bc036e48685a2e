import itertools

import numpy as np
import pytest

import fmrl

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def make(count, features=5, seed=0, loss="squared", longest=14):
    """Ragged tasks, and the same as one Arrow table."""
    rng = np.random.default_rng(seed)
    tasks, parts = [], []
    for t in range(count):
        # More rounds than features: optima that fit every round are slow to prove.
        m = int(rng.integers(6, longest))
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
        part = folder / f"part-{i:03d}.parquet"
        pq.write_table(table.slice(a, b - a), part, row_group_size=rows, **options)
    return folder
