"""The standing adversary itself: it draws everything public, and it finds what is planted.

Without these a bug in the adversary would look like a library without one.
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import fmrl

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "soak"))
import adversary
import compositions
import own
import truths


def test_every_public_ingredient_has_a_table_entry():
    assert compositions.missing() == []


def test_a_new_public_rule_is_missed_until_it_is_drawn(monkeypatch):
    @dataclass(frozen=True)
    class Brand(fmrl.MetaUpdate):
        def update(self, domain, phi, memory, end):
            return phi, memory

    Brand.__module__ = "fmrl.core.rules.meta"
    monkeypatch.setattr(fmrl, "Brand", Brand, raising=False)
    monkeypatch.setattr(fmrl, "__all__", [*fmrl.__all__, "Brand"])
    assert compositions.missing() == ["Brand"]


def ingredients(value):
    """The classes of everything that a composition is made of."""
    found = {type(value)}
    for name in ("domain", "within", "update", "meta", "similarity", "algo", "rule", "loss"):
        part = vars(value).get(name)
        found |= ingredients(part) if hasattr(part, "__dataclass_fields__") else set()
    for name in ("compositions", "metas"):
        for part in vars(value).get(name, ()):
            found |= ingredients(part)
    return found


def test_a_thousand_draws_hold_everything_that_the_tables_hold():
    drawn, kinds = set(), set()
    for seed in range(1000):
        try:
            instance = adversary.draw(seed)
        except fmrl.FMRLError:
            continue
        drawn |= ingredients(instance.algo)
        for task in instance.tasks:
            kinds.add(type(task))
            drawn |= ingredients(task.loss) if isinstance(task, fmrl.Task) else {task_game(task)}
    everything = {c for table in compositions.KINDS.values() for c in table}
    assert everything - drawn == set()
    assert {own.Opposing, own.Understated, own.Pit} <= drawn
    assert {fmrl.Task, own.Reactive, fmrl.theory.adversary.Opponent} <= kinds


def task_game(task):
    return getattr(task, "game", type(task))


def found(seed, kind):
    """What the adversary says of that kind about an instance."""
    return [w for w in adversary.findings(seed)[0] if w.kind == kind]


def worse_optimum(self, domain):
    """A minimiser that stops half way to the middle and calls the gap 0."""
    best = real_hindsight(self, domain)
    theta = (best.theta + domain.middle(best.theta)) / 2
    value = np.sum(self.losses(theta), axis=-1)
    return fmrl.Solution(theta, value, 0 * best.gap, best.ended)


real_hindsight = fmrl.core.tasks.Rounds.hindsight


def still(self, domain, phi, memory, ends):
    """A scan that forgets to move phi."""
    return np.stack([phi] * ends.tasks), phi, memory


PLANTED = {
    "gap": [(fmrl.core.tasks.Rounds, "hindsight", worse_optimum)],
    "differs": [(fmrl.FollowLeader, "scan", still)],
    "checked": [(fmrl.Simplex, "dual", lambda self, g: np.max(np.abs(g), axis=-1) / 4)],
    "bound": [(fmrl.Ball, "divergence", lambda self, a, b: np.sum((a - b) ** 2, axis=-1) / 200)],
    "nan": [  # the guard of run sees it first
        (import_module("fmrl.core.run"), "refuse_nan", lambda rounds, state: None),
        (fmrl.LastUpdate, "update", lambda self, d, phi, memory, end: (phi * np.nan, memory)),
    ],
    "raw": [(fmrl.Box, "project", lambda self, theta: theta.no_such_thing)],
}


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_planted_is_found(kind, monkeypatch):
    sound = lambda seed: not found(seed, kind)  # noqa: E731
    for seed in range(150):
        with monkeypatch.context() as planted:
            for fault in PLANTED[kind]:
                planted.setattr(*fault)
            missed = sound(seed)
        if not missed and sound(seed):  # it is the planted one that was found
            return
    pytest.fail(f"150 instances did not find the planted {kind}")


def test_truths_are_of_the_losses_and_the_domains():
    """Segments, pairs and attacks refute what is false and nothing else."""
    rng, zero = np.random.default_rng(0), np.zeros(2)
    ball = fmrl.Ball(2.0)
    honest = fmrl.Task([[10.0, 0.0], [0.0, 5.0]], [0, 1], loss=fmrl.Logistic())
    capped = fmrl.Task([[10.0, 0.0], [0.0, 5.0]], [0, 1], loss=own.Cap())
    plain, cap = truths.Problem(honest), truths.Problem(capped)
    assert truths.convex(rng, plain, ball, zero) and not truths.convex(rng, cap, ball, zero)
    G = float(honest.open().lipschitz(ball))
    assert 0.5 * G < truths.steepest(rng, plain, ball, zero) <= G
    assert truths.strongly_convex(rng, ball, zero)
    assert not truths.strongly_convex(rng, own.Weak(2.0), zero)
    best = fmrl.minimise(honest.open(), ball)
    assert truths.attack(rng, plain, ball, zero) < plain.rounds(zero[None]).sum()
    lowest = truths.slsqp(plain, ball, np.asarray(best.theta))
    assert abs(lowest - float(best.value)) < 1e-6
