"""Every line that a bound, a certificate or a transfer can call checked, with an instance where it
is and one where it is not: it turns false, it is assumed where it is the user's own, or the bound
that rests on it is withheld. A new line without such a pair fails.
"""

import ast
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_certificate import independent, regression
from test_own_classes import Plain, Unknown

import fmrl
from fmrl import FMRL, Doubling, FLIBatch, FLIOnline, Known, Simplex, bounds, certify
from fmrl.theory.bounds.basic_theorems import mean_action_risk
from fmrl.theory.bounds.rates import fli_online_rate
from fmrl.theory.certificate.facts import read
from fmrl.theory.certificate.which_bound import applicable_bounds
from fmrl.theory.transfer import risk

SOURCE = Path(fmrl.__file__).parent / "theory"
RANK = ["checked", "assumed", "false"]


def lines():
    """(pattern of the name, whether the line can say checked, where) of every assumption that is
    made in fmrl.theory.
    """
    trees = {p: ast.parse(p.read_text(encoding="utf-8")) for p in sorted(SOURCE.rglob("*.py"))}
    constants = {}
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and is_made(node.value):
                constants[node.targets[0].id] = node.value.args[0]
    for path, tree in trees.items():
        for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
            for node in ast.walk(function):
                if not is_made(node) or function.name == "decide" or not node.args:
                    continue  # decide itself, and what is read from a record
                status = ast.unparse(node.args[1]) if len(node.args) > 1 else "ASSUMED"
                checks = node.func.id == "decide" or not re.fullmatch(
                    r"(ASSUMED|FALSE)( if .* else (ASSUMED|FALSE))?", status
                )
                where = f"{path.name}:{node.lineno}"
                for name in names_of(node.args[0], function, constants, where):
                    yield name, checks, where


def is_made(node):
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Assumption", "decide")


def names_of(argument, function, constants, where):
    """The texts that the first argument can be, as patterns."""
    if isinstance(argument, ast.Constant):
        return [re.escape(argument.value)]
    if isinstance(argument, ast.JoinedStr):
        texts = (v.value if isinstance(v, ast.Constant) else None for v in argument.values)
        return ["".join(".*" if text is None else re.escape(text) for text in texts)]
    if isinstance(argument, ast.Attribute):  # CONSTANT.name
        return names_of(constants[argument.value.id], function, constants, where)
    found = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets, values = node.targets[0], node.value
            pairs = [(targets, values)]
            if isinstance(targets, ast.Tuple) and isinstance(values, ast.Tuple):
                pairs = zip(targets.elts, values.elts, strict=True)
            for target, value in pairs:
                if getattr(target, "id", "") == argument.id:
                    found += names_of(value, function, constants, where)
    assert found, f"{where}: write the name of the assumption where it is made"
    return found


# What is checked, and what is not.


def certified(algo=None, tasks=None, given=True, **options):
    tasks = regression() if tasks is None else tasks
    played = {k: options.pop(k) for k in ("phi", "keep") if k in options}
    history = fmrl.run(FMRL() if algo is None else algo, tasks, **played)
    return certify(history, tasks if given else None, **options)


def smaller():
    """A run that is said to have been played in a smaller ball than it was."""
    history = fmrl.run(FMRL(), regression())
    history.algo = FMRL(fmrl.Ball(0.1))
    return certify(history)


def corners(floor):
    rng = np.random.default_rng(0)
    tasks = [fmrl.Task(rng.uniform(size=(5, 3)), loss=fmrl.Linear()) for _ in range(8)]
    return certified(FMRL(Simplex(floor), similarity=Known(0.5)), tasks)


def farther(away):
    """Facts of a run with `Discounted`, whose optima lie ``away`` times farther from phi."""
    history = fmrl.run(FMRL(meta=fmrl.Discounted(0.2), similarity=Known(0.3)), regression())
    facts = read(history, None, None)
    good, refused, _ = applicable_bounds(replace(facts, divergence=away * facts.divergence), None)
    return good, refused


