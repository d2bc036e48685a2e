"""A common part that need not be linear, intervals, and probabilities that are right on average."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsRegressor

import fmrl
from fmrl.estimators import shared_trees
from fmrl.estimators.averaging import HeldOut, best_weights
from fmrl.estimators.calibration import held_out_predictions, members
from fmrl.estimators.coordinates import coordinates_of
from fmrl.estimators.sampling import fold_of_tasks
from fmrl.estimators.shared_trees import Trees, cross_fit_linear, grow
from fmrl.tables.targets import group_by_task

from .data import bent


def grown(classes=0, weight=None, depth=3, seed=0):
    """Rows, targets [n, outputs], folds, and what `grow` gives."""
    X, y, task = bent()
    X[:, 2] = np.round(X[:, 2])  # few values
    y = (y - y.mean()) / y.std()
    if classes:
        y = np.digitize(y, np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1]))
    target = y[:, None] if classes < 3 else 1.0 * (y[:, None] == np.arange(classes))
    fold = fold_of_tasks(60, 4, seed)[task]
    weight = np.ones(len(y)) if weight is None else weight
    return X, target, fold, grow(X, target, weight, fold, depth, classes == 0)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_trees_answer_rows_of_their_fold_as_one_walks_them(classes):
    X, target, fold, (loss, said, trees) = grown(classes)

    def walk(one, x):
        out = one.base.copy()
        for step in range(len(one.value)):
            for k in range(len(out)):
                node = 0
                while node < one.feature.shape[2]:
                    right = x[one.feature[step, k, node]] > one.threshold[step, k, node]
                    node = 2 * node + 1 + right
                out[k] += one.value[step, k, node - one.feature.shape[2]]
        return np.clip(out, -one.limit, one.limit)

    for f, one in enumerate(trees[:-1]):
        own = np.flatnonzero(fold == f)
        np.testing.assert_allclose(one(X[own]), said[own], atol=1e-12)
        np.testing.assert_allclose([walk(one, x) for x in X[own[:20]]], said[own[:20]], atol=1e-12)
    assert len(trees) == 5 and len(trees[-1].value) == len(trees[0].value) > 3
    if classes == 0:
        assert loss == pytest.approx(np.square(said - target).sum())
    if classes == 2:
        assert loss == pytest.approx(np.logaddexp(0, (1 - 2 * target) * said).sum())


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_trees_have_not_seen_the_fold_that_they_answer(classes):
    X, target, fold, (_, _, trees) = grown(classes)
    target = target.copy()
    target[fold == 1] = target[fold == 1][::-1]
    _, _, others = grow(X, target, np.ones(len(X)), fold, 3, classes == 0)
    steps = min(len(trees[0].value), len(others[0].value))
    same = [
        np.array_equal(a.value[:steps], b.value[:steps]) for a, b in zip(trees, others, strict=True)
    ]
    assert same == [False, True, False, False, False]


def test_the_first_split_is_the_best_of_all(monkeypatch):
    """Every split of every column tried in turn, by hand."""
    monkeypatch.setattr(shared_trees, "BINS", 1 << 20)
    X, target, _, (_, _, trees) = grown(depth=1)
    least, best = np.clip(len(X) // 40, 3, 20), (-np.inf, None)
    y = target[:, 0] - target.mean()
    for j, x in enumerate(X.T):
        for low, high in pairwise(np.unique(x)):
            right = x > (low + high) / 2
            sums = [(y[some].sum(), some.sum()) for some in (right, ~right)]
            gain = sum(s**2 / (n + 1) for s, n in sums)
            if min(n for _, n in sums) >= least and gain > best[0]:
                best = gain, (j, (low + high) / 2, [0.2 * s / (n + 1) for s, n in sums[::-1]])
    one = trees[-1]
    assert one.feature[0, 0, 0] == best[1][0]
    assert one.threshold[0, 0, 0] == pytest.approx(best[1][1])
    np.testing.assert_allclose(one.value[0, 0], best[1][2])


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_units_do_not_matter_to_trees(classes):
    X, target, fold, (_, said, _) = grown(classes)
    wide = X * [1e-6, 1.0, 1e9] + [1e3, 0.0, 0.0]
    moved = grow(wide, target, np.ones(len(X)), fold, 3, classes == 0)[1]
    assert np.mean(np.abs(moved - said) > 1e-9) < 0.02  # but for values between two rows


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_weight_of_n_is_n_rows_to_trees(classes):
    X, target, fold, _ = grown(classes)
    X, times = np.round(2 * X), 1 + np.arange(len(X)) % 3  # few values
    loss, _, trees = grow(X, target, 1.0 * times, fold, 3, classes == 0)
    copies = (np.repeat(a, times, axis=0) for a in (X, target))
    again = grow(*copies, np.ones(times.sum()), np.repeat(fold, times), 3, classes == 0)
    assert again[0] == pytest.approx(loss)
    np.testing.assert_allclose(again[2][-1](X), trees[-1](X), atol=1e-9)


def test_heavy_rows_are_fitted_better():
    there = bent()[0][:, 0] > 1
    off = []
    for weight in (None, np.where(there, 100.0, 0.01)):
        X, target, _, (_, _, trees) = grown(weight=weight)
        off.append(np.square(trees[-1](X) - target)[there].mean())
    assert off[1] < 0.95 * off[0]


def test_random_state_is_the_seed_of_folds_and_the_global_generator_is_not_touched():
    X, y, task = bent()
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    trees = [
        fmrl.MetaRegressor(random_state=seed).fit(X, y, task=task).prior_.common.value
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    np.testing.assert_array_equal(trees[0], trees[1])
    assert trees[0].shape != trees[2].shape or not np.array_equal(trees[0], trees[2])


@pytest.mark.parametrize("binary", [True, False])
def test_a_curve_is_found_and_a_line_left_alone(binary):
    X, y, task = bent(binary=binary)
    kind, train = fmrl.MetaClassifier if binary else fmrl.MetaRegressor, task < 45
    auto, line = (
        kind(common=c).fit(X[train], y[train], task=task[train]) for c in ("auto", "linear")
    )
    assert isinstance(auto.prior_.common, Trees) and line.prior_.common is None
    assert len(auto.prior_.common.feature) > 10
    scores = {"auto": [], "linear": []}
    for t in range(45, 60):
        A, b = X[task == t], y[task == t]
        for name, est in (("auto", auto), ("linear", line)):
            scores[name].append(est.adapt(A[:4], b[:4]).score(A[4:], b[4:]))
    assert np.mean(scores["auto"]) > np.mean(scores["linear"]) + (0.02 if binary else 0.15)
    rng = np.random.default_rng(1)
    flat = X @ [1.0, 2.0, 0.0] + rng.normal(size=60)[task] + 0.5 * rng.normal(size=len(task))
    assert fmrl.MetaRegressor().fit(X, flat, task=task).prior_.common is None


def test_any_estimator_is_a_common_part(tmp_path):
    X, y, task = bent()
    reg = fmrl.MetaRegressor(common=KNeighborsRegressor(8)).fit(X, y, task=task)
    line = fmrl.MetaRegressor(common="linear").fit(X, y, task=task)
    assert reg.score(X, y) > line.score(X, y) + 0.1
    with pytest.raises(fmrl.FMRLError, match="cannot be stored"):
        reg.save(tmp_path / "model")
    with pytest.raises(fmrl.FMRLError, match="common"):
        fmrl.MetaClassifier(common=KNeighborsRegressor()).fit(X, y > 0, task=task)
    with pytest.warns(fmrl.InputWarning, match="common= is linear itself"):
        fmrl.MetaRegressor(common=LinearRegression()).fit(X, y, task=task)
    with pytest.raises(fmrl.FMRLError, match="common"):
        fmrl.MetaRegressor(common="trees").fit(X, y, task=task)


def test_trees_are_stored_with_the_estimator(tmp_path):
    X, y, task = bent()
    reg = fmrl.MetaRegressor().fit(X, y, task=task)
    reg.save(tmp_path / "model")
    again = fmrl.MetaRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X, task=task), reg.predict(X, task=task))
    model, other = reg.adapt(X[:3], y[:3]), again.adapt(X[:3], y[:3])
    np.testing.assert_array_equal(model.predict_interval(X), other.predict_interval(X))
    assert model.coef_.shape == (3,) and model.common_coef_.shape == (1, 1)
    with pytest.raises(fmrl.FMRLError, match="linear"):
        model.to_torch()


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_cover_on_new_tasks(level):
    """Of every ten rows of tasks nobody has seen, nine, whatever the noise's shape."""
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(300), 12), rng.normal(size=(3600, 3))
    w = np.array([1.0, 2.0, 0.0]) + 0.5 * rng.normal(size=(300, 3))
    y = 5 + 3 * ((X * w[task]).sum(axis=1) + rng.normal(size=300)[task] + rng.laplace(size=3600))
    train = task < 150
    reg = fmrl.MetaRegressor().fit(X[train], y[train], task=task[train])
    for k in (0, 1, 4):
        inside = []
        for t in range(150, 300):
            A, b = X[task == t], y[task == t]
            model = reg.adapt(A[:k], b[:k]) if k else reg
            low, high = model.predict_interval(A[k:], level=level).T
            inside.append(((low <= b[k:]) & (b[k:] <= high)).mean())
        assert abs(np.mean(inside) - level) < 0.05
    known = reg.predict_interval(X[train], task=task[train], level=level)
    assert (known[:, 1] - known[:, 0]).mean() < np.ptp(
        reg.predict_interval(X, level=level), axis=1
    ).mean()
    with pytest.raises(fmrl.FMRLError, match="level"):
        reg.predict_interval(X, level=90)


