"""One exception for everything a user can get wrong: what, where, and what to do about it."""

from typing import Any


class FMRLError(ValueError):
    """Bad input or an impossible request.

    ``task`` and ``round`` say where (counted from 0; None when it does not apply). When a run stops at task t, ``state`` is
    the State before that task and ``history`` holds what was played, so that nothing is lost.

    >>> raise FMRLError("X has a NaN", task=3, round=1, fix="drop or impute the row")
    Traceback (most recent call last):
        ...
    fmrl.core.errors.FMRLError: task 3, round 1: X has a NaN; drop or impute the row
    """

    def __init__(self, what: str, *, task: int | None = None, round: int | None = None, fix: str | None = None):
        self.what, self.task, self.round, self.fix = what, task, round, fix
        self.state: Any = None
        self.history: Any = None
        super().__init__(what)

    def __str__(self) -> str:
        where = ", ".join(f"{name} {i}" for name, i in (("task", self.task), ("round", self.round)) if i is not None)
        return (f"{where}: " if where else "") + self.what + (f"; {self.fix}" if self.fix else "")

    def __reduce__(self):
        # Exceptions cross process boundaries by their positional arguments alone; ours are keywords.
        return (_rebuild, (self.what, self.task, self.round, self.fix))


def _rebuild(what, task, round, fix):
    return FMRLError(what, task=task, round=round, fix=fix)
