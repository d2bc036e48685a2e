"""Checkpoints: resuming is bit for bit the uninterrupted run; a damaged file is an error, never a
wrong state.
"""

import os

import numpy as np
import pytest
from instances import METAS, SIMILARITIES, UPDATES, WITHIN, make_tasks

import fmrl


def equal(a, b):
    """Same structure, same kinds, same bits."""
    if isinstance(a, tuple):
        alike = isinstance(b, tuple) and len(a) == len(b)
        return alike and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, int):
        return type(a) is type(b) and a == b
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def tasks_of(seed=0, count=9):
    return make_tasks("one-vs-all", count, 2, np.random.default_rng(seed))


def compare(algo, tasks, cut, path, dtype=np.float64):
    phi = np.full(6, 0.05, dtype)
    state, kept = algo.init(phi), []
    for task in tasks:
        state, happened = algo.step(state, task)
        kept.append(happened)
    again = algo.init(phi)
    for t, task in enumerate(tasks):
        if t == cut:
            fmrl.save_state(again, path)
            loaded = fmrl.load_state(path)
            assert equal(tuple(again), tuple(loaded))
            again = loaded
        again, happened = algo.step(again, task)
        assert equal(tuple(happened), tuple(kept[t]))
    assert equal(tuple(again), tuple(state))


@pytest.mark.parametrize("update", UPDATES, ids=repr)
@pytest.mark.parametrize("within", WITHIN, ids=repr)
def test_step_resumes_bit_for_bit(update, within, tmp_path):
    for cut in (0, 1, 4):
        algo = fmrl.FMRL(fmrl.Ball(1.0), within, update)
        compare(algo, tasks_of(count=6), cut, tmp_path / "state")


@pytest.mark.parametrize("meta", METAS, ids=repr)
@pytest.mark.parametrize("similarity", SIMILARITIES, ids=repr)
def test_every_memory_resumes_bit_for_bit(meta, similarity, tmp_path):
    compare(fmrl.FMRL(meta=meta, similarity=similarity), tasks_of(count=5), 2, tmp_path / "state")


def test_float32_resumes_bit_for_bit(tmp_path):
    rng = np.random.default_rng(1)
    rows = [(rng.normal(size=(4, 2)).astype(np.float32), rng.integers(0, 3, 4)) for _ in range(5)]
    tasks = [fmrl.Task(X, y, loss=fmrl.OneVsAll(3)) for X, y in rows]
    compare(fmrl.FMRL(), tasks, 2, tmp_path / "state", np.float32)


@pytest.mark.parametrize("update", UPDATES, ids=repr)
@pytest.mark.parametrize("cut", [1, 4, 8])
def test_run_resumes_from_a_saved_state(update, cut, tmp_path):
    """Through run, whose blocks then fall elsewhere: the saved state itself is bit for bit, the
    numbers agree to 1e-12.
    """
    algo, tasks, path = fmrl.FMRL(update=update), tasks_of(), tmp_path / "state"
    whole, first = fmrl.run(algo, tasks), fmrl.run(algo, tasks[:cut])
    fmrl.save_state(first.state, path)
    loaded = fmrl.load_state(path)
    assert equal(tuple(first.state), tuple(loaded))
    rest = fmrl.run(algo, tasks[cut:], state=loaded)
    both = np.concatenate([first.regret, rest.regret])
    np.testing.assert_allclose(both, whole.regret, atol=1e-12)
    np.testing.assert_allclose(rest.state.phi, whole.state.phi, atol=1e-12)
    assert rest.state.tasks == 9
    direct = fmrl.run(algo, tasks[cut:], state=first.state)
    assert equal(tuple(direct.state), tuple(rest.state)) and equal(direct.regret, rest.regret)


def test_several_runs_side_by_side_resume(tmp_path):
    algo, tasks = fmrl.FMRL(), tasks_of(count=3)
    history = fmrl.run(algo, tasks, orders=[[0, 1, 2], [2, 1, 0]])
    fmrl.save_state(history.state, tmp_path / "state")
    assert equal(tuple(fmrl.load_state(tmp_path / "state")), tuple(history.state))


@pytest.fixture
def saved(tmp_path):
    state = fmrl.run(fmrl.FMRL(similarity=fmrl.AverageDeviation()), tasks_of(count=3)).state
    path = tmp_path / "state"
    fmrl.save_state(state, path)
    return path, state


