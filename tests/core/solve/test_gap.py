"""The gap is true on every domain and at every scale; where there is none, the solver says so."""

import math
import operator
from fractions import Fraction

import array_api_strict
import numpy as np
import precise
import pytest
import torch
from instances import make_data, make_domain, make_loss, points

import fmrl
from fmrl.core.solve import Solution, minimise
from fmrl.core.solve.gap import Columns, Objective
from fmrl.core.solve.unbounded import ranks


def least_squares(X, y) -> Fraction:
    """min ½‖Xθ − y‖² in rational arithmetic (X of full column rank)."""
    X = [[Fraction(float(a)) for a in row] for row in X]
    y, f = [Fraction(float(b)) for b in y], len(X[0])
    rows = [
        [sum(r[i] * r[j] for r in X) for j in range(f)]
        + [sum(r[i] * b for r, b in zip(X, y, strict=True))]
        for i in range(f)
    ]
    for i in range(f):
        rows[i] = [a / rows[i][i] for a in rows[i]]
        for j in range(f):
            if j != i:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    residual = [sum(a * rows[j][f] for j, a in enumerate(r)) - b for r, b in zip(X, y, strict=True)]
    return sum(r * r for r in residual) / 2


WILD = np.array([[1e10, 1], [-1e10, 1], [2e10, -1], [1e10, 3]])


@pytest.mark.parametrize("scale", [1e-10, 1e-5, 1.0, 1e5, 1e15])
@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_least_squares_without_bounds_at_any_scale_of_a_column(scale, shift):
    """Columns of sizes 1e10 and 1: the minimum is 0 for y = the second column, not 5.93."""
    X = WILD * [scale, 1.0]
    y = X[:, 1] + shift * np.array([1.0, -2.0, 0.5, 1.0])
    found = minimise(fmrl.Task(X, y, loss=fmrl.Squared()).open(), fmrl.Euclidean())
    exact = float(least_squares(X, y))
    assert found.value - found.gap <= exact * (1 + 1e-12)
    assert exact <= found.value * (1 + 1e-12) + 1e-28
    assert found.gap <= max(1e-10 * exact, 1e-13 * (y @ y) / 2) and found.why.endswith("proved")


