"""``fmrl data``: what the commands print, and their exit codes: 0 done, 1 a data set is wrong or
missing (verify), 2 something to correct.
"""

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from fmrl.cli.data import app
from fmrl.datasets import Encoder, registry, tasks_from_frame


def run(*args):
    return CliRunner().invoke(app, [*map(str, args)])


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ("get mini-imagenet", 2, "error: Mini-ImageNet"),
        ("get nonsense", 2, "no data set is called 'nonsense'"),
        ("get [/foo]", 2, "no data set is called '[/foo]'"),
        ("list --data {}/none", 2, "does not exist"),
        ("build omniglot", 2, "there is no recipe for 'omniglot'"),
        ("build mini-wiki --wiki3029 {}/none --wordnet {}", 2, "none does not exist"),
        ("verify --data {}/none", 2, "does not exist"),
        ("verify nonsense", 2, "no data set is called 'nonsense'"),
        ("verify omniglot --data {}", 1, "not here omniglot: fmrl data get omniglot"),
        ("verify --data {}", 1, "no data set is here (searched: {};"),
        ("build --help", 0, "Example"),
        ("table --help", 0, "fmrl data table sales.csv"),
    ],
)
def test_exit_codes(tmp_path, args, code, message):
    got = run(*args.replace("{}", str(tmp_path)).split())
    assert got.exit_code == code and message.replace("{}", str(tmp_path)) in got.output, got.output
    assert "Traceback" not in got.output and "wrong" not in got.output


def test_a_wrong_data_set_is_named(tmp_path):
    (tmp_path / "omniglot_105_packed.npz").write_bytes(b"not it")
    got = run("verify", "omniglot", "--data", tmp_path)
    assert got.exit_code == 1 and "wrong omniglot" in got.output and "altered" in got.output
    assert "DAMAGED" in run("list", "--data", tmp_path).output.replace("\n", "")


def test_the_list_cuts_no_name_and_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    got = run("list", "--data", tmp_path)
    assert got.exit_code == 0 and all(name in got.output for name in registry.DATASETS)
    assert str(tmp_path) in got.output.replace("\n", "")


def test_verify_shared(shared):
    folder = shared("omniglot_105_packed.npz").parent
    got = run("verify", "omniglot", "wordnet", "leaf-shakespeare", "--data", folder)
    assert got.exit_code == 0, got.output
    assert "1,623 classes, 20 drawings per class" in got.output


@pytest.fixture
def path(tmp_path):
    n = 30
    columns = {"shop": np.arange(n) // 6, "size": np.arange(n) * 1.0}
    frame = pl.DataFrame(columns | {"kind": ["x", "y", "z"] * 10, "sold": ["a", "b"] * 15})
    frame.write_parquet(tmp_path / "f.parquet")
    frame.sample(fraction=1.0, shuffle=True, seed=0).write_csv(tmp_path / "apart.csv")
    return tmp_path / "f.parquet"


def test_a_table_is_described(path):
    args = ("table", path, "--task", "shop", "--target", "sold")
    held = json.loads(run(*args, "--json").output)
    assert held["tasks"] == 5 and held["rows"] == 30
    assert held["loss"] == "Logistic(classes=('a', 'b'))"
    names = ("least", "quarter", "median", "three quarters", "most")
    assert held["rows a task"] == dict.fromkeys(names, 6.0)
    assert held["columns"] == ["size", "kind=x", "kind=y", "kind=z"]
    text = run(*args).output
    assert "tasks 5" in text and "median 6" in text and "kind=z" in text


def test_options_are_those_of_the_function(path, tmp_path):
    args = "--task shop --target size --features kind --features sold --apart gather --order sold"
    stored = tmp_path / "encoder.json"
    more = ("--train", 0.5, "--loss", "squared", "--save-encoder", stored, "--json")
    got = run("table", tmp_path / "apart.csv", *args.split(), *more)
    assert got.exit_code == 0, got.output
    same = tasks_from_frame(path, task="shop", target="size", features=["kind", "sold"], train=0.5)
    assert Encoder.from_json(stored.read_text()) == same.encoder
    got = run("table", path, "--task", "shop", "--target", "size", "--encoder", stored)
    assert got.exit_code == 0, got.output
    got = run("table", path, "--task", "kind", "--target", "shop", "--kind", "regression",
              "--apart", "gather")  # fmt: skip
    assert "loss Squared()" in got.output


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("f.parquet", "--task [/shop]", "there is no column '[/shop]'"),
        ("f.parquet", "--task shop --missing guess", "missing='guess' is unknown"),
        ("f.parquet", "--task shop --loss best", "--loss best is unknown"),
        ("f.parquet", "--task shop --kind odd", "--kind odd is unknown"),
        ("apart.csv", "--task shop", "--apart gather"),
        ("none.csv", "--task shop", "does not exist"),
    ],
)
def test_mistakes_are_one_line(path, file, options, message):
    got = run("table", path.parent / file, "--target", "sold", *options.split())
    assert got.exit_code == 2 and message in got.output and got.output.count("\n") == 1, got.output
