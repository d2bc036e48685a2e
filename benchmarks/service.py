"""What a store of tasks costs: memory as tasks grow in number, with rows in a file and without.

    python benchmarks/service.py

200,000 tasks of 4 rows and 8 features, 5,000 at a time. What adapting and learning cost is measured
by `python benchmarks/grouped.py --speed`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from rich.progress import track

import fmrl


def table(tasks: int, rows: int = 4, features: int = 8, seed: int = 0) -> tuple:
    """X, y, task of linear tasks that scatter around a common one."""
    rng = np.random.default_rng(seed)
    task, X = np.repeat(np.arange(tasks), rows), rng.normal(size=(tasks * rows, features))
    w = rng.normal(size=features) + 0.5 * rng.normal(size=(tasks, features))
    z = (X * w[task]).sum(axis=1) + 0.5 * rng.normal(size=tasks)[task]
    return X, z + 0.3 * rng.normal(size=len(z)), task


def resident() -> float:
    """MB of memory held now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """One line with a store, one without."""
    with tempfile.TemporaryDirectory() as folder:
        for where in (Path(folder) / "rows.sqlite", None):
            X, y, task = table(500)
            est = fmrl.MetaRegressor(store=where).fit(X, y, task=task)
            held = [resident()]
            for i in track(range(40), "tasks", transient=True):
                X, y, task = table(5000, seed=i + 1)
                est.update(X, y, task + 5000 * (i + 1))
                est.predict(X[::4], task[::4] + 5000 * (i + 1))
                held.append(resident())
            said = ", ".join(f"{held[i]:.0f}" for i in (0, 10, 20, 30, 40))
            each = f"{est.nbytes_ / len(est.tasks_):.0f} bytes a task"
            name = "store" if where else "memory"
            print(f"{name}: {said} MB after 0, 50, 100, 150, 200 thousand tasks; {each}")


if __name__ == "__main__":
    main()
