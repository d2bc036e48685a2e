import io
import shutil
import tarfile

import numpy as np
import pytest

from fmrl.datasets import Glove, fetch, load_miniwiki
from fmrl.datasets.glove import file_key, tokenize
from fmrl.errors import ArchiveError, FetchError, LayoutError

WORDS = [f"w{i}" for i in range(20)]
GLOVE = Glove(
    {w: i for i, w in enumerate(WORDS)},
    np.random.default_rng(0).standard_normal((20, 50)).astype(np.float32),
)


def write(root, name, lines):
    path = root / "miniwikinet" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{label}\t{text}\n" for label, text in lines).encode())


@pytest.fixture
def wiki(tmp_path):
    """Three tasks in the authors' layout: ids 2 and 10 train, 3 test; shots 1 and 2, and raw."""
    root = tmp_path / "wiki"
    for split, i in (("train", 10), ("train", 2), ("test", 3)):
        lines = [(c, f"W{c} w{(i + c + k) % 20} unheard") for k in range(2) for c in range(4)]
        write(root, f"bal/{split}/2/{i}.txt", lines)
        write(root, f"bal/{split}/1/{i}.txt", lines[:4])
        write(root, f"raw/{i}.txt", lines + lines[:1])
    return root


def load(root, **kw):
    return load_miniwiki(root, **({"shots": 2, "glove": GLOVE} | kw))


def test_loads_in_numeric_order_with_unit_rows(wiki):
    held = load(wiki)
    assert (
        held.ids.tolist() == [2, 10] and held.X.shape == (16, 50) and held.classes == (0, 1, 2, 3)
    )
    assert np.allclose(np.linalg.norm(held.X, axis=1), 1)
    s = (
        GLOVE.vectors[[0, 2]].astype(float).sum(axis=0)
    )  # "W0 w2 unheard": case dropped, unknown words zero
    assert np.allclose(held.X[0], s / np.linalg.norm(s))
    tasks = held.tasks()
    assert [t.name for t in tasks] == [2, 10] and tasks[0].rounds == 8 and tasks[0].dim == 200


def test_splits_shots_and_raw(wiki):
    assert load(wiki, split="test").ids.tolist() == [3]
    assert load(wiki, split="all").ids.tolist() == [2, 3, 10]
    assert load(wiki, shots=1).X.shape == (8, 50)
    raw = load(wiki, shots=None, split="all")
    assert raw.offsets.tolist() == [0, 9, 18, 27]
    with pytest.raises(LayoutError, match="no 2-shot dev task"):
        load(wiki, split="dev")
    with pytest.raises(LayoutError, match="no 32-shot"):
        load(wiki, shots=32)


def test_blocked_order_is_an_option(wiki):
    X, y = load(wiki).arrays(0)
    Xb, yb = load(wiki).arrays(0, order="blocked")
    assert y.tolist() == [0, 1, 2, 3, 0, 1, 2, 3] and yb.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert np.array_equal(Xb, X[[0, 4, 1, 5, 2, 6, 3, 7]])


def tarball(root, path, extra=()):
    with tarfile.open(path, "w:gz") as t:
        t.add(root / "miniwikinet", "miniwikinet")
        for name, content in extra:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            t.addfile(info, io.BytesIO(content))
    return path


def test_the_archive_is_the_folder(wiki, tmp_path):
    held = load(tarball(wiki, tmp_path / "m.tar.gz"), split="all")
    assert np.array_equal(held.X, load(wiki, split="all").X)


def test_damaged_archives(wiki, tmp_path):
    whole = tarball(wiki, tmp_path / "m.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArchiveError, match="truncated"):
        load(tmp_path / "cut.tar.gz")
    with pytest.raises(ArchiveError, match="points outside"):
        load(tarball(wiki, tmp_path / "evil.tar.gz", [("../evil.txt", b"0\tx")]))
    assert not fetch.cache_dir().exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"0\ta\n0\ta\n1\ta\n1\ta\n2\ta\n2\ta\n", r"task 0: train/2.txt has no sample of class 3"),
        (b"0\ta\n0\ta\n", "no sample of class 1, 2, 3"),
        (b"", "task 0: train/2.txt is empty"),
        (b"0\tcaf\xe9\n", "not UTF-8"),
        (b"0 no tab\n", "not label<TAB>tokens"),
        (b"x\ta\n", "not label<TAB>tokens"),
        (b"0\ta\n1\ta\n1\tb\n2\ta\n3\ta\n", "should have 2 samples a class"),
    ],
)
def test_damaged_tasks(wiki, content, message):
    (wiki / "miniwikinet/bal/train/2/2.txt").write_bytes(content)
    with pytest.raises(LayoutError, match=message):
        load(wiki)


def test_one_class_everywhere(tmp_path):
    write(tmp_path, "bal/train/2/1.txt", [(0, "w1"), (0, "w2")])
    with pytest.raises(LayoutError, match="only the class"):
        load(tmp_path)


def test_the_number_of_tasks_is_counted(wiki, tmp_path):
    assert len(load(wiki, expect=3)) == 2
    with pytest.raises(LayoutError, match="has 3 tasks, 4 expected"):
        load(wiki, expect=4)
    with pytest.raises(LayoutError, match="Mini-Wiki has 3 tasks, 812 expected"):
        load_miniwiki(data=wiki, shots=2, glove=GLOVE)


