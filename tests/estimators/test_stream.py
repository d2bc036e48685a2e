"""Rows one at a time."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest

import fmrl

from .data import classification, regression


@pytest.mark.parametrize("classes", [2, 3])
def test_a_stream_is_omd_and_moves_the_meta_level_as_flionline(classes):
    X, y, task = classification(classes=classes)
    clf = fmrl.MetaClassifier().fit(X, y, task=task)
    loss = fmrl.Logistic() if classes == 2 else fmrl.OneVsAll(classes)
    state = clf.state_
    game = fmrl.Task(clf.coordinates_.rows(X[:12]), y[:12], loss=loss).open()
    eta = np.asarray(float(state.guess) / (clf.lipschitz_ * np.sqrt(12)))
    played = fmrl.play(fmrl.OMD(), game, clf.coordinates_.domain, state.phi, eta, record=True)
    with clf.task(rounds=12) as t:
        for i in range(12):
            np.testing.assert_allclose(t.theta, played.actions[i], atol=1e-10)
            z = game.margins(played.actions[i])[i]
            assert t.predict(X[i]) == (int(z[0] > 0) if classes == 2 else z.argmax())
            assert t.learn(X[i], y[i]) == pytest.approx(played.losses[i], abs=1e-10)
        best = game.hindsight(clf.coordinates_.domain)
        low, high = t.regret
        assert low - 1e-9 <= played.losses.sum() - best.value <= high + 1e-9
    end = fmrl.core.rules.meta.End(
        played.last, played.last, np.asarray(clf.lipschitz_ * np.sqrt(12))
    )
    np.testing.assert_allclose(
        clf.state_.phi, clf.history_.algo.advance(state, end).phi, atol=1e-10
    )
    assert clf.n_tasks_seen_ == 31 and clf.streams_.tasks == 1 and clf.streams_.rounds == 12


@pytest.mark.parametrize("radius", [None, 0.3])
def test_a_regression_stream_is_omd_too_inside_the_ball_and_on_its_sphere(radius):
    X, y, task = regression()
    reg = fmrl.MetaRegressor(radius=radius).fit(X, y, task=task)
    state = reg.state_
    game = fmrl.Task(
        reg.coordinates_.rows(X[:12]), reg.coordinates_.target(y[:12]), loss=fmrl.Squared()
    ).open()
    eta = np.asarray(float(state.guess) / (reg.lipschitz_ * np.sqrt(12)))
    played = fmrl.play(fmrl.OMD(), game, reg.coordinates_.domain, state.phi, eta, record=True)
    stream = reg.task(rounds=12)
    for i in range(12):
        assert stream.predict(X[i]) == pytest.approx(
            reg.coordinates_.shift + reg.coordinates_.unit * game.margins(played.actions[i])[i, 0]
        )
        stream.learn(X[i], y[i])
    assert stream.loss == pytest.approx(played.losses.sum())
    assert stream.loss_of_phi == pytest.approx(game.losses(state.phi).sum())
    low, high = stream.regret
    exact = played.losses.sum() - float(game.hindsight(reg.coordinates_.domain).value)
    assert low - 1e-9 <= exact <= high + 1e-9
    if radius is not None:
        assert np.linalg.norm(played.actions, axis=1).max() == pytest.approx(radius)


def test_regression_streams_and_play():
    X, y, task = regression()
    reg = fmrl.MetaRegressor().fit(X, y, task=task)
    with reg.task() as one, reg.task() as two:
        for i in range(12):
            guess = one.predict(X[i])
            one.learn(X[i], y[i])
            assert two.play(X[i], y[i]) == guess
    assert one.loss == two.loss


def test_thousands_open_at_once_close_in_any_order():
    X, y, task = classification()
    a, b = (fmrl.MetaClassifier().fit(X, y, task=task) for _ in range(2))
    rng = np.random.default_rng(0)
    for clf in (a, b):
        tasks = [clf.task(rounds=3) for _ in range(2000)]
        for i in range(3):
            for k, t in enumerate(tasks):
                t.learn(X[(k + i) % len(y)], y[(k + i) % len(y)])
        for k in rng.permutation(2000) if clf is b else range(2000):
            tasks[k].close()
    assert a.n_tasks_seen_ == b.n_tasks_seen_ == 2030
    np.testing.assert_allclose(a.state_.phi, b.state_.phi, atol=1e-10)  # all began at the same phi


def test_a_stream_from_nothing():
    X, y, _ = classification()
    clf = fmrl.MetaClassifier()
    with pytest.raises(fmrl.FMRLError, match="name all labels"):
        clf.task()
    with clf.task(classes=[0, 1, 2]) as t:
        for i in range(12):
            if i % 2:
                t.predict(X[i])
                t.learn(X[i], y[i])
            else:
                assert t.play(X[i], y[i]) in (0, 1, 2)
        assert t.rounds == 12
    assert clf.n_tasks_seen_ == 1
    with clf.task(rounds=12) as t:
        right = [t.play(X[i], y[i]) == y[i] for i in range(12, 24)]
    assert np.mean(right) > 0.6


def test_an_exception_inside_leaves_no_trace():
    X, y, task = classification()
    clf = fmrl.MetaClassifier().fit(X, y, task=task)
    before = clf.state_
    with pytest.raises(ZeroDivisionError), clf.task() as t:
        t.learn(X[0], y[0])
        _ = 1 / 0
    assert clf.state_ is before


@pytest.fixture(scope="module")
def learned():
    """A classifier, a regressor and a classifier of two, which no stream has changed yet."""
    X, y, task = classification()
    two = fmrl.MetaClassifier().fit(X, y % 2, task=task)
    made = {fmrl.MetaClassifier: (X, y, task), fmrl.MetaRegressor: regression()}
    return [*(kind().fit(X, y, task=task) for kind, (X, y, task) in made.items()), two]


BAD = [
    [1.0, 2.0],
    [np.nan, np.inf, 0.0, 0.0],
    "text",
    ["1"] * 4,
    [1j] * 4,
    [[1.0] * 4],
    3.0,
    [np.inf] * 4,
]


@pytest.mark.parametrize("kind", ["classes", "numbers", "two classes"])
@pytest.mark.parametrize("row", [*BAD, np.full(4, 1e120), np.ones((4, 1)), np.ones(5)])
def test_bad_rows_are_refused_and_change_nothing(row, kind, learned):
    X, y, _ = regression() if kind == "numbers" else classification()
    y = y % 2 if kind == "two classes" else y
    t, fresh = (learned[["classes", "numbers", "two classes"].index(kind)].task() for _ in "12")
    for one in (t, fresh):
        one.learn(X[0], y[0])
    theta = t.theta
    t.predict(X[1])
    with pytest.raises(fmrl.FMRLError):
        t.learn(row, y[0])
    with pytest.raises(fmrl.FMRLError):
        t.predict(row)
    if kind != "numbers":
        with pytest.raises(fmrl.FMRLError, match="not one of the classes"):
            t.learn(X[0], "nobody")
    assert np.array_equal(t.theta, theta) and t.rounds == 1
    for one in (t, fresh):
        one.learn(X[1], y[1])
    assert np.array_equal(t.theta, fresh.theta)


def test_learning_what_was_just_predicted_is_learning_it():
    X, y, task = classification()
    clf = fmrl.MetaClassifier().fit(X, y, task=task)
    plain, asked = clf.task(rounds=8), clf.task(rounds=8)
    row = np.empty_like(X[0])  # one buffer for all rows, as readers of sensors do
    for i in range(8):
        loss = plain.learn(X[i].tolist(), y[i])
        row[:] = X[i + 1] if i % 2 else X[i]
        asked.predict(row)
        row[:] = X[i]  # and changed between the two calls
        if i % 3 == 0:
            asked.predict_proba(X[i + 2])  # and another question between them
        assert asked.learn(row, y[i]) == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(asked.theta, plain.theta, rtol=1e-12, atol=1e-15)
    with pytest.raises(fmrl.FMRLError, match="closed"):
        asked.predict(row)
        asked.close()
        asked.learn(row, y[0])


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_row_is_the_same_row_in_any_kind_of_array(classes):
    """Integers, float32, a stride, the other order of bytes, a list, a tensor, a series."""
    X, y, task = regression() if classes == 0 else classification(classes=classes)
    X = np.round(4 * X) * np.array([1.0, 100.0, 1.0, 1.0])  # columns of uneven size are scaled
    est = (fmrl.MetaClassifier if classes else fmrl.MetaRegressor)().fit(X, y, task=task)
    stride = np.repeat(X, 2, axis=1)
    kinds = [
        lambda i: X[i].astype(int),
        lambda i: X[i].astype(np.float32),
        lambda i: stride[i, ::2],
        lambda i: X[i].astype(">f8"),
        lambda i: X[i].tolist(),
        lambda i: pytest.importorskip("torch").tensor(X[i]),
        lambda i: pytest.importorskip("pandas").Series(X[i]),
    ]
    for kind in kinds:
        plain, other = est.task(), est.task()
        for i in range(8):
            assert plain.predict(X[i]) == other.predict(kind(i))
            assert plain.learn(X[i], y[i]) == other.learn(kind(i), y[i])
        np.testing.assert_array_equal(plain.theta, other.theta)
        np.testing.assert_array_equal(plain.rows.X, X[:8])
        np.testing.assert_array_equal(other.rows.X, X[:8])
    again = est.task(rounds=3)
    losses = [again.learn(X[0], y[0]) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]  # what was learned counts for the same row too


def test_named_streams_are_tasks_seen():
    X, y, task = classification()
    clf = fmrl.MetaClassifier().fit(X, y, task=task)
    with clf.task(name="new") as t:
        for i in range(12):
            t.learn(X[i], y[i])
    together = clf.adapt(X[:12], y[:12])
    np.testing.assert_allclose(clf.model("new").coef_, together.coef_, atol=1e-9)
    with pytest.raises(fmrl.FMRLError, match="differ"):
        clf.task(classes=["q"])


def test_a_stream_left_open_over_a_new_fit_is_refused():
    X, y, task = classification()
    clf = fmrl.MetaClassifier().fit(X, y, task=task)
    stream = clf.task()
    stream.learn(X[0], y[0])
    clf.fit(1e6 * X, y, task=task)
    with pytest.raises(fmrl.FMRLError, match="fitted anew"):
        stream.close()


def test_threads_lose_no_task():
    X, y, task = classification()
    clf = fmrl.MetaClassifier().fit(X, y, task=task)

    def work():
        for i in range(60):
            with clf.task(rounds=1) as t:
                t.learn(X[i], y[i])

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(old)
    assert clf.n_tasks_seen_ == 30 + 240 and clf.streams_.tasks == 240


@pytest.mark.parametrize("label", [[1, 2], np.array([1, 2]), None])
def test_labels_that_are_none(label, learned):
    for est in learned:
        with pytest.raises(fmrl.FMRLError):
            est.task().learn(np.zeros(4), label)


def test_a_table_is_no_row_and_a_stream_says_what_it_is(learned):
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    X, y, _ = classification()
    t = learned[0].task(name="ann")
    for table in (pd.DataFrame(X[:1]), pl.DataFrame(X[:1])):
        with pytest.raises(fmrl.FMRLError, match="takes a row, not a table"):
            t.predict(table)
    t.learn(X[0], y[0])
    assert repr(t) == "OpenTask(name='ann', open, 1 rounds)"


def test_a_row_of_a_frame_may_name_its_task():
    pd = pytest.importorskip("pandas")
    X, y, task = classification()
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame.insert(1, "shop", task.astype(str))
    stream = fmrl.MetaClassifier(common="linear").fit(frame, y, task="shop").task()
    with pytest.raises(fmrl.FMRLError, match=r"frame.iloc\[0\] or frame.row\(0, named=True\)"):
        stream.predict(frame[:1])
    rows = frame.iloc[0], frame.iloc[0].to_dict(), frame.drop(columns="shop").iloc[0], X[0]
    said = [stream.predict_proba(row) for row in rows]
    assert all((s == said[0]).all() for s in said)
    stream.learn(frame.iloc[0], y[0])
    for row in (frame.iloc[0][["shop", "a", "c", "b", "d"]], frame.iloc[0].drop("d")):
        with pytest.raises(fmrl.FMRLError, match=r"other columns than fit; .*'a', 'b', 'c', 'd'"):
            stream.learn(row, y[0])


def test_rows_of_a_frame_with_columns_of_several_kinds(learned):
    pd = pytest.importorskip("pandas")
    X, y, _ = classification()
    frame = pd.DataFrame({"a": X[:3, 0], "b": [1, 2, 3], "c": [True, False, True], "d": X[:3, 1]})
    plain, mixed = learned[0].task(), learned[0].task()
    for i in range(3):
        row = frame.iloc[i]
        assert row.dtype == object
        assert mixed.learn(row, y[i]) == plain.learn(frame.to_numpy(float)[i], y[i])


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("kind", [fmrl.MetaClassifier, fmrl.MetaRegressor])
def test_a_gap_is_the_same_gap_in_every_way_in(kind, seen):
    """Rows with gaps, where fit had some or had none: predict, adapt, update, learn_many and
    streams, whose rows may be arrays, lists with None or rows of a frame."""
    pd = pytest.importorskip("pandas")
    X, y, task = classification() if kind is fmrl.MetaClassifier else regression()
    rows, targets, mean = X[:6].copy(), y[:6], X.mean(axis=0)
    rows[[0, 2, 4], [1, 3, 0]], rows[5] = np.nan, np.nan
    if seen:
        X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    est = kind(common="linear").fit(X, y, task=task)
    assert est.encoder_.plain is not seen
    frame = pd.DataFrame(rows)
    ways = {
        "array": list(rows),
        "list": [[None if np.isnan(v) else v for v in row] for row in rows.tolist()],
        "frame": [frame.iloc[i] for i in range(len(rows))],
    }
    streams, said = {way: est.task(name=way) for way in ways}, []
    for way, each in ways.items():
        stream, answers = streams[way], []
        for x, target in zip(each, targets.tolist(), strict=True):
            answers.append(stream.predict(x))
            assert stream.play(x, target) == answers[-1]
        said.append((answers, stream.regret))
    assert said[0] == said[1] == said[2]
    for stream in streams.values():
        stream.close()
    est.update(rows, targets, task="update")
    est.learn_many(rows, targets, task=["many"] * 6)
    model = est.adapt(rows, targets)
    for name in (*ways, "update", "many"):
        np.testing.assert_allclose(est.model(name).coef_, model.coef_, rtol=1e-9)
        np.testing.assert_allclose(est.predict(rows, task=[name] * 6), model.predict(rows))
    if not seen:
        filled, one, two = np.where(np.isnan(rows), mean, rows), est.task(), est.task()
        for x, full, target in zip(rows, filled, targets, strict=True):
            assert one.learn(x, target) == pytest.approx(two.learn(full, target), rel=1e-9)


def test_a_first_task_takes_gaps_too():
    X, y, _ = classification()
    X[::5, 1] = np.nan
    one, two = fmrl.MetaClassifier(), fmrl.MetaClassifier().partial_fit(X[:12], y[:12], [0, 1, 2])
    with one.task(classes=[0, 1, 2]) as stream:
        for x, label in zip(X[:12].tolist(), y[:12], strict=True):
            stream.learn([None if np.isnan(v) else v for v in x], label)
        for row in ("text", ["1"] * 4, [np.inf] * 4, [1.0]):
            with pytest.raises(fmrl.FMRLError, match="finite numbers"):
                stream.learn(row, 0)
        with pytest.raises(fmrl.FMRLError, match="first task"):
            _ = stream.rows
    np.testing.assert_array_equal(one.predict(X[12:24]), two.predict(X[12:24]))


def test_a_stream_without_rounds_has_no_rows_and_none_is_pickled(learned):
    for est in learned:
        stream = est.task(name="ann")
        assert stream.rows.X.shape == (0, 4) and stream.rows.lengths.tolist() == [0]
        for way in (pickle.dumps, copy.deepcopy):
            with pytest.raises(fmrl.FMRLError, match="pickled") as e:
                way(stream)
            assert e.value.fix == "close it first"


@pytest.mark.parametrize("far", [1e5, 1e9, 1e11, 1e20, 1e99])
def test_a_stream_that_has_met_far_rows_goes_on(far, learned):
    """Such rows are refused, or what comes after them still counts."""
    for est in learned:
        X, y, _ = regression() if isinstance(est, fmrl.MetaRegressor) else classification()
        y = y % 2 if est is learned[2] else y
        stream, plain, refused = est.task(), est.task(), 0
        for i in range(6):
            if i % 2:
                try:
                    stream.learn(far * X[i], y[i])
                except fmrl.FMRLError:
                    refused += 1
            stream.learn(X[i], y[i])
            plain.learn(X[i], y[i])
        assert refused in (0, 3) and (refused or far < 1e12) and (not refused or far > 1e5)
        assert np.isfinite([*stream.regret, stream.loss, *stream.theta]).all()
        if refused:
            np.testing.assert_array_equal(stream.theta, plain.theta)
        else:
            before = stream._total.copy()
            stream.learn(X[6], y[6])
            assert (stream._total != before).all()


def test_units_do_not_change_which_rows_are_far():
    X, y, task = classification()
    for unit in (1e-20, 1.0, 1e20):
        stream = fmrl.MetaClassifier().fit(unit * X, y, task=task).task()
        stream.learn(1e10 * unit * X[0], y[0])
        with pytest.raises(fmrl.FMRLError, match="fit's units"):
            stream.learn(1e14 * unit * X[0], y[0])


def test_a_stream_of_one_class():
    X, _, task = classification()
    with fmrl.MetaClassifier().fit(X, np.zeros(len(X)), task=task).task() as stream:
        assert {stream.play(x, 0.0) for x in X[:20]} == {0.0}
        assert np.isfinite(stream.regret).all()


@pytest.mark.parametrize("ahead", [1, 40])
def test_streams_that_wait_to_be_observed_are_saved_with_all_others(tmp_path, ahead):
    X, y, task = classification()
    clf = fmrl.MetaClassifier(common="linear").fit(X, y, task=task)
    for k in range(ahead):
        with clf.task() as stream:
            for i in range(3):
                stream.learn(X[3 * k + i], y[3 * k + i])
    copied = copy.deepcopy(clf)
    clf.save(tmp_path / "clf")
    loaded = fmrl.MetaClassifier.load(tmp_path / "clf")
    assert [len(e._fresh[0]) for e in (clf, copied, loaded)] == [ahead % 30] * 3
    for est in (clf, copied, loaded):
        np.testing.assert_allclose(est.coef_, clf.coef_, rtol=1e-9)
        est.forget(0)
        assert sum(map(len, (est._pilot, *est._fresh))) == 29 + ahead


def test_a_masked_value_of_a_row_is_a_gap_and_text_is_no_number():
    X, y, task = regression(tasks=20)
    reg = fmrl.MetaRegressor().fit(X, y, task=task)
    row = np.ma.array(X[0].copy(), mask=[True] + [False] * (X.shape[1] - 1))
    gap = X[0].copy()
    gap[0] = np.nan
    assert reg.task().predict(row) == reg.task().predict(gap) != reg.task().predict(X[0])
    with pytest.raises(fmrl.FMRLError, match="finite number"):
        reg.task().learn(X[0], "1.0")


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_round_that_is_stopped_leaves_a_stream_whole(classes, monkeypatch):
    """Ctrl-C between the sum of gradients and what follows from it; and a row without its y."""
    X, y, task = regression() if not classes else classification(classes=classes)
    est = (fmrl.MetaClassifier if classes else fmrl.MetaRegressor)().fit(X, y, task=task)
    stream = est.task(name="new")
    for i in range(5):
        stream.learn(X[i], y[i])

    class Stops(type(stream._kept)):
        def append(self, item):
            raise KeyboardInterrupt

    before, stream._kept = stream._kept, Stops(stream._kept, maxlen=stream._kept.maxlen)
    with pytest.raises(KeyboardInterrupt):
        stream.learn(X[5], y[5])
    stream._kept = before
    assert stream._total2 == pytest.approx(stream._total @ stream._total, rel=1e-12)
    assert stream._cross == pytest.approx(stream._phi @ stream._total, rel=1e-12)
    stream.learn(X[6], y[6])
    stream.close()
    np.testing.assert_array_equal(est._rows.take(["new"]).X, X[[0, 1, 2, 3, 4, 6]])


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_stream_keeps_its_latest_rows(classes, monkeypatch):
    """All of them up to a limit; the task's model is made of those."""
    monkeypatch.setattr("fmrl.estimators.stream.KEPT", 6)
    X, y, task = regression() if not classes else classification(classes=classes)
    est = (fmrl.MetaClassifier if classes else fmrl.MetaRegressor)().fit(X, y, task=task)
    stream = est.task(name="new")
    for i in range(4):
        stream.learn(X[i], y[i])
    np.testing.assert_array_equal(stream.rows.X, X[:4])
    for i in range(4, 9):
        stream.learn(X[i], y[i])
    assert stream.rounds == 9
    stream.close()
    rows = est._rows.take(["new"])
    np.testing.assert_array_equal(rows.X, X[3:9])
    found = est.adapt(X[3:9], y[3:9])
    np.testing.assert_allclose(est.predict(X[:20], task=["new"] * 20), found.predict(X[:20]))


