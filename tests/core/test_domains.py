"""Domain primitives against brute force: no feasible point drawn at random may do better."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import BOUNDED, DOMAINS, L2, make_domain, points, seeds

import fmrl

dims = st.integers(1, 6)


def setting(kind, dim, seed):
    rng = np.random.default_rng(seed)
    domain = make_domain(kind, dim, rng)
    phi, others = points(domain, dim, rng)[0], points(domain, dim, rng, 400, kind != "euclidean")
    return rng, domain, phi, others


def bregman(domain, theta, phi):
    """B_R from R and its gradient, by the definition."""
    if isinstance(domain, fmrl.Simplex):

        def R(x):
            return np.sum(np.where(x > 0, x * np.log(np.where(x > 0, x, 1.0)), 0.0), axis=-1)

        slope = np.log(phi) + 1
    else:

        def R(x):
            return np.sum(x * x, axis=-1) / 2

        slope = phi
    return R(theta) - R(phi) - np.sum(slope * (theta - phi), axis=-1)


@pytest.mark.parametrize("kind", DOMAINS)
@given(dim=dims, seed=seeds)
def test_divergence_is_the_bregman_divergence_of_r(kind, dim, seed):
    _, domain, phi, feasible = setting(kind, dim, seed)
    np.testing.assert_allclose(
        domain.divergence(feasible, phi), bregman(domain, feasible, phi), atol=1e-12
    )
    assert domain.divergence(phi, phi) == 0
    assert np.all(domain.divergence(feasible, phi) >= 0)
    h = 1e-6
    for j in range(dim):
        e = np.eye(dim)[j] * h
        slope = (domain.mirror(phi + e) - domain.mirror(phi - e))[j] / (2 * h)
        assert slope == pytest.approx(domain.metric(phi)[j], rel=1e-4)


@pytest.mark.parametrize("kind", DOMAINS)
@given(dim=dims, seed=seeds)
def test_strongly_convex_in_the_norm_of_the_domain(kind, dim, seed):
    _, domain, phi, feasible = setting(kind, dim, seed)
    order = {"l1": 1, "l2": 2}[domain.norm]
    distance = np.linalg.norm(feasible - phi, ord=order, axis=-1)
    assert np.all(domain.divergence(feasible, phi) >= distance**2 / 2 - 1e-12)


@pytest.mark.parametrize("kind", DOMAINS)
@given(dim=dims, seed=seeds, scale=st.sampled_from([0.0, 0.1, 1.0, 30.0]))
def test_argmin(kind, dim, seed, scale):
    rng, domain, phi, feasible = setting(kind, dim, seed)
    z = scale * rng.normal(size=dim)
    found = domain.argmin(phi, z)
    assert domain.contains(found, slack=1e-12)
    value = domain.divergence(found, phi) + found @ z
    near = np.clip(1 - rng.random((400, 1)) ** 3, 0, 1) * (feasible - found) * 0.1 + found
    for others in (feasible, near):
        assert np.all(bregman(domain, others, phi) + others @ z >= value - 1e-10 * (1 + scale))
    if scale == 0:
        np.testing.assert_allclose(found, phi, atol=1e-14)


@pytest.mark.parametrize("kind", DOMAINS)
@given(dim=dims, seed=seeds)
def test_project(kind, dim, seed):
    rng, domain, phi, feasible = setting(kind, dim, seed)
    raw = rng.exponential(size=dim) + 1e-6 if "simplex" in kind else 3 * rng.normal(size=dim)
    found = domain.project(raw)
    assert domain.contains(found, slack=1e-12)
    nearest = raw / raw.sum() if "simplex" in kind else raw
    value = bregman(domain, found, nearest)
    near = found + 0.05 * (feasible - found)
    for others in (feasible, near):
        assert np.all(bregman(domain, others, nearest) >= value - 1e-12)
    np.testing.assert_allclose(domain.project(phi), phi, atol=1e-14)
    np.testing.assert_allclose(domain.project(found), found, atol=1e-14)


@given(dim=st.integers(2, 8), seed=seeds)
def test_simplex_floor_projection_agrees_with_bisection(dim, seed):
    rng = np.random.default_rng(seed)
    domain = make_domain("floored simplex", dim, rng)
    raw = rng.exponential(size=dim) ** 4 + 1e-9
    low, high = 0.0, 1 / raw.max()
    while np.maximum(domain.floor, high * raw).sum() < 1:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if np.maximum(domain.floor, middle * raw).sum() < 1 else (low, middle)
        )
    np.testing.assert_allclose(
        domain.project(raw), np.maximum(domain.floor, high * raw), atol=1e-12
    )


@pytest.mark.parametrize("kind", BOUNDED)
@given(dim=dims, seed=seeds)
def test_lowest(kind, dim, seed):
    rng, domain, _, feasible = setting(kind, dim, seed)
    z = rng.normal(size=dim)
    found = domain.lowest(z)
    assert domain.contains(found, slack=1e-12)
    assert np.all(feasible @ z >= found @ z - 1e-12)


@pytest.mark.parametrize("kind", BOUNDED)
@given(dim=st.integers(2, 6), seed=seeds, zeros=st.booleans())
def test_lowest_of_several_is_the_one_of_least_norm(kind, dim, seed, zeros):
    """With ties (equal costs on the simplex, zero costs elsewhere) all other answers are longer."""
    rng, domain, _, feasible = setting(kind, dim, seed)
    z = np.where(
        np.arange(dim) < dim // 2 + 1, 0.0, 0.0 if zeros else rng.uniform(0.5, 1, size=dim)
    )
    found = domain.lowest(z)
    if zeros:
        ties = feasible
    else:  # move feasible points onto the face of minimisers by moving the costed coordinates there
        ties = np.where(z > 0, found, feasible)
        if "simplex" in kind:
            free = z == 0
            ties = ties[ties[:, free].sum(axis=1) > 0]
            ties[:, free] *= (1 - found[~free].sum()) / ties[:, free].sum(axis=1, keepdims=True)
        ties = ties[domain.contains(ties, slack=0.0)]
    assert np.all(np.linalg.norm(ties, axis=1) >= np.linalg.norm(found) - 1e-12)


@pytest.mark.parametrize("kind", BOUNDED)
@given(dim=dims, seed=seeds)
def test_reach_is_attained_and_never_exceeded(kind, dim, seed):
    _, domain, phi, feasible = setting(kind, dim, seed)
    reach = domain.reach(phi)
    assert np.all(np.sqrt(bregman(domain, feasible, phi).clip(0)) <= reach * (1 + 1e-12) + 1e-12)
    if "ball" in kind:
        offset = phi - domain.centre
        furthest = [domain.centre - domain.radius * offset / np.linalg.norm(offset)]
    elif "box" in kind:
        low, high = np.broadcast_to(domain.low, dim), np.broadcast_to(domain.high, dim)
        furthest = [np.where(phi - low > high - phi, low, high)]
    else:
        furthest = domain.floor + (1 - dim * domain.floor) * np.eye(dim)
    assert max(math.sqrt(max(bregman(domain, x, phi), 0)) for x in furthest) == pytest.approx(
        reach, abs=1e-7
    )


@pytest.mark.parametrize("kind", BOUNDED)
@given(dim=st.integers(2, 6), seed=seeds)
def test_diameter_is_the_largest_reach(kind, dim, seed):
    _, domain, _, feasible = setting(kind, dim, seed)
    diameter = domain.diameter(dim)
    if kind == "simplex":
        assert diameter == math.inf
        return
    reaches = domain.reach(feasible)
    assert np.all(reaches <= diameter * (1 + 1e-12))
    corner = {
        "ball": lambda: domain.centre + domain.radius * np.eye(dim)[0],
        "box": lambda: np.broadcast_to(domain.low, dim),
    }
    furthest = corner.get(kind.split()[-1], lambda: domain.lowest(np.arange(dim) * 1.0))()
    assert domain.reach(np.array(furthest)) == pytest.approx(diameter, rel=1e-12)


@pytest.mark.parametrize("kind", DOMAINS)
@given(dim=dims, seed=seeds)
def test_dual_norm(kind, dim, seed):
    """sup of ⟨g, x⟩ over the unit ball of the domain's norm: attained, and never exceeded."""
    rng, domain, _, _ = setting(kind, dim, seed)
    g, x = rng.normal(size=dim), rng.normal(size=(300, dim))
    x /= np.linalg.norm(x, ord={"l1": 1, "l2": 2}[domain.norm], axis=1, keepdims=True)
    best = g / np.linalg.norm(g)
    if domain.norm == "l1":
        best = np.eye(dim)[np.argmax(abs(g))] * np.sign(g)
    assert np.all(x @ g <= domain.dual(g) + 1e-12)
    assert best @ g == pytest.approx(domain.dual(g))


