"""One writer at a time: a folder made or a reason why not, and a file held while it is downloaded."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fmrl.errors import FetchError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, where an open file cannot be renamed and so cannot be locked this way
    fcntl = None


def folder(path: Path) -> None:
    """Create a folder and those above it, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        fix = "name another folder, or set FMRL_CACHE to one that can be written"
        raise FetchError(f"{path} cannot be created ({e.strerror})", fix=fix) from None


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
