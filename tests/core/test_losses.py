"""Losses against finite differences, numerical suprema and their own constants."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import BOUNDED, LOSSES, make_data, make_domain, make_loss, points, seeds

import fmrl

SMOOTH = tuple(kind for kind in LOSSES if kind != "hinge")


def drawn(kind, seed, scale=3.0, count=20):
    """Margins [count, outputs] and targets of random labels."""
    rng, loss = np.random.default_rng(seed), make_loss(kind)
    X, y = make_data(loss, count, 2, rng)
    return rng, loss, scale * rng.normal(size=(count, loss.outputs)), loss.encode(y, X)


@pytest.mark.parametrize("kind", LOSSES)
@given(seed=seeds)
def test_slope(kind, seed):
    rng, loss, z, target = drawn(kind, seed)
    way, h = rng.normal(size=z.shape), 1e-6
    rise = (loss.value(z + h * way, target) - loss.value(z - h * way, target)) / (2 * h)
    away = np.abs(1 - (target * z)[:, 0]) > 1e-4 if kind == "hinge" else np.ones(len(z), bool)
    np.testing.assert_allclose(
        np.sum(loss.slope(z, target) * way, axis=-1)[away], rise[away], atol=1e-7
    )


@pytest.mark.parametrize("kind", LOSSES)
@given(seed=seeds)
def test_slope_is_a_subgradient(kind, seed):
    rng, loss, z, target = drawn(kind, seed)
    z[0] = target[0]  # the hinge's corner
    other = z + 3 * rng.normal(size=z.shape)
    below = loss.value(z, target) + np.sum(loss.slope(z, target) * (other - z), axis=-1)
    assert np.all(loss.value(other, target) >= below - 1e-12)


@pytest.mark.parametrize("kind", SMOOTH)
@given(seed=seeds)
def test_curvature(kind, seed):
    _, loss, z, target = drawn(kind, seed)
    h, eye = 1e-5, np.eye(loss.outputs)
    columns = [
        (loss.slope(z + h * e, target) - loss.slope(z - h * e, target)) / (2 * h) for e in eye
    ]
    numeric, found = np.stack(columns, axis=-1), loss.curvature(z, target)
    found = found if loss.coupled else found[..., None] * eye
    np.testing.assert_allclose(found, numeric, atol=1e-8)


@pytest.mark.parametrize("kind", SMOOTH)
@given(seed=seeds)
def test_bend_is_never_exceeded(kind, seed):
    _, loss, z, target = drawn(kind, seed)
    found = loss.curvature(z, target)
    largest = np.linalg.eigvalsh(found)[..., -1] if loss.coupled else found.max(axis=-1)
    assert np.all(largest <= loss.bend + 1e-12)


def test_bend_is_attained():
    assert fmrl.Logistic().curvature(np.zeros(1), np.ones(1)) == fmrl.Logistic.bend
    assert np.linalg.eigvalsh(fmrl.Softmax(2).curvature(np.zeros(2), np.eye(2)[0]))[
        -1
    ] == pytest.approx(fmrl.Softmax.bend)


@pytest.mark.parametrize("kind", [k for k in LOSSES if k != "squared"])
@given(seed=seeds, scale=st.sampled_from([0.1, 3.0, 50.0]))
def test_steep_is_never_exceeded(kind, seed, scale):
    _, loss, z, target = drawn(kind, seed, scale)
    slope = loss.slope(z, target)
    assert np.all(np.linalg.norm(slope, axis=-1) <= loss.steep("l2") + 1e-12)
    assert np.all(np.abs(slope) <= loss.steep("l1") + 1e-12)


@pytest.mark.parametrize("kind", ["one-vs-all", "softmax", "logistic", "hinge"])
def test_steep_is_approached(kind):
    """The constant is not only safe but the best there is."""
    loss = make_loss(kind)
    target = loss.encode([0], np.zeros((1, 1)))[0]
    far = np.full(loss.outputs, 40.0)
    worst = np.where(target == target.max(), -far, far)
    worst = np.array([-40.0, 40.0, -40.0]) if kind == "softmax" else worst
    if kind in ("logistic", "hinge"):
        worst = far
    assert np.linalg.norm(loss.slope(worst, target)) == pytest.approx(loss.steep("l2"))
    assert np.abs(loss.slope(worst, target)).max() == pytest.approx(loss.steep("l1"))


def _sup(loss, u, target):
    """sup_z ⟨u, z⟩ − ℓ(z) by gradient ascent from many starts, with the step 1/bend."""
    z = np.random.default_rng(0).normal(size=(30, loss.outputs))
    for _ in range(4000):
        z = z + (u - loss.slope(z, target)) / loss.bend
    return np.max(z @ u - loss.value(z, np.broadcast_to(target, z.shape)))


@pytest.mark.parametrize("kind", ["one-vs-all", "softmax", "logistic", "squared"])
@pytest.mark.parametrize("seed", range(4))
def test_conjugate_is_the_supremum(kind, seed):
    _, loss, z, target = drawn(kind, seed, scale=1.0, count=1)
    u = loss.slope(z, target)[0]  # a slope that occurs, where the supremum is attained
    assert loss.conjugate(u, target[0]) == pytest.approx(_sup(loss, u, target[0]), abs=1e-7)


@given(alpha=st.floats(-0.5, 1.5), sign=st.sampled_from([-1.0, 1.0]))
def test_conjugate_of_the_hinge(alpha, sign):
    grid = np.linspace(-1e3, 1e3, 200_001)[:, None]
    value = np.max(-alpha * sign * grid[:, 0] - fmrl.Hinge().value(grid, np.array([sign])))
    found = fmrl.Hinge().conjugate(np.array([-alpha * sign]), np.array([sign]))
    if 0 <= alpha <= 1:
        assert found == pytest.approx(value, abs=1e-9)
    else:
        assert found == math.inf  # and the grid's value grows with the grid
        assert alpha > 1.499 or alpha < -0.499 or value > -alpha


@pytest.mark.parametrize("kind", LOSSES)
@given(seed=seeds)
def test_fenchel_inequality(kind, seed):
    """ℓ(z) + ℓ*(u) ≥ ⟨u, z⟩, with equality at the slope: what the duality gap stands on."""
    rng, loss, z, target = drawn(kind, seed)
    u = loss.slope(z, target)
    other = loss.slope(z + rng.normal(size=z.shape), target)
    equal = loss.value(z, target) + loss.conjugate(u, target) - np.sum(u * z, axis=-1)
    np.testing.assert_allclose(equal, 0, atol=1e-10)
    assert np.all(
        loss.value(z, target) + loss.conjugate(other, target) - np.sum(other * z, axis=-1) >= -1e-10
    )


@pytest.mark.parametrize("kind", ["one-vs-all", "softmax", "logistic"])
def test_conjugate_is_infinite_outside_its_domain(kind):
    loss = make_loss(kind)
    target = loss.encode([0], np.zeros((1, 1)))[0]
    assert loss.conjugate(np.full(loss.outputs, 1.5), target) == math.inf
    assert loss.conjugate(np.full(loss.outputs, -1.5), target) == math.inf


@pytest.mark.parametrize("kind", LOSSES)
def test_far_margins_neither_overflow_nor_lose_the_value(kind):
    loss = make_loss(kind)
    target = loss.encode(None if kind == "linear" else [1], np.zeros((1, 1)))[0]
    for size in (1e3, -1e3):
        z = size * (2 * target - 1) if kind != "hinge" else size * target
        assert np.isfinite(loss.value(z, target)) and np.all(np.isfinite(loss.slope(z, target)))
        assert np.all(np.isfinite(loss.curvature(z, target)))
    if kind in ("one-vs-all", "logistic"):
        assert loss.value(-1e3 * (2 * target - 1), target) == pytest.approx(1e3 * loss.outputs)


@pytest.mark.parametrize("domain_kind", BOUNDED)
@pytest.mark.parametrize("kind", LOSSES)
@given(seed=seeds)
def test_lipschitz_constant_of_a_task(domain_kind, kind, seed):
    """G_t² ≥ mean over the rounds of the squared dual norm of any gradient on the domain."""
    rng, loss = np.random.default_rng(seed), make_loss(kind)
    game = fmrl.Task(*make_data(loss, 5, 3, rng), loss=loss).open()
    domain = make_domain(domain_kind, game.dim, rng)
    squares = np.zeros(5)
    for theta in points(domain, game.dim, rng, 40, edge=True):
        norms = [domain.dual(game.reveal(i, theta)[1]) for i in range(5)]
        squares = np.maximum(squares, np.square(norms))
    G = game.lipschitz(domain)
    assert squares.mean() <= G**2 * (1 + 1e-12)
    if kind == "linear":
        assert squares.mean() == pytest.approx(G**2)


@pytest.mark.parametrize("kind", SMOOTH)
@given(seed=seeds)
def test_smoothness_constant_of_a_task(kind, seed):
    rng, loss = np.random.default_rng(seed), make_loss(kind)
    game = fmrl.Task(*make_data(loss, 6, 3, rng), loss=loss).open()
    a, b = rng.normal(size=(2, game.dim))
    total = [game.gather(loss.slope(game.margins(t), game.target)) for t in (a, b)]
    for domain, order in ((fmrl.Ball(1.0), 2), (fmrl.Simplex(), 1)):
        change, step = domain.dual(total[0] - total[1]), np.linalg.norm(a - b, order)
        assert change <= game.smoothness(domain) * step * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("kind", LOSSES)
@given(seed=seeds)
def test_reveal_is_loss_and_gradient_of_the_round(kind, seed):
    rng, loss = np.random.default_rng(seed), make_loss(kind)
    X, y = make_data(loss, 4, 3, rng)
    game = fmrl.Task(X, y, loss=loss).open()
    theta, target = rng.normal(size=game.dim), loss.encode(y, X)
    for i in range(4):
        value, gradient = game.reveal(i, theta)
        z = theta.reshape(loss.outputs, 3) @ X[i]
        assert value == pytest.approx(float(loss.value(z, target[i])))
        np.testing.assert_allclose(gradient, np.outer(loss.slope(z, target[i]), X[i]).ravel())
        assert value == pytest.approx(game.losses(theta)[i])


LABELS = {
    "strings": ["cat", "dog", "cow"],
    "numbers": [10, -3, 7],
    "floats": [0.5, 1.5, 2.5],
    "booleans and none": [True, False, None],
    "tuples": [("a", 1), ("a", 2), ("b", 1)],
    "mixed": ["a", 1, None],
    "numbers and their names": [1, "1", 2],
    "sets": [frozenset({1}), frozenset({1, 2}), frozenset()],
    "fractions": [Fraction(1, 3), Fraction(1, 2), Fraction(1)],
    "bytes": [b"a", b"b", b"c"],
    "ranges": [range(1), range(2), range(3)],
}


@pytest.mark.parametrize("kind", [fmrl.OneVsAll, fmrl.Softmax])
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_of_any_hashable_kind_go_in_and_come_back(kind, labels):
    loss = kind(labels)
    index = [2, 0, 1, 1]
    task = fmrl.Task(np.eye(4), [labels[i] for i in index], loss=loss)
    np.testing.assert_array_equal(task.open().target, np.eye(3)[index])
    assert list(loss.decode(task.open().target)) == [labels[i] for i in index]
    assert hash(loss) == hash(kind(labels)) and loss == kind(tuple(labels))


@pytest.mark.parametrize("kind", [fmrl.Logistic, fmrl.Hinge])
@pytest.mark.parametrize("labels", [v[:2] for v in LABELS.values()], ids=LABELS)
def test_two_labels_of_any_hashable_kind(kind, labels):
    loss = kind(tuple(labels))
    task = fmrl.Task(np.eye(3), [labels[1], labels[0], labels[1]], loss=loss)
    assert list(task.open().target[:, 0] > 0) == [True, False, True]
    assert list(loss.decode(np.array([[0.3], [-0.3], [2.0]]))) == [labels[1], labels[0], labels[1]]


@pytest.mark.parametrize(
    "y",
    [[0, 1, 1], [-1, 1, 1], [False, True, True], np.array([0, 1, 1], np.uint8), [0.0, 1.0, 1.0]],
)
@pytest.mark.parametrize("kind", [fmrl.Logistic, fmrl.Hinge])
def test_binary_labels_need_no_names(kind, y):
    target = fmrl.Task(np.eye(3), y, loss=kind()).open().target[:, 0]
    assert list(target > 0.5) == [False, True, True]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: fmrl.OneVsAll("abc"),
        lambda: fmrl.OneVsAll(0),
        lambda: fmrl.OneVsAll(["a", "a"]),
        lambda: fmrl.Softmax(True),
        lambda: fmrl.Logistic(("a", "b", "c")),
        lambda: fmrl.Hinge(("a",)),
    ],
)
def test_impossible_classes(bad):
    with pytest.raises(fmrl.FMRLError, match=r"classes|label"):
        bad()


def test_the_first_rounds_count_themselves():
    rng = np.random.default_rng(0)
    tasks = [fmrl.Task(rng.normal(size=(m, 2)), rng.normal(size=m), loss=fmrl.Squared())
             for m in (6, 3)]  # fmt: skip
    assert tasks[0].open().first(2).rounds == 2
    some, domain = fmrl.stack(tasks).first(4), fmrl.Ball(1.0)
    assert some.rounds.tolist() == [4, 3]
    first = fmrl.Task(tasks[0].X[:4], tasks[0].open().target[:4, 0], loss=fmrl.Squared()).open()
    np.testing.assert_allclose(some.lipschitz(domain)[0], first.lipschitz(domain))
