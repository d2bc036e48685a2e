"""What the estimators promise beyond scikit-learn's contract."""

import copy
import pickle
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fmrl
from fmrl.core.prior import posterior
from fmrl.estimators import calibration
from fmrl.estimators.averaging import HeldOut, quantiles
from fmrl.estimators.rows_sqlite import SQLiteRows
from fmrl.estimators.task_model import TaskRegressor
from fmrl.tables.targets import group_by_task

from .data import classification, regression


@pytest.mark.parametrize("way", ["partial_fit", "update"])
def test_arrays_may_be_used_again_once_they_were_given(way):
    """Also where the prior is learned again from tasks that came before."""
    X, y, task = regression(tasks=30)
    new, answers, which = regression(tasks=70, seed=5)
    found = []
    for reuse in (True, False):
        given = X.copy(), y.copy()
        reg = fmrl.MetaRegressor(common="linear", environment="stationary").fit(*given, task=task)
        for part in given:
            part[:] = 7.0 if reuse else part
        rows, labels = np.empty((len(new) // 70, new.shape[1])), np.empty(len(new) // 70)
        for k in range(70):
            if not reuse:
                rows, labels = rows.copy(), labels.copy()
            rows[:], labels[:] = new[which == k], answers[which == k]
            getattr(reg, way)(rows, labels, task=f"new {k}")
        found.append(reg.coef_)
    np.testing.assert_array_equal(*found)


def test_numbers_too_large_to_be_squared_are_refused_by_fit():
    X, y, task = regression(tasks=12)
    with pytest.raises(fmrl.FMRLError, match="beyond"):
        fmrl.MetaRegressor().fit(1e150 * X, 1e150 * y, task=task)


def test_partial_fit_is_one_more_task():
    """Named by the next number; the first calls together are nearly a fit on all of them."""
    X, y, task = regression(tasks=6)
    whole, part = fmrl.MetaRegressor().fit(X, y, task=task), fmrl.MetaRegressor()
    for t in range(6):
        assert part.partial_fit(X[task == t], y[task == t]) is part
    assert part.tasks_ == whole.tasks_ == list(range(6))
    part.relearn()
    assert part.prior_.tasks == 6
    np.testing.assert_array_equal(part.coef_, whole.coef_)
    np.testing.assert_array_equal(part.adapt(X[:12], y[:12]).coef_, whole.model(0).coef_)


def test_tasks_are_known_in_order_of_appearance():
    X, y, task = regression(tasks=20, rows=10)
    keep = np.random.default_rng(1).random(len(y)) < np.linspace(0.2, 1, 20)[task]
    X, y, task = X[keep], y[keep], task[keep]
    mixed = np.random.default_rng(2).permutation(len(y))
    reg = fmrl.MetaRegressor().fit(X[mixed], y[mixed], task=task[mixed])
    assert reg.tasks_ == list(dict.fromkeys(task[mixed].tolist()))
    found = reg._rows.take(reg.tasks_)
    np.testing.assert_array_equal(found.lengths, [np.sum(task == t) for t in reg.tasks_])
    own = mixed[task[mixed] == reg.tasks_[3]]  # in the order in which they came
    np.testing.assert_array_equal(reg._rows.take([reg.tasks_[3]]).X, X[own])


@pytest.mark.parametrize("make", [classification, regression])
def test_adapting_is_ftrl_in_the_learned_metric(make, monkeypatch):
    """Every member's model is the MAP under its Gaussian, which an independent solver finds, and
    the adapted model their average; of classes, if losses are not averaged."""
    monkeypatch.setattr(posterior, "REFINE", 0)
    X, y, task = make()
    kind = fmrl.MetaClassifier if make is classification else fmrl.MetaRegressor
    est = kind(common="linear")
    prior, n = est.fit(X, y, task=task).prior_, 6
    rows, here = prior.coordinates.rows(X[:n]), prior.coordinates
    outputs = prior.loss.outputs
    answers = [(y[:n] == c).astype(int) for c in range(outputs)]
    answers = answers if outputs > 1 else [here.target(y[:n])]
    loss, theta = fmrl.Logistic() if outputs > 1 else fmrl.Squared(), 0.0
    for weight, member in zip(prior.rule.at(n).weights, prior.members, strict=True):
        if weight:
            found = []
            for k, answer in enumerate(answers):
                gaussian = member.gaussian(0, k)
                few = replace(
                    gaussian, covariance=gaussian.covariance + 1e-12 * np.eye(len(rows.T))
                )
                found.append(few.adapt(fmrl.Task(rows, answer, loss=loss)).mean)
            theta = theta + weight * np.stack(found)
    coef, intercept = here.model(theta.ravel(), outputs)
    model = est.adapt(X[:n], y[:n])
    np.testing.assert_allclose(np.atleast_2d(model.coef_), coef, atol=1e-5)
    np.testing.assert_allclose(np.atleast_1d(model.intercept_), intercept, atol=1e-5)


def test_few_rows_go_further_with_the_other_tasks():
    X, y, task = classification(tasks=80, rows=20, features=10, spread=0.2, size=0.6)
    train = task < 60
    clf = fmrl.MetaClassifier().fit(X[train], y[train], task=task[train])
    ours, alone = [], []
    for t in range(60, 80):
        A, b = X[task == t], y[task == t]
        shots = np.concatenate([np.flatnonzero(b == c)[:1] for c in np.unique(b)])
        rest = np.setdiff1d(np.arange(len(b)), shots)
        ours.append(clf.adapt(A[shots], b[shots]).score(A[rest], b[rest]))
        alone.append(LogisticRegression().fit(A[shots], b[shots]).score(A[rest], b[rest]))
    assert np.mean(ours) > np.mean(alone) + 0.1


def test_tasks_that_share_nothing_start_from_nothing():
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(60), 30), rng.normal(size=(1800, 8))
    y = (X * rng.normal(size=(60, 8))[task]).sum(axis=1) + 0.1 * rng.normal(size=1800)
    reg = fmrl.MetaRegressor().fit(X, y, task=task)
    assert reg.prior_.coef_std[0].min() > 0.5  # which are truly 1 apart
    assert reg.adapt(X[:20], y[:20]).score(X[20:30], y[20:30]) > 0.95


def test_a_mean_of_few_tasks_in_many_columns_is_not_believed():
    """Tasks lie around 0: of fewer tasks than columns, one who believes their mean does worse."""
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(30), 10), rng.normal(size=(300, 16))
    y = (X * (rng.normal(size=(30, 3)) @ rng.normal(size=(3, 16)))[task]).sum(axis=1)
    y += rng.normal(size=300)
    few, rest = task < 14, task >= 14
    reg = fmrl.MetaRegressor(common="linear", environment="stationary")
    prior = reg.fit(X[few], y[few], task=task[few]).prior_
    apart = np.array([m.family.startswith("apart") for m in prior.members])
    assert np.array(prior.rule.at(2).weights)[apart].sum() > 0.5
    shown = rest & (np.arange(300) % 10 < 2)

    def error(members):
        rule = [c._replace(weights=tuple(1.0 * members)) for c in prior.rule.choices]
        known = replace(prior, rule=replace(prior.rule, choices=tuple(rule)))
        models = [TaskRegressor(known).fit(X[shown & (task == t)], y[shown & (task == t)])
                  for t in range(14, 30)]  # fmt: skip
        hidden = rest & ~shown
        said = np.concatenate([m.predict(X[hidden & (task == t)])
                               for t, m in enumerate(models, 14)])  # fmt: skip
        return np.mean((said - y[hidden]) ** 2)

    full = np.array([m.family == "full" for m in prior.members])
    assert error(np.roll(full, 2)) <= error(full)
    assert np.abs(prior.members[full.argmax()].mean[..., :16]).max() < 0.1
    many = reg.fit(X, y, task=task).prior_  # more tasks than columns
    assert not any(m.family.startswith("apart") for m in many.members)