def alike(choice, rounds=(8, 8)):
    """Two tasks of the same G."""
    tasks = [fmrl.Task(np.tile([[1.0, 0.0]], (m, 1)), loss=fmrl.Linear()) for m in rounds]
    return certified(FMRL(similarity=Doubling(**choice)), tasks)


class Asleep:
    """A learner of somebody's own."""

    def actions(self, game, domain, phi, eta):
        while True:
            yield phi


def private(radius):
    pytest.importorskip("dp_accounting", reason="not installed: pip install 'fmrl[private]'")
    tree = fmrl.Tree(9.0, 1e-3, 12, radius=radius)
    return certified(FMRL(similarity=Known(0.5), meta=tree))


def rows(loss):
    tasks, _, ball, alpha = independent(0)
    if loss is not None:
        tasks = [fmrl.Task(t.X, t.open().target[:, 0] > 0, loss=loss) for t in tasks]
    algo = FMRL(ball, update=FLIBatch(), similarity=Doubling(100.0, 1.2))
    return certified(algo, tasks, growth=alpha)


def moved(loss=None, m=8):
    """A transfer from tasks of 8 rounds to tasks of m."""
    loss = fmrl.Squared() if loss is None else loss

    def tasks(rounds, count):
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(count, rounds, 3)), rng.normal(size=(count, rounds))
        return [fmrl.Task(a, b, loss=loss) for a, b in zip(X, y, strict=True)]

    new = tasks(m, 4)
    return risk(fmrl.run(FMRL(), tasks(8, 5)), [(new[0], new[1]), (new[2], new[3])])


def theorem(**changed):
    given = {"epsilon": 0.3, "gamma": 2.0, "diameter": 1.0, "task_diameter": 0.4, "C": 0.1}
    sigma = changed.pop("sigma", [1.0] * 3)
    return bounds.upper(sigma, **({"deviation": 0.1} | given | changed))


def grown(epsilon, batch=False):
    update = FLIBatch() if batch else FLIOnline()
    within = fmrl.OMD() if batch else fmrl.FTRL()
    tasks, _, ball, alpha = independent(0)
    algo = FMRL(ball, within, update, similarity=Doubling(epsilon, 1.2))
    return certified(algo, tasks[:3], growth=alpha)


