"""Relations that hold between answers whatever the answers are, over every way in.

A relation is a generator of (case, other case, what the answers to the first say about those to
the second). One test holds every relation against all ways, except those for which it says why
not."""
# fmt: off

import inspect
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from sklearn.preprocessing import PolynomialFeatures

import fmrl

from .ways import SHAPED, STATED, WAYS, Case, fitted, start_ray

TASKS, ROWS = 6, 6
COMMANDS = ("fmrl train, adapt, predict", "fmrl train --engine ray", *STATED)
SHAPES = tuple(f"run, {name}" for name in SHAPED)
COVARIANCE, DESCENTS = SHAPES[-1], SHAPES[:-1]
ENSEMBLES = ("Hedge", "Centres", "Hedge + adapt", "Centres + adapt")
PRIOR, LAST = "estimate_prior + adapt", "run + adapt"
CORE = ("run", "run on ray", "step", LAST, *ENSEMBLES, PRIOR, *SHAPES)
AS_THEY_ARE = tuple(way for way in CORE if way != COVARIANCE)
NETWORKS = ("MetaTrainer", "MAML")
SEEN, FRAME = "fit + predict a task seen", "tasks_from_frame + run"
PILOTED = (
    "update", "adapt_many", "stream", "stream + close", "streams + relearn + adapt",
    "learn_tasks + adapt",
    "fit + adapt", "fit by a column + adapt", "Pipeline + adapt", SEEN, "save + load + adapt",
    "task= of the constructor + clone + pickle + adapt", "adapt + save + load",
    "fit + adapt + predict_interval", "partial_fit + adapt", *COMMANDS,
)
ESTIMATORS = (*(way for way in PILOTED if way not in COMMANDS), "fit + predict")
# Ways to the model of the new task, which is one and the same.
ADAPTED = tuple(way for way in ESTIMATORS if way not in (
    SEEN, "fit + predict", "fit + adapt", "fit + adapt + predict_interval", "partial_fit + adapt",
))
CLOSE, SINGLE, BITS = 1e-6, 1e-5, 1e-12  # of the largest answer
ADAM = "Its outer steps are Adam's, as long in any units."
RELATIONS, NOT_FOR = {}, {}


def relation(*but):
    """Register a relation; but: why it is not for some ways, the reason before their names."""
    def register(pairs):
        RELATIONS[pairs.__name__] = cache(lambda: list(pairs()))  # so that ways can share a fit
        NOT_FOR[pairs.__name__] = {way: why for why, *ways in but for way in ways}
    return register


@cache
def base(kind, even=True, intercept=True):
    """Tasks of 2 or 3 classes, or 0: a regression; columns of deviation 1, or of 1, 5 and 20."""
    rng, count, outputs = np.random.default_rng([7, kind]), TASKS + 2, kind if kind > 2 else 1
    task, X = np.repeat(np.arange(count), ROWS), rng.normal(size=(count * ROWS, 3))
    sign, own = rng.choice([-1, 1], (outputs, 1)), rng.normal(0, 0.3, (count, outputs, 3))
    z = (([1.0, -0.8, 0.6] * sign + own)[task] @ X[:, :, None])[..., 0]
    z += 0.5 * rng.normal(size=z.shape)
    names = np.array(["ant", "bee", "cat"])
    y = names[z.argmax(1) if kind > 2 else 1 * (z[:, 0] > 0)] if kind else z[:, 0]
    X = X if even else X * [1.0, 5.0, 20.0]
    new, few = task == TASKS, slice(5)
    case = Case(X[task < TASKS], y[task < TASKS], task[task < TASKS], X[new][few], y[new][few],
                X[task > TASKS], intercept=intercept)
    return case if even else replace(case, step=1e-3)


def bases(*kinds, **given):
    return [base(kind, **given) for kind in kinds]


def same(answers):
    return answers


def rows(case, change, **other):
    """The case with all its rows changed."""
    X, few, query = map(change, (case.X, case.few, case.query))
    return replace(case, X=X, few=few, query=query, **other)


def targets(case, change, **other):
    """The case with all its labels or numbers changed."""
    return replace(case, y=change(case.y), labels=change(case.labels), **other)


def order(case, place):
    """The case with its training rows at other places."""
    return replace(case, X=case.X[place], y=case.y[place], task=case.task[place])


@relation(("They take rows as they are: one ball or first step for all columns.", *AS_THEY_ARE,
           *NETWORKS))
def units_of_a_column():
    """Of columns whose deviations are uneven: the run takes even ones as they are."""
    for case in bases(0, 2, even=False):
        yield case, rows(case, lambda X: X * [1e3, 1.0, 1e-3]), same


