"""What the commands say where a newcomer's table is not what they expect."""

import re
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from fmrl.cli.main import app
from fmrl.runs import Run
from fmrl.runs.facts import facts


def said(line, code=0):
    """What a command prints, on one line."""
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == code, result.output
    return re.sub(r"\s+", " ", result.output)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """40 shops with 3 to 8 rows, in ``visits.csv``, and the run on them."""
    rng, home = np.random.default_rng(0), tmp_path_factory.mktemp("shops")
    shop = np.repeat(np.arange(40), rng.integers(3, 9, 40))
    price, promo = rng.normal(size=len(shop)), rng.random(len(shop)) < 0.3
    y = rng.normal(10, 1, 40)[shop] + 2 * price + 3 * promo + rng.normal(size=len(shop))
    columns = {"shop": shop, "price": price, "promo": promo.astype(int), "y": y}
    pl.DataFrame(columns).with_columns(pl.format("s{}", "shop").alias("shop")).write_csv(
        home / "visits.csv"
    )
    said(f"train {home}/visits.csv --task shop --target y --out {home}/run")
    return home


@pytest.fixture(autouse=True)
def _here(home, monkeypatch):
    monkeypatch.chdir(home)


def test_the_report_says_the_unit_of_an_effect(home):
    note = facts(Run.load(home / "run"))["learned"]["note"]
    assert note.startswith("per standard deviation of a feature")


def test_adapting_says_which_rows_do_not_count(home):
    held = pl.read_csv("visits.csv").filter(pl.col("shop") == "s7")
    assert "s7" in pl.read_parquet("run/tasks.parquet")["task"]
    held.head(2).write_csv("seen.csv")
    held.head(2).with_columns(shop=pl.lit("new")).write_csv("new.csv")
    assert "warning" not in said("adapt run new.csv")
    again = said("adapt run new.csv")
    assert "1 task adapted to before: the new model is of the rows given now alone" in again
    told = said("adapt run seen.csv --out seen.json")
    assert "1 task seen in training: the new model is of the rows given now alone" in told
    assert f"without the {len(held)} rows of training; give all rows of a task at once" in told
    assert "leave --adapted away: fmrl predict then uses the model of training" in told
    assert "or delete run/adapted.safetensors" in said("adapt run seen.csv")


def test_runs_are_there_after_import_fmrl():
    code = "import fmrl; print(fmrl.runs.Run.__name__, 'runs' in dir(fmrl))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "Run True\n"


def test_a_bad_number_is_named(home):
    table = pl.read_csv("visits.csv")
    odd = table.with_row_index().with_columns(pl.col("price").cast(pl.String))
    odd = odd.with_columns(pl.when(pl.col("index") == 3).then(pl.lit("abc")).otherwise("price"))
    odd.drop("price").rename({"literal": "price"}).write_csv("bad.csv")
    for command in ("predict run bad.csv --out p.csv", "adapt run bad.csv"):
        told = said(command, code=2)
        assert "error: column 'price' holds 'abc' in row 3, which is no number; correct it" in told


def test_train_says_that_held_out_tasks_are_not_learned_from(home):
    told = said("train visits.csv --task shop --target y --out some")
    away = Run.load(home / "some").record["heldout_tasks"]
    assert f"the {away} held-out tasks were not learned from: rows of such a task are" in told
    assert "--holdout 0 trains on all" in told
    every = said("train visits.csv --task shop --target y --holdout 0 --out every")
    assert "not learned from" not in every
