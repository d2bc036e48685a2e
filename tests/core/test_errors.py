"""Whatever a user can get wrong: one exception type that says what, where and what to do, with
the state intact.
"""

import copy
import math
import pickle

import array_api_strict
import numpy as np
import pytest
import torch
from instances import make_tasks

import fmrl

GOOD = [fmrl.Task(np.eye(2) + 0.1 * t, [0, 1], loss=fmrl.Logistic()) for t in range(6)]
X, Y = np.eye(2), [0, 1]


def task(*data, loss=fmrl.Logistic()):
    """A call that makes a task."""
    return lambda: fmrl.Task(*data, loss=loss)


def run(*phi, **options):
    """A call that plays the good tasks."""
    return lambda: fmrl.run(fmrl.FMRL(), GOOD, *phi, **options)


def init(phi, domain=fmrl.Ball(1.0)):
    """A call that begins at phi."""
    return lambda: fmrl.FMRL(domain).init(phi)


FREE = fmrl.FMRL(fmrl.Euclidean(), similarity=fmrl.Known(1.0))
SQUARED = [fmrl.Task(X, Y, loss=fmrl.Squared())]
MIXED = [*GOOD, fmrl.Task(X, Y, loss=fmrl.Hinge())]
CONSTRUCTION = {  # what is done, what the error says, and in which round it is
    "NaN in X": (task([[1.0, 0.0], [math.nan, 0.0]], Y), "NaN or an infinity", 1),
    "infinity in X": (task([[math.inf, 0.0], [1.0, 0.0]], Y), "NaN or an infinity", 0),
    "NaN in y": (task(X, [0.0, math.nan], loss=fmrl.Squared()), "y is nan", 1),
    "infinite y": (task(X, [math.inf, 0.0], loss=fmrl.Squared()), "y is inf", 0),
    "NaN label": (task(X, [0.0, math.nan], loss=fmrl.OneVsAll(2)), "not among the classes", 1),
    "NaN binary label": (task(X, [0.0, math.nan]), "nan", 1),
    "NaN in costs": (task([[0.0, math.nan]], loss=fmrl.Linear()), "NaN", 0),
    "no rounds": (task(np.zeros((0, 3)), []), "empty", None),
    "no features": (task(np.zeros((3, 0)), [0, 1, 0]), "empty", None),
    "X is flat": (task(np.zeros(3), [0, 1, 0]), r"\[rounds, features\]", None),
    "X is deep": (task(np.zeros((3, 1, 1)), [0, 1, 0]), r"\[rounds, features\]", None),
    "ragged rows": (task([[1.0], [1.0, 2.0]], Y), "different lengths", None),
    "text as X": (task([["a"], ["b"]], Y), "not a real number", None),
    "complex X": (task([[1j], [1.0]], Y), "not a real number", None),
    "too few labels": (task(X, [0]), "2 rows but y has 1", None),
    "one label for all": (task(X, 1), "one-dimensional", None),
    "labels in columns": (task(X, np.eye(2), loss=fmrl.OneVsAll(2)), "one-dimensional", None),
    "no labels": (task(X, loss=fmrl.OneVsAll(2)), "needs labels", None),
    "labels for costs": (task(X, Y, loss=fmrl.Linear()), "no labels", None),
    "unseen number": (task(X, [0, 2], loss=fmrl.OneVsAll(2)), "label 2 is not among", 1),
    "unseen string": (task(X, ["a", "c"], loss=fmrl.Softmax(["a", "b"])), "label 'c' is not", 1),
    "unseen binary": (task(X, [1, 2], loss=fmrl.Hinge()), "neither", 1),
    "both 0 and -1": (task(X, [0, -1], loss=fmrl.Hinge()), "neither", None),
    "unhashable": (task(X, [{}, {}], loss=fmrl.OneVsAll(2)), "label", 0),
    "text as y": (task(X, ["a", "b"], loss=fmrl.Squared()), "not a real number", None),
    "mixed namespaces": (task(X, torch.tensor(Y)), "one kind", None),
    "mixed the other way": (task(torch.eye(2), array_api_strict.asarray(Y)), "one kind", None),
    "epsilon 0": (lambda: fmrl.Doubling(0.0, 1.1), "epsilon must be positive", None),
    "epsilon < 0": (lambda: fmrl.Doubling(-0.1, 1.1), "epsilon must be positive", None),
    "epsilon NaN": (lambda: fmrl.Doubling(math.nan, 1.1), "epsilon must be positive", None),
    "gamma < 1": (lambda: fmrl.Doubling(0.1, 0.9), "gamma must be at least 1", None),
    "gamma NaN": (lambda: fmrl.Doubling(0.1, math.nan), "gamma must be at least 1", None),
    "released epsilon": (lambda: fmrl.ReleasedDoubling(0.0, 1.1), "epsilon must be positive", None),
    "first <= 0": (lambda: fmrl.AverageDeviation(0.0), "first must be positive", None),
    "D <= 0": (lambda: fmrl.Known(0.0), "D must be positive", None),
    "lipschitz <= 0": (lambda: fmrl.FMRL(lipschitz=0.0), "lipschitz must be positive", None),
    "a class for a value": (lambda: fmrl.FMRL(within=fmrl.OMD), "not a within", None),
    "swapped": (lambda: fmrl.FMRL(within=fmrl.FAL()), "not a within", None),
    "phi outside the ball": (init([2.0, 0.0]), "outside Ball.*project", None),
    "phi outside the simplex": (init([0.7, 0.7], fmrl.Simplex()), "outside Simplex", None),
    "phi outside the box": (init([0.5, -0.5], fmrl.Box(0, 1)), "outside Box", None),
    "NaN in phi": (init([math.nan, 0.0]), "phi has a NaN", None),
    "phi is a number": (init(0.0), "flat vector", None),
    "phi is empty": (init([]), "flat vector", None),
    "phi is text": (init(["a"]), "not a real number", None),
    "no first guess": (init([0.0], fmrl.Euclidean()), "give the first guess", None),
    "no such preset": (lambda: fmrl.presets.paper(within="sgd"), "one of omd, ogd, ftrl", None),
    "no such update": (lambda: fmrl.presets.paper(update="reptile"), "choose one of fal", None),
    "unknown diameter": (lambda: fmrl.presets.single_task(domain=fmrl.Box(0, 1)), "give D", None),
    "no tasks": (lambda: fmrl.run(fmrl.FMRL(), []), "no tasks", None),
    "not an algorithm": (lambda: fmrl.run(fmrl.OMD(), GOOD), "must be an FMRL", None),
    "keep": (run(keep="some"), "keep must be", None),
    "phi too short for run": (run(np.zeros(3)), "phi of length 2", None),
    "phi too short for orders": (run(np.zeros(3), orders=[[0, 1]]), "phi of length 2", None),
    "one number for orders": (run(np.zeros(1), orders=[[0, 1]]), "phi of length 2", None),
    "orders too large": (run(orders=[[0, 6]]), "orders must be integers", None),
    "orders negative": (run(orders=[[0, -1]]), "orders must be integers", None),
    "orders flat": (run(orders=[0, 1]), "orders must be integers", None),
    "orders empty": (run(orders=np.zeros((0, 0), int)), "orders must be integers", None),
    "orders fractional": (run(orders=[[0.5]]), "orders must be integers", None),
    "orders and state": (run(orders=[[0]], state=fmrl.FMRL().init([0.0, 0.0])), "state", None),
    "orders of two kinds": (lambda: fmrl.run(fmrl.FMRL(), MIXED, orders=[[0]]), "one loss", None),
    "squared without bounds": (lambda: fmrl.run(FREE, SQUARED), "not Lipschitz.*lipschitz=", None),
}


