"""Which environment tasks come from: whether they stay around one place, drift, or lie around
several centres, decided on tasks that were held out.

A file's order is not time. With "auto" a fold of tasks is predicted from the others, around one
centre, two, three, …: more are taken as long as the held-out tasks are surely likelier so. Drift is
looked for only where the user says that tasks are in the order in which they came
(``environment="drift"``). Then the last part of the pilot is cut into blocks. Every block is
predicted from the tasks before it: from all of them, and from the latest half, quarter, … of them.
What wins by more than chance is used. Chance is that of tasks near in time, which are alike.

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
from fmrl.estimators.calibration import SLOPE_FAMILIES, predict_held_out
from fmrl.estimators.environment import ONE_PLACE, Environment
from fmrl.estimators.sampling import evenly_spaced, fold_count, fold_of_tasks

MIN_TASKS = 40  # of two rows; with fewer they are taken to stay where they are
MIN_WINDOW = 12  # tasks
MAX_TASKS = 600  # tried, evenly spaced …
MAX_NUMBERS = 1 << 19  # … and no more than so many numbers, over all outputs
BLOCKS, LATER = 3, 0.4  # the last 40 % of the tasks, in three blocks
SURE, WORTH = 3.0, 0.01  # standard errors, and the share of the loss, that must be gained …
SURE_OF_OLDER = 2.0  # … standard errors, where it is already known that tasks drift
FEW_TASKS, RISK = 500, 0.03  # fewer must gain that share, and older ones stay among the latest
SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16)  # of the tasks before a block, the latest
OLDER = 0.2  # of the tasks that count, from before the latest
LAST, SWITCH = 32, 0.2  # tasks, predicted from as many before them, and the gain of a sudden switch
MAX_CENTRES = 5
FAMILIES = ("none", "intercept", "alike", "full")  # of which the best is tried in every way
SIZES = (0, 1, 4)  # rows shown …
SIZES_OF_CENTRES = (1, 4)  # … by which a task says around which centre it lies
TOLERANCE = 0.05  # of populations that are only compared


def environment_of(tasks: Tasks, intercept: bool, asked: Any, count: int, seed: int) -> Environment:
    """Choose the environment of tasks.

    Args:
        tasks: The pilot, in coordinates of deviation 1.
        intercept: Whether the last column is one.
        asked: "auto" (one place or several centres), "stationary", "drift" (tasks are in the order
            in which they came), a `Window` of tasks, or a number of centres.
        count: How many tasks the pilot stands for.
        seed: Of folds, and of the order in which rows are shown.
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
    one = Environment(tasks=count, chosen=asked != "stationary")
    if asked == "stationary":
        return one
    able = tasks.lengths >= 2
    if able.sum() < MIN_TASKS:
        return replace(one, few=True)
    numbers = tasks.X.size * tasks.loss.outputs / len(tasks)
    most = max(MIN_TASKS, min(MAX_TASKS, int(MAX_NUMBERS / numbers)))
    if asked == "auto":
        return several_centres(tasks.take(np.flatnonzero(able)), most, intercept, one, seed)
    blocks = np.array_split(able[int((1 - LATER) * len(able)) :], BLOCKS)
    if min(LATER * MAX_TASKS * a.mean() for a in blocks) < MIN_TASKS:
        return replace(one, few=True)
    return drift(tasks, most, intercept, one, seed)


