"""What a task costs with rules that learn a shape, as multiples of `Isotropic`:
``python benchmarks/shape.py [run | step]``.

Processor time of `fmrl.run`, or of `FMRL.step` in a loop (OGD, squared losses), by rounds, features
and domain; rules take turns. The aim: a step for every coordinate within 1.3, a full matrix up to
64 features within 3.
"""

import sys
import time

import numpy as np

import fmrl

RULES = {
    "scalar": fmrl.Isotropic(0.3),
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


def step(algo, tasks, keep, progress):
    """What `fmrl.run` does, task by task."""
    state = algo.init(np.zeros(tasks[0].dim))
    for task in tasks:
        state, _ = algo.step(state, task)
        progress(1)


def milliseconds(play, domain, tasks):
    """Of one task, by rule: for every task the least of ten, what `fmrl.run` does for all tasks at
    once as a part of the first.
    """
    found = {name: [] for name in RULES}
    for _ in range(10):
        for name, rule in RULES.items():
            algo = fmrl.FMRL(domain, fmrl.OGD(), similarity=rule, lipschitz=1.0)
            ticks = [time.process_time()]
            play(algo, tasks, keep="scalars", progress=lambda _: ticks.append(time.process_time()))  # noqa: B023
            found[name].append(np.diff(ticks))
    return {name: 1e3 * float(np.min(took, axis=0).mean()) for name, took in found.items()}


if __name__ == "__main__":
    play = step if sys.argv[1:] == ["step"] else fmrl.run
    print(f"{'rounds':>6} {'d':>3} {'domain':10} {'scalar':>9}  " + "  ".join([*RULES][1:]))
    for rounds, count in ((5, 80), (60, 15)):
        for d in (16, 64):
            tasks = list(make_tasks(count, rounds, d))
            for domain in (fmrl.Euclidean(), fmrl.Ball(2.0), fmrl.Box(-0.5, 0.8)):
                times = milliseconds(play, domain, tasks)
                base = times.pop("scalar")
                said = (f"{t / base:{len(n)}.2f}" for n, t in times.items())
                name = type(domain).__name__
                print(f"{rounds:6} {d:3} {name:10} {base:6.3f} ms  " + "  ".join(said), flush=True)
