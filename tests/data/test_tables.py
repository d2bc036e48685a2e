"""What a table holds is never guessed wrong in silence: kinds, missing values, names, rows."""

import datetime
from decimal import Decimal

import numpy as np
import polars as pl
import pytest

from fmrl import Logistic, OneVsAll, Squared
from fmrl.datasets import Encoder, Policy, fit_encoder, tasks_from_frame, training_ids
from fmrl.errors import TableError
from fmrl.tables.any_table import as_polars

BASE = {"t": [1, 1, 2, 2], "x": [1.0, 2.0, 3.0, 4.0], "y": [0.5, 1.5, 2.5, 3.5]}


def tasks(frame, **kw):
    return list(tasks_from_frame(frame, **({"task": "t", "target": "y"} | kw)))


@pytest.mark.parametrize("dtype", ["object", "string", "category"])
def test_pandas_missing_text_is_missing(dtype):
    pd = pytest.importorskip("pandas")
    holes = pd.Series(["a", None, "b", "a"], dtype=dtype)
    frame = pd.DataFrame(BASE | {"c": holes})
    with pytest.raises(TableError, match="column 'c' has no value in row 1"):
        tasks(frame)
    stream = tasks_from_frame(frame, task="t", target="y", policy=Policy(missing="mean"))
    assert stream.encoder.names == ["x", "c=a", "c=b"]
    with pytest.raises(TableError, match="the target 'c' has no value in row 1"):
        tasks(frame, target="c", features="x", loss=OneVsAll(("a", "b")), one_class="keep")
    with pytest.raises(TableError, match="row 1 has no task id"):
        tasks(frame, task="c", features="x", apart="split")


def test_pandas_nullable_numbers_and_times():
    pd = pytest.importorskip("pandas")
    counts, flags = pd.array([1, None, 3, 4], "Int64"), pd.array([True, None] * 2, "boolean")
    frame = pd.DataFrame(BASE | {"n": counts, "b": flags})
    got = tasks(frame, policy=Policy(missing="mean"), features=["n", "b"])
    assert got[0].X.tolist() == [[1, 1], [8 / 3, 1]]
    frame = pd.DataFrame(
        BASE | {"day": pd.to_datetime(["2024-01-02", None, "2024-01-01", "2024-01-03"])}
    )
    with pytest.raises(TableError, match="the order 'day' has no value in row 1"):
        tasks(frame, order="day")
    assert tasks(frame[2:], order="day")[0].X.tolist() == [[3], [4]]


def test_pandas_columns_that_mix_kinds_or_names():
    pd = pytest.importorskip("pandas")
    with pytest.raises(TableError, match="column 't' mixes int and str"):
        tasks(pd.DataFrame(BASE | {"t": [1, "1", 1, 1]}))
    twice = pd.DataFrame([[1, 2.0, 3.0]], columns=["t", "x", "x"])
    with pytest.raises(TableError, match="own name"):
        tasks(twice, target="x")
    with pytest.raises(TableError, match="is not text"):
        tasks(pd.DataFrame([[1, 2.0]]))


def test_a_nan_is_no_task_id(tmp_path):
    frame = pl.DataFrame(BASE | {"t": [1.0, 1.0, float("nan"), 2.0]})
    frame.write_parquet(tmp_path / "f.parquet")
    for table in (frame, tmp_path / "f.parquet"):
        for apart in ("error", "gather", "split"):
            with pytest.raises(TableError, match="row 2 has no task id"):
                tasks(table, apart=apart)


@pytest.mark.parametrize("scale", ["standard", "range"])
def test_a_constant_column_is_not_blown_up(scale):
    frame = pl.DataFrame({"x": [0.1] * 1000})
    X = fit_encoder(frame.lazy(), ["x"], Policy(scale=scale)).transform(frame)
    assert abs(X).max() < 1e-12
    close = pl.DataFrame({"x": [1e6, 1e6 + 1e-9] * 500})
    assert fit_encoder(close.lazy(), ["x"], Policy(scale=scale)).columns[0].spread == 1.0
    tiny = pl.DataFrame({"x": [0.0, 2e-308]})
    assert np.isfinite(fit_encoder(tiny.lazy(), ["x"], Policy(scale=scale)).transform(tiny)).all()
    with pytest.raises(TableError, match="too large to be scaled"):
        fit_encoder(pl.DataFrame({"x": [-1.7e308, 1.7e308]}).lazy(), ["x"], Policy(scale=scale))


