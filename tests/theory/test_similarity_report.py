"""The similarity report: its numbers are what they claim, and its advice follows from them."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fmrl
from fmrl import similarity_report
from fmrl.theory.bounds.geometry import enclosing_ball


def cloud(seed, tasks=40, dim=5, centre=0.3, spread=0.02):
    rng = np.random.default_rng(seed)
    return centre + spread * rng.standard_normal((tasks, dim))


@given(
    seed=st.integers(0, 2**16), tasks=st.integers(1, 60), dim=st.integers(1, 12), flat=st.booleans()
)
@settings(max_examples=80, deadline=None)
def test_enclosing_ball_encloses_and_its_gap_is_honest(seed, tasks, dim, flat):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((tasks, dim))
    if flat:  # duplicates and a lower dimension
        points = np.concatenate([points, points])
        points[:, 0] = 1.0
    ball = enclosing_ball(points)
    assert (np.linalg.norm(points - ball.centre, axis=1) <= ball.radius * (1 + 1e-12) + 1e-15).all()
    assert 0 <= ball.gap <= 1e-6 * ball.radius
    for other in points.mean(axis=0) + 0.3 * rng.standard_normal((200, dim)):
        assert np.linalg.norm(points - other, axis=1).max() >= ball.radius - ball.gap - 1e-12


def test_enclosing_ball_of_a_simplex_is_known():
    assert enclosing_ball(np.eye(10)).radius == pytest.approx(np.sqrt(9 / 10))
    assert enclosing_ball(np.eye(10)[:1]).radius == 0


@given(seed=st.integers(0, 2**16), tasks=st.integers(2, 30), dim=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_diameter_deviation_and_their_order(seed, tasks, dim):
    optima = np.random.default_rng(seed).standard_normal((tasks, dim))
    report = similarity_report(optima)
    pairs = np.linalg.norm(optima[:, None] - optima[None], axis=-1)
    assert report.diameter == pytest.approx(pairs.max() / np.sqrt(2))
    assert report.deviation == pytest.approx(
        np.sqrt(np.mean(np.sum((optima - optima.mean(0)) ** 2, 1)) / 2)
    )
    assert report.deviation <= report.distances.max() + 1e-12 <= report.diameter + 1e-9
    assert (
        pairs.max() / 2 - 1e-9
        <= report.radius
        <= pairs.max() * np.sqrt(dim / (2 * dim + 2)) * (1 + 1e-9)
    )  # Jung
    assert report.eventually <= report.tuned + 1e-12  # the mean is the best phi


def test_a_history_tasks_and_bare_optima_agree():
    rng = np.random.default_rng(0)
    tasks = []
    for theta in cloud(1, 20, 3):
        X = rng.standard_normal((10, 3)) / 2
        tasks.append(fmrl.Task(X, X @ theta, loss=fmrl.Squared()))
    algo = fmrl.presets.paper()
    history = fmrl.run(algo, tasks)
    a, b = similarity_report(history), similarity_report(tasks, fmrl.Ball(1.0))
    np.testing.assert_allclose(a.optima, b.optima, atol=1e-7)
    assert a.diameter == pytest.approx(b.diameter) and a.ratio == pytest.approx(b.ratio)
    bare = similarity_report(history.optimum, fmrl.Ball(1.0))
    assert bare.diameter == pytest.approx(a.diameter)


def test_bounds_are_those_of_real_runs():
    """`single` and `learned` are Theorem A.1 along the runs they name, and measured regret obeys
    them.
    """
    rng = np.random.default_rng(2)
    tasks = []
    for theta in cloud(3, 30, 3):
        X = rng.standard_normal((8, 3)) / 2
        tasks.append(fmrl.Task(X, X @ theta, loss=fmrl.Squared()))
    ball, T = fmrl.Ball(1.0), len(tasks)
    reach = 1 / np.sqrt(2)
    growth = 1 + np.log(T)
    across = fmrl.run(
        fmrl.FMRL(ball, similarity=fmrl.Doubling(reach * growth / T, growth / (growth - 1))), tasks
    )
    alone = fmrl.run(fmrl.presets.single_task(D=reach), tasks)
    report = similarity_report(across)
    unit = np.mean(across.lipschitz * np.sqrt(across.rounds))
    np.testing.assert_allclose(report.learned * unit, across.bound, rtol=1e-6)
    np.testing.assert_allclose(report.single * unit, alone.bound, rtol=1e-6)
    assert (
        across.tar <= np.mean(report.learned) * unit and alone.tar <= np.mean(report.single) * unit
    )


def test_similar_tasks_are_worth_it_and_scattered_ones_are_not():
    close = similarity_report(cloud(4, 100), fmrl.Ball(1.0))
    assert close.verdict.startswith("Learn across") and close.ratio < 0.7 and close.pays_after < 30
    assert close.ratio_eventually < close.ratio
    rng = np.random.default_rng(5)
    sphere = rng.standard_normal((100, 5))
    sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
    apart = similarity_report(sphere, fmrl.Ball(1.0))
    assert apart.verdict.startswith("Do not expect") and apart.ratio_eventually > 0.95
    assert apart.edge == 100 and "edge" in apart.verdict
    shrunk = similarity_report(0.05 * sphere, fmrl.Ball(1.0))
    assert shrunk.verdict.startswith("Learn the scale") and shrunk.ratio_tuned > 0.9
    few = similarity_report(cloud(4, 2, spread=0.2), fmrl.Ball(1.0))
    assert few.pays_after is None and few.verdict.startswith("Learning across tasks like these")
    assert "in the long run" in few.verdict and "it is still at 119%" in few.verdict


def test_outliers_are_found_and_named():
    optima = cloud(6, 50)
    optima[[7, 31]] *= -2
    report = similarity_report(optima)
    assert {7, 31} <= set(report.outliers) and len(report.outliers) < 6
    assert report.diameter_without < report.diameter / 3
    assert "7" in report.verdict and "far from the rest" in report.verdict
    assert similarity_report(np.ones((5, 2))).outliers == ()


def test_renders_as_text_record_and_figure():
    report = similarity_report(cloud(7))
    assert "D*" in str(report) and f"{report.deviation:.4g}" in str(report)
    record = json.loads(json.dumps(report.to_dict()))
    assert record["diameter"] == report.diameter and record["verdict"] == report.verdict
    assert len(report.figure().axes) == 3
    assert len(similarity_report(cloud(8, dim=1)).figure().axes) == 3


def test_simplex_uses_relative_entropy():
    optima = np.random.default_rng(9).dirichlet(np.full(4, 5.0), 30)
    report = similarity_report(optima, fmrl.Simplex())
    entropy = max(np.sum(p * np.log(p / q)) for p in optima for q in optima)
    assert (
        report.diameter == pytest.approx(np.sqrt(entropy)) and report.deviation <= report.diameter
    )


def test_torch_in_works():
    torch = pytest.importorskip("torch")
    assert similarity_report(torch.tensor(cloud(10))).diameter == pytest.approx(
        similarity_report(cloud(10)).diameter
    )


def test_says_what_is_wrong():
    with pytest.raises(fmrl.FMRLError, match="tasks ≥ 2"):
        similarity_report(np.ones((1, 3)))
    with pytest.raises(fmrl.FMRLError, match="task 2: the optimum has a NaN"):
        similarity_report([[0.0], [1.0], [np.nan]])
    with pytest.raises(fmrl.FMRLError, match="task 1: the optimum lies outside"):
        similarity_report([[0.0], [3.0]], fmrl.Ball(1.0))
    with pytest.raises(fmrl.FMRLError, match="no size"):
        similarity_report([[0.0], [3.0]], fmrl.Euclidean())
    task = fmrl.Task([[1.0]], [0.0], loss=fmrl.Squared())
    with pytest.raises(fmrl.FMRLError, match="depend on the domain"):
        similarity_report([task, task])
    with pytest.raises(fmrl.FMRLError, match="keep='vectors'"):
        similarity_report(fmrl.run(fmrl.presets.paper(), [task, task], keep="scalars"))


def test_infinite_distances_are_said_not_printed_as_nan():
    """Optima at the corners of a simplex: "nan% of one start for all" was printed."""
    text = str(similarity_report(np.eye(3)[np.arange(40) % 3], fmrl.Simplex()))
    assert "nan" not in text
    unknown = "not known: optima lie infinitely far from one start for all"
    assert text.count(unknown) == 2  # one start that forgets, one for each group
    assert unknown not in str(similarity_report(cloud(1), fmrl.Ball(1.0)))
