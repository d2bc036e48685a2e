"""What the adversary of the soak met as a NaN or as a foreign exception is refused in words,
or works.
"""

from dataclasses import dataclass

import numpy as np
import pytest

import fmrl
from fmrl.core.matrices import cholesky, definite_solve, eigh, root_solve
from fmrl.core.solve.interior import _system

SIDE = fmrl.Conditional([0])


class Game:
    """Two rounds of a linear loss, for whoever plays them."""

    length, rounds, cost = 2, np.asarray(2.0), np.array([1.0, 0.0])

    def reveal(self, i, theta):
        return theta @ self.cost, self.cost

    def lipschitz(self, domain):
        return np.asarray(1.0)

    def hindsight(self, domain):
        return fmrl.minimise(fmrl.Task([self.cost] * 2, loss=fmrl.Linear()).open(), domain)


class Reactive:
    def open(self):
        return Game()


def test_a_rule_that_looks_at_rows_refuses_the_simplex_and_games_without_rows():
    for domain in (fmrl.Simplex(), fmrl.Simplex(0.1)):
        with pytest.raises(fmrl.FMRLError, match="needs the regulariser"):
            fmrl.FMRL(domain, meta=SIDE).init(np.full(2, 0.5))
    prior = fmrl.FMRL(within=fmrl.FTRL(), similarity=fmrl.Covariance())
    for algo in (fmrl.FMRL(meta=SIDE), prior):
        for tasks, batch in (([Reactive()], 1), ([Reactive()] * 2, 2)):
            with pytest.raises(fmrl.FMRLError, match="has no rows"):
                fmrl.run(algo, tasks, np.zeros(2), meta_batch=batch)


@dataclass(frozen=True)
class Lost(fmrl.MetaUpdate):
    """phi becomes no number."""

    def update(self, domain, phi, memory, end):
        return phi * np.nan, memory


@dataclass(frozen=True)
class Unsure(fmrl.SimilarityRule):
    """The guess becomes no number."""

    def init(self, domain, phi):
        return np.ones(phi.shape[:-1]), ()

    def update(self, domain, phi, guess, memory, end):
        return guess * np.nan, memory


@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIOnline()], ids=repr)
@pytest.mark.parametrize("rules", [{"meta": Lost()}, {"similarity": Unsure()}], ids=repr)
def test_what_becomes_no_number_is_refused_at_once(rules, update):
    task, algo = fmrl.Task([[1.0, 0.0]], loss=fmrl.Linear()), fmrl.FMRL(update=update, **rules)
    with pytest.raises(fmrl.FMRLError, match="no number any more"):
        fmrl.run(algo, [task])
    with pytest.raises(fmrl.FMRLError, match="no number any more"):
        fmrl.run(algo, [task], orders=[[0]])
    with pytest.raises(fmrl.FMRLError, match="no number any more"):
        algo.step(algo.init(np.zeros(2)), task)
    members = fmrl.Hedge([algo, fmrl.FMRL()])
    if "meta" in rules:
        with pytest.raises(fmrl.FMRLError, match="no number any more"):
            members.step(members.init(np.zeros(2)), task)


@pytest.mark.parametrize(
    "domain", [fmrl.Ball(1e140), fmrl.Ball(1e-30), fmrl.Box(0.0, 1e-30)], ids=repr
)
def test_a_domain_beyond_its_dtype_is_refused(domain):
    """A radius of 1e140 is infinite in float32, and divergences below 1e-38 are 0."""
    rows = np.ones((2, 2), np.float32)
    algo = fmrl.FMRL(domain, fmrl.OGD(), similarity=fmrl.Known(1.0))
    with pytest.raises(fmrl.FMRLError, match="cannot be squared in float32"):
        fmrl.run(algo, [fmrl.Task(rows, loss=fmrl.Linear())])
    fmrl.run(algo, [fmrl.Task(rows.astype(float), loss=fmrl.Linear())])


def test_centres_refuse_a_rule_that_looks_at_tasks():
    with pytest.raises(fmrl.FMRLError, match="keeps no side information"):
        fmrl.Centres(2, fmrl.FMRL(meta=SIDE))


