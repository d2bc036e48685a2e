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
from fmrl.runs import Options, Run, folder, models, predictions, train
from fmrl.runs.models import ARRAYS, Models, adapt, in_user_units
from fmrl.runs.predictions import predict
from fmrl.tables.encoder import Encoder


@pytest.fixture(scope="module")
def adapted(run, table):
    return adapt(run, str(table))


def part(models, some, **changed):
    """Some of the models."""
    ids = [models.ids[i] for i in some]
    given = {name: getattr(models, name)[some] for name in ARRAYS}
    return replace(models, **(given | {"ids": ids} | changed))


def in_the_table(encoder, rows):
    """Rows as they stand in the table: encoded, but numbers not scaled."""
    columns = tuple(replace(c, centre=0.0, spread=1.0) for c in encoder.columns)
    return Encoder(columns, encoder.policy).transform(rows)


def test_models_are_those_of_the_estimator_in_the_units_of_the_table(run, table, adapted):
    frame = pl.read_csv(table)
    for name in ("u0", "u9", "u31"):
        rows = frame.filter(pl.col("user") == name)
        X = pl.DataFrame(run.encoder.transform(rows), schema=run.encoder.names)
        model = run.estimator.adapt(X, rows["liked"].to_numpy())
        i = adapted.ids.index(name)
        margin = in_the_table(run.encoder, rows) @ adapted.coef[i, 0]
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


def bent(path):
    """50 shops with 10 rows each: a number that depends on x as no line does, and on the shop."""
    rng = np.random.default_rng(3)
    shop, x = np.repeat(np.arange(50), 10), rng.uniform(2000, 2010, size=(500, 2))
    level = rng.normal(size=50)[shop] * (x[:, 1] - 2005)
    y = 3 * np.abs(x[:, 0] - 2005) + level + 0.3 * rng.normal(size=500)
    named = {"shop": [f"s{s}" for s in shop], "year": x[:, 0], "size": x[:, 1]}
    frame = pl.DataFrame(named | {"y": y})
    frame.with_columns(kind=(pl.col("y") / 4).floor().clip(0, 2).cast(pl.Int64)).write_csv(path)
    return path


@pytest.mark.parametrize("target", ["y", "kind", "liked"])
def test_the_command_line_predicts_what_python_predicts(target, table, tmp_path):
    """Probabilities and intervals too, of tasks adapted to, of tasks seen and of the start; with a
    common part that is not linear and without one."""
    path, task = (table, "user") if target == "liked" else (bent(tmp_path / "bent.csv"), "shop")
    kind, common = "regression" if target == "y" else "classification", "auto"
    features = ("year", "size")
    if target == "liked":
        features, common = ("price", "age", "colour"), "linear"
    given = {"kind": kind, "features": features, "common": common, "holdout": 0.2}
    options = Options(str(path), task, target, **given)
    train(options, tmp_path / "run", evaluate_tasks=0)
    run, frame = Run.load(tmp_path / "run"), pl.read_csv(path)
    assert (run.prior.common is not None) == (target != "liked")
    held = sorted(set(frame[task]) - set(run.models.ids))
    few = frame.filter(pl.col(task).is_in(held[:3])).group_by(task, maintain_order=True).head(4)
    few.write_csv(tmp_path / "few.csv")
    adapted = adapt(run, str(tmp_path / "few.csv"))
    for suffix in (".json", ".safetensors"):
        adapted.save(tmp_path / f"models{suffix}")
        models = Models.load(tmp_path / f"models{suffix}")
        predict(run, str(path), tmp_path / f"{suffix[1:]}.parquet", models)
    said = pl.read_parquet(tmp_path / "json.parquet")
    assert said.equals(pl.read_parquet(tmp_path / "safetensors.parquet"))
    assert set(said["model"]) == {"adapted", "seen", "start"}
    for name in (held[0], held[3], run.models.ids[0], run.models.ids[7]):
        rows, own = frame.filter(pl.col(task) == name), said.filter(pl.col(task) == name)
        learned = few if name in held else frame
        learned = learned.filter(pl.col(task) == name)
        model, X = run.estimator, named(run, rows)
        if len(learned):
            model = model.adapt(named(run, learned), learned[target].to_numpy())
        if target == "y":
            told, ends = own.select("prediction", "low", "high"), model.predict_interval(X)
            expected = np.column_stack([model.predict(X), ends])
        else:
            assert own["prediction"].to_list() == model.predict(X).tolist()
            told, expected = own.select("^p_.*$"), model.predict_proba(X)
        np.testing.assert_allclose(told.to_numpy(), expected, rtol=1e-7, atol=1e-12)


def named(run, rows):
    return pl.DataFrame(run.encoder.transform(rows), schema=run.encoder.names)


