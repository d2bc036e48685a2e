"""``fmrl reproduce steps`` on a small table: all methods and pairs, stopping and going on, verdicts
from rows made by hand.
"""
# ruff: noqa: E402

import json
import math
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from reproduction import steps as page
from typer.testing import CliRunner

from fmrl.cli.main import app
from fmrl.deep import SGD, Fading, MetaTrainer, PerCoordinate, Pool, evaluate, omniglot_net
from fmrl.errors import FMRLError
from fmrl.reproduce.deep import study as deep_study
from fmrl.reproduce.steps import claims, methods
from fmrl.reproduce.steps import study as steps_study
from fmrl.reproduce.steps.methods import (
    ADAM,
    ARUBA,
    BOTH,
    ENVIRONMENTS,
    FIXED,
    META,
    METHODS,
    NEITHER,
    PLUS,
    START,
    STEP,
    Plan,
)  # fmt: skip
from fmrl.reproduce.steps.study import Study

torch.set_num_threads(1)
SMALL = Plan(iterations=3, tasks=3, seeds=2, search=2, steps=2)


@cache
def tables(on=None):
    images = np.random.default_rng(0).random((40 * 12, 8, 8)) > 0.3
    pool = Pool.of(images.astype(np.uint8), np.repeat(np.arange(40), 12))
    return pool, pool, lambda run: (range(25), range(25, 40))


