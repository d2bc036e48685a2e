"""The errors a user can meet: each says what is wrong, where, and what to do about it."""

import sys
import warnings
from collections.abc import Iterable
from typing import Any

_LIBRARIES = ("fmrl", "sklearn", "joblib")  # whose lines are not the user's


class FMRLError(ValueError):
    """Bad input or an impossible request.

    ``task`` and ``round`` say where (counted from 0; None when it does not apply). When a run
    stops at task t, ``state`` is the State before that task and ``history`` holds what was
    played, so that nothing is lost.

    >>> raise FMRLError("X has a NaN", task=3, round=1, fix="drop or impute the row")
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: task 3, round 1: X has a NaN; drop or impute the row
    """

    def __init__(
        self,
        what: str,
        *,
        task: int | None = None,
        round: int | None = None,
        fix: str | None = None,
    ):
        self.what, self.task, self.round, self.fix = what, task, round, fix
        self.state: Any = None
        self.history: Any = None
        super().__init__(what)

    def __str__(self) -> str:
        where = ", ".join(
            f"{name} {i}"
            for name, i in (("task", self.task), ("round", self.round))
            if i is not None
        )
        return (f"{where}: " if where else "") + self.what + (f"; {self.fix}" if self.fix else "")

    def __reduce__(self):
        # Exceptions cross process boundaries by their positional arguments alone; ours are
        # keywords.
        return (_rebuild, (type(self), self.what, self.task, self.round, self.fix))


def _rebuild(kind, what, task, round, fix):
    return kind(what, task=task, round=round, fix=fix)


class InputWarning(UserWarning):
    """Something about the rows or their tasks that is probably not meant."""


_OTHER_NAMES = {  # arguments that other libraries have, and what to do here
    "groups": "give the task of every row as task=",
    "class_weight": "weigh rows by sample_weight= of fit",
}


def refuse_other_names(function: str, given: Iterable[str]) -> None:
    """Raise TypeError for an argument that another library has and this one calls otherwise.

    Args:
        function: That was given the arguments.
        given: Their names.

    >>> refuse_other_names("f", ["groups"])
    Traceback (most recent call last):
        ...
    TypeError: f() got an unexpected keyword argument 'groups': give the task of every row as task=
    """
    for name in given:
        if name in _OTHER_NAMES:
            what = f"{function}() got an unexpected keyword argument {name!r}"
            raise TypeError(f"{what}: {_OTHER_NAMES[name]}")


def warn(message: str) -> None:
    """Say that something is probably not meant, and at which line of the user's own: the first
    that lies neither in this package nor in scikit-learn, whose loops may have called us.
    """
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, InputWarning, stacklevel=level)


class DataError(FMRLError):
    """A data set, file or table that cannot be used as it is.

    >>> raise ChecksumError("a.zip is not the published file", fix="delete it and fetch it again")
    Traceback (most recent call last):
        ...
    fmrl.errors.ChecksumError: a.zip is not the published file; delete it and fetch it again
    """


class FetchError(DataError):
    """The data is not here and could not be brought here."""


class ChecksumError(DataError):
    """A file is here, but it is not the file that was published."""


class ArchiveError(DataError):
    """An archive is truncated, hostile or not an archive."""


class LayoutError(DataError):
    """The files are readable but not arranged, counted or encoded as the data set's layout says."""


class PickleError(DataError):
    """A pickle asks for something other than plain containers and NumPy arrays."""


class TableError(DataError):
    """A user's table has a column, a value or a row order that cannot become tasks."""