@pytest.mark.parametrize("columns", [3, 60, 150])
@pytest.mark.parametrize("one", [True, False])
def test_intervals_cover_where_no_task_has_two_rows(columns, one):
    """200 rows in tasks of one row, or without task=: rows are held out where tasks cannot be."""
    covered = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, slope = rng.normal(size=(500, columns)), rng.normal(size=columns) / 10
        y = X @ slope + rng.normal(size=500)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fmrl.InputWarning)
            reg = fmrl.MetaRegressor().fit(X[:200], y[:200], None if one else np.arange(200))
            low, high = reg.predict_interval(X[200:]).T
        covered.append(np.mean((low <= y[200:]) & (y[200:] <= high)))
    assert 0.85 < np.mean(covered) <= 1


def test_what_is_uncertain_shrinks_with_rows():
    X, y, task = bent()
    reg = fmrl.MetaRegressor(common="linear").fit(X, y, task=task)
    stds = [reg.adapt(X[:n], y[:n]).coef_std_ for n in (1, 4, 12)]
    assert (stds[0] >= stds[1] - 1e-12).all() and (stds[1] >= stds[2] - 1e-12).all()
    assert stds[0].shape == (3,)


def test_probabilities_are_right_on_average():
    """Expected calibration error of new tasks after two rows below 0.06."""
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(400), 10), rng.normal(size=(4000, 2))
    z = X @ [1.0, -1.0] + 2 * rng.normal(size=400)[task]
    y = (z + rng.logistic(size=4000) > 0).astype(int)
    train = task < 200
    clf = fmrl.MetaClassifier().fit(X[train], y[train], task=task[train])
    said, true = [], []
    for t in range(200, 400):
        A, b = X[task == t], y[task == t]
        said.append(clf.adapt(A[:2], b[:2]).predict_proba(A[2:])[:, 1])
        true.append(b[2:])
    said, true = np.concatenate(said), np.concatenate(true)
    bins = np.digitize(said, np.linspace(0, 1, 11)[1:-1])
    error = sum(abs((said - true)[bins == i].sum()) for i in range(10)) / len(said)
    assert error < 0.06


