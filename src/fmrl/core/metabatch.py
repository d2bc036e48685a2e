"""Meta-batches: B tasks play from the same phi and guess, then phi makes one weighted step.

The update vectors θ_1 … θ_B of a meta-batch enter the meta-update as one task of weight Σ sigma_b
that ended at their mean Σ sigma_b·θ_b / Σ sigma_b; the similarity rule looks at them one after the
other, each against the phi they all started from. B = 1 is Algorithm 2. With more the tasks of a
meta-batch do not wait for each other, and the theorems on phi no longer apply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fmrl.core.algorithm import FMRL, Round, State, _step_size
from fmrl.core.arrays import Array, full, namespace
from fmrl.core.history import SCALARS
from fmrl.core.rules.meta import End
from fmrl.core.rules.within import play
from fmrl.core.tasks import Task, stack
from fmrl.errors import FMRLError


def meta_batches(tasks: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """``tasks`` in lists of ``size``, the last one shorter; what came before a failure is handed
    out first.

    >>> list(meta_batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    batch: list[Any] = []
    try:
        for task in tasks:
            batch.append(task)
            if len(batch) == size:
                yield batch
                batch = []
    except (Exception, KeyboardInterrupt):
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def widen(happened: Round) -> Round:
    """One task's round as a block of one."""
    return Round(
        *(
            a[..., None] if n in SCALARS else a[..., None, :]
            for n, a in zip(Round._fields, happened, strict=True)
        )
    )


def move(algo: FMRL, state: State, theta: Array, optimum: Array, sigma: Array) -> State:
    """The state after tasks that all started at it: theta and optimum [B, d], sigma [B].

    >>> import numpy as np
    >>> algo = FMRL()
    >>> ends = np.array([[0.5, 0.0], [0.0, 0.2]])
    >>> move(algo, algo.init(np.zeros(2)), ends, ends, np.array([1.0, 3.0])).phi
    array([0.125, 0.15 ])
    """
    if sigma.shape[0] == 1:
        return algo.advance(state, End(theta[0, ...], optimum[0, ...], sigma[0, ...]))
    guess, memory = state.guess, state.similarity
    for b in range(sigma.shape[0]):
        end = End(theta[b, ...], optimum[b, ...], sigma[b, ...])
        guess, memory = algo.similarity.update(algo.domain, state.phi, guess, memory, end)
    phi, meta = algo.meta.update(
        algo.domain, state.phi, state.meta, mean_end(theta, optimum, sigma)
    )
    return State(state.tasks + sigma.shape[0], phi, guess, meta, memory)


def mean_end(theta: Array, optimum: Array, sigma: Array) -> End:
    """The tasks of a meta-batch as one: the weighted mean of their vectors and the sum of their
    weights.
    """
    xp = namespace(theta)
    total = xp.sum(sigma)
    weight = (
        sigma if bool(total > 0) else xp.ones_like(sigma)
    )  # tasks of constant losses: none of them weighs more
    share = (weight / xp.sum(weight))[:, None]
    return End(xp.sum(share * theta, axis=0), xp.sum(share * optimum, axis=0), total)


def play_together(algo: FMRL, state: State, blocks: list[list[Any]]) -> list[tuple[Round, State]]:
    """Play one meta-batch, given in blocks that can be stacked: the rounds of each block, and the
    state after all of them.
    """
    played, ends = [], []
    for block in blocks:
        try:
            happened, sigma = _play_block(algo, state, block)
        except FMRLError as error:
            error.task = _culprit(algo, state, blocks, error)
            raise
        played.append(happened)
        ends.append(End(happened.theta, happened.optimum, sigma))
    xp = namespace(state.phi)
    theta, optimum, sigma = (xp.concat(column) for column in zip(*ends, strict=True))
    after = move(algo, state, theta, optimum, sigma)
    return [(happened, after) for happened in played]


def _play_block(algo: FMRL, state: State, block: list[Any]) -> tuple[Round, Array]:
    if isinstance(block[0], Task):
        game = stack(block)
        sigma = algo.sigma(state.phi, game, state.tasks)
        n = len(block)
        guess = full((n,), 0.0, state.phi) + state.guess
        before = State(state.tasks, state.phi + full((n, 1), 0.0, state.phi), guess, (), ())
        best = game.hindsight(algo.domain)
        played = play(algo.within, game, algo.domain, before.phi, _step_size(guess, sigma))
        return algo.record(
            before, game, played, best, algo.update.vector(played, best), sigma
        ), sigma
    game = block[0].open()
    sigma = algo.sigma(state.phi, game, state.tasks)
    return widen(algo.meet(state, game)[1]), sigma[..., None]


def _culprit(algo: FMRL, state: State, blocks: list[list[Any]], error: FMRLError) -> int | None:
    """The number of the task that fails when it is alone; the error's own when none does."""
    tasks = [task for block in blocks for task in block]
    for i, task in enumerate(tasks):
        try:
            algo.sigma(state.phi, task.open(), state.tasks + i)
            if isinstance(task, Task):
                task.open().hindsight(algo.domain)
        except FMRLError:
            return state.tasks + i
    return error.task
