"""Row groups: what lies in each, how they are cut into blocks of whole tasks, and how one is
read.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from fmrl.errors import TableError
from fmrl.tables.stream import run_edges

TARGET = 4096  # tasks in a block, at least, where nothing else decides
FIX = "write the file again, or leave its tasks out with skip_bad_tasks"


@dataclass(frozen=True)
class Group:
    """One row group as the index found it, or the part of it that a block reads. Its runs low …
    high − 1 are used; a run is a task's consecutive rows.
    """

    file: str
    group: int
    offset: int  # number of its first row in the file
    runs: int
    head: int  # rows of the first run
    first: Any  # task id of the first run
    last: Any
    low: int = 0
    high: int = 0
    joined: bool = False  # the first run goes on from the group before
    error: str | None = None

    @property
    def used(self) -> int:
        """How many runs are used."""
        return self.high - self.low

    @property
    def place(self) -> str:
        """For messages."""
        return self.file if self.group < 0 else f"{self.file}, row group {self.group}"


@dataclass(frozen=True)
class Block:
    """Consecutive tasks that are solved and played at once, wherever they lie."""

    number: int
    first: int  # number of its first task
    tasks: int
    batch: int | None = None  # its meta-batch, where a meta-batch has several blocks
    spans: tuple[Group, ...] = ()


def open_file(file: str) -> Any:
    """The Parquet file, with its page checksums looked at where it has any."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"{file} cannot be read: {_short(error)}", fix=FIX) from None


def index_file(file: str, task: str) -> list[Group]:
    """What lies in each row group of a file; a group that cannot be read has ``error``."""
    import pyarrow as pa

    try:
        held = open_file(file)
    except TableError as error:
        return [Group(file, -1, 0, 0, 0, None, None, error=error.what)]
    found, offset = [], 0
    for g in range(held.num_row_groups):
        rows = held.metadata.row_group(g).num_rows
        try:
            ids = held.read_row_group(g, columns=[task])
            found.append(index_table(ids, task, file, g, offset))
        except (pa.ArrowException, OSError) as error:
            what = f"{file}, row group {g} cannot be read: {_short(error)}"
            found.append(Group(file, g, offset, 0, 0, None, None, error=what))
        offset += rows
    return [g for g in found if g.runs or g.error]


def index_table(table: Any, task: str, file: str, group: int, offset: int) -> Group:
    """The same of a table at hand."""
    if task not in table.column_names:
        fix = f"its columns are {', '.join(map(repr, table.column_names))}"
        raise TableError(f"{file} has no column {task!r}", fix=fix)
    ids = pl.from_arrow(table.select([task]))[task]  # type: ignore[index]
    if not len(ids):
        return Group(file, group, offset, 0, 0, None, None)
    starts = run_edges(ids)
    runs, head = len(starts) - 1, int(starts[1])
    return Group(file, group, offset, runs, head, ids[0], ids[-1], 0, runs)


def join(groups: list[Group], skip: bool) -> tuple[list[Group], list[Group]]:
    """Groups that follow each other, and those that cannot be read (``skip``; otherwise the first
    of them is an error).

    Beside a row group that cannot be read, the tasks next to it may have lost rows: they are left
    out with it, in every row group that they reach into."""
    rows: list[Group] = []
    bad: list[Group] = []
    # Where in ``rows`` something is missing, its last place in ``bad``, its files.
    gaps: list[tuple[int, int, set[str]]] = []
    files: set[str] = set()
    for g in [*groups, None]:
        if g is not None and g.error:
            if not skip:
                raise TableError(g.error, fix=FIX)
            bad.append(g)
            files.add(g.file)
            continue
        if files:
            gaps.append((len(rows), len(bad) - 1, files))
        if g is not None:
            rows.append(replace(g, joined=bool(rows) and not files and rows[-1].last == g.first))
        files = set()
    for at, last, files in gaps:
        before, after = rows[at - 1] if at else None, rows[at] if at < len(rows) else None
        # One task on both sides of what is lost.
        same = before is not None and after is not None and before.last == after.first
        left = before is not None and (same or before.file in files)
        right = after is not None and (same or after.file in files)
        beside = ([before.last] if left else []) + ([after.first] if right else [])  # type: ignore[union-attr]
        if left:
            _leave_out(rows, at - 1, -1)
        if right:
            _leave_out(rows, at, 1)
        if beside:
            names = " and ".join(dict.fromkeys(map(repr, beside)))
            what = f"{bad[last].error}; the tasks beside it, {names}, are left out too"
            bad[last] = replace(bad[last], error=what)
    return [g for g in rows if g.low < g.high], bad


