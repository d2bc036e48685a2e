"""A study of the paper's runs, in small: it stops when its time is over, goes on, and records every
run.
"""
# ruff: noqa: E402

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fmrl.deep.tasks import Pool
from fmrl.errors import FMRLError
from fmrl.reproduce.deep import reproduce
from fmrl.reproduce.deep.reproduce import Plan, Study, runs

PLAN = Plan(every=2, curve=2, final=3, inductive=2, iterations=4)


def test_a_study_goes_on_where_it_stopped(tmp_path):
    rng = np.random.default_rng(0)
    pool = Pool.of(
        (rng.random((40 * 20, 8, 8)) > 0.3).astype(np.uint8), np.repeat(np.arange(40), 20)
    )
    chosen = [replace(r, eval_steps=5) for r in runs() if r.name in ("o15_i5", "o55_s5", "o15_i10")]

    def study(folder):
        return Study(
            chosen,
            pool,
            pool,
            lambda run: (range(30), range(30, 40)),
            tmp_path / folder,
            PLAN,
            "cpu",
        )

    whole, steps = study("whole"), []
    assert whole.work() == (2 * 4 * 25 + 4 * 50) + 3 * (2 + 3 + 2) * 5
    assert whole.speed(0.01) > 0
    assert whole.go(tick=steps.append) and sum(steps) == 2 * 4 * 25 + 4 * 50
    pieces = study("pieces")
    assert not pieces.go(seconds=0.0)
    again = study("pieces")
    assert again.go() and again.work() == 0
    results = [
        json.loads((tmp_path / f / "record.json").read_text(encoding="utf-8"))["runs"]
        for f in ("whole", "pieces")
    ]
    assert set(results[0]) == {"o15_i5", "o55_s5", "o15_i10"}
    for name, held in results[0].items():
        assert [at for at, _ in held["curve"]] == [2, 4]
        assert (
            held["final"]["transductive"]["tasks"] == 3 and held["final"]["inductive"]["tasks"] == 2
        )
        assert held == results[1][name]
    assert not list(
        (tmp_path / "pieces").glob("*.safetensors")
    )  # finished stacks leave no checkpoint


def _small(folder, iterations=12, every=4):
    rng = np.random.default_rng(0)
    pool = Pool.of(
        (rng.random((40 * 20, 8, 8)) > 0.3).astype(np.uint8), np.repeat(np.arange(40), 20)
    )
    chosen = [replace(r, eval_steps=3) for r in runs() if r.name in ("o15_i5", "o15_i10")]
    plan = Plan(every=every, curve=2, final=3, inductive=2, iterations=iterations)
    return Study(chosen, pool, pool, lambda run: (range(30), range(30, 40)), folder, plan, "cpu")


def _record(folder):
    return json.loads((folder / "record.json").read_text(encoding="utf-8"))["runs"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert _small(folder).go()
    return _record(folder)


@pytest.mark.parametrize("slices", [3, 11, 18])
def test_a_study_stopped_anywhere_ends_with_the_same_numbers(tmp_path, whole, slices):
    """Between looks, in the middle of what was drawn ahead, where the outer step's schedule must
    not have run ahead too.
    """
    left = [slices]

    def tick(_):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _small(tmp_path).go(tick=tick)
    assert list(tmp_path.glob("*.safetensors"))
    assert _small(tmp_path).go()
    assert _record(tmp_path) == whole


def test_a_killed_study_goes_on_from_its_last_look(tmp_path, whole):
    """The folder as kill -9 would leave it some iterations after a look: its record and its
    checkpoints agree.
    """
    seen, copy = [], tmp_path / "copy"

    def progress(group, at, total):
        seen.append(at)
        if seen.count(8) == 1 and not copy.exists():
            shutil.copytree(tmp_path / "live", copy)

    assert _small(tmp_path / "live").go(progress=progress)
    held = _small(copy)
    assert held.go() and _record(copy) == whole


def test_a_folder_of_another_study_is_refused(tmp_path):
    _small(tmp_path, 2, 2).go(seconds=0.0)
    with pytest.raises(FMRLError, match="was begun with Plan"):
        _small(tmp_path, 3, 2)
    study = _small(tmp_path, 2, 2)
    other = Pool.of(np.zeros((400, 8, 8), np.uint8), np.repeat(np.arange(40), 10))
    with pytest.raises(FMRLError, match="was begun with Pool"):
        Study(study.runs, other, other, study.classes, tmp_path, study.plan, "cpu")
    (tmp_path / "record.json").write_text("{")
    with pytest.raises(FMRLError, match="is no record"):
        _small(tmp_path, 2, 2)


@pytest.mark.parametrize("call", [1, 3, 4, 5, 7, 8])
def test_a_study_stopped_in_a_look_takes_it_again(tmp_path, whole, monkeypatch, call):
    """Before, between and after the two protocols of the last look, and in earlier ones."""
    calls, honest = [0], reproduce.evaluate

    def stopping(*args, **options):
        calls[0] += 1
        if calls[0] == call:
            raise KeyboardInterrupt
        return honest(*args, **options)

    monkeypatch.setattr(reproduce, "evaluate", stopping)
    with pytest.raises(KeyboardInterrupt):
        _small(tmp_path).go()
    assert not _small(tmp_path)._finished(_small(tmp_path).runs)
    assert _small(tmp_path).go()
    assert _record(tmp_path) == whole
