"""fmrl.runs.train: what it learns is what the estimator learns, what it holds out stays out, what
it stops it goes on with.
"""

import itertools
import json
import shutil
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from faults import digests, write_table

import fmrl
from fmrl.core.tasks import Tasks
from fmrl.datasets import training_ids
from fmrl.estimators.rows import joined
from fmrl.runs import Options, Run, Stopped, folder, train
from fmrl.runs.algorithm_run import WINDOW, ball_coordinates
from fmrl.runs.evaluate import Heldout
from fmrl.runs.source import open_source, windows
from fmrl.runs.training import Session


def test_a_run_is_what_the_estimator_learns_from_the_training_tasks(run, table):
    frame = pl.read_csv(table)
    trained = training_ids(frame["user"].unique().to_list(), 0.8)
    rows = frame.filter(pl.col("user").is_in(trained))
    X = run.encoder.transform(rows)
    clf = fmrl.MetaClassifier(common="linear")
    clf.fit(X, rows["liked"].to_numpy(), task=rows["user"].to_numpy())
    assert run.record["tasks"] == len(trained) and run.record["rows"] == len(rows)
    np.testing.assert_array_equal(run.estimator.coef_, clf.coef_)
    assert run.estimator.prior_.rule == clf.prior_.rule
    assert run.estimator.classes_.tolist() == ["no", "yes"]
    assert run.estimator.feature_names_in_.tolist() == run.encoder.names


def test_a_run_plays_algorithm_2_over_the_training_tasks(run, table):
    """In coordinates of its own, which are an affine change of the table's."""
    source = open_source(run.settings.options, run.encoder, run.settings.loss)
    tasks = joined([w.tasks for w in source.windows()])
    here, _ = ball_coordinates(tasks, intercept=True)
    played = fmrl.run(run.history.algo, [here.tasks(tasks).task(i) for i in range(len(tasks))])
    np.testing.assert_array_equal(run.history.regret, played.regret)
    assert run.history.algo.domain.radius > 1


def test_the_encoding_is_learned_from_training_tasks_only(tmp_path, table):
    frame = pl.read_csv(table)
    ids = frame["user"].unique().to_list()
    held = next(i for i in sorted(ids) if i not in training_ids(ids, 0.8))
    mine = pl.when(pl.col("user") == held)
    odd = frame.with_columns(
        colour=mine.then(pl.lit("mauve")).otherwise("colour"),
        price=mine.then(1e6).otherwise("price"),
    )
    odd.write_csv(tmp_path / "odd.csv")
    options = Options(str(tmp_path / "odd.csv"), "user", "liked", holdout=0.2)
    train(options, tmp_path / "run", evaluate_tasks=2)
    found = Run.load(tmp_path / "run")
    price = next(c for c in found.encoder.columns if c.name == "price")
    assert "colour=mauve" not in found.encoder.names and price.spread < 2


def test_held_out_tasks_are_the_same_whatever_else_is_in_the_table(run, table, tmp_path):
    half = pl.read_csv(table).filter(pl.col("user").str.contains("[0-3]$"))
    half.write_parquet(tmp_path / "half.parquet")
    source = open_source(Options(str(tmp_path / "half.parquet"), "user", "liked", holdout=0.2))
    held = {name for w in source.windows() if w.held for name in w.held.names}
    everyone = pl.read_csv(table)["user"].unique().to_list()
    known = {i for i in everyone if i[-1] in "0123"} - set(training_ids(everyone, 0.8))
    assert held == known != set()


@pytest.mark.parametrize("share", [1.0, 0.5, 0.05])
def test_windows_do_not_depend_on_how_the_table_was_cut(share):
    """The same names, one task after another, in pieces and all at once."""
    tasks = [fmrl.Task([[float(i)]], [0.0], loss=fmrl.Squared(), name=i) for i in range(3000)]

    def found(*cuts):
        pieces = [Tasks.of(tasks[a:b]) for a, b in itertools.pairwise([0, *cuts, len(tasks)])]
        some = list(windows(pieces, share))
        for part in (p for w in some for p in w if p is not None):
            assert part.X.ravel().tolist() == [float(name) for name in part.names]
        return [[None if part is None else list(part.names) for part in w] for w in some]

    whole = found()
    assert whole == found(*range(1, 3000, 5)) == found(1, 3, WINDOW, 2 * WINDOW + 1)
    kept = [name for train, _ in whole if train for name in train]
    assert kept == training_ids([str(i) for i in range(3000)], share)
    assert all(len(part or ()) <= WINDOW for pair in whole for part in pair)
    assert all(len(t or h) == WINDOW for t, h in whole[:-1])


