"""What a training run was asked to do: one plain value, stored with the run and printed back as the
command that repeats it. ``fmrl train`` has one option for each field.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from fmrl.core.rules.meta import MetaUpdate
from fmrl.core.rules.similarity import AverageDeviation, SimilarityRule
from fmrl.core.rules.update import UpdateRule
from fmrl.core.rules.within import Learner
from fmrl.core.values import known, parse, suggestion
from fmrl.errors import FMRLError
from fmrl.tables.encoder import Policy

INGREDIENTS: dict[str, type] = {
    "within": Learner,
    "update": UpdateRule,
    "meta": MetaUpdate,
    "similarity": SimilarityRule,
}


def _asked(about: str, default: Any = MISSING, *, allowed: tuple[str, ...] = ()) -> Any:
    """A field with its help text and the values it may have, if they are few."""
    return field(default=default, metadata={"help": about, "allowed": allowed})


@dataclass(frozen=True)
class Options:
    """A table, what its columns mean, and how to learn. The defaults suit a raw table that nobody
    has cleaned.

    Columns are scaled to mean 0 and deviation 1; text becomes one column a level; a missing value
    becomes the mean and a flag; rows of a task may lie anywhere; a task that has one class only is
    played like any other. All of it is learned from training tasks.

    >>> Options("visits.csv", "shop", "sold", holdout=0.2).command("run")
    'fmrl train visits.csv --task shop --target sold --holdout 0.2 --out run'
    """

    table: str = _asked(
        "CSV, TSV, Parquet or Arrow file, or a quoted glob of several; for Ray a folder, too."
    )
    task: str = _asked("Column that names the task of a row: a user, a shop, a sensor.")
    target: str = _asked("Column to predict: class names, or numbers.")
    features: tuple[str, ...] = _asked(
        "Column to learn from; several allowed (default: all others).", ()
    )
    ignore: tuple[str, ...] = _asked("Column to leave out; several allowed.", ())
    order: tuple[str, ...] = _asked(
        "Column that sorts the rows of a task, e.g. a date; several allowed.", ()
    )
    kind: str = _asked(
        "classification, regression, or auto: text, truth values and up to 50 whole numbers are "
        "classes (give regression for counts), real numbers a quantity.",
        "auto",
        allowed=("auto", "classification", "regression"),
    )
    categorical: str = _asked("Text columns: onehot or error.", "onehot")
    missing: str = _asked(
        "Missing values: impute (mean, and a flag where training rows had gaps), indicator (the "
        "flag is needed), mean, drop or error.",
        "impute",
    )
    unknown: str = _asked("A level no training task had: zero or error.", "zero")
    scale: str = _asked("Numbers: standard (mean 0, deviation 1), range or none.", "standard")
    levels: int = _asked("Levels of a text column; of more the most frequent count.", 256)
    apart: str = _asked(
        "Rows of a task that lie apart: gather or error (faster, for sorted files).",
        "gather",
        allowed=("gather", "error"),
    )
    one_class: str = _asked(
        "A task with one class only: keep, drop or error.",
        "keep",
        allowed=("keep", "drop", "error"),
    )
    rows: int = _asked("Rows held in memory at a time when gathering.", 1_000_000)
    holdout: float = _asked(
        "Share of whole tasks held out to see whether it helps on new ones.", 0.1
    )
    seed: int = _asked(
        "Seed of every random choice; which tasks are held out does not depend on it.", 0
    )
    within: str | None = _asked("Learner inside a task: OMD(), OGD(), FTRL().", None)
    update: str | None = _asked("What a task contributes: FAL(), FLIOnline(), FLIBatch().", None)
    meta: str | None = _asked("How phi moves: FollowLeader(), AdaptiveOGD(), LastUpdate(), …", None)
    similarity: str | None = _asked(
        'How far tasks lie from phi: guessed, AverageDeviation(), "Doubling(0.1, 1.1)"; or the '
        'step itself, learned: "Isotropic(0.1)", "PerCoordinate(0.1)".',
        None,
    )
    radius: float | None = _asked("Of the ball of models (default: from the data).", None)
    intercept: bool = _asked("Whether models have an intercept.", True)
    common: str = _asked(
        "What all tasks share: auto (trees where they help), or linear.",
        "auto",
        allowed=("auto", "linear"),
    )
    environment: str = _asked(
        "Where tasks come from: auto (one place or several centres), stationary, or drift (tasks "
        "lie in the order in which they came).",
        "auto",
        allowed=("auto", "stationary", "drift"),
    )
    engine: str = _asked(
        "local, or ray: play the tasks on a Ray cluster (Parquet files sorted by task).",
        "local",
        allowed=("local", "ray"),
    )
    meta_batch: int = _asked(
        "With --engine ray: tasks that share one phi, for FLI updates; 1 is Algorithm 2.", 1
    )
    skip_bad_tasks: bool = _asked(
        "With --engine ray: leave out what cannot be read or used, and say so.", False
    )

    def __post_init__(self):
        for f in fields(self):
            given, allowed = getattr(self, f.name), f.metadata["allowed"]
            if allowed and given not in allowed:
                fix = f"use one of {', '.join(allowed)}"
                raise FMRLError(f"{f.name}={given!r} is unknown", fix=fix)
        for name, good, fix in (
            ("holdout", 0 <= self.holdout < 1, "give a share from 0 up to below 1"),
            ("seed", 0 <= self.seed < 2**32, "give a whole number from 0 to 4294967295"),
            ("radius", self.radius is None or 0 < self.radius < math.inf, "give a positive number"),
            ("meta_batch", self.meta_batch >= 1, "give a whole number of at least 1"),
        ):
            if not good:
                raise FMRLError(f"{name}={getattr(self, name)} is out of range", fix=fix)
        if self.engine == "local" and (self.meta_batch > 1 or self.skip_bad_tasks):
            what = "meta_batch" if self.meta_batch > 1 else "skip_bad_tasks"
            raise FMRLError(f"{what} is for tasks on a cluster", fix="give engine='ray' with it")
        if self.engine == "ray" and self.order:
            what = "on Ray the rows of a task are played as they lie"
            raise FMRLError(what, fix="sort the files, and leave out order=")
        self.policy  # noqa: B018 - complains about its fields
        self.ingredients()

    @property
    def policy(self) -> Policy:
        """How columns become numbers."""
        given = (self.categorical, self.missing, self.unknown, self.scale, self.levels)
        return Policy(*given)

    def ingredients(self) -> dict[str, Any]:
        """Those of Algorithm 2; None for its default."""
        given = {name: getattr(self, name) for name in INGREDIENTS}
        found = {k: None if text is None else _ingredient(k, text) for k, text in given.items()}
        return found | {"similarity": found["similarity"] or AverageDeviation()}

    def estimator(self) -> dict[str, Any]:
        """Arguments of the estimator."""
        given: dict[str, Any] = {"fit_intercept": self.intercept, "random_state": self.seed}
        return given | {"common": self.common, "environment": self.environment}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def for_record(self) -> dict[str, Any]:
        """What a record says of them: those that hold something, as numbers or text."""
        given = asdict(self)
        flat = {k: ", ".join(v) if isinstance(v, tuple) else v for k, v in given.items()}
        return {k: v for k, v in flat.items() if v not in (None, "")}

    @classmethod
    def from_dict(cls, held: dict[str, Any]) -> Options:
        """What `to_dict` gave."""
        lists = ("features", "ignore", "order")
        return cls(**(held | {name: tuple(held.get(name, ())) for name in lists}))

    def command(self, out: str, *more: str) -> str:
        """The command line that asks for this, defaults left out."""
        words = ["fmrl", "train", self.table, "--task", self.task, "--target", self.target]
        for f in fields(self)[3:]:
            value, flag = getattr(self, f.name), f"--{f.name.replace('_', '-')}"
            if value == f.default:
                continue
            if isinstance(value, bool):
                words.append(flag if value else f"--no-{f.name}")
            elif isinstance(value, tuple):
                words += [word for name in value for word in (flag, name)]
            else:
                words += [flag, str(value)]
        return shlex.join([*words, "--out", out, *more])


def _ingredient(name: str, text: str) -> Any:
    """An ingredient of Algorithm 2 from its text, which must be one of its kind.

    >>> _ingredient("similarity", "Known(0.5)")
    Known(D=0.5)
    """
    allowed = known(INGREDIENTS[name])
    if text.partition("(")[0].strip() not in allowed:
        fix = suggestion(text.partition("(")[0].strip(), allowed)
        raise FMRLError(f"{text} is not a value for {name}", fix=fix)
    return parse(text)
