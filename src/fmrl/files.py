"""Files that are whole or not there: every write goes to a private name and takes one step into
place.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fmrl.errors import FMRLError

STALE = 86_400  # seconds after which a partial file belongs to a process that was killed


@contextmanager
def atomic(path: str | os.PathLike, *, error: type[FMRLError] = FMRLError) -> Iterator[Path]:
    """A private path beside ``path`` that becomes ``path`` when the block ends well and vanishes
    when it does not.

    The block makes a file or a folder there. It is on the disk, not only in memory, before it
    gets its name, so that a crash leaves the old file or the new one. The suffix stays, because
    writers choose the kind of file by it.

    Args:
        path: What is to be written. Folders above it are made.
        error: Raised, in the user's words, where the disk refuses.

    >>> import tempfile
    >>> home = Path(tempfile.mkdtemp())
    >>> with atomic(home / "a" / "b.txt") as partial:
    ...     _ = partial.write_text("whole")
    >>> [p.name for p in (home / "a").iterdir()]
    ['b.txt']
    """
    path = Path(os.path.realpath(path))  # what a link leads to is written, and the link stays
    partial = path.with_name(f".{secrets.token_hex(4)}.partial.{path.name[-100:]}")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise error(f"{path} is a device, not a file", fix="name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        for file in [partial, *partial.rglob("*")] if partial.is_dir() else [partial]:
            _flush(file)
        os.replace(partial, path)
        with suppress(OSError):  # the file is there; some file systems cannot sync a folder
            _flush(path.parent)
    except OSError as e:
        fix = "choose another place or free some space"
        raise error(f"cannot write {path}: {e.strerror or e}", fix=fix) from None
    finally:
        _remove(partial)


def write(path: str | os.PathLike, body: bytes | str) -> Path:
    """Write ``body`` to ``path``, whole or not at all; text is UTF-8 with plain line ends."""
    with atomic(path) as partial:
        partial.write_bytes(body.encode() if isinstance(body, str) else body)
    return Path(path)


def sweep(folder: Path, older: float = STALE) -> None:
    """Remove what killed writers left half done in ``folder``, if it is ``older`` than so many
    seconds.
    """
    for left in folder.glob(".*.partial.*"):
        with suppress(OSError):  # another process may sweep too
            if time.time() - left.stat().st_mtime >= older:
                _remove(left)


def is_partial(path: Path) -> bool:
    """Whether this is the private name of a file being written."""
    return path.name.startswith(".") and ".partial." in path.name


def sha256(path: Path) -> str:
    """The checksum of a file's bytes."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as e:
        fix = "check the path and who may read it"
        raise FMRLError(f"{path} cannot be read ({e.strerror})", fix=fix) from None


def _flush(path: Path) -> None:
    """Ask the disk to hold on to a file or the names in a folder; systems that cannot open a
    folder need not be asked.
    """
    if path.is_dir() and os.name == "nt":  # pragma: no cover
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    with suppress(OSError):  # a parent that is a file holds nothing to clean up
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