def test_seen_tasks_have_their_own_models():
    X, y, task = classification(spread=2.0)
    names = np.array([f"user {t}" for t in task])
    clf = fmrl.MetaClassifier(common="linear").fit(X, y, task=names)
    assert clf.score(X, y, task=names) > clf.score(X, y) + 0.05
    chances = clf.predict_proba(X, task=names)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_allclose(np.exp(clf.predict_log_proba(X, task=names)), chances)
    one = clf.model("user 3")
    np.testing.assert_array_equal(
        one.predict(X[task == 3]), clf.predict(X[task == 3], task=names[task == 3])
    )
    with pytest.warns(UserWarning, match="'nobody' was not seen"):
        said = clf.predict_proba(X, task=np.full(len(y), "nobody"))
    np.testing.assert_allclose(said, clf.predict_proba(X), atol=1e-12)
    with pytest.raises(fmrl.FMRLError, match="was not seen"):
        clf.model("nobody")


def test_labels_of_any_kind_and_tasks_that_lack_some():
    X, y, task = classification(classes=4)
    y = np.array(["a", "b", "c", "d"])[y]
    y[(task % 5 == 0) & (y == "d")] = "a"
    clf = fmrl.MetaClassifier(common="linear").fit(X, y, task=task)
    assert clf.classes_.tolist() == ["a", "b", "c", "d"]
    only = clf.adapt(X[:3], np.array(["a", "a", "a"]))
    assert only.predict_proba(X).shape == (len(y), 4) and set(only.predict(X)) <= set("abcd")
    with pytest.raises(fmrl.FMRLError, match="not one of the classes"):
        clf.adapt(X[:2], np.array(["a", "z"]))


