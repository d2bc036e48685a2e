import json
import subprocess
import sys
import warnings
from datetime import date
from decimal import Decimal
from pathlib import Path

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fmrl import FMRLError, InputWarning, Linear, Logistic, OneVsAll, Squared
from fmrl.errors import TableError
from fmrl.tables import Encoder, Policy, fit_encoder, infer_loss, tasks_from_frame, training_ids

FRAME = pl.DataFrame(
    {
        "shop": ["b", "b", "b", "a", "a", "c", "c"],
        "day": [3, 1, 2, 1, 2, 2, 1],
        "size": [3.0, 1.0, 2.0, 4.0, 5.0, 7.0, 6.0],
        "kind": ["x", "y", "x", "y", "y", "z", "x"],
        "sold": [True, False, True, True, False, False, True],
    }
)


def frames():
    pa, pd = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    yield FRAME
    yield FRAME.lazy()
    yield pd.DataFrame(FRAME.to_dict(as_series=False))
    yield pa.table(FRAME.to_dict(as_series=False))
    yield nw.from_native(FRAME)


def files(folder):
    FRAME.write_csv(folder / "f.csv")
    FRAME.write_csv(folder / "f.tsv", separator="\t")
    FRAME.write_parquet(folder / "f.parquet", row_group_size=2)
    FRAME.write_ipc(folder / "f.arrow")
    return [folder / f"f.{k}" for k in ("csv", "tsv", "parquet", "arrow")] + [
        str(folder / "f.parquet")
    ]


def test_every_kind_of_table_gives_the_same_tasks(tmp_path):
    for table in [*frames(), *files(tmp_path)]:
        stream = tasks_from_frame(
            table, task="shop", target="sold", features=["size", "kind"], order="day"
        )
        for _ in range(2):  # a stream can be gone through again
            tasks = list(stream)
            assert [t.name for t in tasks] == ["b", "a", "c"]
            assert tasks[0].X.tolist() == [[1, 0, 1, 0], [2, 1, 0, 0], [3, 1, 0, 0]]
        assert stream.loss == Logistic((False, True))
        assert stream.encoder.names == ["size", "kind=x", "kind=y", "kind=z"]


def test_several_files_are_one_table(tmp_path):
    FRAME[:4].write_parquet(tmp_path / "1.parquet")
    FRAME[4:].write_parquet(tmp_path / "2.parquet")
    tasks = list(
        tasks_from_frame(tmp_path / "*.parquet", task="shop", target="size", features=["day"])
    )
    assert [t.rounds for t in tasks] == [3, 2, 2]
    with pytest.raises(TableError, match="cannot be read"):
        tasks_from_frame(tmp_path / "*.arrow", task="shop", target="size")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([0.5, 1.5, 2.0], "auto", Squared()),
        ([2.0, 1.0, 3.0], "auto", Squared()),  # whole numbers in a real column stay a quantity
        ([Decimal("0.5"), Decimal("1.5"), None], "auto", Squared()),
        ([3, 1, 2, None], "auto", OneVsAll((1, 2, 3))),
        (["x", "y", "z"], "auto", OneVsAll(("x", "y", "z"))),
        ([True, False, True], "auto", Logistic((False, True))),
        (["b", "a", None], "auto", Logistic(("a", "b"))),
        ([str(i) for i in range(1500)], "auto", OneVsAll(tuple(sorted(map(str, range(1500)))))),
        ([0.0, 1.0, float("nan")], "auto", "is a real number but holds only 0 and 1"),
        (range(60), "auto", "60 whole-number values"),
        ([7, 7], "auto", r"has only the class \[7\]"),
        ([None, None], "auto", "is of type Null"),
        ([0.0, 1.0, float("nan")], "classification", Logistic((0.0, 1.0))),
        (range(60), "classification", OneVsAll(tuple(range(60)))),
        (range(1001), "classification", "1,001 whole-number values"),
        ([i / 2 for i in range(1001)], "classification", "1,001 values"),
        (["x", "x"], "classification", "only the class"),
        (range(2000), "regression", Squared()),
        ([0.0, 1.0], "regression", Squared()),
        (["x", "y"], "regression", "is of type String; convert it to numbers$"),
        ([date(2024, 1, 2), date(2024, 1, 3)], "regression", "is of type Date; convert"),
        (["2024-01-02", "2024-01-03"], "auto", "dates as text .'2024-01-02'.; make it a number"),
        (["2024-01-02", "x"], "auto", Logistic(("2024-01-02", "x"))),
    ],
)
def test_one_rule_finds_the_loss(values, kind, expected):
    rows = pl.DataFrame({"y": list(values)})
    frame = rows.with_columns(t=pl.lit(1), x=pl.lit(1.0)).drop_nulls()

    def both():
        found = infer_loss(rows.lazy(), "y", kind)
        asked = tasks_from_frame(frame, task="t", target="y", loss=kind, one_class="keep")
        assert asked.loss == found
        return found

    if isinstance(expected, str):
        with pytest.raises(TableError, match=expected):
            both()
    else:
        assert both() == expected


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        ([0, 3, 8], "auto", ["from 0 to 8, which are taken for classes"]),
        ([0, 3, 8], "classification", []),
        ([0, 3, 8], "regression", []),
        ([0, 1, 1], "auto", []),
        (["a", "b", "c"], "auto", []),
    ],
)
def test_counts_taken_for_classes_are_said_to_be(values, kind, said):
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        infer_loss(pl.LazyFrame({"y": values}), "y", kind)
    assert len(log) == len(said)
    assert all(words in str(w.message) for words, w in zip(said, log, strict=True))