@relation((ADAM, "MAML"), ("It scales the columns, so the ball must not change with them.", FRAME))
def units_of_all_columns():
    """A ball's radius and a network's step have units, too. Without an intercept: it has others.
    """
    case = base(0, intercept=False)
    other = {"radius": case.radius / 64, "step": case.step / 64**2}
    yield case, rows(case, lambda X: 64 * X, **other), same


@relation((ADAM, "MAML"))
def units_of_the_target():
    """A ball's radius has its units, too."""
    other = targets(base(0), lambda y: 1000 * y, radius=1000 * base(0).radius)
    yield base(0), other, lambda answers: {"": 1000 * answers[""]}


@relation(("They take rows as they are and do not centre them.", *CORE, *NETWORKS))
def shift_of_a_column():
    case = base(0)
    yield case, rows(case, lambda X: X + np.array([100.0, -7.0, 0.0])), same


@relation(("Models of the core have no intercept.", *CORE, FRAME),
          ("A few steps of SGD from zero do not reach another mean.", *NETWORKS))
def shift_of_the_target():
    other = targets(base(0), lambda y: y + 100)
    yield base(0), other, lambda answers: {"": answers[""] + 100}


@relation()
def order_of_columns():
    for case in bases(0, 2):
        yield case, rows(case, lambda X: X[:, [2, 0, 1]], names=("c", "a", "b")), same


@relation(("They scale columns one by one.", *PILOTED, "fit + predict", FRAME),
          ("A step for every column, or a few, belongs to the columns.", *DESCENTS[:3]),
          ("They begin in units of the columns.", COVARIANCE, PRIOR), (ADAM, "MAML"))
def rotation_of_all_columns():
    """A ball, one step for all and a full matrix know no axes. Without an intercept."""
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    for case in bases(0, 2, intercept=False):
        yield case, rows(case, lambda X: X @ turn), same


@relation()
def names_and_order_of_classes():
    for case, names in ((base(2), [7, 3]), (base(3), ["y", "z", "x"])):
        new = dict(zip(["ant", "bee", "cat"], names, strict=False))
        other = targets(case, lambda y, new=new: np.array([new[label] for label in y]))
        yield case, other, lambda answers, new=new: {new[c]: p for c, p in answers.items()}


@relation(("Their tasks have no names.", *NETWORKS))
def names_of_tasks():
    """Numbers become text, of another order."""
    case = base(0)
    yield case, replace(case, task=np.array([*"wzxvyu"])[case.task], new="a"), same


@relation(("They do not look at the new task.", "fit + predict", SEEN),
          ("They answer after the rows one by one.", "step", LAST, *ENSEMBLES, *DESCENTS))
def order_of_rows_of_a_new_task():
    case = base(0)
    place = [3, 0, 4, 2, 1]
    yield case, replace(case, few=case.few[place], labels=case.labels[place]), same


@relation(("The pilot that weighs the families draws rows of every task by position.", *PILOTED),
          ("They play the rows one by one.", "step", *ENSEMBLES, *DESCENTS))
def order_of_rows_of_tasks():
    """Optima, and so phi and the guess, do not change; nor does what is known of a task without
    rows.
    """
    place = np.random.default_rng(0).permuted(np.arange(TASKS * ROWS).reshape(-1, ROWS), axis=1)
    for case in bases(0, 2, intercept=False):
        yield case, order(case, place.ravel()), same


@relation(("The pilot draws rows of every task by position.", *PILOTED),
          ("The guess, which sets their step, follows the tasks in turn.", "step",
           LAST, *ENSEMBLES, *SHAPES))
def order_of_tasks():
    """The mean of the optima does not change; nor does what is known of a task without rows: of six
    tasks the pilot's folds stay the same.
    """
    case = base(0, intercept=False)
    yield case, order(case, np.argsort(-case.task, kind="stable")), same


