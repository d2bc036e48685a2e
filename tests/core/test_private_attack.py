"""Membership inference by likelihood ratio. The attacker knows every task but one, and which two
tasks the last one can be; has seen thousands of shadow runs of both worlds; and is shown a new run.

(epsilon, delta)-privacy leaves an advantage (true minus false positives) of at most
(e^epsilon − 1 + 2·delta)/(e^epsilon + 1). Without privacy the same attack is always right.
"""

import math
from statistics import NormalDist

import numpy as np
import pytest
from test_private import released

import fmrl

pytest.importorskip("dp_accounting", reason="not installed: pip install 'fmrl[private]'")
RUNS, TASKS, DIM = 2000, 8, 3  # runs of each world, for the attacker and as many for the test
BUDGETS = ((0.5, 1e-3), (2.0, 1e-2), (8.0, 1e-5))


def allowed(epsilon, delta):
    return (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1)


def worlds(place, radius=1.0):
    """Two sequences of update vectors that differ in one task, as far as tasks can."""
    rng = np.random.default_rng(place)
    one = rng.normal(size=(TASKS, DIM))
    one *= radius * rng.uniform(0.1, 1, size=(TASKS, 1)) / np.linalg.norm(one, axis=1)[:, None]
    other = one.copy()
    way = rng.normal(size=DIM)
    one[place], other[place] = (sign * radius * way / np.linalg.norm(way) for sign in (1, -1))
    return one, other


def advantage(shadows, fresh):
    """What the attacker reaches on fresh runs, and the half width of its 99.9 % interval.

    shadows, fresh: what is seen of the runs of each world, [runs, k] each. Normal distributions are
    fitted to the shadows; the run is said to be of the world under which it is more likely.
    """
    means = [seen.mean(axis=0) for seen in shadows]
    noise = np.concatenate([seen - mean for seen, mean in zip(shadows, means, strict=True)])
    inside = np.linalg.pinv(noise.T @ noise / len(noise) + 1e-12 * np.eye(noise.shape[1]))
    way = inside @ (means[0] - means[1])
    middle = way @ (means[0] + means[1]) / 2
    first, second = (float(np.mean(seen @ way > middle)) for seen in fresh)
    spread = sum(max(p * (1 - p), 1 / len(fresh[0])) / len(fresh[0]) for p in (first, second))
    return first - second, 3.29 * math.sqrt(spread)


def seen_of(tree, theta, last, seed):
    """The last phi, or all of them, [runs, k]."""
    phi = released(tree, theta, RUNS, seed)
    return phi[-1] if last else np.moveaxis(phi, 0, 1).reshape(RUNS, -1)


@pytest.mark.parametrize("last", [True, False], ids=["last phi", "all phi"])
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_attack_stays_under_what_the_budget_allows(epsilon, delta, last):
    """And is as good as an attack can be, so it would see too little noise: the best advantage is
    that between two normal distributions √(nodes)/noise apart.
    """
    place = 0  # the first task is in every node of its way up
    tree, (one, other) = fmrl.Tree(epsilon, delta, TASKS, radius=1.0), worlds(place)
    seen = [seen_of(tree, theta, last, k) for k, theta in enumerate((one, other, one, other))]
    shadows, fresh = seen[:2], seen[2:]
    found, error = advantage(shadows, fresh)
    assert found + error < allowed(epsilon, delta)
    nodes = 1 if last else 4  # of 8 tasks: [1], [1, 2], [1 … 4], [1 … 8]
    best = 2 * NormalDist().cdf(math.sqrt(nodes) / tree.noise / 2) - 1
    assert found == pytest.approx(best, abs=error + 0.01)


@pytest.mark.parametrize("last", [True, False], ids=["last phi", "all phi"])
def test_without_privacy_the_attack_is_always_right(last):
    """Even where the attacker does not know the other tasks, which differ from run to run."""
    rng, rule, domain = np.random.default_rng(1), fmrl.FollowLeader(), fmrl.Ball(1.0)
    pair, seen = worlds(0), []
    for theta in (*pair, *pair):
        others = (
            theta + 0.05 * rng.normal(size=(RUNS, TASKS, DIM)) * (np.arange(TASKS) > 0)[:, None]
        )
        phi, memory = rule.init(domain, np.zeros((RUNS, DIM)))
        path = []
        for t in range(TASKS):
            end = fmrl.core.rules.meta.End(others[:, t], None, np.ones(RUNS))
            phi, memory = rule.update(domain, phi, memory, end)
            path.append(phi)
        seen.append(path[-1] if last else np.concatenate(path, axis=1))
    found, error = advantage(seen[:2], seen[2:])
    assert found - error > max(allowed(*budget) for budget in BUDGETS[:2]) and found > 0.99


def test_an_attack_on_one_row_of_a_task():
    """What a task of four rows sends, with one gradient turned round."""
    learner, runs = fmrl.NoisyGradients(fmrl.OMD(), 2.0, 1e-2, clip=0.5), 4000
    phi, domain = np.zeros((runs, DIM)), fmrl.Euclidean()

    def sent(sign):
        actions = learner.actions(None, domain, phi, np.full(runs, 0.1))
        theta = next(actions)
        for i in range(4):
            gradient = np.full((runs, DIM), 0.1) * (sign * 9 if i == 1 else 1)
            theta = actions.send(gradient)
        return theta

    shadows, fresh = ([sent(sign) for sign in (1, -1)] for _ in range(2))
    found, error = advantage(shadows, fresh)
    assert found + error < allowed(2.0, 1e-2)
    # Four noises are added up in the last action, and one of them hides the swap.
    best = 2 * NormalDist().cdf(1 / learner.noise / 2 / math.sqrt(4)) - 1
    assert found == pytest.approx(best, abs=error + 0.02)