@pytest.mark.parametrize("make", [classification, regression])
def test_weights_count_as_copies(make):
    """In estimating how tasks differ, and in adapting. Which rows are shown in calibration differs,
    and so the weights of the average; and trees, left out here, ask how many rows a leaf has."""
    X, y, task = make(tasks=20, rows=15)
    weight = np.random.default_rng(0).integers(1, 4, len(y))
    copies = np.repeat(np.arange(len(y)), weight)
    est = fmrl.MetaClassifier if make is classification else fmrl.MetaRegressor
    a = est(common="linear").fit(X, y, task=task, sample_weight=weight)
    b = est(common="linear").fit(X[copies], y[copies], task=task[copies])
    for one, two in zip(a.prior_.members, b.prior_.members, strict=True):
        np.testing.assert_allclose(one.mean, two.mean, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(one.covariance, two.covariance, rtol=2e-6, atol=1e-6)
        assert abs(one.noise - two.noise) < 1e-8
    few = np.repeat(np.arange(5), weight[:5])
    models = a.adapt(X[:5], y[:5], weight[:5]), a.adapt(X[few], y[few])
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, atol=1e-7)


def test_frames_keep_their_names_and_pipelines_work():
    pandas = pytest.importorskip("pandas")
    X, y, task = classification()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    clf = fmrl.MetaClassifier().fit(frame, y, task=task)
    model = clf.adapt(frame[:6], y[:6])
    assert model.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names"):
        clf.adapt(frame[:6].rename(columns={"a": "z"}), y[:6])
    with config_context(enable_metadata_routing=True):
        pipe = make_pipeline(StandardScaler(), fmrl.MetaClassifier().set_fit_request(task=True))
        assert pipe.fit(X, y, task=task)[-1].tasks_ == list(range(30))
    pipe = make_pipeline(StandardScaler(), fmrl.MetaClassifier()).fit(
        X, y, metaclassifier__task=task
    )
    assert pipe[-1].tasks_ == list(range(30))
    assert cross_val_score(clone(model), X[:60], y[:60], cv=3).mean() > 0.6


