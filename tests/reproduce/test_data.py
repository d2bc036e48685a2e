import numpy as np
import pytest

from fmrl.errors import FMRLError
from fmrl.reproduce.convex.data import SHOTS, choose, load, synthetic

WORDS = [f"w{k}" for k in range(40)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A tiny set in Mini-Wiki's layout, with vectors for its words."""
    monkeypatch.setenv("FMRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FMRL_DATA", raising=False)
    rng = np.random.default_rng(0)
    lines = [f"{w} " + " ".join(f"{v:.4f}" for v in rng.standard_normal(50)) for w in WORDS]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "glove.6B.50d.txt").write_text("\n".join(lines) + "\n")
    root = tmp_path / "data" / "mini-wiki-rebuilt" / "miniwikinet"
    for t, split in enumerate(("train", "dev", "test")):
        samples = [
            (c, k, f"{c}\t{' '.join(rng.choice(WORDS, size=8))}\n")
            for k in range(40)
            for c in range(4)
        ]
        for m in SHOTS:
            file = root / "bal" / split / str(m) / f"{t}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(line for _, k, line in samples if k < m))
        (root / "raw").mkdir(exist_ok=True)
        (root / "raw" / f"{t}.txt").write_text("".join(line for *_, line in samples))
    return tmp_path / "data"


def test_text(folder):
    assert choose(None, folder) == "mini-wiki-rebuilt"
    data = load(None, folder)
    assert data.title == "Mini-Wiki (rebuilt)"
    assert data.X[2].shape == (3, 8, 50) and data.y[2].shape == (3, 8)
    assert sorted(data.held) == [1, 2]
    X, y = data.held[1]
    assert len(y) == 4 * 8  # what the 32 shots leave of 40 sentences a class
    shots = {x.tobytes() for x in np.round(data.X[32][1], 9)}
    assert not any(x.tobytes() in shots for x in np.round(X, 9))
    assert [t.rounds for t in data.tasks(4, "dev")] == [16]


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("FMRL_CACHE", str(tmp_path))
    monkeypatch.delenv("FMRL_DATA", raising=False)
    assert choose(None) == "synthetic"
    with pytest.raises(FMRLError, match="fmrl data build mini-wiki"):
        load("mini-wiki-rebuilt")
    with pytest.raises(FMRLError, match="choose one of"):
        choose("other")


def test_synthetic():
    data = synthetic(tasks=20)
    assert [len(data.index(s)) for s in ("train", "dev", "test")] == [16, 2, 2]
    for m in SHOTS:
        assert data.X[m].shape == (20, 4 * m, 50)
        assert (np.sort(data.y[m], axis=1) == np.repeat(np.arange(4), m)).all()
    assert data.sha256 == synthetic(tasks=20).sha256 != synthetic(tasks=20, seed=1).sha256
    small = data.reduced(5, 1)
    assert [len(small.index(s)) for s in ("train", "dev", "test")] == [5, 1, 1]
    for t, (X, _) in small.held.items():
        assert small.split[t] != "train" and len(X) == 128


def test_blocked_order_only_moves_rows():
    data = synthetic(tasks=10)
    X, y = data.arrays(4, "all")
    Xb, yb = data.arrays(4, "all", "blocked")
    assert (np.diff(yb, axis=1) >= 0).all()
    np.testing.assert_allclose(np.sort(X, axis=1), np.sort(Xb, axis=1))
    assert sorted(zip(y[0], X[0, :, 0], strict=True)) == sorted(
        zip(yb[0], Xb[0, :, 0], strict=True)
    )
