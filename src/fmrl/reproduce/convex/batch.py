"""The batch figure: accuracy on new tasks after a few shots, FAL without tuning against tuned MAML
and two plain baselines. MAML is here, since the library does not offer it for linear models.

Train tasks teach, dev tasks choose what is tuned, test tasks are scored on samples that no number
of shots holds. Every task's features are standardised by the mean and deviation of its own shots.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fmrl import OneVsAll, Task, play, stack
from fmrl.reproduce.convex.compositions import BALL, PRESETS
from fmrl.reproduce.convex.data import SPLITS, Config, StudySet
from fmrl.reproduce.parts import Part
from fmrl.reproduce.verdict import Row, row
from fmrl.stats import mean_interval

INNER = tuple(2.0**k for k in range(-7, 4))  # MAML's within-task rates …
META = tuple(4.0**k for k in range(-8, 1))  # … and meta-rates
ALONE_C = tuple(10.0**k for k in range(-4, 3))  # inverse penalties of the plain baselines
POOLED_C = (1e-4, 1e-2, 1.0)
OVER = "95% t interval over test tasks"
AVERAGE, LAST, START = "FAL, average iterate", "FAL, last iterate", "FAL, no adaptation"
FIRST, FULL = "first-order MAML", "MAML"
ALONE, POOLED = "single-task logistic regression", "pooled logistic regression"
RADIUS = 1.0  # of MAML's ball
FACTORS = (0.25, 0.5, 2.0, 4.0, 8.0, 16.0)  # experiment: FAL's step times these


class Sample(NamedTuple):
    """Samples of tasks: X [..., n, f], target [..., n, C] one-hot."""

    X: np.ndarray
    target: np.ndarray

    def rows(self, part: slice) -> Sample:
        return Sample(self.X[..., part, :], self.target[..., part, :])


def gradient(phi: np.ndarray, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Gradient [..., C, f] of the mean one-vs-all loss, and the probabilities [..., n, C]."""
    p = 0.5 + 0.5 * np.tanh(sample.X @ np.swapaxes(phi, -1, -2) / 2)
    return np.swapaxes(p - sample.target, -1, -2) @ sample.X / sample.X.shape[-2], p


def project(theta: np.ndarray) -> np.ndarray:
    """Onto MAML's ball in the Frobenius norm."""
    length = np.sqrt((theta * theta).sum((-2, -1), keepdims=True))
    return theta * (RADIUS / np.maximum(length, RADIUS))


def adapt(phi: np.ndarray, sample: Sample, rate: np.ndarray) -> np.ndarray:
    """One projected gradient step from phi with step ``rate`` [...]."""
    return project(phi - np.asarray(rate)[..., None, None] * gradient(phi, sample)[0])


def meta_gradient(
    phi: np.ndarray, support: Sample, query: Sample, rate: np.ndarray, full: bool
) -> np.ndarray:
    """MAML's direction [..., C, f]: with θ = P(phi − a·∇L_support(phi)), P the projection onto the
    ball and L the mean loss, ∇L_query(θ) (first-order) or Jᵀ∇L_query(θ), J = ∂θ/∂phi (full).

    >>> rng = np.random.default_rng(0)
    >>> data = Sample(rng.standard_normal((6, 3)), np.eye(2)[rng.integers(2, size=6)])
    >>> support, query = data.rows(slice(3)), data.rows(slice(3, 6))
    >>> phi, rate, h = 0.1 * rng.standard_normal((2, 3)), np.array(0.5), 1e-6
    >>> def risk(phi):
    ...     z = query.X @ adapt(phi, support, rate).T
    ...     return float(np.mean((np.log1p(np.exp(z)) - query.target * z).sum(1)))
    >>> step = np.zeros((2, 3)); step[1, 2] = h
    >>> numeric = (risk(phi + step) - risk(phi - step)) / (2 * h)
    >>> exact = meta_gradient(phi, support, query, rate, full=True)[1, 2]
    >>> bool(abs(numeric - exact) < 1e-8)
    True
    """
    a = np.asarray(rate)[..., None, None]
    g, p = gradient(phi, support)
    step = phi - a * g
    outer = gradient(project(step), query)[0]
    if not full:
        return outer
    length = np.sqrt((step * step).sum((-2, -1), keepdims=True))
    beyond = length > RADIUS
    safe = np.where(beyond, length, 1.0)
    radial = (step * outer).sum((-2, -1), keepdims=True) / safe**2
    outer = np.where(beyond, RADIUS / safe * (outer - radial * step), outer)
    bend = p * (1 - p) * (support.X @ np.swapaxes(outer, -1, -2))
    return outer - a * (np.swapaxes(bend, -1, -2) @ support.X) / support.X.shape[-2]


