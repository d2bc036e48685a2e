"""The certificate of an estimator: what its predictions of tasks that its prior has not seen cost,
row after row, against a bound that holds for every sequence of rows (`fmrl.bounds.bayes_mixture`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.prior.gaussian import Gaussian
from fmrl.core.prior.mixture import Posterior
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.averaging import margins, moderated
from fmrl.estimators.prior import Prior
from fmrl.theory.bounds.bayes_mixture import TaskUnderPrior, best_member
from fmrl.theory.bounds.bound import Assumption, Bound, decide

MOST_ROWS = 100  # of a task: its first
MOST_TASKS = 1000  # evenly spaced
FOLDS = 5
ROOM = 0.01  # nats a row, by which predictions may lose more than the mixture that the bound is of
DEPLOYED = "what is deployed loses no more than the mixture"
UNSEEN = Assumption("no prior has seen the task that it predicts")


@dataclass(frozen=True)
class EstimatorCertificate:
    """What predicting costs by task, in nats, and what it can cost at most.

    Args:
        loss: "log-loss", of more than two classes the sum of each one's against the rest, or
            "Gaussian log-loss" of numbers, in their units.
        rows: Rows that were predicted.
        deployed: Summed loss of the predictions of each task, [T].
        negative_elbo: At most what the mixture of the prior's Gaussians loses, [T].
        comparator: Summed loss of the best model of each task, where the bound has its comparator,
            [T].
        bound: The mean over tasks.
        directions: What each direction costs on average, the dearest first.
        folds: Of a cross-fitted certificate; 0 where one prior was certified.
    """

    loss: str
    rows: int
    deployed: np.ndarray
    negative_elbo: np.ndarray
    comparator: np.ndarray
    bound: Bound
    directions: np.ndarray
    folds: int = 0

    @property
    def tasks(self) -> int:
        """How many tasks were predicted."""
        return len(self.deployed)

    @property
    def regret(self) -> float:
        """By how much predictions lost more than the best model of each task, on average."""
        return float((self.deployed - self.comparator).mean())

    @property
    def ratio(self) -> float:
        """The bound on the regret over the regret, as a ratio of sums."""
        most = self.bound.total - float(self.comparator.mean())
        return most / self.regret if self.regret > 0 else math.inf

    @property
    def reading(self) -> str:
        """In plain English."""
        each = self.rows / self.tasks
        whose = "the priors of other folds" if self.folds else "this prior"
        said = [
            f"Over {self.tasks:,} tasks of {each:.3g} rows that {whose} had not seen, predictions "
            f"row after row lost {self.deployed.mean():.4g} nats a task ({self.loss}), "
            f"{self.regret:.4g} more than the model of each task that fits its rows and the "
            "prior best."
        ]
        if broken := self.bound.broken:
            said.append(f"No guarantee can be given: {broken[0]}.")
        else:
            said.append(
                "It is proved, with nothing assumed of the rows, that the mixture behind them lost "
                f"at most {self.bound.total:.4g} on these: {self.ratio:.3g} times that regret."
            )
        if self.folds:
            said.append(
                f"This is about the priors of {self.folds} folds, not about the one that was "
                "learned from all tasks; of that one nothing is proved."
            )
        return " ".join(said)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        names = "deployed", "negative_elbo", "comparator"
        means = {name: float(getattr(self, name).mean()) for name in names}
        found = {"kind": "fmrl certificate of an estimator", "loss": self.loss, "rows": self.rows}
        found |= {"tasks": self.tasks, "folds": self.folds, "regret": self.regret} | means
        found |= {"bound": self.bound.to_dict(), "ratio": self.ratio, "reading": self.reading}
        return found | {"directions": self.directions.tolist()}

    def __str__(self) -> str:
        return f"{self.reading}\n{self.bound.table()}"

    def __repr__(self) -> str:
        found = f"deployed={self.deployed.mean():.4g}, bound={self.bound.total:.4g}"
        return f"EstimatorCertificate(tasks={self.tasks}, {found})"


def certify_prior(prior: Prior, tasks: Tasks) -> EstimatorCertificate:
    """The certificate of one prior on tasks that it has not seen.

    Args:
        prior: Learned from other tasks.
        tasks: In the user's units.
    """
    return _certificate([(prior, tasks)], 0)


def certify_folds(tasks: Tasks, learn: Any, seed: int) -> EstimatorCertificate:
    """A certificate from all tasks: each is predicted by a prior of the other folds.

    Args:
        tasks: In the user's units.
        learn: A prior from some tasks.
        seed: Of the folds.
    """
    folds = min(FOLDS, len(tasks))
    if folds < 2:
        raise FMRLError("one task cannot be certified by priors of others", fix="fit more tasks")
    fold = np.random.default_rng(seed).permutation(len(tasks)) % folds
    parts = []
    for k in range(folds):
        held = np.flatnonzero(fold == k)
        held = held[np.linspace(0, len(held) - 1, min(len(held), MOST_TASKS // folds)).astype(int)]
        parts.append((learn(tasks.take(np.flatnonzero(fold != k))), tasks.take(held)))
    return _certificate(parts, folds)


def _certificate(parts: Sequence[tuple[Prior, Tasks]], folds: int) -> EstimatorCertificate:
    if any(tasks.weight is not None and np.any(tasks.weight != 1) for _, tasks in parts):
        what = "rows with weights have a mixed loss, not a log-loss, and no such certificate"
        raise FMRLError(what, fix="leave sample_weight out")
    found = [_of_tasks(prior, _first_rows(tasks)) for prior, tasks in parts]
    deployed, elbo, terms = (np.concatenate([f[i] for f in found]) for i in range(3))
    wide = max(f[3].shape[1] for f in found)
    costs = [np.pad(f[3], [(0, 0), (0, wide - f[3].shape[1])]) for f in found]
    directions = np.concatenate(costs).mean(axis=0)
    rows = sum(int(_first_rows(tasks).lengths.sum()) for _, tasks in parts)
    over = float((deployed - elbo).sum()) / rows
    names = "comparator", "distance", "directions", "prior"
    means = dict(zip(names, terms.mean(axis=0).tolist(), strict=True))
    beyond = decide(DEPLOYED, over <= ROOM, f"{over:+.2g} nats a row beyond −ELBO")
    place = "Bayes mixtures, docs/theory.md"
    bound = Bound("Bayes mixture", means, (UNSEEN, beyond), place)
    outputs = parts[0][0].loss.outputs
    loss = "log-loss" if outputs == 1 else f"log-losses of {outputs} classes against the rest"
    loss = "Gaussian log-loss" if isinstance(parts[0][0].loss, Squared) else loss
    return EstimatorCertificate(loss, rows, deployed, elbo, terms[:, 0], bound, directions, folds)


def _first_rows(tasks: Tasks, most: int = MOST_ROWS) -> Tasks:
    """Tasks with at most so many of their rows."""
    lengths = np.minimum(tasks.lengths, most)
    if (lengths == tasks.lengths).all():
        return tasks
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.arange(starts[-1]) + np.repeat(tasks.starts[:-1] - starts[:-1], lengths)
    more = {} if tasks.weight is None else {"weight": tasks.weight[rows]}
    return replace(tasks, X=tasks.X[rows], target=tasks.target[rows], starts=starts, **more)


def _of_tasks(prior: Prior, tasks: Tasks) -> tuple[np.ndarray, ...]:
    """Deployed loss and −ELBO [T], terms of the bound [T, 4], and costs of directions [T, r]."""
    here = prior.coordinates.tasks(replace(tasks, X=prior._with_common(tasks.X)))
    unit = math.log(prior.coordinates.unit) if isinstance(prior.loss, Squared) else 0.0
    deployed = np.add.reduceat(_deployed(prior, here), here.starts[:-1])
    # Fixed before the task, and of every number of rows something.
    share = np.mean([choice.weights for choice in prior.rule.choices], axis=0)
    weights, priors = [], []
    for member, own in zip(prior.members, share, strict=True):
        for centre, common in enumerate(member.shares):
            if own * common > 0:
                weights.append(own * common)
                priors.append(_joint(member, centre))
    elbo, terms, directions = [], [], []
    for t in range(len(here)):
        task = here.task(t)
        each = [TaskUnderPrior(task, one) for one in priors]
        m = int(here.lengths[t])
        evidence = np.array([-one.negative_elbo() for one in each]) + np.log(weights)
        elbo.append(m * unit - np.logaddexp.reduce(evidence))
        found, best = best_member(each, weights, 1.0)
        terms.append([found["comparator"] + m * unit, *list(found.values())[1:]])
        cost = np.zeros(here.X.shape[1] * prior.loss.outputs)
        cost[: len(best.directions)] = best.directions
        directions.append(cost)
    return deployed + here.lengths * unit, np.array(elbo), np.array(terms), np.array(directions)


def _joint(member: Any, centre: int) -> Gaussian:
    """The Gaussian over the parameters of all outputs around one centre."""
    outputs = member.mean.shape[1]
    covariance = np.kron(np.eye(outputs), member.covariance)
    return Gaussian(member.mean[centre].ravel(), covariance, member.noise, member.tasks)


def _deployed(prior: Prior, here: Tasks) -> np.ndarray:
    """Log-loss of every row [N], predicted from those of its task before it."""
    out, choices = np.empty(len(here.X)), prior.rule.choices
    for i in range(int(here.lengths.max())):
        some = np.flatnonzero(here.lengths > i)
        at = here.starts[some] + i
        if i == 0:
            middle = prior.middle()
            models = Posterior(*(np.repeat(a, len(some), axis=0) for a in middle))
        else:
            models = prior.solve(_first_rows(here.take(some), i), spread=True)
        z, v = margins(here.X[at, None], models)
        z, v, y = z[:, 0], v[:, 0], here.target[at]
        choice = choices[prior.rule.places(np.array([float(i)]))[0]]
        if isinstance(prior.loss, Squared):
            spread = v[:, 0] + prior._noise(choice)
            out[at] = ((z - y)[:, 0] ** 2 / spread + np.log(2 * np.pi * spread)) / 2
        else:
            z = moderated(z, v, choice.moderation)
            out[at] = (np.logaddexp(0, z) - y * z).sum(axis=1)
    return out