@pytest.mark.parametrize("seed", range(20))
def test_the_interval_holds_the_exact_minimum(seed):
    """Random least squares without bounds, columns over twelve decades, in rational arithmetic."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(7, 3)) * 10.0 ** rng.uniform(-6, 6, 3)
    if seed % 2:  # nearly dependent
        X[:, 2] = X[:, 1] + 1e-7 * np.abs(X[:, 1]).max() * rng.normal(size=7)
    y = rng.normal(size=7)
    found = minimise(fmrl.Task(X, y, loss=fmrl.Squared()).open(), fmrl.Euclidean())
    exact = least_squares(X, y)
    assert Fraction(float(found.value)) - Fraction(float(found.gap)) <= exact <= found.value
    assert found.gap <= 1e-6 * found.value and found.why.split(": ")[1] in ("proved", "rounding")


def test_a_regression_is_never_called_separable():
    """Dependent columns and no noise: an honest answer, not an error about classes."""
    X, y = np.array([[1e10, 1e10 + 2e-6], [1e10, 1e10], [3.0, 3.0]]), [1.0, 2.0, 3.0]
    found = minimise(fmrl.Task(X, y, loss=fmrl.Squared()).open(), fmrl.Euclidean())
    exact, at = least_squares(X, y), [Fraction(float(a)) for a in found.theta]
    rows = [[Fraction(float(a)) for a in row] for row in X]
    errors = [sum(map(operator.mul, row, at)) - Fraction(b) for row, b in zip(rows, y, strict=True)]
    true = sum(e * e for e in errors) / 2
    assert exact <= true <= Fraction(float(found.value))
    assert Fraction(float(found.value)) - Fraction(float(found.gap)) <= exact


@pytest.mark.parametrize("kind", ["logistic", "one-vs-all", "softmax", "squared", "hinge"])
@pytest.mark.parametrize(
    "domain_kind", ["ball", "shifted ball", "box", "simplex", "floored simplex", "euclidean"]
)
@pytest.mark.parametrize("size", [1e20, 1e300])
def test_huge_features_are_refused_or_solved_honestly(domain_kind, kind, size):
    rng, loss = np.random.default_rng(0), make_loss(kind)
    X, y = make_data(loss, 5, 3, rng)
    game = fmrl.Task(size * X, y, loss=loss).open()
    domain = make_domain(domain_kind, game.dim, rng)
    phi, others = points(domain, game.dim, rng)[0], points(domain, game.dim, rng, 20)
    for given in ((), (phi, np.asarray(0.3))):
        if size > 1e30:
            with pytest.raises(fmrl.FMRLError, match=r"above 1e\+30 are too large for the solver"):
                minimise(game, domain, *given)
            continue
        if not (given or loss.attained or domain_kind != "euclidean"):
            with pytest.raises(fmrl.FMRLError, match="no finite optimum"):
                minimise(game, domain, *given)
            continue
        with np.errstate(all="ignore"):
            found = minimise(game, domain, *given)
        assert domain.contains(found.theta) and found.gap >= 0
        assert found.gap < math.inf or found.why.endswith("no proof")
        for other in (*others, phi, domain.middle(phi), found.theta):
            with np.errstate(over="ignore"):
                value = game.losses(other).sum()
            value += float(domain.divergence(other, phi)) / 0.3 if given else 0.0
            assert not found.value - found.gap > value * (1 + 1e-9) + 1e-9


def test_columns_that_only_look_dependent_prove_nothing():
    """In float64 the third column is the sum of the others; in rational numbers it is not, and an
    action of size 1e15 fits y. A gap below that would be a lie.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5, 3))
    X[:, 2] = X[:, 0] + 1e-9 * X[:, 1]
    y = rng.normal(size=5)
    task = fmrl.Task(X, y, loss=fmrl.Squared())
    found = minimise(task, fmrl.Euclidean())
    exact = least_squares(X, y)
    assert 0 <= Fraction(float(found.value)) - exact <= Fraction(float(found.gap))
    assert found.why == "majorise: no proof" and found.gap == found.value
    bounded = minimise(task, fmrl.Ball(10.0))
    assert bounded.why.endswith("proved")


@pytest.mark.parametrize("kind", ["logistic", "one-vs-all", "softmax", "squared", "hinge"])
def test_columns_that_are_dependent_are_counted_exactly(kind):
    """One-hot columns beside a constant: the gap is proved, because the rank is known exactly."""
    rng, loss = np.random.default_rng(0), make_loss(kind)
    level = np.arange(24) % 3
    X = np.column_stack([np.eye(3)[level], np.ones(24), 0.1 * rng.normal(size=24).round(1)])
    y = rng.normal(size=24) if kind == "squared" else np.arange(24) // 3 % max(2, loss.outputs)
    found = minimise(fmrl.Task(X, y, loss=loss), fmrl.Euclidean())
    assert found.why.endswith("proved") and found.gap <= 1e-10 * found.value


def test_ranks_are_exact():
    """Sums of columns in float64, whose last digits differ, and columns of any size."""
    rng = np.random.default_rng(0)
    whole = rng.integers(-9, 10, size=(50, 6, 4)).astype(float)
    whole[:25, :, 3] = whole[:25, :, 0] - 3 * whole[:25, :, 1]
    whole[:10, :, 2] = 0
    scale = 2.0 ** rng.integers(-900, 900, size=(50, 1, 4))
    assert ranks(whole).tolist() == [2] * 10 + [3] * 15 + [4] * 25
    assert (ranks(whole * scale) == ranks(whole)).all()
    X = rng.normal(size=(20, 6, 3))
    X[..., 2] = X[..., 0] + X[..., 1]  # rounded
    assert (ranks(X) == 3).all() and (ranks(np.swapaxes(X, 1, 2)) == 3).all()


