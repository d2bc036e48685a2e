"""Reactive tasks: an adversary that answers the action just played, through the Game protocol."""

import math

import numpy as np
import pytest
from instances import UPDATES, WITHIN

import fmrl


class Adversary:
    """Charges the coordinate the player trusts most: cost ±G·e_j with j = argmax |theta|, against
    its sign (or +1).
    """

    def __init__(self, rounds, dim, scale=1.0):
        self.length, self.rounds, self.dim, self.scale = (
            rounds,
            np.asarray(float(rounds)),
            dim,
            scale,
        )
        self.costs = []

    def open(self):
        self.costs = []
        return self

    def reveal(self, i, theta):
        assert i == len(self.costs)
        j = int(np.argmax(np.abs(theta)))
        cost = self.scale * np.eye(self.dim)[j] * (1.0 if theta[j] >= 0 else -1.0)
        self.costs.append(cost)
        return theta @ cost, cost

    def lipschitz(self, domain):
        return np.asarray(self.scale)

    def _task(self):
        return fmrl.Task(np.array(self.costs), loss=fmrl.Linear()).open()

    def hindsight(self, domain):
        return fmrl.minimise(self._task(), domain)

    def leaders(self, domain, phi, eta):
        return lambda i: domain.argmin(phi, eta[..., None] * np.sum(self.costs[:i], axis=0))


def test_it_is_a_game():
    assert isinstance(Adversary(3, 2), fmrl.Game)
    assert isinstance(fmrl.Task(np.eye(2), [0, 1], loss=fmrl.Logistic()).open(), fmrl.Game)


@pytest.mark.parametrize("within", WITHIN, ids=repr)
@pytest.mark.parametrize("update", UPDATES, ids=repr)
@pytest.mark.parametrize("domain", [fmrl.Ball(1.0), fmrl.Box(-1, 1), fmrl.Simplex(0.01)], ids=repr)
def test_regret_against_an_adversary_is_bounded(within, update, domain):
    tasks = [Adversary(rounds, 3, 0.5) for rounds in (1, 8, 30)]
    history = fmrl.run(fmrl.FMRL(domain, within, update), tasks, domain.middle(np.zeros(3)))
    assert np.all(history.regret <= history.bound + 1e-9)
    assert np.all(history.losses[2] >= -1e-12)  # it always charges
    np.testing.assert_allclose(history.lipschitz, 0.5)
    assert history.rounds.tolist() == [1, 8, 30]


def test_regret_grows_like_the_root_of_the_rounds():
    """The adversary is strong: the regret really is of order G·D·√m, not less."""
    for rounds in (16, 64, 256):
        history = fmrl.run(fmrl.presets.single_task(), [Adversary(rounds, 1)], np.zeros(1))
        assert 0.2 * math.sqrt(rounds) <= history.regret[0] <= history.bound[0]


def test_reactive_and_array_tasks_in_one_run():
    task = fmrl.Task(np.eye(3), [0, 1, 0], loss=fmrl.Logistic())
    history = fmrl.run(fmrl.FMRL(), [task, Adversary(4, 3), task, task], np.zeros(3))
    algo, state = fmrl.FMRL(), fmrl.FMRL().init(np.zeros(3))
    for t, each in enumerate([task, Adversary(4, 3), task, task]):
        state, happened = algo.step(state, each)
        assert happened.regret == pytest.approx(history.regret[t], abs=1e-10)


def test_a_reactive_task_needs_phi():
    with pytest.raises(fmrl.FMRLError, match="give phi"):
        fmrl.run(fmrl.FMRL(), [Adversary(2, 2)])
    with pytest.raises(fmrl.FMRLError, match="phi of length 2"):
        fmrl.run(fmrl.FMRL(), [Adversary(2, 2)], np.zeros(3))
    with pytest.raises(fmrl.FMRLError, match="one order at a time"):
        fmrl.run(fmrl.FMRL(), [Adversary(2, 2)], np.zeros(2), orders=[[0]])