def test_a_regret_beyond_float32_is_refused():
    rows = [1e10, -1e10, 1e10, 1e10]
    task = fmrl.Task(
        np.array(rows, np.float32)[:, None], np.ones(4, np.float32), loss=fmrl.Squared()
    )
    algo = fmrl.FMRL(fmrl.Ball(1e12), fmrl.OGD(), similarity=fmrl.Known(2e3), lipschitz=1.0)
    with np.errstate(all="ignore"), pytest.raises(fmrl.FMRLError, match="no number any more"):
        fmrl.run(algo, [task])


def test_orders_of_a_hedge_begin_where_its_members_do():
    """A member with a phi of its own: the mean of the members' phi is where none of them begins."""
    members = [fmrl.FMRL(meta=fmrl.Fixed([0.5, 0.0])), fmrl.FMRL()]
    tasks = [
        fmrl.Task([[1.0, 0.0]], loss=fmrl.Linear()),
        fmrl.Task([[0.0, 1.0]], loss=fmrl.Linear()),
    ]
    hedge, phi = fmrl.Hedge(members), np.array([-0.5, 0.5])
    orders = fmrl.run(hedge, tasks, phi, orders=[[0, 1], [1, 0]])
    for row, played in zip(orders.regret, (tasks, tasks[::-1]), strict=True):
        np.testing.assert_allclose(row, fmrl.run(hedge, played, phi).regret, atol=1e-12)


def test_a_newton_system_that_is_singular_to_the_last_bit_is_solved():
    """Rows repeat, and rounding of their products eats the trace that keeps a matrix regular."""
    across = 1.0 + 1e-15
    block, right = np.array([[[[1.0, across], [across, 1.0]]]]), np.array([[1.0, 1.0]])
    (found,) = _system(block, np.zeros((1, 2)))(right)
    np.testing.assert_allclose(found, 0.5, rtol=1e-6)


def test_a_matrix_with_room_for_rounding_has_a_root():
    """The float32 covariance of three tasks had a direction of less than nothing."""
    thin = np.array([[1.0, 1.0 + 1e-7], [1.0 + 1e-7, 1.0]], dtype=np.float32)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(thin)
    root = cholesky(thin)
    np.testing.assert_allclose(root @ root.T, thin, rtol=1e-5)


@pytest.mark.parametrize("work", [cholesky, eigh])
def test_matrices_that_overflow_are_refused_in_words(work):
    with pytest.raises(fmrl.FMRLError, match="overflow in float32"):
        work(np.where(np.eye(3) == 1, 1.0, np.inf).astype(np.float32))


def test_a_member_without_weight_has_no_part_in_the_record():
    """0 · inf: a member that is infinitely far off, whose weight has underflowed."""
    right, four = np.array([-1.0, 1.0, 1.0, 1.0, -1.0]), np.eye(4) * 1e-170
    rows = four[[0, 3, 3, 3, 3]], four[[0, 3, 3, 3, 3]], four[[3] * 5], four[[3] * 5]
    signs = right, right * [-1, 1, -1, -1, 1], -np.ones(5), -np.ones(5)
    tasks = [fmrl.Task(X, y, loss=fmrl.Hinge()) for X, y in zip(rows, signs, strict=True)]
    rule, released = fmrl.Doubling(0.8, 1.0, first=0.009), fmrl.ReleasedDoubling(0.003, 1.1)
    far = fmrl.FMRL(fmrl.Euclidean(), fmrl.OGD(), fmrl.FLIOnline(), similarity=rule)
    still = fmrl.FMRL(fmrl.Euclidean(), similarity=released)
    history = fmrl.run(fmrl.Hedge([still, far], rate=0.7), tasks, np.array([156.0, -22, 19, 34]))
    assert np.isinf(history.divergence).any() and not np.isnan(history.divergence).any()


def test_a_definite_system_that_is_singular_to_the_last_bit_is_solved():
    """Curvature 1e20 along one direction, and the identity, of which nothing is left."""
    matrix = np.full((2, 2), 1e20) + np.eye(2)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.solve(matrix, np.ones((2, 1)))
    np.testing.assert_allclose(definite_solve(matrix, np.ones((2, 1))).sum(), 1e-20, rtol=1e-2)


def test_a_metric_that_lost_a_direction_is_refused_in_words():
    with pytest.raises(fmrl.FMRLError, match="keeps nothing"):
        root_solve(np.diag([1.0, 0.0]), np.ones((2, 1)))