def test_a_loss_can_be_given():
    given = {"task": "shop", "features": ["size", "day"]}
    assert tasks_from_frame(FRAME, target="sold", loss=Squared(), **given).loss == Squared()
    with pytest.raises(FMRLError, match="neither target nor loss"):
        tasks_from_frame(FRAME, task="shop")
    assert list(tasks_from_frame(FRAME, loss=Linear(), **given))[1].X.tolist() == [[4, 1], [5, 2]]


def test_classes_of_rows_that_are_dropped_do_not_count():
    frame = pl.DataFrame({"t": [1] * 3, "x": [1.0, 2.0, None], "y": [1, 2, 3]})
    for kind in ("auto", "classification"):
        given = {"task": "t", "target": "y", "policy": Policy(missing="drop"), "loss": kind}
        assert tasks_from_frame(frame, **given).loss == Logistic((1, 2))


def test_rows_apart():
    apart = pl.concat([FRAME[:2], FRAME[3:], FRAME[2:3]])
    given = {"task": "shop", "target": "size", "features": ["day"]}
    with pytest.raises(TableError, match="task 'b' appears again at row 6, apart from its other"):
        list(tasks_from_frame(apart, **given))
    together = [
        (t.name, t.X[:, 0].tolist()) for t in tasks_from_frame(apart, apart="gather", **given)
    ]
    assert together == [("b", [3, 1, 2]), ("a", [1, 2]), ("c", [2, 1])]
    split = tasks_from_frame(apart, apart="split", **given)
    assert [t.name for t in split] == ["b", "a", "c", "b"]


@settings(max_examples=25, deadline=None)
@given(
    ids=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    rows=st.integers(1, 20),
    kind=st.sampled_from(["parquet", "csv", "arrow"]),
)
def test_gathering_out_of_core_is_gathering_in_memory(tmp_path_factory, ids, rows, kind):
    folder = tmp_path_factory.mktemp("g")
    frame = pl.DataFrame({"t": ids, "x": np.arange(len(ids)) * 1.0, "y": np.arange(len(ids)) / 2})
    path = folder / f"f.{kind}"
    {"parquet": frame.write_parquet, "csv": frame.write_csv, "arrow": frame.write_ipc}[kind](path)
    got = list(
        tasks_from_frame(path, task="t", target="y", apart="gather", rows=rows, scratch=folder)
    )
    expected = {t: [i for i, u in enumerate(ids) if u == t] for t in dict.fromkeys(ids)}
    if kind == "csv":  # ids of a CSV file are text, as written
        expected = {str(t): rows for t, rows in expected.items()}
    assert {t.name: t.X[:, 0].tolist() for t in got} == expected and [t.name for t in got] == list(
        expected
    )
    assert [p.name for p in folder.iterdir()] == [path.name]  # nothing stays in the scratch folder


def test_a_gather_that_is_left_early_cleans_up(tmp_path):
    FRAME.write_parquet(tmp_path / "f.parquet")
    given = {"apart": "gather", "rows": 2, "scratch": tmp_path}
    table = tmp_path / "f.parquet"
    stream = iter(tasks_from_frame(table, task="shop", target="size", **given))
    next(stream)
    stream.close()
    assert [p.name for p in tmp_path.iterdir()] == ["f.parquet"]


