"""Small odd tasks for the adversary: scales from 1e-170 to 1e150, ties at one ulp, zeros, one
round, one feature, and costs that turn round half way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import own

import fmrl

EXTREMES = (1e-170, 1e-165, 1e-150, 1e-80, 1e-30, 1e-12, 1e12, 1e25, 1e60, 1e150)
STREAMS = ("around", "around", "apart", "same", "ulp", "jump", "drift", "zeros")
ROWS = ("normal", "normal", "normal", "units", "repeated", "signs", "turn", "ulp", "sparse")


def scale_of(rng: np.random.Generator, odd: float = 0.12) -> float:
    """A size: mostly tame, sometimes extreme."""
    return float(rng.choice(EXTREMES)) if rng.random() < odd else float(10 ** rng.uniform(-1.5, 1))


def rounds_of(rng: np.random.Generator) -> int:
    """How many rounds a task has: mostly few."""
    if rng.random() < 0.01:
        return int(10 ** rng.uniform(1.5, 2.7))
    return int(rng.choice([1, 1, 2, 3, 4, 5, 6, 12]))


def rows(rng: np.random.Generator, kind: str, m: int, f: int, centre: np.ndarray) -> np.ndarray:
    """Rows [m, f] of size about one."""
    X = rng.normal(size=(m, f))
    if kind == "units":
        X = np.eye(f)[rng.integers(0, f, m)]
    elif kind == "repeated":
        X = np.repeat(X[:1], m, axis=0)
    elif kind == "signs":
        X = rng.choice([-1.0, 1.0], (m, f))
    elif kind == "turn":  # one unit vector, from some round on another one
        turn = int(m * rng.uniform(0.05, 0.4))
        X = np.eye(f)[np.where(np.arange(m) < turn, 0, f - 1)]
    elif kind == "ulp":
        X = np.nextafter(np.repeat(X[:1], m, axis=0), rng.choice([-9.0, 9.0], (m, f)))
    elif kind == "sparse":
        X = X * (rng.random((m, f)) < 0.3)
    return X


def labels(rng: np.random.Generator, loss: Any, X: np.ndarray, best: np.ndarray) -> Any:
    """What the loss wants beside rows that ``best`` [outputs, f] explains, or nearly."""
    z = X @ best.T + rng.choice([0.0, 0.1, 1.0]) * rng.normal(size=(len(X), len(best)))
    if isinstance(loss, fmrl.Linear):
        return None
    if isinstance(loss, fmrl.Squared):
        return z[:, 0]
    if isinstance(loss, fmrl.OneVsAll):
        return np.argmax(z, axis=1)
    return (z[:, 0] > 0).astype(int)


def bests(rng: np.random.Generator, kind: str, count: int, shape: tuple[int, int]) -> list:
    """What explains each task, [outputs, f] each."""
    centre, spread = rng.normal(size=shape), 10 ** rng.uniform(-3, 0.5)
    if kind == "zeros":
        return [np.zeros(shape)] * count
    if kind == "same":
        return [centre] * count
    if kind == "ulp":
        return [np.nextafter(centre, rng.choice([-9.0, 9.0], shape)) for _ in range(count)]
    if kind == "apart":  # from one end to the other, task after task
        return [centre + (1 if t % 2 else -1) * 3 for t in range(count)]
    if kind == "jump":
        return [centre * (1 if t < count // 2 else -1) for t in range(count)]
    if kind == "drift":
        return [centre + spread * t for t in range(count)]
    return [centre + spread * rng.normal(size=shape) for _ in range(count)]


def draw(
    rng: np.random.Generator, loss: Any, f: int, count: int, reach: float, dtype: Any
) -> list[Any]:
    """``count`` tasks of f features.

    Args:
        rng: Random numbers.
        loss: Of all tasks.
        f: Features.
        count: How many.
        reach: The size of the domain, in which optima shall lie.
        dtype: Of the rows.
    """
    stream, size, outputs = str(rng.choice(STREAMS)), scale_of(rng), loss.outputs
    kind, m = str(rng.choice(ROWS)), rounds_of(rng)
    ragged, odd = rng.random() < 0.5 and m < 100, rng.random() < 0.08
    tasks, repeated, again = [], rng.random() < 0.08, None
    for best in bests(rng, stream, count, (outputs, f)):
        if again is not None:
            tasks.append(again)
            continue
        rounds = int(rng.integers(1, m + 1)) if ragged else m
        X = rows(rng, kind, rounds, f, best)
        if isinstance(loss, fmrl.Linear) and kind in ("normal", "sparse"):
            X = X - best[:1]
        if stream == "zeros" and rng.random() < 0.7:
            X = X * 0
        own_size = size * (float(rng.choice([1e-9, 1e9])) if odd and rng.random() < 0.3 else 1.0)
        X = np.clip(own_size * X, -1e35, 1e35) if dtype is np.float32 else own_size * X
        X = X.astype(dtype)
        y = labels(rng, loss, X.astype(float), best * min(reach, 1e30))
        if isinstance(y, np.ndarray) and y.dtype.kind == "f":
            y = y.astype(dtype)
        task = fmrl.Task(X, y, loss=loss)
        again = task if repeated else None
        tasks.append(task)
    return tasks


def turning(rng: np.random.Generator, f: int, dtype: Any) -> list[Any]:
    """One task or two of up to ten thousand rounds of linear costs, on one coordinate until a turn
    and on another from there on: what has grown faint has to come back.
    """
    m, size = int(10 ** rng.uniform(2.7, 4)), scale_of(rng)
    X = size * rows(rng, "turn", m, f, np.zeros(f))
    return [fmrl.Task(X.astype(dtype), loss=fmrl.Linear()) for _ in range(rng.integers(1, 3))]


def reactive(rng: np.random.Generator, domain: Any, dim: int, count: int) -> list[Any]:
    """Games that answer each action, the library's own adversary among them."""
    m, size = rounds_of(rng), scale_of(rng)
    kind = str(rng.choice(["opposing", "understated", "pit", "library"]))
    if kind == "library" and dim >= 3 and isinstance(domain, fmrl.Ball):
        width = float(domain.radius * rng.choice([1e-3, 0.3, 2.0]))
        centre = domain.middle(np.zeros(dim))
        drawn = {"tasks": count, "centre": centre, "seed": int(rng.integers(99))}
        return list(fmrl.adversary.LowerBound(width, size, min(m, 64), **drawn))
    made = {"pit": own.Pit, "understated": own.Understated}.get(kind, own.Opposing)
    said = fmrl.Linear() if rng.random() < 0.5 else None
    return [own.Reactive(made, m, dim, size, said) for _ in range(count)]


def others(rng: np.random.Generator, tasks: list[Any]) -> list[Any]:
    """Tasks of the same form that were never played."""
    made = []
    for task in tasks:
        X = np.asarray(task.X) * rng.choice([0.1, 3.0]) + (not np.any(task.X))
        target = np.asarray(task.open().target)
        plain = isinstance(task.loss, fmrl.Squared)
        y = target[:, 0] if plain else np.argmax(target, axis=1)
        if isinstance(task.loss, fmrl.Linear):
            y = None
        elif not plain and target.shape[1] == 1:
            y = (target[:, 0] > 0).astype(int)
        made.append(fmrl.Task(X, y, loss=task.loss))
    return made
