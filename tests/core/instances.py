"""Random instances shared by the tests: domains, losses, tasks and points, from one seed."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

import fmrl

DOMAINS = ("ball", "shifted ball", "box", "uneven box", "simplex", "floored simplex", "euclidean")
BOUNDED = DOMAINS[:-1]
L2 = ("ball", "shifted ball", "box", "uneven box", "euclidean")
LOSSES = ("one-vs-all", "softmax", "logistic", "squared", "hinge", "linear")
WITHIN = (fmrl.OMD(), fmrl.OGD(), fmrl.FTRL())
UPDATES = (fmrl.FAL(), fmrl.FLIOnline(), fmrl.FLIBatch())

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
    return {
        "one-vs-all": fmrl.OneVsAll(3),
        "softmax": fmrl.Softmax(3),
        "logistic": fmrl.Logistic(),
        "squared": fmrl.Squared(),
        "hinge": fmrl.Hinge(),
        "linear": fmrl.Linear(),
    }[kind]


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
