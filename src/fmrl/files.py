"""Files that are whole or not there, and read without trusting them.

Every write goes to a private name and takes one step into place; what killed writers left is swept.
JSON is limited in size and nesting, locks follow no links.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fmrl.errors import FMRLError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: two writers are then not told apart
    fcntl = None

STALE = 86_400  # seconds after which a partial file belongs to a process that was killed
DEEPEST = 64  # nesting of JSON: ours needs ten
LARGEST = 1 << 30  # bytes of a file of JSON
_swept: dict[Path, float] = {}  # when this process last swept a folder


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
        _sweep_now_and_then(path.parent)
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


def from_json(text: bytes | str) -> Any:
    """The value of a JSON text that others may have written; ValueError if it is not one, or is
    nested deeper than anything of ours.

    >>> from_json("[" * 100 + "]" * 100)
    Traceback (most recent call last):
        ...
    ValueError: nested deeper than 64
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST}") from None
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for group in level
            if isinstance(group, (list, dict))
            for item in (group.values() if isinstance(group, dict) else group)
            if isinstance(item, (list, dict))
        ]
        if not level:
            return value
    raise ValueError(f"nested deeper than {DEEPEST}")


def read_json(path: str | os.PathLike) -> Any:
    """The value of a file of JSON; ValueError where it is not one, or too large to be ours."""
    if (size := os.stat(path).st_size) > LARGEST:
        raise ValueError(f"{size:,} bytes are too many")
    return from_json(Path(path).read_bytes())


def open_lock(path: str | os.PathLike) -> IO:
    """A file to be locked, made if need be and left as it is; a link is not followed."""
    if Path(path).is_symlink():  # where there is no O_NOFOLLOW
        raise OSError(None, "it is a link, and locks follow none", str(path))
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.fdopen(os.open(path, flags, 0o666), "ab")


def lock(held: IO, wait: bool = False) -> bool:
    """Lock an open file for this process alone; False if another one has it."""
    if fcntl is None:  # pragma: no cover
        return True
    try:
        fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return True
    except OSError:
        return False


@contextmanager
def scratch(prefix: str, folder: str | os.PathLike | None = None) -> Iterator[Path]:
    """A folder that vanishes with the block. What killed processes left under ``prefix`` goes too:
    every folder is locked by the process that uses it.

    Args:
        prefix: Of its name.
        folder: Where it is made (default: where the system keeps such folders).
    """
    home = Path(folder or tempfile.gettempdir())
    for left in home.glob(f"{prefix}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 60:  # it may just be about to be locked
                with open_lock(left / ".lock") as held:
                    if lock(held):
                        _remove(left)
    private = tempfile.TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True)
    with private as made, open_lock(Path(made) / ".lock") as held:
        lock(held)
        yield Path(made)


def _sweep_now_and_then(folder: Path) -> None:
    """At most once an hour, because folders can be large."""
    now = time.monotonic()
    if now - _swept.get(folder, -math.inf) > 3600:
        _swept[folder] = now
        sweep(folder)


def sweep(folder: Path, older: float = STALE) -> None:
    """Remove what killed writers left half done in ``folder``, if it is ``older`` than so many
    seconds.
    """
    for left in filter(is_partial, folder.glob(".*.partial.*")):
        with suppress(OSError):  # another process may sweep too
            if time.time() - left.stat().st_mtime >= older:
                _remove(left)


def is_partial(path: Path) -> bool:
    """Whether this is the private name of a file being written."""
    return bool(re.match(r"\.[0-9a-f-]+\.partial\.", path.name))


def sha256(path: Path) -> str:
    """The checksum of a file's bytes."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as e:
        fix = "check the path and who may read it"
        raise FMRLError(f"{path} cannot be read ({e.strerror or e})", fix=fix) from None


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
