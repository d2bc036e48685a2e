"""What a sequence of tasks is to the trainer: rows of one table by task number, in shuffled
mini-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from fmrl.datasets.episodes import _splitmix
from fmrl.errors import FMRLError

ORDER = 0x5EED  # keeps the order of mini-batches independent of the draw of classes and samples


class Tasks(Protocol):
    """A numbered, endless sequence of tasks over one table. Task e is a function of e alone, so any
    run can resume anywhere.
    """

    inputs: torch.Tensor  # [N, ...]
    steps: int
    batch: int

    def draw(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of ``inputs`` [count, steps, batch] and their targets [count, steps, batch, ...]."""
        ...


class TasksWithQueries(Tasks, Protocol):
    """Tasks that also hold samples to be judged on."""

    queries: int  # of every task, or of the one that has fewest

    def queried(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor, list[Queried]]:
        """What `draw` gives, and the tasks' samples and queries, those of one shape together."""
        ...

    def with_steps(self, steps: int) -> TasksWithQueries:
        """The same tasks, cut into ``steps`` mini-batches."""
        ...


@dataclass(frozen=True, eq=False)
class Queried:
    """n tasks of one shape among those drawn: which [n], all their training rows [n, S], their
    query rows and targets [n, Q(, …)].
    """

    at: torch.Tensor
    support: torch.Tensor
    query: torch.Tensor
    targets: torch.Tensor


def mini_batches(
    start: int, shape: tuple[int, int], need: int, seed: int, device: Any
) -> torch.Tensor:
    """For tasks ``start``…: ``need`` positions among shape[1] samples, by shuffled passes, each in
    an order of its own.

    >>> mini_batches(0, (1, 3), 9, seed=0, device="cpu").view(3, 3).sort(1).values.tolist()
    [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """
    count, samples = shape
    passes = max(1, -(-need // samples))
    first = (start * passes * samples + 2**63) % 2**64 - 2**63  # far stretches wrap round
    at = torch.arange(count * passes * samples, device=device) + first
    keys = _splitmix(at, seed ^ ORDER).view(count, passes, samples)
    return keys.argsort(-1).view(count, -1)[:, :need]


def table(values: Any, what: str, task: int | None = None) -> torch.Tensor:
    """A tensor of numbers with a leading axis; whole numbers and True/False as they are."""
    try:
        found = values if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise FMRLError(
            f"{what} is no array of numbers ({str(error).splitlines()[0]})", task=task
        ) from None
    if found.ndim == 0 or found.is_complex():
        raise FMRLError(
            f"{what} must be an array of real numbers with one entry for each sample", task=task
        )
    return found.detach()


def whole(least: int, **numbers: Any) -> None:
    """Refuse numbers that are not whole or below ``least``.

    >>> whole(1, batch=0)
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: batch=0 must be a whole number, at least 1
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise FMRLError(f"{name}={value!r} must be a whole number, at least {least}")
