"""Rows by task in a file of SQLite, for more tasks than memory holds."""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.core.tasks import Tasks
from fmrl.core.values import parse
from fmrl.errors import FMRLError

FORMAT = "fmrl rows 1"
ASKED = 500  # names in one question
PATIENCE = 60.0  # seconds to wait for another process that writes
TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS tasks (number INTEGER PRIMARY KEY, name TEXT UNIQUE, body BLOB);
"""
# Of rows that were added one after another the bodies stand one after another.
ADD = """
INSERT INTO tasks (name, body) VALUES (?, ?) ON CONFLICT (name)
DO UPDATE SET body = CAST(body || excluded.body AS BLOB)
"""


class SQLiteRows:
    """Rows by task in one file; what `TaskRows` does in memory.

    A call of `add` is written whole or not at all, also when the process is killed. Several
    processes may use the file at once: one writes at a time, the others wait.

    Args:
        path: Of the file.
        kind: What the rows must agree in: estimator, columns, classes, loss.
        id: Of the rows to open; None to begin with none.
        old: Of rows that may be thrown away to begin, which the first `add` does.
    """

    def __init__(
        self, path: str, kind: dict[str, Any], id: str | None = None, old: str | None = None
    ):
        self.path, self.kind = os.path.abspath(path), kind
        self.id, self._file, self._version = id or uuid.uuid4().hex, None, -1
        self._anew, self._old = id is None, old
        if self._anew:
            self._begin()
        else:
            self._connect()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_file": None}

    def __contains__(self, name: Any) -> bool:
        return bool(self.known([name])[0])

    def __len__(self) -> int:
        with self._asking() as ask:
            return ask("SELECT count(*) FROM tasks").fetchone()[0]

    def __iter__(self) -> Iterator[Any]:
        last, page = 0, True
        while page:
            with self._asking() as ask:
                given = "SELECT number, name FROM tasks WHERE number > ? ORDER BY number LIMIT 1000"
                page = ask(given, (last,)).fetchall()
            yield from (json.loads(name) for _, name in page)
            last = page[-1][0] if page else last

    @property
    def nbytes(self) -> int:
        """What the rows take in the file."""
        with self._asking() as ask:
            return ask("SELECT coalesce(sum(length(body)), 0) FROM tasks").fetchone()[0]

    @property
    def changed(self) -> bool:
        """Whether another process has changed them since this was last asked."""
        with self._asking() as ask:
            version = ask("PRAGMA data_version").fetchone()[0]
            changed, self._version = version != self._version, version
            if changed:
                self._same(ask)
        return changed

    def known(self, names: Sequence[Any]) -> np.ndarray:
        """Which of these tasks have rows here, [T]."""
        keys = [_key(name) for name in names]
        found = {key for key, _ in self._select("name, 0", keys)}
        return np.array([key in found for key in keys], dtype=bool)

    def add(self, tasks: Tasks) -> None:
        """More rows, of tasks known or new; each task at most once."""
        weight = np.ones(len(tasks.X)) if tasks.weight is None else tasks.weight
        whole = np.concatenate([tasks.X, tasks.target, weight[:, None]], axis=1).astype("<f8")
        places, names = tasks.starts.tolist(), [_key(name) for name in tasks.names]
        bodies = (whole[a:b].tobytes() for a, b in pairwise(places))
        with self._writing(check=not self._anew) as file:
            if self._anew:
                self._vacant(file)
                file.execute("DELETE FROM tasks")
                said = {"format": FORMAT, "id": self.id, "kind": json.dumps(self.kind)}
                file.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", said.items())
            file.executemany(ADD, zip(names, bodies, strict=True))
        self._anew = False

    def take(self, names: Sequence[Any]) -> Tasks:
        """Some tasks, each with all its rows in the order in which they came."""
        keys = [_key(name) for name in names]
        found = dict(self._select("name, body", keys))
        bodies = [found[key] for key in keys]
        loss, wide = self._shape()
        rows = np.frombuffer(b"".join(bodies), dtype="<f8").reshape(-1, wide)
        starts = np.cumsum([0, *(len(body) // (8 * wide) for body in bodies)])
        weight = rows[:, -1]
        plain = bool((weight == 1).all())
        X, target = rows[:, : self.kind["width"]], rows[:, self.kind["width"] : -1]
        given = (np.ascontiguousarray(a) for a in (X, target))
        tasks = Tasks(loss, *given, starts, list(names))
        if plain:
            return tasks
        return replace(tasks, weight=np.array(weight), heaviest=float(weight.max()))

    def _shape(self) -> tuple[Any, int]:
        """The loss of the rows, and how many numbers one has."""
        loss = parse(self.kind["loss"])
        return loss, self.kind["width"] + max(loss.outputs, 1) + 1

    def forget(self, name: Any) -> None:
        """Drop a task; its rows are overwritten in the file."""
        with self._writing() as file:
            file.execute("DELETE FROM tasks WHERE name = ?", (_key(name),))

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        if self._file is not None and self._file[0] == os.getpid():
            self._file[1].close()
        self._file = None

    def _select(self, what: str, keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
        found = []
        with self._asking() as ask:
            for i in range(0, len(keys), ASKED):
                some = keys[i : i + ASKED]
                marks = ", ".join("?" * len(some))
                found += ask(f"SELECT {what} FROM tasks WHERE name IN ({marks})", some).fetchall()
        return iter(found)

    def _begin(self) -> None:
        """Make the file; rows of others are not touched."""
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        with self._said():
            file = self._open_file()
            file.executescript(TABLES)
        with self._writing(check=False) as file:
            self._vacant(file)

    def _vacant(self, file: sqlite3.Connection) -> None:
        """Refuse a file with tasks of another estimator."""
        about = dict(file.execute("SELECT name, value FROM about").fetchall())
        tasks = file.execute("SELECT count(*) FROM tasks").fetchone()[0]
        if tasks and about.get("id") != self._old:
            what = f"the store {self.path} holds {tasks:,} tasks of another estimator"
            fix = "load that estimator, give another path as store=, or delete the file"
            raise FMRLError(what, fix=fix)

    def _connect(self) -> sqlite3.Connection:
        """The connection of this process; one that was inherited is left alone."""
        if self._file is None or self._file[0] != os.getpid():
            if not os.path.isfile(self.path):
                fix = "put the file back where it was"
                raise FMRLError(f"the store {self.path} is gone", fix=fix)
            with self._said():
                file = self._open_file()
                self._same(file.execute)
        assert self._file is not None
        return self._file[1]

    def _open_file(self) -> sqlite3.Connection:
        # The estimator's lock sees to it that one thread at a time is here.
        file = sqlite3.connect(
            self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )
        for line in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON"):
            file.execute(f"PRAGMA {line}")
        self._file = (os.getpid(), file)
        return file

    def _same(self, ask: Callable[..., Any]) -> None:
        """Refuse rows of others."""
        try:
            about = dict(ask("SELECT name, value FROM about").fetchall())
        except sqlite3.OperationalError:
            about = {}
        if about.get("format") != FORMAT or about.get("id") != self.id:
            held = json.loads(about["kind"]) if about.get("format") == FORMAT else {}
            names = (n for n in self.kind if held.get(n) != self.kind[n])
            odd = next(names, None)
            what = f"the store {self.path} holds rows of another estimator"
            if held and odd is not None:
                what += f", whose {odd} is {held[odd]!r}, not {self.kind[odd]!r}"
            self.close()
            raise FMRLError(what, fix="load the estimator it was begun by")

    @contextmanager
    def _asking(self) -> Iterator[Callable[..., Any]]:
        file = self._connect()
        with self._said():
            yield file.execute

    @contextmanager
    def _writing(self, check: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it or nothing."""
        file = self._connect() if check else self._file[1]  # type: ignore[index]
        with self._said():
            file.execute("BEGIN IMMEDIATE")
            try:
                if check:
                    self._same(file.execute)
                yield file
            except BaseException:
                if file.in_transaction:
                    file.execute("ROLLBACK")
                raise
            file.execute("COMMIT")

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Errors of SQLite in words."""
        try:
            yield
        except sqlite3.Error as error:
            fix = "see that it is a file of this library, on a disk with room"
            raise FMRLError(f"the store {self.path}: {error}", fix=fix) from None


def not_utf8(text: str) -> FMRLError:
    """The error for an id, a label or the name of a column that can be in no file."""
    return FMRLError(f"{text!r} is a text that UTF-8 cannot encode", fix="rename it before fitting")


def _key(name: Any) -> str:
    """A name as text, the same for names that are equal."""
    if isinstance(name, str):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise not_utf8(name) from None
    if name is None or isinstance(name, (str, int, float)):
        whole = isinstance(name, (bool, float)) and name == name and abs(name) < 2**63
        return json.dumps(int(name) if whole and int(name) == name else name, ensure_ascii=False)
    what = f"the task id {name!r} is neither a number nor text"
    raise FMRLError(what, fix="convert ids to text before fitting")