@pytest.mark.parametrize("kind", DOMAINS)
@given(dim=dims, seed=seeds)
def test_contains_and_middle(kind, dim, seed):
    rng, domain, phi, feasible = setting(kind, dim, seed)
    assert np.all(domain.contains(feasible))
    middle = domain.middle(np.zeros((3, dim)))
    assert middle.shape == (3, dim) and np.all(domain.contains(middle, slack=1e-12))
    assert np.all(domain.slack(middle) > 0)
    if kind != "euclidean" and not ("simplex" in kind and dim == 1):
        outside = phi + 10 * (1 + np.abs(rng.normal(size=dim)))
        assert not domain.contains(outside)
    assert not domain.contains(phi + math.nan)


@pytest.mark.parametrize("kind", DOMAINS)
@given(dim=dims, seed=seeds)
def test_constraints_of_the_interior(kind, dim, seed):
    """slack, pull and push belong together: pull is the gradient of ⟨w, slack⟩, push its adjoint on
    linear constraints.
    """
    rng, domain, phi, feasible = setting(kind, dim, seed)
    assert np.all(domain.slack(feasible) >= -1e-12)
    weight, step = rng.random(domain.slack(phi).shape), 1e-6 * rng.normal(size=dim)
    rise = np.sum(weight * (domain.slack(phi + step) - domain.slack(phi - step))) / 2
    assert np.sum(domain.pull(phi, weight) * step) == pytest.approx(rise, abs=1e-12)
    border = domain.border(phi)
    if border is None or border[0] != "curved":
        np.testing.assert_allclose(
            domain.push(step), domain.slack(phi + step) - domain.slack(phi), atol=1e-14
        )


