"""The whole convex study, small, on the synthetic stand-in: what it writes, and its verdicts
against the stored ones. And what the commands say.
"""

import csv
import json
from pathlib import Path

import pytest
from reproduction.convex import document
from typer.testing import CliRunner

import fmrl
from fmrl.cli.main import app
from fmrl.reproduce.convex.compositions import EXACT
from fmrl.reproduce.convex.data import Config
from fmrl.reproduce.convex.study import FIGURES, plan
from fmrl.reproduce.figures import draw
from fmrl.reproduce.study import write

STORED = Path(__file__).parent / "quick_verdicts.json"
RESULTS = Path(__file__).parents[2] / "results" / "convex"


def call(*words, **options):
    return CliRunner().invoke(app, ["reproduce", *words], **options)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def check_verdicts(out):
    """The stored file leaves out the few that this small set decides by a hair."""
    found = [v for figure in FIGURES for v in read(out / figure / "verdicts.json")]
    found, stored = {f"{v['preset']}: {v['id']}": v["passed"] for v in found}, read(STORED)
    assert len(stored) > 0.7 * len(found)
    assert {k: found[k] for k in stored} == stored


def check_rows(out):
    names = {"preset", "within", "method", "shots", "mean", "low", "high", "interval", "n"}
    for figure in FIGURES:
        found = read(out / figure / "results.json")
        assert found["data"].startswith("synthetic")
        assert all(names <= set(r) and r["low"] <= r["mean"] <= r["high"] for r in found["rows"])
        with open(out / figure / "results.csv", newline="") as file:
            lines = list(csv.DictReader(file))
        assert len(lines) == len(found["rows"]) and lines[0]["data"].startswith("synthetic")
        assert float(lines[0]["mean"]) == found["rows"][0]["mean"]
    rows = read(out / "samples" / "results.json")["rows"]
    assert {r["preset"] for r in rows if EXACT in r["within"]} == {"paper"}


def check_record(out):
    record = read(out / "samples" / "record.json")
    assert record["data"]["sha256"] and record["versions"]["numpy"] and record["seconds"] > 0
    assert record["configuration"]["seed"] == 0
    assert record["versions"]["fmrl"] == fmrl.__version__ and record["jobs"] >= 1
    assert record["spent"]["parts"] == len(plan(FIGURES, Config().quick()))


def check_figures_are_drawn_from_rows(out, again):
    for figure in ("growth", "batch"):
        found = read(out / figure / "results.json")
        rows = [r for r in found["rows"] if r["preset"] != "released"]
        drawn = draw(figure, rows, found["data"], again)
        assert {p.suffix for p in drawn} == {".png", ".svg"}
        for path in drawn:
            assert path.read_bytes() == (out / figure / path.name).read_bytes()
            assert path.stat().st_size > 5000


def check_a_page_can_be_written(out):
    page = document(out)
    assert page.startswith("# Reproduction") and "nan%" not in page and page.count("## ") >= 5
    released = page.split("**released preset.**")[1]
    assert "This preset tests the guess with the optimum" in released


def test_quick(tmp_path):
    """One test, because one run serves all checks and xdist shares no fixture between workers."""
    out = tmp_path / "quick"
    words = ["--quick", "--dataset", "synthetic", "--jobs", "1", "--out", str(out)]
    result = call("convex", *words, catch_exceptions=False)
    assert result.exit_code == 0
    # The data is called by its own name.
    assert "synthetic (Gaussian mixtures" in result.output and "Mini-Wiki" not in result.output
    check_verdicts(out)
    check_rows(out)
    check_record(out)
    check_figures_are_drawn_from_rows(out, tmp_path / "again")
    check_a_page_can_be_written(out)


def test_parts_have_names_of_their_own():
    names = [part.name for part in plan(FIGURES, Config())]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dataset", "maxi-wiki"], "there is no study set"),
        (["--dataset", "synthetic", "--preset", "papier"], "there is no preset"),
    ],
)
def test_errors_say_what_is_wrong(words, said):
    result = call("samples", *words)
    assert result.exit_code == 2 and said in result.stderr


def test_a_file_is_no_folder(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for out in (taken, taken / "below"):
        result = call("growth", "--quick", "--dataset", "synthetic", "--out", str(out))
        assert result.exit_code == 2 and "error: " in result.stderr
        assert "is a file, not a folder" in result.stderr
    assert taken.read_text() == "mine"


def test_a_seed_is_not_negative():
    assert call("growth", "--seed", "-1", "--dataset", "synthetic").exit_code == 2
    with pytest.raises(fmrl.FMRLError, match="seed"):
        Config(seed=-1)


@pytest.mark.parametrize(
    ("given", "orders"), [((), (4, 3)), (("--orders", "8"), (8, 2)), (("--orders", "40"), (40, 10))]
)
def test_quick_takes_the_orders_it_is_given(monkeypatch, tmp_path, given, orders):
    seen = []
    monkeypatch.setattr("fmrl.cli.reproduce._run", lambda study, *_: seen.append(study.config))
    call("samples", "--quick", "--dataset", "synthetic", "--out", str(tmp_path), *given)
    assert (seen[0].orders, seen[0].ftrl_orders) == orders and seen[0].tasks


def test_pictures_of_an_earlier_run_go(tmp_path):
    rows = read(RESULTS / "batch" / "results.json")["rows"]
    entry = {"data": {"title": "any"}}
    write("batch", rows, [], entry, tmp_path)
    (tmp_path / "batch" / "notes.png").write_text("mine")
    write("batch", [r for r in rows if r["preset"] == "paper"], [], entry, tmp_path)
    assert {p.name for p in (tmp_path / "batch").glob("*.png")} == {"batch-paper.png", "notes.png"}


COMMANDS = (
    *("similarity", "growth", "samples", "batch", "convex", "geometry", "environments"),
    *("privacy", "federated"),
    *("shots", "iterations", "deep"),
)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_shows_examples_as_lines_without_markup(command):
    text = call(*command, "--help", env={"COLUMNS": "100", "TERM": "dumb"}).output
    assert not any(mark in text for mark in ("**", "`", "[bold]", "[/bold]"))
    lines = [line.strip() for line in text.splitlines()]
    examples = [line for line in lines if line.startswith(" ".join(["fmrl reproduce", *command]))]
    assert len(examples) == (1 if command else 8)
    if not command:
        assert all(any(f"{name} " in line for line in lines) for name in COMMANDS)