def train_maml(
    phi: np.ndarray,
    tasks: Sample,
    order: np.ndarray,
    rates: tuple[np.ndarray, np.ndarray],
    full: bool,
) -> np.ndarray:
    """One pass of MAML over the tasks, many runs side by side: phi ← P(phi − b·direction).

    phi [R, C, f]; tasks X [T, n, f]; order [R, T] or [T]; rates (a, b), each [R]. The first half of
    a task's samples is the support, the second half the query, as in the authors' code.
    """
    inner, meta = (np.asarray(r) for r in rates)
    half = tasks.X.shape[1] // 2
    for t in np.moveaxis(np.asarray(order), -1, 0):
        task = Sample(tasks.X[t], tasks.target[t])
        support, query = task.rows(slice(half)), task.rows(slice(half, None))
        phi = project(phi - meta[:, None, None] * meta_gradient(phi, support, query, inner, full))
    return phi


class Shots:
    """The standardised tasks of one split at one number of shots, and what is held out of them."""

    def __init__(self, data: StudySet, shots: int, split: str):
        X, self.y = data.arrays(shots, split)
        mean, spread = X.mean(axis=1, keepdims=True), X.std(axis=1, keepdims=True)
        spread = np.where(spread > 1e-12, spread, 1.0)
        self.X, self.target = (X - mean) / spread, np.eye(data.classes)[self.y]
        self.shape = data.classes, X.shape[-1]  # of theta as a matrix
        held = [
            (k, data.held[t]) for k, t in enumerate(data.index(split).tolist()) if t in data.held
        ]
        self.held = [((X - mean[k]) / spread[k], y) for k, (X, y) in held]

    def game(self):
        loss = OneVsAll(self.shape[0])
        return stack([Task(X, y, loss=loss) for X, y in zip(self.X, self.y, strict=True)])

    def score(self, theta: np.ndarray) -> np.ndarray:
        """Accuracy of theta [..., T, C, f] on each task's held-out samples, [..., T]."""
        found = [
            (np.argmax(X @ np.swapaxes(theta[..., t, :, :], -1, -2), axis=-1) == y).mean(axis=-1)
            for t, (X, y) in enumerate(self.held)
        ]
        return np.stack(found, axis=-1)

    def adapted(self, phi: np.ndarray, rate: np.ndarray) -> np.ndarray:
        """Accuracy [R, T] of MAML after one step on each task's shots from phi [R, C, f]."""
        pairs = zip(self.X, self.target, strict=True)
        return self.score(np.stack([adapt(phi, Sample(X, y), rate) for X, y in pairs], axis=-3))


def parts(config: Config) -> list[Part]:
    """FAL per preset; MAML and the baselines once."""
    made = []
    for m in config.shots:
        for steps, factors in (("", {}), ("-steps", {"factors": FACTORS})):
            for p in config.presets:
                asked = {"preset": p, "shots": m} | factors
                name = f"batch/{p}-FAL{steps}-{m}"
                made.append(Part(name, fal, asked, 0.2 * m, repr(PRESETS[p])))
        made.append(Part(f"batch/plain-{m}", plain, {"shots": m}, 0.2 * m + 2))
        sizes = {"orders": config.orders, "passes": config.passes, "seed": config.seed}
        for full in (False, True):
            name = f"batch/maml-{'full' if full else 'first'}-{m}"
            made.append(Part(name, maml, {"shots": m, "full": full} | sizes, m + 4))
    return made


def fal(data: StudySet, preset: str, shots: int, factors: tuple[float, ...] = ()) -> dict[str, Any]:
    """FAL on the train tasks, its D the average deviation of their optima, then one pass over each
    test task's shots.

    With ``factors``, the experiment: the same with the step multiplied by each of them.
    """
    reading, test = PRESETS[preset], Shots(data, shots, "test")
    facts, new = reading.facts(Shots(data, shots, "train").game()), test.game()
    # The released code measures distances without the ½ of B_R.
    deviation = facts.deviation * (np.sqrt(2) if reading.widest else 1.0)
    phi = np.broadcast_to(facts.mean, (len(test.y), facts.mean.size))
    weight = reading.constant(new) * np.sqrt(new.rounds)

    def score(theta: np.ndarray) -> np.ndarray:
        return test.score(theta.reshape(-1, *test.shape))

    scores = {}
    for factor in factors or (1.0,):
        played = play(reading.gradient, new, BALL, phi, factor * deviation / weight)
        note = f", step × {factor:g}" if factors else ""
        scores |= {AVERAGE + note: score(played.average), LAST + note: score(played.last)}
    if not factors:
        scores[START] = score(phi)
    tuned = {"D": deviation, "phi": float(np.linalg.norm(facts.mean))}
    return {"accuracy": scores, "tuned": tuned}