def _leave_out(rows: list[Group], i: int, step: int) -> None:
    """Leave out the last run of group i (step −1) or its first (1), and what the same task has in
    the groups beyond.
    """
    while 0 <= i < len(rows):
        g = rows[i]
        beyond = g if step < 0 else rows[i + 1] if i + 1 < len(rows) else None
        goes_on = g.runs == 1 and beyond is not None and beyond.joined
        less = {"high": min(g.high, g.runs - 1)} if step < 0 else {"low": 1, "joined": False}
        rows[i] = replace(g, **less)
        if not goes_on:
            return
        i += step


def sizes(block: int, meta_batch: int) -> Iterator[tuple[int, int | None]]:
    """Tasks of each block and its meta-batch, for ever: whole meta-batches, or even parts of one.

    >>> list(itertools.islice(sizes(10, 4), 2)), list(itertools.islice(sizes(2, 5), 4))
    ([(8, None), (8, None)], [(2, 0), (2, 0), (1, 0), (2, 1)])
    """
    if meta_batch <= block:
        while True:
            yield block // meta_batch * meta_batch, None
    parts = -(-meta_batch // block)
    for batch in itertools.count():
        for p in range(parts):
            yield len(range(p, meta_batch, parts)), batch


def cut(groups: Sequence[Group], block: int | None, meta_batch: int) -> list[Block]:
    """Blocks of whole tasks. Without a size and without meta-batches, row groups stay whole, so
    that each is read once.
    """
    starts, total = [], 0  # number of the task that each group's first used run belongs to
    for g in groups:
        starts.append(total - g.joined)
        total += g.used - g.joined
    if block is None and meta_batch == 1:
        edges = [0]
        for s, g in zip(starts, groups, strict=True):
            if s + g.joined - edges[-1] >= TARGET:
                edges.append(s + g.joined)
        plan: Any = [(b - a, None) for a, b in itertools.pairwise([*edges, total])]
    else:
        plan = sizes(block or TARGET, meta_batch)
    blocks: list[Block] = []
    at = here = 0
    for size, batch in plan:
        end = min(at + size, total)
        if at >= end:
            break
        while starts[here] + groups[here].used <= at:
            here += 1
        spans, g = [], here
        while g < len(groups) and starts[g] < end:
            s, one = starts[g], groups[g]
            low, high = max(at, s), min(end, s + one.used)
            if low < high:
                runs = {"low": low - s + one.low, "high": high - s + one.low}
                spans.append(replace(one, **runs, joined=one.joined and low == s))
            g += 1
        blocks.append(Block(len(blocks), at, end - at, batch, tuple(spans)))
        at = end
    return blocks


def read_span(span: Group, columns: list[str], task: str, held: Any = None) -> tuple[Any, int]:
    """The rows of a span as an Arrow table, and the number of the first of them in the file."""
    import pyarrow as pa

    head_only = (span.low, span.high) == (0, 1) and span.runs > 1
    try:
        if held is not None:
            table = held[span.file].select(columns)
        elif head_only:  # the rest of a task that began before: no need to decode the whole group
            part = {"row_groups": [span.group], "columns": columns}
            batch = next(open_file(span.file).iter_batches(span.head, **part))
            return pa.Table.from_batches([batch]), span.offset
        else:
            table = open_file(span.file).read_row_group(span.group, columns=columns)
    except (pa.ArrowException, OSError, KeyError, StopIteration) as error:
        raise TableError(f"{span.place} cannot be read: {_short(error)}", fix=FIX) from None
    if missing := [c for c in columns if c not in table.column_names]:
        what = f"{span.file} has no column {missing[0]!r}"
        raise TableError(what, fix="all files of a folder need the same columns")
    if span.used == span.runs:
        return table, span.offset
    starts = run_edges(pl.from_arrow(table.select([task]))[task])  # type: ignore[index]
    if len(starts) - 1 != span.runs:
        what = f"{span.place} has changed since it was indexed"
        raise TableError(what, fix="start again with resume=False")
    low, high = int(starts[span.low]), int(starts[span.high])
    return table.slice(low, high - low), span.offset + low


def fingerprint(files: Sequence[str]) -> list[tuple[str, int, int]]:
    """Name, size and time of every file: what a resumed run must find again."""
    return [(os.path.basename(f), (s := os.stat(f)).st_size, s.st_mtime_ns) for f in files]


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
