"""Bringing the rows of each task together, in memory or out of core.

Out of core takes two passes and a scratch folder about as large as the columns used. The first pass
counts each task's rows and notes where it first appears (memory: one entry a task). Tasks are then
dealt, in order of first appearance, into bins of about ``rows`` rows; the second pass copies every
row to its bin's files; then one bin at a time is read and sorted. Memory holds about two bins at a
time, whatever the size of the file. Every row carries its number in the table, for the order and
for messages."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from fmrl.errors import TableError
from fmrl.tables.reading import free_names


def batches(
    frame: pl.LazyFrame | pl.DataFrame, size: int, row: str, seekable: bool = False
) -> Iterator[pl.DataFrame]:
    """Blocks of about ``size`` rows in file order, with their numbers in column ``row``; a frame in
    memory is one block.

    seekable (Parquet and Arrow files): blocks are read by their position, which holds one block in
    memory; a single query would read ahead by as much as the file."""
    done = 0
    for block in _blocks(frame, size, seekable):
        if len(block):
            yield block.with_row_index(row, offset=done)
            done += len(block)


def _blocks(
    frame: pl.LazyFrame | pl.DataFrame, size: int, seekable: bool
) -> Iterator[pl.DataFrame]:
    if isinstance(frame, pl.DataFrame):
        yield frame
    elif seekable:
        total = frame.select(pl.len()).collect(engine="streaming").item()
        for start in range(0, total, size):
            yield frame.slice(start, size).collect(engine="streaming")
    else:
        yield from frame.collect_batches(chunk_size=size, maintain_order=True, lazy=True)


def gathered(
    frame: pl.LazyFrame | pl.DataFrame,
    task: str,
    rows: int,
    row: str,
    *,
    scratch: str | Path | None = None,
    seekable: bool = False,
) -> Iterator[pl.DataFrame]:
    """Blocks in which every task's rows are together, whole, in their own order; tasks in order of
    first appearance.
    """
    names = frame.collect_schema().names()
    rank, number, size = free_names([*names, row], "rank", "bin", "size")
    if isinstance(frame, pl.DataFrame):
        first = frame.with_row_index(row).with_columns(pl.col(row).min().over(task).alias(rank))
        yield first.sort(rank, row).drop(rank)
        return
    bins = _bins(frame, task, rows, (row, rank, number, size))
    if scratch is not None and not Path(scratch).is_dir():
        raise TableError(
            f"the scratch folder {scratch} does not exist", fix="create it, or leave scratch out"
        )
    folder = Path(tempfile.mkdtemp(prefix="fmrl-gather-", dir=scratch))
    try:
        _deal(batches(frame, min(rows, 200_000), row, seekable), task, bins, number, rows, folder)
        for bin_ in range(int(bins[number].max()) + 1 if len(bins) else 0):
            files = sorted((folder / str(bin_)).glob("*.arrow"))
            yield pl.concat([pl.read_ipc(f) for f in files]).sort(rank, row).drop(rank)
            shutil.rmtree(folder / str(bin_))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bins(
    frame: pl.LazyFrame, task: str, rows: int, names: tuple[str, str, str, str]
) -> pl.DataFrame:
    """One row a task: its rank by first appearance and its bin."""
    row, rank, number, size = names
    counted = (
        frame.select(task)
        .with_row_index(row)
        .group_by(task)
        .agg(pl.col(row).min(), pl.len().alias(size))
    )
    ranked = counted.collect(engine="streaming").sort(row).drop(row).with_row_index(rank)
    # Ranked again, because a task larger than a bin would leave a number unused.
    return ranked.select(
        task, rank, (((pl.col(size).cum_sum() - 1) // rows).rank("dense") - 1).alias(number)
    )


def _deal(
    blocks: Iterator[pl.DataFrame],
    task: str,
    bins: pl.DataFrame,
    number: str,
    rows: int,
    folder: Path,
) -> None:
    waiting: dict[int, list[pl.DataFrame]] = {}
    held = written = 0

    def flush() -> None:
        nonlocal held, written
        for bin_, parts in waiting.items():
            (folder / str(bin_)).mkdir(exist_ok=True)
            pl.concat(parts).write_ipc(
                folder / str(bin_) / f"{written:06d}.arrow", compression="lz4"
            )
        waiting.clear()
        held, written = 0, written + 1

    for block in blocks:
        # A row without a task id has a bin too: it is reported with its number when its bin is
        # read.
        known = block.join(bins, on=task, how="left", nulls_equal=True)
        for (bin_,), part in known.partition_by(number, as_dict=True, include_key=False).items():
            waiting.setdefault(int(bin_), []).append(part)
        held += len(block)
        if held >= rows:
            flush()
    flush()
