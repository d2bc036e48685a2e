"""Threads that have tasks of their own, which on a CPU beats splitting every small product between
the cores: threads that share a product wait for each other, and most where neighbours hold one up.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

_OUTSIDE = threading.local()


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
    list(pool.map(lambda i: torch.zeros(1) + i, range(count)))
    return pool


def _forked() -> None:
    """A forked process has none of the threads that torch and `_pool` would wait for."""
    _pool.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def available() -> int:
    """How many threads there are for tasks: torch's number, inside `alone` too."""
    return getattr(_OUTSIDE, "threads", 0) or torch.get_num_threads()


@contextmanager
def alone():
    """Inside, what this thread calls runs on it alone. Helpers that torch had waked would go on to
    spin for milliseconds on a core that another task needs.
    """
    if (mine := torch.get_num_threads()) == 1:
        yield
        return
    _OUTSIDE.threads = mine
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _OUTSIDE.threads = 0
        torch.set_num_threads(mine)


def share(jobs: Sequence[Callable[[], None]], threads: int) -> None:
    """Run the jobs, at most ``threads`` at a time, each on one thread; one thread is this one.

    >>> done = []
    >>> share([lambda: done.append(1), lambda: done.append(2)], 2)
    >>> sorted(done)
    [1, 2]
    """
    if threads == 1 or len(jobs) == 1:
        for job in jobs:
            job()
        return
    pool = _pool(threads - 1)
    with alone():
        futures = [pool.submit(job) for job in jobs[1:]]
        try:
            jobs[0]()
            for future in futures:
                future.result()
        finally:  # stopped or not, nobody goes on writing to what the caller will use again
            wait(futures)


def spread(
    play: Callable[[int, slice, range, Any], Any], pieces: Sequence[slice], steps: int, threads: int
) -> None:
    """Play all steps of all pieces: play(worker, tasks, steps, what the last call for these tasks
    returned). A thread that is held up takes fewer pieces. Of pieces that are `halved` one thread
    plays the first steps before anything else, and another the rest after everything else.
    """
    count, half = len(pieces) - halved(len(pieces), threads), (steps + 1) // 2
    waiting, last = deque(pieces[:count]), pieces[count:]
    handed: list[Future] = [Future() for _ in last]

    def job(worker: int) -> None:
        try:
            if worker < len(last):
                handed[worker].set_result(play(worker, last[worker], range(half), None))
            while (tasks := _next(waiting)) is not None:
                play(worker, tasks, range(steps), None)
            if 0 <= (at := worker - len(last)) < len(last):
                play(worker, last[at], range(half, steps), handed[at].result())
        except BaseException as error:  # else others would go on, or wait
            waiting.clear()
            if worker < len(last) and not handed[worker].done():
                handed[worker].set_exception(error)
            raise

    share([partial(job, worker) for worker in range(threads)], threads)


def _next(waiting: deque[slice]) -> slice | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


def halved(count: int, threads: int) -> int:
    """How many of ``count`` pieces are played by two threads each, half of the steps by either:
    those left over after every thread had as many, where there are two threads for each of them.

    >>> halved(5, 2), halved(4, 2), halved(5, 4), halved(7, 4), halved(3, 4)
    (1, 0, 1, 0, 0)
    """
    left = count % threads
    return left if count > threads and 2 * left <= threads else 0


def each_of(tasks: int) -> int:
    """Tasks of a piece, so that all threads have as much to do."""
    threads = available()
    return tasks // threads if halved(tasks, threads) else -(-tasks // threads)