def test_torch_in_torch_out():
    torch = pytest.importorskip("torch")
    X, y, task = classification()
    given = torch.tensor(X), torch.tensor(y)
    clf = fmrl.MetaClassifier(common="linear").fit(*given, task=torch.tensor(task))
    p = clf.predict_proba(torch.tensor(X))
    assert isinstance(p, torch.Tensor)
    np.testing.assert_array_equal(p.numpy(), clf.predict_proba(X))
    model = clf.adapt(X[:6], y[:6])
    np.testing.assert_allclose(
        model.to_torch()(torch.tensor(X)).detach().numpy(), model.decision_function(X), atol=1e-12
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": np.arange(3)}, "3 ids"),
        ({"task": np.r_[np.nan, np.zeros(359)]}, "row 0 has no task id"),
        ({"sample_weight": np.zeros(360)}, "at least one non-zero"),
        ({"sample_weight": np.full(360, 1e99)}, r"is 1e\+99, above 1e\+12; divide all .* mean"),
        ({"sample_weight": np.geomspace(1e-50, 1e12, 360)}, r"from 1e-50 to 1e\+12; make 0 of"),
    ],
)
def test_bad_input_is_named(change, message):
    X, y, task = regression()
    with pytest.raises(ValueError, match=message):
        fmrl.MetaRegressor().fit(X, y, **({"task": task} | change))


def test_tasks_that_come_after_fit_do_not_throw_the_rule_away():
    X, y, task = regression(tasks=40)
    reg = fmrl.MetaRegressor().fit(X, y, task=task)
    prior = reg.prior_
    for i in range(4):
        reg.partial_fit(X[3 * i : 3 * i + 3], y[3 * i : 3 * i + 3])
    assert reg.prior_ is prior and len(reg.tasks_) == 44


def test_a_refused_task_changes_nothing():
    X, y, task = regression(tasks=5)
    reg = fmrl.MetaRegressor()
    for t in range(3):
        reg.partial_fit(X[task == t], y[task == t], task=t)
    prior, rows = reg.prior_, reg._rows.take(reg.tasks_).X.copy()
    with pytest.raises(fmrl.FMRLError):
        reg.partial_fit(X[task == 4], y[task == 4], task=[1, 2])
    assert reg.prior_ is prior and reg.tasks_ == [0, 1, 2]
    np.testing.assert_array_equal(reg._rows.take(reg.tasks_).X, rows)
    reg.partial_fit(X[task == 4], y[task == 4])  # a name of its own, which nobody has
    assert reg.tasks_ == [0, 1, 2, 3]


def test_asking_does_not_change_answers():
    X, y, task = classification(spread=2.0)
    asked, silent = (
        fmrl.MetaClassifier(common="linear").fit(X[task < 20], y[task < 20], task=task[task < 20])
        for _ in range(2)
    )
    asked.predict(X[task < 20], task=task[task < 20])
    for clf in (asked, silent):
        for t in range(20, 30):
            clf.partial_fit(X[task == t], y[task == t], task=t)
    np.testing.assert_array_equal(
        asked.predict_proba(X, task=task), silent.predict_proba(X, task=task)
    )


def test_columns_of_different_size():
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(60), 40), rng.normal(size=(2400, 4)) * [1.0, 10.0, 1e4, 0.1]
    w = (np.array([1.0, -1.0, 2.0, 1.0]) + 0.2 * rng.normal(size=(60, 4))) / [1.0, 10.0, 1e4, 0.1]
    y = (X * w[task]).sum(axis=1) + 0.1 * rng.normal(size=2400)
    train = task < 50
    reg = fmrl.MetaRegressor().fit(X[train], y[train], task=task[train])
    assert (reg.prior_.coordinates.scale != 1).any()
    scores = [
        reg.adapt(X[task == t][:20], y[task == t][:20]).score(X[task == t][20:], y[task == t][20:])
        for t in range(50, 60)
    ]
    assert np.mean(scores) > 0.95