def test_dropped_rows_teach_nothing():
    frame = pl.DataFrame(
        BASE | {"x": [1.0, 3.0, 1e9, 2.0], "c": ["a", "b", None, "a"], "y": ["u", "v", "w", "v"]}
    )
    policy = Policy(missing="drop", scale="standard")
    stream = tasks_from_frame(frame, task="t", target="y", policy=policy, one_class="keep")
    assert stream.encoder.columns[0].centre == 2.0 and stream.loss == Logistic(("u", "v"))
    first, second = stream
    assert first.rounds == 2 and second.rounds == 1


def test_labels_stay_with_their_rows_when_rows_are_dropped():
    frame = pl.DataFrame(
        {
            "t": [1] * 4 + [2] * 4,
            "x": [None, 1.0, 2.0, None, 3.0, None, 4.0, 5.0],
            "y": np.arange(8) / 2,
        }
    )
    got = [
        (t.X[:, 0].tolist(), t.open().target.ravel().tolist())
        for t in tasks(frame, policy=Policy(missing="drop"))
    ]
    assert got == [([1, 2], [0.5, 1.0]), ([3, 4, 5], [2.0, 3.0, 3.5])]


def test_columns_of_every_name(tmp_path):
    names = ["rank", "row", "bin", "size", "run", "n", "__fmrl_run", "rows", "levels0"]
    ids = [2, 1, 2, 1, 3]
    frame = pl.DataFrame(
        {"bin": ids} | {n: np.arange(5.0) for n in names if n != "bin"} | {"y": np.arange(5) / 2}
    )
    frame.write_parquet(tmp_path / "f.parquet")
    for table in (frame, tmp_path / "f.parquet"):
        args = {"task": "bin", "apart": "gather", "rows": 2, "order": "rank"}
        got = tasks(table, policy=Policy(missing="drop"), **args)
        assert [(t.name, t.X[:, 0].tolist()) for t in got] == [(2, [0, 2]), (1, [1, 3]), (3, [4])]


def test_a_stored_encoder_reads_the_same_kinds(tmp_path):
    (tmp_path / "a.csv").write_text("t,c,y\n1,01,0.5\n1,A,1.5\n")
    (tmp_path / "b.csv").write_text("t,c,y\n1,01,0.5\n1,1,1.5\n")
    stream = tasks_from_frame(tmp_path / "a.csv", task="t", target="y")
    (tmp_path / "e.json").write_text(stream.encoder.to_json())
    assert tasks(tmp_path / "b.csv", encoder=tmp_path / "e.json")[0].X.tolist() == [[1, 0], [0, 0]]
    with pytest.raises(
        TableError, match="column 'c' is Int64 here, the encoding was learned from String"
    ):
        tasks(pl.DataFrame({"t": [1], "c": [1], "y": [0.5]}), encoder=stream.encoder)
    number = tasks_from_frame(pl.DataFrame(BASE), task="t", target="y").encoder
    for values in ([datetime.date(2024, 1, 1)] * 4, ["1", "2", "3", "4"]):
        with pytest.raises(TableError, match="column 'x'"):
            tasks(pl.DataFrame(BASE | {"x": values}), encoder=number)


@pytest.mark.parametrize(
    "given", [{"features": ["y"]}, {"policy": Policy(missing="mean")}, {"train": [1]}]
)
def test_arguments_that_contradict_an_encoder(given):
    encoder = tasks_from_frame(pl.DataFrame(BASE), task="t", target="y").encoder
    with pytest.raises(TableError, match="encoder"):
        tasks(pl.DataFrame(BASE), encoder=encoder, **given)
    assert len(tasks(pl.DataFrame(BASE), encoder=encoder, features=["x"])) == 2


def test_ids_of_a_csv_are_text(tmp_path):
    (tmp_path / "f.csv").write_text("t,x,y\n01,1,0.5\n01,2,1.5\n1,3,0.5\n1,4,1.5\n")
    assert [t.name for t in tasks(tmp_path / "f.csv")] == ["01", "1"]
    stream = tasks_from_frame(
        tmp_path / "f.csv", task="t", target="y", train=[1], policy=Policy(scale="range")
    )
    assert stream.trained.to_list() == ["1"] and stream.encoder.columns[0].centre == 3.0


