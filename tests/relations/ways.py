"""Every way into the library as one function of a case: see `WAYS` at the end.

A way says something of a case's query rows: {label: [q]}, probabilities, or margins where there
are none; a regression has one entry, ""."""
# fmt: off

import os
import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline

import fmrl


@dataclass(frozen=True, eq=False)
class Case:
    """Tasks to learn from, a few labelled rows of a new task, and rows to predict."""

    X: np.ndarray
    y: np.ndarray
    task: np.ndarray
    few: np.ndarray  # rows of the new task
    labels: np.ndarray  # of those
    query: np.ndarray
    new: Any = 99  # the name of the new task
    names: tuple[str, ...] = ("a", "b", "c")  # of the columns
    weight: np.ndarray | None = None  # of the rows of X
    weight_few: np.ndarray | None = None
    intercept: bool = True
    library: str = "numpy"  # of the tables
    features: Any = None  # what an estimator makes of its rows
    environment: Any = "auto"  # of an estimator
    meta: Any = None  # the rule by which phi of a run moves
    radius: float = 2.0  # of the core's ball
    step: float = 0.1  # of a network's SGD

    @property
    def classes(self):
        return None if self.y.dtype.kind == "f" else np.unique(self.y)

    def each_task(self):
        """(name, X, y) of the tasks, in the order in which they first appear."""
        for name in dict.fromkeys(self.task.tolist()):
            yield name, self.X[self.task == name], self.y[self.task == name]


def said(case, values, predicted=None):
    """{label: [q]} of probabilities or margins [q, outputs], checked against the labels said."""
    values = np.asarray(values, dtype=float).reshape(len(case.query), -1)
    if case.classes is None:
        return {"": values[:, 0]}
    values = np.column_stack([-values, values]) if values.shape[1] == 1 else values
    assert predicted is None or list(predicted) == case.classes[values.argmax(axis=1)].tolist()
    return dict(zip(case.classes.tolist(), values.T, strict=True))


# ---- tables
# --------------------------------------------------------------------------------------

WALK = {  # the rows of a table one at a time, as one gets them from it
    "numpy": list, "pandas": lambda table: [row for _, row in table.iterrows()],
    "polars": lambda table: list(table.iter_rows()),
    "pyarrow": lambda table: [list(row.values()) for row in table.to_pylist()],
    "dicts": list, "lists": list,  # of no library: rows are mappings or lists
}
WRITE = {  # a table into a file
    "numpy": (".parquet", lambda table, path: table.write_parquet(path)),
    "pandas": (".csv", lambda table, path: table.to_csv(path, index=False)),
    "polars": (".arrow", lambda table, path: table.write_ipc(path)),
    "pyarrow": (".parquet", lambda *given: import_module("pyarrow.parquet").write_table(*given)),
}