@pytest.mark.parametrize("case", CONSTRUCTION.values(), ids=CONSTRUCTION)
def test_what_is_wrong_and_where(case):
    make, message, place = case
    with pytest.raises(fmrl.FMRLError, match=f"(?s){message}") as caught:
        make()
    assert caught.value.round == place
    assert isinstance(caught.value, ValueError)
    if place is not None:
        assert f"round {place}" in str(caught.value)


def snapshot(state):
    return pickle.dumps(tuple(np.asarray(a) for a in (state.tasks, state.phi, state.guess)))


def bad_tasks():
    """Tasks that fail only when they are played, by name: (task, message, algorithm)."""
    wide, other = task(np.eye(3), [0, 1, 1])(), task(torch.eye(2).double(), torch.tensor(Y))()
    apart = task(np.repeat(X, 2, axis=0), [0, 0, 1, 1])()
    return {
        "wrong width": (wide, "phi of length 3", fmrl.FMRL()),
        "other namespace": (other, "different kinds", fmrl.FMRL()),
        "not a task": (np.eye(2), "is not a task", fmrl.FMRL()),
        "no optimum": (apart, "no finite optimum", FREE),
    }


OVERLAP = [
    fmrl.Task([[1.0, t], [1.0, t], [0.5, 1], [0.5, 1]], [0, 1, 0, 1], loss=fmrl.Logistic())
    for t in range(6)
]


