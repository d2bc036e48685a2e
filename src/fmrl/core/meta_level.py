"""The meta-level of many tasks: where each starts and what it guesses, and how phi and D move.

`run`, the estimators and Ray move phi and the guess here; networks ask the same rules in place, in
`fmrl.deep.meta_level`. The rules are any object with ``domain``, ``meta`` and ``similarity``, such
as an `FMRL`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fmrl.core.arrays import Array, anywhere, namespace
from fmrl.core.metric import Metric
from fmrl.core.rules.meta import End, MetaUpdate, mean_end
from fmrl.core.rules.similarity import Measured, SimilarityRule
from fmrl.core.values import shortcut
from fmrl.errors import FMRLError


class State(NamedTuple):
    """All that the next task needs, hence a checkpoint. Leading axes are runs side by side."""

    tasks: int  # how many tasks were played
    phi: Array  # [..., d] initialisation of the next task
    guess: Array  # [...] D_t of the next task
    meta: Any  # memory of the meta-update
    similarity: Any  # memory of the similarity rule


def scan(rules: Any, state: State, ends: End) -> tuple[State, State]:
    """The meta-level over n tasks played one after another, given their update vectors.

    Args:
        rules: What moves: ``domain``, ``meta`` and ``similarity``.
        state: Before the first task, phi [..., d].
        ends: theta and optimum [n, ..., d], sigma [n, ...].

    Returns:
        The states before each task, side by side (phi [n, ..., d], guess [n, ...]; no memories),
        and the state after the last.

    >>> import numpy as np
    >>> import fmrl
    >>> algo, theta = fmrl.FMRL(similarity=fmrl.AverageDeviation()), np.array([[0.5], [0.1]])
    >>> before, after = scan(algo, algo.init(np.zeros(1)), End(theta, theta, np.ones(2)))
    >>> before.phi.ravel(), after.phi.round(3), after.tasks
    (array([0. , 0.5]), array([0.3]), 2)
    """
    starts, phi, memory = starts_of(rules, state.phi, state.meta, ends)
    guesses, guess, seen = guesses_of(rules, starts, state.guess, state.similarity, ends)
    before = State(state.tasks, starts, guesses, (), ())
    return before, State(state.tasks + ends.tasks, phi, guess, memory, seen)


def starts_of(rules: Any, phi: Array, memory: Any, ends: End) -> tuple[Array, Array, Any]:
    """phi before each task [n, ..., d], and phi and the memory after the last."""
    if fast := shortcut(rules.meta, "scan", "update"):
        return fast(rules.domain, phi, memory, ends)
    return MetaUpdate.scan(rules.meta, rules.domain, phi, memory, ends)


def guesses_of(
    rules: Any, phi: Array, guess: Array, memory: Any, ends: End
) -> tuple[Array, Array, Any]:
    """D of each task [n, ...] that started at phi [n, ..., d], and the guess and memory after the
    last.
    """
    rule = rules.similarity
    if _scans(rule):
        return rule.scan(rules.domain, phi, guess, memory, ends)
    return SimilarityRule.scan(rule, rules.domain, phi, guess, memory, ends)


def _scans(rule: Any) -> bool:
    """Whether a similarity rule's own ``scan`` stands for its ``update``."""
    return bool(shortcut(rule, "scan", "update")) or measured(rule)


def measured(rule: Any) -> bool:
    """Whether ``measure`` and ``follow`` of a similarity rule still stand for its ``update``."""
    own = isinstance(rule, Measured)
    return own and all(shortcut(rule, name, "update") for name in ("measure", "follow"))


def looked(rules: Any, first: Array) -> Array | None:
    """The side information of tasks with these first rows [..., f]; None for most rules."""
    look = getattr(rules.meta, "look", None)
    return None if look is None else look(first)


