import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fmrl import FMRLError
from fmrl.datasets import Episodes, shuffled
from fmrl.datasets.episodes import _splitmix


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(7, 30), min_size=5, max_size=40),
    shots=st.integers(1, 4),
    queries=st.integers(0, 3),
    seed=st.integers(-(2**40), 2**64 - 1),
    start=st.integers(0, 10**9),
)
def test_draws_are_without_replacement_and_in_range(sizes, shots, queries, seed, start):
    batch = Episodes(tuple(sizes), 5, shots, queries, seed).draw(start, 16)
    assert all(len(set(row)) == 5 for row in batch.classes.tolist())
    samples = np.concatenate([batch.support, batch.query], axis=-1)
    assert all(len(set(s)) == shots + queries for e in samples.tolist() for s in e)
    assert (samples < np.array(sizes)[batch.classes][..., None]).all() and (samples >= 0).all()


def test_any_chunks_give_the_same_episodes():
    e = Episodes((20,) * 100, 5, 5, 2, seed=3)
    whole = e.draw(0, 10_000)
    for start, count in ((0, 1), (17, 5), (4090, 12), (9999, 1)):
        part = e.draw(start, count)
        for f in ("classes", "support", "query"):
            assert np.array_equal(getattr(part, f), getattr(whole, f)[start : start + count])
    position, first = next(e.stream(start=17, size=5))
    assert position == 22 and np.array_equal(first.classes, whole.classes[17:22])


def test_seeds_differ_and_repeat():
    draw = lambda s: Episodes((20,) * 100, 5, 1, seed=s).draw(0, 1000).classes  # noqa: E731
    assert np.array_equal(draw(1), draw(1))
    # Equal rows would mean that one seed's sequence is another's, shifted.
    rows = [set(map(tuple, draw(s).tolist())) for s in (0, 1, 2)]
    assert len(rows[0] & rows[1]) + len(rows[1] & rows[2]) <= 2


def test_draws_are_uniform():
    batch = Episodes((20,) * 50, 5, 1, 1, seed=0).draw(0, 40_000)
    for values, cells in (
        (batch.classes, 50),
        (batch.classes[:, 0], 50),
        (batch.support, 20),
        (batch.query, 20),
    ):
        counts = np.bincount(values.ravel(), minlength=cells)
        chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert chi2 < cells - 1 + 5 * np.sqrt(2 * (cells - 1))
    pairs = np.bincount(
        (batch.support[..., 0] * 20 + batch.query[..., 0]).ravel(), minlength=400
    ).reshape(20, 20)
    off = pairs[~np.eye(20, dtype=bool)]
    assert (np.diag(pairs) == 0).all() and (
        (off - off.mean()) ** 2 / off.mean()
    ).sum() < 380 + 5 * np.sqrt(760)


def test_torch_draws_the_same():
    torch = pytest.importorskip("torch")
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    e = Episodes((20,) * 4000, 20, 5, 3, seed=11)
    mine = e.draw(123, 500)
    for device in devices:
        theirs = e.draw(123, 500, device=device)
        for f in ("classes", "support", "query"):
            assert np.array_equal(getattr(theirs, f).cpu().numpy(), getattr(mine, f))


def test_classes_of_a_split():
    split = shuffled(100, seed=5)[:64]
    batch = Episodes((20,) * 100, 5, 1, classes=split).draw(0, 500)
    assert set(np.unique(batch.classes)) == set(split.tolist())


@pytest.mark.parametrize(
    ("kw", "message"),
    [
        ({"ways": 11}, "need 11 classes"),
        ({"shots": 20}, "21 are needed"),
        ({"shots": 0}, "at least one"),
        ({"classes": (1, 1)}, "twice"),
    ],
)
def test_impossible_episodes(kw, message):
    with pytest.raises(FMRLError, match=message):
        Episodes(**({"sizes": (20,) * 10, "ways": 5, "shots": 1} | kw))
    with pytest.raises(FMRLError, match="cannot draw"):
        Episodes((20,) * 10, 5, 1).draw(-1, 5)


def test_hundred_thousand_episodes_in_two_seconds():
    e = Episodes((20,) * 1623 * 4, ways=5, shots=5, queries=1)

    def seconds():
        start = time.perf_counter()
        e.draw(0, 100_000)
        return time.perf_counter() - start

    assert any(seconds() < 2.0 for _ in range(3))


def test_neighbouring_seeds_are_not_one_sequence_shifted():
    """Raw words, not episodes: a shift by any number of words would go unseen when episodes take
    many words each.
    """
    n = 5000
    words = [set(_splitmix(np.arange(n), seed).tolist()) for seed in (-1, 0, 1, 2, 2**63)]
    assert all(len(w) == n for w in words)
    assert all(not words[i] & words[j] for i in range(5) for j in range(i))
