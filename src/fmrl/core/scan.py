"""The meta-level of many tasks at once: given all update vectors, where every task starts and what
it guesses.

FollowLeader's phi_t are prefix sums, Σ_{s<t} sigma_s·θ_s / sigma_{1:t−1}, and AverageDeviation's
D_t² are prefix means, so neither needs a loop; every other rule is stepped through."""

from __future__ import annotations

from fmrl.core.algorithm import FMRL, State
from fmrl.core.arrays import Array, namespace
from fmrl.core.rules.meta import End, FollowLeader
from fmrl.core.rules.similarity import AverageDeviation


def scan(algo: FMRL, state: State, theta: Array, sigma: Array) -> tuple[State, State]:
    """The states before each of n tasks, side by side (phi [n, d], guess [n]; no memories), and the
    state after the last.

    theta [n, d]: the tasks' update vectors, which are their optima; sigma [n].

    >>> import numpy as np
    >>> algo = FMRL(similarity=AverageDeviation())
    >>> before, after = scan(algo, algo.init(np.zeros(1)), np.array([[0.5], [0.1]]), np.ones(2))
    >>> before.phi.ravel(), after.phi.round(3), after.tasks
    (array([0. , 0.5]), array([0.3]), 2)
    """
    if (
        state.phi.ndim == 1
        and type(algo.meta) is FollowLeader
        and type(algo.similarity) is AverageDeviation
    ):
        return _prefix(algo, state, theta, sigma)
    states = []
    for t in range(theta.shape[0]):
        states.append(state)
        state = algo.advance(state, End(theta[t, ...], theta[t, ...], sigma[t, ...]))
    xp = namespace(state.phi)
    before = State(
        states[0].tasks,
        xp.stack([s.phi for s in states]),
        xp.stack([s.guess for s in states]),
        (),
        (),
    )
    return before, state


def _prefix(algo: FMRL, state: State, theta: Array, sigma: Array) -> tuple[State, State]:
    xp = namespace(theta)
    total = xp.concat([state.meta[None], state.meta + xp.cumulative_sum(sigma, axis=0)])  # [n + 1]
    moved = xp.concat([(state.meta * state.phi)[None, :], sigma[:, None] * theta])
    mean = (
        xp.cumulative_sum(moved, axis=0) / xp.where(total > 0, total, xp.ones_like(total))[:, None]
    )
    phi = xp.where((total > 0)[:, None], mean, state.phi[None, :])
    phi[0, :] = state.phi
    weight, spread = state.similarity
    far = algo.domain.divergence(theta, phi[:-1, :])
    far = xp.where(xp.isfinite(far), far, xp.zeros_like(far))
    weights = weight + xp.cumulative_sum(sigma, axis=0)
    spreads = spread + xp.cumulative_sum(sigma * far, axis=0)
    known = spreads > 0
    root = xp.sqrt(spreads / xp.where(known, weights, xp.ones_like(weights)))
    guess = xp.concat([state.guess[None], xp.where(known, root, xp.zeros_like(root) + state.guess)])
    before = State(state.tasks, phi[:-1, :], guess[:-1], (), ())
    return before, State(
        state.tasks + theta.shape[0], phi[-1, :], guess[-1], total[-1], (weights[-1], spreads[-1])
    )
