"""The batch figure: accuracy on new tasks after a few shots, FAL without tuning against tuned MAML
and two plain baselines.

Train tasks teach, dev tasks choose what is tuned, test tasks are scored on samples that no number
of shots holds. Every task's features are standardised by the mean and deviation of its own shots.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmrl.core.losses import OneVsAll
from fmrl.core.rules.within import play
from fmrl.core.tasks import Rounds, Task, stack
from fmrl.reproduce.convex import maml
from fmrl.reproduce.convex.config import Config
from fmrl.reproduce.convex.parts import Part
from fmrl.reproduce.convex.sets import StudySet
from fmrl.reproduce.convex.table import BALL, PRESETS, Facts
from fmrl.stats import mean_interval

INNER = tuple(2.0**k for k in range(-7, 4))  # MAML's within-task rates …
META = tuple(4.0**k for k in range(-8, 1))  # … and meta-rates
ALONE_C, POOLED_C = (
    tuple(10.0**k for k in range(-4, 3)),
    (1e-4, 1e-2, 1.0),
)  # inverse penalties of the plain baselines
OVER = "95% t interval over test tasks"
AVERAGE, LAST, START = "FAL, average iterate", "FAL, last iterate", "FAL, no adaptation"
FIRST, FULL = "first-order MAML", "MAML"
FACTORS = (0.25, 0.5, 2.0, 4.0, 8.0, 16.0)  # experiment: FAL's step times these
ALONE, POOLED = "single-task logistic regression", "pooled logistic regression"


class Shots:
    """The standardised tasks of one split at one number of shots, and what is held out of them."""

    def __init__(self, data: StudySet, shots: int, split: str):
        X, self.y = data.arrays(shots, split)
        mean, spread = X.mean(axis=1, keepdims=True), X.std(axis=1, keepdims=True)
        spread = np.where(spread > 1e-12, spread, 1.0)
        self.X, self.target = (X - mean) / spread, np.eye(data.classes)[self.y]
        self.loss = OneVsAll(data.classes)
        self.held = []
        for k, t in enumerate(data.index(split).tolist()):
            if t in data.held:
                Xh, yh = data.held[t]
                self.held.append(((Xh - mean[k]) / spread[k], yh))

    def game(self) -> Rounds:
        """All tasks side by side."""
        return stack([Task(X, y, loss=self.loss) for X, y in zip(self.X, self.y, strict=True)])

    def score(self, theta: np.ndarray) -> np.ndarray:
        """Accuracy of theta [..., T, C, f] on each task's held-out samples, [..., T]."""
        found = [
            (np.argmax(X @ np.swapaxes(theta[..., t, :, :], -1, -2), axis=-1) == y).mean(axis=-1)
            for t, (X, y) in enumerate(self.held)
        ]
        return np.stack(found, axis=-1)

    def matrix(self, theta: np.ndarray) -> np.ndarray:
        """Flat theta [..., d] as [..., C, f]."""
        return theta.reshape(*theta.shape[:-1], self.target.shape[-1], self.X.shape[-1])


def parts(config: Config) -> list[Part]:
    """FAL per preset; MAML and the baselines once."""
    made = []
    for m in config.shots:
        for steps, factors in (("", {}), ("-steps", {"factors": FACTORS})):
            for p in config.presets:
                arguments = {"preset": p, "shots": m} | factors
                made.append(
                    Part(
                        f"batch/{p}-FAL{steps}-{m}",
                        "batch:fal",
                        arguments,
                        0.2 * m,
                        repr(PRESETS[p]),
                    )
                )
        made.append(Part(f"batch/plain-{m}", "batch:plain", {"shots": m}, 0.2 * m + 2))
        for full in (False, True):
            arguments = {
                "shots": m,
                "full": full,
                "orders": config.orders,
                "passes": config.passes,
                "seed": config.seed,
            }
            made.append(
                Part(
                    f"batch/maml-{'full' if full else 'first'}-{m}", "batch:tuned", arguments, m + 4
                )
            )
    return made


def fal(data: StudySet, preset: str, shots: int, factors: tuple[float, ...] = ()) -> dict[str, Any]:
    """FAL on the train tasks, its D the average deviation of their optima, then one pass over each
    test task's shots.

    With ``factors``, the experiment: the same with the step multiplied by each of them.
    """
    reading = PRESETS[preset]
    train, test = Shots(data, shots, "train"), Shots(data, shots, "test")
    game = train.game()
    constant = (
        game.lipschitz(BALL)
        if reading.lipschitz is None
        else np.full(len(train.y), reading.lipschitz)
    )
    facts = Facts(game.hindsight(BALL).theta, constant * np.sqrt(game.rounds))
    # The released code measures distances without the ½ of B_R.
    deviation = facts.deviation * (np.sqrt(2) if reading.widest else 1.0)
    new = test.game()
    constant = (
        new.lipschitz(BALL)
        if reading.lipschitz is None
        else np.full(len(test.y), reading.lipschitz)
    )
    phi = np.broadcast_to(facts.mean, (len(test.y), facts.mean.size))
    tuned = {"D": deviation, "phi": float(np.linalg.norm(facts.mean))}
    scores = {}
    for factor in factors or (1.0,):
        played = play(
            reading.gradient, new, BALL, phi, factor * deviation / (constant * np.sqrt(new.rounds))
        )
        note = f", step × {factor:g}" if factors else ""
        scores |= {
            m + note: test.score(test.matrix(a))
            for m, a in ((AVERAGE, played.average), (LAST, played.last))
        }
    return {
        "accuracy": scores if factors else scores | {START: test.score(test.matrix(phi))},
        "tuned": tuned,
    }


