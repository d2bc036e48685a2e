"""The Gaussian behind a state: BLUPs with known variances, and covariances that do not lie."""

import numpy as np
import pytest

import fmrl
from fmrl.core.matrices import eigh
from fmrl.core.prior.gaussian import Gaussian
from fmrl.core.prior.marginal import (
    _relative_change,
    estimate_prior,
    shrink_correlations,
    sums_of,
)
from fmrl.core.prior.statistics import Moments
from fmrl.core.tasks import Tasks


def mixed(tasks=200, rows=5, d=3, seed=0, noise=1.0, omega=None, mean=None, loss="squared"):
    """Tasks θ ~ N(mean, omega) with Gaussian or logistic answers."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(d, d))
    omega = A @ A.T / d + 0.05 * np.eye(d) if omega is None else omega
    mean, half = rng.normal(size=d) if mean is None else mean, np.linalg.cholesky(omega)
    made = []
    for _ in range(tasks):
        X, theta = rng.normal(size=(rows, d)), mean + half @ rng.normal(size=d)
        if loss == "squared":
            y = X @ theta + noise**0.5 * rng.normal(size=rows)
            made.append(fmrl.Task(X, y, loss=fmrl.Squared()))
        else:
            y = rng.random(rows) < 1 / (1 + np.exp(-X @ theta))
            made.append(fmrl.Task(X, y, loss=fmrl.Logistic()))
    return made, mean, omega


def blup(task, mean, omega, noise):
    """Henderson's formula by the covariance of the answers: mean + ΩXᵀV⁻¹(y − X·mean)."""
    X, y = task.X, task.open().target[:, 0]
    V = X @ omega @ X.T + noise * np.eye(len(X))
    gain = omega @ X.T @ np.linalg.inv(V)
    return mean + gain @ (y - X @ mean), omega - gain @ X @ omega


def far(found, true):
    return np.linalg.norm(found - true) / np.linalg.norm(true)


