"""The environment of an estimator: whether tasks stay around one place, drift, or lie around
several centres, decided on later tasks that were held out.

Tasks have an order, that in which they came. The last part of the pilot is cut into blocks. Every
block is predicted from the tasks before it: from all of them, from the latest half, quarter, … of
them, and from all of them around two or more centres. What wins by more than chance is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.rules.moving import Window
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.averaging import Answers, loss_and_slope, moderated
from fmrl.estimators.calibration import ask, spaced
from fmrl.estimators.population import Population, around, estimate, families

LEAST = 40  # tasks; with fewer they are taken to stay where they are
FEW = 16  # tasks of a window, at least
TASKS = 600  # tried at most, evenly spaced …
NUMBERS = 1 << 19  # … and no more than so many numbers, over all outputs
BLOCKS, LATER = 3, 0.4  # the last 40 % of the tasks, in three blocks
SURE, WORTH = 3.0, 0.01  # standard errors, and the share of the loss, that must be gained
SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16)  # of the tasks before a block, the latest
SORTED, ALL = 0.9, 0.98  # of pairs of tasks: then a table is in the order of a column, of y
MOST = 5  # centres
FAMILIES = ("none", "intercept", "alike", "full")  # of which the best is tried in every way
SIZES = (1, 4)  # rows shown


@dataclass(frozen=True)
class Environment:
    """Where tasks come from.

    Args:
        kind: "stationary", "recent" or "centres".
        window: The share of the tasks, the latest, that says most; 1 for all.
        centres: Around how many centres tasks lie.
        gain: By how much of the loss on later tasks this was better than one place for all.
        tasks: How many tasks there were.
        chosen: Whether it was found, not asked for.
    """

    kind: str = "stationary"
    window: float = 1.0
    centres: int = 1
    gain: float = 0.0
    tasks: int = 0
    chosen: bool = True

    def __str__(self) -> str:
        """In plain words.

        >>> print(Environment("recent", 0.1, 1, 0.2, 4000))
        tasks drift: the last 400 say more than all 4,000 (loss on later tasks 20 % lower)
        """
        if not self.chosen:
            return f"{self._what()} (as asked for)"
        if self.kind == "stationary":
            return f"{self._what()}: nothing else was better on later tasks"
        return f"{self._what()} (loss on later tasks {100 * self.gain:.2g} % lower)"

    def _what(self) -> str:
        if self.kind == "recent":
            last = max(1, round(self.window * self.tasks))
            return f"tasks drift: the last {last:,} say more than all {self.tasks:,}"
        if self.kind == "centres":
            return f"tasks lie around {self.centres} centres"
        return "tasks stay around one place"


STILL = Environment()


def environment_of(tasks: Tasks, intercept: bool, asked: Any, count: int, seed: int) -> Environment:
    """The environment of tasks in their order.

    Args:
        tasks: The pilot, in coordinates of deviation 1.
        intercept: Whether the last column is one.
        asked: "auto", "stationary", a `Window` of tasks, or a number of centres.
        count: How many tasks the pilot stands for.
        seed: Of the order in which rows are shown.
    """
    if isinstance(asked, Window):
        share = min(1.0, asked.size / max(count, 1))
        return Environment("recent", share, tasks=count, chosen=False)
    if isinstance(asked, Integral) and not isinstance(asked, bool) and 2 <= asked <= len(tasks):
        return Environment("centres", centres=int(asked), tasks=count, chosen=False)
    if not (isinstance(asked, str) and asked in ("auto", "stationary")):
        what = f"environment={asked!r} is not known"
        fix = (
            "'auto', 'stationary', fmrl.Window(400) for the last 400 tasks, or a number of centres"
        )
        raise FMRLError(what, fix=fix)
    still = Environment(tasks=count, chosen=asked == "auto")
    able = (tasks.lengths >= 2).sum()
    if asked == "stationary" or len(tasks) < LEAST or able < LEAST:
        return still
    most = max(LEAST, min(TASKS, int(NUMBERS * len(tasks) / (tasks.X.size * tasks.loss.outputs))))
    trial = _Trial(tasks.take(spaced(len(tasks), most)), intercept, seed)
    found, ordered = still, by_a_column(trial.tasks)
    for share in SHARES:
        if ordered or share * (1 - LATER) * len(trial.tasks) < FEW:
            break
        losses = trial.recent(share)
        if losses.mean() > trial.best.mean():
            break  # shorter ones are worse still
        if gain := trial.better(losses, than=trial.losses):
            found = Environment("recent", share, 1, gain, count)
    for centres in range(2, MOST + 1):
        gain = trial.better(trial.around(centres))
        if not gain:
            break
        found = Environment("centres", 1.0, centres, gain, count)
    return found


def by_a_column(tasks: Tasks) -> bool:
    """Whether tasks are in the order of some column, so that drift could as well be that column:
    in nine of ten pairs of an earlier and a later task, the later one has more of it, or less; or
    in the order of what is to be predicted, in all but 2 % of pairs.
    """
    mean = np.add.reduceat(tasks.X, tasks.starts[:-1], axis=0) / tasks.lengths[:, None]
    cut = int((1 - LATER) * len(tasks))
    early, late = mean[:cut, None], mean[None, cut:]
    more = ((late > early) + 0.5 * (late == early)).mean(axis=(0, 1))
    level = np.add.reduceat(tasks.target[:, 0], tasks.starts[:-1]) / tasks.lengths
    above = float((level[None, cut:] > level[:cut, None]).mean())
    by_target = isinstance(tasks.loss, Squared) and abs(above - 0.5) > ALL - 0.5
    return bool((np.abs(more - 0.5) > SORTED - 0.5).any()) or by_target


class _Trial:
    """Later tasks, each predicted from the tasks before its block."""

    def __init__(self, tasks: Tasks, intercept: bool, seed: int):
        self.tasks, self.intercept = tasks, intercept
        rng = np.random.default_rng(seed)
        starts = zip(tasks.starts[:-1], tasks.lengths, strict=True)
        self.order = [first + rng.permutation(size) for first, size in starts]
        cuts = np.linspace((1 - LATER) * len(tasks), len(tasks), BLOCKS + 1).astype(int)
        self.blocks = list(pairwise(cuts.tolist()))
        before = [tasks.take(np.arange(first)) for first, _ in self.blocks]
        names = [n for n in FAMILIES if n in families(tasks.X.shape[1], intercept)]
        chains = [self._chain(some, names) for some in before]
        tried = [self._play(list(column)) for column in zip(*chains, strict=True)]
        best = min(range(len(tried)), key=lambda i: tried[i].mean())
        self.losses = self.best = tried[best]
        self.before = before
        self.plain = [chain[best] for chain in chains]

    def _chain(self, before: Tasks, names: list[str]) -> list[Population]:
        """Families of all tasks before a block, each from where the plainer one ended."""
        found: list[Population] = []
        for name in names:
            start = found[-1] if found else None
            found.append(estimate(before, name, self.intercept, start))
        return found

    def recent(self, share: float) -> np.ndarray:
        """Loss of every later task when the latest of those before its block count."""
        found = []
        for before, plain in zip(self.before, self.plain, strict=True):
            few = before.take(
                np.arange(len(before) - max(FEW, round(share * len(before))), len(before))
            )
            found.append(estimate(few, plain.family, self.intercept, plain))
        return self._play(found)

    def around(self, centres: int) -> np.ndarray:
        """When they lie around several centres, as those before the first block say."""
        found = around(self.plain[0], self.before[0], self.intercept, centres)
        return self._play([found] * len(self.blocks))

    def better(self, losses: np.ndarray, than: np.ndarray | None = None) -> float:
        """Whether these beat others (default: the best so far) by more than chance; if so, the
        share of the loss that is gained in all.
        """
        gain = (self.best if than is None else than) - losses
        error, loss = gain.std() / math.sqrt(len(gain)), self.losses.mean()
        if not gain.mean() > max(SURE * error, WORTH * loss):
            return 0.0
        self.best = losses
        return float(1 - losses.mean() / loss)

    def _play(self, populations: list[Population]) -> np.ndarray:
        """Loss of every later task, predicted by the population of its block."""
        found = []
        for (first, last), population in zip(self.blocks, populations, strict=True):
            own = [t for t in range(first, last) if self.tasks.lengths[t] >= 2]
            total, seen = np.zeros(len(own)), np.zeros(len(own))
            for n in SIZES:
                able = [i for i, t in enumerate(own) if self.tasks.lengths[t] >= n + max(1, n // 3)]
                if able:
                    said = ask(self.tasks, [population], [self.order[own[i]] for i in able], n)
                    total[able] += _losses(said, isinstance(self.tasks.loss, Squared))
                    seen[able] += 1
            found.append(total / np.maximum(seen, 1))
        return np.concatenate(found)


def _losses(said: Answers, squared: bool) -> np.ndarray:
    """Loss of every task, [P]."""
    z = said.margins[0] if squared else moderated(said.margins[0], said.variance[0], 0.5)
    return (loss_and_slope(z, said.target, squared)[0] * said.weight).sum(axis=1)