def tuned(
    data: StudySet, shots: int, full: bool, orders: int, passes: int, seed: int
) -> dict[str, Any]:
    """MAML: every pair of rates on one order, the best pair and number of passes by dev accuracy,
    then all orders with it.
    """
    train, dev, test = (Shots(data, shots, split) for split in ("train", "dev", "test"))
    rng = np.random.default_rng(seed)
    order = np.stack(
        [np.stack([rng.permutation(len(train.y)) for _ in range(passes)]) for _ in range(orders)]
    )
    inner, meta = (a.reshape(-1) for a in np.meshgrid(INNER, META, indexing="ij"))
    sample = maml.Sample(train.X, train.target)
    phi, best = np.zeros((inner.size, *_shape(train))), None
    for k in range(passes):
        phi = maml.train(phi, sample, order[0, k], (inner, meta), full)
        accuracy = _adapted(dev, phi, inner).mean(axis=-1)
        at = int(np.argmax(accuracy))
        if best is None or accuracy[at] > best[0]:
            best = float(accuracy[at]), at, k + 1
    _, at, used = best
    phi = np.zeros((orders, *_shape(train)))
    rates = np.full(orders, inner[at]), np.full(orders, meta[at])
    for k in range(used):
        phi = maml.train(phi, sample, order[:, k], rates, full)
    found = {"inner": inner[at], "meta": meta[at], "passes": used, "dev": best[0]}
    found["edge"] = bool(inner[at] in (INNER[0], INNER[-1]) or meta[at] in (META[0], META[-1]))
    by_order = _adapted(test, phi, rates[0])
    return {
        "accuracy": {FULL if full else FIRST: by_order.mean(axis=0)},
        "orders": by_order.mean(axis=-1),
        "tuned": found,
    }


def _shape(shots: Shots) -> tuple[int, int]:
    return shots.target.shape[-1], shots.X.shape[-1]


def _adapted(shots: Shots, phi: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Accuracy [R, T] after one step on each task's shots from phi [R, C, f]."""
    theta = [
        maml.adapt(phi, maml.Sample(X, target), rate)
        for X, target in zip(shots.X, shots.target, strict=True)
    ]
    return shots.score(np.stack(theta, axis=-3))


def plain(data: StudySet, shots: int) -> dict[str, Any]:
    """Logistic regression on each test task alone, and one for all tasks that never adapts; penalty
    by dev accuracy.
    """
    from sklearn.linear_model import LogisticRegression

    train, dev, test = (Shots(data, shots, split) for split in ("train", "dev", "test"))

    def fit(X: np.ndarray, y: np.ndarray, C: float) -> np.ndarray:
        return LogisticRegression(C=C, fit_intercept=False, max_iter=300).fit(X, y).coef_

    def alone(shots: Shots, C: float) -> np.ndarray:
        return shots.score(np.stack([fit(X, y, C) for X, y in zip(shots.X, shots.y, strict=True)]))

    pooled = {
        C: fit(train.X.reshape(-1, train.X.shape[-1]), train.y.reshape(-1), C) for C in POOLED_C
    }

    def together(shots: Shots, C: float) -> np.ndarray:
        return shots.score(np.broadcast_to(pooled[C], (len(shots.y), *_shape(shots))))

    scores, found = {}, {}
    for method, fitted, grid in ((ALONE, alone, ALONE_C), (POOLED, together, POOLED_C)):
        C = max(grid, key=lambda C: float(fitted(dev, C).mean()))
        scores[method], found[method] = fitted(test, C), C
    return {"accuracy": scores, "tuned": {"C": found}}


def rows(config: Config, results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per method and number of shots; methods that know no preset stand under each preset."""
    made = []
    for part in parts(config):
        r, m = results[part.name], part.arguments["shots"]
        for preset in [part.arguments["preset"]] if "preset" in part.arguments else config.presets:
            for method, accuracy in r["accuracy"].items():
                mean, low, high, _ = mean_interval(accuracy)
                row = {
                    "preset": preset,
                    "within": "one pass of OGD" if "FAL" in method else "",
                    "method": method,
                    "shots": m,
                }
                row |= {
                    "mean": mean,
                    "low": low,
                    "high": high,
                    "n": len(accuracy),
                    "interval": OVER,
                    "tuned": r["tuned"],
                }
                if "orders" in r:
                    row["order_low"], row["order_high"] = mean_interval(r["orders"])[1:3]
                row["extra"] = "step ×" in method
                made.append(
                    row | ({} if row["extra"] else {"values": [round(a, 5) for a in accuracy]})
                )
    return made