def test_an_id_falls_on_one_side_whatever_its_kind():
    for share in (0.2, 0.5):
        assert (
            training_ids([1.0, 2.0, 3.0, 2.5], share)[:3] == training_ids([1, 2, 3, 2.5], share)[:3]
        )
        assert [int(i) for i in training_ids([str(i) for i in range(99)], share)] == training_ids(
            range(99), share
        )


def test_rows_in_messages_are_those_of_the_table(tmp_path):
    frame = pl.DataFrame(
        {
            "t": [1, 2, 1, 2],
            "day": [4, 3, 2, 1],
            "x": [1.0, 2.0, None, 4.0],
            "y": [0.5, 1.5, 2.5, 3.5],
        }
    )
    frame.write_parquet(tmp_path / "f.parquet")
    for table in (frame, tmp_path / "f.parquet"):
        with pytest.raises(TableError, match="column 'x' has no value in row 2"):
            tasks(table, apart="gather", order="day", rows=1)
    holes = frame.with_columns(x=pl.lit(1.0), t=pl.Series([1, 2, 1, None]))
    holes.write_parquet(tmp_path / "f.parquet")
    for table in (holes, tmp_path / "f.parquet"):
        with pytest.raises(TableError, match="row 3 has no task id"):
            tasks(table, apart="gather", rows=1)


def test_rows_that_tie_keep_their_order(tmp_path):
    n = 20_000
    # Neither lies sorted, so that only a stable sort passes.
    task, key = np.arange(n) * 7 % 40, np.arange(n) // 40 * 13 % 3
    frame = pl.DataFrame({"t": task, "k": key, "x": np.arange(n) * 1.0, "y": np.arange(n) / 2})
    frame.write_parquet(tmp_path / "f.parquet")
    for table in (frame, tmp_path / "f.parquet"):
        for order, keys in ((None, key * 0), ("k", key)):
            for t in tasks(table, apart="gather", order=order, features="x", rows=10_000):
                mine = np.flatnonzero(task == t.name)
                assert t.X[:, 0].tolist() == mine[np.argsort(keys[mine], kind="stable")].tolist()


def test_targets_of_other_kinds():
    assert len(tasks(pl.DataFrame(BASE | {"y": [Decimal(f"{i}.50") for i in range(4)]}))) == 2
    dates = pl.DataFrame(BASE | {"y": [datetime.date(2024, 1, i) for i in (1, 2, 3, 4)]})
    for loss in (None, Squared(), "classification"):
        with pytest.raises(TableError, match="the target 'y' is of type Date"):
            tasks(dates, loss=loss)


def test_marks_of_gaps_in_a_csv_file(tmp_path):
    """As R, pandas, SAS and people write them; text that looks like one stays text."""
    lines = ["t,size,flag,who,count", "a,1.5,TRUE,NA,1", "a,NA,FALSE,bo,2", "b,2.5,NA,bo,NaN"]
    lines += ["b,?,TRUE,bo,4"]
    (tmp_path / "f.csv").write_text("\n".join(lines))
    frame = as_polars(tmp_path / "f.csv").collect()
    assert frame["size"].to_list() == [1.5, None, 2.5, None] and frame["count"].is_nan().sum() == 1
    assert frame["flag"].to_list() == [True, False, None, True] and frame["who"][0] == "NA"
    given = {"task": "t", "target": "count", "loss": Squared(), "policy": Policy(missing="mean")}
    long = ["t,size,count", *(f"a,{i},1.0" for i in range(120_000)), "b,NA,1.0", "b,2,1.0"]
    (tmp_path / "long.csv").write_text("\n".join(long))
    (_, last) = tasks_from_frame(tmp_path / "long.csv", **given)
    assert last.X[0, 0] == pytest.approx(np.mean([*range(120_000), 2]))
    known = tasks_from_frame(tmp_path / "long.csv", **given).encoder
    (tmp_path / "one.csv").write_text("t,size,count\nc,n/a,1.0\n")
    (one,) = tasks_from_frame(tmp_path / "one.csv", **given | {"policy": None}, encoder=known)
    assert one.X[0, 0] == last.X[0, 0]
    (tmp_path / "f.csv").write_text("\n".join([*long, "b,many,1.0"]))
    with pytest.raises(TableError, match="many"):
        list(tasks_from_frame(tmp_path / "f.csv", **given))