def test_ids_of_one_hash_are_different_tasks(monkeypatch, tmp_path):
    """That a task comes back is found by hashes of ids, and then looked up."""
    FRAME.write_parquet(tmp_path / "f.parquet")
    expected = [t.name for t in tasks_from_frame(FRAME, task="shop", target="sold")]
    same = lambda ids: pl.Series(np.full(len(ids), 7, np.uint64))  # noqa: E731
    monkeypatch.setattr(pl.Series, "hash", same)
    for frame in (FRAME, tmp_path / "f.parquet"):
        stream = tasks_from_frame(frame, task="shop", target="sold", features=["size"])
        assert [t.name for t in stream] == expected
    monkeypatch.undo()
    after = FRAME[5:].with_columns(shop=pl.lit("d"))
    for back in ([FRAME, FRAME[3:5]], [FRAME, FRAME[3:5], after]):  # as the last task, and before
        with pytest.raises(TableError, match="task 'a' appears again at row 7"):
            list(tasks_from_frame(pl.concat(back), task="shop", target="sold"))


def test_ids_that_python_hashes_alike_are_different_tasks():
    frame = pl.DataFrame({"t": [-1, -1, -2, -2], "x": [1.0, 2.0, 3.0, 4.0], "y": [0.5] * 4})
    assert [t.name for t in tasks_from_frame(frame, task="t", target="y")] == [-1, -2]


def test_a_number_column_with_words_in_it(tmp_path):
    (tmp_path / "x.csv").write_text("t,x,y\n1,3.5,1.0\n1,few,2.0\n1,4.5,1.5\n")
    with pytest.raises(TableError, match="column 'x' looks like numbers but holds 'few'"):
        tasks_from_frame(tmp_path / "x.csv", task="t", target="y")


def test_a_column_of_many_numbers_with_a_word_is_not_called_one_of_many_levels(tmp_path):
    rows = [f"{i // 10},{'few' if i == 7 else i / 8},{i}.5" for i in range(400)]
    (tmp_path / "x.csv").write_text("t,x,y\n" + "\n".join(rows) + "\n")
    with pytest.raises(TableError, match="looks like numbers but holds 'few'; leave missing"):
        tasks_from_frame(tmp_path / "x.csv", task="t", target="y")


def test_a_bad_number_is_named_by_its_column_its_row_and_its_value(tmp_path):
    rows = [f"{i // 10},{i / 8},{i % 2 > 0},{i}.5" for i in range(400)]
    head, good, bad = "t,x,z,y\n", tmp_path / "x.csv", tmp_path / "bad.csv"
    good.write_text(head + "\n".join(rows) + "\n")
    stream = tasks_from_frame(good, task="t", target="y")
    given = {"task": "t", "target": "y", "encoder": stream.encoder, "loss": stream.loss}
    for row, what in (
        ("0,abc,true,1.5", "column 'x' holds 'abc' in row 399, which is no number"),
        ("0,1,abc,1.5", "column 'z' holds 'abc' in row 399, which is no truth value"),
        ("0,1,true,abc", "the target 'y' holds 'abc' in row 399"),
    ):
        bad.write_text(head + "\n".join([*rows[:399], row]) + "\n")
        for apart in ("gather", "split"):
            with pytest.raises(TableError, match=what) as found:
                list(tasks_from_frame(bad, **given, apart=apart))
            assert "\n" not in str(found.value)
    with pytest.raises(TableError, match="the target 'y' looks like numbers but holds 'abc'"):
        tasks_from_frame(bad, task="t", target="y")  # and is no class of 400


def test_numbers_as_text_are_warned_of():
    for texts in ([f"{i},25 €" for i in range(60)], [f" {i}.5" for i in range(60)]):
        twice = texts[:30] * 2
        frame = pl.DataFrame({"t": [0] * 60, "x": twice, "y": [i / 8 for i in range(60)]})
        with pytest.warns(InputWarning, match=r"30 levels.*look like numbers.*pandas.to_numeric"):
            assert len(tasks_from_frame(frame, task="t", target="y").encoder.names) == 30
        named = frame.with_columns(x=pl.Series(texts))
        with pytest.warns(InputWarning, match="it is left out; its texts look like numbers"):
            tasks_from_frame(named.with_columns(z=1.0), task="t", target="y")
    for kinds in (["1", "2", "3"], ["1.2.3", "1.2.4"], ["555 12", "555 13"], ["1.5", "wide"]):
        some = pl.DataFrame({"t": 0, "x": kinds, "y": [0.5] * len(kinds)})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tasks_from_frame(some, task="t", target="y")


