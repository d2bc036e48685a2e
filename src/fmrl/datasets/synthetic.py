"""Synthetic tasks with a known answer: mixtures, regressions around a mean, experts, and tasks that
move.

Everything is a function of its arguments and ``seed`` (NumPy's PCG64). ``spread`` is the similarity
knob, 0 for tasks that are alike: for regressions the root mean square distance of the tasks'
parameters from their centre, for mixtures the same of each class's mean, for experts the share of
tasks whose good expert is not the usual one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fmrl.core.losses import Linear, OneVsAll, Squared
from fmrl.core.tasks import Task
from fmrl.errors import FMRLError


@dataclass(frozen=True, repr=False)
class Synthetic:
    """Tasks and what is known of them.

    optima [T, d]: the minimiser of each task's total loss over all of R^d (regression) or over the
    simplex (experts); None where no closed form exists. centre [d]: what the tasks' parameters
    scatter around. spread: as asked for."""

    tasks: list[Task]
    optima: np.ndarray | None
    centre: np.ndarray
    spread: float

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        known = "known optima" if self.optima is not None else "optima by solver"
        return (
            f"Synthetic({len(self)} tasks, d={self.centre.size}, spread={self.spread:g}, {known})"
        )


def gaussian_mixtures(
    tasks: int,
    shots: int,
    *,
    dim: int = 50,
    classes: int = 4,
    spread: float = 0.5,
    noise: float = 1.0,
    seed: int = 0,
) -> Synthetic:
    """Four-class mixtures: x = mu_c + noise * u, u uniform on the sphere, scaled to unit length;
    shots samples of each class, shuffled.

    Task t's means are mu_c = centre_c + spread * g / sqrt(dim), with centre_c and g standard
    normal; the samples of a class are as many as those of every other. X [classes * shots, dim],
    unit rows.

    >>> mixtures = gaussian_mixtures(3, 8, seed=1)
    >>> len(mixtures), mixtures.tasks[0].X.shape
    (3, (32, 50))
    """
    _positive(tasks=tasks, shots=shots, dim=dim, classes=classes)
    _not_negative(spread=spread, noise=noise)
    rng = np.random.default_rng(seed)
    centre = rng.standard_normal((classes, dim))
    y = np.repeat(np.arange(classes), shots)
    made = []
    for t in range(tasks):
        means = centre + spread * rng.standard_normal((classes, dim)) / np.sqrt(dim)
        labels = rng.permutation(y)
        X = means[labels] + noise * _unit(rng.standard_normal((len(y), dim)))
        made.append(Task(_unit(X), labels, loss=OneVsAll(classes), name=t))
    return Synthetic(made, None, centre.reshape(-1), spread)


def linear_regressions(
    tasks: int,
    rounds: int,
    *,
    dim: int = 10,
    spread: float = 0.1,
    noise: float = 0.0,
    radius: float = 0.5,
    seed: int = 0,
) -> Synthetic:
    """Regressions whose solutions scatter around a mean: y = <w_t, x> + noise, w_t = centre +
    spread * v_t.

    v_t has root mean square length 1, ||centre|| = radius, x is uniform on the unit sphere. The
    optimum is the least-squares solution of least norm, which is w_t itself when noise = 0 and
    rounds >= dim.

    >>> r = linear_regressions(200, 20, dim=5, spread=0.3)
    >>> round(float(np.sqrt(((r.optima - r.centre) ** 2).sum(axis=1).mean())), 1)
    0.3
    """
    _positive(tasks=tasks, rounds=rounds, dim=dim)
    _not_negative(spread=spread, noise=noise, radius=radius)
    rng = np.random.default_rng(seed)
    centre = radius * _unit(rng.standard_normal((1, dim)))[0]
    made, optima = [], []
    for t in range(tasks):
        w = centre + spread * rng.standard_normal(dim) / np.sqrt(dim)
        X = _unit(rng.standard_normal((rounds, dim)))
        y = X @ w + noise * rng.standard_normal(rounds)
        made.append(Task(X, y, loss=Squared(), name=t))
        optima.append(np.linalg.lstsq(X, y, rcond=None)[0])
    return Synthetic(made, np.array(optima), centre, spread)


def experts(
    tasks: int, rounds: int, *, dim: int = 10, spread: float = 0.2, gap: float = 0.3, seed: int = 0
) -> Synthetic:
    """Learning with expert advice over the simplex: Bernoulli costs in {0, 1}, one expert a task
    cheaper by ``gap`` on average.

    The good expert is number 0 with probability 1 - spread and any of the others otherwise, so
    spread = 0 makes the tasks alike. The optimum is the vertex of least total cost (the first of
    several); centre is the distribution of good experts.

    >>> e = experts(50, 30, spread=0.0, gap=0.5)
    >>> e.optima.sum(axis=1).tolist() == [1.0] * 50 and float(e.optima[:, 0].mean()) > 0.9
    True
    """
    _positive(tasks=tasks, rounds=rounds, dim=dim)
    if not (0 <= spread <= 1 and 0 <= gap <= 0.5):
        raise FMRLError(
            f"spread={spread} and gap={gap} give no probabilities",
            fix="keep spread in [0, 1] and gap in [0, 0.5]",
        )
    rng = np.random.default_rng(seed)
    centre = np.full(dim, spread / max(dim - 1, 1))
    centre[0] = 1 - spread if dim > 1 else 1.0
    made, optima = [], np.zeros((tasks, dim))
    for t in range(tasks):
        good = rng.choice(dim, p=centre)
        p = np.full(dim, 0.5)
        p[good] -= gap
        costs = (rng.random((rounds, dim)) < p).astype(np.float64)
        made.append(Task(costs, loss=Linear(), name=t))
        optima[t, np.argmin(costs.sum(axis=0))] = 1.0
    return Synthetic(made, optima, centre, spread)


def evolving(
    rounds: int,
    *,
    dim: int = 10,
    spread: float = 0.05,
    drift: float = 0.01,
    jump: int | None = None,
    radius: float = 0.5,
    seed: int = 0,
) -> Iterator[tuple[Task, np.ndarray]]:
    """An endless stream of (regression task, its optimum) whose centre walks: c_{t+1} = c_t + drift
    * u_t, kept in the ball.

    u_t is a random unit vector; every ``jump`` tasks the centre is drawn anew. Tasks are noiseless
    with rounds >= dim rows, so the optimum w_t = c_t + spread * v_t is exact.

    >>> from itertools import islice
    >>> task, optimum = next(islice(evolving(12, dim=4), 99, 100))
    >>> task.rounds, optimum.shape
    (12, (4,))
    """
    _positive(rounds=rounds, dim=dim)
    _not_negative(spread=spread, drift=drift, radius=radius)
    if rounds < dim:
        raise FMRLError(
            f"{rounds} rounds in {dim} dimensions have no unique optimum",
            fix="use at least as many rounds as dimensions",
        )
    rng = np.random.default_rng(seed)
    centre, t = radius * _unit(rng.standard_normal((1, dim)))[0], 0
    while True:
        w = centre + spread * rng.standard_normal(dim) / np.sqrt(dim)
        X = _unit(rng.standard_normal((rounds, dim)))
        yield Task(X, X @ w, loss=Squared(), name=t), w
        t += 1
        if jump and t % jump == 0:
            centre = radius * _unit(rng.standard_normal((1, dim)))[0]
        else:
            centre = centre + drift * _unit(rng.standard_normal((1, dim)))[0]
            centre *= min(1.0, radius / max(float(np.linalg.norm(centre)), 1e-300))


def _unit(X: np.ndarray) -> np.ndarray:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise FMRLError(f"{name}={value} must be at least 1")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (value >= 0 and np.isfinite(value)):
            raise FMRLError(f"{name}={value} must be a number of at least 0")
