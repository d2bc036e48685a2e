"""The evidence of a task's rows, by quadrature over the prior, never exceeds −ELBO, nor that the
bound, and the losses of a mixture of priors never exceed theirs.
"""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import fmrl
from fmrl.core.tasks import Tasks
from fmrl.theory.bounds import bayes_mixture, negative_elbo

LOSSES = {
    "squared": fmrl.Squared(), "logistic": fmrl.Logistic(), "one-vs-all": fmrl.OneVsAll(3),
    "softmax": fmrl.Softmax(3),
}  # fmt: skip
PLACES = {1: np.linspace(-14, 14, 2801)[:, None]}
PLACES[2] = np.stack(np.meshgrid(*[np.linspace(-14, 14, 301)] * 2), axis=-1).reshape(-1, 2)


def instance(rng, loss):
    """A task and a prior of rank 1 or 2: mean and rows of any size, labels that fit the rows, that
    contradict them, or that are noise; rows that repeat; columns of 0.
    """
    K, rank = loss.outputs, int(rng.choice([1, 2], p=[0.9, 0.1]))
    features = int(rng.integers(1, 4))
    d = K * features
    rank = min(rank, d)
    R = rng.normal(size=(d, rank)) * 10 ** rng.uniform(-2, 0.5)
    m = int(rng.choice([1, 2, 5, 12]))
    X = rng.normal(size=(m, features)) * 10 ** rng.uniform(-2, 0.4)
    if rng.random() < 0.2:
        X[:] = X[0]
    if rng.random() < 0.1:
        X[:, 0] = 0.0
    theta = R @ rng.normal(size=rank)
    z = X @ theta.reshape(K, features).T
    how = rng.choice(["fits", "against", "noise"])
    if isinstance(loss, fmrl.Squared):
        y = {"fits": z[:, 0], "against": -3 * z[:, 0], "noise": 3 * rng.normal(size=m)}[how]
    elif K == 1:
        y = {"fits": z[:, 0] > 0, "against": z[:, 0] < 0, "noise": rng.random(m) < 0.5}[how]
        y = y.astype(int)
    else:
        best = {"fits": z.argmax(axis=1), "against": z.argmin(axis=1)}
        y = best.get(how, rng.integers(0, K, m))
    noise = 10 ** rng.uniform(-0.5, 1) if isinstance(loss, fmrl.Squared) else 1.0
    prior = fmrl.Gaussian(rng.normal(size=d) * rng.integers(0, 2), R @ R.T, noise)
    return fmrl.Task(X, y, loss=loss), prior


def root(prior):
    """R [d, r] of the prior's covariance, without directions in which tasks agree."""
    values, V = np.linalg.eigh(prior.covariance)
    some = values > 1e-9 * max(values.max(), 1e-300)
    return V[:, some] * np.sqrt(values[some])


def evidence(task, prior):
    """−log Z: of squared losses in closed form, of others on a grid over the coordinates in which
    the prior is N(0, I).
    """
    R, rows = root(prior), task.open()
    if isinstance(task.loss, fmrl.Squared):
        V = task.X @ prior.covariance @ task.X.T + prior.noise * np.eye(len(task.X))
        return -multivariate_normal(task.X @ prior.mean, V).logpdf(rows.target[:, 0])
    u, K = PLACES[R.shape[1]], task.loss.outputs
    theta = prior.mean + u @ R.T
    z = np.einsum("mf,pkf->pmk", task.X, theta.reshape(len(u), K, -1))
    L = task.loss.value(z, rows.target)
    density = np.exp(-(u**2).sum(axis=1) / 2)
    return -logsumexp(-L.sum(axis=1), b=density / density.sum())


@pytest.mark.parametrize("name", LOSSES)
def test_the_evidence_is_bounded_by_minus_elbo_and_that_by_the_bound(name):
    rng, near = np.random.default_rng(0), []
    for _ in range(1000):
        task, prior = instance(rng, LOSSES[name])
        said, elbo, right = (f(task, prior) for f in (bayes_mixture, negative_elbo, evidence))
        room = 1e-7 * (1 + abs(right))
        assert right <= elbo + room and elbo <= said.total + room, (right, elbo, said)
        near.append(said.total - right)
    assert np.quantile(near, 0.1) < 0.05
    if name == "squared":  # an equality
        assert max(near) < 1e-5
    else:
        assert max(near) > 0.1


@pytest.mark.parametrize("name", LOSSES)
def test_every_comparator_in_the_range_of_the_prior_is_covered(name):
    rng = np.random.default_rng(1)
    for _ in range(60):
        task, prior = instance(rng, LOSSES[name])
        R, best = root(prior), prior.adapt(task).mean
        least = bayes_mixture(task, prior).total
        for size in (0.0, 0.1, 2.0):
            theta = best + size * R @ rng.normal(size=R.shape[1])
            assert bayes_mixture(task, prior, theta=theta).total >= least - 1e-6 * (1 + abs(least))
        _, s, V = np.linalg.svd(prior.covariance)
        if s[-1] < 1e-9 * s[0]:
            assert bayes_mixture(task, prior, theta=prior.mean + V[-1]).total == np.inf