def together(rules: Any, state: State, ends: End) -> State:
    """The state after a meta-batch: n tasks that all started at ``state``.

    They enter the meta-update as one task of weight Σ sigma that ended at their weighted mean;
    the similarity rule looks at them one after the other, each against the phi they all started
    from. One task is Algorithm 2. With more, tasks do not wait for each other, and the theorems
    on phi no longer apply.

    >>> import numpy as np
    >>> import fmrl
    >>> algo, theta = fmrl.FMRL(), np.array([[0.5, 0.0], [0.0, 0.2]])
    >>> together(algo, algo.init(np.zeros(2)), End(theta, theta, np.array([1.0, 3.0]))).phi
    array([0.125, 0.15 ])
    """
    same, guess, seen = begun(rules, state, ends.tasks, ends.side), state.guess, state.similarity
    if _scans(rules.similarity):
        _, guess, seen = guesses_of(rules, same, guess, seen, ends)
    else:  # nobody asks for the guesses on the way
        for t in range(ends.tasks):
            start, end = same[t, ...], ends.at(t)
            guess, seen = rules.similarity.update(rules.domain, start, guess, seen, end)
    phi, memory = state.phi, state.meta
    # Side information belongs to single tasks; others are one task of their mean.
    apart = ends.side is not None or ends.tasks == 1 or getattr(rules.meta, "apart", False)
    for end in map(ends.at, range(ends.tasks)) if apart else (mean_end(ends),):
        phi, memory = rules.meta.update(rules.domain, phi, memory, end)
    return State(state.tasks + ends.tasks, phi, guess, memory, seen)


def begun(rules: Any, state: State, count: int, side: Array | None) -> Array:
    """Where ``count`` tasks start that all begin at ``state``, [count, ..., d]."""
    xp = namespace(state.phi)
    same = xp.broadcast_to(state.phi, (count, *state.phi.shape))
    if side is None:
        return same
    known = rules.domain, state.phi, state.meta
    return xp.stack([rules.meta.begin(*known, side[t, ...]) for t in range(count)])


def check_state(rules: Any, state: State) -> None:
    """Refuse a state that other rules made, or that is damaged.

    Args:
        rules: What shall go on from it: ``domain``, ``meta`` and ``similarity``.
        state: What was saved.
    """
    if not bool(namespace(state.phi).all(rules.domain.contains(state.phi))):
        what = f"the phi of this state lies outside {rules.domain!r}"
        raise FMRLError(what, fix="resume with the domain it was made in")
    middle = rules.domain.middle(state.phi)  # where every rule can begin; phi may be on the edge
    guess, memory = rules.similarity.init(rules.domain, middle)
    pairs = {"meta": (rules.meta.init(rules.domain, middle)[1], state.meta)}
    pairs |= {"similarity": ((guess, memory), (state.guess, state.similarity))}
    for name, (expected, found) in pairs.items():
        fits = getattr(getattr(rules, name), "fits", None)
        if _form(expected) != _form(found) or (fits and not fits(rules.domain, found)):
            what = f"this state was made by another {name} than {getattr(rules, name)!r}"
            raise FMRLError(what, fix="resume with the composition it was made by")
    if not _follows(rules, state, middle):
        what = "the guess of this state is not one that its memory leads to under "
        fix = "resume with the composition it was made by, or use an older copy"
        raise FMRLError(f"{what}{rules.similarity!r}", fix=fix)


def _follows(rules: Any, state: State, middle: Array) -> bool:
    """Whether the guess is a proper one, and that of the memory where the rule can say."""
    guess, xp = state.guess, namespace(state.phi)
    shaped = isinstance(guess, Metric)
    if not (guess.proper if shaped else bool(xp.all(xp.isfinite(guess) & (guess >= 0)))):
        return False
    rule = getattr(rules.similarity, "guess_of", None)
    try:
        own = None if rule is None else rule(rules.domain, middle, state.similarity)
    except (ArithmeticError, ValueError):  # LinAlgError is one
        return False
    if own is None:
        return True
    close = 1e-6 if state.phi.dtype == xp.float64 else 1e-3
    pairs = [(guess, own)]
    if shaped:  # by what it does to a vector: the same metric can be written in many ways
        v = xp.cos(xp.cumulative_sum(xp.ones_like(middle), axis=-1))
        pairs = [(guess.times(v), own.times(v)), (guess.solve(v), own.solve(v))]
    return all(not anywhere(~(xp.abs(a - b) <= close * xp.max(xp.abs(b)))) for a, b in pairs)


def _form(memory: Any) -> Any:
    """What a memory is made of: its tuples, metrics, counts and shapes of arrays."""
    if isinstance(memory, tuple):
        return tuple(map(_form, memory))
    if isinstance(memory, Metric):
        return {name: tuple(a.shape) for name, a in memory.arrays.items()}
    return ("array", memory.shape) if hasattr(memory, "shape") else type(memory)
