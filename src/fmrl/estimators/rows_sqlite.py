"""Rows by task in a file of SQLite, for more tasks than memory holds."""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.core.losses import Loss
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.rows import TaskRows, rows_as_bytes

LOCK_TIMEOUT = 60.0  # seconds to wait for another process that writes
TABLES = """
CREATE TABLE IF NOT EXISTS owner (id TEXT);
CREATE TABLE IF NOT EXISTS tasks (number INTEGER PRIMARY KEY, name TEXT UNIQUE, body BLOB);
"""
# Of rows that were added one after another the bodies stand one after another.
ADD_ROWS = """
INSERT INTO tasks (name, body) VALUES (?, ?) ON CONFLICT (name)
DO UPDATE SET body = CAST(body || excluded.body AS BLOB)
"""


class SQLiteRows(TaskRows):
    """Rows by task in one file; what `TaskRows` does in memory.

    A call of `add` is written whole or not at all, also when the process is killed. Several
    processes may use the file at once: one writes at a time, the others wait.

    Args:
        path: Of the file.
        loss: Of the tasks.
        width: How many columns a row has.
        id: Of the rows to open; None to begin with none.
        old: Of rows that may be thrown away to begin, which the first `add` does.
    """

    def __init__(
        self, path: str, loss: Loss, width: int, id: str | None = None, old: str | None = None
    ):
        super().__init__(loss, width)
        self.path = os.path.abspath(path)
        self.id, self._old, self.begun = id or uuid.uuid4().hex, old, id is not None
        self._file: tuple[int, sqlite3.Connection] | None = None  # and the process that opened it
        self.known([])  # rows of others are refused at once

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_file": None}

    def __len__(self) -> int:
        with self._transaction() as file:
            return file.execute("SELECT count(*) FROM tasks").fetchone()[0]

    def __iter__(self) -> Iterator[Any]:
        with self._transaction() as file:
            found = file.execute("SELECT name FROM tasks ORDER BY number").fetchall()
        return (json.loads(name) for (name,) in found)

    @property
    def nbytes(self) -> int:
        """What the rows take in the file."""
        with self._transaction() as file:
            return file.execute("SELECT coalesce(sum(length(body)), 0) FROM tasks").fetchone()[0]

    def known(self, names: Sequence[Any]) -> np.ndarray:
        """Which of these tasks have rows here, [T]."""
        return np.array([found is not None for found in self._select("1", names)], dtype=bool)

    def add(self, tasks: Tasks) -> None:
        """More rows, of tasks known or new; each task at most once."""
        names = map(_name_as_text, tasks.names)
        with self._transaction(write=True) as file:
            if not self.begun:
                file.execute("DELETE FROM tasks")
                file.execute("DELETE FROM owner")
                file.execute("INSERT INTO owner VALUES (?)", (self.id,))
            file.executemany(ADD_ROWS, zip(names, rows_as_bytes(tasks), strict=True))
        self.begun = True

    def forget(self, name: Any) -> None:
        """Drop a task; its rows are overwritten in the file."""
        with self._transaction(write=True) as file:
            file.execute("DELETE FROM tasks WHERE name = ?", (_name_as_text(name),))

    def reserve(self) -> None:
        """Make the file, before rows come: that of another estimator is refused."""
        with self._transaction(write=True):
            pass

    def _bytes_of(self, names: Sequence[Any]) -> list[bytes]:
        return [body for (body,) in self._select("body", names)]

    def _select(self, what: str, names: Sequence[Any]) -> list[Any]:
        """What a query finds for every name; None where the task is not there."""
        query = f"SELECT {what} FROM tasks WHERE name = ?"
        with self._transaction() as file:
            return [file.execute(query, (_name_as_text(name),)).fetchone() for name in names]

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        """The file in one transaction: all of it or nothing, of one state of the file."""
        try:
            with self._connection(write) as file:  # it commits, or rolls back
                file.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                self._refuse_others(file)
                yield file
        except sqlite3.Error as error:
            fix = "see that it is a file of this library, on a disk with room"
            raise FMRLError(f"the store {self.path}: {error}", fix=fix) from None

    def _connection(self, write: bool) -> sqlite3.Connection:
        """The connection of this process; one that was inherited is left alone. Before rows came
        readers find none and make no file: loading an estimator writes nothing.
        """
        if not (self.begun or write):
            nothing = sqlite3.connect(":memory:", isolation_level=None)
            nothing.executescript(TABLES)
            return nothing
        if self._file is None or self._file[0] != os.getpid():
            if self.begun and not os.path.isfile(self.path):
                fix = "put the file back where it was"
                raise FMRLError(f"the store {self.path} is gone", fix=fix)
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            # The estimator's lock sees to it that one thread at a time is here.
            file = sqlite3.connect(
                self.path, timeout=LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
            )
            for line in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON"):
                file.execute(f"PRAGMA {line}")
            if not self.begun:
                file.executescript(TABLES)
            self._file = os.getpid(), file
        return self._file[1]

    def _refuse_others(self, file: sqlite3.Connection) -> None:
        """Refuse rows of another estimator."""
        owner = file.execute("SELECT id FROM owner").fetchone() or (None,)
        if self.begun and owner[0] != self.id:
            what = f"the store {self.path} holds rows of another estimator"
            raise FMRLError(what, fix="load the estimator it was begun by")
        if not self.begun and owner[0] not in (None, self._old):
            tasks = file.execute("SELECT count(*) FROM tasks").fetchone()[0]
            what = f"the store {self.path} holds {tasks:,} tasks of another estimator"
            fix = "load that estimator, give another path as store=, or delete the file"
            raise FMRLError(what, fix=fix)


def check_name(name: Any) -> Any:
    """The name of a task, if a file can hold it.

    Args:
        name: None, a number or a text; anything else is refused.
    """
    if name is None or isinstance(name, (str, int, float)):
        return name
    what = f"the task id {name!r} is neither a number nor text"
    raise FMRLError(what, fix="convert ids to text before fitting")


def _name_as_text(name: Any) -> str:
    """A name as text, the same for names that are equal."""
    whole = isinstance(name, (bool, float)) and float(name).is_integer()
    return json.dumps(int(name) if whole else check_name(name))
