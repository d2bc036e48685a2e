"""What a training run was asked to do: one plain value, stored with the run and printed back as the
command that repeats it.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, fields
from typing import Any

from fmrl.core.parse import parse
from fmrl.errors import FMRLError
from fmrl.tables.encoder import Policy

INGREDIENTS = ("within", "update", "meta", "similarity")
_ALLOWED = {
    "kind": ("auto", "classification", "regression"),
    "apart": ("gather", "error"),
    "one_class": ("keep", "drop", "error"),
    "engine": ("local", "ray"),
}


@dataclass(frozen=True)
class Options:
    """A table, what its columns mean, and how to learn. The defaults are meant for a raw table that
    nobody has cleaned.

    Columns are scaled to mean 0 and deviation 1; text becomes one column a level; a missing value
    becomes the mean and a flag; rows of a task may lie anywhere; a task that has one class only is
    played like any other. All of it is learned from training tasks.

    >>> Options("visits.csv", "shop", "sold", holdout=0.2).command("run")
    'fmrl train visits.csv --task shop --target sold --holdout 0.2 --out run'
    """

    table: str
    task: str
    target: str
    features: tuple[str, ...] = ()  # none: all other columns
    order: tuple[str, ...] = ()
    kind: str = "auto"
    categorical: str = "onehot"
    missing: str = "indicator"
    unknown: str = "zero"
    scale: str = "standard"
    levels: int = 256
    apart: str = "gather"
    one_class: str = "keep"
    rows: int = 1_000_000
    holdout: float = 0.1
    seed: int = 0
    within: str | None = None
    update: str | None = None
    meta: str | None = None
    similarity: str | None = None
    radius: float | None = None
    intercept: bool = True
    engine: str = "local"
    meta_batch: int = 1  # tasks that share one phi; 1 is Algorithm 2
    skip_bad_tasks: bool = False

    def __post_init__(self):
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise FMRLError(f"{name}={getattr(self, name)!r} is unknown", fix=f"use one of {', '.join(allowed)}")
        if not 0 <= self.holdout < 1:
            raise FMRLError(f"holdout={self.holdout} is no share of the tasks", fix="give a number from 0 up to below 1")
        if not 0 <= self.seed < 2**32:
            raise FMRLError(f"seed={self.seed} is no seed", fix="give a whole number from 0 to 4294967295")
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise FMRLError(f"radius={self.radius} is no radius", fix="give a positive number")
        if self.meta_batch < 1:
            raise FMRLError(f"meta_batch={self.meta_batch} is no number of tasks", fix="give a whole number of at least 1")
        if self.engine == "local" and (self.meta_batch > 1 or self.skip_bad_tasks):
            what = "meta_batch" if self.meta_batch > 1 else "skip_bad_tasks"
            raise FMRLError(f"{what} is for tasks on a cluster", fix="give engine='ray' with it")
        if self.engine == "ray" and self.order:
            raise FMRLError("on Ray the rows of a task are played as they lie", fix="sort the files, and leave out order=")
        self.policy  # noqa: B018 - complains about its fields
        self.estimator()

    @property
    def policy(self) -> Policy:
        """How columns become numbers."""
        return Policy(self.categorical, self.missing, self.unknown, self.scale, self.levels)

    def estimator(self) -> dict[str, Any]:
        """Arguments of the estimator."""
        found = {name: None if (text := getattr(self, name)) is None else _ingredient(name, text) for name in INGREDIENTS}
        return found | {"radius": self.radius, "fit_intercept": self.intercept, "random_state": self.seed}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def said(self) -> dict[str, Any]:
        """What a record says of them: those that hold something, as numbers or text."""
        whole = {name: ", ".join(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in whole.items() if value not in (None, "")}

    @classmethod
    def from_dict(cls, held: dict[str, Any]) -> Options:
        """What `to_dict` gave."""
        return cls(**(held | {name: tuple(held[name]) for name in ("features", "order")}))

    def command(self, out: str, *more: str) -> str:
        """The command line that asks for this, defaults left out."""
        words = ["fmrl", "train", self.table, "--task", self.task, "--target", self.target]
        for f in fields(self)[3:]:
            value, flag = getattr(self, f.name), f"--{f.name.replace('_', '-')}"
            if value == f.default:
                continue
            if f.name == "intercept":
                words.append("--no-intercept")
            elif value is True:
                words.append(flag)
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
    value = parse(text)
    if type(value).__module__ != f"fmrl.core.rules.{name}":
        raise FMRLError(f"{text} is not a value for {name}", fix=f"fmrl train --help lists those for --{name}")
    return value
