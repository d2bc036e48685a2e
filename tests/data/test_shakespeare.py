import io
import tarfile

import numpy as np
import pytest

from fmrl.datasets import load_shakespeare
from fmrl.datasets.shakespeare import ALPHABET, decode, encode
from fmrl.errors import ArchiveError, LayoutError


@pytest.fixture
def roles(tmp_path):
    folder = tmp_path / "by_play_and_character"
    folder.mkdir()
    (folder / "HAMLET_OPHELIA.txt").write_text("My lord, I do not know,\nBut truly I do fear it.\n")
    (folder / "HAMLET_GHOST.txt").write_text("Mark me.")
    return folder


def test_roles_are_tasks_and_characters_samples(roles):
    held = load_shakespeare(roles)
    assert held.names == ("HAMLET_GHOST", "HAMLET_OPHELIA")
    X, y = held.samples(0, context=4)
    assert X.shape == (4, 4) and decode(X[0]) == "Mark" and decode(y) == " me."
    assert np.shares_memory(X, held.text)
    tasks = list(held.tasks(context=3, limit=10))
    assert [t.rounds for t in tasks] == [5, 10] and tasks[0].X.shape == (5, 240)
    assert np.allclose(np.linalg.norm(tasks[0].X, axis=1), 1)
    assert len(held.longer(10)) == 1


def test_archive_and_damage(roles, tmp_path):
    path = tmp_path / "r.tar.xz"
    with tarfile.open(path, "w:xz") as t:
        t.add(roles, roles.name)
    assert np.array_equal(load_shakespeare(path).text, load_shakespeare(roles).text)
    cut = tmp_path / "cut.tar.xz"
    cut.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(ArchiveError, match="truncated"):
        load_shakespeare(cut)
    bad = tmp_path / "bad.tar.xz"
    with tarfile.open(bad, "w:xz") as t:
        info = tarfile.TarInfo("by/ROLE.txt")
        info.size = 4
        t.addfile(info, io.BytesIO(b"caf\xe9"))
    with pytest.raises(LayoutError, match=r"ROLE\.txt is not UTF-8"):
        load_shakespeare(bad)


def test_empty_short_and_missing_roles(roles, tmp_path):
    with pytest.raises(LayoutError, match="no sample with 80 before it"):
        load_shakespeare(roles).samples(0)
    with pytest.raises(LayoutError, match="2 roles, 1144 expected"):
        load_shakespeare(data=tmp_path)
    (roles / "X.txt").write_text("")
    with pytest.raises(LayoutError, match=r"X\.txt is empty"):
        load_shakespeare(roles)


def test_alphabet():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert decode(encode(ALPHABET)) == ALPHABET and decode(encode("é#")) == "? "


def test_shared(shared):
    held = load_shakespeare(data=shared("leaf_shakespeare_by_play_and_character.tar.xz").parent)
    assert len(held) == 1144 and len(held.text) > 4_000_000
