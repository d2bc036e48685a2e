"""The environment of an estimator: whether tasks stay around one place, drift, or lie around
several centres. `environment_choice` finds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fmrl.estimators.sampling import evenly_spaced


@dataclass(frozen=True)
class Environment:
    """Where tasks come from.

    Args:
        kind: "stationary", "recent" or "centres".
        window: The share of the tasks, the latest, that says most; 1 for all.
        centres: Around how many centres tasks lie.
        gain: By how much of the loss on later tasks this was better than one place for all.
        tasks: How many tasks there were.
        chosen: Whether it was found, not asked for.
        older: The share of tasks from before the latest among those that count.
        few: Whether too few tasks have the two rows that it takes to look for anything.
    """

    kind: str = "stationary"
    window: float = 1.0
    centres: int = 1
    gain: float = 0.0
    tasks: int = 0
    chosen: bool = True
    older: float = 0.0
    few: bool = False

    def __str__(self) -> str:
        """In plain words.

        >>> print(Environment("recent", 0.1, 1, 0.2, 4000))
        tasks drift: the last 400 say more than all 4,000 (loss on later tasks 20 % lower)
        >>> print(Environment("recent", 0.1, tasks=4000, chosen=False))
        the last 400 of 4,000 tasks count (as asked for)
        """
        if not self.chosen:
            last = f"the last {self._last():,} of {self.tasks:,} tasks count"
            return f"{last if self.kind == 'recent' else self._what()} (as asked for)"
        if self.few:
            return f"{self._what()}, as far as is known: too few tasks of two rows to look further"
        if self.kind == "stationary":
            return f"{self._what()}: nothing else that was tried was better on later tasks"
        return f"{self._what()} (loss on later tasks {100 * self.gain:.2g} % lower)"

    def _what(self) -> str:
        if self.kind == "recent":
            return f"tasks drift: the last {self._last():,} say more than all {self.tasks:,}"
        if self.kind == "centres":
            return f"tasks lie around {self.centres} centres"
        return "tasks stay around one place"

    def _last(self) -> int:
        """Of how many tasks the latest are those that say most."""
        return max(1, round(self.window * self.tasks))

    def places(self, count: int, most: int) -> np.ndarray:
        """Which of ``count`` tasks count, at most ``most``: the latest, and older ones, evenly
        spaced.

        >>> Environment("recent", 0.25, older=0.2).places(16, 100)
        array([ 0, 12, 13, 14, 15])
        """
        size = min(max(2, round(self.window * count)), round((1 - self.older) * most), count)
        older = evenly_spaced(count - size, round(size * self.older / (1 - self.older)))
        return np.concatenate([older, np.arange(count - size, count)])


ONE_PLACE = Environment()
