"""The folder of a run: which files it holds, one writer at a time, nothing in it that is not whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fmrl.errors import FMRLError
from fmrl.files import is_partial, sweep
from fmrl.records import plain, write_json

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: two writers are then not told apart
    fcntl = None

SETTINGS, RECORD, CHECKPOINT, MODEL, HISTORY = (
    "settings.json",
    "record.json",
    "checkpoint.safetensors",
    "model.safetensors",
    "history.npz",
)
TASKS, HELDOUT, MODELS, ADAPTED, ENCODER, README = (
    "tasks.parquet",
    "heldout.json",
    "models.safetensors",
    "adapted.safetensors",
    "encoder.json",
    "README.txt",
)
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
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_sealed(path: Path) -> dict[str, Any]:
    """A sealed value of a file, or an error that says the file is damaged."""
    try:
        found = unseal(json.loads(path.read_bytes()))
    except OSError as error:
        raise FMRLError(f"{path} cannot be read ({error.strerror})", fix="check the path") from None
    except (ValueError, RecursionError):  # not JSON, or not text
        found = None
    if found is None or found.get("format") != FORMAT:
        raise FMRLError(f"{path} is damaged, or of another version", fix="train again, or use an older copy")
    return found


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a value with its digest."""
    write_json(path, seal({"format": FORMAT, **value}))


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Hold a run's folder for writing, made if need be; yields a scratch folder in it.

    What a killed writer left half done is swept away, and a folder that stays empty does not stay.
    """
    lock, scratch = path / LOCK, path / SCRATCH
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = open(lock, "w")  # noqa: SIM115 - closed below, and the lock with it
    except OSError as error:
        raise FMRLError(f"{path} cannot be written ({error.strerror})", fix="choose another folder") from None
    try:
        if not _locked(held, lock):
            raise FMRLError(f"another process is writing {path}", fix="wait for it, or choose another folder")
        try:
            if not (path / SETTINGS).exists() and any(p.name not in (LOCK, SCRATCH) and not is_partial(p) for p in path.iterdir()):
                raise FMRLError(f"{path} is not empty, and holds no run", fix="choose another folder")
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
    if fcntl is None:  # pragma: no cover
        return True
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(held.fileno()), lock.stat())  # the one before may have just removed it
    except OSError:
        return False