def test_rows_are_asked_for_between_rounds():
    """Not in the middle of another thread's: rows came with the y of another."""
    X, y, task = regression(features=2)
    est, seen = fmrl.MetaRegressor().fit(X, y, task=task), []
    stream = est.task()
    done = threading.Event()

    def ask():
        while not done.is_set():
            rows = stream.rows
            seen.append(bool((rows.X[:, 0] == rows.target[:, 0]).all()))

    asking = threading.Thread(target=ask)
    asking.start()
    for i in range(4000):
        a = float(i % 7)
        stream.learn(np.array([a, 1.0]), a)
    done.set()
    asking.join()
    assert len(seen) > 3 and all(seen)


def test_the_first_stream_is_as_strict_as_the_others():
    stream = fmrl.MetaRegressor().task()
    with pytest.raises(fmrl.FMRLError, match="no model"):
        stream.theta  # noqa: B018
    stream.learn([1.0, 2.0], 1.0)
    stream.close()
    with pytest.raises(fmrl.FMRLError, match="closed"):
        stream.learn([1.0, 2.0], 1.0)
    stream = fmrl.MetaClassifier().task(classes=np.array([0, 1]))
    with pytest.raises(fmrl.FMRLError, match="not one of the classes"):
        stream.learn([1.0, 2.0], np.array([0, 1]))


def test_streams_do_not_shrink_the_guess_they_are_played_with():
    """A stream ends as far from phi as the guess let it: whole tasks alone say how far they lie."""
    X, y, task = regression(tasks=20)
    reg = fmrl.MetaRegressor().fit(X, y, task=task)
    own = fmrl.MetaRegressor(similarity=fmrl.AverageDeviation(epsilon=0.5)).fit(X, y, task=task)
    first = float(reg.state_.guess), float(own.state_.guess)
    for each in (reg, own):
        for name in np.unique(task):
            with each.task() as stream:
                for row, value in zip(X[task == name], y[task == name], strict=True):
                    stream.learn(row, value)
    assert float(reg.state_.guess) == first[0] and float(own.state_.guess) != first[1]
    assert float(own.state_.guess) > 0.5
    reg.partial_fit(X[:12], y[:12])
    assert float(reg.state_.guess) != first[0]
