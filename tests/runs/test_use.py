"""fmrl.runs.models: adapted models are those of the estimator, predictions those one gets by
hand, whatever the block size.
"""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from faults import by_hand

import fmrl
from fmrl.runs import folder
from fmrl.runs import models as using
from fmrl.runs.models import Models, adapt, in_user_units, predict, unscaled


@pytest.fixture(scope="module")
def adapted(run, table):
    return adapt(run, str(table))


def part(models, some, **changed):
    """Some of the models."""
    ids = [models.ids[i] for i in some]
    given = {"ids": ids, "coef": models.coef[some], "intercept": models.intercept[some]}
    return replace(models, **(given | changed))


def test_models_are_those_of_the_estimator_in_the_units_of_the_table(run, table, adapted):
    frame = pl.read_csv(table)
    for name in ("u0", "u9", "u31"):
        rows = frame.filter(pl.col("user") == name)
        X = pl.DataFrame(run.encoder.transform(rows), schema=run.encoder.names)
        model = run.estimator.adapt(X, rows["liked"].to_numpy())
        i = adapted.ids.index(name)
        margin = unscaled(run.encoder).transform(rows) @ adapted.coef[i, 0]
        margin, expected = margin + adapted.intercept[i, 0], model.decision_function(X)
        np.testing.assert_allclose(margin, expected, rtol=1e-9, atol=1e-9)
    colours = [f"colour={c}" for c in ("blue", "green", "red")]
    assert adapted.features == ["price", "age", "age is missing", *colours]
    assert len(adapted.ids) == 60


def test_predictions_are_those_by_hand(run, table, adapted, tmp_path):
    adapted.save(tmp_path / "models.json")
    models = json.loads((tmp_path / "models.json").read_text())
    models["fill"] = {c.name: c.fill for c in run.encoder.columns}
    coef, intercept = in_user_units(run.encoder, *run.start)
    models["tasks"] = {n: m for n, m in models["tasks"].items() if n < "u3"}
    models["tasks"]["start"] = {"coef": coef, "intercept": intercept}
    some = [i for i, name in enumerate(adapted.ids) if name < "u3"]
    few = part(adapted, some)
    new = ~pl.col("user").is_in(run.models.ids)
    frame = pl.read_csv(table).filter(new | (pl.col("user") < "u3"))
    frame.drop("liked").write_csv(tmp_path / "rows.csv")
    counts = predict(run, str(tmp_path / "rows.csv"), tmp_path / "said.csv", few)
    said = pl.read_csv(tmp_path / "said.csv")
    assert said["prediction"].to_list() == by_hand((tmp_path / "rows.csv").read_bytes(), models)
    assert said.columns == ["user", "prediction", "p_no", "p_yes", "model"]
    np.testing.assert_allclose(said["p_no"] + said["p_yes"], 1)
    assert ((said["p_yes"] > 0.5) == (said["prediction"] == "yes")).all()
    assert said["user"].to_list() == frame["user"].to_list()
    assert (said["model"] == "adapted").to_list() == (frame["user"] < "u3").to_list()
    few = (frame["user"] < "u3").sum()
    assert counts == {"seen": 0, "adapted": few, "start": len(frame) - few}


def test_tasks_seen_have_the_models_of_training(run, table, tmp_path):
    counts = predict(run, str(table), tmp_path / "said.parquet")
    assert counts["seen"] == run.record["rows"] and counts["adapted"] == 0
    said = pl.read_parquet(tmp_path / "said.parquet")
    assert (said["prediction"] == pl.read_csv(table)["liked"]).mean() > 0.85


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".arrow"])
def test_blocks_and_kinds_of_files_say_the_same(suffix, run, table, tmp_path, monkeypatch):
    predict(run, str(table), tmp_path / "whole.parquet")
    monkeypatch.setattr(using, "BLOCK", 700)
    pl.read_csv(table).write_parquet(tmp_path / "rows.parquet")
    predict(run, str(tmp_path / "rows.parquet"), tmp_path / f"said{suffix}")
    read = {
        ".csv": pl.read_csv,
        ".tsv": lambda p: pl.read_csv(p, separator="\t"),
        ".parquet": pl.read_parquet,
        ".arrow": pl.read_ipc,
    }
    whole = pl.read_parquet(tmp_path / "whole.parquet")
    assert read[suffix](tmp_path / f"said{suffix}").equals(whole)


