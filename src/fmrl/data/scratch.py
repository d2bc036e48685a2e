"""Writing so that nobody ever sees half a file: private scratch folders, one step into place, one writer at a time."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fmrl.data.errors import FetchError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, where an open file cannot be renamed and so cannot be locked this way
    fcntl = None

_STALE = 86_400  # seconds after which a scratch folder belongs to a process that was killed


def folder(path: Path) -> None:
    """Create a folder and those above it, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        fix = "name another folder, or set FMRL_CACHE to one that can be written"
        raise FetchError(f"{path} cannot be created ({e.strerror})", fix=fix) from None


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A private path beside ``path`` that becomes ``path`` when the block ends well and vanishes when it does not."""
    folder(path.parent)
    _sweep(path)
    try:
        own = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    except OSError as e:
        raise FetchError(f"{path.parent} cannot be written ({e.strerror})", fix="name another folder") from None
    try:
        yield own / path.name
        os.replace(own / path.name, path)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _sweep(path: Path) -> None:
    for old in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(OSError):  # another process may sweep too
            if time.time() - old.stat().st_mtime > _STALE:
                shutil.rmtree(old)


@contextmanager
def alone(part: Path) -> Iterator[None]:
    """Hold ``part`` while the block runs; a second process waits. An empty ``part`` does not stay."""
    while True:
        held = open(part, "ab")  # noqa: SIM115 - closed below, and the lock with it
        if fcntl is not None:
            fcntl.flock(held, fcntl.LOCK_EX)
        # The one before may have renamed or deleted the file this process waited for.
        if part.exists() and os.path.samestat(os.fstat(held.fileno()), part.stat()):
            break
        held.close()
        if part.with_name(part.name.removesuffix(".part")).exists():
            break
    try:
        yield
    finally:
        if part.exists() and not part.stat().st_size:
            part.unlink()
        held.close()
