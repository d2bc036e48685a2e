"""Synthetic tasks with a known answer: mixtures, regressions around a mean, experts, and tasks that
change over time.

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

    Args:
        tasks: The tasks.
        optima: [T, d] the minimiser of each task's total loss over all of R^d (regression) or over
            the simplex (experts); None where no closed form exists.
        centre: [d] what the tasks' parameters scatter around.
        spread: As asked for.
    """

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
        size = f"{len(self)} tasks, d={self.centre.size}"
        return f"Synthetic({size}, spread={self.spread:g}, {known})"


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
    """Mixtures: x = mu_c + noise * u, u uniform on the sphere, scaled to unit length; shots samples
    of each class, shuffled.

    Task t's means are mu_c = centre_c + spread * g / sqrt(dim), with centre_c and g standard
    normal. X [classes * shots, dim], unit rows.

    Args:
        tasks: How many tasks.
        shots: Samples of each class in a task.
        dim: Dimension of x.
        classes: How many classes.
        spread: Of the tasks' class means around the centre.
        noise: Length of what is added to a class mean.
        seed: Another seed gives other tasks.

    >>> mixtures = gaussian_mixtures(3, 8, seed=1)
    >>> len(mixtures), mixtures.tasks[0].X.shape
    (3, (32, 50))
    """
    _check(1, tasks=tasks, shots=shots, dim=dim, classes=classes)
    _check(0, spread=spread, noise=noise)
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

    v_t has root mean square length 1, x is uniform on the unit sphere. The optimum is the
    least-squares solution of least norm, which is w_t itself when noise = 0 and rounds >= dim.

    Args:
        tasks: How many tasks.
        rounds: Rows of each task.
        dim: Dimension of x.
        spread: Root mean square distance of the w_t from the centre.
        noise: Standard deviation of what is added to y.
        radius: Length of the centre.
        seed: Another seed gives other tasks.

    >>> r = linear_regressions(200, 20, dim=5, spread=0.3)
    >>> round(float(np.sqrt(((r.optima - r.centre) ** 2).sum(axis=1).mean())), 1)
    0.3
    """
    _check(1, tasks=tasks, rounds=rounds, dim=dim)
    _check(0, spread=spread, noise=noise, radius=radius)
    rng = np.random.default_rng(seed)
    centre = radius * _unit(rng.standard_normal((1, dim)))[0]
    made, optima = [], []
    for t in range(tasks):
        w, X = _regression(rng, centre, spread, rounds)
        y = X @ w + noise * rng.standard_normal(rounds)
        made.append(Task(X, y, loss=Squared(), name=t))
        optima.append(np.linalg.lstsq(X, y, rcond=None)[0])
    return Synthetic(made, np.array(optima), centre, spread)


def experts(
    tasks: int, rounds: int, *, dim: int = 10, spread: float = 0.2, gap: float = 0.3, seed: int = 0
) -> Synthetic:
    """Learning with expert advice over the simplex: Bernoulli costs in {0, 1}, one expert a task
    cheaper on average.

    The optimum is the vertex of least total cost (the first of several); centre is the distribution
    of good experts.

    Args:
        tasks: How many tasks.
        rounds: Cost vectors of each task.
        dim: How many experts.
        spread: Probability that the good expert of a task is not number 0.
        gap: How much cheaper the good expert is on average.
        seed: Another seed gives other tasks.

    >>> e = experts(50, 30, spread=0.0, gap=0.5)
    >>> float(e.optima[:, 0].mean())
    1.0
    """
    _check(1, tasks=tasks, rounds=rounds, dim=dim)
    if not (0 <= spread <= 1 and 0 <= gap <= 0.5):
        what = f"spread={spread} and gap={gap} give no probabilities"
        raise FMRLError(what, fix="keep spread in [0, 1] and gap in [0, 0.5]")
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

    u_t is a random unit vector. Tasks have no noise, so the optimum w_t = c_t + spread * v_t is
    exact.

    Args:
        rounds: Rows of each task, at least dim.
        dim: Dimension of x.
        spread: Root mean square distance of the w_t from their centre.
        drift: How far the centre walks from one task to the next.
        jump: The centre is drawn anew after so many tasks (default: never).
        radius: Of the ball that holds the centre.
        seed: Another seed gives another stream.

    >>> from itertools import islice
    >>> task, optimum = next(islice(evolving(12, dim=4), 99, 100))
    >>> task.rounds, optimum.shape
    (12, (4,))
    """
    _check(1, rounds=rounds, dim=dim)
    _check(0, spread=spread, drift=drift, radius=radius)
    if rounds < dim:
        what = f"{rounds} rounds in {dim} dimensions have no unique optimum"
        raise FMRLError(what, fix="use at least as many rounds as dimensions")
    rng = np.random.default_rng(seed)
    centre, t = radius * _unit(rng.standard_normal((1, dim)))[0], 0
    while True:
        w, X = _regression(rng, centre, spread, rounds)
        yield Task(X, X @ w, loss=Squared(), name=t), w
        t += 1
        if jump and t % jump == 0:
            centre = radius * _unit(rng.standard_normal((1, dim)))[0]
        else:
            centre = centre + drift * _unit(rng.standard_normal((1, dim)))[0]
            centre *= min(1.0, radius / max(float(np.linalg.norm(centre)), 1e-300))


def _regression(rng: np.random.Generator, centre: np.ndarray, spread: float, rounds: int) -> tuple:
    """Parameters around a centre, and unit rows."""
    w = centre + spread * rng.standard_normal(centre.size) / np.sqrt(centre.size)
    return w, _unit(rng.standard_normal((rounds, centre.size)))


def _unit(X: np.ndarray) -> np.ndarray:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def _check(at_least: int, **values: float) -> None:
    for name, value in values.items():
        if not at_least <= value < np.inf:
            raise FMRLError(f"{name}={value} must be a number of at least {at_least}")
