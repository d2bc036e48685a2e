"""Which environment tasks come from: whether they stay around one place, drift, or lie around
several centres, decided on later tasks that were held out.

A file's order is not time: drift is looked for only where the user says that tasks are in the order
in which they came (``environment="drift"``), centres with "auto". The last part of the pilot is cut
into blocks. Every block is predicted from the tasks before it: from all of them, and from the
latest half, quarter, … of them, or from all of them around two or more centres. What wins by more
than chance is used. Chance is that of tasks near in time, which are alike.

What was left behind can come back, as seasons do. Then the gain of the latest tasks fades from
block to block, before it turns into a loss. So it is not the mean gain that must be large but the
one that the next tasks can expect: that of the newest block, less what a fade goes on to take. And
beside the latest tasks some older ones stay, a fifth, evenly spaced: tasks then differ by as much
as they ever did, a new one is followed more readily, and a return costs little. They go where the
latest alone are surely better and tasks move steadily.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.prior.mixture import Mixture, log_evidence
from fmrl.core.prior.mixture_fit import families, fit_family, fit_mixture
from fmrl.core.rules.moving import Window
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.averaging import loss_and_slope, moderated
from fmrl.estimators.calibration import predict_held_out, spaced
from fmrl.estimators.environment import STILL, Environment

LEAST = 40  # tasks; with fewer they are taken to stay where they are
FEW = 12  # tasks of a window, at least: half of those before the later ones, of LEAST
TASKS = 600  # tried at most, evenly spaced …
NUMBERS = 1 << 19  # … and no more than so many numbers, over all outputs
BLOCKS, LATER = 3, 0.4  # the last 40 % of the tasks, in three blocks
SURE, WORTH = 3.0, 0.01  # standard errors, and the share of the loss, that must be gained …
LESS = 2.0  # … standard errors, where it is already known that tasks drift
MANY, RISK = 500, 0.03  # fewer tasks must gain that share, and older ones stay among the latest
SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16)  # of the tasks before a block, the latest
OLDER = 0.2  # of the tasks that count, from before the latest
LAST, MUCH = 32, 0.2  # tasks, predicted from as many before them, and the gain of a sudden switch
MOST = 5  # centres
FAMILIES = ("none", "intercept", "alike", "full")  # of which the best is tried in every way
SIZES = (0, 1, 4)  # rows shown …
TOLD = SIZES[1:]  # … by which a task says around which centre it lies
ROUGH = 0.05  # tolerance of populations that are only compared


def environment_of(tasks: Tasks, intercept: bool, asked: Any, count: int, seed: int) -> Environment:
    """Choose the environment of tasks.

    Args:
        tasks: The pilot, in coordinates of deviation 1.
        intercept: Whether the last column is one.
        asked: "auto" (one place or several centres), "stationary", "drift" (tasks are in the order
            in which they came), a `Window` of tasks, or a number of centres.
        count: How many tasks the pilot stands for.
        seed: Of the order in which rows are shown.
    """
    if isinstance(asked, Window):
        share = min(1.0, asked.size / max(count, 1))
        return Environment("recent", share, tasks=count, chosen=False)
    if isinstance(asked, Integral) and not isinstance(asked, bool) and 2 <= asked <= len(tasks):
        return Environment("centres", centres=int(asked), tasks=count, chosen=False)
    if not (isinstance(asked, str) and asked in ("auto", "stationary", "drift")):
        what = f"environment={asked!r} is not known"
        if isinstance(asked, Integral) and asked > len(tasks):
            what = f"{asked} centres are more than the {len(tasks)} tasks"
        fix = (
            "'auto', 'stationary', 'drift' of tasks in the order in which they came, "
            "fmrl.Window(400) for the last 400 tasks, or a number of centres"
        )
        raise FMRLError(what, fix=fix)
    still = Environment(tasks=count, chosen=asked != "stationary")
    if asked == "stationary":
        return still
    able = tasks.lengths >= 2
    blocks = np.array_split(able[int((1 - LATER) * len(able)) :], BLOCKS)
    if able.sum() < LEAST or min(LATER * TASKS * a.mean() for a in blocks) < LEAST:
        return replace(still, few=True)
    most = max(LEAST, min(TASKS, int(NUMBERS * len(tasks) / (tasks.X.size * tasks.loss.outputs))))
    trial, found = _Trial(tasks, most, intercept, seed), still
    if asked == "drift":
        found = trial.drift(still)
        return switched(tasks, trial.chosen[-1], intercept, found, seed)
    for centres in range(2, MOST + 1):
        gain = trial.around(centres)
        if not gain:
            break
        found = Environment("centres", 1.0, centres, gain, count)
    return found


def switched(
    tasks: Tasks, before: Mixture, intercept: bool, found: Environment, seed: int
) -> Environment:
    """Whether the last tasks are far better predicted from as few before them: a sudden switch, of
    which there are too few tasks yet for a block.

    Args:
        tasks: The pilot.
        before: The population as found from the tasks before the last block.
        intercept: Whether the last column is one.
        found: What holds if there was none.
        seed: Of the order in which rows are shown.
    """
    first = len(tasks) - LAST
    if first < 2 * LAST or (tasks.lengths[first:] < 2).all():
        return found
    few = tasks.take(np.arange(first - LAST, first))
    order = shuffled(tasks, seed)[first:]
    now = rough(few, before.family, intercept, before)
    old, new = losses_of(tasks, [before, now], order)
    if surely(old - new, old.mean()) > MUCH:
        # Tasks that drift have left that block behind: what they gain without a switch is theirs.
        known = tasks.take(found.places(first, first))
        (old,) = losses_of(tasks, [rough(known, before.family, intercept, before)], order)
    if (gain := surely(old - new, old.mean())) > MUCH:
        return Environment("recent", LAST / len(tasks), 1, gain, found.tasks)
    return found


def rough(tasks: Tasks, family: str, intercept: bool, start: Mixture | None = None) -> Mixture:
    """A population that is only compared. Its mean is not drawn to 0: where tasks drift that says
    where to, though it may be small beside what they differ by.
    """
    return fit_family(tasks, family, intercept, start, tolerance=ROUGH, free=tasks.X.shape[1])


class _Trial:
    """Later tasks, each predicted from the tasks before its block."""

    def __init__(self, tasks: Tasks, most: int, intercept: bool, seed: int):
        self.tasks, self.intercept = tasks, intercept
        self.few = (tried := min(len(tasks), most)) < MANY
        self.most = round((1 - LATER) * tried)  # tasks that a population is estimated from
        cuts = np.linspace((1 - LATER) * len(tasks), len(tasks), BLOCKS + 1).astype(int).tolist()
        self.firsts, size = cuts[:-1], -(-(tried - self.most) // BLOCKS)
        self.blocks = [first + spaced(last - first, size) for first, last in pairwise(cuts)]
        order = shuffled(tasks, seed)
        self.order = [[order[i] for i in block] for block in self.blocks]
        known, chain = self._known(STILL, 0), list[Mixture]()
        for name in FAMILIES:  # each from where the plainer one before it ended
            if name in families(tasks.X.shape[1], intercept):
                start = chain[-1] if chain else None
                chain.append(rough(known, name, intercept, start))
        later = self._later(chain)
        best = later.mean(axis=1).argmin()
        # Of one centre from as many tasks as several are found from: those before the first block.
        self.plain = chain[best]
        (self.alone,), self.near = self._later([self.plain], TOLD), None
        self.made = [self.plain] * BLOCKS  # what was last estimated of the tasks before each block
        self.still = [self._play(0), *(self._try(STILL, b) for b in range(1, BLOCKS))]
        self.best = self.losses = np.concatenate(self.still)  # of every task that is tried
        self.chosen, self.evidence = [*self.made], self._evidence(self.plain)

    def drift(self, found: Environment) -> Environment:
        """Of the latest half, quarter, … of the tasks the one that is surely better and will be so
        for the next ones; what was found before, if there is none.
        """
        # Of few tasks nobody knows whether what was before comes back, as seasons do.
        few, loss = self.few, float(self.losses.mean())
        least = max(RISK * few, WORTH) * loss
        for share in SHARES:
            if share * (1 - LATER) * len(self.tasks) < FEW:
                break
            tried = Environment("recent", share, tasks=found.tasks, older=OLDER * few)
            losses = self.recent(tried, least)
            if losses is None:
                continue
            if losses.mean() > self.best.mean():
                break  # shorter ones are worse still
            gain = self.losses - losses
            if surely(gain, loss) and self.ahead(gain) > least:
                found = replace(tried, gain=float(gain.mean() / loss))
                self.best, self.chosen = losses, [*self.made]
        if found.window < 1:
            tried = replace(found, older=OLDER - found.older)
            newest = self.best[-len(self.still[-1]) :]
            losses = self.recent(tried, float((self.still[-1] - newest).mean()))
            if losses is None:
                return found
            gain, more = self.losses - losses, self.best - losses
            steady = surely(more, loss, LESS) and self.ahead(gain) > gain.mean() / 2
            if self.ahead(more) > 0 and (steady or not few):
                found = replace(tried, gain=float(gain.mean() / loss))
                self.best, self.chosen = losses, [*self.made]
        return found

    def recent(self, tried: Environment, least: float) -> np.ndarray | None:
        """Loss of every later task when the latest of those before its block count; None where the
        newest block gains no more than ``least``.
        """
        newest = self._try(tried, BLOCKS - 1)
        if not (self.still[-1] - newest).mean() > least:
            return None
        return np.concatenate([*(self._try(tried, b) for b in range(BLOCKS - 1)), newest])

    def ahead(self, gain: np.ndarray) -> float:
        """What the next tasks can expect to gain, of what every later task did: as the newest block
        did or, where that is less than the first did, half of the difference less still.
        """
        first, newest = gain[: len(self.still[0])].mean(), gain[-len(self.still[-1]) :].mean()
        return float(newest + min(0.0, newest - first) / 2)

    def around(self, centres: int) -> float:
        """What is gained if tasks lie around several centres, as those before the first block say:
        later tasks must surely be likelier so, and better predicted by more than is negligible.
        """
        found = fit_mixture(self.plain, self._known(STILL, 0), self.intercept, centres)
        evidence = self._evidence(found)
        if not surely(evidence - self.evidence, 0.0):
            return 0.0
        if self.near is None:  # what was best so far, where tasks have shown rows
            played = zip(self.chosen, self.order, strict=True)
            self.near = np.concatenate([losses_of(self.tasks, [p], o, TOLD)[0] for p, o in played])
        (losses,), loss = self._later([found], TOLD), self.alone.mean()
        if not min((self.near - losses).mean(), (self.alone - losses).mean()) > WORTH * loss:
            return 0.0
        self.near, self.evidence = losses, evidence
        return float(1 - losses.mean() / loss)

    def _evidence(self, found: Mixture) -> np.ndarray:
        """Log-likelihood of the rows of every later task without its parameters."""
        later = self.tasks.take(np.concatenate(self.blocks))
        likely = log_evidence(found, later)
        shares = np.log(np.maximum(found.shares, 1e-300))
        return np.logaddexp.reduce(likely + shares[:, None], axis=0)

    def _later(self, found: list[Mixture], sizes: tuple[int, ...] = SIZES) -> np.ndarray:
        """Loss of every later task as each of some populations predicts it, [populations, P]."""
        order = [rows for block in self.order for rows in block]
        return losses_of(self.tasks, found, order, sizes)

    def _known(self, tried: Environment, block: int) -> Tasks:
        """The tasks before a block that count, or a share of them."""
        places = tried.places(first := self.firsts[block], first)
        return self.tasks.take(places[spaced(len(places), self.most)])

    def _try(self, tried: Environment, block: int) -> np.ndarray:
        """Loss of every task of a block, predicted from the tasks before it that count."""
        known, start = self._known(tried, block), self.made[block]
        self.made[block] = rough(known, self.plain.family, self.intercept, start)
        return self._play(block)

    def _play(self, block: int) -> np.ndarray:
        """Loss of every task of a block, predicted by what was last estimated for it."""
        return losses_of(self.tasks, [self.made[block]], self.order[block])[0]


def surely(gain: np.ndarray, loss: float, sure: float = SURE) -> float:
    """The mean gain over that loss (or by itself where it is 0), if it is more than chance and more
    than is negligible; else 0.

    Args:
        gain: Of every task, in the order of time.
        loss: Of which it is a share.
        sure: How many standard errors from 0 chance ends, for gains or, because a few tasks may
            gain or lose far more than all others, for their roots.
    """
    mean = float(gain.mean())
    chance = all(_errors(some) <= sure for some in (gain, np.copysign(np.sqrt(abs(gain)), gain)))
    return 0.0 if chance or mean <= WORTH * loss else mean / (loss or 1.0)


def _errors(gain: np.ndarray) -> float:
    """How many standard errors the mean is from 0, where tasks near in time are alike."""
    off, near = gain - gain.mean(), math.isqrt(len(gain))
    alike = sum((1 - lag / near) * (off[lag:] @ off[:-lag]) for lag in range(1, near))
    error = math.sqrt(off @ off + 2 * max(alike, 0.0)) / len(gain)
    return float(gain.mean() / max(error, 1e-300))


def shuffled(tasks: Tasks, seed: int) -> list[np.ndarray]:
    """The rows of each task in the order in which they are shown."""
    rng = np.random.default_rng(seed)
    starts = zip(tasks.starts[:-1], tasks.lengths, strict=True)
    return [first + rng.permutation(size) for first, size in starts]


def losses_of(
    tasks: Tasks, found: list[Mixture], order: list[np.ndarray], sizes: tuple[int, ...] = SIZES
) -> np.ndarray:
    """Loss of some tasks of two rows and more, as each population predicts them from the first rows
    of each, [populations, P].
    """
    own = [rows for rows in order if len(rows) >= 2]
    total, seen = np.zeros((len(found), len(own))), np.zeros(len(own))
    squared = isinstance(tasks.loss, Squared)
    for n in sizes:
        able = [i for i, rows in enumerate(own) if len(rows) >= n + max(1, n // 3)]
        if able:
            said = predict_held_out(tasks, found, [own[i] for i in able], n)
            z = said.margins if squared else moderated(said.margins, said.variance, 1.0)
            total[:, able] += (loss_and_slope(z, said.target, squared)[0] * said.weight).sum(axis=2)
            seen[able] += 1
    return total / np.maximum(seen, 1)
