"""Threads that each play their own tasks: on a CPU that beats splitting every small product between
the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

import torch


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
    list(pool.map(lambda i: torch.zeros(1) + i, range(count)))
    return pool


def share(jobs: Sequence[Callable[[], None]], threads: int) -> None:
    """Run the jobs, at most ``threads`` at a time, each on one thread of its own; with one thread,
    in this one.

    >>> done = []
    >>> share([lambda: done.append(1), lambda: done.append(2)], 2)
    >>> sorted(done)
    [1, 2]
    """
    if threads == 1 or len(jobs) == 1:
        for job in jobs:
            job()
        return
    mine = torch.get_num_threads()
    futures = [_pool(threads).submit(job) for job in jobs]
    try:
        for future in futures:
            future.result()
    finally:  # stopped or not, nobody goes on writing to what the caller will use again
        wait(futures)
    if torch.get_num_threads() != mine:
        torch.set_num_threads(mine)