def test_columns_that_are_left_out():
    frame = pl.DataFrame(BASE | {"id": [1, 2, 3, 4]})
    assert [t.X.shape[1] for t in tasks(frame, ignore="id")] == [1, 1]
    with pytest.raises(TableError, match="no column 'ID'"):
        tasks(frame, ignore=["ID"])
    with pytest.raises(TableError, match="both features and ignore"):
        tasks(frame, ignore="id", features="x")


def test_dates_among_the_features():
    for day in (
        ["2024-01-01", "2024-01-02"] * 2,
        [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)] * 2,
    ):
        frame = pl.DataFrame(BASE | {"day": day})
        assert tasks(frame)[0].X.tolist() == [[1.0, -1.0], [2.0, 1.0]]
        assert [t.X.shape[1] for t in tasks(frame, order="day")] == [1, 1]
    odd = pl.DataFrame(BASE | {"day": ["1/2/2024", "3/4/2024"] * 2})
    with pytest.raises(TableError, match=r"column 'day' holds dates as text.*2024-12-31"):
        tasks(odd)
    assert len(tasks(odd, order="day")) == 2


def test_an_unsorted_table_of_classes_names_the_cause():
    frame = pl.DataFrame({"t": [1, 2, 1, 2], "x": [1.0] * 4, "y": ["u", "v", "v", "u"]})
    with pytest.raises(TableError, match=r"task 1 appears again at row 2.*apart='gather'"):
        tasks(frame)
    assert len(tasks(frame, apart="gather")) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": -5}, "rows=-5"),
        ({"rows": 0}, "rows=0"),
        ({"features": 3}, "does not name columns"),
        ({"features": [3]}, "is not text"),
        ({"features": ["x", "x"]}, "twice"),
        ({"features": ["x", "y"]}, "include the target"),
        ({"policy": "mean"}, "is not a Policy"),
        ({"loss": "squared"}, "is not a Loss"),
        ({"target": 3}, "is not a column name"),
        ({"encoder": 3}, "is not an Encoder"),
        ({"encoder": "nowhere.json"}, "cannot be read"),
        ({"train": "ab"}, "neither ids nor a share"),
        ({"train": 7}, "is not a share"),
        ({"task": "nested"}, "is of type List"),
    ],
)
def test_wrong_arguments(given, message):
    with pytest.raises(TableError, match=message):
        tasks(pl.DataFrame(BASE | {"nested": [[1]] * 4}), **({"features": "x"} | given))


def test_one_name_is_one_column():
    frame = pl.DataFrame(BASE | {"xz": [5.0] * 4, "z": [6.0] * 4})
    assert tasks_from_frame(frame, task="t", target="y", features="xz").encoder.names == ["xz"]
    assert len(tasks(frame, train=1)) == 2


def test_nothing_to_read(tmp_path):
    frame = pl.DataFrame(BASE)
    encoder = tasks_from_frame(frame, task="t", target="y").encoder
    with pytest.raises(TableError, match="no row"):
        tasks(frame[:0], encoder=encoder, loss=Squared())
    with pytest.raises(TableError, match="no row to learn"):
        tasks(frame[:0])
    frame.write_parquet(tmp_path / "f.parquet")
    with pytest.raises(TableError, match="the scratch folder"):
        tasks(tmp_path / "f.parquet", apart="gather", scratch=tmp_path / "nowhere")
    for text in ("{}", "[]", "nothing", '{"columns": [{}], "policy": {}}'):
        with pytest.raises(TableError, match="not a stored encoder"):
            Encoder.from_json(text)


def test_two_columns_of_one_name_in_a_file(tmp_path):
    (tmp_path / "f.csv").write_text("t,x,x,y\n1,1,2,0.5\n1,3,4,1.5\n")
    with pytest.raises(TableError, match="two columns are called 'x'"):
        tasks(tmp_path / "f.csv")


def test_training_ids_of_another_kind():
    with pytest.raises(TableError, match="not ids of the column 't', which is Int64"):
        tasks(pl.DataFrame(BASE), train=["a"])
    for ids in ({1}, np.array([1]), range(1, 2), pl.Series([1])):
        stream = tasks_from_frame(pl.DataFrame(BASE), task="t", target="y", train=ids)
        assert stream.trained.to_list() == [1]