def test_what_was_asked_for_is_not_what_to_give():
    frame = pl.DataFrame({"t": [0] * 1240, "x": 1.0, "y": [i / 8 for i in range(1240)]})
    with pytest.raises(TableError) as found:
        tasks_from_frame(frame, task="t", target="y", loss="classification")
    assert "1,240 values, and at most 1,000 numbers can be classes" in str(found.value)
    assert "use loss='regression'" in str(found.value)


def test_a_csv_that_turns_real_late(tmp_path):
    rows = [f"{i // 10},{i},{i}.5" for i in range(5000)] + ["500,7.25,1.5"]
    (tmp_path / "x.csv").write_text("t,x,y\n" + "\n".join(rows) + "\n")
    assert list(tasks_from_frame(tmp_path / "x.csv", task="t", target="y"))[-1].X.tolist() == [
        [7.25]
    ]


def test_one_class():
    frame = FRAME.with_columns(sold=pl.col("sold") | (pl.col("shop") == "a"))
    args = {"task": "shop", "target": "sold", "features": ["size"]}
    with pytest.raises(TableError, match=r"task 'a' \(from row 3\) has only the class True"):
        list(tasks_from_frame(frame, **args))
    assert [t.name for t in tasks_from_frame(frame, one_class="drop", **args)] == ["b", "c"]
    assert len(list(tasks_from_frame(frame, one_class="keep", **args))) == 3
    alone = frame.with_columns(sold=pl.col("shop") == "a")
    with pytest.raises(TableError, match="one_class='drop' leaves no task; use one_class='keep'"):
        list(tasks_from_frame(alone, one_class="drop", **args))


HOLES = pl.DataFrame(
    {
        "t": [1, 1, 2, 2],
        "x": [1.0, None, float("nan"), 3.0],
        "c": ["u", None, "v", "u"],
        "y": [0.0, 1.0, 2.0, 3.0],
    }
)


def arrays(frame, **kw):
    return [
        t.X.tolist() for t in tasks_from_frame(frame, task="t", target="y", policy=Policy(**kw))
    ]


def test_missing_values():
    with pytest.raises(TableError, match="column 'x' has no value in row 1"):
        arrays(HOLES)
    assert arrays(HOLES, missing="mean") == [[[1, 1, 0], [2, 0, 0]], [[2, 0, 1], [3, 1, 0]]]
    assert arrays(HOLES, missing="indicator") == [
        [[1, 0, 1, 0, 0], [2, 1, 0, 0, 1]],
        [[2, 1, 0, 1, 0], [3, 0, 1, 0, 0]],
    ]
    assert arrays(HOLES, missing="drop") == [[[1, 1]], [[3, 1]]]  # the level 'v' went with its row
    unsold = HOLES.with_columns(t=pl.lit(1), x=pl.Series([1.0, 2, 9, 8]), y=HOLES["x"].reverse())
    stream = tasks_from_frame(
        unsold, task="t", target="y", features="x", policy=Policy(missing="drop", scale="range")
    )
    assert [t.X.tolist() for t in stream] == [[[0.0], [1.0]]]  # nor do they count for the scale
    with pytest.raises(TableError, match="the task 1 is empty"):
        arrays(HOLES[1:], missing="drop")
    with pytest.raises(TableError, match=r"the target 'y' has no value in row 2 \(task 2\)"):
        arrays(HOLES.with_columns(y=pl.Series([1.0, 2.0, None, 3.0])), missing="mean")
    with pytest.raises(TableError, match="row 3 has no task id"):
        arrays(HOLES.with_columns(t=pl.Series([1, 1, 2, None])), missing="mean")


