"""Learning a prior: coordinates, what all tasks share, where tasks come from, and how they differ.

coordinates        columns of deviation 1
a pilot of tasks   chooses: trees or not, environment, weights of the members
all tasks          teach: of those that the environment keeps each member is estimated
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.prior.mixture import Mixture
from fmrl.core.prior.mixture_fit import FamilySums, fit_again
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.calibration import COMMON, calibrate, members, own_columns
from fmrl.estimators.coordinates import coordinates_of
from fmrl.estimators.environment_choice import environment_of
from fmrl.estimators.prior import Prior
from fmrl.estimators.rows import joined
from fmrl.estimators.sampling import evenly_spaced
from fmrl.estimators.shared_trees import Answer, add_shared_column
from fmrl.tables.encoder import Encoder

PILOT_TASKS = 1000  # tasks that choose, at most …
PILOT_ROWS = 20_000  # … or up to four times as many tasks, to have this many rows
PILOT_NUMBERS = 1 << 20  # … but, beyond 256 tasks, no more numbers than this over all outputs
COORDINATE_TASKS = 1024  # tasks whose rows set centre and scale of the columns, at most
STEPS = {True: 8, False: 3}  # from the pilot's estimate to that of all tasks, of numbers, classes
NUMBERS_OF_CLASSES = 1 << 25  # over all outputs and steps, if more than one: each solves all tasks
MIN_COLUMNS_WITHOUT_MEAN = 16  # columns from which a mean of 0 is tried, where tasks are no more


class Settings(NamedTuple):
    """What decides how a prior is learned: parameters of an estimator, labels and encoder."""

    classes: np.ndarray | None  # the labels; None for a regression
    encoder: Encoder | None
    fit_intercept: bool
    common: Any
    environment: Any
    scoring: str | None
    random_state: Any
    report: Callable[[str], None]  # told which stage begins


def learn_prior(
    tasks: Tasks, settings: Settings, count: int | None = None, latest: Tasks | None = None
) -> Prior:
    """The prior that some tasks give. A pilot of them chooses, and all of them teach.

    Args:
        tasks: In the user's units, in the order in which they came.
        settings: What to learn.
        count: How many tasks they stand for, evenly spread (default: as many as they are).
        latest: The last of all tasks, where ``tasks`` are only some: they count where tasks drift.
    """
    classes, seed = settings.classes, seed_of(settings.random_state)
    few = tasks.take(evenly_spaced(len(tasks), COORDINATE_TASKS))
    plain = here = coordinates_of(few, settings.fit_intercept)
    intercept, count = plain.constant > 0, count or len(tasks)
    pilot = tasks.take(evenly_spaced(len(tasks), pilot_size(tasks)))
    settings.report("what all tasks share")
    pilot, here, common = add_shared_column(pilot, plain, settings.common, classes, seed)
    settings.report("where tasks come from")
    found = environment_of(here.tasks(pilot), intercept, settings.environment, count, seed)
    if drift := found.kind == "recent":
        every = tasks if latest is None else _with_latest(tasks, latest)
        here_too = replace(found, window=min(1.0, found.window * count / len(every)))
        newest = every.take(here_too.places(len(every), pilot_size(every)))
        tasks = every.take(here_too.places(len(every), len(every)))
        if found.older:
            pilot = _with_answers(newest, pilot, common)
        else:  # what all tasks share has moved as well
            few = every.take(evenly_spaced(len(every), COORDINATE_TASKS))
            plain = coordinates_of(few, settings.fit_intercept)
            pilot, here, common = add_shared_column(newest, plain, settings.common, classes, seed)
    extra = pilot.X.shape[1] - plain.centre.size
    settings.report("how tasks differ")
    # Too few tasks for a mean in every one of many directions.
    zero_mean = max(len(pilot), MIN_COLUMNS_WITHOUT_MEAN) <= pilot.X.shape[1]
    learn = members(intercept, extra, found.centres, zero_mean)
    group, rule = calibrate(here.tasks(pilot), learn, seed, settings.scoring, drift)
    if common is not None and not any(group[i].family.startswith(COMMON) for i in rule.used):
        own = own_columns(here.width, intercept, extra)
        kept = [i for i, m in enumerate(group) if not m.family.startswith(COMMON)]
        group, rule = [group[i].select(own) for i in kept], rule.take(kept)
        here, common, extra = plain, None, 0
    if len(tasks) > len(pilot):
        settings.report("how all tasks differ")
        group, rule = [group[i] for i in rule.used], rule.take(rule.used)
        tasks = here.tasks(_with_answers(tasks, pilot, common))
        group = _from_all(group, tasks, intercept, extra)
    return Prior(here, tuple(group), rule, classes, settings.encoder, common, found, len(pilot))


def _from_all(group: list[Mixture], tasks: Tasks, intercept: bool, extra: int) -> list[Mixture]:
    """Members estimated from all tasks, each from where the pilot left it: so few steps do.

    Args:
        group: As the pilot gave them.
        tasks: All, in coordinates of deviation 1.
        intercept: Whether the last column is one.
        extra: How many columns before it are the answer of a common part.
    """
    width, found = tasks.X.shape[1], dict[int, Mixture]()
    steps = STEPS[squared := isinstance(tasks.loss, Squared)]
    if not squared:
        most = NUMBERS_OF_CLASSES // (tasks.X.size * tasks.loss.outputs)
        steps = max(1, min(steps, most))
    own_only = own_columns(width, intercept, extra)
    for prefix, columns in (("", own_only), (COMMON, np.arange(width))):
        mine = [i for i, m in enumerate(group) if m.family.startswith(COMMON) == bool(prefix)]
        if not mine:
            continue
        few = tasks if len(columns) == width else replace(tasks, X=tasks.X[:, columns])
        sums = FamilySums(few)
        for i in mine:
            own = replace(group[i].select(columns), family=group[i].family.removeprefix(prefix))
            again = fit_again(own, few, intercept, sums, extra if prefix else 0, steps)
            found[i] = replace(again, family=group[i].family).embed(columns, width)
    return [found[i] for i in range(len(group))]


def _with_latest(tasks: Tasks, latest: Tasks) -> Tasks:
    """Some tasks, and all of the last ones."""
    last = set(latest.names)
    older = [i for i, name in enumerate(tasks.names) if name not in last]
    return joined([*([tasks.take(np.array(older))] if older else []), latest])


def _with_answers(tasks: Tasks, pilot: Tasks, common: Answer | None) -> Tasks:
    """Tasks with the columns of a common part, each answered without its own task: the pilot's rows
    were answered fold by fold, and of the other tasks the common part has seen none.
    """
    if common is None:
        return tasks
    at = {name: i for i, name in enumerate(pilot.names)}
    place = np.array([at.get(name, -1) for name in tasks.names])
    known, width = np.repeat(place >= 0, tasks.lengths), tasks.X.shape[1]
    X = np.empty((len(tasks.X), pilot.X.shape[1]))
    X[:, :width] = tasks.X
    X[known] = pilot.take(place[place >= 0]).X
    if not known.all():
        X[~known, width:] = common(tasks.X[~known])
    return replace(tasks, X=X)


def pilot_size(*parts: Tasks) -> int:
    """How many tasks of this kind choose for all."""
    rows = max(sum(len(p.X) for p in parts) / max(sum(map(len, parts)), 1), 1.0)
    size = rows * parts[0].X.shape[1] * parts[0].loss.outputs
    most = max(PILOT_TASKS, min(PILOT_ROWS / rows, 4 * PILOT_TASKS))
    return int(max(min(most, PILOT_NUMBERS / size), 256))


def seed_of(random_state: Any) -> int:
    """A whole number from what scikit-learn takes; None is 0, so that a fit can be repeated."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if not (random_state is None or isinstance(random_state, Integral)) or (random_state or 0) < 0:
        raise FMRLError(f"random_state must be a whole number, not {random_state!r}")
    return int(random_state or 0)