def test_every_kind_of_table_gives_the_same_model(table, tmp_path):
    frame = pl.read_csv(table)[:240]
    frame.write_parquet(tmp_path / "a.parquet")
    frame.write_ipc(tmp_path / "a.arrow")
    frame.write_csv(tmp_path / "a.tsv", separator="\t")
    frame[:120].write_parquet(tmp_path / "part-1.parquet")
    frame[120:].write_parquet(tmp_path / "part-2.parquet")
    shuffled = frame.with_row_index("at").sample(fraction=1.0, shuffle=True, seed=0)
    shuffled.write_csv(tmp_path / "shuffled.csv")
    models = set()
    for i, name in enumerate(["a.parquet", "a.arrow", "a.tsv", "part-*.parquet"]):
        options, out = Options(str(tmp_path / name), "user", "liked"), tmp_path / f"run{i}"
        models.add(train(options, out, evaluate_tasks=0)["files"][folder.MODEL])
    assert len(models) == 1
    # Rows that lie apart are gathered and put in order; the order of the tasks is that of their
    # first rows.
    features = tuple(c for c in frame.columns if c not in ("user", "liked"))
    given = {"features": features, "order": ("at",), "rows": 100}
    options = Options(str(tmp_path / "shuffled.csv"), "user", "liked", **given)
    record = train(options, tmp_path / "apart", evaluate_tasks=0)
    rounds = (np.sort(Run.load(tmp_path / name).history.rounds) for name in ("apart", "run0"))
    np.testing.assert_array_equal(*rounds)
    assert record == train(options, tmp_path / "apart", resume=True)