@pytest.mark.parametrize("seed", [214, 256, 300, 302, *range(6)])
def test_no_better_action_in_60_digits(seed):
    """The first four were lies once; benchmarks/soak has ten thousand."""
    assert precise.check(seed) is None


def test_columns_are_measured_and_spanned():
    """Independent columns get units, powers of two; dependent ones keep theirs."""
    X = np.stack([np.array([[1e8, 1.0], [0.0, 1.0], [1e8, 3.0]]), np.outer([1.0, 2, 3], [1.0, 4])])
    size, unit, span, inverse = Columns.of(X)
    assert np.all(np.log2(unit) == np.round(np.log2(unit))) and np.all(unit[1] == 1)
    np.testing.assert_allclose(inverse[0], np.linalg.pinv(X[0] / unit[0]), atol=1e-12)
    np.testing.assert_allclose(X[1] @ inverse[1] @ X[1], X[1], atol=1e-12)
    for one, basis, scale in zip(X, span, size, strict=True):
        np.testing.assert_allclose(basis @ (basis.T @ one / scale), one / scale, atol=1e-12)


@pytest.mark.parametrize("kind", ["logistic", "squared", "hinge"])
def test_any_slopes_prove_a_lower_bound(kind):
    """Weak duality: with slopes of other actions the gap is larger, and still true."""
    rng, loss = np.random.default_rng(1), make_loss(kind)
    X, y = make_data(loss, 6, 3, rng)
    problem = Objective(fmrl.stack([fmrl.Task(X, y, loss=loss)] * 30), fmrl.Ball(1.5))
    best = minimise(fmrl.Task(X, y, loss=loss).open(), fmrl.Ball(1.5)).value
    theta, other = (points(fmrl.Ball(1.5), 3, rng, 30) for _ in range(2))
    z, u = (problem.samples.margins(a) for a in (theta, other))
    gap = problem.gap(theta, z, loss.slope(u, problem.samples.target))
    assert np.all(problem.value(theta, z) - gap <= best * (1 + 1e-12))


@pytest.mark.parametrize("kind", ["logistic", "softmax", "squared", "hinge"])
@pytest.mark.parametrize(
    "asarray", [array_api_strict.asarray, torch.asarray], ids=["strict", "torch"]
)
def test_other_arrays_end_the_same_way_without_bounds(kind, asarray):
    rng, loss = np.random.default_rng(0), make_loss(kind)
    X = np.concatenate([rng.normal(size=(6, 2))] * 3)
    y = np.repeat([0.0, 0.5, 2.0] if kind == "squared" else [0, 1, max(0, loss.outputs - 1)], 6)
    plain = minimise(fmrl.Task(X, y, loss=loss).open(), fmrl.Euclidean())
    found = minimise(fmrl.Task(asarray(X), asarray(y), loss=loss).open(), fmrl.Euclidean())
    np.testing.assert_allclose(np.asarray(found.theta), plain.theta, atol=1e-7)
    assert found.why == plain.why
    hard = np.array([[1e10, 1e10 + 2e-6], [1e10, 1e10], [3.0, 3.0]])
    rows = fmrl.Task(asarray(hard), asarray(np.ones(3)), loss=fmrl.Squared()).open()
    assert minimise(rows, fmrl.Euclidean()).why.endswith("no proof")


def test_a_solution_says_how_it_ended():
    rng = np.random.default_rng(0)
    tasks = [fmrl.Task(rng.normal(size=(4, 2)), [0, 1, 1, 0], loss=fmrl.Hinge()) for _ in range(2)]
    found = minimise(fmrl.stack(tasks), fmrl.Box(-1.0, 1.0))
    assert found.ended.shape == found.value.shape and len(found.why) == 2
    assert all(why.split(": ")[0] in ("interior", "least divergence") for why in found.why)
    one = Solution(*(a[1] for a in found))
    assert one.why == found.why[1] and Solution(*found[:3]).why == "given"