def test_without_spreads_predictions_stay_and_nothing_is_made_up(run, table, tmp_path, monkeypatch):
    """Of so many tasks that their spreads would fill the disk, models alone are kept."""
    whole, some = adapt(run, str(table)), [0, 4]
    monkeypatch.setattr(models, "WIDEST", 59 * whole.spread[0].size)
    bare = adapt(run, str(table))
    assert whole.spread.size and not bare.spread.size
    np.testing.assert_array_equal(bare.coef, whole.coef)
    for name, given in (("a", whole), ("b", bare), ("c", part(whole, some).over(bare))):
        given.save(tmp_path / f"{name}.safetensors")
        back = Models.load(tmp_path / f"{name}.safetensors")
        predict(run, str(table), tmp_path / f"{name}.parquet", back)
    a, b, c = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in "abc")
    assert a["prediction"].equals(b["prediction"]) and not a["p_yes"].equals(b["p_yes"])
    mine = a["user"].is_in([whole.ids[i] for i in some])
    assert c.filter(mine).equals(a.filter(mine)) and c.filter(~mine).equals(b.filter(~mine))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".arrow"])
def test_blocks_and_kinds_of_files_say_the_same(suffix, run, table, tmp_path, monkeypatch):
    predict(run, str(table), tmp_path / "whole.parquet")
    monkeypatch.setattr(predictions, "BLOCK", 700)
    pl.read_csv(table).write_parquet(tmp_path / "rows.parquet")
    predict(run, str(tmp_path / "rows.parquet"), tmp_path / f"said{suffix}")
    read = {
        ".csv": pl.read_csv,
        ".tsv": lambda p: pl.read_csv(p, separator="\t"),
        ".parquet": pl.read_parquet,
        ".arrow": pl.read_ipc,
    }
    whole = pl.read_parquet(tmp_path / "whole.parquet")
    found = read[suffix](tmp_path / f"said{suffix}")
    assert found.columns == whole.columns
    for name in whole.columns:  # tasks that are solved side by side may differ in the last bit
        one, other = found[name].to_numpy(), whole[name].to_numpy()
        if other.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
        else:
            assert (one == other).all()


def test_files_of_models_come_back_and_damage_is_refused(run, adapted, tmp_path):
    for name in ("models.json", "models.safetensors"):
        adapted.save(tmp_path / name)
        back = Models.load(tmp_path / name)
        assert (back.ids, back.classes) == (adapted.ids, adapted.classes)
        assert back.run == run.record["files"][folder.MODEL]
        for array in ARRAYS:
            np.testing.assert_array_equal(getattr(back, array), getattr(adapted, array))
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


def test_gaps_that_training_had_not_are_filled_as_in_python(table, tmp_path):
    """It refused what an estimator fills by the mean."""
    frame = pl.read_csv(table).drop_nulls()
    frame.write_csv(tmp_path / "whole.csv")
    options = Options(str(tmp_path / "whole.csv"), "user", "liked", common="linear")
    train(options, tmp_path / "run", evaluate_tasks=0)
    run = Run.load(tmp_path / "run")
    gap, mean = (frame.with_columns(price=pl.lit(p)) for p in (None, run.encoder.columns[0].fill))
    assert run.encoder.columns[0].name == "price"
    for name, some in (("gap", gap), ("mean", mean)):
        some.cast({"price": pl.Float64}).write_parquet(tmp_path / f"{name}.parquet")
    with pytest.warns(fmrl.InputWarning, match="'price' has gaps, and no training row had"):
        predict(run, str(tmp_path / "gap.parquet"), tmp_path / "gap.csv")
    predict(run, str(tmp_path / "mean.parquet"), tmp_path / "mean.csv")
    assert (tmp_path / "gap.csv").read_text() == (tmp_path / "mean.csv").read_text()


def test_ids_are_the_same_in_every_kind_of_file(tmp_path):
    """A number in Parquet is the same task as its digits in CSV."""
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


def test_models_of_format_1_are_still_read(run, tmp_path):
    """Names of tasks were part of the header."""
    from safetensors.numpy import save

    from fmrl.runs.folder import seal
    from fmrl.runs.models import ARRAYS, Models, _digest

    models = run.models
    arrays = {name: np.ascontiguousarray(getattr(models, name)) for name in ARRAYS}
    head = {"format": 1, "kind": "fmrl models", "tasks": models.ids, "arrays": _digest(arrays)}
    head |= {name: getattr(models, name) for name in ("features", "classes", "run")}
    path = tmp_path / "old.safetensors"
    path.write_bytes(save(arrays, {"fmrl": json.dumps(seal(head))}))
    old = Models.load(path)
    assert old.ids == models.ids and np.array_equal(old.coef, models.coef)
    models.save(tmp_path / "new.safetensors")
    assert models.ids[0].encode() not in (tmp_path / "new.safetensors").read_bytes()[:2000]
