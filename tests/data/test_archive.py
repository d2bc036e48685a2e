import gzip
import io
import lzma
import tarfile
import zipfile

import pytest

from fmrl.datasets import archive
from fmrl.errors import ArchiveError


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
    make = (zip_of,) if name.endswith("zip") else (tar_of, mode)
    path = make[0](tmp_path / name, GOOD, *make[1:])
    assert list(archive.members(path)) == GOOD
    assert archive.probe(path) == 2


@pytest.mark.parametrize(
    "bad", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "..\\evil.txt", "C:\\evil.txt"]
)
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_refuses_names_that_leave_the_archive(tmp_path, bad, kind):
    make = zip_of if kind == "zip" else tar_of
    path = make(tmp_path / f"bad.{kind}", [("ok.txt", b"fine"), (bad, b"evil")])
    with pytest.raises(ArchiveError, match="points outside the archive"):
        list(archive.members(path))


def test_refuses_links_and_devices(tmp_path):
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(ArchiveError, match="link, a device or a sparse file"):
        list(archive.members(tar_of(tmp_path / "l.tar.gz", [(link, b"")])))
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with pytest.raises(ArchiveError, match="link, a device or a sparse file"):
        list(archive.members(zip_of(tmp_path / "l.zip", [(info, "/etc/passwd")])))


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.xz"])
def test_refuses_bombs(tmp_path, kind):
    zeros = [("zeros", bytes(20 << 20))]
    make = (zip_of,) if kind == "zip" else (tar_of, "w:" + kind[4:])
    path = make[0](tmp_path / f"b.{kind}", zeros, *make[1:])
    assert path.stat().st_size < 200_000
    with pytest.raises(ArchiveError, match="decompression bomb"):
        list(archive.members(path))


def test_a_zip_that_lies_about_its_size_is_still_a_bomb(tmp_path):
    path = zip_of(tmp_path / "lie.zip", [("zeros", bytes(20 << 20))])
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
        list(archive.members(cut))


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


def test_refuses_sparse_files(tmp_path):
    """A hole takes no room in the archive: its size passes every count of the bytes read."""
    info = tarfile.TarInfo("hole")
    info.size = 512
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.GNU_FORMAT) as t:
        t.addfile(info, io.BytesIO(bytes(512)))
    raw = bytearray((tmp_path / "s.tar").read_bytes())
    raw[156:157] = tarfile.GNUTYPE_SPARSE
    raw[386:410] = b"%011o\0%011o\0" % (0, 512)
    raw[483:495] = b"%011o\0" % (1 << 40)
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    (tmp_path / "s.tar").write_bytes(raw)
    with pytest.raises(ArchiveError, match="sparse file"):
        list(archive.members(tmp_path / "s.tar"))


def test_each_member_counts(tmp_path):
    one = bytes(range(256)) * 4096  # 1 MB that does not compress away by much
    for kind in ("zip", "tar.gz"):
        make = zip_of if kind == "zip" else tar_of
        path = make(tmp_path / f"m.{kind}", [(str(i), one) for i in range(5)])
        assert len(list(archive.members(path, limit=6 << 20))) == 5
        with pytest.raises(ArchiveError, match="decompression bomb"):
            list(archive.members(path, limit=4 << 20))


def test_a_path_to_nothing(tmp_path):
    for read in (archive.members, archive.open_lines):
        with pytest.raises(ArchiveError, match="does not exist"):
            list(read(tmp_path / "nowhere.zip"))


def test_a_claimed_size_is_refused_before_it_is_read(tmp_path):
    raw = bytearray(tar_of(tmp_path / "c.tar", [("x", b"y")], "w").read_bytes())
    raw[124:136] = b"%011o\0" % (8**11 - 1)
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    (tmp_path / "c.tar").write_bytes(raw)
    with pytest.raises(ArchiveError, match="decompression bomb"):
        list(archive.members(tmp_path / "c.tar"))
