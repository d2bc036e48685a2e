"""A study of the paper's runs, in small: it stops when its time is over, goes on, and records
every run.
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
from fmrl.reproduce.deep import study as module
from fmrl.reproduce.deep.settings import Plan, runs
from fmrl.reproduce.deep.study import Study


def _small(folder, iterations=6, every=2, names=("o15_i5", "o15_i10"), eval_steps=3):
    rng = np.random.default_rng(0)
    images = (rng.random((40 * 20, 8, 8)) > 0.3).astype(np.uint8)
    pool = Pool.of(images, np.repeat(np.arange(40), 20))
    chosen = [replace(r, eval_steps=eval_steps) for r in runs() if r.name in names]
    plan = Plan(every=every, curve=2, final=3, inductive=2, iterations=iterations)
    return Study(chosen, pool, pool, lambda run: (range(30), range(30, 40)), folder, plan, "cpu")


def test_a_study_goes_on_where_it_stopped(tmp_path):
    names, steps = ("o15_i5", "o55_s5", "o15_i10"), []

    def study(folder):
        return _small(tmp_path / folder, 4, 2, names, 5)

    whole = study("whole")
    assert whole.work() == (2 * 4 * 25 + 4 * 50) + 3 * (2 + 3 + 2) * 5
    assert whole.speed(0.01) > 0
    assert whole.go(tick=steps.append) and sum(steps) == 2 * 4 * 25 + 4 * 50
    assert not study("pieces").go(seconds=0.0)
    again = study("pieces")
    assert again.go() and again.work() == 0
    results, pieces = _record(tmp_path / "whole"), _record(tmp_path / "pieces")
    assert set(results) == set(names) and results == pieces
    for held in results.values():
        assert [at for at, _ in held["curve"]] == [2, 4]
        assert {p: end["tasks"] for p, end in held["final"].items()} == {
            "transductive": 3,
            "inductive": 2,
        }
    # Finished stacks leave no checkpoint.
    assert not list((tmp_path / "pieces").glob("*.safetensors"))


def _record(folder):
    return json.loads((folder / "record.json").read_text(encoding="utf-8"))["runs"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert _small(folder).go()
    return _record(folder)


@pytest.mark.parametrize("slices", [3, 5, 9])
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
        if seen.count(4) == 1 and not copy.exists():
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
    with pytest.raises(FMRLError, match="is not a record"):
        _small(tmp_path, 2, 2)


@pytest.mark.parametrize("call", [1, 3, 4, 5, 7, 8])
def test_a_study_stopped_in_a_look_takes_it_again(tmp_path, whole, monkeypatch, call):
    """Before, between and after the two protocols of the last look, and in earlier ones."""
    calls, honest = [0], module.evaluate

    def stopping(*args, **options):
        calls[0] += 1
        if calls[0] == call:
            raise KeyboardInterrupt
        return honest(*args, **options)

    monkeypatch.setattr(module, "evaluate", stopping)
    with pytest.raises(KeyboardInterrupt):
        _small(tmp_path).go()
    assert not _small(tmp_path)._finished(_small(tmp_path).runs)
    assert _small(tmp_path).go()
    assert _record(tmp_path) == whole
