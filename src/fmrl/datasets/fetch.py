"""Finding a data set's files: a local copy first, then the cache, then a download that is checked
before anyone can see it.
"""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from fmrl.datasets import archive
from fmrl.datasets.registry import Dataset, Item, dataset
from fmrl.datasets.scratch import alone, folder
from fmrl.errors import ArchiveError, ChecksumError, FetchError

CHUNK = 1 << 20
Progress = Callable[[str, int, int | None], None]  # name, bytes so far, bytes in all when known


@dataclass(frozen=True)
class Found:
    """Where a data set lies: ``paths[i]`` is the i-th item of the variant found; ``place`` is
    'local' or 'cache'.
    """

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
        raise FetchError(
            f"the data folder {given} does not exist",
            fix="create it, or correct --data / FMRL_DATA",
        )
    return Path(given) if given else None


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The hex digest of a file, read in chunks.

    >>> import tempfile; p = Path(tempfile.mkdtemp()) / "x"; _ = p.write_bytes(b"")
    >>> digest(p)[:8]
    'e3b0c442'
    """
    with open(path, "rb") as f:
        return hashlib.file_digest(f, algorithm).hexdigest()


def check(path: Path, item: Item) -> None:
    """Raise ChecksumError unless ``path`` holds the published bytes of ``item`` (see Item for files
    without a pinned hash).
    """
    if item.folder:
        return
    receipt = path.with_name(path.name + ".sha256")
    seen = receipt.read_text().strip() if receipt.exists() else None
    for algorithm, expected in (("sha256", item.sha256), ("md5", item.md5), ("sha256", seen)):
        if expected:
            got = digest(path, algorithm)
            if got != expected:
                what = f"{path} is truncated or altered: its {algorithm} is {got[:16]}…, expected {expected[:16]}…"
                raise ChecksumError(
                    what, fix="delete it and fetch it again, or replace it with the published file"
                )


def locate(name: str, data: str | os.PathLike | None = None) -> Found | None:
    """The first complete variant in the data folder, else in the cache, checked; None when neither
    holds one.
    """
    entry, local, cached = dataset(name), data_dir(data), cache_dir() / name
    for place, root in (("local", local), ("local", local and local / name), ("cache", cached)):
        for variant in entry.variants if root else ():
            paths = tuple(root / item.name for item in variant)
            if all(
                p.is_dir() if i.folder else p.is_file() for p, i in zip(paths, variant, strict=True)
            ):
                for p, i in zip(paths, variant, strict=True):
                    check(p, i)
                return Found(name, paths, place)
    return None


def get(name: str, data=None, *, download: bool = True, progress: Progress | None = None) -> Found:
    """Find a data set, downloading it into the cache when it is nowhere; every file is checked
    before it is returned.

    Raises FetchError with the files to place and where when it is not here and cannot be
    downloaded."""
    found = locate(name, data)
    if found:
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


def fetch_file(
    item: Item, path: Path, progress: Progress | None = None, timeout: float = 30.0
) -> None:
    """Download ``item.url`` to ``path``: resume a partial file, check it whole, then rename; a bad
    file is deleted, never used.
    """
    if path.is_file():
        return check(path, item)
    folder(path.parent)
    part = path.with_name(path.name + ".part")
    with alone(part):
        if path.is_file():  # another process brought it while this one waited
            return check(path, item)
        _stream(item.url or "", part, item.name, progress, timeout)
        try:
            check(part, item)
            if not (item.sha256 or item.md5):
                archive.probe(part)
        except (ChecksumError, ArchiveError):
            part.unlink()
            raise
        if not (item.sha256 or item.md5):
            path.with_name(path.name + ".sha256").write_text(digest(part) + "\n")
        os.replace(part, path)


def _stream(url: str, part: Path, name: str, progress: Progress | None, timeout: float) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as e:
        if (
            e.code != 416
        ):  # 416: the partial file is already whole, or longer than the original; the checksum will tell
            raise
        return
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
    if total is not None and have != total:
        # The partial file stays: the next call resumes it.
        raise urllib.error.URLError(
            f"the connection closed after {have:,} of {total:,} bytes; run it again to resume"
        )


def _what_to_put_where(entry: Dataset, data) -> str:
    options = " or ".join(
        " + ".join(i.name + ("/" if i.folder else "") for i in v) for v in entry.variants
    )
    where = data_dir(data) or "a folder named by --data or FMRL_DATA"
    return f"put {options} in {where} (origin: {entry.origin})" + (
        f"; {entry.fix}" if entry.fix else ""
    )
