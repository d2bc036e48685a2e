"""A study of the paper's runs, in small: it stops when its time is over, goes on, and records every run."""
# ruff: noqa: E402

import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fmrl.deep.reproduce import Plan, Study, runs
from fmrl.deep.tasks import Pool

PLAN = Plan(every=2, curve=2, final=3, inductive=2, iterations=4)


def test_a_study_goes_on_where_it_stopped(tmp_path):
    rng = np.random.default_rng(0)
    pool = Pool.of((rng.random((40 * 20, 8, 8)) > 0.3).astype(np.uint8), np.repeat(np.arange(40), 20))
    chosen = [replace(r, eval_steps=5) for r in runs() if r.name in ("o15_i5", "o55_s5", "o15_i10")]

    def study(folder):
        return Study(chosen, pool, pool, lambda run: (range(30), range(30, 40)), tmp_path / folder, PLAN, "cpu")

    whole, steps = study("whole"), []
    assert whole.work() == (2 * 4 * 25 + 4 * 50) + 3 * (2 + 3 + 2) * 5
    assert whole.speed(0.01) > 0
    assert whole.go(tick=steps.append) and sum(steps) == 2 * 4 * 25 + 4 * 50
    pieces = study("pieces")
    assert not pieces.go(seconds=0.0)
    again = study("pieces")
    assert again.go() and again.work() == 0
    results = [json.loads((tmp_path / f / "record.json").read_text(encoding="utf-8"))["runs"] for f in ("whole", "pieces")]
    assert set(results[0]) == {"o15_i5", "o55_s5", "o15_i10"}
    for name, held in results[0].items():
        assert [at for at, _ in held["curve"]] == [2, 4]
        assert held["final"]["transductive"]["tasks"] == 3 and held["final"]["inductive"]["tasks"] == 2
        assert held == results[1][name]
    assert not list((tmp_path / "pieces").glob("*.safetensors"))  # finished stacks leave no checkpoint