@relation()
def a_column_twice():
    """Copies share their coefficient equally: they can change places in the query alone."""
    case = base(0)
    twice = rows(case, lambda X: X[:, [0, 1, 2, 0]], names=(*"abcd",))
    query = twice.query * [1.0, 1.0, 1.0, -3.0]
    both = replace(twice, query=np.concatenate([query, query[:, [3, 1, 2, 0]]]))
    yield both, both, lambda answers: {c: np.roll(p, len(p) // 2) for c, p in answers.items()}


@relation((ADAM, "MAML"),
          ("They shrink towards one variance for all columns.", PRIOR, *PILOTED, "fit + predict"),
          ("Their epsilon and zeta, or first, are those of a single column.", *SHAPES))
def every_column_twice():
    """Rows √2 as long change nothing, if a core's ball and a network's step make up for it.

    Without an intercept: its freedom is measured by a single column.
    """
    for case in bases(0, 2, intercept=False):
        other = {"radius": case.radius / np.sqrt(2), "step": case.step / 2, "names": (*"abcdef",)}
        yield case, rows(case, lambda X: np.hstack([X, X]), **other), same


@relation(("They take no weights.", *COMMANDS, *CORE, FRAME, *NETWORKS),
          ("Its new task makes two for the pilot, which may show one of two copies.", "update",
           "stream + close"),
          ("Quantiles of held-out errors lie between rows.", "fit + adapt + predict_interval"),
          ("Whoever makes the tasks leaves out rows that do not count.", "learn_tasks + adapt"))
def weight_of_a_row():
    """A weight of 0 is no row; a weight of n is n rows where there is one task, whose model is
    its optimum.
    """
    for case, most in [(case, most) for case in bases(0, 2) for most in (2, 4)]:
        case = case if most == 2 else order(case, np.arange(ROWS))
        times, few = np.arange(len(case.y)) % most, np.array([3, 1, 0, 1, 2]) % most
        other = order(case, np.repeat(np.arange(len(case.y)), times))
        other = replace(other, few=np.repeat(case.few, few, 0), labels=np.repeat(case.labels, few))
        yield replace(case, weight=1.0 * times, weight_few=1.0 * few), other, same


@relation(("They take no weights.", *COMMANDS, *CORE, FRAME, *NETWORKS),
          ("The pilot shows rows, and of copies it may show one.", *PILOTED))
def weight_of_a_row_of_many_tasks():
    """A weight of n is n rows in estimating how tasks differ, and in scoring that without rows.

    Of three classes how sharp probabilities are is chosen from rows shown, too.
    """
    for case in bases(0, 2):
        times = 1 + np.arange(len(case.y)) % 3
        yield replace(case, weight=1.0 * times), order(case, np.repeat(np.arange(len(times)),
                                                                       times)), same


@relation(("They take no features=.", "learn_tasks + adapt", *COMMANDS, *CORE, FRAME, *NETWORKS))
def features_by_a_transformer_or_by_hand():
    squares = PolynomialFeatures(2, include_bias=False)
    for case, library in ((base(0), "numpy"), (base(2), "polars")):
        case = replace(case, library=library)
        names = (*"abcdefghi",)
        hand = rows(case, lambda X: squares.fit_transform(X), names=names)
        yield hand, replace(case, features=squares), same


@cache
def moving():
    """Tasks whose slopes drift."""
    rng, count = np.random.default_rng(1), 90
    task, X = np.repeat(np.arange(count), ROWS), rng.normal(size=(count * ROWS, 3)) * [1, 5, 20]
    slope = np.linspace(-3, 3, count)[:, None] * [1.0, -0.16, 0.03]
    y = (X * slope[task]).sum(axis=1) + 0.3 * rng.normal(size=len(X))
    old, new = task < count - 2, np.flatnonzero(task == count - 2)[:3]
    case = Case(X[old], y[old], task[old], X[new], y[new], X[task == count - 1])
    return replace(case, environment="drift")


def other_words(case):
    """Other units of a column, where tables scale them; columns and tasks in other words."""
    yield rows(case, lambda X: X * [1e3, 1.0, 1e-3])
    yield rows(case, lambda X: X[:, [2, 0, 1]], names=("c", "a", "b"))
    yield replace(case, task=np.array([f"{97 * t % 101:03d}" for t in case.task]), new="a")


@relation(("They take no environment=.", *CORE, FRAME, *NETWORKS),
          ("It is given three tasks.", "partial_fit + adapt"),
          ("Their prior is that of the other commands.", *STATED))
def drift_that_is_found():
    assert fitted(moving()).environment_.kind == "recent"
    for other in other_words(moving()):
        yield moving(), other, same


@relation(("They take no environment=.", *CORE, FRAME, *NETWORKS),
          ("The command takes no window.", *COMMANDS))
def drift_that_is_asked_for():
    case = replace(base(2, even=False), environment=fmrl.Window(4))
    for other in other_words(case):
        yield case, other, same


@relation(("They have rules of their own.", *ENSEMBLES, PRIOR, *SHAPES, *NETWORKS),
          ("They take no such rule.", *ESTIMATORS),
          ("Their phi is that of the other commands.", *STATED))
def a_rule_that_forgets():
    case = replace(base(0), meta=fmrl.Discounted(0.2))
    _, columns, names = other_words(case)
    yield from ((case, other, same) for other in (columns, names))


SAME = {
    "numbers": lambda: base(0), "two classes": lambda: base(2), "three classes": lambda: base(3),
    "uneven columns": lambda: base(2, even=False),
    "no intercept": lambda: base(0, intercept=False),
    "weights": lambda: replace(base(0), weight=1.0 + np.arange(len(base(0).y)) % 3,
                               weight_few=np.array([2.0, 0.5, 1.0, 0.0, 3.0])),
    "weights of classes": lambda: replace(base(2), weight=1.0 + np.arange(len(base(2).y)) % 3,
                                          weight_few=np.array([2.0, 0.5, 1.0, 0.0, 3.0])),
    "features": lambda: replace(base(0), features=PolynomialFeatures(2, include_bias=False)),
    "pandas": lambda: replace(base(3), library="pandas"),
    "polars": lambda: replace(base(0), library="polars"),
    "a window": lambda: replace(base(2), environment=fmrl.Window(4)),
    "two centres": lambda: replace(base(0), environment=2),
    "drift": moving,
}


@pytest.mark.parametrize(("way", "kind"), [
    (way, kind) for way in ADAPTED for kind in SAME
    if (way, kind) != ("learn_tasks + adapt", "features")  # it takes none
])
def test_every_way_to_the_model_of_a_task_is_adapt(way, kind):
    """Numbers to 1e-9, classes to 1e-6: rows at once or one at a time, of a task without a name, a
    new one or one of many, and tasks at once or one after another, once the prior is learned
    again."""
    case = SAME[kind]()
    other, one = answers(way, case), answers("fit + adapt", case)
    assert one.keys() == other.keys()
    close = 1e-9 * np.abs(one[""]).max() if "" in one else 1e-6
    for label, values in one.items():
        np.testing.assert_allclose(other[label], values, rtol=0, atol=close)


@relation()
def single_precision():
    """Estimators and tables compute in double precision; core and networks keep what they get."""
    single = targets(rows(base(0), np.float32), np.float32)
    yield targets(rows(single, np.float64), np.float64), single, same


@relation(("They take arrays; tasks_from_frame makes tasks of a table.", *CORE, *NETWORKS),
          ("It reads Parquet files, which are the same whoever wrote them.", COMMANDS[1]),
          ("Its files are those of the other commands.", *STATED))
def libraries():
    for case, library in ((base(0), "pandas"), (base(2), "polars"), (base(0), "pyarrow")):
        yield case, replace(case, library=library), same


@relation(("They take arrays or tables.", FRAME, *COMMANDS, *CORE, *NETWORKS))
def mappings_and_lists():
    for case, kind in ((base(0), "dicts"), (base(2), "dicts"), (base(3), "lists")):
        yield case, replace(case, library=kind), same


@pytest.fixture(scope="module", autouse=True)
def end_of_ray():
    yield
    if start_ray.cache_info().currsize:
        start_ray().shutdown()
        start_ray.cache_clear()


@cache
def answers(way, case):
    with TemporaryDirectory() as scratch:
        return WAYS[way].play(case, Path(scratch))


UNITS = ("units_of_a_column", "units_of_all_columns", "units_of_the_target", "single_precision")


def asked(way, name):
    """Rules given to one command read the table alike: where no unit changes, one is enough."""
    return way not in NOT_FOR[name] and (way not in [*STATED][1:] or name in UNITS)


ASKED = [(way, name) for way in WAYS for name in RELATIONS if asked(way, name)]


@pytest.mark.parametrize(("way", "name"), ASKED)
def test_relation(way, name):
    close = CLOSE
    if name == "single_precision":
        close = SINGLE if way in CORE + NETWORKS else BITS
    for case, other, told in RELATIONS[name]():
        for package in (WAYS[way].needs, other.library):
            if package not in ("dicts", "lists") and find_spec(package) is None:
                pytest.skip(f"{package} is not installed")
        expected, found = told(answers(way, case)), answers(way, other)
        assert found.keys() == expected.keys()
        scale = max(np.abs(values).max() for values in expected.values())
        for label, values in expected.items():
            np.testing.assert_allclose(found[label], values, rtol=0, atol=close * scale)


def test_ways_that_are_left_out_exist():
    assert all(way in WAYS for ways in NOT_FOR.values() for way in ways)


# ---- the ways in, listed
# -------------------------------------------------------------------------

TAKES = {"X", "episodes", "file", "frame", "game", "table", "task", "tasks"}  # names of rows
NO_WAYS = {  # and why not
    "Meta.get_feature_names_out": "takes no rows", "Meta.get_params": "takes no rows",
    "Meta.describe": "takes no rows", "Meta.forget": "takes no rows",
    "fmrl.FewShot*": "judges what adapt gives",
    "fmrl.few_shot_score": "judges what adapt gives",
    "Meta.score": "compares what predict says with labels", "*certify": "proves what a run did",
    "fmrl data table": "prints what a table holds", "fmrl.*.sigma": "is a part of step",
    "fmrl.*.actions": "is a part of step", "fmrl.*.losses": "is a part of step",
    "deep.Pool.of": "makes tasks for MetaTrainer.fit", "deep.evaluate": "judges what adapt gives",
    "deep.gradient_norm": "measures a network", "cluster.Ray.play": "is what Ray.run calls",
    "cluster.play": "is Ray.run with a folder",
    "cluster.Ray.estimate_prior": "adds up what estimate_prior does",
    "fmrl.FMRL.act": "is a part of step", "fmrl.FMRL.play_rounds": "is a part of step",
    "fmrl.FMRL.eta": "is a part of step",
    "fmrl.Tree.spent": "counts tasks", "fmrl reproduce *": "makes its own tasks",
    "fmrl.*.starting": "is a part of step", "fmrl.*.step_solved": "is a part of step",
}


def public(thing):
    """Methods of our own by name; private ones and those of scikit-learn are left out."""
    found = ((name, getattr(thing, name)) for name in dir(thing) if name[0] != "_")
    found = ((name, f) for name, f in found if inspect.isfunction(f) or inspect.ismethod(f))
    return {name: f for name, f in found if f.__module__.startswith("fmrl")}


def of_command(command, path):
    for name, sub in getattr(command, "commands", {}).items():
        yield from of_command(sub, f"{path} {name}")
    if TAKES & {parameter.name for parameter in command.params}:
        yield path


def entry_points():
    """Everything public that takes rows: methods, functions, commands and engines."""
    import typer

    from fmrl.cli.main import app
    from fmrl.core.run import ENGINES

    stream = fmrl.MetaClassifier().fit([[0.0], [1.0]], [0, 1]).stream()
    yield from (f"Stream.{name}" for name in public(type(stream)))
    for estimator in (fmrl.MetaClassifier, fmrl.MetaRegressor):
        yield from (f"Meta.{name}" for name in public(estimator))
    yield from of_command(typer.main.get_command(app), "fmrl")
    yield from (f"engine {name}" for name in ("local", *ENGINES))
    for module in (fmrl, fmrl.deep, fmrl.cluster):
        for name in {*module.__all__} - {"MetaClassifier", "MetaRegressor"}:
            thing, path = getattr(module, name), f"{module.__name__.removeprefix('fmrl.')}.{name}"
            found = {f".{n}": f for n, f in public(thing).items()} if inspect.isclass(thing) else {}
            found |= {"": thing} if inspect.isfunction(thing) else {}
            given = {n: inspect.signature(f).parameters for n, f in found.items()}
            yield from (path + n for n, parameters in given.items() if TAKES & {*parameters})


def test_every_way_in_is_listed():
    for package in ("torch", "ray"):
        pytest.importorskip(package)
    found = {*entry_points()}
    covered = {entry for way in WAYS.values() for entry in way.covers.split(", ")}
    assert [e for e in found - covered if not any(fnmatch(e, name) for name in NO_WAYS)] == []
    assert covered - found == set()


def test_a_stream_keeps_the_scale_that_fit_chose():
    """It forgot it: log-loss 5.3, where adapt had 0.48."""
    rng = np.random.default_rng(1)
    task, X = np.repeat(np.arange(24), 10), rng.normal(size=(240, 2)) * [20.0, 1.0]
    own, noise = 0.5 * rng.normal(size=24), 0.3 * rng.normal(size=240)
    y = 1 * (X @ [0.05, 1.0] + own[task] + noise > 0)
    est, loss = fmrl.MetaClassifier().fit(X[:160], y[:160], task=task[:160]), {}
    for new in range(16, 24):
        few, rest = np.split(np.flatnonzero(task == new), [4])
        stream = est.stream()
        for i in few:
            stream.learn(X[i], y[i])
        said = {"stream": np.array([stream.predict_proba(x) for x in X[rest]]),
                "adapt": est.adapt(X[few], y[few]).predict_proba(X[rest])}
        for name, p in said.items():
            right = np.maximum(p[np.arange(len(rest)), y[rest]], 1e-9)
            loss[name] = loss.get(name, 0.0) - np.log(right).mean() / 8
    assert loss["stream"] == pytest.approx(loss["adapt"], abs=1e-6)