@pytest.mark.parametrize("make", [regression, classification])
def test_weights_at_the_limit_give_finite_answers(make):
    X, y, task = make(tasks=6, rows=6, features=1)
    est = fmrl.MetaRegressor if make is regression else fmrl.MetaClassifier
    plain = est(common="linear").fit(X, y, task=task).score(X, y, task=task)
    uneven = np.where(np.arange(len(y)) % 6 == 5, 1e-12, 1.0)
    for weight in (np.full(len(y), 1e12), np.full(len(y), 1e-12), uneven):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fmrl.InputWarning)
            model = est(common="linear").fit(X, y, task=task, sample_weight=weight)
        assert np.isfinite(model.coef_).all()
        assert np.isfinite(model.adapt(X[:4], y[:4], weight[:4]).coef_).all()
        assert weight[0] < 1 or model.score(X, y, task=task) > plain - 0.3


def test_weights_that_sum_to_little_or_much_are_named():
    X, y, task = regression()
    for each, count in ((1 / 360, "1"), (0.5, "180"), (1e4, r"3.6e\+06")):
        with pytest.warns(fmrl.InputWarning, match=f"360 rows count as {count}, .*average of 1"):
            reg = fmrl.MetaRegressor(common="linear").fit(X, y, task, np.full(360, each))
        with pytest.warns(fmrl.InputWarning, match="12 rows count as"):
            clone(reg).partial_fit(X[:12], y[:12], sample_weight=np.full(12, each))
    with warnings.catch_warnings():
        warnings.simplefilter("error", fmrl.InputWarning)
        some = np.repeat([0.0, 0.9], 180)  # rows that do not count are none of the average
        fmrl.MetaRegressor(common="linear").fit(X, y, task, some)


def test_rows_of_weight_zero_are_not_there():
    X, y, task = classification()
    clf = fmrl.MetaClassifier().fit(X, y, task=task)
    few, many = np.ones(4), np.r_[np.ones(4), np.zeros(60)]
    np.testing.assert_array_equal(
        clf.adapt(X[:4], y[:4], few).coef_, clf.adapt(X[:64], y[:64], many).coef_
    )


def test_ids_of_different_kinds_and_numbers_beyond_squaring_are_refused():
    X, y, _ = regression(tasks=2, rows=4)
    with pytest.raises(fmrl.FMRLError, match="different kinds"):
        fmrl.MetaRegressor().fit(X, y, task=[1, "1"] * 4)
    for scale, message in ((1e-160, "too large or too small"), (1e160, "beyond")):
        with pytest.raises(fmrl.FMRLError, match=message):
            fmrl.MetaRegressor().fit(scale * X, y)


def test_members_are_scored_on_tasks_they_have_not_seen():
    """Every task is asked about once a repeat, by members that were estimated without it."""
    from fmrl.core.prior.mixture_fit import fit_family

    X, y, task = regression(tasks=10)
    X[:, 0] = task  # so that rows say which task they are of
    tasks = group_by_task(fmrl.Squared(), X, y, None, task)
    seen = []

    def learn(some, tolerance):
        seen.append(set(some.X[:, 0]))
        return [fit_family(some, "none", False)]

    sheet = calibration.held_out_predictions(tasks, learn, 0)[2]
    assert len(seen) == 4 and all(len(s) in (7, 8) for s in seen)
    for name in range(10):
        assert sum(name not in s for s in seen) == 1
    assert len(sheet.weight) == 10 * 4  # tasks, repeats


def test_every_task_counts_once_in_an_interval_however_many_rows_it_has():
    """Of tasks with one row and with three; rows weigh alike, as `predict_held_out` has them."""
    weight = np.array([[0.5, 0.0, 0.0], [0.5] * 3])
    z = np.array([[2.0, 0.0, 0.0], [1.0, -3.0, 4.0]])[..., None]
    sheet = HeldOut(z[None], np.ones((1, *z.shape)), np.zeros(z.shape), weight)
    member = SimpleNamespace(noise=3.0)  # √(variance + noise) is 2
    found = calibration._widths([sheet], (1.0,), [member])
    once = quantiles(np.array([1.0, 0.5, 1.5, 2.0]), np.array([3.0, 1.0, 1.0, 1.0]))
    np.testing.assert_allclose(found, once)


