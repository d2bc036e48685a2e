"""One estimator from two threads at once; benchmarks/soak runs every pair, many times."""

import itertools
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threads

import fmrl
from fmrl.errors import FMRLError

WRITES = [operation.__name__ for operation in threads.WRITES]
# Every operation beside the first writer that could tear it, and beside a fit from the beginning.
SHARE = [*((name, "partial_fit") for name in threads.OPERATIONS), ("save", "save")]
SHARE += [(name, "fit") for name in ("predict", "describe", "stream", "save")]
SHARE += [("stream", "update"), ("forget", "stream"), ("predict", "stream")]


@pytest.mark.parametrize(("one", "other"), SHARE)
def test_two_operations_at_once(one, other):
    assert threads.pair(one, other, seed=0, rounds=2) == []


def test_every_pair_with_a_writer_is_in_the_soak():
    """Of those that read, any number may run at once with one that writes."""
    listed = {frozenset(pair) for pair in threads.PAIRS}
    assert all({a, b} in listed for a, b in itertools.product(threads.OPERATIONS, WRITES))
    assert all(frozenset(pair) in listed for pair in SHARE)


def at_once(work, count=8):
    """What ``work`` gives in several threads that start together."""
    gate = threading.Barrier(count)

    def begin(i):
        gate.wait()
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def test_the_first_predictions_after_fit_know_every_task(tmp_path):
    """Nobody is told that a task was not seen, however many ask first."""
    shared = threads.Shared(0, tmp_path)
    fresh = fmrl.MetaRegressor(common="linear").fit(shared.X, shared.y, task=shared.task)
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        said = at_once(lambda i: fresh.predict(shared.X, task=shared.task))
    assert not log and all(np.array_equal(a, said[0]) for a in said)


def test_first_tasks_from_many_threads_all_count(tmp_path):
    shared = threads.Shared(0, tmp_path, fitted=False)
    at_once(lambda i: threads.partial_fit(shared))
    assert len(shared.estimator.tasks_) == 8


def test_one_stream_from_many_threads_learns_every_row_once(tmp_path):
    shared = threads.Shared(0, tmp_path)
    stream = shared.estimator.stream("together")

    def rounds(i):
        for x, y in zip(shared.X[i::8], shared.y[i::8], strict=True):
            assert np.isfinite(stream.predict(x))
            stream.learn(x, y)

    at_once(rounds)
    at_once(lambda i: stream.close())
    assert stream.rounds == len(shared.X)
    held = shared.estimator._rows.take(["together"]).X
    assert sorted(map(tuple, held)) == sorted(map(tuple, shared.X))
    with pytest.raises(FMRLError, match="closed"):
        stream.predict(shared.X[0])


@pytest.mark.parametrize("size", [1e160, 1e200, 1e300])
def test_a_stream_of_huge_numbers_is_refused_in_words(size, tmp_path):
    shared = threads.Shared(0, tmp_path)
    with pytest.raises(FMRLError, match="scale X and y"):
        shared.estimator.stream().learn(size * shared.X[0], size * shared.y[0])