def maml(
    data: StudySet, shots: int, full: bool, orders: int, passes: int, seed: int
) -> dict[str, Any]:
    """MAML with rates and passes chosen on one order by dev accuracy, then played in all orders."""
    train, dev, test = (Shots(data, shots, split) for split in SPLITS)
    rng, tasks = np.random.default_rng(seed), len(train.y)
    order = np.stack([[rng.permutation(tasks) for _ in range(passes)] for _ in range(orders)])
    inner, meta = (a.reshape(-1) for a in np.meshgrid(INNER, META, indexing="ij"))
    sample = Sample(train.X, train.target)
    phi, best = np.zeros((inner.size, *train.shape)), (-1.0, 0, 0)
    for k in range(passes):
        phi = train_maml(phi, sample, order[0, k], (inner, meta), full)
        accuracy = dev.adapted(phi, inner).mean(axis=-1)
        at = int(np.argmax(accuracy))
        if accuracy[at] > best[0]:
            best = float(accuracy[at]), at, k + 1
    found, at, used = best
    phi = np.zeros((orders, *train.shape))
    rates = np.full(orders, inner[at]), np.full(orders, meta[at])
    for k in range(used):
        phi = train_maml(phi, sample, order[:, k], rates, full)
    tuned = {"inner": inner[at], "meta": meta[at], "passes": used, "dev": found}
    tuned["edge"] = bool(inner[at] in (INNER[0], INNER[-1]) or meta[at] in (META[0], META[-1]))
    by_order = test.adapted(phi, rates[0])
    scores = {FULL if full else FIRST: by_order.mean(axis=0)}
    return {"accuracy": scores, "orders": by_order.mean(axis=-1), "tuned": tuned}


def plain(data: StudySet, shots: int) -> dict[str, Any]:
    """Logistic regression on each test task alone, and one for all; penalties by dev accuracy."""
    from sklearn.linear_model import LogisticRegression

    train, dev, test = (Shots(data, shots, split) for split in SPLITS)

    def fit(X: np.ndarray, y: np.ndarray, C: float) -> np.ndarray:
        return LogisticRegression(C=C, fit_intercept=False, max_iter=300).fit(X, y).coef_

    def alone(on: Shots, C: float) -> np.ndarray:
        return on.score(np.stack([fit(X, y, C) for X, y in zip(on.X, on.y, strict=True)]))

    X, y = train.X.reshape(-1, train.shape[1]), train.y.reshape(-1)
    fitted = {C: fit(X, y, C) for C in POOLED_C}

    def pooled(on: Shots, C: float) -> np.ndarray:
        return on.score(np.broadcast_to(fitted[C], (len(on.y), *on.shape)))

    scores, chosen = {}, {}
    for method, score, grid in ((ALONE, alone, ALONE_C), (POOLED, pooled, POOLED_C)):
        C = max(grid, key=lambda C: float(score(dev, C).mean()))
        scores[method], chosen[method] = score(test, C), C
    return {"accuracy": scores, "tuned": {"C": chosen}}


def rows(asked: list[tuple[Part, Any]]) -> list[Row]:
    """One row per method and number of shots; methods without a preset stand under each one."""
    made = []
    presets = list(dict.fromkeys(p.arguments["preset"] for p, _ in asked if p.work is fal))
    for part, r in asked:
        m = part.arguments["shots"]
        for preset in [part.arguments["preset"]] if part.work is fal else presets:
            for method, accuracy in r["accuracy"].items():
                within = "one pass of OGD" if part.work is fal else ""
                found = row(accuracy, OVER, preset, within, method, m)
                found |= {"tuned": r["tuned"], "extra": "step ×" in method}
                if "orders" in r:
                    found["order_low"], found["order_high"] = mean_interval(r["orders"])[1:3]
                if not found["extra"]:
                    found["values"] = [round(a, 5) for a in accuracy]
                made.append(found)
    return made