def test_the_pooled_model_is_found_where_it_says_most_without_rows():
    """Shops of many sizes sell more on some days: members that expect shops to differ are unsure
    without rows, and weights between them and the pooled model are worse than either."""
    rng, tasks, rows = np.random.default_rng(1), 500, 12
    task = np.repeat(np.arange(tasks), rows)
    y = (rng.random(len(task)) < 0.3).astype(int)
    X = (8 * y + rng.normal(0, 6, tasks)[task] + rng.normal(0, 3, len(task)))[:, None]
    seen = task < 400
    clf = fmrl.MetaClassifier(common="linear").fit(X[seen], y[seen], task=task[seen])
    pooled = LogisticRegression().fit(X[seen], y[seen])
    ours, theirs = (log_loss(y[~seen], m.predict_proba(X[~seen])) for m in (clf, pooled))
    assert ours < theirs + 0.003


def test_columns_that_do_not_vary_within_tasks_have_no_slope_of_their_own():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(80), 6)
    X = np.column_stack([rng.normal(size=480), rng.normal(size=80)[task]])
    y = X @ [1.0, 1.0] + rng.normal(size=80)[task] * X[:, 0] + rng.normal(size=480)
    prior = fmrl.MetaRegressor(common="linear").fit(X, y, task=task).prior_
    assert prior.coef_std[0][0, 1] < 1e-3 and prior.coef_std[0][0, 0] > 0.5


