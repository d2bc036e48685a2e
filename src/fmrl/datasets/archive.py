"""Reading zip and tar archives that may be truncated or hostile, within limits."""

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from fmrl.errors import ArchiveError

LIMIT = 4 << 30  # bytes unpacked in all; every data set of the registry is far below
RATIO = 250  # text and 1-bit drawings stay below 30; a bomb is above 1,000
ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_SMALL = 16 << 20  # below this a high ratio is harmless
_OPENERS: dict[bytes, Callable] = {b"\x1f\x8b": gzip.open, b"\xfd7": lzma.open, b"BZ": bz2.open}
_BROKEN = (EOFError, OSError, NotImplementedError, zlib.error, lzma.LZMAError)
_BROKEN += (tarfile.TarError, zipfile.BadZipFile)


class Bounded:
    """A reader that counts bytes and refuses to go past a limit: decompression bombs end here."""

    def __init__(self, stream: BinaryIO, path: Path, limit: int):
        self.stream, self.path, self.limit, self.count = stream, path, limit, 0

    def read(self, n: int = -1) -> bytes:
        """Up to ``n`` bytes, never more than one past the limit."""
        room = self.limit - self.count + 1
        chunk = self.stream.read(room if n < 0 else min(n, room))
        self.count += len(chunk)
        if self.count > self.limit:
            raise _bomb(self.path, self.limit)
        return chunk


def members(path: Path, limit: int = LIMIT) -> Iterator[tuple[str, bytes]]:
    """The regular files of a zip or (compressed) tar as ``(name, bytes)``, in archive order;
    folders are skipped.

    Raises ArchiveError for a name that leaves the archive, a link or device, a truncated or damaged
    file, and for more than ``min(limit, RATIO * size of the archive)`` bytes."""
    path = Path(path)
    bound = _bound(path, limit)
    with _undamaged(path):
        yield from (_zip_members if zipfile.is_zipfile(path) else _tar_members)(path, bound)


def entries(path: Path, pattern: str = "*") -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the matching files of a folder, in name order, or of an archive."""
    path = Path(path)
    if not path.is_dir():
        yield from members(path)
        return
    for file in sorted(path.rglob(pattern)):
        if file.is_file():
            yield file.relative_to(path).as_posix(), file.read_bytes()


def refuse_bomb(path: Path, limit: int = LIMIT) -> None:
    """Raise ArchiveError when a zip (an .npz is one) declares more than `members` unpacks."""
    bound = _bound(path, limit)
    with _undamaged(path):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as z:
                _declared(z, path, bound)


def probe(path: Path) -> int:
    """Read an archive (or one compressed file) to its end; the number of its files."""
    if path.name.removesuffix(".part").endswith(ENDINGS):
        return sum(1 for _ in members(path))
    for _ in open_lines(path):
        pass
    return 1


def open_lines(path: Path, limit: int = LIMIT) -> Iterator[bytes]:
    """The lines of a plain, gzip, xz or bzip2 file, without their newline, in bounded memory."""
    path = Path(path)
    bound = _bound(path, limit)
    rest = b""
    with _undamaged(path), _opened(path) as raw:
        reader = Bounded(raw, path, bound)
        while chunk := reader.read(1 << 20):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
    if rest:
        yield rest


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    """What the readers raise for a damaged file, as an ArchiveError."""
    try:
        yield
    except _BROKEN as e:
        what = f"{path.name} is truncated or damaged, or not an archive ({type(e).__name__}: {e})"
        raise ArchiveError(what, fix="delete it and fetch it again") from e


def _bound(path: Path, limit: int) -> int:
    """How many bytes a file of this size may unpack to."""
    if not path.is_file():
        raise ArchiveError(f"{path} does not exist", fix="check the path")
    return min(limit, max(RATIO * path.stat().st_size, _SMALL))


def _opened(path: Path):
    with open(path, "rb") as f:
        magic = f.read(2)
    return _OPENERS.get(magic, open)(path, "rb")


def _declared(z: zipfile.ZipFile, path: Path, bound: int) -> None:
    if sum(i.file_size for i in z.infolist()) > bound:
        raise _bomb(path, bound)


def _zip_members(path: Path, bound: int) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as z:
        for info in z.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            _refuse(path, info.filename, not info.is_dir() and kind not in (0, stat.S_IFREG))
        _declared(z, path, bound)
        count = 0
        for info in z.infolist():
            if info.is_dir():
                continue
            if info.flag_bits & 1:
                what = f"{path.name}: {info.filename} is encrypted"
                raise ArchiveError(what, fix="unpack it by hand")
            # The declared size is the archive's own claim, so the bytes are counted as they come.
            with z.open(info) as f:
                content = Bounded(f, path, bound - count).read()
            count += len(content)
            yield info.filename, content


def _tar_members(path: Path, bound: int) -> Iterator[tuple[str, bytes]]:
    with _opened(path) as raw:
        reader = Bounded(raw, path, bound)
        with tarfile.open(fileobj=reader, mode="r|") as t:
            for info in t:
                # The holes of a sparse file take no room in the archive: the reader's limit cannot
                # see them.
                _refuse(path, info.name, info.issparse() or not (info.isfile() or info.isdir()))
                if info.isfile():
                    if info.size > bound:
                        raise _bomb(path, bound)
                    content = t.extractfile(info).read()
                    if len(content) != info.size:
                        raise tarfile.ReadError("unexpected end of data")
                    yield info.name, content
            # tarfile takes the bare end of a file for the end of the archive; an undamaged one
            # closes with zero blocks.
            if t.offset >= reader.count:
                raise tarfile.ReadError("the closing blocks are missing")
        while reader.read(1 << 20):  # a damaged tail must show in the compressor's own checksum
            pass


def _refuse(path: Path, name: str, special: bool) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    outside = parts.is_absolute() or ".." in parts.parts or "\0" in name or name[1:2] == ":"
    if outside or special:
        why = "points outside the archive" if outside else "is a link, a device or a sparse file"
        raise ArchiveError(f"{path.name}: the member {name!r} {why}", fix="do not use this file")


def _bomb(path: Path, bound: int) -> ArchiveError:
    size = path.stat().st_size
    what = f"{path.name} unpacks to more than {bound:,} bytes from {size:,}: a decompression bomb"
    return ArchiveError(what, fix="do not use this file")