def test_intervals_cover_in_the_mean_group_where_short_groups_are_noisy():
    """300 noisy groups of 4 rows beside 40 quiet ones of 30."""
    rng, sizes = np.random.default_rng(0), np.repeat([4, 30], [300, 40])
    task, noise = np.repeat(np.arange(340), sizes), np.repeat([2.0, 0.5], [300, 40])
    own = rng.normal(size=340)

    def drawn(task, noise):
        X = rng.normal(size=(len(task), 2))
        return X, X.sum(axis=1) + own[task] + noise * rng.normal(size=len(task))

    X, y = drawn(task, noise[task])
    reg = fmrl.MetaRegressor(common="linear").fit(X, y, task=task)
    own, inside = rng.normal(size=340), []
    for kind in (0, 1):
        for t in range(*((0, 300), (300, 340))[kind]):
            few, many = (drawn(np.full(n, t), np.full(n, noise[t])) for n in (1, 20))
            low, high = reg.adapt(*few).predict_interval(many[0]).T
            inside.append(np.mean((low <= many[1]) & (many[1] <= high)))
    assert 0.87 < np.mean(inside) < 0.93


@pytest.mark.parametrize("stored", [None, True])
@pytest.mark.parametrize("where", ["meta.learn_prior", "prior_fit.calibrate"])
@pytest.mark.parametrize("stopped", [KeyboardInterrupt, ValueError])
def test_a_fit_that_is_stopped_leaves_what_was_there(stopped, where, stored, monkeypatch, tmp_path):
    X, y, task = regression(tasks=12)
    est = fmrl.MetaRegressor(common="linear", store=stored and tmp_path / "rows")
    est.fit(X, y, task=task)
    assert isinstance(est._rows, SQLiteRows) == bool(stored)
    before, names = est.predict(X[:9], task=task[:9]), list(est.tasks_)
    prior, rows = est.prior_, est._rows
    new = fmrl.MetaRegressor(common="linear", store=stored and tmp_path / "others")

    def stop(*_, **__):
        raise stopped

    monkeypatch.setattr(f"fmrl.estimators.{where}", stop)
    for one in (est, new):
        calls = [lambda e=one: e.fit(X + 1, 2 * y, task=task)]
        if one is est:
            calls += [est.relearn, lambda: est.relearn(background=True).result()]
            tasks = est._rows.take(names)
            calls.append(lambda tasks=tasks: est.learn_tasks(tasks))
        else:
            calls.append(lambda: new.update(X, y, task=task))
            calls.append(lambda: new.partial_fit(X[:5], y[:5]))
        for call in calls:
            with pytest.raises(stopped):
                call()
    assert est.prior_ is prior and est._rows is rows  # one swap
    assert np.array_equal(est.predict(X[:9], task=task[:9]), before) and list(est.tasks_) == names
    with pytest.raises(NotFittedError):
        new.predict(X)
    monkeypatch.undo()
    np.testing.assert_allclose(est.fit(X, y, task=task).predict(X[:9], task=task[:9]), before)
    new.fit(X, y, task=task)
    np.testing.assert_allclose(new.predict(X[:9], task=task[:9]), before)


@pytest.mark.parametrize("make", [fmrl.MetaRegressor, fmrl.MetaClassifier])
def test_an_estimator_that_was_not_fitted_can_be_copied(make):
    """As searches with n_jobs do."""
    new = make(environment=2, verbose=True)
    for same in (pickle.loads(pickle.dumps(new)), copy.deepcopy(new)):
        assert same.get_params() == new.get_params()
        with pytest.raises(NotFittedError):
            same.predict([[0.0]])


def test_a_state_that_is_pickled_does_not_change_with_the_estimator():
    """A pickle is written after `__getstate__` has returned, while other threads may go on."""
    X, y, task = regression()
    est = fmrl.MetaRegressor(common="linear").fit(X, y, task=task)
    state, tasks = est.__getstate__(), len(est.tasks_)
    est.partial_fit(X[:9], y[:9], task="new").forget(task[0])
    again = fmrl.MetaRegressor.__new__(fmrl.MetaRegressor)
    again.__setstate__(state)
    assert len(again.tasks_) == tasks and task[0] in again.tasks_ and "new" not in again.tasks_
