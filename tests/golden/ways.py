"""Every composition and every way into the library, on small fixed inputs, by public names only.

`CASES` maps the name of a case to a function of a scratch folder, which returns {entry: (kind,
value)}. The kind says how closely the value is held: "exact" bit for bit (no solver takes part),
"solver" and "torch" to 1e-9 of the value's scale, "text" letter by letter. The name begins with
the way in; what needs a package that is not installed is left out (`missing`)."""
# fmt: off

import csv
import importlib.util
import json
import os
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import pairwise, product

import numpy as np

import fmrl
from fmrl import FAL, FMRL, FTRL, OGD, OMD, FLIBatch, FLIOnline, Task, presets

CASES = {}
NEEDS = {"ray": "ray", "deep": "torch", "tensors": "torch"}  # package, by way in
WAYS = ("run", "step", "orders", "meta batch", "resume", "totals")
ROUNDS = (3, 2, 3, 5, 6, 4)
WITHIN = {"omd": OMD(), "ogd": OGD(), "ftrl": FTRL()}
UPDATE = {"fal": FAL(), "last": FLIOnline(), "mean": FLIBatch()}
META = {
    "leader": fmrl.FollowLeader(), "descent": fmrl.AdaptiveOGD(), "strawman": fmrl.LastUpdate(),
    "reptile": fmrl.Interpolate(0.9, 0.1, 5), "fixed": fmrl.Fixed(),
}
SIMILARITY = {
    "doubling": fmrl.Doubling(0.1, 1.3), "released": fmrl.ReleasedDoubling(0.1, 1.3),
    "known": fmrl.Known(0.4), "average": fmrl.AverageDeviation(),
}
UNBOUNDED = {  # where no reach gives the first guess
    "doubling": fmrl.Doubling(0.1, 1.3, first=0.7), "average": fmrl.AverageDeviation(first=0.7),
}
DOMAINS = {
    "ball": fmrl.Ball(1.0), "shifted ball": fmrl.Ball(0.8, 0.2), "box": fmrl.Box(-0.5, 0.7),
    "euclidean": fmrl.Euclidean(), "simplex": fmrl.Simplex(), "floored simplex": fmrl.Simplex(0.03),
}
LOSSES = {
    "one-vs-all": fmrl.OneVsAll(3), "softmax": fmrl.Softmax(3), "logistic": fmrl.Logistic(),
    "squared": fmrl.Squared(), "hinge": fmrl.Hinge(), "linear": fmrl.Linear(),
}
CROSS = [("ball", "linear"), ("floored simplex", "linear"), ("shifted ball", "logistic")]
FEW = [
    ("omd", "fal", "leader", "doubling"), ("ogd", "mean", "descent", "average"),
    ("ftrl", "last", "reptile", "released"), ("omd", "last", "strawman", "known"),
]


def case(name, function, *given):
    """Add a case."""
    CASES[name] = partial(function, *given)


def missing(name):
    """The package that a case needs and that is not installed, or None."""
    need = NEEDS.get(name.split("/")[0])
    return need if need and importlib.util.find_spec(need) is None else None


def of(kind, /, **values):
    """Entries of one kind."""
    return {k: (kind, v if kind == "text" else numbers(v)) for k, v in values.items()}


def under(name, entries):
    """The same entries with a name before theirs."""
    return {f"{name}: {entry}": value for entry, value in entries.items()}