def test_many_columns_are_compared_in_fewer_directions(tmp_path):
    rng = np.random.default_rng(0)
    task, X = (
        np.repeat(np.arange(40), 20),
        rng.normal(size=(800, 300)) @ rng.normal(size=(300, 300)),
    )
    y = X[:, 0] / X[:, 0].std() + rng.normal(size=40)[task] + 0.1 * rng.normal(size=800)
    reg = fmrl.MetaRegressor().fit(X, y, task=task)
    assert reg.prior_.coordinates.basis.shape == (300, 256)
    assert reg.score(X, y, task=task) > 0.8
    model = reg.adapt(X[:5], y[:5])
    assert model.coef_.shape == model.coef_std_.shape == (300,)
    np.testing.assert_allclose(X @ model.coef_ + model.intercept_, model.predict(X), atol=1e-8)
    reg.save(tmp_path / "model")
    again = fmrl.MetaRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X, task=task), reg.predict(X, task=task))


def test_another_score_can_be_asked_for():
    """Two members: one is nearer on average, the other right more often."""
    from fmrl.estimators.averaging import HeldOut, by_score

    target = np.array([[[1.0], [1.0], [0.0]]])
    near, right = [[[-0.1], [-0.1], [-3.0]]], [[[0.1], [0.1], [-0.1]]]
    margins = np.array([near, right])
    sheet = HeldOut(margins, np.zeros_like(margins), target, np.full((1, 3), 1 / 3))
    equal = np.array([0.5, 0.5])
    assert by_score([sheet], equal, "accuracy").tolist() == [0, 1]
    numbers = sheet._replace(target=np.array([[[-0.1], [-0.1], [-3.0]]]))
    assert by_score([numbers], equal, "neg_mean_absolute_error").tolist() == [1, 0]
    X, y, task = bent()
    one, two = (
        fmrl.MetaRegressor(scoring=name).fit(X, y, task=task).prior_.rule.choices
        for name in (None, "neg_mean_squared_error")
    )
    assert one == two
    for bad, kind in (("accuracy", fmrl.MetaRegressor), ("r2", fmrl.MetaClassifier)):
        with pytest.raises(fmrl.FMRLError, match="scoring"):
            kind(scoring=bad).fit(X, y > 1 if kind is fmrl.MetaClassifier else y, task=task)


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_intervals_without_rows_cover(noise):
    """Where tasks differ much more than their rows, too."""
    inside = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        task, X = np.repeat(np.arange(160), 10), rng.normal(size=(1600, 3))
        w = 1 + rng.normal(size=(160, 3))
        y = (X * w[task]).sum(axis=1) + rng.normal(size=160)[task] + noise * rng.normal(size=1600)
        train = task < 100
        reg = fmrl.MetaRegressor(common="linear", environment="stationary")
        low, high = reg.fit(X[train], y[train], task=task[train]).predict_interval(X[~train]).T
        inside.append(((low <= y[~train]) & (y[~train] <= high)).mean())
    assert 0.86 < np.mean(inside) < 0.95


def test_weights_of_all_rows_alike_do_little():
    X, y, task = bent(tasks=60, rows=10)
    scores = []
    for heavy in (1.0, 10.0, 100.0):
        reg = fmrl.MetaRegressor(common="linear")
        reg.fit(X[:450], y[:450], task=task[:450], sample_weight=np.full(450, heavy))
        found = [
            reg.adapt(X[task == t][:5], y[task == t][:5], np.full(5, heavy)) for t in range(45, 60)
        ]
        parts = [m.score(X[task == t][5:], y[task == t][5:]) for t, m in enumerate(found, 45)]
        scores.append(np.mean(parts))
    assert min(scores) > scores[0] - 0.15


def test_rows_fitted_exactly_with_outliers_in_the_columns():
    """Numbers whose squares hide the 1 beside them are no singular matrices."""
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(40), 8), rng.normal(size=(320, 3))
    X[0] *= 1e4
    X = np.column_stack([X, X[:, 0]])
    y = X[:, 0] * rng.normal(size=40)[task]
    reg = fmrl.MetaRegressor(common="linear").fit(X, y, task=task)
    assert np.isfinite(reg.predict(X, task=task)).all()
    assert np.isfinite(reg.adapt(X[:2], y[:2]).coef_).all()