def test_truncated(saved):
    path, _ = saved
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(fmrl.FMRLError, match="state"):
            fmrl.load_state(path)


def test_flipped_bits(saved):
    """Whatever bit is wrong: an error, or a part of the file that carries nothing."""
    path, state = saved
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(bytes(damaged))
        try:
            loaded = fmrl.load_state(path)
        except fmrl.FMRLError:
            continue
        assert equal(tuple(loaded), tuple(state)), place


def test_foreign_files(tmp_path):
    path = tmp_path / "foreign"
    np.savez(path.with_suffix(".npz"), a=np.ones(3))
    np.save(path.with_suffix(".npy"), np.ones(3))
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "text").write_text("a,b\n1,2\n")
    (tmp_path / "empty").write_bytes(b"")
    layouts = {
        "half": b'{"fmrl": 1, "state": {"tasks": 3}}',
        "lost": b'{"fmrl": 1, "state": {"phi": {"array": "a9"}}}',
        "list": b"[1, 2]",
        "later": b'{"fmrl": 99, "state": {}}',
    }
    for name, text in layouts.items():
        np.savez(tmp_path / f"{name}.npz", layout=np.frombuffer(text, dtype=np.uint8))
    files = sorted(p for p in tmp_path.iterdir() if p.is_file())
    assert len(files) == 9
    for file in [*files, tmp_path, tmp_path / "nowhere"]:
        with pytest.raises(fmrl.FMRLError, match=file.name):
            fmrl.load_state(file)


def test_a_failed_save_keeps_the_old_file(saved, monkeypatch):
    path, state = saved

    def full(*_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(fmrl.FMRLError, match="no space"):
        fmrl.save_state(state._replace(tasks=99), path)
    monkeypatch.undo()
    assert fmrl.load_state(path).tasks == 3
    assert list(path.parent.iterdir()) == [path]


OTHERS = [
    {"meta": fmrl.Interpolate(1.0, 0.0, 9)}, {"meta": fmrl.LastUpdate()},
    {"similarity": fmrl.AverageDeviation()}, {"similarity": fmrl.Known(0.3)},
    {"similarity": fmrl.Doubling(0.5, 3.0)}, {"similarity": fmrl.ReleasedDoubling(0.1, 1.1)},
    {"meta": fmrl.Discounted(0.3)}, {"within": fmrl.OGD()}, {"update": fmrl.FLIOnline()},
    {"domain": fmrl.Ball(0.01)}, {"domain": fmrl.Ball(2.0)}, {"lipschitz": 2.0},
]  # fmt: skip


@pytest.mark.parametrize("change", OTHERS, ids=repr)
def test_a_state_of_another_composition_is_refused(change, tmp_path):
    """In memory and from a file: a state says which composition made it."""
    tasks = [fmrl.Task(np.eye(2), [0.5, t / 4], loss=fmrl.Squared()) for t in range(4)]
    state = fmrl.run(fmrl.FMRL(), tasks).state
    assert len(fmrl.run(fmrl.FMRL(), tasks, state=state)) == 4
    fmrl.save_state(state, tmp_path / "state.npz")
    for kept in (state, fmrl.load_state(tmp_path / "state.npz")):
        assert len(fmrl.run(fmrl.FMRL(), tasks, state=kept)) == 4
        with pytest.raises(fmrl.FMRLError, match="made by another composition"):
            fmrl.run(fmrl.FMRL(**change), tasks, state=kept)


def test_a_state_put_together_by_hand_is_known_by_its_form():
    algo = fmrl.FMRL(similarity=fmrl.Known(0.3))
    made = algo.init(np.zeros(2))._replace(algo="")
    algo.check(made)
    fmrl.FMRL(similarity=fmrl.Known(0.4)).check(made)
    with pytest.raises(fmrl.FMRLError, match="made by another composition"):
        fmrl.FMRL().check(made)
    with pytest.raises(fmrl.FMRLError, match="outside"):
        algo.check(made._replace(phi=np.full(2, 9.0)))


def test_a_rule_without_a_text_of_its_own_resumes():
    """Its address differs from process to process and does not count."""

    class Still:
        def init(self, domain, phi):
            return phi, ()

        def update(self, domain, phi, memory, end):
            return phi, ()

    state = fmrl.FMRL(meta=Still()).init(np.zeros(2))
    fmrl.FMRL(meta=Still()).check(state)
