import os
import threading
import time

import pytest

from fmrl.datasets.fetch import alone
from fmrl.errors import FetchError
from fmrl.files import atomic, sweep

from .conftest import left_behind


def test_a_killed_build_is_never_mixed_into_a_later_one(tmp_path):
    """Two blocks of one process have nothing in common, and what a killed one left is swept once it
    is old.
    """
    held = atomic(tmp_path / "out")
    first = held.__enter__()
    first.mkdir()
    (first / "old.txt").write_text("old")
    with atomic(tmp_path / "out") as second:
        assert second != first and not second.exists()
        second.mkdir()
        (second / "new.txt").write_text("new")
    assert left_behind(tmp_path / "out") == ["new.txt"] and first.exists()
    sweep(tmp_path)
    assert first.exists()  # it may still be at work
    os.utime(first, (0, 0))
    sweep(tmp_path)
    assert not first.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(FetchError, match="cannot be created"),
        atomic(tmp_path / "file" / "sub" / "x"),
    ):
        pass


def test_one_writer_at_a_time(tmp_path):
    pytest.importorskip("fcntl")
    part, inside, most = tmp_path / "f.part", [], []

    def work():
        with alone(part):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert most == [1] * 5 and left_behind(tmp_path) == []