def test_regression_classes_and_ingredients(tmp_path, table):
    given = {"similarity": "Doubling(0.1, 1.1)", "within": "OGD()", "meta": "AdaptiveOGD()"}
    options = Options(str(table), "user", "price", **given)
    record = train(options, tmp_path / "price", evaluate_tasks=4)
    assert record["kind"] == "regression" and record["classes"] is None
    for part in ("OGD()", "Doubling(epsilon=0.1, gamma=1.1"):
        assert part in record["composition"]
    assert len(record["heldout"]["methods"]) == 3
    record = train(Options(str(table), "user", "colour"), tmp_path / "colour", evaluate_tasks=2)
    assert record["classes"] == ["blue", "green", "red"]
    frame = pl.read_csv(table).with_columns(grade=(pl.col("price") > 0).cast(pl.Float64))
    frame.write_csv(tmp_path / "grade.csv")
    with pytest.raises(fmrl.FMRLError, match="only 0 and 1"):
        train(Options(str(tmp_path / "grade.csv"), "user", "grade"), tmp_path / "no")
    assert not (tmp_path / "no").exists()
    options = Options(str(tmp_path / "grade.csv"), "user", "grade", kind="classification")
    assert train(options, tmp_path / "g", evaluate_tasks=0)["classes"] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"task": "who"}, "there is no column 'who'"),
        ({"target": "colour", "features": ("colour",)}, "features include the target"),
        ({"kind": "guess"}, "kind='guess' is unknown"),
        ({"holdout": 1.0}, "holdout=1.0 is out of range; give a share"),
        ({"similarity": "Ball(1.0)"}, "not a value for similarity"),
        ({"meta": "Doubling(0.1, 1.1)"}, "not a value for meta"),
        ({"within": "open('x')"}, r"open\('x'\) is not a value for within; use one of OMD, OGD"),
        ({"radius": -1.0}, "radius=-1.0 is out of range"),
        ({"similarity": "Dubling(1)"}, "did you mean Doubling. use one of Doubling,"),
        ({"missing": "error"}, "has no value in row"),
        ({"holdout": 0.999}, "no task|no row"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(given, said, table, tmp_path):
    base = {"table": str(table), "task": "user", "target": "liked"}
    with pytest.raises(fmrl.FMRLError, match=said):
        train(Options(**(base | given)), tmp_path / "run")
    assert not (tmp_path / "run" / folder.RECORD).exists()


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Three windows and a bit of training tasks, and the whole run."""
    home = tmp_path_factory.mktemp("long")
    table = write_table(home / "table.csv", int(3.4 * WINDOW / 0.9), 4)
    options = Options(str(table), "user", "liked", apart="error")
    train(options, home / "whole", evaluate_tasks=3)
    return options, home


def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(long, tmp_path):
    options, home = long
    for count in (1, 3, 4):
        left = iter([False] * (count - 1) + [True])
        given = {"resume": True, "evaluate_tasks": 3, "stop": lambda left=left: next(left)}
        said = f"stopped; {min(count * WINDOW, 3481):,} of"
        with pytest.raises(Stopped, match=said) as stopped:
            train(options, tmp_path / "run", **given)
        again = options.command(str(tmp_path / "run"), "--resume")
        assert stopped.value.fix == f"go on with: {again}"
        with pytest.raises(fmrl.FMRLError, match="is not finished; go on with: fmrl train"):
            Run.load(tmp_path / "run")
    train(options, tmp_path / "run", resume=True, evaluate_tasks=3)
    assert digests(tmp_path / "run") == digests(home / "whole")
    assert not (tmp_path / "run" / folder.CHECKPOINT).exists()


def test_the_prior_is_learned_from_tasks_of_all_windows(long):
    options, home = long
    run = Run.load(home / "whole")
    names = pl.read_parquet(home / "whole" / folder.TASKS)["task"].to_list()
    session = Session(run.settings, open_source(options), home, lambda *_: None, 3)
    assert sum(len(window.names) for window in session.windows()) == len(names)
    pilot = joined(session.pilot)
    place = np.array([names.index(name) for name in pilot.names])
    share = np.bincount(place // WINDOW) / np.bincount(np.arange(len(names)) // WINDOW)
    np.testing.assert_allclose(share, share[0], atol=0.01)
    assert run.prior.members[0].tasks == len(pilot) and np.diff(place).min() > 0


def test_a_long_run_that_drifts_ends_with_its_newest_tasks(tmp_path):
    """Counts are those of the run, not of its pilot; what is scored on is as new as what counts."""
    rng, count, rows = np.random.default_rng(0), 2600, 12
    slope = np.linspace(-2, 2, count)[:, None] + 0.3 * rng.normal(size=(count, 2))
    x = rng.normal(size=(count, rows, 2))
    y = (x * slope[:, None]).sum(axis=-1) + 0.3 * rng.normal(size=(count, rows))
    table = pl.DataFrame({"a": x[..., 0].ravel(), "b": x[..., 1].ravel(), "y": y.ravel()})
    table = table.with_columns(who=pl.Series(np.repeat(np.arange(count), rows)))
    table.write_parquet(tmp_path / "table.parquet")
    options = Options(
        str(tmp_path / "table.parquet"), "who", "y", common="linear", environment="drift"
    )
    record = train(options, tmp_path / "run", keep_models=False)
    prior = Run.load(tmp_path / "run").prior
    found = prior.environment
    assert found.kind == "recent" and found.tasks == record["tasks"] > 2000
    last = round(found.window * found.tasks)
    assert f"the last {last:,} say more than all {found.tasks:,}" in str(found)
    assert found.older or prior.members[0].tasks == last
    now = prior.members[-1].mean[0, 0][:2] / prior.coordinates.scale * prior.coordinates.unit
    assert (now > 1.5).all()  # on average over all it is 0
    heldout = record["heldout"]
    assert "the last" in heldout["protocol"]
    assert min(map(int, heldout["names"])) > (1 - 2 * found.window) * count


def test_a_stop_while_a_window_is_played_keeps_the_checkpoint_before(long, tmp_path, monkeypatch):
    options, home = long
    real, calls = Session.play_window, []

    def interrupted(self, *args):
        real(self, *args)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Session, "play_window", interrupted)
    with pytest.raises(Stopped, match=f"{WINDOW:,} of"):
        train(options, tmp_path / "run", checkpoint_every=1, evaluate_tasks=3)
    checkpoint = tmp_path / "run" / folder.CHECKPOINT
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    with pytest.raises(fmrl.FMRLError, match=r"checkpoint\.npz is damaged; delete it"):
        train(options, tmp_path / "run", resume=True)
    checkpoint.write_bytes(whole)
    record = train(options, tmp_path / "run", resume=True, evaluate_tasks=3)
    assert record["resumed_after"] == WINDOW
    assert digests(tmp_path / "run") == digests(home / "whole")


def test_a_folder_holds_one_run_of_one_table(long, tmp_path, table):
    options, home = long
    with pytest.raises(fmrl.FMRLError, match="holds a run already"):
        train(options, home / "whole")
    with pytest.raises(fmrl.FMRLError, match="begun with another seed"):
        train(Options(**(options.to_dict() | {"seed": 1})), home / "whole", resume=True)
    shutil.copy(options.table, tmp_path / "copy.csv")
    changed = Options(str(tmp_path / "copy.csv"), "user", "liked")
    with pytest.raises(Stopped):
        train(changed, tmp_path / "run", stop=lambda: True)
    with (tmp_path / "copy.csv").open("ab") as file:
        file.write(b"u9999,1.0,1.0,red,yes\n")
    with pytest.raises(fmrl.FMRLError, match="not what this run began with"):
        train(changed, tmp_path / "run", resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(fmrl.FMRLError, match="is not empty"):
        train(Options(str(table), "user", "liked"), tmp_path / "full")
    with folder.writing(tmp_path / "busy"), pytest.raises(fmrl.FMRLError, match="another process"):
        train(Options(str(table), "user", "liked"), tmp_path / "busy")


def test_what_a_killed_writer_left_is_swept(long, tmp_path, table):
    (tmp_path / "run").mkdir()
    for name in (".4711-0.partial.model.safetensors", ".815-3.partial.record.json"):
        (tmp_path / "run" / name).write_bytes(b"half")
    (tmp_path / "run" / folder.SCRATCH).mkdir()
    train(Options(str(table), "user", "liked"), tmp_path / "run", evaluate_tasks=0)
    files = {folder.SETTINGS, folder.RECORD, folder.MODEL, folder.HISTORY, folder.TASKS}
    files |= {folder.HELDOUT, folder.MODELS, folder.ENCODER, folder.README}
    assert {p.name for p in (tmp_path / "run").iterdir()} == files


def test_the_record_says_how_to_repeat_it(run, table, tmp_path):
    record = json.loads((run.path / folder.RECORD).read_text())
    assert record["data"] == [{"name": "likes.csv", "sha256": folder.sha256(table)}]
    asked = f"{table} --task user --target liked --holdout 0.2 --common linear --out {run.path}"
    assert record["command"] == f"fmrl train {asked}"
    assert record["versions"]["fmrl"] == fmrl.__version__
    assert record["configuration"]["scale"] == "standard"
    again = train(run.settings.options, tmp_path / "again")
    assert again["files"] == record["files"] and again["heldout"] == record["heldout"]


def test_memory_holds_no_rows(long):
    options, home = long
    estimator = Run.load(home / "whole").estimator
    assert not getattr(estimator, "_waiting", None)
    seen = train(options, home / "none", keep_models=False, evaluate_tasks=0)
    assert folder.MODELS not in seen["files"] and Run.load(home / "none").models is None


def test_held_out_scores(run):
    heldout = run.record["heldout"]
    names = [m["name"] for m in heldout["methods"]]
    assert names == ["FMRL", "per-task", "pooled"] and heldout["shots"] == [0, 1, 2, 4, 8]
    assert heldout["metric"] == "log_loss"
    scores = {m["name"]: m["mean"] for m in heldout["methods"]}
    assert scores["FMRL"][1] < scores["per-task"][1] - 0.05  # users are alike, one row is little
    assert scores["per-task"][0] is None  # a task alone knows nothing without rows
    for m in heldout["methods"]:
        low, mean, high = (np.array(m[end][1:]) for end in ("low", "mean", "high"))
        assert (low <= mean).all() and (mean <= high).all() and m["tasks"][1:] == [10] * 4
    assert {d["against"] for d in heldout["differences"]} == {"per-task", "pooled"}


def test_held_out_scores_are_those_of_the_estimator(run, table):
    """Log-loss, accuracy and calibration by scikit-learn, on the rows the evaluation drew."""
    from sklearn.metrics import log_loss

    source = open_source(run.settings.options, run.encoder, run.settings.loss)
    drawn = Heldout(100, run.settings.options.seed)
    for window in source.windows():
        drawn.add(window.held)
    heldout, k, found, sure = run.record["heldout"], 2, [], []
    assert [t.name for t in drawn.tasks(run.prior.environment)] == heldout["names"]
    for task in drawn.tasks(run.prior.environment):
        n, y = len(task.X) // 3, run.estimator.classes_[task.target[:, 0].astype(int)]
        model = run.estimator.adapt(task.X[:k], y[:k])
        p, truth = model.predict_proba(task.X[-n:]), y[-n:]
        right = model.predict(task.X[-n:]) == truth
        found.append([log_loss(truth, p, labels=["no", "yes"]), right.mean()])
        sure.append(np.stack([p.max(axis=1), right]))
    at = heldout["shots"].index(k)
    ours = {c["what"]: c["mean"][at] for c in heldout["checks"] if c["method"] == "FMRL"}
    expected = np.mean(found, axis=0)
    assert heldout["methods"][0]["mean"][at] == pytest.approx(expected[0])
    assert ours["accuracy"] == pytest.approx(expected[1])
    confidence, right = np.concatenate(sure, axis=1)
    inside = [(confidence >= b / 10) & (confidence < (b + 1) / 10 + (b == 9)) for b in range(10)]
    off = [abs(confidence[i].mean() - right[i].mean()) * i.mean() for i in inside if i.any()]
    assert ours["calibration"] == pytest.approx(sum(off))


def test_regressions_are_scored_with_their_intervals(table, tmp_path):
    record = train(Options(str(table), "user", "price", holdout=0.4), tmp_path / "run")
    heldout = record["heldout"]
    checks = {c["what"]: c["mean"] for c in heldout["checks"]}
    assert heldout["metric"] == "r2" and heldout["shots"][:2] == [0, 1]
    assert len(checks["coverage"]) == len(checks["width"]) == len(heldout["shots"])
    assert all(0.75 <= share <= 1 for share in checks["coverage"])
    spread = pl.read_csv(table)["price"].std()
    assert all(spread < width < 8 * spread for width in checks["width"])


def test_a_run_that_never_began_leaves_the_way_free(table, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(fmrl.FMRLError):
        train(Options(str(table), "user", "colour", kind="regression"), out)
    assert train(Options(str(table), "user", "liked", holdout=0.0), out)["tasks"] == 60


def test_long_runs_do_not_write_their_history_over_and_over():
    """A checkpoint holds all tasks so far: at a fixed distance millions would be written for
    ever. The first ones stay where they were asked for.
    """
    session = Session.__new__(Session)
    session.names, session.done, session.saved, session.run = [], 0, 0, object()
    session.progress = lambda *_: None
    session.source = SimpleNamespace(expected=1000 * 1024)
    saved = []

    def windows():
        for _ in range(1000):
            session.names += [""] * 1024
            yield None

    def play(_):
        session.done += 1024

    def save():
        session.saved = session.done
        saved.append(session.done)

    session.windows, session.play_window, session.save = windows, play, save
    session.play(16_384, lambda: False)
    assert saved[:8] == [16_384 * (i + 1) for i in range(8)] and saved[-1] == 1000 * 1024
    assert len(saved) < 30 and sum(saved) < 12 * saved[-1]
    assert all(b - a <= a / 8 + 2048 for a, b in itertools.pairwise(saved[8:]))
