"""Ensembles: what weighs the members is AdaHedge to the last digit, and members are checked as they
are when they play alone.
"""

from fractions import Fraction

import numpy as np
import pytest

import fmrl
from fmrl.core.adahedge import Weights
from fmrl.core.tasks import Tasks
from fmrl.theory.certificate import certify

ULP = 2.0**-52


def played(losses, rate=None, first=None):
    """What the weighted mean of the losses [T, K] adds up to, exactly, and the last weights."""
    weights, total = Weights.begin(losses.shape[1], losses), Fraction(0)
    for lost in losses:
        share = weights.shares(rate, first)
        total += sum(
            Fraction(float(s)) * Fraction(float(a)) for s, a in zip(share, lost, strict=True)
        )
        weights = weights.after(lost, rate, first)
    return total, weights


def random_losses(rng, dtype):
    """Losses of any kind: ties of one ulp, zeros, traps for those who follow the leader, scales
    over hundreds of decades, and all of it far from 0.
    """
    T, K, eps = int(rng.integers(1, 40)), int(rng.integers(2, 5)), np.finfo(dtype).eps
    losses = [
        rng.normal(size=(T, K)), rng.integers(0, 2, (T, K)) + 0.0, np.tile(np.eye(K), (T, 1))[:T],
        rng.integers(-1, 2, (T, K)) + 0.0, np.ones((T, 1)) * rng.exponential(size=(1, K)),
        rng.normal(size=(T, K)) ** 9,
    ][rng.integers(6)]  # fmt: skip
    if rng.random() < 0.5:  # the first tasks are alike to an ulp
        some = int(rng.integers(1, T + 1))
        losses[:some] = losses[0, 0] * (1 + eps * rng.integers(-1, 2, (some, K)))
    scales = (1, 1, 1e-3, 1e3, 1e-12, 1e12, 1e30, 1e-30 if dtype == np.float32 else 1e-300)
    scale = scales[rng.integers(len(scales))]
    return (losses * scale + scale * 1e3 * (rng.random() < 0.3)).astype(dtype)


@pytest.mark.parametrize("seed", range(8))
def test_regret_against_the_best_member_is_what_the_gap_says(seed):
    """Δ·(1 + log(1/w_k)/log K), by rational arithmetic, with nothing that overflows on the way."""
    rng = np.random.default_rng(seed)
    for number in range(80):
        dtype = np.float32 if number % 5 == 0 else np.float64
        losses = random_losses(rng, dtype)
        K, eps = losses.shape[1], np.finfo(dtype).eps
        rate = float(10.0 ** rng.uniform(-20, 20)) if number % 4 == 0 else None
        first = rng.dirichlet(np.ones(K)).astype(dtype) + dtype(1e-6) if number % 3 == 0 else None
        first = None if first is None else first / first.sum()
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            total, weights = played(losses, rate, first)
        gap, share = float(weights.gap), np.full(K, 1 / K) if first is None else first
        cost = gap + np.log(1 / share) * (gap / np.log(K) if rate is None else 1 / rate)
        sums = [sum(Fraction(float(a)) for a in column) for column in losses.T]
        least = min(s + Fraction(float(c)) for s, c in zip(sums, cost, strict=True))
        rounding = 40 * eps * float(np.abs(losses).sum()) + 1e-320
        assert float(total - least) <= rounding


def test_an_ulp_between_members_does_not_make_a_leader_for_ever():
    ahead = Weights.begin(2, np.zeros(1)).after(np.array([1.0, 1 + ULP]))
    after = ahead.after(np.array([10.0, 0.0]))
    assert float(after.gap) == pytest.approx(8.0) and 0.2 < float(after.shares()[0]) < 0.5


def test_what_members_have_in_common_costs_nothing():
    """Identical members have a gap of 0, however large and uneven their losses are."""
    rng = np.random.default_rng(0)
    losses = np.ones((99, 3)) * 1e9 * rng.exponential(size=(99, 1))
    assert float(played(losses)[1].gap) == 0.0