@pytest.mark.parametrize("rows", [1, 2, 5, 30])
@pytest.mark.parametrize("noise", [0.01, 1.0, 25.0])
def test_known_variances_give_the_blup(rows, noise):
    """By `Gaussian.adapt`, and by FTRL in a composition: its last action."""
    tasks, mean, omega = mixed(6, rows, 4, noise=noise)
    prior = Gaussian(mean, omega, noise)
    algo = fmrl.FMRL(
        fmrl.Euclidean(), fmrl.FTRL(), fmrl.FLIOnline(), fmrl.Fixed(),
        fmrl.KnownStep(omega / noise), lipschitz=1.0,
    )  # fmt: skip
    history = fmrl.run(algo, tasks, mean)
    for t, task in enumerate(tasks):
        expected, spread = blup(task, mean, omega, noise)
        after = prior.adapt(task)
        np.testing.assert_allclose(after.mean, expected, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(after.covariance, spread, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(history.theta[t], expected, rtol=1e-8, atol=1e-8)


def test_the_prior_of_a_state_is_what_ftrl_plays_in():
    tasks, _, _ = mixed(20)
    for rule in (fmrl.PerCoordinate(0.3), fmrl.FullMatrix(0.3), fmrl.Covariance()):
        algo = fmrl.FMRL(
            fmrl.Euclidean(), fmrl.FTRL(), fmrl.FLIOnline(), similarity=rule, lipschitz=1.0
        )
        state = fmrl.run(algo, tasks[:-1]).state
        _, round = algo.step(state, tasks[-1])
        np.testing.assert_allclose(fmrl.prior(state).adapt(tasks[-1]).mean, round.theta, atol=1e-9)
    number = fmrl.FMRL(fmrl.Euclidean(), similarity=fmrl.Known(0.6), lipschitz=1.0)
    found = fmrl.prior(number.init(np.zeros(2)), sigma=3.0)
    np.testing.assert_allclose(found.covariance, 0.2 * np.eye(2))
    with pytest.raises(fmrl.FMRLError, match="State"):
        fmrl.prior(number)


def test_a_history_of_covariances_knows_the_noise():
    tasks, _, omega = mixed(400, 8, 3, noise=0.1)
    algo = fmrl.FMRL(fmrl.Euclidean(), fmrl.FTRL(), similarity=fmrl.Covariance())
    found = fmrl.prior(fmrl.run(algo, tasks))
    assert abs(found.noise - 0.1) < 0.02
    assert far(found.covariance, omega) < 0.25
    orders = fmrl.run(algo, tasks[:3], orders=np.array([[0, 1], [2, 1]]))
    with pytest.raises(fmrl.FMRLError, match="several runs"):
        fmrl.prior(orders)


@pytest.mark.parametrize("seed", range(3))
def test_the_true_covariance_is_recovered(seed):
    """1,000 tasks of 5 rows and 8 features: within 20 %, where the optima's scatter is off by 40 %
    or more."""
    tasks, mean, omega = mixed(1000, 5, 8, seed)
    found = estimate_prior(tasks)
    assert far(found.covariance, omega) < 0.2
    assert abs(found.noise - 1) < 0.15
    assert np.abs(found.mean - mean).max() < 0.2
    optima = [np.linalg.lstsq(t.X, t.open().target[:, 0], rcond=None)[0] for t in tasks]
    assert far(np.cov(np.transpose(optima)), omega) > 0.35


def log_likelihood(tasks, mean, omega, noise):
    total = 0.0
    for task in tasks:
        X, y = task.X, task.open().target[:, 0]
        V, off = X @ omega @ X.T + noise * np.eye(len(X)), y - X @ mean
        total -= (np.linalg.slogdet(V)[1] + off @ np.linalg.solve(V, off)) / 2
    return total


def test_it_maximises_the_marginal_likelihood():
    """No change of mean, covariance or noise is likelier, up to the degrees of freedom that the
    noise gives to the mean."""
    tasks, _, _ = mixed(100, 4, 2)
    found = estimate_prior(tasks, steps=3000, tolerance=1e-10)
    best, rng = log_likelihood(tasks, found.mean, found.covariance, found.noise), np.random
    better = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        E = 0.03 * rng.normal(size=(2, 2))
        omega = (np.eye(2) + E) @ found.covariance @ (np.eye(2) + E).T
        mean = found.mean + 0.03 * rng.normal(size=2)
        noise = found.noise * np.exp(0.05 * rng.normal())
        better += log_likelihood(tasks, mean, omega, noise) > best + 0.01
    assert better == 0
    truth = log_likelihood(tasks, found.mean * 0, np.eye(2) * 5, 1.0)
    assert truth < best - 5


def test_every_step_raises_the_likelihood():
    tasks, _, _ = mixed(80, 3, 4, seed=4)
    seen = [
        log_likelihood(tasks, g.mean, g.covariance, g.noise)
        for g in (estimate_prior(tasks, steps=n, noise=1.0) for n in range(2, 30, 3))
    ]
    assert min(np.diff(seen)) > -1e-6


def test_families():
    """A rank keeps so many directions; a diagonal nothing between features; and correlations of
    few tasks can be drawn to 0."""
    omega = np.diag([4.0, 0.01, 0.01, 0.01, 0.01])
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    tasks, _, true = mixed(300, 6, 5, omega=Q @ omega @ Q.T)
    low = estimate_prior(tasks, 1).covariance
    assert far(low, true) < 0.2
    values = np.linalg.eigvalsh(low)
    np.testing.assert_allclose(values[:4], values[0], rtol=1e-6)
    diagonal = estimate_prior(tasks, "diagonal").covariance
    assert np.abs(diagonal - np.diag(np.diag(diagonal))).max() < 1e-12
    number = estimate_prior(tasks, "isotropic").covariance
    np.testing.assert_allclose(number, number[0, 0] * np.eye(5), atol=1e-12)
    few = estimate_prior(tasks[:8])
    assert np.linalg.cond(shrink_correlations(few, "full", 100.0).covariance) < 1 / 3 * (
        np.linalg.cond(few.covariance)
    )
    assert np.isfinite(estimate_prior(tasks[:2]).covariance).all()


def test_logistic_tasks():
    """Laplace's approximation with 30 answers a task finds the spread to a third."""
    tasks, mean, omega = mixed(
        400, 30, 2, omega=np.diag([1.5, 0.2]), mean=np.array([0.5, -0.5]), loss="logistic"
    )
    found = estimate_prior(tasks)
    assert found.noise == 1.0
    np.testing.assert_allclose(found.mean, mean, atol=0.2)
    assert far(found.covariance, omega) < 0.35


def test_softmax_and_one_vs_all_tasks():
    rng = np.random.default_rng(0)
    for loss in (fmrl.Softmax(3), fmrl.OneVsAll(3)):
        tasks = []
        for _ in range(60):
            X, theta = rng.normal(size=(12, 2)), rng.normal(size=(3, 2))
            y = (X @ theta.T + rng.gumbel(size=(12, 3))).argmax(1)
            tasks.append(fmrl.Task(X, y, loss=loss))
        found = estimate_prior(tasks, "diagonal")
        assert 0.2 < np.diag(found.covariance).mean() < 3
        assert found.adapt(tasks[0]).std.max() < found.std.max()


def test_sums_do_not_depend_on_how_tasks_lie():
    """One at a time or together, in any order: the same sums, so any cluster can add them up."""
    for loss in ("squared", "logistic"):
        tasks, mean, omega = mixed(12, 4, 3, loss=loss)
        at, every = Gaussian(mean, omega), Tasks.of(tasks)
        (whole,) = sums_of(every)([at])
        parts = [sums_of(every.take(np.array([i])))([at])[0] for i in range(12)]
        for found, one in zip(sum(parts[1:], parts[0]), whole, strict=True):
            np.testing.assert_allclose(found, one, rtol=1e-10, atol=1e-12)
        longer = mixed(1, 40, 3, loss=loss)[0]
        few, many = (sums_of(Tasks.of([t]))([at])[0] for t in (tasks[0], *longer))
        assert (few.rounds, many.rounds) == (4, 40)


def test_what_is_bad_is_refused():
    with pytest.raises(fmrl.FMRLError, match="family"):
        estimate_prior(mixed(3)[0], "fulll")
    with pytest.raises(fmrl.FMRLError, match="no tasks"):
        estimate_prior([])
    with pytest.raises(fmrl.FMRLError, match="squared"):
        estimate_prior(mixed(3, loss="logistic")[0], noise=0.5)
    with pytest.raises(fmrl.FMRLError, match="log-likelihood"):
        estimate_prior([fmrl.Task(np.eye(2), loss=fmrl.Linear())])
    with pytest.raises(fmrl.FMRLError, match="parameters"):
        Gaussian(np.zeros(2), np.eye(2)).adapt(mixed(1)[0][0])
    with pytest.raises(fmrl.FMRLError, match="sigma"):
        fmrl.prior(fmrl.FMRL().init(np.zeros(1)), sigma=0.0)
    rng = np.random.default_rng(0)
    exact = [fmrl.Task(X, X @ [1.0, 2.0], loss=fmrl.Squared()) for X in rng.normal(size=(30, 4, 2))]
    assert np.isfinite(estimate_prior(exact).covariance).all()
    for X, y, why in (
        (np.zeros((3, 2)), np.ones(3), "row is 0"),
        (np.eye(2), np.zeros(2), "target is 0"),
    ):
        with pytest.raises(fmrl.FMRLError, match=why):
            estimate_prior([fmrl.Task(X, y, loss=fmrl.Squared())] * 9)
    with pytest.raises(fmrl.FMRLError, match="too few"):
        estimate_prior(mixed(4, 3, 20)[0])


@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_units_of_columns_change_nothing_but_the_units(family):
    tasks, _, _ = mixed(300, 5, 3)
    units = np.array([1e-3, 1.0, 1e3])
    other = [fmrl.Task(t.X * units, t.open().target[:, 0], loss=fmrl.Squared()) for t in tasks]
    one, two = (estimate_prior(t, family, steps=40, tolerance=0.0) for t in (tasks, other))
    back = two.covariance * units[:, None] * units
    np.testing.assert_allclose(back, one.covariance, rtol=1e-4, atol=1e-6)
    assert abs(one.noise - two.noise) < 1e-4


def test_a_step_that_moves_correlations_alone_is_a_step():
    """It would end the search while they still move."""
    old, eye = Gaussian(np.zeros(2), np.diag([4.0, 1.0]), 1.0), np.eye(2)
    told = Moments(10, 50, np.zeros(2), 10 * eye, 10 * eye, 10 * eye, 50.0)  # rows tell it all
    known = {"tasks": 10, "information": 10 * eye}
    for correlation in (0.0, 0.3, -0.6):
        wide = np.array([[4.0, 2 * correlation], [2 * correlation, 1.0]])
        change = _relative_change(old, Gaussian(np.zeros(2), wide, 1.0, **known), told)
        np.testing.assert_allclose(change, abs(correlation))


def test_a_matrix_on_which_lapack_gives_up_is_taken_in_reverse_order(monkeypatch):
    """As it did on the correlations of 42 columns of houses."""
    A = np.random.default_rng(0).normal(size=(3, 5, 5))
    A, plain, asked = A @ A.mT, np.linalg.eigh, []

    def gives_up(matrix):
        asked.append(matrix)
        if len(asked) == 1:
            raise np.linalg.LinAlgError("Eigenvalues did not converge")
        return plain(matrix)

    monkeypatch.setattr(np.linalg, "eigh", gives_up)
    values, vectors = eigh(A)
    np.testing.assert_allclose(vectors * values[:, None] @ vectors.mT, A, atol=1e-12)
    assert len(asked) == 2


@pytest.mark.parametrize("family", ["isotropic", "diagonal", "full", 2])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_prior_of_tensors_is_that_of_arrays(family, loss):
    """With more rows than parameters, and fewer."""
    torch = pytest.importorskip("torch")
    for rows in (2, 8):
        tasks, *_ = mixed(30, rows, 4, loss=loss)
        rows_of = ((t.X, t.open().target[:, 0], t.loss) for t in tasks)
        same = [fmrl.Task(*map(torch.as_tensor, (X, y)), loss=how) for X, y, how in rows_of]
        found, right = (estimate_prior(some, family, tolerance=1e-8) for some in (same, tasks))
        assert isinstance(found.mean, torch.Tensor)
        np.testing.assert_allclose(found.mean, right.mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.covariance, right.covariance, rtol=1e-4, atol=1e-5)
        assert abs(found.noise - right.noise) < 1e-6
