"""``fmrl reproduce shots | iterations | deep`` on a small table: a quick look, stopping and going
on, refusals, what is printed.
"""
# ruff: noqa: E402

import json
import re
from dataclasses import replace
from functools import partialmethod

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner

from fmrl.cli.main import app
from fmrl.deep.tasks import Pool
from fmrl.records import write_json
from fmrl.reproduce.deep import settings, study
from fmrl.reproduce.deep.settings import DataSet, Plan, compare, crossing, family, reference, runs

from .records import made


def tables(monkeypatch, classes, each, split=lambda run: (None, None)):
    """Tables of 8×8 pixels in place of a data set."""
    images = np.random.default_rng(0).random((classes * each, 8, 8)) > 0.3
    pool = Pool.of(images.astype(np.uint8), np.repeat(np.arange(classes), each))
    monkeypatch.setattr(study, "pools", lambda on, data, device: (pool, pool, split))
    return pool


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A folder to run in."""
    tables(monkeypatch, 40, 25, lambda run: (range(20), range(20, 40)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def call(*words):
    return CliRunner().invoke(app, ["reproduce", *words])


def test_a_quick_look_covers_every_family_and_judges_nothing(small):
    result = call("iterations", "--quick", "--device", "cpu")
    assert result.exit_code == 0, (result.output, result.exception)
    folder = small / "runs/iterations-omniglot-quick"
    record, verdicts = read(folder / "record.json"), read(folder / "verdicts.json")
    families = ("o15", "o55", "o120", "o520")
    assert set(record["runs"]) == {f"{f}_i{steps}" for f in families for steps in (5, 10)}
    assert all(r["final"]["transductive"]["tasks"] == 4 for r in record["runs"].values())
    assert "too few tasks to judge" in result.stdout and "runs within" not in result.output
    assert "What the paper says" not in result.stdout and "0 of 0" not in result.output
    ours = [v for v in verdicts if v["preset"] == "ours"]
    assert ours and all(v["passed"] is None for v in ours)
    assert any("4 tasks, too few to judge" in v["numbers"] for v in ours)

    again = call("iterations", "--quick", "--device", "cpu", "--json")  # all is done: only printed
    assert again.exit_code == 0 and again.stderr == ""
    told = json.loads(again.stdout)
    assert told["finished"] and told["plan"]["iterations"] == 3 and told["verdicts"] == verdicts
    assert {r["run"] for r in told["rows"]} == set(record["runs"])
    for r in told["rows"]:
        assert r["within"] is None
        assert r["ours"] == record["runs"][r["run"]]["final"]["transductive"]["accuracy"]
    assert told["record"] == "runs/iterations-omniglot-quick/record.json"
    assert len(told["figures"]) == 2


def test_a_stopped_study_says_so_and_goes_on_from_where_it_was(small, monkeypatch):
    chosen = [replace(r, eval_steps=2) for r in runs() if r.name in ("o15_i5", "o15_s5")]
    monkeypatch.setattr(settings, "asked_for", lambda on, sweep, quick, seeds: chosen)
    monkeypatch.setattr(study.Study, "speed", partialmethod(study.Study.speed, 0.05))
    words = ["shots", "--device", "cpu", "--iterations", "12", "--every", "12", "--curve", "2"]
    words += ["--final", "2", "--inductive", "2"]
    stopped = call(*words, "--seconds", "0.01")
    assert stopped.exit_code == 0 and "not finished: run the same command again" in stopped.stdout
    assert "no run is finished yet" in stopped.stdout and "of 0 runs" not in stopped.output

    plan = Plan(every=12, curve=2, final=2, inductive=2, iterations=12)
    begun = chosen, *study.pools(None, None, "cpu"), small / "runs/shots-omniglot", plan, "cpu"
    done, total = study.Study(*begun).training()
    whole = 12 * 5 * 5 * 2  # meta-iterations, tasks, steps, runs
    assert total == whole and 0 < done < whole and done % (5 * 5 * 2) == 0
    resumed = call(*words)
    assert resumed.exit_code == 0 and "not finished" not in resumed.stdout
    left = int(re.search(r"([\d,]+) task-steps, about", resumed.stderr)[1].replace(",", ""))
    assert left == whole - done + 2 * (2 + 2) * 2  # what was done is not counted again
    assert study.Study(*begun).training() == (0, 0)


@pytest.mark.parametrize(
    ("sweep", "on", "pictures", "claims"),
    [
        ("deep", DataSet.tiny, ["deep-tiny-imagenet-100.png"], 14),
        ("iterations", DataSet.mini, ["deep-mini-imagenet.png"], 6),
        ("shots", DataSet.omniglot, ["deep-omniglot-20-way.png", "deep-omniglot-5-way.png"], 12),
    ],
)
def test_the_command_leaves_figures_and_verdicts_beside_its_record(
    tmp_path, monkeypatch, sweep, on, pictures, claims
):
    """With a record in which everything is done."""
    done = {"plan": repr(Plan().quick(on)), "data": repr(tables(monkeypatch, 2, 2))}
    write_json(tmp_path / "record.json", made(on.settings, "Pool", 10, 48, 0) | done)
    words = ["--set", on.value, "--quick", "--device", "cpu", "--out", str(tmp_path)]
    result = call(sweep, *words)
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in tmp_path.glob("*.png")) == pictures
    assert all(f"figure: {tmp_path / name}" in result.output for name in pictures)
    told = read(tmp_path / "verdicts.json")
    assert [v["preset"] for v in told] == ["ours", "authors' log"] * claims
    assert all(v["passed"] is not None for v in told)
    assert "What the paper says" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "nope"], "--device nope cannot be used; say cuda or cpu"),
        (["--device", "mps"], "--device mps cannot be used; say cuda or cpu"),
        (["--device", "cuda:99"], "--device cuda:99: there is no such GPU"),
        (["--precision", "fp8"], "--precision fp8 is unknown"),
    ],
)
def test_devices_and_precisions_that_are_not_there(small, words, said):
    result = call("shots", *words)
    assert result.exit_code == 2 and said in result.stderr
    assert not (small / "runs").exists()


@pytest.mark.parametrize(
    "words", ["--iterations 0", "--iterations -3", "--seeds 0", "--final 1", "--seconds -1"]
)
def test_counts_below_one_are_refused(small, words):
    result = call("deep", *words.split())
    assert result.exit_code == 2 and words.split()[0] in result.output
    assert not (small / "runs").exists()


@pytest.mark.parametrize("name", ["shots", "iterations", "deep"])
def test_help_says_where_results_go(name):
    text = " ".join(call(name, "--help").output.replace("│", " ").split())
    assert "runs/deep-omniglot" in text and "--json" in text and "--quick" in text


def test_settings_that_are_run():
    assert len(settings.asked_for(DataSet.omniglot, None, False, None)) == 32 + 8
    assert len(settings.asked_for(DataSet.omniglot, None, False, 1)) == 32
    assert len(settings.asked_for(DataSet.tiny, "shots", False, 3)) == 10 + 4
    few = settings.smallest(sweep="shots")
    assert [r.name for r in few][:2] == ["o15_s5", "o15_i5"] and len(settings.smallest()) == 12
    for name in crossing():
        for sweep in ("shots", "iterations"):
            assert name in {r.name for r in family(name.split("_")[0], sweep).values()}


def test_the_allowed_difference_is_two_standard_errors_of_the_authors_or_a_point_and_a_half():
    theirs = reference()["m15_i8"]
    most = theirs["accuracy"]["test"] + 2 * theirs["test_se"]
    end = {"accuracy": most - 1e-6, "error": 0.9, "tasks": 1000}
    final = {"curve": [], "final": {"transductive": end, "inductive": end}}
    results = {key: final for key in ("m15_i8", "m15_i8@1")}
    rows = compare(results)
    assert [r["within"] for r in rows] == [True, True]
    # Whatever our own error is, at every seed.
    assert {r["allowed"] for r in rows} == {round(2 * theirs["test_se"], 5)}
    end["accuracy"] += 1e-5
    assert [r["within"] for r in compare(results)] == [False, False]
    end["tasks"] = 99
    assert [r["within"] for r in compare(results)] == [None, None]