def hedges(seed):
    """Members that differ by how phi moves: two of them often agree to an ulp after one task."""
    rng = np.random.default_rng(seed)
    metas = np.array([fmrl.FollowLeader(), fmrl.LastUpdate(), fmrl.AdaptiveOGD(), fmrl.Fixed(),
                      fmrl.Discounted(0.3), fmrl.Window(2)], dtype=object)  # fmt: skip
    similarity = fmrl.Known(float(10 ** rng.uniform(-2.5, 0.5)))
    domain, within = fmrl.Ball(float(rng.choice([1.0, 10.0]))), (fmrl.OMD(), fmrl.OGD())[seed % 2]
    members = [
        fmrl.FMRL(domain, within, fmrl.FAL(), meta, similarity)
        for meta in rng.permutation(metas)[: rng.integers(2, 4)]
    ]
    d, m, tasks = int(rng.integers(1, 4)), int(rng.integers(1, 4)), []
    linear, scale = rng.random() < 0.5, rng.choice([1.0, 1.0, 10.0, 1e-3])
    for _ in range(rng.integers(2, 20)):
        X, size = rng.normal(size=(m, d)), scale * rng.choice([0.1, 1, 10])
        y = size * (X.sum(1) + 0.3 * rng.normal(size=m))
        plain = fmrl.Task(size * X, loss=fmrl.Linear())
        tasks.append(plain if linear else fmrl.Task(X, y, loss=fmrl.Squared()))
    return fmrl.Hedge(members), tasks


@pytest.mark.parametrize("seed", range(0, 400, 20))
def test_certificates_hold(seed):
    """Of 400 runs, four do not with a rate that looks at the leaders alone."""
    for number in range(seed, seed + 20):
        algo, tasks = hedges(number)
        history = fmrl.run(algo, tasks)
        (bound,) = certify(history, tasks).bounds
        suffered = np.mean([np.abs(row).sum() for row in history.losses])
        assert float(history.tar) <= bound.total + 1e-9 * suffered, number


def test_a_member_that_runs_away_is_refused():
    rng = np.random.default_rng(0)
    X = 100 * rng.normal(size=(30, 3))
    tasks = [fmrl.Task(X, X.sum(1), loss=fmrl.Squared())] * 2
    wild = fmrl.FMRL(fmrl.Euclidean(), similarity=fmrl.KnownStep(1.0))
    still = fmrl.FMRL(fmrl.Euclidean(), similarity=fmrl.KnownStep(0.0))
    for algo in (wild, fmrl.Hedge([wild, still]), fmrl.Centres(2, wild)):
        with pytest.raises(fmrl.FMRLError, match="the actions ran away"):
            fmrl.run(algo, tasks)


def test_a_reactive_task_is_refused_in_words():
    class Reactive:
        def open(self):
            return self

    algo = fmrl.Hedge([fmrl.FMRL(), fmrl.FMRL(meta=fmrl.Fixed())])
    with pytest.raises(fmrl.FMRLError, match=r"plays tasks of rows") as stopped:
        fmrl.run(algo, [Reactive()], np.zeros(2))
    assert stopped.value.task == 0


def test_weights_that_are_no_numbers_are_refused():
    tasks = [fmrl.Task([[1.0, t]], [0.5], loss=fmrl.Squared()) for t in (0.0, 0.5, -0.3)]
    algo = fmrl.Hedge([fmrl.FMRL(), fmrl.FMRL(meta=fmrl.Fixed())])
    state = fmrl.run(algo, tasks).state
    algo.check(state)
    cost, gap = state.similarity
    member = state.meta[0]._replace(guess=-state.meta[0].guess)
    for change in (
        {"similarity": (cost * np.nan, gap)}, {"similarity": (cost[:1], gap)},
        {"similarity": (cost, gap * np.nan)}, {"meta": state.meta[:1]}, {"meta": ()},
        {"meta": (member, state.meta[1])},
    ):  # fmt: skip
        with pytest.raises(fmrl.FMRLError, match="made by another composition"):
            fmrl.run(algo, tasks, state=state._replace(**change))


@pytest.mark.parametrize("loss", [fmrl.Squared(), fmrl.Logistic()], ids=repr)
def test_one_task_of_weighted_rows_is_its_stack(loss):
    """An ensemble plays tasks one at a time: their rows keep their weights."""
    rng = np.random.default_rng(0)
    tasks = Tasks.of([fmrl.Task(rng.normal(size=(4, 2)), [0, 1, 1, 0], loss=loss) for _ in "abc"])
    weighted = Tasks(loss, tasks.X, tasks.target, tasks.starts, tasks.names, np.arange(12.0), 11.0)
    theta = rng.normal(size=(3, 2)) / 3
    together = weighted.stack().losses(theta)
    for t in range(3):
        np.testing.assert_allclose(weighted.task(t).open().losses(theta[t]), together[t])
        assert weighted.task(t).rounds == 4


def test_what_an_ensemble_did_not_observe_is_said_of_it():
    algo = fmrl.Hedge([fmrl.FMRL(), fmrl.FMRL(meta=fmrl.Fixed())])
    history = fmrl.run(algo, [fmrl.Task([[1.0]], [0.5], loss=fmrl.Squared())])
    with pytest.raises(AttributeError, match=r"distance: Hedge\(.* does not observe gradients"):
        _ = history.distance
