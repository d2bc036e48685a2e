"""What a task costs with rules that learn a shape, as multiples of `Isotropic`:
``python benchmarks/shape.py``.

Processor time of `fmrl.run` (OGD, squared losses), the least of three, by rounds, features and
domain. The aim: a step for every coordinate within 1.3, a full matrix up to 64 features within 3.
"""

import time

import numpy as np

import fmrl

RULES = {
    "diagonal": fmrl.PerCoordinate(0.1, 0.1),
    "low rank": fmrl.LowRank(2, 0.1, 0.1),
    "full": fmrl.FullMatrix(0.1, 0.1),
}


def make_tasks(count, rounds, d):
    """Tasks that differ in three coefficients."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        X = rng.normal(size=(rounds, d)) / d**0.5
        theta = 0.3 + (np.arange(d) < 3) * rng.normal(size=d)
        yield fmrl.Task(X, X @ theta + 0.1 * rng.normal(size=rounds), loss=fmrl.Squared())


def milliseconds(domain, rule, tasks):
    """Of one task."""
    algo, spent = fmrl.FMRL(domain, fmrl.OGD(), similarity=rule, lipschitz=1.0), []
    for _ in range(3):
        before = time.process_time()
        fmrl.run(algo, tasks, keep="scalars")
        spent.append(time.process_time() - before)
    return 1e3 * min(spent) / len(tasks)


if __name__ == "__main__":
    print(f"{'rounds':>6} {'d':>3} {'domain':10} {'scalar':>9}  " + "  ".join(RULES))
    for rounds, count in ((5, 200), (60, 40)):
        for d in (16, 64):
            tasks = list(make_tasks(count, rounds, d))
            for domain in (fmrl.Euclidean(), fmrl.Ball(2.0), fmrl.Box(-0.5, 0.8)):
                base = milliseconds(domain, fmrl.Isotropic(0.3), tasks)
                times = [milliseconds(domain, rule, tasks) / base for rule in RULES.values()]
                name = type(domain).__name__
                said = "  ".join(f"{t:{len(n)}.2f}" for t, n in zip(times, RULES, strict=True))
                print(f"{rounds:6} {d:3} {name:10} {base:6.3f} ms  {said}", flush=True)