def test_a_rebuilt_set_is_never_called_by_the_originals_name(wiki):
    (wiki / "manifest.json").write_text("{}")
    assert load(wiki / "miniwikinet").name == "Mini-Wiki (rebuilt)"


def test_features_are_cached_by_content(wiki):
    first = load(wiki)
    (cache,) = (fetch.cache_dir() / "features").iterdir()
    assert np.array_equal(load(wiki).X, first.X)
    raw = bytearray(cache.read_bytes())
    raw[len(raw) // 2] ^= 255
    cache.write_bytes(raw)
    assert np.array_equal(load(wiki).X, first.X)  # a damaged cache is made again
    write(wiki, "bal/train/2/2.txt", [(c, f"w{c}") for c in (0, 0, 1, 1, 2, 2, 3, 3)])
    assert not np.array_equal(
        load(wiki).X, first.X
    )  # and a changed source is never served old features


def test_nothing_to_load(tmp_path):
    with pytest.raises(LayoutError, match="does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(LayoutError, match="holds no bal/"):
        load(tmp_path)


def test_glove_from_text(tmp_path):
    path = tmp_path / "glove.6B.50d.txt"
    path.write_text("the 1 2 3\n\" 0.5 0 -1\n's 1e-3 0 1\n", encoding="utf-8")
    held = Glove.load(path)
    assert list(held.rows) == ["the", '"', "'s"] and held.vectors.shape == (3, 3)
    assert np.array_equal(Glove.load(data=tmp_path).vectors, held.vectors)
    path.write_text("the 1 2 3\na 1 2\n")
    with pytest.raises(LayoutError, match="truncated"):
        Glove.load(path)
    with pytest.raises(FetchError, match="does not exist"):
        Glove.load(tmp_path / "none.txt")


def test_no_glove_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FetchError, match=r"fmrl\[text\]"):
        Glove.load()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("It's the 1990s.", ["It", "'s", "the", "1990s", "."]),
        ("can't, won’t", ["ca", "n't", ",", "wo", "n't"]),
        ("U.S. 3.14 1,200 10:30 19th", ["U.S.", "3.14", "1,200", "10:30", "19th"]),
        ("a–b c-d ''e''&nbsp;&amp;nbsp;f", ["a", "--", "b", "c", "-", "d", "''", "e", "''", "f"]),
        ("Öresund São", ["Öresund", "São"]),
        ("", []),
    ],
)
def test_tokens(text, tokens):
    assert tokenize(text) == tokens


def test_the_fingerprint_knows_which_word_owns_which_vector():
    swapped = Glove({"w1": 0, "w0": 1}, GLOVE.vectors[:2])
    assert swapped.fingerprint != Glove({"w0": 0, "w1": 1}, GLOVE.vectors[:2]).fingerprint
    assert GLOVE.fingerprint != Glove(GLOVE.rows, GLOVE.vectors.reshape(50, 20)).fingerprint
    assert GLOVE.fingerprint == Glove(dict(reversed(GLOVE.rows.items())), GLOVE.vectors).fingerprint


def test_features_are_cached_by_the_words_too(wiki):
    other = Glove({w: 19 - i for w, i in GLOVE.rows.items()}, GLOVE.vectors)
    assert not np.array_equal(load(wiki).X, load(wiki, glove=other).X)


def test_the_packages_words_are_part_of_its_key(tmp_path):
    import polars as pl

    np.save(tmp_path / "glove_6B_50d_emb.npy", GLOVE.vectors)
    index = tmp_path / "glove_6B_index.parquet"
    pl.DataFrame({"w": WORDS}).write_parquet(index)
    key = file_key(tmp_path / "glove_6B_50d_emb.npy")
    pl.DataFrame({"w": WORDS[::-1]}).write_parquet(index)
    assert file_key(tmp_path / "glove_6B_50d_emb.npy") != key


def test_cached_features_of_another_text_are_not_served(wiki, monkeypatch):
    """Whole, but not what was asked for: the hash inside decides, and a file that fails it is
    written anew.
    """
    first = load(wiki)
    (cache,) = (fetch.cache_dir() / "features").iterdir()
    with open(cache, "wb") as f:
        np.savez(f, X=np.zeros_like(first.X), sha256="0" * 64)
    assert np.array_equal(load(wiki).X, first.X)
    monkeypatch.setattr(Glove, "cbow", lambda *_: pytest.fail("the repaired cache was not used"))
    assert np.array_equal(load(wiki).X, first.X)


def test_two_sets_in_one_folder_are_not_one(wiki, tmp_path):
    both = tmp_path / "both"
    for name in "AB":
        shutil.copytree(wiki / "miniwikinet", both / name)
    with pytest.raises(LayoutError, match="twice: two sets lie in it"):
        load(both)


def test_a_label_that_is_no_number(wiki):
    (wiki / "miniwikinet/bal/train/2/2.txt").write_bytes(b"--1\ta\n")
    with pytest.raises(LayoutError, match="not label<TAB>tokens"):
        load(wiki)
    with pytest.raises(FetchError, match="does not exist"):
        load(wiki, split="test", glove="nope.txt")
