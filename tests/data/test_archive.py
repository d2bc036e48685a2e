import gzip
import io
import lzma
import tarfile
import zipfile

import pytest

from fmrl.data import archive
from fmrl.data.errors import ArchiveError

from .conftest import left_behind


def tar_of(path, entries, mode="w:gz"):
    with tarfile.open(path, mode) as t:
        for name, content in entries:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            t.addfile(info, io.BytesIO(content))
    return path


def zip_of(path, entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, content in entries:
            z.writestr(name, content)
    return path


GOOD = [("a/x.txt", b"one\n" * 5000), ("a/y.txt", bytes(range(256)) * 40)]


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.xz", "a.tar.bz2", "a.tar"])
def test_reads_every_kind(tmp_path, name):
    mode = {"gz": "w:gz", "xz": "w:xz", "bz2": "w:bz2", "tar": "w"}.get(name.rsplit(".", 1)[-1], "")
    path = zip_of(tmp_path / name, GOOD) if name.endswith("zip") else tar_of(tmp_path / name, GOOD, mode)
    assert list(archive.members(path)) == GOOD
    archive.extract(path, tmp_path / "out")
    assert (tmp_path / "out/a/y.txt").read_bytes() == GOOD[1][1]
    assert archive.probe(path) == 2


@pytest.mark.parametrize("bad", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "..\\evil.txt", "C:\\evil.txt"])
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_refuses_names_that_leave_the_archive(tmp_path, bad, kind):
    make = zip_of if kind == "zip" else tar_of
    path = make(tmp_path / f"bad.{kind}", [("ok.txt", b"fine"), (bad, b"evil")])
    with pytest.raises(ArchiveError, match="points outside the archive"):
        archive.extract(path, tmp_path / "target" / "out")
    assert left_behind(tmp_path) == [path.name]


def test_refuses_links_and_devices(tmp_path):
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(ArchiveError, match="link or a device"):
        list(archive.members(tar_of(tmp_path / "l.tar.gz", [(link, b"")])))
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with pytest.raises(ArchiveError, match="link or a device"):
        list(archive.members(zip_of(tmp_path / "l.zip", [(info, "/etc/passwd")])))


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.xz"])
def test_refuses_bombs(tmp_path, kind):
    zeros = [("zeros", bytes(64 << 20))]
    mode = "w:" + kind[4:]
    path = zip_of(tmp_path / "b.zip", zeros) if kind == "zip" else tar_of(tmp_path / f"b.{kind}", zeros, mode)
    assert path.stat().st_size < 200_000
    with pytest.raises(ArchiveError, match="decompression bomb"):
        archive.extract(path, tmp_path / "out")
    assert left_behind(tmp_path) == [path.name]


def test_a_zip_that_lies_about_its_size_is_still_a_bomb(tmp_path):
    path = zip_of(tmp_path / "lie.zip", [("zeros", bytes(64 << 20))])
    raw = bytearray(path.read_bytes())
    at = raw.rfind(b"PK\x01\x02")
    raw[at + 24 : at + 28] = (1000).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(ArchiveError):
        list(archive.members(path))


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.xz", "tar"])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_truncated_archive_is_never_half_used(tmp_path, kind, share):
    mode = "w" if kind == "tar" else "w:" + kind[4:]
    whole = zip_of(tmp_path / "w", GOOD) if kind == "zip" else tar_of(tmp_path / "w", GOOD, mode)
    cut = tmp_path / f"cut.{kind}"
    raw = whole.read_bytes()
    # A plain tar is padded with zeros, which may be lost without harm; its content may not.
    size = 512 * 3 + len(GOOD[0][1]) + 400 if kind == "tar" else len(raw)
    cut.write_bytes(raw[: int(size * share)])
    with pytest.raises(ArchiveError, match=r"truncated|damaged"):
        archive.extract(cut, tmp_path / "out")
    assert left_behind(tmp_path) == [cut.name, "w"]


def test_a_plain_tar_cut_between_members_is_noticed(tmp_path):
    raw = tar_of(tmp_path / "w", GOOD, "w").read_bytes()
    first = 512 + -(-len(GOOD[0][1]) // 512) * 512
    (tmp_path / "cut.tar").write_bytes(raw[:first])
    with pytest.raises(ArchiveError, match="closing blocks"):
        list(archive.members(tmp_path / "cut.tar"))


def test_altered_bytes_fail_the_archives_own_checksum(tmp_path):
    raw = bytearray(gzip.compress(b"some text\n" * 1000))
    raw[-6] ^= 1
    (tmp_path / "x.gz").write_bytes(raw)
    with pytest.raises(ArchiveError, match="truncated or damaged"):
        list(archive.open_lines(tmp_path / "x.gz"))


def test_lines(tmp_path):
    (tmp_path / "x.xz").write_bytes(lzma.compress(b"a\nb\nlast"))
    assert list(archive.open_lines(tmp_path / "x.xz")) == [b"a", b"b", b"last"]


def test_not_an_archive(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"<html>404</html>" * 100)
    with pytest.raises(ArchiveError, match="not an archive"):
        list(archive.members(tmp_path / "x.zip"))
