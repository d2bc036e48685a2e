"""Within-task learners: the paper's equalities and its regret bound, on random instances."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import (
    DOMAINS,
    L2,
    LOSSES,
    WITHIN,
    exists,
    make_domain,
    make_loss,
    make_task,
    points,
    seeds,
    width,
)

import fmrl
from fmrl.core.rules.within import play

etas = st.sampled_from([0.01, 0.1, 1.0, 10.0])


def setting(domain_kind, kind, seed, rounds, features=3):
    rng = np.random.default_rng(seed)
    dim = width(kind, features)
    domain = make_domain(domain_kind, dim, rng)
    return rng, domain, points(domain, dim, rng)[0], make_task(kind, rounds, features, rng).open()


def played(learner, game, domain, phi, eta):
    return fmrl.play(learner, game, domain, phi, np.asarray(eta), record=True)


@pytest.mark.parametrize("domain_kind", DOMAINS)
@given(seed=seeds, rounds=st.integers(1, 12), eta=etas)
def test_omd_is_ftrl_on_linear_losses(domain_kind, seed, rounds, eta):
    _, domain, phi, game = setting(domain_kind, "linear", seed, rounds)
    lazy, leader = (played(w, game, domain, phi, eta) for w in (fmrl.OMD(), fmrl.FTRL()))
    np.testing.assert_allclose(lazy.actions, leader.actions, atol=1e-12)
    np.testing.assert_allclose(lazy.last, leader.last, atol=1e-12)


@pytest.mark.parametrize("domain_kind", DOMAINS)
@given(seed=seeds, rounds=st.integers(1, 8), eta=etas)
def test_omd_plays_its_definition(domain_kind, seed, rounds, eta):
    """θ_i = argmin B_R(·‖phi) + eta·Σ_{s<i}⟨∇_s, ·⟩: no feasible point does better, whatever the
    loss.
    """
    rng, domain, phi, game = setting(domain_kind, "one-vs-all", seed, rounds)
    result = played(fmrl.OMD(), game, domain, phi, eta)
    others = points(domain, phi.size, rng, 200, edge=domain_kind != "euclidean")
    total = np.zeros_like(phi)
    for i, theta in enumerate([*result.actions, result.last]):
        value = domain.divergence(theta, phi) + eta * total @ theta
        assert np.all(
            domain.divergence(others, phi) + eta * others @ total >= value - 1e-9 * (1 + eta)
        )
        if i < rounds:
            loss, gradient = game.reveal(i, theta)
            assert result.losses[i] == loss
            total = total + gradient


@pytest.mark.parametrize("domain_kind", DOMAINS)
@given(seed=seeds, rounds=st.integers(1, 8), eta=etas)
def test_ogd_projects_each_step(domain_kind, seed, rounds, eta):
    _, domain, phi, game = setting(domain_kind, "logistic", seed, rounds)
    result, theta = played(fmrl.OGD(), game, domain, phi, eta), phi
    for i in range(rounds):
        np.testing.assert_allclose(result.actions[i], theta, atol=1e-12)
        gradient = game.reveal(i, theta)[1]
        step = (
            theta * np.exp(-eta * gradient) if "simplex" in domain_kind else theta - eta * gradient
        )
        theta = domain.project(step)
    np.testing.assert_allclose(result.last, theta, atol=1e-12)


@given(seed=seeds, rounds=st.integers(1, 12), eta=etas, experts=st.integers(2, 6))
def test_entropic_omd_is_exponential_weights_with_prior_phi(seed, rounds, eta, experts):
    rng = np.random.default_rng(seed)
    prior, costs = rng.dirichlet(np.ones(experts)), rng.normal(size=(rounds, experts))
    result = played(
        fmrl.OMD(), fmrl.Task(costs, loss=fmrl.Linear()).open(), fmrl.Simplex(), prior, eta
    )
    for i in range(rounds + 1):
        weights = prior * np.exp(-eta * costs[:i].sum(axis=0))
        np.testing.assert_allclose(
            [*result.actions, result.last][i], weights / weights.sum(), atol=1e-12
        )


@pytest.mark.parametrize("domain_kind", DOMAINS)
@pytest.mark.parametrize("kind", LOSSES)
@given(seed=seeds, rounds=st.integers(1, 12), eta=etas)
@settings(max_examples=3)
def test_regret_bound(domain_kind, kind, seed, rounds, eta):
    """Theorem A.1: regret against any θ* of the domain ≤ B_R(θ*‖phi)/eta + eta·G²·m."""
    rng, domain, phi, game = setting(domain_kind, kind, seed, rounds)
    others = points(domain, phi.size, rng, 20, edge=domain_kind != "euclidean")
    if exists(domain_kind, kind):
        best = game.hindsight(domain)
        others = np.concatenate([others, best.theta[None]])
    G = 3.0 if (domain_kind, kind) == ("euclidean", "squared") else game.lipschitz(domain)
    for learner in WITHIN:
        result = played(learner, game, domain, phi, eta)
        if (domain_kind, kind) == (
            "euclidean",
            "squared",
        ):  # Lipschitz where it was played, which is all the proof uses
            norms = [
                np.linalg.norm(game.reveal(i, theta)[1]) for i, theta in enumerate(result.actions)
            ]
            G = np.sqrt(np.mean(np.square(norms))) if not isinstance(learner, fmrl.FTRL) else 0.0
            if G == 0:
                continue
        assert np.all(domain.contains(result.actions))
        regret = result.losses.sum() - np.array([game.losses(other).sum() for other in others])
        bound = domain.divergence(others, phi) / eta + eta * G**2 * rounds
        assert np.all(regret <= bound + 1e-9 * (1 + np.abs(bound)))


@pytest.mark.parametrize("domain_kind", L2)
@given(seed=seeds, rounds=st.integers(1, 12), eta=etas)
def test_half_the_bound_holds_for_projected_gradient_descent(domain_kind, seed, rounds, eta):
    """Zinkevich: eager OGD has regret ≤ ½‖θ* − phi‖²/eta + ½·eta·Σ‖∇‖², sharper than Theorem "
    "A.1."""
    rng, domain, phi, game = setting(domain_kind, "hinge", seed, rounds)
    result = played(fmrl.OGD(), game, domain, phi, eta)
    squares = sum(np.sum(game.reveal(i, theta)[1] ** 2) for i, theta in enumerate(result.actions))
    for other in points(domain, phi.size, rng, 20, edge=domain_kind != "euclidean"):
        regret = result.losses.sum() - game.losses(other).sum()
        assert regret <= np.sum((other - phi) ** 2) / (2 * eta) + eta * squares / 2 + 1e-9


