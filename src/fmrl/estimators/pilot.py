"""The pilot: the tasks of which a prior is learned, and when it is learned again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fmrl.core.tasks import Tasks
from fmrl.estimators.rows import TaskRows, joined
from fmrl.estimators.rows_sqlite import SQLiteRows
from fmrl.estimators.running import Running
from fmrl.estimators.stream import rows_of

if TYPE_CHECKING:
    from fmrl.estimators.stream import OpenTask

PILOT = 1000  # tasks from which the prior is learned, at most …
ROWS = 20_000  # … or up to four times as many, to have so many rows
NUMBERS = 1 << 20  # … but beyond 256 no more than so many numbers, over all outputs


class Piloted(Running):
    """Keeps tasks for the prior as they come."""

    _parts: list[Tasks]  # of which the prior is learned, one after another
    _stale: bool  # whether it is to be learned when next asked for
    _rows: TaskRows | SQLiteRows

    @property
    def _pilot(self) -> Tasks:
        """The tasks of which the prior is learned."""
        if len(self._parts) > 1:
            self._parts = [joined(self._parts)]
        return self._parts[0]

    @_pilot.setter
    def _pilot(self, tasks: Tasks) -> None:
        self._parts = [tasks]

    @property
    def _fresh(self) -> list[Tasks]:
        """The tasks that have come since."""
        self._settle()
        return self._since

    @_fresh.setter
    def _fresh(self, tasks: list[Tasks]) -> None:
        self._since, self._closed = tasks, []

    def _ended(self, stream: OpenTask) -> None:
        """`_observe` a stream without a name, together with others: most are short."""
        if not self._closed:
            self._until = self._due()[0]
        self._closed.append(stream)
        if len(self._closed) >= self._until:
            self._settle()

    def _settle(self) -> None:
        """`_observe` the streams that wait for it."""
        if self._closed:
            rows, self._closed = rows_of(self._closed), []
            self._observe(rows, own=True)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            if self._begun:
                self._settle()
            return super().__getstate__()

    def _held(self) -> tuple[int, int]:
        """From how many tasks the prior is learned, and from how many at most."""
        parts, sizes = vars(self).get("_sizes", (None, (0, 0)))
        if parts is not self._parts:  # lists are never changed; streams ask whenever one closes
            sizes = sum(map(len, self._parts)), pilot_size(*self._parts)
            self._sizes = self._parts, sizes
        return sizes

    def _due(self) -> tuple[int, int]:
        """After how many more tasks the prior is learned again, and from how many at most."""
        held, most = self._held()
        return due_after(min(held, most)) - sum(map(len, self._fresh)), most

    def _observe(self, tasks: Tasks, own: bool = False) -> None:
        """Keep more tasks for the prior, which is learned again now and then (`due_after`) from the
        latest of them, with all the rows they have by then.

        Args:
            tasks: Some.
            own: Whether nobody else holds their memory.
        """
        first = 0
        while first < len(tasks):
            due, most = self._due()
            last = min(first + max(due, 1), len(tasks))
            whole = last - first == len(tasks)
            part = tasks if whole else tasks.take(np.arange(first, last))
            now = [*self._fresh, part if own else part.copied()]  # the user may write to his
            if last - first >= due:
                parts = [*self._parts, joined(now)]
                while (over := sum(map(len, parts)) - most) > 0:
                    kept = np.arange(min(over, len(parts[0])), len(parts[0]))
                    parts[:1] = [parts[0].take(kept)] if len(kept) else []
                self._parts, now, self._stale = self._grown(parts), [], True
            self._fresh, first = now, last

    def _grown(self, parts: list[Tasks]) -> list[Tasks]:
        """The same tasks with the rows that have come since, where they are known by name."""
        if not self._rows.grew():
            return parts
        every, lengths = [n for p in parts for n in p.names], [p.lengths for p in parts]
        known = self._rows.known(every) & [n is not None for n in every]
        names = [name for name, there in zip(every, known, strict=True) if there]
        if not names or (self._rows.counts(names) == np.concatenate(lengths)[known]).all():
            return parts
        tasks = joined(parts)
        now = self._rows.take(names)
        whole = now if known.all() else joined([tasks.take(np.flatnonzero(~known)), now])
        place = {name: i for i, name in enumerate(names, len(whole) - len(names))}
        others = iter(range(len(whole) - len(names)))
        pairs = zip(tasks.names, known, strict=True)
        return [whole.take(np.array([place[n] if there else next(others) for n, there in pairs]))]


def due_after(learned: int) -> int:
    """After how many more tasks a prior that was learned from so many is learned again: as many,
    up to 64, and then 32 to 48, so that a change of the environment is seen before 100.
    """
    return learned if learned < 64 else min(max(32, learned // 10), 48)


def pilot_size(*parts: Tasks) -> int:
    """From how many tasks of this kind the prior is learned."""
    rows = max(sum(len(p.X) for p in parts) / max(sum(map(len, parts)), 1), 1.0)
    size = rows * parts[0].X.shape[1] * parts[0].loss.outputs
    return int(max(min(max(PILOT, min(ROWS / rows, 4 * PILOT)), NUMBERS / size), 256))
