"""The guess as a scan over numbers: once the deviations B_R(θ_t‖phi_t) are known, D_t needs no
vectors.

Each rule of the core, over many tasks at once. Doubling's guess changes only where it is violated,
so the scan jumps from one violation to the next; AverageDeviation is two running sums."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fmrl.core.rules.similarity import AverageDeviation, Doubling, Known, ReleasedDoubling


class Ends(NamedTuple):
    """What the scan needs of finished tasks, [n] each."""

    deviation: np.ndarray  # B_R(θ_t‖phi_t)
    distance: np.ndarray  # ‖θ*_t − phi_t‖₂
    sigma: np.ndarray


def scans(rule: Any) -> bool:
    """Whether the rule is one of the core's own, of which it is known that numbers are enough."""
    return type(rule) in (Doubling, ReleasedDoubling, Known, AverageDeviation)


def scan(
    rule: Any, guess: np.ndarray, memory: Any, ends: Ends
) -> tuple[np.ndarray, np.ndarray, Any]:
    """D_t of every task [n], and the guess and memory after them.

    >>> ends = Ends(np.array([0.0, 0.0, 0.04, 0.0]), np.zeros(4), np.ones(4))
    >>> guesses, guess, memory = scan(Doubling(0.1, 2.0), np.array(1.1), np.array(0.0), ends)
    >>> guesses, guess
    (array([1.1, 0.1, 0.1, 0.2]), array(0.2))
    """
    if isinstance(rule, Known):
        return np.full(len(ends.sigma), guess), guess, memory
    if isinstance(rule, AverageDeviation):
        return _averaged(guess, memory, ends)
    if isinstance(rule, ReleasedDoubling):
        return _doubled(rule, guess, memory, ends.distance)
    return _doubled(rule, guess, memory, np.sqrt(ends.deviation))


def _averaged(guess, memory, ends: Ends):
    spread = ends.sigma * np.where(np.isfinite(ends.deviation), ends.deviation, 0.0)
    total = np.cumsum(np.concatenate([[memory[0]], ends.sigma]))
    spread = np.cumsum(np.concatenate([[memory[1]], spread]))
    known = spread[1:] > 0
    following = np.where(known, np.sqrt(spread[1:] / np.where(known, total[1:], 1.0)), guess)
    guesses = np.concatenate([[guess], following[:-1]])
    return guesses, np.asarray(following[-1]), (np.asarray(total[-1]), np.asarray(spread[-1]))


def _doubled(rule, guess, memory, far: np.ndarray):
    count, guesses, at = float(memory), np.empty(len(far)), 0
    while at < len(far):
        first = count < 0  # the released rule does not test its first task
        # Until the first task is over the guess is D_1; afterwards it is gamma^k·epsilon up to the
        # next violation.
        stop = at + 1 if at == 0 else _violation(far, at, float(guess))
        guesses[at:stop] = guess
        violated = not first and bool(guess < far[stop - 1])
        count = 0.0 if first else count + violated
        guess = np.asarray(rule.epsilon * rule.gamma ** np.float64(count))
        at = stop
    return guesses, guess, np.asarray(count)


def _violation(far: np.ndarray, at: int, guess: float) -> int:
    """One past the next task that violates ``guess``, or the end."""
    size = 1024
    while at < len(far):
        found = np.flatnonzero(guess < far[at : at + size])
        if found.size:
            return at + int(found[0]) + 1
        at, size = at + size, size * 2
    return len(far)