@pytest.mark.parametrize("name", bad_tasks())
@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIBatch()], ids=repr)
@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_that_fails_at_task_t_keeps_the_state_before_it(name, update, at, resumed):
    task, message, algo = bad_tasks()[name]
    algo = fmrl.FMRL(algo.domain, update=update, similarity=algo.similarity)
    state = fmrl.run(algo, OVERLAP[:2], np.zeros(2)).state if resumed else None
    before = 2 if resumed else 0
    tasks = [*OVERLAP[:at], task, *OVERLAP[at:]]
    with pytest.raises(fmrl.FMRLError, match=message) as caught:
        fmrl.run(algo, tasks, None if resumed else np.zeros(2), state=state)
    error = caught.value
    assert error.task == before + at
    assert f"task {before + at}" in str(error)
    if at == 0 and not resumed:
        return
    expected = (
        fmrl.run(algo, OVERLAP[:at], None if resumed else np.zeros(2), state=state).state
        if at
        else state
    )
    assert error.state.tasks == before + at
    np.testing.assert_allclose(error.state.phi, expected.phi, atol=1e-12)
    np.testing.assert_allclose(error.state.guess, expected.guess, atol=1e-12)
    if at:
        assert len(error.history) == at and error.history.state is error.state
    resumed_history = fmrl.run(algo, OVERLAP[at:], state=error.state)
    assert resumed_history.state.tasks == before + len(OVERLAP)


def test_step_leaves_its_state_alone():
    algo = fmrl.FMRL()
    state, _ = algo.step(algo.init(np.zeros(2)), GOOD[0])
    before, deep = snapshot(state), copy.deepcopy(state.phi)
    with pytest.raises(fmrl.FMRLError) as caught:
        algo.step(state, fmrl.Task(np.eye(3), [0, 1, 1], loss=fmrl.Logistic()))
    assert caught.value.task == 1
    algo.step(state, GOOD[1])
    assert snapshot(state) == before and np.array_equal(state.phi, deep)


def test_a_bad_task_inside_a_generator():
    """Building a task can fail too: the tasks before it are played and kept, and the place is
    known.
    """

    def stream():
        yield from GOOD[:4]
        yield fmrl.Task([[1.0, 0.0], [math.nan, 0.0]], Y, loss=fmrl.Logistic())

    with pytest.raises(
        fmrl.FMRLError, match=r"^task 4, round 1: X has a NaN.*; drop or impute"
    ) as caught:
        fmrl.run(fmrl.FMRL(), stream())
    assert (caught.value.task, caught.value.round, caught.value.state.tasks) == (4, 1, 4)
    assert len(caught.value.history) == 4


def test_errors_survive_pickling():
    error = fmrl.FMRLError("X has a NaN", task=3, round=1, fix="drop the row")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.task, again.round) == (
        "task 3, round 1: X has a NaN; drop the row",
        3,
        1,
    )


def test_inputs_are_not_changed():
    rng = np.random.default_rng(0)
    features, labels, phi = rng.normal(size=(5, 2)), rng.integers(0, 2, 5), np.zeros(2)
    copies = features.copy(), labels.copy(), phi.copy()
    for within in (fmrl.OMD(), fmrl.OGD(), fmrl.FTRL()):
        fmrl.run(
            fmrl.FMRL(within=within), [fmrl.Task(features, labels, loss=fmrl.Logistic())] * 3, phi
        )
    for now, then in zip((features, labels, phi), copies, strict=True):
        assert np.array_equal(now, then)


@pytest.mark.parametrize("kind", ["logistic", "squared", "one-vs-all"])
def test_integers_and_booleans_are_numbers(kind):
    tasks = make_tasks(kind, 1, 2, np.random.default_rng(0))
    y = tasks[0].open().target
    del y
    for dtype in (np.int8, np.int64, np.uint16, bool):
        task = fmrl.Task(np.ones((2, 2), dtype), [0, 1], loss=tasks[0].loss)
        assert task.X.dtype == np.float64
        assert fmrl.run(fmrl.FMRL(), [task]).regret.dtype == np.float64