def frame(case, columns):
    """Named columns as a table of the case's library; of polars where it has no names."""
    if case.library == "dicts":
        values = zip(*(np.asarray(v).tolist() for v in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in values]
    library = import_module("polars" if case.library in ("numpy", "lists") else case.library)
    return (library.table if case.library == "pyarrow" else library.DataFrame)(columns)


def named(case, X, task=None):
    """Rows X by the names of their columns, after a column that names their task."""
    columns = dict(zip(case.names, X.T, strict=True))
    return columns if task is None else {"who": np.resize(task, len(X)), **columns}


def rows(case, X):
    if case.library in ("numpy", "lists"):
        return X if case.library == "numpy" else X.tolist()
    return frame(case, named(case, X))


def column(case, values):
    if case.library in ("dicts", "lists"):
        return values.tolist()
    return values if case.library == "numpy" else frame(case, {"v": values})["v"]


def walk(case, X):
    return WALK[case.library](rows(case, X))


def write(case, path, columns):
    suffix, put = WRITE[case.library]
    put(frame(case, columns), path := path.with_suffix(suffix))
    return path


# ---- estimators
# ----------------------------------------------------------------------------------


def fresh(case):
    """An estimator of the right kind, and what its first call has to be told."""
    given = {"fit_intercept": case.intercept, "features": case.features,
             "environment": case.environment}
    if case.classes is None:
        return fmrl.MetaRegressor(**given), {}
    return fmrl.MetaClassifier(**given), {"classes": case.classes.tolist()}


@lru_cache
def fitted(case):
    """One fit for all ways that begin with it."""
    X, y, task = rows(case, case.X), column(case, case.y), column(case, case.task)
    return fresh(case)[0].fit(X, y, task=task, sample_weight=case.weight)


def look(case, model, **task):
    """What a fitted model says of the query."""
    query = rows(case, case.query)
    predicted = model.predict(query, **task)
    if case.classes is None:
        return said(case, predicted)
    said(case, model.decision_function(query, **task), predicted)
    said(case, np.exp(model.predict_log_proba(query, **task)), predicted)
    return said(case, model.predict_proba(query, **task), predicted)


def adapted(case, est):
    """What the model of the new task says."""
    few, labels = rows(case, case.few), column(case, case.labels)
    return look(case, est.adapt(few, labels, sample_weight=case.weight_few))


def intervals(case, scratch):
    """Intervals of the new task's rows, from nothing and from a few of them; of classes what
    adapt says.
    """
    est, few, query = fitted(case), rows(case, case.few), rows(case, case.query)
    if case.classes is not None:
        return adapted(case, est)
    model = est.adapt(few, column(case, case.labels), sample_weight=case.weight_few)
    both = [np.asarray(one.predict_interval(query, level=0.8)) for one in (est, model)]
    stream = est.stream()
    stream_rows(case, stream, case.few, case.labels, case.weight_few)
    ends = [stream.predict_interval(x, level=0.8) for x in walk(case, case.query)]
    np.testing.assert_allclose(ends, both[1], rtol=0, atol=1e-8 * np.abs(both[1]).max())
    return said(case, np.hstack(both).ravel())


def in_pipeline(case, scratch):
    """What the model of the new task says, at the end of a pipeline."""
    pipe = Pipeline([("before", "passthrough"), ("meta", fresh(case)[0])])
    X, y, task = rows(case, case.X), column(case, case.y), column(case, case.task)
    pipe.fit(X, y, meta__task=task, meta__sample_weight=case.weight)
    few, labels = rows(case, case.few), column(case, case.labels)
    return look(case, fmrl.adapt(pipe, few, labels, sample_weight=case.weight_few))


def by_column(case, scratch):
    """What the model of the new task says, where a column names the tasks."""
    table, y = frame(case, {"who": case.task, **named(case, case.X)}), column(case, case.y)
    return adapted(case, fresh(case)[0].fit(table, y, task="who", sample_weight=case.weight))


def by_constructor(case, scratch):
    """What the model of the new task says, where the constructor names the column of the tasks, of
    an estimator that was cloned before it was fitted and pickled afterwards.
    """
    table, y = frame(case, {"who": case.task, **named(case, case.X)}), column(case, case.y)
    est = clone(fresh(case)[0].set_params(task="who")).fit(table, y, sample_weight=case.weight)
    return adapted(case, pickle.loads(pickle.dumps(est)))


def stored_model(case, scratch):
    """What the model of the new task says after it was pickled, and after it was saved."""
    few, labels = rows(case, case.few), column(case, case.labels)
    model = fitted(case).adapt(few, labels, sample_weight=case.weight_few)
    model.save(scratch / "model")
    one, two = pickle.loads(pickle.dumps(model)), type(model).load(scratch / "model")
    pickled, loaded = look(case, one), look(case, two)
    for label, values in pickled.items():
        np.testing.assert_array_equal(loaded[label], values)
    return loaded


def seen(case, scratch):
    """What the model of the first task says, in both ways to ask for it."""
    est, name = fitted(case), case.task[0]
    one = look(case, est, task=column(case, np.repeat(name, len(case.query))))
    for label, values in look(case, est.model(name)).items():
        np.testing.assert_allclose(one[label], values, rtol=1e-9, atol=1e-12)
    return one


def newcomer(case):
    """A name that no task has."""
    return 10**6 if case.task.dtype.kind in "if" else "somebody new"


def updated(case, scratch):
    """What the model of the new task says after its rows came in two batches."""
    est, name = deepcopy(fitted(case)), newcomer(case)
    few, labels, half = rows(case, case.few), column(case, case.labels), len(case.labels) // 2
    for part in (slice(None, half), slice(half, None)):
        weight = None if case.weight_few is None else case.weight_few[part]
        est.update(few[part], labels[part], task=name, sample_weight=weight)
    return look(case, est, task=column(case, np.repeat(name, len(case.query))))


def at_once(case, scratch):
    """What the model of the new task says, solved beside the others."""
    X, y = np.concatenate([case.X, case.few]), np.concatenate([case.y, case.labels])
    name = newcomer(case)
    task = np.concatenate([case.task, np.repeat(name, len(case.few))])
    weight = None
    if case.weight is not None:
        weight = np.concatenate([case.weight, case.weight_few])
    given = rows(case, X), column(case, y), column(case, task)
    return look(case, fitted(case).adapt_many(*given, sample_weight=weight)[name])


def stored(case, scratch):
    est = fitted(case)
    est.save(scratch / "model")
    return adapted(case, type(est).load(scratch / "model"))


def partially(case, scratch):
    est, first = fresh(case)
    for name, X, y in [*case.each_task()][:3]:  # the rule is chosen after two
        weight = None if case.weight is None else case.weight[case.task == name]
        est.partial_fit(rows(case, X), column(case, y), task=name, sample_weight=weight, **first)
        first = {}
    return adapted(case, est)


def stream_rows(case, stream, X, y, weight):
    """Rows one at a time."""
    heavy = np.ones(len(y)) if weight is None else weight
    for x, label, counts in zip(walk(case, X), y.tolist(), heavy.tolist(), strict=True):
        stream.learn(x, label, sample_weight=counts)


def streamed(case, scratch):
    """What an open task says after the new task's rows came one at a time."""
    stream, query = fitted(case).stream(), walk(case, case.query)
    stream_rows(case, stream, case.few, case.labels, case.weight_few)
    predicted = [stream.predict(x) for x in query]
    if case.classes is None:
        return said(case, predicted)
    return said(case, [stream.predict_proba(x) for x in query], predicted)


def closed(case, scratch):
    """What the model of the new task says after a stream of its rows was closed."""
    est, name = deepcopy(fitted(case)), newcomer(case)
    with est.stream(name) as stream:
        stream_rows(case, stream, case.few, case.labels, case.weight_few)
    if case.weight_few is not None and not case.weight_few.any():
        return look(case, est)
    return look(case, est.model(name))


def relearned(case, scratch):
    """What the model of the new task says, where the tasks after the first two came row by row,
    and the prior was learned at the end.
    """
    names = [*dict.fromkeys(case.task.tolist())]
    first = np.isin(case.task, names[:2])
    given = None if case.weight is None else case.weight[first]
    X, y, task = rows(case, case.X[first]), column(case, case.y[first]), case.task[first]
    est = fresh(case)[0].fit(X, y, task=column(case, task), sample_weight=given)
    for name, X, y in [*case.each_task()][2:]:
        weight = None if case.weight is None else case.weight[case.task == name]
        with est.stream(name) as stream:
            stream_rows(case, stream, X, y, weight)
    return adapted(case, est.relearn())


def taught(case, scratch):
    """What the model of the new task says, where the tasks are numbers without names."""
    from fmrl.tables.targets import group_by_task

    y = case.y if case.classes is None else np.searchsorted(case.classes, case.y)
    X = np.asarray(case.X, dtype=float)
    tasks = group_by_task(loss_of(case), X, y, case.weight, case.task)
    names = None if case.library in ("numpy", "lists") else list(case.names)
    return adapted(case, fresh(case)[0].learn_tasks(tasks, classes=case.classes, columns=names))


# ---- commands, and Ray
# ---------------------------------------------------------------------------


def command(*words):
    from typer.testing import CliRunner

    from fmrl.cli.main import app

    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (words, result.output, result.exception)


def commands(case, scratch, *options):
    """train, adapt and predict on files, in this process."""
    import polars

    every = write(case, scratch / "all", named(case, case.X, case.task) | {"y": case.y})
    few = write(case, scratch / "few", named(case, case.few, case.new) | {"y": case.labels})
    query = write(case, scratch / "query", named(case, case.query, case.new))
    run, out = scratch / "run", scratch / "said.parquet"
    options = [*options, "--holdout", 0, *([] if case.intercept else ["--no-intercept"]),
               *([] if case.meta is None else ["--meta", repr(case.meta)])]
    if isinstance(case.environment, str):
        options += ["--environment", case.environment]
    command("train", every, "--task", "who", "--target", "y", "--out", run, *options)
    command("adapt", run, few)
    command("predict", run, query, "--out", out)
    told = polars.read_parquet(out)
    assert set(told["model"]) == {"adapted"}
    if case.classes is None:
        return said(case, told["prediction"])
    found = told.select([f"p_{c}" for c in case.classes])
    return said(case, found, told["prediction"].to_list())


@lru_cache
def start_ray():
    """One small cluster for this process."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init("local", num_cpus=1, object_store_memory=80 * 2**20, **quiet)
    return ray


def on_ray(function, *given):
    """The same way with Ray started."""
    return lambda case, scratch: start_ray() and function(case, scratch, *given)


# ---- core
# ----------------------------------------------------------------------------------------


def loss_of(case):
    if case.classes is None:
        return fmrl.Squared()
    classes = tuple(case.classes.tolist())
    return fmrl.Logistic(classes) if len(classes) == 2 else fmrl.OneVsAll(classes)


def tasks_of(case):
    """The tasks, the new one last."""
    given, loss = [*case.each_task(), (case.new, case.few, case.labels)], loss_of(case)
    return [fmrl.Task(X, y, loss=loss, name=name) for name, X, y in given]


def compose(case, **parts):
    parts = parts if case.meta is None else {"meta": case.meta, **parts}
    return fmrl.FMRL(fmrl.Ball(case.radius), similarity=fmrl.AverageDeviation(), **parts)


def margins(case, theta):
    return said(case, case.query @ np.asarray(theta).reshape(loss_of(case).outputs, -1).T)


def run(case, scratch, engine="local"):
    """phi after all tasks."""
    return margins(case, fmrl.run(compose(case), tasks_of(case), engine=engine).state.phi)


def step(case, scratch):
    """The average iterate of the new task."""
    algo, tasks = compose(case, update=fmrl.FLIBatch()), tasks_of(case)
    state = algo.init(np.zeros(tasks[0].dim, dtype=tasks[0].X.dtype))
    for task in tasks:
        state, happened = algo.step(state, task)
    return margins(case, happened.theta)


def aruba(kind, *first):
    """Of a rule that learns a shape: epsilon is a distance, epsilon/zeta a step."""
    return lambda case: kind(*first, case.radius / 20, case.radius / case.step / 20)


SHAPED = {
    "PerCoordinate": aruba(fmrl.PerCoordinate), "LowRank": aruba(fmrl.LowRank, 2),
    "MetaSGD": lambda case: fmrl.MetaSGD(case.step, 0.1), "FullMatrix": aruba(fmrl.FullMatrix),
    "Observed": lambda case: fmrl.Observed(fmrl.AverageDeviation(case.radius / 20),
                                           case.radius / case.step / 20),
    "Covariance": lambda case: fmrl.Covariance(1.0),
}
STATED = {  # rules that are given on the command line
    "fmrl train --similarity": "PerCoordinate(0.1, 0.1)",
    "fmrl train --similarity Observed": "Observed(AverageDeviation(0.1), 1.0)",
    "fmrl train --similarity MetaSGD": "MetaSGD(0.1, 0.1)",
}


def shaped(name, case, scratch):
    """The new task's last action in the learned shape, of a run that was stopped, saved and loaded
    on the way. For a covariance neither the bounds nor the
    weights of tasks are in units of the columns."""
    domain, within, lipschitz = fmrl.Ball(case.radius), fmrl.OGD(), None
    if name == "Covariance":
        domain, within, lipschitz = fmrl.Ball(1e4 * case.radius), fmrl.FTRL(), 1.0
    rule, tasks = SHAPED[name](case), tasks_of(case)
    algo = fmrl.FMRL(domain, within, fmrl.FLIOnline(), similarity=rule, lipschitz=lipschitz)
    fmrl.save_state(fmrl.run(algo, tasks[:2]).state, scratch / "state.npz")
    state = fmrl.load_state(scratch / "state.npz")
    return margins(case, fmrl.run(algo, tasks[2:], state=state).theta[-1])


def hedge(case):
    return fmrl.Hedge([compose(case), compose(case, meta=fmrl.Fixed())])


def centres(case):
    return fmrl.Centres(2, compose(case))


def hedged(case, scratch):
    """phi of two compositions, weighed by what they cost."""
    return margins(case, fmrl.run(hedge(case), tasks_of(case)).state.phi)


def centred(case, scratch):
    """phi of two centres."""
    return margins(case, fmrl.run(centres(case), tasks_of(case)).state.phi)


def run_adapted(make, case, scratch):
    """The last action in the new task, from the state that the others leave."""
    algo, (*tasks, new) = make(case), tasks_of(case)
    return margins(case, algo.adapt(fmrl.run(algo, tasks).state, new))


def from_prior(case, scratch):
    """The new task's posterior mean under the prior of the others."""
    *tasks, new = tasks_of(case)
    return margins(case, fmrl.estimate_prior(tasks, steps=9, tolerance=0.0).adapt(new).mean)


def from_frame(case, scratch):
    """phi after all tasks of a table whose columns are scaled."""
    X, y = np.concatenate([case.X, case.few]), np.concatenate([case.y, case.labels])
    who = [*case.task.tolist(), *[case.new] * len(case.few)]
    given = {"target": "y", "loss": loss_of(case), "policy": fmrl.data.Policy(scale="standard")}
    table = frame(case, named(case, X, who) | {"y": y})
    tasks = fmrl.tasks_from_frame(table, task="who", one_class="keep", **given)
    phi = fmrl.run(compose(case), tasks).state.phi
    asked, given = named(case, case.query, case.new), {"encoder": tasks.encoder}
    (query,) = fmrl.tasks_from_frame(frame(case, asked), task="who", loss=fmrl.Linear(), **given)
    return margins(replace(case, query=query.X), phi)


# ---- networks
# ------------------------------------------------------------------------------------


def network(learn, case, scratch):
    """A linear module, at zero before ``learn``, adapted to the new task."""
    import torch

    from fmrl import deep

    def numbered(y):
        return y if case.classes is None else np.searchsorted(case.classes, y)

    outputs = 1 if case.classes is None else len(case.classes)
    module = torch.nn.Linear(case.X.shape[1], outputs, case.intercept)
    module = module.to(torch.as_tensor(case.X[:0]).dtype)
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    given = [(X, numbered(y)) * 2 for _, X, y in case.each_task()]  # the queries are the rows
    tasks = deep.Arrays(given, batch=len(given[0][0]), steps=3)
    loss = deep.squared_error if case.classes is None else deep.cross_entropy
    learner, own = learn(deep, case.step, module, tasks, loss), {}
    if not isinstance(learner, deep.MetaTrainer):
        own = {"within": deep.SGD(case.step), "loss": loss}
    model = deep.adapt(learner, case.few, numbered(case.labels), 4, **own)
    return said(case, model(torch.as_tensor(case.query)).detach().numpy())


def meta_trainer(deep, rate, module, tasks, loss):
    options = {"meta": deep.FollowLeader(), "meta_batch": len(tasks.sizes), "loss": loss}
    return deep.MetaTrainer(module, deep.SGD(rate), **options).fit(tasks, 2)


def maml(deep, rate, module, tasks, loss):
    return deep.MAML(rate, 0.1, loss=loss).fit(module, tasks, 2, len(tasks.sizes))


class Way(NamedTuple):
    """A function of a case and a scratch folder, the public entry points that it goes through,
    and the package that it needs.
    """

    play: Callable[..., dict]
    covers: str
    needs: str = "numpy"


WAYS = {
    "fit + adapt": Way(lambda case, scratch: adapted(case, fitted(case)), "Meta.fit, Meta.adapt"),
    "fit by a column + adapt": Way(by_column, "Meta.fit"),
    "task= of the constructor + clone + pickle + adapt": Way(by_constructor, "Meta.fit"),
    "adapt + save + load": Way(stored_model, "Meta.adapt"),
    "Pipeline + adapt": Way(in_pipeline, "fmrl.adapt"),
    "fit + predict": Way(lambda case, scratch: look(case, fitted(case)),
                         "Meta.predict, Meta.predict_proba, Meta.predict_log_proba, "
                         "Meta.decision_function"),
    "fit + predict a task seen": Way(seen, "Meta.model"),
    "fit + adapt + predict_interval": Way(
        intervals, "Meta.predict_interval, Stream.predict_interval"),
    "update": Way(updated, "Meta.update"),
    "adapt_many": Way(at_once, "Meta.adapt_many"),
    "save + load + adapt": Way(stored, "Meta.save, Meta.load"),
    "stream": Way(streamed, "Meta.stream, Stream.predict, Stream.predict_proba, Stream.learn"),
    "stream + close": Way(closed, "Stream.close"),
    "streams + relearn + adapt": Way(relearned, "Meta.relearn"),
    "learn_tasks + adapt": Way(taught, "Meta.learn_tasks"),
    "partial_fit + adapt": Way(partially, "Meta.partial_fit"),
    "fmrl train, adapt, predict": Way(
        commands, "fmrl train, fmrl adapt, fmrl predict"),
    **{name: Way(lambda case, scratch, rule=rule: commands(case, scratch, "--similarity", rule),
                 "fmrl train") for name, rule in STATED.items()},
    "run": Way(run, "fmrl.run, fmrl.stack, engine local"),
    "step": Way(step, "fmrl.FMRL.step, fmrl.FMRL.play, fmrl.play"),
    **{f"run, {name}": Way(partial(shaped, name), "fmrl.run") for name in SHAPED},
    "run + adapt": Way(partial(run_adapted, compose), "fmrl.FMRL.adapt"),
    "Hedge": Way(hedged, "fmrl.Hedge.step"),
    "Hedge + adapt": Way(partial(run_adapted, hedge), "fmrl.Hedge.adapt"),
    "Centres": Way(centred, "fmrl.Centres.step"),
    "Centres + adapt": Way(partial(run_adapted, centres), "fmrl.Centres.adapt"),
    "estimate_prior + adapt": Way(from_prior, "fmrl.estimate_prior, fmrl.Gaussian.adapt"),
    "tasks_from_frame + run": Way(from_frame, "fmrl.tasks_from_frame"),
    "MetaTrainer": Way(partial(network, meta_trainer), "deep.MetaTrainer.fit, deep.adapt", "torch"),
    "MAML": Way(partial(network, maml), "deep.MAML.fit", "torch"),
    "run on ray": Way(on_ray(run, "ray"), "engine ray, cluster.Ray.run", "ray"),
    "fmrl train --engine ray": Way(on_ray(commands, "--engine", "ray"), "engine ray", "ray"),
}
