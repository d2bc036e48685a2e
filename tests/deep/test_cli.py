"""``fmrl reproduce shots | iterations | deep`` on a small table: a quick look, stopping and going
on, refusals, what is printed.
"""
# ruff: noqa: E402

import json
import re
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner

from fmrl import FMRLError
from fmrl.cli import reproduce_deep as deep_cli
from fmrl.cli.main import app
from fmrl.deep.tasks import Pool
from fmrl.reproduce.deep.settings import compare, crossing, family, reference, runs, smallest


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Tables of 8×8 pixels in place of Omniglot, and a folder to run in."""
    rng = np.random.default_rng(0)
    pool = Pool.of(
        (rng.random((40 * 25, 8, 8)) > 0.3).astype(np.uint8), np.repeat(np.arange(40), 25)
    )
    monkeypatch.setattr(
        deep_cli,
        "_pools",
        lambda on, data, device: (pool, pool, lambda run: (range(20), range(20, 40))),
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words):
    return CliRunner().invoke(app, ["reproduce", *words])


def test_a_quick_look_covers_every_family_and_judges_nothing(small):
    result = call("iterations", "--quick", "--device", "cpu")
    assert result.exit_code == 0, (result.output, result.exception)
    record = json.loads(
        (small / "runs/iterations-omniglot-quick/record.json").read_text(encoding="utf-8")
    )
    assert set(record["runs"]) == {
        f"{f}_i{steps}" for f in ("o15", "o55", "o120", "o520") for steps in (5, 10)
    }
    assert all(r["final"]["transductive"]["tasks"] == 4 for r in record["runs"].values())
    assert "too few tasks to judge" in result.stdout and "runs within" not in result.output
    assert "What the paper says" not in result.stdout and "0 of 0" not in result.output
    verdicts = json.loads(
        (small / "runs/iterations-omniglot-quick/verdicts.json").read_text(encoding="utf-8")
    )
    assert verdicts and all(v["ours"] is None for v in verdicts)
    assert any("4 tasks, too few to judge" in v["ours_numbers"] for v in verdicts)

    again = call(
        "iterations", "--quick", "--device", "cpu", "--json"
    )  # everything is done: only printed
    assert again.exit_code == 0 and again.stderr == ""
    told = json.loads(again.stdout)
    assert told["finished"] and told["plan"]["iterations"] == 3 and told["verdicts"] == verdicts
    assert {r["run"] for r in told["rows"]} == set(record["runs"]) and all(
        r["within"] is None for r in told["rows"]
    )
    assert all(
        r["ours"] == record["runs"][r["run"]]["final"]["transductive"]["accuracy"]
        for r in told["rows"]
    )
    assert (
        told["record"] == "runs/iterations-omniglot-quick/record.json" and len(told["figures"]) == 2
    )


def test_a_stopped_study_says_so_and_goes_on_from_where_it_was(small, monkeypatch):
    chosen = [replace(r, eval_steps=2) for r in runs() if r.name in ("o15_i5", "o15_s5")]
    monkeypatch.setattr(deep_cli, "_chosen", lambda on, sweep, quick, seeds: chosen)
    words = [
        "shots",
        "--device",
        "cpu",
        "--iterations",
        "40",
        "--every",
        "40",
        "--curve",
        "2",
        "--final",
        "2",
        "--inductive",
        "2",
    ]
    stopped = call(*words, "--seconds", "0.01")
    assert stopped.exit_code == 0 and "not finished: run the same command again" in stopped.stdout
    assert "no run is finished yet" in stopped.stdout and "of 0 runs" not in stopped.output

    from fmrl.reproduce.deep.reproduce import Plan, Study

    plan = Plan(every=40, curve=2, final=2, inductive=2, iterations=40)
    pools = deep_cli._pools(None, None, "cpu")
    study = Study(chosen, *pools, small / "runs/shots-omniglot", plan, "cpu")
    done, total = study.training()
    whole = 40 * 5 * 5 * 2  # meta-iterations, tasks, steps, runs
    assert total == whole and 0 < done < whole and done % (5 * 5 * 2) == 0
    resumed = call(*words)
    assert resumed.exit_code == 0 and "not finished" not in resumed.stdout
    left = int(re.search(r"([\d,]+) task-steps, about", resumed.stderr)[1].replace(",", ""))
    assert left == whole - done + 2 * (2 + 2) * 2  # what was done is not counted again
    assert Study(chosen, *pools, small / "runs/shots-omniglot", plan, "cpu").training() == (0, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "nope"], "--device nope is unknown; say cuda or cpu"),
        (["--device", "mps"], "--device mps is not supported; say cuda or cpu"),
        (["--device", "cuda:99"], "--device cuda:99: there is no such GPU"),
        (["--precision", "fp8"], "--precision fp8 is unknown"),
    ],
)
def test_devices_and_precisions_that_are_not_there(small, words, said):
    result = call("shots", *words)
    assert isinstance(result.exception, FMRLError) and said in str(result.exception)
    assert not (small / "runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--iterations", "0"],
        ["--iterations", "-3"],
        ["--seeds", "0"],
        ["--final", "1"],
        ["--seconds", "-1"],
    ],
)
def test_counts_below_one_are_refused(small, words):
    result = call("deep", *words)
    assert result.exit_code == 2 and words[0] in result.output and not (small / "runs").exists()


@pytest.mark.parametrize("name", ["shots", "iterations", "deep"])
def test_help_says_where_results_go(name):
    text = " ".join(call(name, "--help").output.replace("│", " ").split())
    assert "runs/deep-omniglot" in text and "--json" in text and "--quick" in text


def test_settings_that_are_run():
    assert len(deep_cli._chosen(deep_cli.Set.omniglot, None, False, None)) == 32 + 8
    assert len(deep_cli._chosen(deep_cli.Set.omniglot, None, False, 1)) == 32
    assert len(deep_cli._chosen(deep_cli.Set.tiny, "shots", False, 3)) == 10 + 4
    assert [r.name for r in smallest(sweep="shots")][:2] == ["o15_s5", "o15_i5"] and len(
        smallest()
    ) == 12
    assert all(
        name in {r.name for r in family(name.split("_")[0], s).values()}
        for name in crossing()
        for s in ("shots", "iterations")
    )


def test_the_allowed_difference_is_two_standard_errors_of_the_authors_or_a_point_and_a_half():
    theirs = reference()["m15_i8"]
    end = {
        "accuracy": theirs["accuracy"]["test"] + 2 * theirs["test_se"] - 1e-6,
        "error": 0.9,
        "tasks": 1000,
    }
    results = {
        key: {"curve": [], "final": {"transductive": end, "inductive": end}}
        for key in ("m15_i8", "m15_i8@1")
    }
    rows = compare(results)
    assert [r["within"] for r in rows] == [True, True]
    assert {r["allowed"] for r in rows} == {
        round(2 * theirs["test_se"], 5)
    }  # whatever our own error is, at every seed
    end["accuracy"] += 1e-5
    assert [r["within"] for r in compare(results)] == [False, False]
    end["tasks"] = 99
    assert [r["within"] for r in compare(results)] == [None, None]