@pytest.mark.parametrize("domain_kind", ["ball", "box", "simplex"])
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("learner", WITHIN, ids=repr)
def test_last_and_average(domain_kind, kind, learner):
    _, domain, phi, game = setting(domain_kind, kind, 4, 6)
    result = played(learner, game, domain, phi, 0.4)
    np.testing.assert_allclose(result.average, result.actions.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(result.actions[0], phi, atol=1e-15)
    assert fmrl.play(learner, game, domain, phi, np.asarray(0.4)).actions is None
    if isinstance(learner, fmrl.FTRL):
        direct = fmrl.minimise(game, domain, phi, 0.4)
        np.testing.assert_allclose(result.last, direct.theta, atol=1e-7)
        assert abs(np.sum(game.losses(result.last) - game.losses(direct.theta))) <= 1e-7


@pytest.mark.parametrize("learner", WITHIN, ids=repr)
def test_padded_rounds_do_not_count(learner):
    """A stack of ragged tasks plays each of them as alone, and its averages leave the padding
    out.
    """
    rng = np.random.default_rng(8)
    tasks = [make_task("one-vs-all", m, 3, rng) for m in (1, 7, 3, 4)]
    phi, eta = 0.2 * rng.normal(size=(4, 9)), rng.uniform(0.1, 1, size=4)
    stacked = fmrl.play(learner, fmrl.stack(tasks), fmrl.Ball(1.0), phi, eta)
    for t, task in enumerate(tasks):
        alone = fmrl.play(learner, task.open(), fmrl.Ball(1.0), phi[t], eta[t])
        np.testing.assert_allclose(stacked.losses[t, : task.rounds], alone.losses, atol=1e-10)
        assert np.all(stacked.losses[t, task.rounds :] == 0)
        np.testing.assert_allclose(stacked.last[t], alone.last, atol=1e-10)
        np.testing.assert_allclose(stacked.average[t], alone.average, atol=1e-10)


@pytest.mark.parametrize("kind", LOSSES)
def test_ftrl_with_no_step_stands_still(kind):
    _, domain, phi, game = setting("ball", kind, 1, 3)
    result = played(fmrl.FTRL(), game, domain, phi, 0.0)
    np.testing.assert_allclose(
        result.actions, np.broadcast_to(phi, result.actions.shape), atol=1e-9
    )
    assert make_loss(kind) == game.loss


class _Foreign:
    """A learner of a user's own, which plays what it is told to."""

    def __init__(self, actions):
        self.plays = actions

    def __repr__(self):
        return "Foreign()"

    def actions(self, game, domain, phi, eta):
        for theta in self.plays:
            yield phi + theta


@pytest.mark.parametrize(
    ("plays", "message", "at"),
    [
        ([0.0, 5.0, 0.0], "left Ball", 1),
        ([0.0, 0.1], "stopped", 2),
        ([[[0.0]]] * 3, "not an array of phi's shape", 0),
    ],
)
def test_a_foreign_learner_is_held_to_its_word(plays, message, at):
    task = fmrl.Task(np.eye(2), [0.0, 1.0], loss=fmrl.Squared())
    algo = fmrl.FMRL(within=_Foreign([np.asarray(p) for p in plays]))
    with pytest.raises(fmrl.FMRLError, match=message) as error:
        algo.step(algo.init(np.zeros(2)), task)
    assert error.value.round == at


def test_ogd_on_the_simplex_does_not_lose_mass_that_underflows():
    """The better expert changes after 1,200 rounds of a long step: masses below the smallest number
    come back. An eager step that forgot their logarithms had a regret of 8,801.
    """
    costs = np.concatenate([np.tile([[1.0, 0.0]], (1200, 1)), np.tile([[0.0, 1.0]], (10_000, 1))])
    tasks = [fmrl.Task(costs, loss=fmrl.Linear())] * 3
    algo = fmrl.FMRL(fmrl.Simplex(), fmrl.OGD(), meta=fmrl.Fixed(), similarity=fmrl.Known(80.0))
    lazy = replace(algo, within=fmrl.OMD())
    history = fmrl.run(algo, tasks)
    assert float(history.tar) < 2 and np.array_equal(history.regret, fmrl.run(lazy, tasks).regret)
    for way in ({"orders": [[0, 1, 2]] * 2}, {"meta_batch": 3}):
        np.testing.assert_allclose(fmrl.run(algo, tasks, **way).regret, 1.6827737, rtol=1e-6)
    assert float(algo.step(algo.init([0.5, 0.5]), tasks[0])[1].regret) < 2


def test_a_simplex_of_ones_own_is_projected_as_it_says():
    """Only where nothing but the sum is projected do gradients add up."""

    class Capped(fmrl.Simplex):
        def project(self, theta):
            theta = np.minimum(super().project(theta), 0.8)
            return theta / theta.sum(axis=-1, keepdims=True)

    assert fmrl.Simplex().additive and not fmrl.Simplex(0.1).additive
    costs = np.array([[3.0, 0.0, 0.0]] * 4 + [[0.0, 3.0, 0.0]] * 4)
    game, phi, eta = fmrl.Task(costs, loss=fmrl.Linear()).open(), np.ones(3) / 3, np.array(1.0)
    for domain in (Capped(), fmrl.Simplex(0.1), fmrl.Ball(1.0)):
        found = play(fmrl.OGD(), game, domain, phi, eta, record=True).actions
        theta = phi
        for i in range(8):
            np.testing.assert_array_equal(found[i], theta)
            theta = domain.argmin(theta, costs[i])
