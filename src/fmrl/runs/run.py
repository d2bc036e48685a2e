"""A finished run, read back: its estimator, its encoding, its record. A file that is not the one
written is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.core.checkpoint import load_history
from fmrl.core.history import History
from fmrl.core.losses import Loss
from fmrl.core.parse import parse
from fmrl.datasets import Encoder, Policy
from fmrl.errors import FMRLError
from fmrl.estimators import MetaClassifier, MetaRegressor
from fmrl.estimators.task_models import Prior
from fmrl.runs import folder
from fmrl.runs.models import Models
from fmrl.runs.options import Options
from fmrl.runs.source import classes_of
from fmrl.tables.encoder import Column


@dataclass(frozen=True)
class Settings:
    """What a run is about, known before its first task is played."""

    options: Options
    data: list[dict[str, Any]]  # name and sha256 of every file
    encoder: Encoder
    loss: Loss
    expected: int  # training tasks

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        encoder = {"columns": [vars(c) for c in self.encoder.columns], "policy": vars(self.encoder.policy)}
        found = {"options": self.options.to_dict(), "data": self.data, "encoder": encoder}
        return found | {"loss": repr(self.loss), "expected": self.expected}

    @classmethod
    def read(cls, path: Path) -> Settings:
        """From the folder of a run."""
        held = folder.read_sealed(path / folder.SETTINGS)
        columns = (
            Column(**(c | {"levels": None if c["levels"] is None else tuple(c["levels"])})) for c in held["encoder"]["columns"]
        )
        encoder = Encoder(tuple(columns), Policy(**held["encoder"]["policy"]))
        return cls(Options.from_dict(held["options"]), held["data"], encoder, parse(held["loss"]), held["expected"])

    @property
    def kind(self) -> type:
        """Of the estimator."""
        return MetaRegressor if classes_of(self.loss) is None else MetaClassifier


@dataclass(frozen=True)
class Run:
    """The folder of a finished run."""

    path: Path
    record: dict[str, Any]
    settings: Settings

    @classmethod
    def load(cls, path: Path) -> Run:
        """Open a run's folder; complain if there is none, or if it is not finished."""
        if not (path / folder.SETTINGS).is_file():
            raise FMRLError(f"{path} is no folder of a run", fix="make one: fmrl train TABLE --task … --target … --out RUN")
        settings = Settings.read(path)
        if not (path / folder.RECORD).is_file():
            again = settings.options.command(str(path), "--resume")
            raise FMRLError(f"the run in {path} is not finished", fix=f"go on with: {again}")
        return cls(path, folder.read_sealed(path / folder.RECORD), settings)

    def file(self, name: str) -> Path:
        """A file of the run, if it is the one that was written."""
        path = self.path / name
        if not path.is_file():
            raise FMRLError(f"{path} is missing", fix="train again, or bring it back")
        if folder.sha256(path) != self.record["files"].get(name):
            raise FMRLError(f"{path} is damaged: it is not the file that was written", fix="train again, or use an older copy")
        return path

    @cached_property
    def estimator(self) -> MetaClassifier | MetaRegressor:
        """What was learned."""
        return self.settings.kind.load(self.file(folder.MODEL))

    @property
    def prior(self) -> Prior:
        """What adapting starts from."""
        return self.estimator.prior_

    @property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """What is known before any row of a task: coefficients [outputs, f] and intercepts
        [outputs], of encoded columns.
        """
        return np.atleast_2d(self.estimator.coef_), np.atleast_1d(self.estimator.intercept_)

    @property
    def encoder(self) -> Encoder:
        """How columns become numbers."""
        return self.settings.encoder

    @cached_property
    def history(self) -> History:
        """What happened, task by task."""
        return load_history(self.file(folder.HISTORY))

    @property
    def models(self) -> Models | None:
        """Models of the tasks trained on, if they were kept."""
        return Models.load(self.file(folder.MODELS)) if folder.MODELS in self.record["files"] else None
