"""Finding a data set's files: a local copy, else the cache, else a checked download."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import platformdirs

from fmrl.datasets import archive
from fmrl.datasets.registry import Dataset, Item, dataset
from fmrl.errors import ArchiveError, ChecksumError, FetchError, LayoutError
from fmrl.files import lock, open_lock, sha256, write

CHUNK = 1 << 20
Progress = Callable[[str, int, int | None], None]  # name, bytes so far, bytes in all when known


@dataclass(frozen=True)
class Found:
    """Where a data set lies: the items of the variant found; place: 'local' or 'cache'."""

    name: str
    paths: tuple[Path, ...]
    place: str

    @property
    def path(self) -> Path:
        """The first path (most data sets are one file)."""
        return self.paths[0]


def cache_dir() -> Path:
    """The cache folder: ``FMRL_CACHE`` when set, else the user's cache as the platform has it."""
    return Path(os.environ.get("FMRL_CACHE") or platformdirs.user_cache_dir("fmrl"))


def data_dir(data: str | os.PathLike | None = None) -> Path | None:
    """The folder of local copies: the argument, else ``FMRL_DATA``, else None."""
    given = data or os.environ.get("FMRL_DATA")
    if given and not Path(given).is_dir():
        what = f"the data folder {given} does not exist"
        raise FetchError(what, fix="create it, or correct --data / FMRL_DATA")
    return Path(given) if given else None


def check(path: Path, item: Item) -> None:
    """Raise ChecksumError unless ``path`` holds the published bytes of ``item``."""
    if item.folder:
        return
    receipt = _receipt(path)
    seen = receipt.read_text().strip() if receipt.exists() else None
    for kind, expected in (("sha256", item.sha256), ("md5", item.md5), ("sha256", seen)):
        if expected and (got := sha256(path) if kind == "sha256" else _md5(path)) != expected:
            what = f"{path} is truncated or altered: its {kind} is {got[:16]}…"
            fix = "delete it and fetch it again, or replace it with the published file"
            raise ChecksumError(f"{what}, expected {expected[:16]}…", fix=fix)


def locate(name: str, data: str | os.PathLike | None = None) -> Found | None:
    """The first complete variant of a data set in the data folder, else in the cache, checked.

    Args:
        name: A data set of the registry.
        data: The folder of local copies (default: ``FMRL_DATA``).

    Returns:
        Its files, or None where there is no complete copy.
    """
    entry, local, cached = dataset(name), data_dir(data), cache_dir() / name
    for place, root in (("local", local), ("local", local and local / name), ("cache", cached)):
        for variant in entry.variants if root else ():
            found = [(root / item.name, item) for item in variant]
            if all(path.is_dir() if item.folder else path.is_file() for path, item in found):
                for path, item in found:
                    check(path, item)
                return Found(name, tuple(path for path, _ in found), place)
    return None


def get(
    name: str,
    data: str | os.PathLike | None = None,
    *,
    download: bool = True,
    progress: Progress | None = None,
) -> Found:
    """Find a data set, downloading it into the cache when it is nowhere; every file is checked
    before it is returned.

    Raises FetchError, with the files to place and where, when it is not here and cannot be
    downloaded.

    Args:
        name: A data set of the registry.
        data: The folder of local copies (default: ``FMRL_DATA``).
        download: False never downloads.
        progress: Called with a file's name, the bytes so far and the bytes in all, when known.
    """
    if found := locate(name, data):
        return found
    entry = dataset(name)
    if not (download and entry.downloads):
        raise FetchError(f"{entry.title} is not here", fix=_what_to_put_where(entry, data))
    for item in entry.downloads:
        try:
            fetch_file(item, cache_dir() / name / item.name, progress)
        except (urllib.error.URLError, http.client.HTTPException, OSError) as e:
            why = getattr(e, "reason", None) or f"{type(e).__name__}: {e}; run it again to resume"
            what = f"could not download {item.url}: {why}"
            raise FetchError(what, fix=_what_to_put_where(entry, data)) from e
    found = locate(name, data)
    assert found is not None
    return found


def count(found: Found) -> dict[str, int]:
    """Read a data set to its end, count what is there and compare with the registry."""
    entry = dataset(found.name)
    module, _, function = entry.counter.partition(":")
    counts = getattr(import_module(module), function)(found.name, found.path)
    for key, value in counts.items():
        if value != entry.counts.get(key, value):
            what = f"{found.name} has {value:,} {key}, {entry.counts[key]:,} expected"
            raise LayoutError(what, fix="the copy is incomplete: get it again")
    return counts


def fetch_file(
    item: Item, path: Path, progress: Progress | None = None, timeout: float = 30.0
) -> None:
    """Download ``item.url``: resume a partial file, check it, rename it or delete it."""
    if path.is_file():
        return check(path, item)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        fix = "name another folder, or set FMRL_CACHE to one that can be written"
        raise FetchError(f"{path.parent} cannot be created ({e.strerror})", fix=fix) from None
    part, pinned = path.with_name(path.name + ".part"), item.sha256 or item.md5
    with alone(part):
        if path.is_file():  # another process brought it while this one waited
            return check(path, item)
        _stream(item.url or "", part, item.name, progress, timeout)
        try:
            check(part, item)
            if not pinned:
                archive.probe(part)
        except (ChecksumError, ArchiveError):
            part.unlink()
            raise
        if not pinned:
            write(_receipt(path), sha256(part) + "\n")
        os.replace(part, path)


@contextmanager
def alone(part: Path) -> Iterator[None]:
    """Hold ``part`` while the block runs; a second process waits. An empty ``part`` is removed."""
    while True:
        held = open_lock(part)
        lock(held, wait=True)
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


def _stream(url: str, part: Path, name: str, progress: Progress | None, timeout: float) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as e:
        if e.code == 416:  # nothing is left to send; the checksum will tell whether that is right
            return
        raise
    with response:
        if response.status != 206:  # the server ignored the range: start over
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        with open(part, "ab" if have else "wb") as out:
            while chunk := response.read(CHUNK):
                out.write(chunk)
                have += len(chunk)
                if progress:
                    progress(name, have, total)
    if total is not None and have != total:  # the partial file stays: the next call resumes it
        what = f"the connection closed after {have:,} of {total:,} bytes; run it again to resume"
        raise urllib.error.URLError(what)


def _receipt(path: Path) -> Path:
    """Where the hash of a first download is kept."""
    return path.with_name(path.name + ".sha256")


def _md5(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "md5").hexdigest()


def _what_to_put_where(entry: Dataset, data: str | os.PathLike | None) -> str:
    variants = (" + ".join(i.name + "/" * i.folder for i in v) for v in entry.variants)
    where = data_dir(data) or "a folder named by --data or FMRL_DATA"
    text = f"put {' or '.join(variants)} in {where} (origin: {entry.origin})"
    return f"{text}; {entry.fix}" if entry.fix else text
