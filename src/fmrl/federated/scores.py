"""Scores of many clients: what the mean hides."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fmrl.errors import FMRLError

BAD = ("loss", "error", "perplexity")  # in a name: less is better


def less_is_better(name: str) -> bool:
    """Whether a score of that name is a loss.

    >>> less_is_better("test-loss"), less_is_better("accuracy")
    (True, False)
    """
    return any(word in name for word in BAD)


def spread(values: Sequence[float], less: bool = False) -> dict[str, float]:
    """Mean, standard deviation and worst decile of one score over clients, each counted once.

    The worst decile is the mean of the worst tenth of the clients, at least of one.

    Args:
        values: One for each client.
        less: Whether less is better.

    >>> spread([0.5, 0.6, 0.7, 0.9], less=False)["worst-decile"]
    0.5
    """
    found = np.sort(np.asarray(values, dtype=float))
    if not found.size:
        raise FMRLError("there are no clients to score")
    worst = (found[::-1] if less else found)[: max(1, math.floor(len(found) / 10))]
    return {
        "mean": float(found.mean()),
        "spread": float(found.std(ddof=1)) if len(found) > 1 else 0.0,
        "worst-decile": float(worst.mean()),
    }