@pytest.mark.parametrize("kind", DOMAINS)
def test_leading_axes_are_batches(kind):
    rng, domain, _, _ = setting(kind, 4, 5)
    phi, z = points(domain, 4, rng, 6).reshape(2, 3, 4), rng.normal(size=(2, 3, 4))
    raw = np.exp(z)
    names = ["argmin", "divergence"]
    names += [] if kind == "euclidean" else ["lowest", "reach", "project"]
    for name in names:
        given = {"argmin": (phi, z), "divergence": (phi, phi[:1, :1]), "lowest": (z,)}
        arguments = (given | {"reach": (phi,), "project": (raw,)})[name]
        whole = getattr(domain, name)(*arguments)
        for i, j in np.ndindex(2, 3):
            one = [a[i, j] if a.shape == (2, 3, 4) else a[0, 0] for a in arguments]
            np.testing.assert_allclose(whole[i, j], getattr(domain, name)(*one), atol=1e-15)


@pytest.mark.parametrize("kind", L2)
def test_euclidean_regulariser(kind):
    assert make_domain(kind, 3, np.random.default_rng(0)).norm == "l2"


def test_unbounded_domain_says_so():
    with pytest.raises(fmrl.FMRLError, match="bounded domain"):
        fmrl.Euclidean().lowest(np.ones(2))
    assert fmrl.Euclidean().reach(np.ones(2)) == math.inf == fmrl.Euclidean().diameter(2)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: fmrl.Ball(0.0),
        lambda: fmrl.Ball(-1.0),
        lambda: fmrl.Ball(math.inf),
        lambda: fmrl.Ball(math.nan),
        lambda: fmrl.Ball(1.0, [math.nan]),
        lambda: fmrl.Ball(1.0, np.zeros((2, 2))),
        lambda: fmrl.Box(1.0, 1.0),
        lambda: fmrl.Box([0.0, 1.0], [1.0, 1.0]),
        lambda: fmrl.Box([0.0, 1.0], [1.0, 2.0, 3.0]),
        lambda: fmrl.Box(0.0, math.inf),
        lambda: fmrl.Simplex(-0.1),
        lambda: fmrl.Simplex(1.0),
        lambda: fmrl.Simplex(0.5).project(np.ones(2)),
    ],
)
def test_impossible_domains(bad):
    with pytest.raises(fmrl.FMRLError):
        bad()