def numbers(value):
    """Anything as float64; a ragged list is joined."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, (list, tuple)):
        value = [numbers(v) for v in value]
        ragged = len({v.shape for v in value}) > 1
        value = np.concatenate([v.ravel() for v in value]) if ragged else value
    return np.asarray(np.nan if value is None else value, dtype=np.float64)


def flat(value, name=""):
    """The numbers of nested plain values by their paths; texts are left out."""
    listed = isinstance(value, (list, tuple))
    if isinstance(value, Mapping):
        pairs = value.items()
    elif listed and any(isinstance(v, (Mapping, list, tuple)) for v in value):
        pairs = enumerate(value)
    else:
        text = any(isinstance(v, str) for v in (value if listed else [value]))
        return {} if text else {name: numbers(value)}
    return {k: v for key, x in pairs for k, v in flat(x, f"{name}.{key}".lstrip(".")).items()}


# ---- core
# ----------------------------------------------------------------------------------------


@lru_cache
def tasks_of(name, mixed=False):
    """Ragged tasks of one loss. mixed: all classes at the same rows, so that an optimum exists.
    """
    loss, rng = LOSSES[name], np.random.default_rng([7, list(LOSSES).index(name)])
    outputs, features, found = loss.outputs, 2 if loss.outputs > 1 else 3, []
    truth, classes = rng.normal(size=(outputs, features)), max(2, outputs)
    for t, m in enumerate(ROUNDS):
        X = rng.normal(size=(m, features)) / np.sqrt(features)
        own = truth + 0.4 * rng.normal(size=truth.shape)
        z = X @ own.T + 0.5 * rng.normal(size=(m, outputs))
        y = z.argmax(1) if outputs > 1 else z[:, 0] if name == "squared" else 1 * (z[:, 0] > 0)
        if mixed and name != "squared":
            extra = np.repeat(rng.normal(size=(features, features)), classes, axis=0)
            X, y = np.concatenate([X, extra]), np.append(y, np.tile(range(classes), features))
        found.append(Task(X, None if name == "linear" else y, loss=loss, name=t))
    return found


def compose(domain, within, update, meta, similarity, lipschitz=None):
    """A composition by names."""
    rules = SIMILARITY | (UNBOUNDED if domain in ("euclidean", "simplex") else {})
    four = WITHIN[within], UPDATE[update], META[meta], rules[similarity]
    return FMRL(DOMAINS[domain], *four, lipschitz=lipschitz)


def play(way, algo, tasks):
    """Numbers of one run in one of the ways."""
    if way == "step":
        state, rounds = algo.init(algo.domain.middle(np.zeros(tasks[0].dim))), []
        for task in tasks:
            state, happened = algo.step(state, task)
            rounds.append(happened)
        regret, gap, guess = (numbers([getattr(r, n) for r in rounds])
                              for n in ("regret", "gap", "guess"))
        ends = {"phi": state.phi, "interval": [regret.mean(), regret.mean() + gap.mean()]}
        return ends | {"regret": regret, "guess": [*guess, state.guess]}
    if way == "resume":
        history = fmrl.run(algo, tasks[2:], state=fmrl.run(algo, tasks[:2]).state)
    else:
        orders = [range(len(tasks)), np.roll(range(len(tasks))[::-1], 1)]
        given = {"orders": {"orders": orders}, "meta batch": {"meta_batch": 3}}
        history = fmrl.run(algo, tasks, **(given | {"totals": {"keep": "totals"}}).get(way, {}))
    found, last = {"interval": history.interval, "phi": history.state.phi}, history.state.guess
    if way in ("orders", "totals"):
        return found | {"guess": last}
    return found | {"regret": history.regret, "guess": np.append(history.guess, last)}


def labelled(algo, loss, found):
    """Entries of a run: what an optimum or a regularised leader had a part in is solved."""
    released = isinstance(algo.similarity, fmrl.ReleasedDoubling)  # looks at the optimum
    own = not (isinstance(algo.update, FAL) or isinstance(algo.within, FTRL) or released)
    exact = {"guess": own or isinstance(algo.similarity, fmrl.Known)}
    exact["phi"] = own or isinstance(algo.meta, fmrl.Fixed)
    every = loss == "linear"  # optima and leaders of linear losses have closed forms
    held = {name: "exact" if every or exact.get(name) else "solver" for name in found}
    return {name: (held[name], numbers(value)) for name, value in found.items()}


def core(domain, loss, compositions, count, way, scratch):
    """Several compositions on one domain and the first ``count`` tasks of one loss."""
    out, free = {}, domain == "euclidean"
    for names in compositions:
        if "simplex" in domain and names[2] == "descent":  # refused there
            names = (*names[:2], "leader", names[3])
        algo = compose(domain, *names, lipschitz=1.0 if free and loss == "squared" else None)
        found = play(way, algo, tasks_of(loss, free)[:count])
        held = "" if way == "totals" else loss  # the last bit of sums is a matter of blocks
        out |= under("+".join(names), labelled(algo, held, found))
    return out


for (d, l), w, u, way in product(CROSS, WITHIN, UPDATE, WAYS):
    rules = [r for r in product(META, SIMILARITY) if "simplex" not in d or r[0] != "descent"]
    if way == "totals" or (l != "linear" and (way in ("orders", "resume") or w == "ftrl")):
        rules = rules[::3]  # every rule, though not every pair of them
    case(f"{way}/{d}+{l}/{w}+{u}", core, d, l, [(w, u, *r) for r in rules], len(ROUNDS), way)
for d, l, way in product(DOMAINS, LOSSES, WAYS):
    slow = l == "hinge" or (l != "linear" and (d == "box" or "simplex" in d))  # interior points
    if (d, l) == ("euclidean", "linear") or (d == "simplex" and l not in ("linear", "squared")):
        continue  # no minimum; and the floored one stands for it
    one = {"run": FEW[::2], "step": FEW[1:2], "meta batch": FEW[3:], "resume": FEW[3:]}
    few, count = (one.get(way, FEW[:1]), 3) if slow else (FEW, len(ROUNDS))
    case(f"{way}/{d}+{l}", core, d, l, few, count, way)


# ---- presets and theory
# --------------------------------------------------------------------------

PRESETS = {
    "paper": presets.paper(), "paper ftrl": presets.paper("ftrl", "fli-online"),
    "released": presets.released(), "released mean": presets.released("omd", "fli-batch"),
    "single": presets.single_task(), "strawman": presets.strawman(),
    "omniscient": presets.omniscient([0.1, -0.2, 0.3], 0.4),
}
CERTIFIED = PRESETS | {
    "descent": FMRL(meta=fmrl.AdaptiveOGD()), "known": FMRL(similarity=fmrl.Known(0.6)),
    "average": FMRL(similarity=fmrl.AverageDeviation()), "last": FMRL(update=FLIOnline()),
    "reptile": FMRL(meta=META["reptile"]), "box": FMRL(fmrl.Box(-1.0, 1.0)),
    "simplex": FMRL(fmrl.Simplex(0.05)),
}
COLUMNS = ("regret", "guess", "eta", "divergence", "deviation", "lipschitz", "rounds", "theta",
           "optimum", "losses", "bound", "violations")


def preset(name, loss, scratch):
    """All columns of a run from a stored state, itself stored and read, and how it prints."""
    algo, tasks = fmrl.parse(repr(PRESETS[name])), tasks_of(loss)
    fmrl.save_state(algo.init(np.zeros(tasks[0].dim)), scratch / "state")
    history = fmrl.run(algo, tasks, state=fmrl.load_state(scratch / "state"))
    fmrl.save_history(history, scratch / "history")
    history = fmrl.load_history(scratch / "history")
    columns = {n: getattr(history, n) for n in COLUMNS} | {"running": history.running_tar()}
    out = of("exact" if loss == "linear" else "solver", **columns, phi=history.state.phi)
    return out | of("text", composition=repr(history.algo))


def certified(name, loss, scratch):
    """A certificate and a similarity report."""
    tasks, growth = tasks_of(loss), 0.1 if name == "last" else None
    history = fmrl.run(CERTIFIED[name], tasks)
    found = certificate(fmrl.certify(history, tasks, growth=growth))
    return found | similar(fmrl.similarity_report(history))


def certificate(found):
    """The numbers of a certificate, and those of its words that are no prose."""
    held = {"interval": found.interval, "violations": found.violations, **found.similarity}
    held["limit"] = None if found.limit is None else found.limit.total
    for b in found.bounds:
        held |= {f"{b.name}.{term}": value for term, value in b.terms.items()}
        held[f"{b.name}.total"] = b.total
    bounds, refused = [b.name for b in found.bounds], [name for name, _ in found.refused]
    given = "; ".join(f"{a.name}: {a.status}" for a in found.assumptions)
    words = {"bounds": ", ".join(bounds), "refused": ", ".join(refused), "assumptions": given}
    return of("solver", **held) | of("text", **words)


def similar(report):
    """The numbers of a similarity report."""
    found = {k: v for k, v in flat(report.to_dict()).items() if k != "radius_gap"}
    found = {k: v for k, v in found.items() if not k.startswith("environment.")}
    return under("similarity", of("solver", **found))


def bounds(scratch):
    """Bounds as functions."""
    b, sigma, given = fmrl.bounds, [1.0, 2.0, 0.5, 1.5], (0.5, 1.0, 1.0, 16, 100)
    wide = {"diameter": 1.0, "task_diameter": 0.3, "deviation": 0.2, "C": 0.05}
    found = {
        "per task": b.per_task([0.5, 0.02], 0.25, 1.0, 16),
        "sharp": b.sharp([0.5, 0.02], 0.25, [1.0, 2.0], 16),
        "meta": b.meta_regret(sigma, 2.0, first=0.3), "meta wide": b.meta_regret(sigma, 2.0, 0.7),
        "tuned": b.exact(*given), "lower": b.lower(0.5, [1.0, 2.0], [4, 9]),
        "exact": b.exact(*given, deviation=0.25, epsilon=0.1, gamma=2.0),
        "upper": b.upper(sigma, epsilon=0.1, gamma=1.5, **wide),
        "violated": b.upper(sigma, epsilon=0.1, gamma=1.5, violations=[1, 3], **wide),
        "transfer": b.online_to_batch(2.0, 16, 800, 0.05),
    }
    values = {name: [*bound.terms.values(), bound.total] for name, bound in found.items()}
    points = np.random.default_rng(3).dirichlet(np.ones(3), size=5)
    for name in ("ball", "floored simplex"):
        s = b.spread(DOMAINS[name], points, [1.0, 2.0, 1.0, 3.0, 1.0])
        constants = s.diameter, s.deviation, s.lipschitz, s.C, s.beta
        values[f"spread {name}"] = [*constants, *s.mean]
    return of("exact", drift=b.drift(sigma), psi=b.psi([0.1, 0.9]), **values)


def beyond(scratch):
    """The adversary, growth and transfer; and the solver by itself."""
    out, hostile = {}, fmrl.adversary.LowerBound(0.5, [1.0, 2.0, 1.0], [4, 1, 6], dim=3, seed=2)
    for name in WITHIN:
        history = fmrl.run(presets.paper(name), hostile, np.zeros(3))
        found = of("solver", regret=history.regret, phi=history.state.phi)
        out |= under(f"adversary {name}", found)
    forced = fmrl.adversary.force(lambda t, past: np.full(3, 0.1 * len(past)), hostile)
    sandwich = [*flat(fmrl.adversary.sandwich([4], tasks=3, dim=3)).values()]
    out |= of("solver", forced=[*forced.regret, *forced.lower, forced.ratio], sandwich=sandwich)
    for loss in ("squared", "logistic"):
        tasks, names = tasks_of(loss), ("difference", "relaxed", "curvature")
        names += ("alpha_fit", "alpha_min", "alpha_most", "alpha_proved")
        grown = fmrl.growth.estimate(tasks[1], distances=[0.1, 0.5, 0.9])
        out |= under(f"growth {loss}", of("solver", **{n: getattr(grown, n) for n in names}))
        history = fmrl.run(presets.paper(update="fli-batch"), tasks)
        risk = flat(fmrl.transfer.risk(history, list(pairwise(tasks)), seed=4).to_dict())
        new = fmrl.transfer.adapt(history, tasks[2], seed=5)
        found = of("solver", **risk, adapted=[*new.average, *new.last, new.t])
        out |= under(f"transfer {loss}", found)
    for (d, domain), loss in product(DOMAINS.items(), ("squared", "hinge", "softmax")):
        game = tasks_of(loss, d == "euclidean")[0].open()
        alone, near = fmrl.minimise(game, domain), domain.middle(np.zeros(game.dim))
        value = fmrl.minimise(game, domain, near, np.asarray(0.3)).value
        out |= of("solver", **{f"minimise {d} {loss}": [alone.value, value]})
    return out


def single(scratch):
    """Arrays of single precision keep it."""
    rng, loss = np.random.default_rng(8), fmrl.Linear()
    tasks = [Task(rng.normal(size=(4, 3)).astype(np.float32), loss=loss) for _ in range(5)]
    history = fmrl.run(FMRL(), tasks)
    phi = history.state.phi
    return of("exact", regret=history.regret, phi=phi) | of("text", dtype=str(phi.dtype))


def tensors(scratch):
    """Tasks of torch tensors."""
    import torch

    rng, loss = np.random.default_rng(9), fmrl.Squared()
    data = [(rng.normal(size=(m, 3)), rng.normal(size=m)) for m in ROUNDS]
    history = fmrl.run(FMRL(), [Task(*map(torch.asarray, pair), loss=loss) for pair in data])
    phi = history.state.phi
    return of("torch", regret=history.regret, phi=phi) | of("text", array=type(phi).__name__)


for name, l in product(PRESETS, ("linear", "squared", "logistic")):
    case(f"preset/{name}/{l}", preset, name, l)
for name, l in product(CERTIFIED, ("linear", "logistic")):
    case(f"certificate/{name}/{l}", certified, name, l)
optima, report = np.random.default_rng(6).normal(size=(9, 3)), fmrl.similarity_report
case("similarity/optima", lambda scratch: similar(report(optima)))
case("similarity/tasks", lambda scratch: similar(report(tasks_of("softmax"), fmrl.Ball(2.0))))
case("theory/bounds", bounds)
case("theory/beyond", beyond)
case("float32/linear", single)
case("tensors/squared", tensors)


# ---- estimators and commands
# ---------------------------------------------------------------------

SETTINGS = {
    "default": {}, "no intercept": {"fit_intercept": False}, "seed, weights": {"random_state": 3},
}


@lru_cache
def table(kind, tasks=14, rows=9):
    """X of columns that deviate alike, y, task and weights; 2 or 3 classes, or 0: a regression.
    """
    rng, n, k = np.random.default_rng([11, kind]), tasks * rows, max(kind, 1)
    task, X = np.repeat(np.arange(tasks), rows), rng.normal(size=(n, 3))
    w = rng.normal(size=(k, 3)) + 0.3 * rng.normal(size=(tasks, k, 3))
    z = (w[task] @ X[:, :, None])[..., 0] + 0.4 * rng.normal(size=(n, k))
    return X, z.argmax(1) if kind else 2 + z[:, 0], task, rng.uniform(0.5, 2.0, n)


def estimator(kind, settings):
    """A fresh one."""
    return (fmrl.MetaClassifier if kind else fmrl.MetaRegressor)(**SETTINGS[settings])


def look(est, X, **task):
    """What a fitted model is and says."""
    found = {"coef": est.coef_, "intercept": est.intercept_, "predict": est.predict(X, **task)}
    if hasattr(est, "predict_proba"):
        found["proba"] = est.predict_proba(X, **task)
    return of("solver", **found)


def fitted(kind, settings, weighted, scratch):
    """fit, store and read, then adapt, predict and score."""
    X, y, task, heavy = table(kind)
    est = estimator(kind, settings).fit(X, y, task=task, sample_weight=heavy if weighted else None)
    est.save(scratch / "model")
    est = type(est).load(scratch / "model")
    model = est.adapt(X[:4], y[:4], heavy[:4] if weighted else None)
    scores = [est.score(X, y), est.score(X, y, task=task), est.score(X, y, sample_weight=heavy)]
    out = look(est, X[:9]) | of("solver", scores=[*scores, model.score(X[:9], y[:9])])
    out |= under("seen", look(est, X[:20], task=task[:20])) | under("model", look(model, X[:9]))
    return out


def online(kind, settings, scratch):
    """partial_fit task after task; rows one at a time; the prior learned again."""
    (X, y, task, weight), classes = table(kind), {"classes": range(kind)} if kind else {}
    est, after = estimator(kind, settings), []
    for t in range(5):
        rows, first = task == t, {} if t else classes
        heavy = weight[rows] if t == 3 else None
        est.partial_fit(X[rows], y[rows], task=f"t{t}", sample_weight=heavy, **first)
        after.append(np.append(est.coef_, est.intercept_))
    out, est = of("solver", partial=after), estimator(kind, settings).fit(X, y, task=task)
    said, shown = [], "predict_proba" if kind else "predict_interval"
    for t in (3, 4, 5):
        with est.stream(t if t == 3 else f"stream {t}") as stream:  # one that is known, two new
            for x, label in zip(X[task == t], y[task == t], strict=True):
                said.append(np.append(stream.predict(x), getattr(stream, shown)(x)))
                stream.learn(x, label)
    out |= of("solver", said=said) | under("streamed", look(est, X[:5], task=["stream 4"] * 5))
    return out | under("relearned", look(est.relearn(), X[:5]))


def command(*words):
    """The command line in this process; what it printed."""
    from typer.testing import CliRunner

    from fmrl.cli.main import app

    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result.stdout


def commands(kind, given, scratch):
    """train, adapt and predict on a table with a text column and missing numbers."""
    X, y, task, _ = table(kind, 18)
    rng, target = np.random.default_rng(13), np.array(["low", "mid", "top"])[y] if kind else y
    lost, rows = rng.random(len(y)) < 0.05, []
    for t, x, gone, label in zip(task, X.tolist(), lost, target, strict=True):
        rows.append([f"t{t}", x[0], "" if gone else 40 + 10 * x[1], "ab"[x[2] > 0], label])
    new = [[f"new {row[0]}", *row[1:]] for row in rows if row[0] in ("t3", "t4")]
    every, few, run = scratch / "all.csv", scratch / "new.csv", scratch / "run"
    models, said = scratch / "models.json", scratch / "said.csv"
    for path, part in ((every, rows), (few, new)):
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["who", "price", "age", "colour", "y"], *part])
    options = ["--task", "who", "--target", "y", "--holdout", "0.3", "--evaluate", "3", *given]
    record = json.loads(command("train", every, "--out", run, *options, "--json"))
    command("adapt", run, few, "--out", models)
    command("predict", run, few, "--adapted", models, "--out", said)
    names = ("tasks", "rows", "heldout_tasks", "rows_per_task", "tar", "bound", "guess", "heldout")
    with said.open(newline="") as file:
        told = list(csv.DictReader(file))
    shown = [[float(row[c]) for c in row if c.startswith("p" if not kind else "p_")]
             for row in told[:6]]
    tasks = flat(json.loads(models.read_text())["tasks"])
    policy = fmrl.data.Policy(missing="mean")
    stream = fmrl.tasks_from_frame(str(every), task="who", target="y", one_class="keep",
                                   policy=policy)
    direct = fmrl.run(FMRL(), stream, keep="totals")
    words = {n: str(record[n]) for n in ("kind", "classes", "composition", "features")}
    words["said"] = " ".join(row["prediction"] for row in told) if kind else ""
    found = of("solver", models=[*tasks.values()], shown=shown, direct=direct.interval)
    return found | of("solver", **flat({n: record[n] for n in names})) | of("text", **words)


for kind in (2, 3, 0):
    name, other = kind or "regression", "seed, weights" if kind == 3 else "no intercept"
    for s in ("default", other):
        case(f"estimator/{name}/{s}", fitted, kind, s, s == "seed, weights")
    case(f"online/{name}/default", online, kind, "default")
case("command/2", commands, 2, [])
case("command/3", commands, 3, ["--within", "OGD()", "--update", "FLIBatch()"])
case("command/regression", commands, 0, ["--similarity", "Doubling(0.1, 1.2)"])


# ---- Ray and networks
# ----------------------------------------------------------------------------


def on_ray(scratch):
    """The engine "ray", started once."""
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init("local", num_cpus=1, object_store_memory=80 * 2**20, **quiet)
    out = {}
    try:
        for i, loss, size in ((0, "squared", 1), (1, "logistic", 3), (3, "linear", 1)):
            algo = compose("ball", *FEW[i])
            h = fmrl.run(algo, tasks_of(loss), engine="ray", meta_batch=size)
            found = {"regret": h.regret, "interval": h.interval, "guess": h.guess}
            found = labelled(algo, loss, found | {"phi": h.state.phi})
            out |= under(f"{'+'.join(FEW[i])} {loss}", found)
    finally:
        ray.shutdown()
    return out


def network():
    """A tiny network, always the same."""
    from torch import manual_seed, nn

    manual_seed(0)
    norm = nn.BatchNorm1d(5, track_running_stats=False)
    return nn.Sequential(nn.Linear(3, 5), norm, nn.Tanh(), nn.Linear(5, 2)).double()


def deep(make, scratch):
    """A network meta-trained, stored, gone on with, evaluated and adapted, on one thread."""
    import torch

    from fmrl import deep as d

    rng, made = np.random.default_rng(17), []
    for _ in range(5):
        X, w = rng.normal(size=(10, 3)), rng.normal(size=3)
        y = (X @ w > 0).astype(int)
        made.append((X[:6], y[:6], X[6:], y[6:]))
    tasks, threads = d.Arrays(made, batch=3, steps=4), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if isinstance(make(d), d.MAML):
            phi, out = d.Layout.of(network()).flat(make(d).fit(network(), tasks, 4, 3)), {}
        else:
            path = d.save(make(d).fit(tasks, 3), scratch / "trainer.safetensors")
            trainer = d.load(make(d), path).fit(tasks, 6)
            phi, losses = trainer.phi, torch.cat(trainer.losses)
            alone = d.adapt(trainer, *made[0][:2], 5)(torch.asarray(made[0][2]))
            out = of("torch", losses=losses, eta=trainer.eta, adapted=alone)
            for p, what in product(("transductive", "inductive"), ("accuracy", "loss")):
                found = d.evaluate(trainer, tasks, 5, protocol=p, count=5, what=what)
                found = found if isinstance(found, list) else [found]
                out |= of("torch", **{f"{p} {what}": [f.tasks for f in found]})
        return out | of("torch", first=phi.flatten()[:8], sum=phi.sum(), norm=phi.norm())
    finally:
        torch.set_num_threads(threads)


def trainer(d, within, **given):
    """A MetaTrainer of the tiny network."""
    given = {"meta": d.Interpolate(1.0, 0.0, 8), "meta_batch": 3} | given
    return d.MetaTrainer(network(), within, **given)


case("ray/engine", on_ray)
for name, make in {
    "sgd": lambda d: trainer(d, d.SGD(0.2)),
    "adam": lambda d: trainer(d, d.Adam(0.02)),
    "adam in turn": lambda d: trainer(d, d.Adam(0.02, carry="in turn")),
    "adam fresh": lambda d: trainer(d, d.Adam(0.02, carry=False), path="functional"),
    "guessed step": lambda d: trainer(d, d.SGD(lipschitz=2.0), meta=d.FollowLeader(),
                                      similarity=d.AverageDeviation(first=0.5)),
    "two runs": lambda d: trainer(d, d.SGD(0.2), update=d.FLIBatch(), meta=d.AdaptiveOGD(), runs=2),
    "long run": lambda d: trainer(d, d.SGD(0.2), update=d.LongRun(9)),
    "doubling": lambda d: trainer(d, d.SGD(lipschitz=2.0), path="stacked",
                                  similarity=d.Doubling(0.3, 1.5, first=0.5)),
    "maml": lambda d: d.MAML(0.1, 0.05),
    "first order": lambda d: d.MAML(0.1, 0.05, first_order=True),
}.items():
    case(f"deep/{name}", deep, make)
