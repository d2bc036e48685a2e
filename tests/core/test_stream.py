"""Streams: generators are consumed lazily, memory stays constant, an interrupt loses nothing."""

import tracemalloc

import numpy as np
import pytest
from instances import make_task, make_tasks

import fmrl
from fmrl.core import run as module


def test_a_generator_is_consumed_block_by_block(monkeypatch):
    monkeypatch.setattr(module, "MOST", 4)
    delivered, played = [], []

    def stream():
        rng = np.random.default_rng(0)
        for t in range(20):
            delivered.append(t)
            assert (
                len(delivered) - sum(played) <= 5
            )  # a block, and the task that showed it was full
            yield make_task("logistic", 3, 2, rng)

    history = fmrl.run(fmrl.FMRL(), stream(), progress=played.append)
    assert len(history) == 20 and sum(played) == 20 and max(played) <= 4


def test_an_endless_stream_can_be_stopped():
    class Enough(Exception):
        pass

    def stream():
        rng = np.random.default_rng(0)
        while True:
            yield make_task("logistic", 3, 2, rng)

    count = 0

    def progress(n):
        nonlocal count
        count += n
        if count >= 2000:
            raise Enough

    with pytest.raises(Enough) as caught:
        fmrl.run(fmrl.FMRL(), stream(), keep="scalars", progress=progress)
    assert len(caught.value.history) == caught.value.history.state.tasks >= 2000


@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIBatch()], ids=repr)
def test_generator_and_list_give_the_same(update):
    tasks = make_tasks("one-vs-all", 9, 2, np.random.default_rng(1))
    algo = fmrl.FMRL(update=update)
    a, b = fmrl.run(algo, tasks), fmrl.run(algo, (t for t in tasks))
    np.testing.assert_array_equal(a.regret, b.regret)


def test_scalars_only():
    tasks = make_tasks("one-vs-all", 9, 2, np.random.default_rng(2))
    for update in (fmrl.FAL(), fmrl.FLIOnline()):
        algo = fmrl.FMRL(update=update)
        full, thin = fmrl.run(algo, tasks), fmrl.run(algo, tasks, keep="scalars")
        np.testing.assert_array_equal(full.regret, thin.regret)
        np.testing.assert_array_equal(full.bound, thin.bound)
        np.testing.assert_array_equal(full.state.phi, thin.state.phi)
        for name in ("theta", "optimum", "losses"):
            with pytest.raises(AttributeError, match="scalars"):
                getattr(thin, name)
    with pytest.raises(AttributeError):
        _ = full.nonsense


def test_memory_does_not_grow_with_the_tasks(monkeypatch):
    """5,000 numbers a task would be 40 kB each; what is kept of a task is a few scalars."""

    def stream(count):
        rng = np.random.default_rng(0)
        for _ in range(count):
            yield fmrl.Task(
                rng.normal(size=(5, 1000)) / 32, rng.integers(0, 2, 5), loss=fmrl.Logistic()
            )

    monkeypatch.setattr(module, "MOST", 8)
    peaks = []
    for count in (24, 120):
        tracemalloc.start()
        fmrl.run(fmrl.FMRL(update=fmrl.FLIBatch()), stream(count), keep="scalars")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= 1.1 * peaks[0] + 2**16


@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIBatch()], ids=repr)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_an_interrupt_inside_the_stream_keeps_what_was_delivered(update, kind):
    tasks = make_tasks("logistic", 8, 2, np.random.default_rng(3))

    def stream():
        yield from tasks[:5]
        raise kind

    with pytest.raises(kind) as caught:
        fmrl.run(fmrl.FMRL(update=update), stream())
    history = caught.value.history
    assert len(history) == history.state.tasks == 5
    rest = fmrl.run(fmrl.FMRL(update=update), tasks[5:], state=history.state)
    whole = fmrl.run(fmrl.FMRL(update=update), tasks)
    np.testing.assert_allclose(
        np.concatenate([history.regret, rest.regret]), whole.regret, atol=1e-10
    )


def test_an_interrupt_while_playing_keeps_the_tasks_before():
    tasks = make_tasks("logistic", 6, 2, np.random.default_rng(4))

    def progress(_, seen=[]):  # noqa: B006
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        fmrl.run(fmrl.FMRL(update=fmrl.FLIOnline()), tasks, progress=progress)
    assert len(caught.value.history) == 3


@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIBatch()], ids=repr)
def test_an_interrupt_among_orders(update, monkeypatch):
    monkeypatch.setattr(module, "MOST", 2)
    tasks = make_tasks("logistic", 6, 2, np.random.default_rng(5))

    def progress(_, seen=[]):  # noqa: B006
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        orders = [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
        fmrl.run(fmrl.FMRL(update=update), tasks, orders=orders, progress=progress)
    assert caught.value.history.regret.shape == (2, 2)