@pytest.fixture(autouse=True, scope="module")
def narrow():
    """Networks of four filters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_study, "network", lambda run, pool: omniglot_net(
            run.ways, filters=4, side=8, seed=run.seed))  # fmt: skip
        yield


def study(folder, plan=SMALL):
    return Study(ENVIRONMENTS[:1], tables, folder, plan, "cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, narrow):
    folder, steps = tmp_path_factory.mktemp("whole"), []
    made = study(folder)
    cost = made.cost()
    assert made.go(progress=lambda name, n: steps.append(n)) and sum(steps) == cost
    return made


def test_every_method_is_tried_in_all_its_pairs_under_both_protocols(whole):
    asked = {(m, pair) for m, method in METHODS.items() for pair in method.pairs}
    asked |= {(PLUS, BOTH), (PLUS, STEP)}
    for run in ("o15_i5", "o55_i5"):
        rows = [r for r in whole.rows if r["run"] == run]
        keys = [(r["method"], r["learned"], r["seed"], r["protocol"]) for r in rows]
        assert len(set(keys)) == len(keys) == len(asked) * 2 * 2
        assert {key[:2] for key in keys} == asked and all(r["tasks"] == 3 for r in rows)
    assert whole.failed == {} and set(whole.chosen) == {"o15_i5", "o55_i5"}
    assert not list(whole.folder.glob("*.safetensors")) and whole.cost() == 0
    assert json.loads((whole.folder / "record.json").read_text())["finished"]


@pytest.mark.parametrize("stop", [4, 25])
def test_a_stopped_study_goes_on_to_the_same_numbers(tmp_path, whole, stop):
    """In training, and in the middle of the evaluations."""
    left = [stop]

    def progress(name, n):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(tmp_path).go(progress=progress)
    again = study(tmp_path)
    assert again.go(seconds=0.0) is False  # no time at all
    assert study(tmp_path).go()
    rows = study(tmp_path).rows
    order = lambda r: (r["run"], r["method"], r["learned"], r["seed"], r["protocol"])  # noqa: E731
    assert sorted(rows, key=order) == sorted(whole.rows, key=order)
    with pytest.raises(FMRLError, match="was begun with"):
        study(tmp_path, Plan(iterations=4))


def test_pairs_take_start_and_step_from_where_they_say(whole):
    """Against trainers evaluated by themselves."""
    pool, _, _ = tables()
    tasks = pool.tasks(5, 4, batch=5, steps=2, queries=1)
    nets = [omniglot_net(5, filters=4, side=8, seed=s) for s in range(2)]
    trainer = MetaTrainer(nets, SGD(), similarity=PerCoordinate(0.3), meta_batch=2)
    judge = {"protocol": "inductive", "count": 4, "what": "loss", "compare": False}
    before = evaluate(trainer, tasks, 2, **judge)
    trainer.fit(tasks, 3)
    found = methods.starts(ARUBA, trainer) | {"faded": methods.fading(trainer, 3.0)[BOTH]}
    neither = methods.starts(FIXED, trainer)[NEITHER]
    one, two = methods.stacked([found[BOTH], neither]), [tasks] * 4
    judged = evaluate(one, two, 2, **judge)
    after = evaluate(trainer, tasks, 2, **judge)
    for a, b in zip(judged, [*after, *before], strict=True):
        assert torch.allclose(a.tasks, b.tasks, rtol=1e-4)
    assert torch.equal(found[START].phi, trainer.phi) and torch.equal(found[STEP].eta, trainer.eta)
    assert torch.equal(found[STEP].phi, trainer.first) and bool((found[START].eta == 0.3).all())
    faded = evaluate(found["faded"], [tasks] * 2, 2, **judge)
    alone = evaluate(trainer, tasks, 2, within=Fading(3.0), **judge)
    for a, b in zip(faded, alone, strict=True):
        assert torch.allclose(a.tasks, b.tasks, rtol=1e-4)


def made(scores, run="o120_i10", tasks=200, error=0.002):
    """Rows of three seeds around given accuracies, {(method, pair): accuracy}."""
    return [
        {"run": run, "setting": "a", "method": m, "learned": pair, "seed": seed, "tasks": tasks,
         "protocol": protocol, "accuracy": value + 0.001 * seed, "error": error}
        for (m, pair), value in scores.items() for seed in range(3)
        for protocol in ("transductive", "inductive")
    ]  # fmt: skip


def verdict(rows, tag):
    return next(v for v in claims.judge(rows) if v.id.endswith(tag)).passed


def test_verdicts_follow_the_printed_order_and_need_more_than_chance():
    printed = {(m, BOTH): v / 100 for m, v in claims.PRINTED["o120_i10"].items()}
    rows = made(printed)
    assert all(v.passed for v in claims.judge(rows) if v.source == "printed")
    swapped = made(printed | {(PLUS, BOTH): 0.80})
    assert not verdict(swapped, f"order.{PLUS}.{ARUBA}")
    assert not verdict(swapped, f"order.{PLUS}.{ADAM}")  # level in the table
    assert not verdict(swapped, f"value.{PLUS}") and verdict(swapped, f"value.{META}")
    noisy = made(printed | {(META, BOTH): 0.90}, error=0.02)
    assert not verdict(noisy, f"order.{META}.{PLUS}")  # ahead, but not by two standard errors
    few = claims.judge(made(printed, tasks=3))
    assert all(v.passed is None and "too few" in v.numbers for v in few)


def test_verdicts_on_start_and_step_apart():
    scores = {(FIXED, START): 0.9, (FIXED, NEITHER): 0.5, (ARUBA, STEP): 0.6, (ARUBA, BOTH): 0.89}
    rows = made(scores | {(ARUBA, START): 0.9})
    assert [verdict(rows, f"apart.{tag}") for tag in ("start", "step", "both", "order", "fixed")] \
        == [True, True, False, True, False]  # fmt: skip
    one = [r | {"accuracy": 0.4} if r["learned"] == STEP and r["seed"] == 1 else r for r in rows]
    assert not verdict(one, "apart.step")  # one seed is not ahead
    rows = made({(ADAM, BOTH): 0.9, (ARUBA, BOTH): 0.89})
    other = {(ARUBA, "inductive"): 0.99}
    turned = [
        r | {"accuracy": other.get((r["method"], r["protocol"]), r["accuracy"])} for r in rows
    ]
    assert verdict(rows, "protocol") and not verdict(turned, "protocol")


def test_other_pictures_are_not_compared_with_the_printed_numbers():
    printed = {(m, BOTH): v / 100 for m, v in claims.PRINTED["m15_i8"].items()}
    found = [v.id for v in claims.judge(made(printed, "m15_i8"))]
    assert not [i for i in found if "value" in i] and [i for i in found if "order" in i]
    lines = claims.table(made(printed), "transductive")
    assert lines[0][:2] == [ADAM, BOTH] and lines[0][2].endswith("(89.4)")
    assert [line[0] for line in lines] == [ADAM, ARUBA, PLUS, META]


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(deep_study, "pools", lambda on, data, device: tables())
    words = ["reproduce", "steps", "--quick", "--device", "cpu", "--out", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, [*words, "--minutes", "0"])
    assert result.exit_code == 0 and "not finished: run the same command" in result.output
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (result.output, result.exception)
    assert (
        "no verdicts: too few test tasks" in result.output and "not finished" not in result.output
    )
    said = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert said["finished"] and all(math.isfinite(r["accuracy"]) for r in said["rows"])
    assert len(said["verdicts"]) == len(json.loads((tmp_path / "runs/verdicts.json").read_text()))
    result = CliRunner().invoke(app, [*words, "--only", "cats"])
    assert result.exit_code == 2 and "omniglot-5-way" in result.output


def test_the_page_says_what_the_record_says(whole, tmp_path):
    root = Path(__file__).parents[2]
    assert (root / "docs/steps.md").read_text() == page.document(root / "results/steps")
    assert "## Not run" in page.document(tmp_path)
    for name in ("results", "record"):
        shutil.copyfile(whole.folder / f"{name}.json", tmp_path / f"{name}.json")
    (tmp_path / "verdicts.json").write_text("[]")
    text = page.document(tmp_path)
    assert "`fmrl reproduce steps --iterations 3 --tasks 3 --seeds 2` on one CPU" in text
    row = next(r for r in whole.rows if (r["method"], r["learned"]) == (ARUBA, BOTH))
    first = claims.points(whole.rows, row["run"], "transductive")[ARUBA, BOTH]
    assert f"| {ARUBA} | {BOTH} | {100 * first.accuracy:.1f} ± " in text
