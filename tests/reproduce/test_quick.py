"""The whole study, small, on the synthetic stand-in: what it writes, and its verdicts against the
stored ones.
"""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fmrl
from fmrl.cli.main import app
from fmrl.reproduce.convex.config import Config
from fmrl.reproduce.convex.document import FIGURES, document
from fmrl.reproduce.convex.figures import draw
from fmrl.reproduce.convex.reproduce import plan, write
from fmrl.reproduce.convex.table import EXACT

STORED = Path(__file__).parent / "quick_verdicts.json"


def verdicts(out):
    found = [
        v for figure in FIGURES for v in json.loads((out / figure / "verdicts.json").read_text())
    ]
    return {f"{v['preset']}: {v['id']}": v["passed"] for v in found}


def check_verdicts(quick):
    """The stored file leaves out the few that this small set decides by a hair."""
    found, stored = verdicts(quick[0]), json.loads(STORED.read_text())
    assert len(stored) > 0.7 * len(found)
    assert {k: found[k] for k in stored} == stored


def check_the_data_is_called_by_its_own_name(quick):
    out, printed = quick
    assert "synthetic (Gaussian mixtures" in printed
    for figure in FIGURES:
        assert json.loads((out / figure / "results.json").read_text())["data"].startswith(
            "synthetic"
        )
        assert "synthetic" in (out / figure / "results.csv").read_text().splitlines()[1]
    assert "Mini-Wiki" not in printed


def check_rows(quick):
    for figure in FIGURES:
        rows = json.loads((quick[0] / figure / "results.json").read_text())["rows"]
        for row in rows:
            assert {
                "preset",
                "within",
                "method",
                "shots",
                "mean",
                "low",
                "high",
                "interval",
                "n",
            } <= set(row)
            assert row["low"] <= row["mean"] <= row["high"]
        with open(quick[0] / figure / "results.csv", newline="") as file:
            lines = list(csv.DictReader(file))
        assert len(lines) == len(rows)
        assert float(lines[0]["mean"]) == rows[0]["mean"]


def check_record(quick):
    record = json.loads((quick[0] / "samples" / "record.json").read_text())
    assert record["data"]["sha256"] and record["versions"]["numpy"] and record["seconds"] > 0
    assert record["configuration"]["seed"] == 0
    assert record["versions"]["fmrl"] == fmrl.__version__ and record["jobs"] >= 1


def check_figures_are_drawn_from_rows(quick, tmp_path):
    for figure in FIGURES:
        found = json.loads((quick[0] / figure / "results.json").read_text())
        again = draw(figure, found["rows"], found["data"], tmp_path / figure)
        for path in again:
            assert path.read_bytes() == (quick[0] / figure / path.name).read_bytes()
            assert path.stat().st_size > 5000
        assert {p.suffix for p in again} == {".png", ".svg"}


def check_the_experiment_on_the_guess_is_only_where_it_is_one(quick):
    rows = json.loads((quick[0] / "samples" / "results.json").read_text())["rows"]
    assert {r["preset"] for r in rows if EXACT in r["within"]} == {"paper"}
    assert (
        "This preset tests the guess with the optimum"
        in document(quick[0]).split("**released preset.**")[1]
    )


def check_a_page_can_be_written(quick):
    page = document(quick[0])
    assert page.startswith("# Reproduction") and "nan%" not in page
    assert page.count("## ") >= 5


def test_quick(tmp_path):
    """One test, because one run serves all checks and takes half a minute."""
    out = tmp_path / "quick"
    command = ["reproduce", "convex", "--quick", "--dataset", "synthetic", "--out", str(out)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    quick = out, result.output
    check_verdicts(quick)
    check_the_data_is_called_by_its_own_name(quick)
    check_rows(quick)
    check_record(quick)
    check_figures_are_drawn_from_rows(quick, tmp_path / "again")
    check_the_experiment_on_the_guess_is_only_where_it_is_one(quick)
    check_a_page_can_be_written(quick)


def test_parts_have_names_of_their_own():
    names = [part.name for part in plan(FIGURES, Config())]
    assert len(set(names)) == len(names)


def test_errors_are_one_line():
    result = CliRunner().invoke(app, ["reproduce", "samples", "--dataset", "maxi-wiki"])
    assert "there is no study set" in str(result.exception)
    result = CliRunner().invoke(
        app, ["reproduce", "samples", "--preset", "papier", "--dataset", "synthetic"]
    )
    assert "there is no preset" in str(result.exception)


def test_a_file_is_no_folder(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for out in (taken, taken / "below"):
        result = CliRunner().invoke(
            app, ["reproduce", "growth", "--quick", "--dataset", "synthetic", "--out", str(out)]
        )
        assert isinstance(result.exception, fmrl.FMRLError) and "is a file, not a folder" in str(
            result.exception
        )
    assert taken.read_text() == "mine"


def test_a_seed_is_not_negative():
    result = CliRunner().invoke(
        app, ["reproduce", "growth", "--seed", "-1", "--dataset", "synthetic"]
    )
    assert result.exit_code == 2
    with pytest.raises(fmrl.FMRLError, match="seed"):
        Config(seed=-1)


@pytest.mark.parametrize(
    ("given", "orders"), [((), (4, 3)), (("--orders", "8"), (8, 2)), (("--orders", "40"), (40, 10))]
)
def test_quick_takes_the_orders_it_is_given(monkeypatch, tmp_path, given, orders):
    seen = []
    monkeypatch.setattr(
        "fmrl.cli.reproduce._run", lambda figures, config, *rest: seen.append(config)
    )
    command = [
        "reproduce",
        "samples",
        "--quick",
        "--dataset",
        "synthetic",
        "--out",
        str(tmp_path),
        *given,
    ]
    CliRunner().invoke(app, command, catch_exceptions=False)
    assert (seen[0].orders, seen[0].ftrl_orders) == orders and seen[0].tasks


def test_pictures_of_an_earlier_run_go(tmp_path):
    found = json.loads(
        (STORED.parents[2] / "results" / "convex" / "batch" / "results.json").read_text(
            encoding="utf-8"
        )
    )
    entry = {"data": {"title": "any"}}
    write("batch", found["rows"], [], entry, tmp_path)
    (tmp_path / "batch" / "notes.png").write_text("mine")
    write("batch", [r for r in found["rows"] if r["preset"] == "paper"], [], entry, tmp_path)
    assert {p.name for p in (tmp_path / "batch").glob("*.png")} == {"batch-paper.png", "notes.png"}
