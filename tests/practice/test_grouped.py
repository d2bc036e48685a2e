"""The scoring of benchmarks/grouped.py: what is held out, what a difference is, and what the random
effects of a new group are. No peer and no data set is needed.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, special, stats

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from groups import ours, protocol, random_effects, store, summary
from groups.sets import GroupedSet


def made(binary: bool = False, groups: int = 24, rows: int = 6) -> GroupedSet:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(groups), rows)
    X = np.column_stack([np.arange(len(group)), rng.normal(size=len(group))])
    y = (rng.random(len(group)) < 0.4).astype(float) if binary else X[:, 1] + group
    return GroupedSet("made", "none", "y", ("row", "x"), X, y, group, binary)


class Spy:
    """Predicts the mean of a group's rows and writes down what it was shown."""

    def __init__(self, log: list):
        self.log = log

    def __call__(self, X, y, group, binary):
        self.log.append(("fit", X[:, 0].astype(int)))
        return self

    def base(self, X):
        return np.zeros(len(X))

    def adapt(self, X, y, base):
        self.log.append(("adapt", X[:, 0].astype(int)))
        self.mean = y.mean()
        return self

    def predict(self, X, base):
        self.log.append(("score", X[:, 0].astype(int)))
        return np.full(len(X), self.mean)

    def interval(self, X, base, z):
        return np.full(len(X), -np.inf), np.full(len(X), np.inf)


def test_a_held_out_group_is_never_seen_and_its_rows_are_scored_once():
    data, log = made(), []
    found = protocol.measure(data, Spy(log))
    reps = protocol.repetitions(data.groups)
    scored: list[int] = []
    for (kind, rows), (then, rest) in itertools.pairwise(log):
        if kind == "fit":
            train = set(data.group[rows])
        elif kind == "adapt":
            assert then == "score" and len(set(data.group[np.r_[rows, rest]])) == 1
            assert data.group[rows[0]] not in train
            assert (
                sorted([*rows, *rest]) == np.flatnonzero(data.group == data.group[rows[0]]).tolist()
            )
            scored += [data.group[rows[0]]] if len(rows) == 1 else []
    assert np.bincount(scored).tolist() == [reps] * data.groups
    shape = protocol.shape(data)
    assert shape["rows"][0].tolist() == [5, 4, 2, 0]
    assert np.allclose(found["covered"][:, :3], shape["rows"][:, :3])


def test_all_methods_get_the_same_rows():
    logs: tuple[list, list] = ([], [])
    for log in logs:
        protocol.measure(made(), Spy(log))
    assert all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in zip(*logs, strict=True))


def test_losses_are_what_a_direct_computation_gives():
    data = made(binary=True)
    rate = lambda *_: Constant(0.3)  # noqa: E731
    found, shape = protocol.measure(data, rate), protocol.shape(data)
    scored = found["loss"][:, 0].sum() / shape["rows"][:, 0].sum()
    ones = found["bins"][0, :, 2].sum() / shape["rows"][:, 0].sum()
    assert scored == pytest.approx(-ones * np.log(0.3) - (1 - ones) * np.log(0.7))
    assert found["right"][:, 0].sum() == pytest.approx((1 - ones) * shape["rows"][:, 0].sum())
    assert summary.calibration_error(found["bins"][0]) == pytest.approx(abs(0.3 - ones))


class Constant:
    def __init__(self, value):
        self.value = value

    def base(self, X):
        return np.zeros(len(X))

    def adapt(self, X, y, base):
        return self

    def predict(self, X, base):
        return np.full(len(X), self.value)


