"""Privacy accounting: from a budget (epsilon, delta) to how much noise is needed, and back.

All numbers come from dp-accounting (the extra ``private``), which is imported when it is asked for.
A noise multiplier is the standard deviation of the noise over the largest change that is hidden.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

from fmrl.errors import FMRLError


def _library() -> Any:
    try:
        return import_module("dp_accounting")
    except ImportError:
        what = "privacy budgets are counted by dp-accounting, which is not installed"
        raise FMRLError(what, fix="pip install 'fmrl[private]'") from None


def _accountant(dp: Any) -> Any:
    # The library counts tree aggregation for a record that is replaced by zero, a change of one
    # clip in every node it reaches. With the multiplier relative to the change of a swap, two
    # clips, the pair of Gaussians in every node is the same one, and so is the count.
    return dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)


def _tree(dp: Any, noise: float, tasks: int, runs: int) -> Any:
    return dp.SelfComposedDpEvent(dp.SingleEpochTreeAggregationDpEvent(noise, tasks), runs)


@lru_cache
def tree_noise(epsilon: float, delta: float, tasks: int, runs: int = 1) -> float:
    """The least noise multiplier of a node with which tree aggregation is (epsilon, delta)-private.

    Args:
        epsilon: ε.
        delta: δ.
        tasks: How many tasks come, each of them once.
        runs: How many runs on the same tasks share the budget.
    """
    dp = _library()
    make = (lambda: _accountant(dp)), (lambda noise: _tree(dp, noise, tasks, runs))
    try:
        return float(dp.calibrate_dp_mechanism(*make, epsilon, delta))
    except dp.mechanism_calibration.NoBracketIntervalFoundError:  # its Rényi orders end at 1024
        what = f"dp-accounting finds no noise for epsilon {epsilon:g} at delta {delta:g}"
        raise FMRLError(what, fix="take a larger epsilon or delta") from None


@lru_cache
def tree_epsilon(noise: float, delta: float, tasks: int, runs: int = 1) -> float:
    """The ε that ``tasks`` releases of a tree have spent: the way back from `tree_noise`.

    Args:
        noise: The multiplier of a node.
        delta: δ.
        tasks: Tasks so far.
        runs: Runs on the same tasks.
    """
    dp = _library()
    return float(_accountant(dp).compose(_tree(dp, noise, tasks, runs)).get_epsilon(delta))


@lru_cache
def gaussian_noise(epsilon: float, delta: float) -> float:
    """The least noise multiplier with which one Gaussian release is (epsilon, delta)-private.

    Args:
        epsilon: ε.
        delta: δ.
    """
    return float(_library().get_sigma_gaussian(epsilon, delta))
