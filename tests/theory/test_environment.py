"""Drift and groups: found where they are, rarely where they are not, whatever the coordinates."""

import json
import time

import numpy as np
import pytest

import fmrl
from fmrl.theory.drift import LEVEL
from fmrl.theory.environment import drift, environment, groups


def noise(seed, tasks=60, dim=3, correlated=False):
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(tasks, dim))
    return found @ rng.normal(size=(dim, dim)) if correlated else found


@pytest.mark.parametrize("correlated", [False, True])
def test_false_alarms_are_rare(correlated):
    found = [environment(noise(seed, 40, 3, correlated)) for seed in range(100)]
    alarms = sum("no groups found" not in each.sentence for each in found)
    assert alarms <= 7
    assert sum(each.groups.k > 1 for each in found) <= 3
    assert sum(bool(each.drift.changes) for each in found) <= 3


@pytest.mark.parametrize(
    "cloud",
    [
        lambda rng: rng.standard_t(3, size=(200, 3)),
        lambda rng: np.exp(rng.normal(size=(200, 2))),
        lambda rng: rng.uniform(size=(200, 2)),
        lambda rng: rng.normal(size=(200, 3)) * rng.choice([0.3, 2.0], size=(200, 1)),
    ],
    ids=["heavy tails", "skew", "uniform", "tasks of few and of many rows"],
)
def test_noise_of_any_shape_is_no_groups(cloud):
    assert [groups(cloud(np.random.default_rng(seed))).k for seed in range(5)] == [1] * 5


def test_slow_drift_is_found_and_worth_forgetting():
    for seed in range(5):
        found = environment(noise(seed, 1000) + np.linspace(0, 4, 1000)[:, None])
        assert found.drift.found and found.drift.changes == () and found.groups.k == 1
        assert found.drift.path > 1.05 * found.drift.chance
        assert found.worth_drift < 0.8 and 10 <= found.memory <= 300
        start = f"Tasks drift: the last {found.memory} say more than the first "
        assert found.sentence.startswith(f"{start}{1000 - found.memory}.")
        assert np.mean(found.curve["recent"][30:]) < np.mean(found.curve["all"][30:])


def test_periodic_drift_is_found():
    for seed in range(5):
        turning = 2 * np.sin(np.linspace(0, 6 * np.pi, 600))[:, None]
        found = environment(noise(seed, 600) + turning)
        assert found.drift.p <= LEVEL and found.worth_drift < 0.8 and found.groups.k == 1


def test_a_switch_is_found_and_its_place_is_in_the_interval():
    covered, alone = 0, 0
    for seed in range(40):
        x = noise(seed, 300)
        x[200:, 0] += 1.5
        changes = drift(x).changes
        covered += any(c.low <= 200 <= c.high and c.high - c.low < 60 for c in changes)
        alone += len(changes) == 1
    assert covered >= 34 and alone >= 34
    x = noise(3, 300)
    x[100:200] += 3
    assert [c.low <= at <= c.high for c, at in zip(drift(x).changes, (100, 200), strict=True)]
    assert "change suddenly, after 100 (" in environment(x).sentence


def test_clusters_are_found():
    rng = np.random.default_rng(0)
    two = noise(0, 600) + np.array([5.0, 0, 0]) * (rng.random((600, 1)) < 0.5)
    found = environment(two)
    assert found.groups.k == 2 and sum(found.groups.sizes) == 600 and not found.drift.found
    sizes = found.groups.sizes
    assert found.sentence.startswith(f"Tasks fall into 2 groups of {sizes[0]} and {sizes[1]}.")
    assert found.worth_groups < 0.7 < found.worth_drift
    truth = 7 * np.eye(5)[rng.integers(5, size=400)]
    found = groups(noise(1, 400, 5) + truth)
    assert found.k == 5 and len({*zip(found.labels, truth.argmax(axis=1), strict=True)}) <= 7
    far = two.copy()
    far[:3] += 60  # three tasks far off are no group, and hide none
    assert groups(far).k == 2


def test_groups_that_follow_each_other_are_said_to():
    x = noise(1, 200)
    x[100:] += 5
    found = environment(x)
    assert "2 groups of 100 and 100, one after the other in time" in found.sentence
    assert "to " in found.sentence.partition("would fall")[2]


