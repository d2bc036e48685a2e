"""The ways data can be wrong, each with its own name; all are ``fmrl.FMRLError``."""

from fmrl.core.errors import FMRLError


class DataError(FMRLError):
    """A data set, file or table that cannot be used as it is.

    >>> raise ChecksumError("a.zip is not the published file", fix="delete it and fetch it again")
    Traceback (most recent call last):
        ...
    fmrl.data.errors.ChecksumError: a.zip is not the published file; delete it and fetch it again
    """

    def __reduce__(self):
        # Keeps the kind of the error when it crosses a process boundary.
        return (_rebuild, (type(self), self.what, self.task, self.round, self.fix))


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


def _rebuild(kind, what, task, round, fix):
    return kind(what, task=task, round=round, fix=fix)
