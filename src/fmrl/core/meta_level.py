"""The meta-level of many tasks: where each starts and what it guesses, and how phi and D move.

`run`, the estimators and Ray move phi and the guess here; networks ask the same rules in place, in
`fmrl.deep.meta_level`. The rules are any object with ``domain``, ``meta`` and ``similarity``, such
as an `FMRL`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, anywhere, namespace
from fmrl.core.checks import whole
from fmrl.core.metric import Metric
from fmrl.core.rules.meta import End, MetaUpdate, mean_end
from fmrl.core.rules.similarity import Measured, SimilarityRule
from fmrl.core.values import shortcut, text_of
from fmrl.errors import FMRLError


class State(NamedTuple):
    """All that the next task needs, hence a checkpoint. Leading axes are runs side by side."""

    tasks: int  # how many tasks were played
    phi: Array  # [..., d] initialisation of the next task
    guess: Array  # [...] D_t of the next task
    meta: Any  # memory of the meta-update
    similarity: Any  # memory of the similarity rule
    algo: str = ""  # the composition that made it, as it prints; "" where nobody said


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
    return before, State(state.tasks + ends.tasks, phi, guess, memory, seen, state.algo)


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
    return State(state.tasks + ends.tasks, phi, guess, memory, seen, state.algo)


def begun(rules: Any, state: State, count: int, side: Array | None) -> Array:
    """Where ``count`` tasks start that all begin at ``state``, [count, ..., d]."""
    xp = namespace(state.phi)
    same = xp.broadcast_to(state.phi, (count, *state.phi.shape))
    if side is None:
        return same
    known = rules.domain, state.phi, state.meta
    return xp.stack([rules.meta.begin(*known, side[t, ...]) for t in range(count)])


def refuse_nan(rounds: Any, state: State) -> None:
    """Refuse what has become no number: an infinite regret or phi, or a NaN in them or the guess.

    Args:
        rounds: What was played last, any number of tasks.
        state: After it.
    """
    guess, xp = state.guess, namespace(state.phi)
    # A sum is a NaN or infinite where one of its parts is.
    total = float(xp.sum(rounds.regret)) + float(xp.sum(state.phi))
    shaped = isinstance(guess, Metric)
    if math.isfinite(total) and (guess.finite if shaped else not anywhere(xp.isnan(guess))):
        return
    what = "a regret, phi or the guess is no number any more: sizes are beyond what can be squared"
    raise FMRLError(what, fix="scale the rows, targets and costs, or the domain")


def refuse_no_state(state: Any) -> None:
    """Refuse what is not a State.

    Args:
        state: Whatever was given.
    """
    if not isinstance(state, State):
        fix = "give algo.init(phi), history.state, or what load_state returned"
        raise FMRLError(f"a State is needed, not a {type(state).__name__}", fix=fix)


def check_state(algo: Any, state: State) -> None:
    """Refuse a state that another composition made, or that is damaged.

    A state says which composition made it. One that does not, because it was put together by hand,
    is taken if it has the form of this composition's.

    Args:
        algo: What shall go on from it, an `FMRL` or an ensemble.
        state: What was saved.
    """
    refuse_no_state(state)
    whole("the state's tasks", state.tasks, least=0)
    if state.algo not in ("", own := text_of(algo)):
        what = f"this state was made by another composition, {state.algo:.500}, not by {own:.500}"
        fix = "resume with the composition it was made by, or begin a new run at its phi"
        raise FMRLError(what, fix=fix)
    if not bool(namespace(state.phi).all(algo.domain.contains(state.phi))):
        what = f"the phi of this state lies outside {algo.domain!r}"
        raise FMRLError(what, fix="resume with the domain it was made in")
    middle = algo.domain.middle(state.phi)  # where every rule can begin; phi may be on the edge
    found, guess = _leaves(state[1:5]), state.guess
    fits = [*map(_shape, found)] == [*map(_shape, _leaves(algo.init(middle)[1:5]))]
    fits = fits and not any(anywhere(a != a) for a in found if hasattr(a, "shape"))  # NaN
    shaped = isinstance(guess, Metric)
    if not (fits and (guess.proper if shaped else not anywhere((guess < 0) | (guess == math.inf)))):
        what = f"this state was made by another composition than {own:.500}, or is damaged: its"
        what += " memories have another form, or numbers that no rule leaves"
        fix = "resume with the composition it was made by, or use an older copy"
        raise FMRLError(what, fix=fix)


def _leaves(memory: Any) -> list[Any]:
    """The arrays and counts that a memory is made of."""
    if isinstance(memory, tuple):
        return [leaf for part in memory for leaf in _leaves(part)]
    return [*memory.arrays.values()] if isinstance(memory, Metric) else [memory]


def _shape(leaf: Any) -> Any:
    return tuple(leaf.shape) if hasattr(leaf, "shape") else type(leaf)