METRIC, EWOO = fmrl.PerCoordinate(0.3), {"epsilon": 0.1, "D": 1.0}
TUNED = bounds.tuned(float(fmrl.Ball(1.0).reach(np.zeros(2))), 2)
# By name: an instance where it is checked, and one where it is not.
CASES = {
    "convex losses": (
        lambda: certified(), lambda: certified(tasks=[t for t in own_tasks()]),
    ),
    "Lipschitz losses": (lambda: certified(), lambda: certified(FMRL(lipschitz=0.01))),
    "within-task learner has a regret bound": (
        lambda: certified(), lambda: certified(FMRL(within=Asleep())),
    ),
    "optima in the domain": (lambda: certified(), smaller),
    "B_R(θ‖·) is Lipschitz on the hull of the optima": (
        lambda: corners(0.01), lambda: corners(0.0),
    ),
    "B_R(θ‖·) is Lipschitz on the hull of the update vectors": (
        lambda: corners(0.01), lambda: corners(0.0),
    ),
    "the first guess covers the first task": (
        lambda: certified(), lambda: certified(FMRL(similarity=Doubling(0.1, 1.1, first=0.01))),
    ),
    "the same G and m in every task": (lambda: alike(TUNED), lambda: alike(TUNED, (8, 9))),
    "ε = D(1 + log T)/T and γ = (1 + log T)/log T": (
        lambda: alike(TUNED), lambda: alike({"epsilon": 0.1, "gamma": 1.1}),
    ),
    "more than one task": (lambda: theorem(), lambda: theorem(sigma=[1.0])),
    "the first task has gradients": (lambda: theorem(), lambda: theorem(sigma=[0.0, 1.0])),
    "D̄ ≤ D* ≤ D": (lambda: theorem(), lambda: theorem(deviation=0.5)),
    "only guesses below ρD* + E were violated": (
        lambda: theorem(violations=[1]), lambda: theorem(violations=[1, 2]),
    ),
    "R is smooth": (
        lambda: certified(FMRL(update=FLIOnline())),
        lambda: certified(FMRL(Plain(1.0), update=FLIOnline())),
    ),
    "distance from update vectors to optima": (
        lambda: certified(FMRL(update=FLIOnline())),
        lambda: bounds.measured([0.5], [0.4], [1.0], 0.6, 0.5, 0.01, beta=1.0),
    ),
    "the first task has gradients and moved phi": (
        lambda: bounds.adaptive([1.0, 1.0], [0.1, 0.2], 1.0, deviation=0.1, C=0.1),
        lambda: bounds.adaptive([1.0, 1.0], [0.0, 0.2], 1.0, deviation=0.1, C=0.1),
    ),
    "growth of the measured deviation": (
        lambda: bounds.adaptive([1.0, 1.0], [0.1, 0.2], 1.0, deviation=0.1, C=0.1),
        lambda: bounds.adaptive([1e-160, 1e150], [0.1, 0.2], 1.0, deviation=0.1, C=0.1),
    ),
    "the first weight is positive": (
        lambda: bounds.meta_regret([1.0, 1.0], 1.0), lambda: bounds.meta_regret([0.0, 1.0], 1.0),
    ),
    "regret is finite": (lambda: mean_action_risk(1.0, 4), lambda: mean_action_risk(np.inf, 4)),
    "tar is finite": (
        lambda: bounds.online_to_batch(1.0, 4, 9, 0.1),
        lambda: bounds.online_to_batch(np.inf, 4, 9, 0.1),
    ),
    "D* ≤ D": (
        lambda: fli_online_rate(0.5, 1.0, 1.0, 100, 9, 1.0),
        lambda: fli_online_rate(1.5, 1.0, 1.0, 100, 9, 1.0),
    ),
    "update vectors are the optima, at finite distances from phi": (
        lambda: certified(FMRL(similarity=METRIC)),
        lambda: certified(FMRL(update=FLIOnline(), similarity=METRIC)),
    ),
    "no task lies further than D": (
        lambda: bounds.ewoo([1.0], [0.9], **EWOO), lambda: bounds.ewoo([1.0], [1.1], **EWOO),
    ),
    "no task weighs more than EWOO took": (
        lambda: bounds.ewoo([1.0, 1.0], [0.5, 0.5], **EWOO),
        lambda: bounds.ewoo([1.0, 1.5], [0.5, 0.5], **EWOO),
    ),
    "no phi lies further from the path than the width": (
        lambda: farther(1.0), lambda: farther(100.0),
    ),
    "no start lies further from an optimum than the width": (
        lambda: bounds.mixture([[0.0, 0.5]], 1.0, 1.0),
        lambda: bounds.mixture([[0.0, 0.6]], 1.0, 1.0),
    ),
    "no update vector was clipped": (lambda: private(None), lambda: private(0.2)),
    "ε ≥ 4βG/(α√m)": (lambda: grown(1.0), lambda: grown(0.01)),
    "ε ≥ 24βG/(α√m)": (lambda: grown(9.0, True), lambda: grown(0.01, True)),
    "losses of one linear form, in l2": (lambda: rows(None), lambda: rows(fmrl.Softmax(2))),
    "the run's tasks and the new ones have the same m, or the same distribution of m": (
        lambda: moved(), lambda: moved(m=5),
    ),
}  # fmt: skip
# Names that several places make: what the others say is looked at too.
MORE = [
    ("convex losses", lambda: moved(), lambda: moved(Unknown())),
    ("Lipschitz losses", lambda: certified(), lambda: certified(tasks=own_tasks())),
    ("the first task has gradients", lambda: bounds.known([1.0], 1.0, deviation=0, C=0, first=0),
     lambda: bounds.known([0.0], 1.0, deviation=0, C=0, first=0)),
    ("D̄ ≤ D* ≤ D", lambda: bounds.exact(0.5, 1.0, 1.0, 4, 9),
     lambda: bounds.exact(1.5, 1.0, 1.0, 4, 9)),
    ("optima in the domain", lambda: certified(), lambda: certified(FMRL(Plain(1.0)))),
    ("the first guess covers the first task", lambda: certified(FMRL(update=FLIOnline())),
     lambda: certified(FMRL(update=FLIOnline(), similarity=Doubling(0.1, 1.1, first=0.01)))),
]  # fmt: skip


