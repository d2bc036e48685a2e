"""What a certificate says about privacy: the budget, who is protected from whom, and the price."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fmrl.core.arrays import Array
from fmrl.core.history import History
from fmrl.core.rules.private import NoisyGradients, Tree, promises
from fmrl.core.rules.similarity import Known
from fmrl.core.rules.update import FAL
from fmrl.theory.bounds import Bound, noise_price, weights
from fmrl.theory.bounds.bound import numbers
from fmrl.theory.certificate.which_bound import UNLUCKY

OPEN = (
    "This certificate, the history, regrets, losses, guesses and the saved state are not private:"
    " they are computed from the rows without noise, and the state holds the key of the noise."
)


def privacy(history: History, order: int | None, bounds: Sequence[Bound]) -> tuple[str, ...]:
    """Sentences on the promises of a run; none where nothing was promised.

    Args:
        history: Of the run.
        order: Which of several orders, from 0.
        bounds: Those of the certificate.
    """
    said = []
    for part in promises(history.algo):
        if type(part) not in (Tree, NoisyGradients):  # a subclass may change anything
            said.append(f"Nothing is promised: {part!r} is not one of the library's own.")
            continue
        said.append(_of_tree(history, part) if isinstance(part, Tree) else _of_rows(part))
        if isinstance(part, Tree):
            said.append(_price(history, part, order, bounds))
    return (*said, OPEN) if said else ()


def _seeded(part: Tree | NoisyGradients) -> str:
    if part.seed is None:
        return ""
    return " But a seed was given: whoever knows it can take the noise away, and nothing holds."


def _of_tree(history: History, tree: Tree) -> str:
    count = int(history.state.meta[0])
    several = f", shared by {tree.runs} runs" if tree.runs > 1 else ""
    return (
        f"Privacy of tasks: ({tree.epsilon:g}, {tree.delta:g})-differential privacy{several}, of"
        f" which epsilon {tree.spent(count):.4g} is spent after {count} of {tree.tasks} tasks,"
        " for a task that was played once. Someone who sees every phi, and knows all other tasks,"
        " can tell the rows of one task from those of any other task no better than that"
        f" allows.{_seeded(tree)}"
    )


def _of_rows(part: NoisyGradients) -> str:
    return (
        f"Privacy of rows: the update vector of every task is ({part.epsilon:g}, {part.delta:g})-"
        "differentially private in each of its rows, for a task that was played once. Someone who"
        " sees it, and knows all other rows, can tell one row from any other no better than that"
        f" allows; the server is such a someone.{_seeded(part)}"
    )


def _price(history: History, tree: Tree, order: int | None, bounds: Sequence[Bound]) -> str:
    algo, none = history.algo, "No theorem bounds the price of this privacy in TAR"
    own = {"privacy", "optima not exact"}
    own_vectors = [b.terms["privacy"] for b in bounds if own <= set(b.terms)]
    if own_vectors:  # FLI, or vectors that were clipped
        return (
            f"Its price is at most {own_vectors[0]:.4g} in the bound on TAR, but for one run in"
            f" {UNLUCKY}. That is what the noise of phi costs for the update vectors that this run"
            " sent. The noise may have moved these too: a run without noise has others, and no"
            " theorem compares with it."
        )
    if type(algo.update) is not FAL or type(algo.similarity) is not Known:
        return f"{none}: it needs Known, and FAL or an FLI rule whose vectors were kept."
    if history.meta_batch > 1 or history.keep == "totals" or history.start.tasks:
        return f"{none}: it needs the scalars of a whole run, task after task."
    several, dim = history.state.phi.ndim > 1, history.state.phi.shape[-1]
    wide = algo.domain.diameter(dim)
    if tree.radius is not None and math.sqrt(2) * tree.radius < wide:  # wide: √½ of a width
        return f"{none}: update vectors may have been clipped; it needs them kept to be told."

    def mine(column: Array) -> np.ndarray:
        return numbers(column)[order] if several else numbers(column)

    heaviest = weights(mine(history.lipschitz), mine(history.rounds)).max()
    price = noise_price(len(history), dim, float(mine(history.start.meta[4])), most=wide**2)
    price *= heaviest / (algo.similarity.D * len(history))
    return (
        f"Its price is at most {price:.4g} in the bound on TAR, in expectation over the noise, for"
        " tasks that do not depend on it; TAR itself can rise by more where it is far below it."
    )