def test_a_difference_is_that_of_the_scores_and_its_error_that_of_resampled_groups():
    rng = np.random.default_rng(1)
    rows = rng.integers(2, 30, 80)
    ours = rng.gamma(2, rows)
    theirs = ours + rows * rng.normal(3, 0.5, 80)
    found = summary.difference(ours, theirs, rows, 2.0)
    assert found.mean == pytest.approx((theirs.sum() - ours.sum()) / rows.sum() / 2)
    draws = rng.integers(0, 80, (4000, 80))
    again = (theirs - ours)[draws].sum(axis=1) / rows[draws].sum(axis=1) / 2
    assert found.error == pytest.approx(again.std(), rel=0.1)
    back = summary.difference(theirs, ours, rows, 2.0)
    assert back.mean == -found.mean and back.error == found.error


@pytest.mark.parametrize(("mean", "verdict"), [(2.1, "won"), (1.9, "tied"), (-2.1, "lost")])
def test_two_standard_errors_decide(mean, verdict):
    assert summary.Difference(mean, 1.0).verdict == verdict


def test_columns_need_twenty_groups_and_count_by_verdict():
    rows = np.array([[3, 2, 1, 0]] * 25)
    rows[:6, 2] = 0
    shapes = {"a": {"rows": rows, "spread": np.full(4, 100.0)}}
    good = {"loss": rows * 1.0}
    bad = {"loss": rows * (1.5 + 0.1 * np.arange(25) % 0.3)[:, None]}
    records = {"good": {"a": good}, "bad": {"a": bad}}
    found = summary.columns(records, shapes, "R²")
    assert [c.shots for c in found] == [1, 2]
    assert found[0].value("good") == pytest.approx(1 - 75 / 100)
    assert len(summary.tally(found, "good", "bad")["won"]) == 2
    assert len(summary.tally(found, "bad", "good")["lost"]) == 2
    assert len(summary.tally(found, "good", "good")["tied"]) == 2
    assert summary.columns(records, shapes, "log-loss") == []


class Estimator:
    """A meta-estimator whose adapted models say their group's mean, give or take its range."""

    def fit(self, X, y, task):
        return self

    def adapt(self, X, y):
        self.mean = y.mean()
        return self

    def predict(self, X):
        return np.full(len(X), self.mean)

    def predict_interval(self, X, level):
        assert level == 0.9
        return np.column_stack([X[:, 1] - 1, X[:, 1] + 30])


def test_intervals_of_an_estimator_are_read_row_by_row():
    data = made()  # y is x plus the number of its group, 0 … 23: always inside
    found = protocol.measure(data, lambda *a: ours.Ours(Estimator(), *a))
    assert np.allclose(found["covered"][:, 0], 5)


def test_nonlinear_sets_are_those_where_trees_win():
    rows = np.array([[3, 2, 1, 1]] * 30)
    shapes = {name: {"rows": rows, "spread": np.full(4, 100.0)} for name in ("curved", "straight")}
    few, many = {"loss": rows * 1.0}, {"loss": rows * (2.0 + 0.01 * np.arange(30))[:, None]}
    records = {
        "LightGBM + shrunken mean": {"curved": few, "straight": many},
        "mixed, slopes": {"curved": many, "straight": few},
    }
    found = summary.nonlinear(summary.columns(records, shapes, "R²"))
    assert [(c.name, c.shots) for c in found] == [("curved", k) for k in protocol.SHOTS]


def test_records_come_back(tmp_path):
    record = {"some: set": {"loss": np.arange(6.0).reshape(3, 2), "seconds": np.ones(3)}}
    store.save("a, method", record, {"method": "a, method"}, tmp_path)
    found, about = store.read("a, method", tmp_path)
    assert about["sets"] == ["some: set"] and store.methods(tmp_path) == ["a, method"]
    assert np.array_equal(found["some: set"]["loss"], record["some: set"]["loss"])


def random_model(binary: bool, slopes: int) -> tuple[random_effects.Common, np.ndarray]:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 3)) * [1, 5, 2] + 3
    root = rng.normal(size=(1 + slopes, 1 + slopes))
    design = random_effects.Design.of(X, np.arange(slopes))
    noise = None if binary else 0.7
    return random_effects.Common(lambda X: 0.1 * X[:, 0], design, root @ root.T, noise), X


