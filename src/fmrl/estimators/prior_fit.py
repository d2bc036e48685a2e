"""Learning a prior: coordinates, what all tasks share, where tasks come from, and how they differ.

coordinates        columns of deviation 1
a pilot of tasks   chooses: trees or not, environment, weights of the members
the prior          a mixture of Gaussians, estimated from the tasks that the environment keeps
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.calibration import calibrate, members, spaced, without_common
from fmrl.estimators.common import Answer, with_common
from fmrl.estimators.coordinates import coordinates_of
from fmrl.estimators.environment_choice import environment_of
from fmrl.estimators.prior import Prior
from fmrl.estimators.rows import joined
from fmrl.tables.encoder import Encoder

PILOT_TASKS = 1000  # tasks that choose, at most …
PILOT_ROWS = 20_000  # … or up to four times as many tasks, to have this many rows
PILOT_NUMBERS = 1 << 20  # … but, beyond 256 tasks, no more numbers than this over all outputs
COORDINATE_TASKS = 1024  # tasks whose rows set centre and scale of the columns, at most
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
    """The prior that some tasks give.

    Args:
        tasks: In the user's units, in the order in which they came.
        settings: What to learn.
        count: How many tasks they stand for, evenly spread (default: as many as they are).
        latest: The last of all tasks, where ``tasks`` are only some: they count where tasks drift.
    """
    classes, seed = settings.classes, seed_of(settings.random_state)
    few = tasks.take(spaced(len(tasks), COORDINATE_TASKS))
    plain = coordinates_of(few, settings.fit_intercept)
    intercept, count = plain.constant > 0, count or len(tasks)
    pilot = tasks.take(spaced(len(tasks), pilot_size(tasks)))
    settings.report("what all tasks share")
    pilot, here, common = with_common(pilot, plain, settings.common, classes, seed)
    extra = pilot.X.shape[1] - plain.centre.size
    settings.report("where tasks come from")
    asked = settings.environment
    found = environment_of(here.tasks(pilot), intercept, asked, count, seed)
    if found.kind == "recent":
        every = tasks if latest is None else _with_latest(tasks, latest)
        share = min(1.0, found.window * count / len(every))
        places = replace(found, window=share).places(len(every), pilot_size(every))
        pilot, here, common = _recent(
            every, places, pilot, here, common, found.older, settings, seed
        )
        extra = pilot.X.shape[1] - plain.centre.size
    settings.report("how tasks differ")
    # Too few tasks for a mean in every one of many directions.
    zero_mean = max(len(pilot), MIN_COLUMNS_WITHOUT_MEAN) <= pilot.X.shape[1]
    learn, drift = members(intercept, extra, found.centres, zero_mean), found.kind == "recent"
    group, rule = calibrate(here.tasks(pilot), learn, seed, settings.scoring, drift)
    if common is not None and (rest := without_common(group, rule, intercept, extra)):
        (group, rule), here, common = rest, plain, None
    return Prior(here, tuple(group), rule, classes, settings.encoder, common, found)


def _with_latest(tasks: Tasks, latest: Tasks) -> Tasks:
    """Some tasks, and all of the last ones."""
    last = set(latest.names)
    older = [i for i, name in enumerate(tasks.names) if name not in last]
    return joined([*([tasks.take(np.array(older))] if older else []), latest])


def _recent(
    tasks: Tasks, places: np.ndarray, pilot: Tasks, here: Any, common: Answer | None,
    older: float, settings: Settings, seed: int,
) -> tuple[Tasks, Any, Answer | None]:  # fmt: skip
    """The tasks that count where tasks drift, with the columns of a common part."""
    if not older:  # what all tasks share has moved as well
        plain = coordinates_of(
            tasks.take(spaced(len(tasks), COORDINATE_TASKS)), settings.fit_intercept
        )
        return with_common(tasks.take(places), plain, settings.common, settings.classes, seed)
    if len(tasks) == len(pilot):
        return pilot.take(places), here, common
    few = tasks.take(places)
    if common is None:
        return few, here, common
    # A common part answered the pilot's rows without their own tasks.
    X, at = np.hstack([few.X, common(few.X)]), {name: i for i, name in enumerate(pilot.names)}
    known = np.array([name in at for name in few.names])
    some = np.array([at[name] for name in few.names if name in at], dtype=int)
    if len(some):
        X[np.repeat(known, few.lengths)] = pilot.take(some).X
    return replace(few, X=X), here, common


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