def test_padding_has_no_say_in_weights():
    """Tasks of few rows are padded in a stack; what members say of padding is nothing."""
    rng = np.random.default_rng(0)
    margins, target = rng.normal(size=(3, 8, 5, 1)), rng.normal(size=(8, 5, 1))
    weight = np.where(np.arange(5) < rng.integers(2, 5, size=(8, 1)), 0.3, 0.0)
    first, variance = np.full(3, 1 / 3), np.ones((3, 8, 5, 1))
    odd = np.where(weight[..., None] > 0, margins, 100 * margins)
    for squared in (True, False):
        y = target if squared else 1.0 * (target > 0)
        sheets = (HeldOut(said, variance, y, weight) for said in (margins, odd))
        one, two = (best_weights([s], first, 1.0, squared) for s in sheets)
        np.testing.assert_allclose(one, two, rtol=1e-9)


def test_later_tasks_are_asked_of_members_of_earlier_ones():
    X, y, task = bent(tasks=40)
    tasks, known = group_by_task(fmrl.Squared(), X, y, None, task), []

    def learn(some, tolerance):
        known.append(some.names)
        return members(True)(some, tolerance)

    sheets = held_out_predictions(tasks, learn, 0, later=True)
    assert [list(names) for names in known] == [list(range(20))]
    assert len(sheets[0].target) % 20 == 0
    known.clear()
    held_out_predictions(tasks, learn, 0)
    assert len(known) == 4 and {len(names) for names in known} <= {29, 30, 31}


def test_the_linear_model_of_a_fold_has_not_seen_it():
    X, y, task = bent(tasks=30)
    fold = np.arange(30) % 5
    y = np.where(fold[task] == 0, -1.0, 1.0) * X[:, 1] + 0.1 * y  # other tasks in fold 0
    tasks = group_by_task(fmrl.Squared(), X, y, None, task)
    here, aim, leaked = coordinates_of(tasks, True), 0.0, 0.0
    for f in range(5):
        own = fold[task] == f
        others = LinearRegression().fit(X[~own], y[~own])
        aim += np.square(y[own] - others.predict(X[own])).sum() / here.unit**2
        seen = LinearRegression().fit(X, y).predict(X[own])
        leaked += np.square(y[own] - seen).sum() / here.unit**2
    even = here.tasks(tasks)
    found = np.square(cross_fit_linear(even, fold, True) - even.target).sum()
    assert found == pytest.approx(aim, rel=0.02) and leaked < 0.9 * aim


def test_units_and_offsets_of_columns_and_y_do_not_matter_to_trees_nor_models():
    X, y, task = bent()
    said = fmrl.MetaRegressor().fit(X, y, task=task).predict(X)
    for scale in (1e39, 1e-45):
        moved = fmrl.MetaRegressor().fit(X, scale * y, task=task).predict(X)
        np.testing.assert_allclose(moved / scale, said, atol=1e-9)
    far = fmrl.MetaRegressor().fit(X, y + 1e9, task=task).predict(X) - 1e9
    np.testing.assert_allclose(far, said, atol=1e-4)
    for scale, shift in ((1.0, 2e9), (0.01, 2e7), (1e6, 2e15)):
        wide = X * [scale, 1, 1] + [shift, 0, 0]
        moved = fmrl.MetaRegressor().fit(wide, y, task=task).predict(wide)
        assert np.abs(moved - said).mean() < 1e-3  # what rounding leaves of the column
    lost, line = X + np.array([2e16, 0, 0]), fmrl.MetaRegressor(common="linear")
    without = line.fit(X * [0, 1, 1], y, task=task).predict(X * [0, 1, 1])
    moved = line.fit(lost, y, task=task).predict(lost)  # a column of which rounding leaves little
    np.testing.assert_allclose(moved, without, atol=1e-3)
    seen = np.arange(len(X)) % 2.0  # 0 and 1 beside 1e14 are told apart to a hundredth
    near, far = (np.column_stack([seen + at, X[:, 1]]) for at in (0.0, 1e14))
    one, two = (line.fit(some, seen + y / 10, task=task).predict(some) for some in (near, far))
    np.testing.assert_allclose(two, one, atol=1e-2)