def several_centres(
    tasks: Tasks, most: int, intercept: bool, found: Environment, seed: int
) -> Environment:
    """Around how many centres tasks lie: held-out tasks must surely be likelier so, and better
    predicted by more than is negligible, than around fewer.

    Args:
        tasks: Of two rows and more.
        most: How many are tried.
        intercept: Whether the last column is one.
        found: What holds if there is one centre.
        seed: Of the folds, and of the order in which rows are shown.
    """
    fold = fold_of_tasks(len(tasks), fold_count(len(tasks)), seed)
    parts = (np.flatnonzero(fold != 0), np.flatnonzero(fold == 0))
    known, held = (tasks.take(p[evenly_spaced(len(p), most * len(p) // len(fold))]) for p in parts)
    chain: list[Mixture] = []
    for name in families(tasks.X.shape[1], intercept):
        if name in SLOPE_FAMILIES:
            chain.append(rough(known, name, intercept, chain[-1] if chain else None))
    if not chain:
        return found
    order = shuffled(held, seed)
    losses = losses_of(held, chain, order, SIZES_OF_CENTRES)
    best = losses.mean(axis=1).argmin()
    one, least = chain[best], losses[best].mean()
    likely, loss = log_likelihood(one, held), least
    for centres in range(2, MAX_CENTRES + 1):
        several = fit_mixture(one, known, intercept, centres)
        likelier = log_likelihood(several, held)
        if not surely(likelier - likely, 0.0):
            break
        after = losses_of(held, [several], order, SIZES_OF_CENTRES).mean()
        if least - after <= WORTH * loss:
            break
        likely, least = likelier, after
        gain = float(1 - after / loss)
        found = Environment("centres", centres=centres, gain=gain, tasks=found.tasks)
    return found


def log_likelihood(found: Mixture, tasks: Tasks) -> np.ndarray:
    """Log-likelihood of the rows of every task without its parameters, [T]."""
    shares = np.log(np.maximum(found.shares, 1e-300))
    return np.logaddexp.reduce(log_evidence(found, tasks) + shares[:, None], axis=0)


class _Backtest:
    """Later tasks in blocks, each predicted from those of the tasks before its block that count."""

    def __init__(self, tasks: Tasks, most: int, intercept: bool, seed: int):
        self.tasks, self.intercept = tasks, intercept
        self.few = (tried := min(len(tasks), most)) < FEW_TASKS
        self.most = round((1 - LATER) * tried)  # tasks that a population is estimated from
        cuts = np.linspace((1 - LATER) * len(tasks), len(tasks), BLOCKS + 1).astype(int).tolist()
        self.firsts, size = cuts[:-1], -(-(tried - self.most) // BLOCKS)
        order, pairs = shuffled(tasks, seed), pairwise(cuts)
        blocks = [first + evenly_spaced(last - first, size) for first, last in pairs]
        self.order = [[order[i] for i in block] for block in blocks]
        known, chain = self.known(ONE_PLACE, 0), list[Mixture]()
        for name in FAMILIES:  # each from where the plainer one before it ended
            if name in families(tasks.X.shape[1], intercept):
                chain.append(rough(known, name, intercept, chain[-1] if chain else None))
        later = losses_of(tasks, chain, [rows for block in self.order for rows in block])
        self.made = [chain[later.mean(axis=1).argmin()]] * BLOCKS  # what each block is predicted by

    def known(self, tried: Environment, block: int) -> Tasks:
        """The tasks before a block that count, or a share of them."""
        places = tried.places(first := self.firsts[block], first)
        return self.tasks.take(places[evenly_spaced(len(places), self.most)])

    def play(self, tried: Environment, block: int) -> np.ndarray:
        """Loss of every task of a block, predicted from the tasks before it that count."""
        start = self.made[block]
        self.made[block] = rough(self.known(tried, block), start.family, self.intercept, start)
        return losses_of(self.tasks, [self.made[block]], self.order[block])[0]


def drift(tasks: Tasks, most: int, intercept: bool, found: Environment, seed: int) -> Environment:
    """Of the latest half, quarter, … of the tasks the one that is surely better and will be so for
    the next ones; what was found before, if there is none.

    Args:
        tasks: The pilot, in the order in which tasks came.
        most: How many of them are tried.
        intercept: Whether the last column is one.
        found: What holds if they do not drift.
        seed: Of the order in which rows are shown.
    """
    trial = _Backtest(tasks, most, intercept, seed)
    still = [trial.play(found, b) for b in range(BLOCKS)]
    all_tasks, size, few = np.concatenate(still), len(still[-1]), trial.few
    best, loss, chosen = all_tasks, float(all_tasks.mean()), trial.made[-1]

    def recent(tried: Environment, least: float) -> np.ndarray | None:
        """Loss of every later task when the latest of those before its block count; None where the
        newest block gains no more than ``least``.
        """
        newest = trial.play(tried, BLOCKS - 1)
        if not (still[-1] - newest).mean() > least:
            return None
        return np.concatenate([*(trial.play(tried, b) for b in range(BLOCKS - 1)), newest])

    def ahead(gain: np.ndarray) -> float:
        """What the next tasks can expect to gain, of what every later task did: as the newest block
        did or, where that is less than the first did, half of the difference less still.
        """
        first, newest = gain[: len(still[0])].mean(), gain[-size:].mean()
        return float(newest + min(0.0, newest - first) / 2)

    # Of few tasks nobody knows whether what was before comes back, as seasons do.
    least = max(RISK * few, WORTH) * loss
    for share in SHARES:
        if share * (1 - LATER) * len(tasks) < MIN_WINDOW:
            break
        tried = Environment("recent", share, tasks=found.tasks, older=OLDER * few)
        losses = recent(tried, least)
        if losses is None:
            continue
        if losses.mean() > best.mean():
            break  # shorter ones are worse still
        gain = all_tasks - losses
        if surely(gain, loss) and ahead(gain) > least:
            found = replace(tried, gain=float(gain.mean() / loss))
            best, chosen = losses, trial.made[-1]
    if found.window < 1:
        tried = replace(found, older=OLDER - found.older)
        losses = recent(tried, float((still[-1] - best[-size:]).mean()))
        if losses is not None:
            gain, more = all_tasks - losses, best - losses
            steady = surely(more, loss, SURE_OF_OLDER) and ahead(gain) > gain.mean() / 2
            if ahead(more) > 0 and (steady or not few):
                found = replace(tried, gain=float(gain.mean() / loss))
                chosen = trial.made[-1]
    return switched(tasks, chosen, intercept, found, seed)


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
    if surely(old - new, old.mean()) > SWITCH:
        # Tasks that drift have left that block behind: what they gain without a switch is theirs.
        known = tasks.take(found.places(first, first))
        (old,) = losses_of(tasks, [rough(known, before.family, intercept, before)], order)
    if (gain := surely(old - new, old.mean())) > SWITCH:
        return Environment("recent", LAST / len(tasks), 1, gain, found.tasks)
    return found


def rough(tasks: Tasks, family: str, intercept: bool, start: Mixture | None = None) -> Mixture:
    """A population that is only compared. Its mean is not drawn to 0: where tasks drift that says
    where to, though it may be small beside what they differ by.
    """
    return fit_family(tasks, family, intercept, start, tolerance=TOLERANCE, free=tasks.X.shape[1])


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
