"""The folder of a run: which files it holds, one writer at a time, and the run read back. Every
file in it is complete, and a file that is not the one written is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from fmrl import files
from fmrl.core.checkpoint import WRONG, load_history
from fmrl.core.history import History
from fmrl.core.losses import Loss
from fmrl.core.values import parse
from fmrl.datasets import Encoder
from fmrl.errors import FMRLError
from fmrl.estimators import MetaClassifier, MetaRegressor
from fmrl.estimators.prior import Prior
from fmrl.files import is_partial, open_lock, read_json, sha256, sweep
from fmrl.records import plain, write_json
from fmrl.runs.options import Options
from fmrl.runs.source import classes_of

if TYPE_CHECKING:
    from fmrl.runs.models import Models

SETTINGS, RECORD, README = "settings.json", "record.json", "README.txt"
CHECKPOINT, MODEL, HISTORY = "checkpoint.npz", "model.safetensors", "history.npz"
TASKS, HELDOUT, ENCODER = "tasks.parquet", "heldout.json", "encoder.json"
MODELS, ADAPTED = "models.safetensors", "adapted.safetensors"
LOCK, SCRATCH = ".lock", ".scratch"
FORMAT = 1


def seal(value: dict[str, Any]) -> dict[str, Any]:
    """The value with a digest of itself, so that a changed byte does not go unnoticed.

    >>> sealed = seal({"a": [1.5, None]})
    >>> unseal(sealed) == {"a": [1.5, None]}, unseal(sealed | {"a": [1.25, None]})
    (True, None)
    """
    value = plain(value)
    return {**value, "sha256": _digest(value)}


def unseal(value: Any) -> dict[str, Any] | None:
    """The value without its digest; None if the digest is not its own."""
    if not isinstance(value, dict):
        return None
    rest = {k: v for k, v in value.items() if k != "sha256"}
    return rest if value.get("sha256") == _digest(rest) else None


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_sealed(path: Path) -> dict[str, Any]:
    """A sealed value of a file, or an error that says the file is damaged."""
    try:
        found = unseal(read_json(path))
    except OSError as error:
        what = f"{path} cannot be read ({error.strerror or error})"
        raise FMRLError(what, fix="check the path") from None
    except ValueError:  # not JSON, or not text
        found = None
    if found is None or found.get("format") != FORMAT:
        fix = "train again, or use an older copy"
        raise FMRLError(f"{path} is damaged, or of another version", fix=fix)
    return found


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a value with its digest."""
    write_json(path, seal({"format": FORMAT, **value}))


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """A file that was sealed by others may hold anything: where it lacks what is needed, or holds
    it in another form, the error names the file.
    """
    try:
        yield
    except WRONG as error:
        if isinstance(error, FMRLError):
            raise
        what = f"{path} is not what a run leaves ({type(error).__name__}: {error})"
        raise FMRLError(what, fix="train again, or use an older copy") from None


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Hold a run's folder for writing, made if need be; yields a scratch folder in it.

    What a killed writer left half done is removed, and so is the folder if it stays empty.
    """
    lock, scratch = path / LOCK, path / SCRATCH
    elsewhere = "choose another folder"
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = open_lock(lock)
    except OSError as error:
        what = f"{path} cannot be written ({error.strerror or error})"
        raise FMRLError(what, fix=elsewhere) from None
    try:
        if not _locked(held, lock):
            what = f"another process is writing {path}"
            raise FMRLError(what, fix=f"wait for it, or {elsewhere}")
        try:
            foreign = [p for p in path.iterdir() if p not in (lock, scratch) and not is_partial(p)]
            if foreign and not (path / SETTINGS).exists():
                raise FMRLError(
                    f"{path} is not empty, and what it holds is not a run", fix=elsewhere
                )
            shutil.rmtree(scratch, ignore_errors=True)
            sweep(path, older=0)
            scratch.mkdir()
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            lock.unlink(missing_ok=True)
            if not any(path.iterdir()):
                path.rmdir()
    finally:
        held.close()


def _locked(held: IO, lock: Path) -> bool:
    try:
        # The writer before may have just removed the file that is locked here.
        return files.lock(held) and os.path.samestat(os.fstat(held.fileno()), lock.stat())
    except OSError:
        return False


@dataclass(frozen=True)
class Settings:
    """What a run is about, known before its first task is played."""

    options: Options
    data: list[dict[str, Any]]  # name and sha256 of every file
    encoder: Encoder
    loss: Loss
    expected: int  # training tasks

    def write(self, path: Path) -> None:
        """Into the folder of a run."""
        found = {"options": self.options.to_dict(), "data": self.data}
        found |= {"encoder": json.loads(self.encoder.to_json())}
        found |= {"loss": repr(self.loss), "expected": self.expected}
        write_sealed(path / SETTINGS, found)

    @classmethod
    def read(cls, path: Path) -> Settings:
        """From the folder of a run."""
        held = read_sealed(path / SETTINGS)
        with fitting(path / SETTINGS):
            encoder = Encoder.from_json(json.dumps(held["encoder"]))
            loss = parse(held["loss"])
            if not (isinstance(loss, Loss) and isinstance(held["expected"], int)):
                raise TypeError
            [(d["name"], d["sha256"]) for d in held["data"]]
            given = Options.from_dict(held["options"]), held["data"], encoder, loss
            return cls(*given, held["expected"])

    @property
    def kind(self) -> type:
        return MetaRegressor if classes_of(self.loss) is None else MetaClassifier


@dataclass(frozen=True)
class Run:
    """The folder of a finished run, read back."""

    path: Path
    record: dict[str, Any]
    settings: Settings

    @classmethod
    def load(cls, path: Path) -> Run:
        """Open a run's folder; complain if there is none, or if it is not finished."""
        if not (path / SETTINGS).is_file():
            fix = "make one: fmrl train TABLE --task … --target … --out RUN"
            raise FMRLError(f"{path} is not the folder of a run", fix=fix)
        settings = Settings.read(path)
        if not (path / RECORD).is_file():
            again = settings.options.command(str(path), "--resume")
            raise FMRLError(f"the run in {path} is not finished", fix=f"go on with: {again}")
        record = read_sealed(path / RECORD)
        with fitting(path / RECORD):
            dict.items(record["files"])
        return cls(path, record, settings)

    def file(self, name: str) -> Path:
        """A file of the run, if it is the one that was written."""
        path = self.path / name
        if not path.is_file():
            raise FMRLError(f"{path} is missing", fix="train again, or bring it back")
        if sha256(path) != self.record["files"].get(name):
            what = f"{path} is damaged: it is not the file that was written"
            raise FMRLError(what, fix="train again, or use an older copy")
        return path

    @cached_property
    def estimator(self) -> MetaClassifier | MetaRegressor:
        return self.settings.kind.load(self.file(MODEL))

    @property
    def prior(self) -> Prior:
        return self.estimator.prior_

    @property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """What is known before any row of a task: coefficients [outputs, f] and intercepts
        [outputs], of encoded columns.
        """
        return np.atleast_2d(self.estimator.coef_), np.atleast_1d(self.estimator.intercept_)

    @property
    def encoder(self) -> Encoder:
        return self.settings.encoder

    @cached_property
    def history(self) -> History:
        return load_history(self.file(HISTORY))

    @property
    def models(self) -> Models | None:
        """Models of the tasks trained on, if they were kept."""
        from fmrl.runs.models import Models  # which seals its files with the functions above

        return Models.load(self.file(MODELS)) if MODELS in self.record["files"] else None