def test_files_of_models_come_back_and_damage_is_refused(run, adapted, tmp_path):
    for name in ("models.json", "models.safetensors"):
        adapted.save(tmp_path / name)
        back = Models.load(tmp_path / name)
        assert (back.ids, back.classes) == (adapted.ids, adapted.classes)
        assert back.run == run.record["files"][folder.MODEL]
        np.testing.assert_array_equal(back.coef, adapted.coef)
        np.testing.assert_array_equal(back.intercept, adapted.intercept)
        data = bytearray((tmp_path / name).read_bytes())
        data[-300] ^= 1
        (tmp_path / name).write_bytes(data)
        with pytest.raises(fmrl.FMRLError, match="damaged"):
            Models.load(tmp_path / name)
    with pytest.raises(fmrl.FMRLError, match=r"\.json or \.safetensors"):
        adapted.save(tmp_path / "models.pkl")


def test_mistakes_are_named(run, table, adapted, tmp_path):
    frame = pl.read_csv(table)
    nameless = pl.when(pl.int_range(pl.len()) == 3).then(None).otherwise("user")
    cases = {
        "there is no column 'price'": frame.drop("price"),
        "there is no column 'user'": frame.drop("user"),
        "row 3 has no task id": frame.with_columns(user=nameless),
        "'price' is String here": frame.with_columns(price=pl.lit("dear")),
        "the table has no row": frame[:0],
    }
    for said, odd in cases.items():
        odd.write_parquet(tmp_path / "odd.parquet")
        with pytest.raises(fmrl.FMRLError, match=said):
            predict(run, str(tmp_path / "odd.parquet"), tmp_path / "said.csv")
        assert not (tmp_path / "said.csv").exists()
    strange = frame.with_columns(liked=pl.lit("perhaps"))
    strange.write_csv(tmp_path / "odd.csv")
    with pytest.raises(fmrl.FMRLError, match="'perhaps' is not among the classes"):
        adapt(run, str(tmp_path / "odd.csv"))
    other = replace(adapted, run="another")
    with pytest.raises(fmrl.FMRLError, match="another run"):
        predict(run, str(table), tmp_path / "said.csv", other)
    with pytest.raises(fmrl.FMRLError, match="not a kind of file"):
        predict(run, str(table), tmp_path / "said.txt")


def test_ids_are_the_same_in_every_kind_of_file(tmp_path):
    """A number in Parquet is the same task as its digits in CSV."""
    from fmrl.runs import Options, Run, train

    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"shop": np.repeat(np.arange(20), 8), "x": rng.normal(size=160)})
    frame = frame.with_columns(y=2 * pl.col("x") + pl.col("shop") * 0.1)
    frame.write_parquet(tmp_path / "a.parquet")
    frame.drop("y").write_csv(tmp_path / "a.csv")
    train(Options(str(tmp_path / "a.parquet"), "shop", "y", holdout=0), tmp_path / "run")
    found = Run.load(tmp_path / "run")
    assert predict(found, str(tmp_path / "a.csv"), tmp_path / "said.csv")["seen"] == 160
    said = pl.read_csv(tmp_path / "said.csv")["prediction"].to_numpy()
    assert np.abs(said - frame["y"].to_numpy()).max() < 0.2


def test_predicting_into_the_table_itself_is_refused(run, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("shop,x\na,1\n")
    with pytest.raises(fmrl.FMRLError, match="is the table itself"):
        predict(run, str(table), table)
    assert table.read_text() == "shop,x\na,1\n"


def test_adapting_again_adds_models_and_replaces_a_tasks_own(adapted):
    again = part(adapted, [2, 3], coef=adapted.coef[2:4] + 1)
    both = again.over(part(adapted, [0, 1, 2]))
    assert both.ids == adapted.ids[:4]
    np.testing.assert_array_equal(both.coef[:2], adapted.coef[:2])
    np.testing.assert_array_equal(both.coef[2:], adapted.coef[2:4] + 1)