def test_a_smaller_curvature_would_be_refuted():
    """The constant is met: with 0.9 of it, the bound falls below the evidence."""
    task = fmrl.Task(np.full((1, 1), 0.05), [1], loss=fmrl.Logistic())
    prior = fmrl.Gaussian(np.zeros(1), np.eye(1))
    said, right = bayes_mixture(task, prior), evidence(task, prior)
    cheaper = said.total - said.terms["directions"] + np.log1p(0.9 * 0.25 * 0.05**2) / 2
    assert said.total >= right > cheaper


@pytest.mark.parametrize("gamma", [0.05, 0.5, 1.0])
def test_a_mixture_of_priors_costs_the_weight_of_the_best(gamma):
    """Predictives of three priors in every round, weighed by their losses so far."""
    rng, near = np.random.default_rng(2), []
    for _ in range(350):
        task, first = instance(rng, fmrl.Logistic())
        d, m = len(first.mean), len(task.X)
        priors = [first]
        while len(priors) < 3:
            _, other = instance(rng, fmrl.Logistic())
            if len(other.mean) == d:
                priors.append(other)
        w = rng.dirichlet(np.full(3, 0.5))
        w = np.maximum(w, 1e-6) / np.maximum(w, 1e-6).sum()
        y = task.open().target[:, 0]
        heads = [fmrl.Task(task.X[:i], y[:i], loss=task.loss) for i in range(1, m + 1)]
        each = np.array([[0.0, *(evidence(head, p) for head in heads)] for p in priors])
        own = np.diff(each, axis=1)  # of every row, under each prior
        share = np.log(w)[:, None] - gamma * each[:, :-1]
        share -= logsumexp(share, axis=0)
        suffered = -logsumexp(share - own, axis=0).sum()
        said = bayes_mixture(task, priors, weights=w, gamma=gamma)
        assert suffered <= said.total + 1e-7 * (1 + suffered), (suffered, said)
        near.append(said.total - suffered)
    assert min(near) < 0.2


def test_what_is_no_log_loss_is_refused():
    prior = fmrl.Gaussian(np.zeros(1), np.eye(1))
    for task in (
        fmrl.Task([[1.0]], [1.0], loss=fmrl.Hinge()),
        fmrl.Task([[1.0]], loss=fmrl.Linear()),
    ):
        with pytest.raises(fmrl.FMRLError, match="no smooth log-loss"):
            bayes_mixture(task, prior)
    with pytest.raises(fmrl.FMRLError, match="rows with weights"):
        heavy = np.array([0.5])
        target, starts = np.ones((1, 1)), np.array([0, 1])
        rows = Tasks(fmrl.Logistic(), np.ones((1, 1)), target, starts, ["a"], heavy, 1.0)
        bayes_mixture(rows.task(0), prior)
    task = fmrl.Task([[1.0]], [1], loss=fmrl.Logistic())
    for wrong in ({"gamma": 0.0}, {"gamma": 2.0}, {"weights": [0.5]}, {"theta": [1.0, 2.0]}):
        with pytest.raises(fmrl.FMRLError):
            bayes_mixture(task, prior, **wrong)
    with pytest.raises(fmrl.FMRLError, match="parameters"):
        negative_elbo(task, fmrl.Gaussian(np.zeros(2), np.eye(2)))


def test_foreign_losses_are_assumed_to_be_log_losses():
    class Mine(fmrl.Logistic):
        pass

    prior, rows = fmrl.Gaussian(np.zeros(1), np.eye(1)), ([[1.0]], [1])
    for loss, open_ in ((fmrl.Logistic(), 1), (Mine(), 2)):
        found = bayes_mixture(fmrl.Task(*rows, loss=loss), prior).assumptions
        assert [a.status for a in found] == ["assumed"] * open_


@pytest.mark.parametrize("name", LOSSES)
def test_a_prior_that_knows_every_task_costs_what_its_model_does(name):
    loss = LOSSES[name]
    X, y = np.random.default_rng(0).normal(size=(6, 2)), [0, 1, 0, 1, 1, 0]
    task, d = fmrl.Task(X, y, loss=loss), 2 * loss.outputs
    prior = fmrl.Gaussian(np.full(d, 0.3), np.zeros((d, d)))
    said = bayes_mixture(task, prior)
    assert said.terms["distance"] == said.terms["directions"] == 0
    assert negative_elbo(task, prior) == pytest.approx(said.total)
    assert bayes_mixture(task, prior, theta=np.ones(d)).total == np.inf