@pytest.mark.parametrize("kind", ["still", "switch", "groups"])
def test_coordinates_units_and_names_do_not_matter(kind):
    rng = np.random.default_rng(2)
    x = noise(5, 200, 4) * np.array([1.0, 0.8, 0.6, 0.4])
    x[100:] += 2.0 * (kind == "switch")
    x += 6.0 * (kind == "groups") * (rng.random((200, 1)) < 0.5)
    turn, first = np.linalg.qr(rng.normal(size=(4, 4)))[0], environment(x)
    for other in (x @ turn, 1e-6 * x, 1e6 * x, x + 3.0):
        found = environment(other)
        assert found.sentence == first.sentence and found.memory == first.memory
        assert (found.drift.p, found.groups.p) == (first.drift.p, first.groups.p)
        assert found.drift.changes == first.drift.changes
        assert found.worth_drift == pytest.approx(first.worth_drift)
        assert found.worth_groups == pytest.approx(first.worth_groups)
        np.testing.assert_allclose(found.groups.gaps, first.groups.gaps, atol=1e-6)
    tasks = [
        [fmrl.Task(np.eye(4), row, loss=fmrl.Squared(), name=name) for row in x[:30] / 50]
        for name in (None, "renamed")
    ]
    a, b = (fmrl.similarity_report(given, fmrl.Ball(1.0)).environment for given in tasks)
    assert a.to_dict() == b.to_dict()


def test_worth_is_what_the_rules_of_a_run_would_have():
    """The mean divergences are those of `fmrl.run` with the same meta-updates."""
    x = noise(4, 60) / 20 + np.linspace(0, 0.3, 60)[:, None]
    found = environment(x)
    tasks = [fmrl.Task(np.eye(3), row, loss=fmrl.Squared()) for row in x]
    for meta, mean in (
        (fmrl.FollowLeader(), found.distance),
        (fmrl.Discounted(1 / found.memory), found.distance * found.worth_drift),
    ):
        history = fmrl.run(fmrl.FMRL(fmrl.Ball(4.0), meta=meta), tasks)
        # sigma differs from task to task in a run; the values are close, and so is their order
        assert np.sqrt(np.mean(history.deviation[1:])) == pytest.approx(mean, rel=0.03)


def test_tasks_without_weight_do_not_count():
    x, sigma = noise(6, 100), np.ones(100)
    x[::7], sigma[::7] = 1e3, 0.0
    found = environment(x, sigma)
    assert found.sentence == "No drift and no groups found."
    assert sum(found.groups.sizes) == 85 and (found.groups.labels[::7] == -1).all()
    assert found.distance < 3
    assert environment(x, np.zeros(100)).tasks == 100  # no weights at all: all alike


@pytest.mark.parametrize("tasks", [1, 2, 3, 9, 10, 11, 12])
@pytest.mark.parametrize("same", [False, True])
def test_few_and_identical_tasks(tasks, same):
    x = np.full((tasks, 2), 0.1) if same else noise(0, tasks, 2)
    found = environment(x)
    assert json.dumps(found.to_dict(), allow_nan=False) and repr(found)
    assert ("too few" in found.sentence) == (tasks < 10)
    assert not (same and (found.drift.found or found.groups.k > 1))


def test_what_it_refuses():
    for bad in (np.ones(3), np.ones((0, 2)), [[np.nan]]):
        with pytest.raises(fmrl.FMRLError, match="optima must be finite"):
            environment(bad)
    with pytest.raises(fmrl.FMRLError, match="a weight each"):
        environment(np.ones((3, 1)), np.ones(2))


def test_many_tasks_are_fast():
    x = noise(0, 100_000, 20)
    x[60_000:, 0] += 2.0
    begun = time.process_time()
    found = environment(x)
    assert time.process_time() - begun < 5
    assert [abs(c.after - 60_000) < 50 for c in found.drift.changes] == [True]


def test_the_similarity_report_says_it():
    x = noise(7, 300) / 10
    x[150:] += 0.5
    report = fmrl.similarity_report(x)
    assert report.environment.sentence in str(report)
    assert report.environment is report.environment  # computed once
    record = json.loads(json.dumps(report.to_dict()))
    assert record["environment"]["drift"]["changes"][0]["after"] == 150
    assert record["environment"]["sentence"] == report.environment.sentence
    simplex = fmrl.similarity_report(
        np.random.default_rng(0).dirichlet(np.ones(3), 40), fmrl.Simplex()
    )
    assert 0.8 < simplex.environment.worth_drift < 1.3
    edge = np.eye(3)[np.arange(40) % 3]  # infinitely far from any start
    found = fmrl.similarity_report(edge, fmrl.Simplex()).environment
    assert found.to_dict()["worth_drift"] is None and "would fall" not in found.sentence
