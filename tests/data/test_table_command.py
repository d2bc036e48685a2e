import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from fmrl.cli.data import app
from fmrl.datasets import Encoder, tasks_from_frame


@pytest.fixture
def path(tmp_path):
    n = 30
    frame = pl.DataFrame(
        {
            "shop": np.arange(n) // 6,
            "size": np.arange(n) * 1.0,
            "kind": ["x", "y", "z"] * 10,
            "sold": ["a", "b"] * 15,
        }
    )
    frame.write_parquet(tmp_path / "f.parquet")
    frame.sample(fraction=1.0, shuffle=True, seed=0).write_csv(tmp_path / "apart.csv")
    return tmp_path / "f.parquet"


def run(*args):
    return CliRunner().invoke(app, ["table", *map(str, args)])


def test_says_what_the_tasks_are(path):
    got = run(path, "--task", "shop", "--target", "sold", "--json")
    assert got.exit_code == 0, got.output
    held = json.loads(got.output)
    assert (
        held["tasks"] == 5 and held["rows"] == 30 and held["loss"] == "Logistic(classes=('a', 'b'))"
    )
    assert held["rows a task"] == dict.fromkeys(
        ("least", "quarter", "median", "three quarters", "most"), 6.0
    )
    assert held["columns"] == ["size", "kind=x", "kind=y", "kind=z"]
    text = run(path, "--task", "shop", "--target", "sold").output
    assert "tasks 5" in text and "median 6" in text and "kind=z" in text


def test_options_are_those_of_the_function(path, tmp_path):
    args = [
        "--task",
        "shop",
        "--target",
        "size",
        "--features",
        "kind",
        "--features",
        "sold",
        "--apart",
        "gather",
        "--order",
        "sold",
    ]
    stored = tmp_path / "encoder.json"
    got = run(
        tmp_path / "apart.csv",
        *args,
        "--train",
        0.5,
        "--loss",
        "squared",
        "--save-encoder",
        stored,
        "--json",
    )
    assert got.exit_code == 0, got.output
    same = tasks_from_frame(path, task="shop", target="size", features=["kind", "sold"], train=0.5)
    assert Encoder.from_json(stored.read_text()) == same.encoder
    got = run(path, "--task", "shop", "--target", "size", "--encoder", stored)
    assert got.exit_code == 0, got.output


def test_mistakes_are_one_line(path, tmp_path):
    for args, message in (
        ((path, "--task", "[/shop]", "--target", "sold"), "there is no column '[/shop]'"),
        (
            (path, "--task", "shop", "--target", "sold", "--missing", "guess"),
            "missing='guess' is unknown",
        ),
        ((path, "--task", "shop", "--target", "sold", "--loss", "best"), "--loss best is unknown"),
        ((tmp_path / "apart.csv", "--task", "shop", "--target", "sold"), "apart='gather'"),
        ((tmp_path / "none.csv", "--task", "shop", "--target", "sold"), "does not exist"),
    ):
        got = run(*args)
        assert got.exit_code == 1 and message in got.output and got.output.count("\n") == 1, (
            got.output
        )
    help_ = run("--help").output
    assert "fmrl data table sales.csv" in help_
