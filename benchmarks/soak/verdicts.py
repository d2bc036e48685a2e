"""What the adversary compares: numbers, gaps, certificates, and ways to play the same tasks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import odd_tasks
import truths
from truths import Problem

import fmrl
from fmrl.core.ensemble import Ensemble
from fmrl.core.losses import Weighted
from fmrl.theory.certificate import certify

LEARNERS = (fmrl.OMD, fmrl.OGD, fmrl.FTRL)
# The words by which an assumption is recognised as the condition of a theorem.
CONDITIONS = {
    "convex": ("convex losses",),
    "lipschitz": ("Lipschitz losses",),
    "learner": ("learner",),
    "inside": ("optima in the domain",),
    "domain": ("strongly convex",),
}


class Wrong(NamedTuple):
    """One thing that is wrong."""

    kind: str
    where: str
    what: str

    @property
    def label(self) -> str:
        """By which findings are counted."""
        return f"{self.kind}: {self.where}"

    def __str__(self) -> str:
        return f"{self.label}: {self.what}"


def condition(name: str) -> str:
    """Which condition an assumption states; "" for one that the adversary cannot judge."""
    return next((k for k, words in CONDITIONS.items() if any(w in name for w in words)), "")


def arrays(value: Any) -> list[np.ndarray]:
    """The numbers of a guess, which may be a metric."""
    if hasattr(value, "arrays"):
        return [np.asarray(a) for a in value.arrays.values()]
    return [np.asarray(value)]


def not_numbers(history: Any) -> list[Wrong]:
    """NaN in phi, guesses, steps or regrets; an infinite regret."""
    found, meta = [], type(getattr(history.algo, "meta", history.algo)).__name__
    kind = f"{type(history.algo).__name__} {meta}"
    places = {"phi": [np.asarray(history.state.phi)], "guess": arrays(history.state.guess)}
    columns = () if history.keep == "totals" else ("regret", "gap", "guess", "eta", "divergence")
    places |= {f"history.{name}": [np.asarray(getattr(history, name))] for name in columns}
    places["tar"] = [np.asarray(history.tar)]
    for name, values in places.items():
        if any(np.isnan(a).any() for a in values):
            found.append(Wrong("nan", f"{name}, {kind}", f"{values}"))
    if not found and not np.isfinite(np.asarray(history.tar)).all():
        found.append(Wrong("nan", f"infinite regret, {kind}", f"{history.tar}"))
    return found[:1]


def _places(it: Any) -> list[tuple[int | None, list[Any]]]:
    """Each order of a history, with its tasks as they were played."""
    if it.orders is None:
        return [(None, it.tasks[it.split :])]
    return [(s, [it.tasks[i] for i in order]) for s, order in enumerate(it.orders)]


def rounding(it: Any, history: Any, order: int | None) -> float:
    """By how much float arithmetic can be wrong about TAR: actions are sums of up to m gradients
    times a step, their losses are G-Lipschitz, and sums of losses are rounded.
    """
    pick = _column(order)
    eps = float(np.finfo(np.asarray(history.state.phi).dtype).eps)
    G, m, eta = pick(history.lipschitz), pick(history.rounds), pick(history.eta)
    domain, dim = it.algo.domain, np.asarray(history.state.phi).shape[-1]
    far = domain.diameter(dim)
    size = np.abs(np.asarray(history.start.phi, float)).max() + min(far, 1e300)
    if not np.isfinite(far):
        size = 1.0 if domain.norm == "l1" else size * 0 + 1.0
    if domain.norm == "l2" and hasattr(history, "keep") and history.keep in ("all", "vectors"):
        size = max(size, float(np.abs(np.asarray(history.optimum, float)).max()) * dim**0.5)
    losses = [1.0 * m * G * size]
    if history.keep == "all":
        rows = history.losses
        mine = [np.abs(np.asarray(r if order is None else r[order], float)).sum() for r in rows]
        losses.append(np.array(mine))
    elif isinstance(it.tasks[0], fmrl.Task):  # what they cost at the start, where costs may be all
        start = np.asarray(history.start.phi, float).reshape(-1, dim)
        cost = [float(np.abs(Problem(task).rounds(start)).sum()) for task in it.tasks]
        losses.append(np.full(len(m), max(cost)))
    steps = m * G * np.where(np.isfinite(eta), eta, 0) * G * m
    each = (dim + m + 16) * (sum(losses) + (steps if domain.norm == "l2" else 0))
    return float(8 * eps * each.mean() + 1e-318)


def solved(rng: np.random.Generator, it: Any, history: Any) -> list[Wrong]:
    """Minima that lie below value − gap, of one task of rows."""
    if history.keep not in ("all",):
        return []
    order, tasks = _places(it)[0]
    pick = lambda a: np.asarray(a) if order is None else np.asarray(a)[order]  # noqa: E731
    t = int(rng.integers(0, len(tasks)))
    if not isinstance(tasks[t], fmrl.Task):
        return []
    problem, domain = Problem(tasks[t]), it.algo.domain
    theta, gap = pick(history.optimum)[t].astype(float), float(pick(history.gap)[t])
    losses = history.losses[t] if order is None else history.losses[t][order]
    value = np.asarray(losses, truths.Long).sum() - truths.Long(pick(history.regret)[t])
    room = truths.Long(
        problem.rounding(theta)
        + np.finfo(pick(history.regret).dtype).eps
        * 8
        * float(np.abs(np.asarray(losses, float)).sum())
    )
    kind = f"{type(problem.loss).__name__} on {type(domain).__name__}"
    found, own_value = [], problem.rounds(theta[None])[0].sum()
    if "convex" in it.lies:  # nothing is claimed of its minimum
        return []
    if not truths.inside(domain, pick(history.optimum)[t][None]):
        found.append(Wrong("gap", f"the optimum lies outside, {kind}", f"{theta}"))
    if abs(own_value - value) > room + 1e-9 * abs(value) * (problem.eps > 1e-10):
        found.append(Wrong("gap", f"value, {kind}", f"{value} is {own_value}, room {room}"))
    lowest = truths.attack(rng, problem, domain, theta)
    if rng.random() < 0.06 and theta.size < 6 and len(problem.X) < 100:
        lowest = min(lowest, truths.slsqp(problem, domain, theta))
    if lowest < value - gap - room:
        found.append(Wrong("gap", f"minimum, {kind}", f"{lowest} < {value} − {gap}, room {room}"))
    return found


def differences(rng: np.random.Generator, it: Any, history: Any) -> list[Wrong]:
    """`run` against `step` in a loop, which plays all tasks in one go."""
    if it.meta_batch > 1 or history.keep == "totals" or _kinks(it) or rng.random() < 0.5:
        return []
    private = "Tree(" in repr(it.algo)  # the runs side by side have noise of their own
    for order, _ in _places(it)[: 1 if private else 2]:
        column = _column(order)
        tasks = it.tasks if order is None else [it.tasks[i] for i in it.orders[order]]
        state, rounds = it.algo.init(_begun(it, history)), []
        for task in tasks:
            state, round = it.algo.step(state, task)
            rounds.append(round)
        rounds = rounds[it.split :]
        close = 1e-7 if np.asarray(history.state.phi).dtype == np.float64 else 3e-3
        G, m, eta = (column(getattr(history, name)) for name in ("lipschitz", "rounds", "eta"))
        sizes = np.array([np.abs(np.asarray(r.losses, float)).sum() for r in rounds])
        sizes += np.minimum(m * G * np.abs(np.asarray(history.start.phi, float)).max(), 1e300)
        sizes += np.abs(column(history.regret)) + G * G * m * np.where(np.isfinite(eta), eta, 0)
        mine = np.array([float(r.regret) for r in rounds])
        off = np.abs(mine - column(history.regret)) > close * sizes + 1e-300
        if off.any() and not _at_a_threshold(column, history):
            t = int(np.argmax(off))
            kind = f"{type(it.algo).__name__}, {type(getattr(it.algo, 'meta', None)).__name__}"
            what = f"task {t}: {mine[t]} against {column(history.regret)[t]}"
            return [Wrong("differs", f"regret of run and step, {kind}", what)]
    return []


def _column(order: int | None) -> Any:
    """Takes a column of a history, of one order, as float64."""
    return lambda a: np.asarray(a, float) if order is None else np.asarray(a, float)[order]


def _begun(it: Any, history: Any) -> Any:
    """Where the whole run began, whatever part of it the history holds."""
    if it.phi is not None:
        return it.phi
    phi = np.asarray(history.start.phi)
    return it.algo.domain.middle(np.zeros(phi.shape[-1:], phi.dtype))


def _kinks(it: Any) -> bool:
    """Whether slopes jump, so that rounding may take another one."""
    task = it.tasks[0]
    loss = getattr(task, "loss", None)
    loss = loss.loss if isinstance(loss, Weighted) else loss
    return not isinstance(task, fmrl.Task) or isinstance(loss, fmrl.Hinge) or "convex" in it.lies


def _at_a_threshold(pick: Any, history: Any) -> bool:
    """Whether rounding decides if a guess was violated."""
    guess, far = pick(history.guess), np.sqrt(pick(history.deviation))
    return bool(np.any(np.abs(guess - far) <= 1e-6 * np.maximum(guess, far)))


def certificates(rng: np.random.Generator, it: Any, history: Any) -> tuple[list[Wrong], str]:
    """Everything that certificates of a run claim and that is not so; and what they were."""
    found, reached = [], "played"
    for order, tasks in _places(it):
        rows = all(isinstance(task, fmrl.Task) for task in tasks)
        way = str(rng.choice(["tasks", "tasks", "none", "none", "others"]))
        played, given = tasks, {}
        if way == "others" and rows:
            played = odd_tasks.others(rng, tasks)
        if way in ("tasks", "others"):
            given["tasks"] = played
        try:
            certificate = certify(history, order=order, **given)
        except fmrl.FMRLError:
            if way == "others":
                continue
            raise
        if rng.random() < 0.1:
            str(certificate), certificate.json(), certificate.markdown()
        if history.keep == "totals":
            reached = "totals"
            continue
        reached = "certified" if certificate.applicable else "no bound"
        foreign = way == "others" and rows
        found += judge(rng, it, history, order, tasks, certificate, foreign)
        if rng.random() < 0.5:
            break
    return found, reached


def judge(
    rng: np.random.Generator, it: Any, history: Any, order: int | None, tasks: list[Any],
    certificate: Any, foreign: bool,
) -> list[Wrong]:  # fmt: skip
    """One certificate against what is true of the tasks that were played.

    Args:
        rng: Random numbers.
        it: The instance.
        history: Of its run.
        order: Which order of the history.
        tasks: As they were played in it.
        certificate: What is judged.
        foreign: Whether it was given other tasks than these.
    """
    false, own_constants = false_conditions(rng, it, history, order, tasks)
    found = checked_wrongly(it, certificate, false, own_constants)
    checked = {condition(a.name) for a in certificate.assumptions if a.status == "checked"}
    if foreign and checked & {"convex", "lipschitz"}:
        found.append(Wrong("checked", "on tasks that were not played", f"keep={history.keep}"))
    return found + too_low(it, history, order, certificate, false, foreign)


def false_conditions(
    rng: np.random.Generator, it: Any, history: Any, order: int | None, tasks: list[Any]
) -> tuple[set[str], bool]:
    """Conditions of theorems that a run broke, and whether G_t of its tasks themselves are true."""
    column, domain, false, own_constants = _column(order), it.algo.domain, set(it.lies), True
    many = isinstance(it.algo, Ensemble)
    rows = [t for t, task in enumerate(tasks) if isinstance(task, fmrl.Task)]
    given = getattr(it.algo, "lipschitz", None) is not None  # then any task may be steeper
    if given and any(_constant(task, domain) > it.algo.lipschitz * (1 + 1e-6) for task in tasks):
        false.add("lipschitz")
    for t in rng.permutation(rows)[: None if given else 3] if rows else ():
        problem = Problem(tasks[t])
        like = np.asarray(domain.middle(np.zeros(problem.loss.outputs * problem.X.shape[1])))
        steepest = truths.steepest(rng, problem, domain, like) / (1 + 64 * problem.eps)
        if not many and steepest > column(history.lipschitz)[t]:
            false.add("lipschitz")
            own_constants &= steepest <= float(tasks[t].open().lipschitz(domain))
        if not truths.convex(rng, problem, domain, like):
            false.add("convex")
    last = np.asarray(history.state.phi, float)
    if not truths.strongly_convex(rng, domain, last if order is None else last[order]):
        false.add("domain")
    members = it.algo.members if many else (it.algo,)
    if any(type(m.within) not in LEARNERS for m in members):
        false.add("learner")
    if history.keep in ("all", "vectors"):
        optima = np.asarray(history.optimum)
        if not truths.inside(domain, optima if order is None else optima[order]):
            false.add("inside")
    return false, own_constants


def _constant(task: Any, domain: Any) -> float:
    """What a task says of its G; infinite where there is none."""
    try:
        return float(task.open().lipschitz(domain))
    except fmrl.FMRLError:
        return np.inf


def checked_wrongly(it: Any, certificate: Any, false: set[str], own_constants: bool) -> list[Wrong]:
    """Assumptions that are called checked and are false."""
    stated = {a.name: a for a in certificate.assumptions}
    for bound in certificate.bounds:
        stated |= {f"{a.name} ({bound.name})": a for a in bound.assumptions}
    found = {}
    for a in stated.values():
        # A bound may have been made with the tasks' own constants, whatever the run was given.
        own = own_constants and "true G_t" in a.detail
        if a.status == "checked" and condition(a.name) in false and not own:
            what = f"{a}; false: {sorted(false)}"
            found[a.name] = Wrong("checked", f"{a.name}, {_kind(it)}", what)
    return list(found.values())


def too_low(
    it: Any, history: Any, order: int | None, certificate: Any, false: set[str], foreign: bool
) -> list[Wrong]:
    """Bounds below the measured regret, printed or refused for a condition that is true."""
    column, found, kind = _column(order), [], _kind(it)
    (low, measured), room = certificate.interval, rounding(it, history, order)
    eps = float(np.finfo(np.asarray(history.state.phi).dtype).eps)
    if not isinstance(it.algo, Ensemble) and not false:  # of every task by itself
        regret = column(history.regret)
        each = column(np.broadcast_to(history.bound, np.shape(history.regret)))
        over = np.isnan(each) | (regret > each * (1 + 1e3 * eps) + room * len(regret))
        if over.any():
            t = int(np.argmax(over))
            what = f"task {t}: {each[t]} < {regret[t]}"
            found.append(Wrong("bound", f"history.bound, {kind}", what))
    for bound in certificate.bounds:
        if "privacy" in bound.terms:  # it may fail in one run of a hundred
            continue
        # Whatever was taken on trust: the certificate has both numbers at hand.
        if bound.total + 1e3 * eps * abs(bound.total) + room < measured or np.isnan(bound.total):
            what = f"{bound.total} < {measured}, room {room}"
            where = "tasks that were not played" if foreign else kind
            where = "costs below 1e-150" if measured < 1e-150 else where
            found.append(Wrong("bound", f"{bound.name}, {where}", what))
    trusted = it.lies or foreign or getattr(it.algo, "lipschitz", None) is not None
    for name, why in certificate.refused:
        if "not all is true of" in why and not trusted and room < abs(low):
            found.append(Wrong("bound", f"{name}, {kind}", f"{why}, and nothing was"))
    return found


def _kind(it: Any) -> str:
    """A composition in a few words: what it lies about, or who plays what where."""
    if it.lies:
        return f"where {' and '.join(sorted(it.lies))} is false"
    if isinstance(it.algo, Ensemble):
        return type(it.algo).__name__
    step = type(it.algo.similarity).__name__
    names = [type(it.algo.within).__name__, type(it.algo.domain).__name__]
    return " ".join(names + ([step] if step == "KnownStep" else []))
