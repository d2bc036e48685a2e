"""Files appear complete or not at all."""

import os

import pytest

from fmrl.errors import FetchError, FMRLError
from fmrl.files import atomic, sweep, write


def test_atomic_leaves_nothing_on_failure(tmp_path):
    with pytest.raises(RuntimeError), atomic(tmp_path / "x") as part:
        part.write_text("half")
        raise RuntimeError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [FMRLError, FetchError])
def test_a_folder_that_cannot_be_made(tmp_path, error):
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match="cannot write"), atomic(tmp_path / "file/x", error=error):
        pass


def test_a_killed_build_is_never_mixed_into_a_later_one(tmp_path):
    """Two blocks of one process have nothing in common, and what a killed one left is swept once
    it is old.
    """
    held = atomic(tmp_path / "out")
    first = held.__enter__()
    first.mkdir()
    (first / "old.txt").write_text("old")
    with atomic(tmp_path / "out") as second:
        assert second != first and not second.exists()
        second.mkdir()
        (second / "new.txt").write_text("new")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["new.txt"]
    sweep(tmp_path)
    assert first.exists()  # it may still be at work
    os.utime(first, (0, 0))
    sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_links_are_followed_devices_refused_and_long_names_taken(tmp_path):
    target = tmp_path / "target.txt"
    target.write_text("old")
    (tmp_path / "link.txt").symlink_to(target)
    write(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink() and target.read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FMRLError, match="is a device"):
        write(tmp_path / "pipe", "x")
    write(tmp_path / ("n" * 250), "x")
    assert sorted(len(p.name) for p in tmp_path.iterdir()) == [4, 8, 10, 250]