def own_tasks():
    return [fmrl.Task(t.X, t.open().target[:, 0], loss=Unknown()) for t in regression()]


def status(found, name):
    """The worst that is said of a name by a bound, a certificate, or bounds with refusals; None
    where nothing is.
    """
    given, refused = getattr(found, "assumptions", ()), getattr(found, "refused", ())
    printed = getattr(found, "bounds", ())
    if isinstance(found, tuple):
        printed, refused = found
    said = [a.status for a in (*given, *(a for b in printed for a in b.assumptions))
            if a.name == name]  # fmt: skip
    said += ["false" for _, why in refused if f"{name}: " in why]
    return max(said, key=RANK.index, default=None)


def test_every_line_that_can_say_checked_has_a_case():
    found = list(lines())
    assert len(found) > 50  # the scan sees them
    can = {name: where for name, checks, where in found if checks}
    missing = {
        name: at for name, at in can.items() if not any(re.fullmatch(name, c) for c in CASES)
    }
    assert not missing
    stale = [c for c in CASES if not any(re.fullmatch(name, c) for name in can)]
    assert not stale


@pytest.mark.parametrize(
    "name, good, bad",
    [*((name, *pair) for name, pair in CASES.items()), *MORE],
    ids=[*CASES, *(f"{name}, more {i}" for i, (name, *_) in enumerate(MORE))],
)
def test_a_checked_line_turns(name, good, bad):
    """Checked here, and false, assumed or withheld there."""
    assert status(good(), name) == "checked"
    assert status(bad(), name) in ("false", "assumed", None)


FALSE = [
    name for name in CASES
    if name not in (
        "R is smooth", "distance from update vectors to optima", "the same G and m in every task",
        "ε = D(1 + log T)/T and γ = (1 + log T)/log T", "no update vector was clipped",
        "losses of one linear form, in l2", "convex losses",
    )
]  # fmt: skip


@pytest.mark.parametrize("name", FALSE)
def test_a_checked_line_turns_false(name):
    """The others are withheld with their bounds, or assumed."""
    assert status(CASES[name][1](), name) == "false"


def test_bare_claims_are_assumed():
    """What a function is told and cannot look at."""
    assert status(theorem(beta=2.0), "R is smooth") == "assumed"
    tuned = bounds.exact(0.5, 1.0, 1.0, 4, 9)
    assert status(tuned, "ε = D(1 + log T)/T and γ = (1 + log T)/log T") == "assumed"
    assert status(tuned, "convex losses") == status(tuned, "Lipschitz losses") == "assumed"


def test_a_new_line_without_a_case_is_seen():
    """The scan is not blind: it finds names behind variables, constants and f-strings."""
    found = {name for name, _, _ in lines()}
    for text in ("growth of the measured deviation", "ε ≥ 4βG/(α√m)", "optima in the domain",
                 "losses in [0, 3]", "the first guess covers the first task",
                 "B_R is that of Ball", "no update vector was clipped"):  # fmt: skip
        assert any(re.fullmatch(name, text) for name in found), text