def test_whole_numbers_that_name_rows_are_said():
    frame = pl.DataFrame(
        {"t": np.arange(40) // 4, "y": np.arange(40) % 3 / 2, "x": [1.0, 2.0] * 20}
    )
    given = {"task": "t", "target": "y"}
    for column, said in (
        (pl.Series("code", np.random.default_rng(0).permutation(40) * 31), "40 different"),
        (pl.Series("Shelf_ID", np.arange(40) % 5), "5 different"),
    ):
        with pytest.warns(InputWarning, match=f"'{column.name}' looks like an id: {said}.*leave"):
            tasks_from_frame(frame.with_columns(column), **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        odd = frame.with_columns(paid=pl.Series(np.arange(40) % 30), code=pl.Series(np.arange(40)))
        tasks_from_frame(odd, **given, ignore="code")


@pytest.mark.parametrize("hole", [[None] * 4, [float("nan")] * 4])
def test_a_column_of_nothing(hole):
    for missing in ("error", "indicator", "mean", "drop"):
        with pytest.raises(TableError, match="column 'x' has no value at all"):
            arrays(HOLES.with_columns(x=pl.Series(hole)), missing=missing)


def test_categories():
    with pytest.raises(TableError, match="column 'c' holds text"):
        arrays(HOLES, categorical="error")
    many = pl.DataFrame({"t": [1] * 300, "c": [str(i) for i in range(300)], "y": [0.5] * 300})
    with pytest.warns(InputWarning, match="has 300 levels; the 256 most frequent count"):
        assert len(arrays(pl.concat([many, many]))[0][0]) == 256
    with pytest.raises(TableError, match="is of type"):
        arrays(HOLES.with_columns(c=pl.lit(b"1")))
    with pytest.raises(TableError, match="infinite"):
        arrays(HOLES.with_columns(x=pl.lit(float("inf"))), missing="mean")


def test_texts_that_name_rows_are_left_out_and_of_many_levels_the_most_frequent_count():
    place = [f"p{i}" for i in range(10) for _ in range(3)] + ["rare", "seldom"]
    frame = pl.DataFrame({"t": [1] * 32, "place": place, "y": [0.5] * 32})
    named = frame.with_columns(code=pl.Series([f"r{i}" if i else None for i in range(32)]))
    given = {"task": "t", "target": "y"}
    with pytest.warns(InputWarning, match="'code' holds text that differs.*31 texts in 32 rows"):
        stream = tasks_from_frame(named, **given)
    assert stream.encoder.inputs == ["place"]  # a later table needs no code
    assert next(iter(stream)).X.shape == (32, 12)
    with pytest.warns(InputWarning, match="'place' has 12 levels; the 10 most frequent count"):
        few = tasks_from_frame(frame, **given, policy=Policy(levels=10))
    assert few.encoder.names == [f"place=p{i}" for i in range(10)]
    with (
        pytest.warns(InputWarning, match="left out"),
        pytest.raises(TableError, match="no column is left for features"),
    ):
        tasks_from_frame(named, **given, ignore="place")


def test_two_columns_of_one_name_are_named():
    frame = pd.DataFrame([[1, 1.0, 2.0]] * 2, columns=["t", "x", "x"])
    with pytest.raises(TableError, match="two columns are called 'x'; give every column its own"):
        tasks_from_frame(frame, task="t")


def test_scaling_is_learned_from_training_tasks_only():
    frame = pl.DataFrame(
        {"t": [1, 1, 2, 2], "x": [0.0, 2.0, 100.0, 300.0], "y": [0.0, 1.0, 2.0, 3.0]}
    )
    stream = tasks_from_frame(
        frame, task="t", target="y", policy=Policy(scale="standard"), train=[1]
    )
    assert [t.X[:, 0].tolist() for t in stream] == [[-1, 1], [99, 299]]
    ranged = tasks_from_frame(frame, task="t", target="y", policy=Policy(scale="range"), train=[1])
    assert next(iter(ranged)).X[:, 0].tolist() == [0, 1]
    again = Encoder.from_json(stream.encoder.to_json())
    assert again == stream.encoder
    later = tasks_from_frame(frame[2:], task="t", target="y", encoder=again)
    assert next(iter(later)).X[:, 0].tolist() == [99, 299]
    with pytest.raises(TableError, match="no row to learn"):
        tasks_from_frame(frame, task="t", target="y", train=[77])


def test_a_share_of_tasks_is_stable():
    assert set(training_ids(range(500), 0.5)) <= set(training_ids(range(1000), 0.5))
    assert set(training_ids(range(1000), 0.3)) <= set(training_ids(range(1000), 0.6))
    frame = pl.DataFrame(
        {"t": np.repeat(np.arange(100), 2), "x": np.arange(200.0), "y": np.arange(200.0)}
    )
    part = tasks_from_frame(frame, task="t", target="y", train=0.5, policy=Policy(scale="standard"))
    kept = frame.filter(pl.col("t").is_in(training_ids(range(100), 0.5)))
    assert part.encoder.columns[0].centre == pytest.approx(kept["x"].mean())


def test_unknown_levels():
    encoder = fit_encoder(FRAME.lazy(), ["kind"], Policy())
    new = pl.DataFrame({"kind": ["x", "new"]})
    assert encoder.transform(new).tolist() == [[1, 0, 0], [0, 0, 0]]
    strict = Encoder(encoder.columns, Policy(unknown="error"))
    with pytest.raises(TableError, match="level 'new' in row 1, which no training task had"):
        strict.transform(new)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6) | st.none(), st.sampled_from(["a", "b", None])),
        min_size=1,
        max_size=30,
    )
)
def test_encoding_is_finite_and_survives_storage(rows):
    frame = pl.DataFrame(rows, schema={"x": pl.Float64, "c": pl.String}, orient="row")
    if frame["x"].is_null().all() or frame["c"].is_null().all():
        return
    for scale in ("none", "standard", "range"):
        encoder = fit_encoder(frame.lazy(), ["x", "c"], Policy(missing="indicator", scale=scale))
        X = encoder.transform(frame)
        assert np.isfinite(X).all() and X.shape == (len(rows), len(encoder.names))
        assert np.array_equal(Encoder.from_json(encoder.to_json()).transform(frame), X)


