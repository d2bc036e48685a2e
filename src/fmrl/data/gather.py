"""Bringing the rows of each task together, in memory or out of core.

Out of core takes two passes and a scratch folder about as large as the columns used. The first pass counts each task's rows and
notes where it first appears (memory: one entry a task). Tasks are then dealt, in order of first appearance, into bins of about
``rows`` rows; the second pass copies every row to its bin's files; then one bin at a time is read and sorted. Memory holds about
two bins at a time, whatever the size of the file.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl

RANK, ROW = "__fmrl_rank", "__fmrl_row"


def batches(frame: pl.LazyFrame | pl.DataFrame, size: int, seekable: bool = False) -> Iterator[pl.DataFrame]:
    """Blocks of about ``size`` rows in file order; a frame in memory is one block.

    seekable (Parquet and Arrow files): blocks are read by their position, which holds one block in memory; a single query
    would read ahead by as much as the file.
    """
    if isinstance(frame, pl.DataFrame):
        yield frame
    elif seekable:
        total = frame.select(pl.len()).collect(engine="streaming").item()
        for start in range(0, total, size):
            yield frame.slice(start, size).collect(engine="streaming")
    else:
        yield from (b for b in frame.collect_batches(chunk_size=size, maintain_order=True, lazy=True) if len(b))


def gathered(
    frame: pl.LazyFrame | pl.DataFrame, task: str, rows: int, scratch: str | Path | None = None, seekable: bool = False
) -> Iterator[pl.DataFrame]:
    """Blocks in which every task's rows are together, whole, in their own order; tasks in order of first appearance."""
    if isinstance(frame, pl.DataFrame):
        first = frame.with_row_index(ROW).with_columns(pl.col(ROW).min().over(task).alias(RANK))
        yield first.sort(RANK, ROW).drop(RANK, ROW)
        return
    bins = _bins(frame, task, rows)
    folder = Path(tempfile.mkdtemp(prefix="fmrl-gather-", dir=scratch))
    try:
        _deal(batches(frame, min(rows, 200_000), seekable), task, bins, rows, folder)
        for number in range(int(bins["bin"].max() or 0) + 1):
            files = sorted((folder / str(number)).glob("*.arrow"))
            block = pl.concat([pl.read_ipc(f) for f in files])
            yield block.sort(RANK, maintain_order=True).drop(RANK)
            shutil.rmtree(folder / str(number))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bins(frame: pl.LazyFrame, task: str, rows: int) -> pl.DataFrame:
    """One row a task: its rank by first appearance and its bin."""
    counted = frame.select(task).with_row_index(ROW).group_by(task).agg(pl.col(ROW).min(), pl.len().alias("n"))
    ranked = counted.collect(engine="streaming").sort(ROW).drop(ROW).with_row_index(RANK)
    # Ranked again, because a task larger than a bin would leave a number unused.
    return ranked.select(task, RANK, (((pl.col("n").cum_sum() - 1) // rows).rank("dense") - 1).alias("bin"))


def _deal(blocks: Iterator[pl.DataFrame], task: str, bins: pl.DataFrame, rows: int, folder: Path) -> None:
    waiting: dict[int, list[pl.DataFrame]] = {}
    held = written = 0

    def flush() -> None:
        nonlocal held, written
        for number, parts in waiting.items():
            (folder / str(number)).mkdir(exist_ok=True)
            pl.concat(parts).write_ipc(folder / str(number) / f"{written:06d}.arrow", compression="lz4")
        waiting.clear()
        held, written = 0, written + 1

    for block in blocks:
        known = block.join(bins, on=task, how="left", maintain_order="left", nulls_equal=True)
        for (number,), part in known.partition_by("bin", as_dict=True, include_key=False, maintain_order=True).items():
            waiting.setdefault(int(number), []).append(part)
        held += len(block)
        if held >= rows:
            flush()
    flush()
