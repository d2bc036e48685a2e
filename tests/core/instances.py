"""What the tests share: the rules, random instances of domains, losses, tasks and points from one
seed, and what must hold of every composition however it is run.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st

import fmrl
from fmrl.core.checkpoint import flatten

DOMAINS = ("ball", "shifted ball", "box", "uneven box", "simplex", "floored simplex", "euclidean")
BOUNDED = DOMAINS[:-1]
L2 = ("ball", "shifted ball", "box", "uneven box", "euclidean")
LOSSES = ("one-vs-all", "softmax", "logistic", "squared", "hinge", "linear")
WITHIN = (fmrl.OMD(), fmrl.OGD(), fmrl.FTRL())
UPDATES = (fmrl.FAL(), fmrl.FLIOnline(), fmrl.FLIBatch())
METAS = (
    fmrl.FollowLeader(), fmrl.AdaptiveOGD(), fmrl.LastUpdate(), fmrl.Interpolate(1.0, 0.1, 10),
    fmrl.Fixed(),
)  # fmt: skip
SIMILARITIES = (
    fmrl.Doubling(0.1, 1.4), fmrl.ReleasedDoubling(0.1, 1.4), fmrl.Known(0.4),
    fmrl.AverageDeviation(),
)  # fmt: skip
SCALARS = ("regret", "gap", "guess", "eta", "divergence", "deviation", "lipschitz", "rounds")

seeds = st.integers(0, 2**32 - 1)


def make_domain(kind: str, dim: int, rng: np.random.Generator) -> fmrl.Domain:
    if kind == "ball":
        return fmrl.Ball(float(rng.uniform(0.3, 3.0)))
    if kind == "shifted ball":
        return fmrl.Ball(float(rng.uniform(0.3, 3.0)), rng.normal(size=dim))
    if kind == "box":
        return fmrl.Box(-float(rng.uniform(0.1, 2)), float(rng.uniform(0.1, 2)))
    if kind == "uneven box":
        low = rng.normal(size=dim)
        return fmrl.Box(low, low + rng.uniform(0.05, 2, size=dim))
    if kind == "simplex":
        return fmrl.Simplex()
    if kind == "floored simplex":
        return fmrl.Simplex(float(rng.uniform(0.01, 0.5)) / dim)
    return fmrl.Euclidean()


def points(
    domain: fmrl.Domain, dim: int, rng: np.random.Generator, count: int = 1, edge: bool = False
) -> np.ndarray:
    """Points of the domain [count, dim], found without its own methods; ``edge`` also gives corners
    and the surface.
    """
    share = rng.random((count, 1)) < 0.5 if edge else np.zeros((count, 1), bool)
    if isinstance(domain, fmrl.Ball):
        way = rng.normal(size=(count, dim))
        way /= np.linalg.norm(way, axis=1, keepdims=True)
        return domain.centre + way * domain.radius * np.where(
            share, 1.0, rng.random((count, 1)) ** (1 / dim)
        )
    if isinstance(domain, fmrl.Box):
        part = rng.random((count, dim))
        part = np.where(share, np.round(part), part)
        return np.asarray(domain.low) + part * (np.asarray(domain.high) - np.asarray(domain.low))
    if isinstance(domain, fmrl.Simplex):
        inner = rng.dirichlet(np.ones(dim), size=count)
        corner = np.eye(dim)[rng.integers(dim, size=count)]
        part = np.where(share, corner, 0.98 * inner + 0.02 / dim)
        return domain.floor + (1 - dim * domain.floor) * part
    return rng.normal(size=(count, dim))


def make_loss(kind: str) -> fmrl.Loss:
    several = {"one-vs-all": fmrl.OneVsAll, "softmax": fmrl.Softmax}
    return several[kind](3) if kind in several else getattr(fmrl, kind.capitalize())()


def make_data(
    loss: fmrl.Loss, rounds: int, features: int, rng: np.random.Generator, separable: bool = False
):
    """X [rounds, features] and y [rounds] (None for costs); noisy labels unless ``separable``."""
    X = rng.normal(size=(rounds, features)) / math.sqrt(features)
    if isinstance(loss, fmrl.Linear):
        return X, None
    truth = rng.normal(size=(loss.outputs, features))
    margins = X @ truth.T
    if isinstance(loss, fmrl.Squared):
        return X, margins[:, 0] + rng.normal(size=rounds)
    if not separable:
        margins = margins + rng.normal(size=margins.shape)
    return X, (margins.argmax(axis=1) if loss.outputs > 1 else (margins[:, 0] > 0).astype(int))


def make_task(
    kind: str, rounds: int, features: int, rng: np.random.Generator, separable: bool = False
) -> fmrl.Task:
    loss = make_loss(kind)
    X, y = make_data(loss, rounds, features, rng, separable)
    return fmrl.Task(X, y, loss=loss)


def make_tasks(
    kind: str, count: int, features: int, rng: np.random.Generator, most: int = 9
) -> list[fmrl.Task]:
    """Ragged tasks."""
    return [make_task(kind, int(rng.integers(1, most + 1)), features, rng) for _ in range(count)]


def width(kind: str, features: int) -> int:
    """Length of theta."""
    return make_loss(kind).outputs * features


def exists(domain_kind: str, loss_kind: str) -> bool:
    """Whether random tasks of this loss have an optimum and a Lipschitz constant in this domain."""
    return domain_kind != "euclidean" or loss_kind == "hinge"


def similarity(domain_kind: str) -> fmrl.Doubling:
    return fmrl.Doubling(0.1, 1.1, first=1.0 if domain_kind == "euclidean" else None)


def loop(algo: fmrl.FMRL, tasks: list, phi: np.ndarray) -> SimpleNamespace:
    """Algorithm 2, one task after another: the columns of a history, and the last state."""
    state, rounds = algo.init(phi), []
    for task in tasks:
        state, happened = algo.step(state, task)
        rounds.append(happened)
    names = [n for n in fmrl.Round._fields if n != "losses" and getattr(happened, n) is not None]
    columns = {name: np.array([getattr(r, name) for r in rounds]) for name in names}
    losses = [r.losses for r in rounds]
    return SimpleNamespace(**columns, losses=losses, state=state, meta_batch=1)


def same(found, expected, tolerance: float = 1e-10) -> None:
    """All columns of two histories, and all that their states are made of."""
    observed = ("distance", "energy") if hasattr(expected, "distance") else ()
    close = {"rtol": 1e-10 if tolerance else 0, "atol": tolerance}
    for name in (*observed, *SCALARS, "theta", "optimum"):
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(one, other, **close, err_msg=name)
    for one, other in zip(found.losses, expected.losses, strict=True):
        np.testing.assert_allclose(one, other, **close)
    assert found.meta_batch == expected.meta_batch
    arrays, others = {}, {}
    assert flatten(found.state, arrays) == flatten(expected.state, others)
    np.testing.assert_allclose(found.state.phi, expected.state.phi, atol=tolerance)
    for name, values in arrays.items():  # the signs of directions in a memory are chance
        one, other = abs(values), abs(others[name])
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=tolerance, err_msg=name)


def every_way(algo: fmrl.FMRL, tasks: list, phi: np.ndarray, tolerance: float = 1e-10):
    """`run` is step in a loop, and orders are runs side by side; the history."""
    history, back = fmrl.run(algo, tasks, phi), fmrl.run(algo, tasks[::-1], phi)
    same(history, loop(algo, tasks, phi), tolerance)
    order = np.arange(len(tasks))
    together = fmrl.run(algo, tasks, phi, orders=[order, order[::-1]])
    seen = ("distance", "energy") if hasattr(history, "distance") else ()
    for k, alone in enumerate((history, back)):
        for name in (*SCALARS, *seen, "theta"):
            one, other = getattr(together, name)[k], getattr(alone, name)
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(together.state.phi[k], alone.state.phi, atol=1e-9)
    return history


def resumes(algo: fmrl.FMRL, tasks: list, cut: int, folder) -> None:
    """A run goes on from a saved state bit for bit, and its history and composition come back."""
    whole, half = fmrl.run(algo, tasks), fmrl.run(algo, tasks[:cut])
    fmrl.save_state(half.state, folder / "state.npz")
    rest = fmrl.run(algo, tasks[cut:], state=fmrl.load_state(folder / "state.npz"))
    assert np.array_equal(rest.regret, whole.regret[cut:])
    fmrl.save_history(whole, folder / "history.npz")
    loaded = fmrl.load_history(folder / "history.npz")
    assert loaded.algo == fmrl.parse(repr(algo)) == algo
    for one, other in ((rest, whole), (loaded, whole)):
        states, others = {}, {}
        assert flatten(one.state, states) == flatten(other.state, others)
        assert all(np.array_equal(a, others[name]) for name, a in states.items())
    assert np.array_equal(loaded.bound, whole.bound)