def test_wrong_tables(tmp_path):
    for bad, message in (
        ({"task": "nope"}, "there is no column 'nope'; the columns are"),
        ({"features": ["nope"]}, "there is no column 'nope'"),
        ({"features": ["size, kind"]}, "these are several columns: give each by itself"),
        ({"apart": "maybe"}, "is unknown"),
        ({"features": []}, "no column is left"),
        ({"train": 2.0}, "is not a share"),
    ):
        with pytest.raises(TableError, match=message):
            tasks_from_frame(FRAME, **({"task": "shop", "target": "sold"} | bad))
    with pytest.raises(TableError, match="unknown"):
        Policy(missing="guess")
    (tmp_path / "x.csv").write_bytes(b"t,y\n1,caf\xe9\n2,b\n")
    with pytest.raises(TableError, match="cannot be read"):
        given = {"task": "t", "target": "y", "features": ["t"], "one_class": "keep"}
        list(tasks_from_frame(tmp_path / "x.csv", **given))
    (tmp_path / "s.csv").write_text("t;y\n1;2\n")
    with pytest.raises(TableError, match="are values separated by ';'"):
        tasks_from_frame(tmp_path / "s.csv", task="t", target="y")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TableError, match="cannot be read"):
        tasks_from_frame(tmp_path / "x.parquet", task="t", target="y")
    for path, message in (
        (tmp_path / "no.csv", "does not exist"),
        (tmp_path / "x.xlsx", "not a kind of file"),
        (3, "is not a table"),
    ):
        with pytest.raises(TableError, match=message):
            tasks_from_frame(path, task="t", target="y")


def test_a_truncated_parquet(tmp_path):
    FRAME.write_parquet(tmp_path / "f.parquet")
    (tmp_path / "f.parquet").write_bytes((tmp_path / "f.parquet").read_bytes()[:-20])
    with pytest.raises(TableError, match="cannot be read"):
        tasks_from_frame(tmp_path / "f.parquet", task="shop", target="sold")


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path):
    pytest.importorskip("pyarrow")
    script = Path(__file__).parents[2] / "benchmarks" / "data.py"
    args = ["--rows", "20000", "--tasks", "400", "--episodes", "1000", "--held", "5000", "--out"]
    command = [sys.executable, str(script), *args, str(tmp_path / "b.json")]
    subprocess.run(command, check=True, capture_output=True)
    results = json.loads((tmp_path / "b.json").read_text())["results"]
    assert results["scattered, gathered out of core, 20,000 rows"]["tasks"] == 400


def test_spellings_of_one_class_are_said():
    frame = pl.DataFrame({"y": ["Yes", "YES ", "No"] * 5})
    with pytest.warns(InputWarning, match="'y' holds 'YES ', 'Yes', which count as 2 classes"):
        assert infer_loss(frame.lazy(), "y") == OneVsAll(("No", "YES ", "Yes"))