def test_a_gaussian_group_is_the_conditional_of_the_joint_normal():
    common, X = random_model(False, 2)
    rng = np.random.default_rng(3)
    few, rest, y = X[:5], X[5:9], rng.normal(size=5)
    model = common.adapt(few, y, common.base(few))
    Z = common.design(X[:9])
    joint = Z @ common.omega @ Z.T + 0.7 * np.eye(9)
    gain = joint[5:, :5] @ np.linalg.inv(joint[:5, :5])
    mean = common.base(rest) + gain @ (y - common.base(few))
    deviation = np.sqrt(np.diag(joint[5:, 5:] - gain @ joint[:5, 5:]))
    assert np.allclose(model.predict(rest, common.base(rest)), mean)
    low, high = model.interval(rest, common.base(rest), 1.5)
    assert np.allclose(low, mean - 1.5 * deviation) and np.allclose(high, mean + 1.5 * deviation)


def test_a_binary_intercept_is_the_posterior_mean():
    common, X = random_model(True, 0)
    y, base = np.array([1.0, 1.0, 0.0]), common.base(X[:4])
    said = common.adapt(X[:3], y, base[:3]).predict(X[3:4], base[3:4])[0]

    def weight(b):
        likelihood = np.prod(special.expit((2 * y - 1) * (base[:3] + b)))
        return likelihood * stats.norm.pdf(b, scale=np.sqrt(common.omega[0, 0]))

    total = integrate.quad(weight, -20, 20)[0]
    mean = integrate.quad(lambda b: weight(b) * special.expit(base[3] + b), -20, 20)[0]
    assert said == pytest.approx(mean / total, rel=1e-6)


def test_the_mode_with_slopes_is_stationary():
    common, X = random_model(True, 2)
    y, base = np.array([1.0, 1.0, 0.0, 1.0]), common.base(X[:4])
    found = common.adapt(X[:4], y, base)
    Z = common.design(X[:4])
    slope = Z.T @ (y - special.expit(base + Z @ found.mean))
    assert np.allclose(slope, np.linalg.solve(common.omega, found.mean), atol=1e-6)


@pytest.mark.parametrize("binary", [False, True])
def test_the_spread_of_intercepts_is_found(binary):
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(400), 12)
    z = 0.9 * rng.normal(size=400)[group]
    noisy = z + 1.3 * rng.normal(size=len(z))
    y = (rng.random(len(z)) < special.expit(z)).astype(float) if binary else noisy
    spread, noise = random_effects.intercept_variance(y, np.zeros(len(y)), group, binary)
    assert spread == pytest.approx(0.81, rel=0.15)
    assert noise is None if binary else noise == pytest.approx(1.69, rel=0.05)


def test_a_change_is_compared_with_itself_before_it():
    rng, groups = np.random.default_rng(0), 40
    rows = np.full((groups, 4), 10)
    before = {"loss": rng.uniform(8, 12, size=(groups, 4)), "seconds": np.ones(3)}
    after = {"loss": before["loss"] * [1.0, 0.5, 2.0, 1.0], "seconds": np.full(3, 2.0)}
    for record in (after, before):
        record["covered"] = np.full((groups, 4), 9.0)
    shapes = {"made": {"rows": rows, "spread": np.full(4, 1000.0)}}
    said = summary.paired({"made": after}, {"made": before}, shapes)
    assert "R²                1 / 2 / 1" in said
    assert "in all            1 / 2 / 1 (25.0% lost)" in said
    assert "1.0000 0.5000 2.0000 1.0000" in said
    assert "2.000 s, before 1.000 s" in said
    # 40 groups are too few for a set's coverage to be judged.
    assert "k=1 rows – (0 off)" in said
    lost = [line for line in said.splitlines() if line.startswith("  lost")]
    assert len(lost) == 1 and "made" in lost[0] and "k=4" in lost[0]
