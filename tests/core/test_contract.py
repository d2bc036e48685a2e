"""The contract every value keeps: one table over all domains, losses, learners, updates,
meta-updates and similarity rules.
"""

import dataclasses
import importlib
import inspect
import pkgutil
import subprocess
import sys

import numpy as np
import pytest
from instances import (
    DOMAINS,
    LOSSES,
    METAS,
    UPDATES,
    WITHIN,
    make_domain,
    make_loss,
    make_tasks,
    width,
)

import fmrl
import fmrl.core

SIMILARITIES = (
    fmrl.Doubling(0.1, 1.1, first=1.0), fmrl.ReleasedDoubling(0.1, 1.1), fmrl.Known(0.5),
    fmrl.AverageDeviation(first=0.5),
)  # fmt: skip
VALUES = [
    *(make_domain(kind, 3, np.random.default_rng(0)) for kind in DOMAINS),
    *(make_loss(kind) for kind in LOSSES),
    fmrl.OneVsAll(("cat", "dog")),
    fmrl.Softmax([1, 2, 5]),
    fmrl.Logistic(("no", "yes")),
    *WITHIN,
    *UPDATES,
    *METAS,
    fmrl.Fixed([0.1, 0.2]),
    *SIMILARITIES,
    fmrl.Doubling(0.1, 1.1),
    fmrl.FMRL(),
    fmrl.presets.released(),
    fmrl.presets.omniscient([0.1, 0.0], 0.3),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_frozen_hashable_and_prints_itself(value):
    assert dataclasses.is_dataclass(value)
    again = eval(repr(value), vars(fmrl))
    assert again == value and hash(again) == hash(value) and repr(again) == repr(value)
    names = [f.name for f in dataclasses.fields(value)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, names[0] if names else "anything", 1)


@pytest.mark.parametrize("domain_kind", DOMAINS)
@pytest.mark.parametrize("kind", LOSSES)
def test_every_composition(domain_kind, kind):
    """domain × loss × learner × update × meta × similarity: shapes, membership, records, and the
    theorem on each task. A domain and a loss see half of the similarity rules together.
    """
    rng = np.random.default_rng(0)
    dim = width(kind, 2)
    domain = make_domain(domain_kind, dim, rng)
    tasks = make_tasks(kind, 2, 2, rng, most=4)
    if domain_kind == "euclidean" and kind not in ("hinge", "squared"):
        with pytest.raises(fmrl.FMRLError, match=r"no finite optimum|no minimum"):
            fmrl.run(fmrl.FMRL(domain, similarity=SIMILARITIES[0]), [*tasks, tasks[0]])
        return
    lipschitz = 2.0 if domain_kind == "euclidean" else None
    tasks = [Remembered(task, domain) for task in tasks]
    heavy = domain_kind not in ("ball", "shifted ball", "euclidean") or kind == "hinge"
    half = (DOMAINS.index(domain_kind) + LOSSES.index(kind)) % 2
    for number, (within, update, meta, similarity) in enumerate(combinations()):
        if isinstance(within, fmrl.FTRL) and heavy:
            if number % 20:
                continue  # each of its actions is an interior-point solve: one in twenty is enough
        elif number % 2 == half:
            continue
        algo = fmrl.FMRL(domain, within, update, meta, similarity, lipschitz)
        if domain.norm == "l1" and isinstance(meta, fmrl.AdaptiveOGD):
            with pytest.raises(fmrl.FMRLError, match="FollowLeader"):
                algo.init(domain.middle(np.zeros(dim)))
            continue
        state = algo.init(domain.middle(np.zeros(dim)))
        for t, task in enumerate(tasks):
            phi, (state, happened) = state.phi, algo.step(state, task)
            assert (state.tasks, state.phi.shape, np.shape(state.guess)) == (t + 1, (dim,), ())
            assert all(map(domain.contains, (state.phi, happened.theta, happened.optimum)))
            assert happened.losses.shape == (int(task.rounds),) and happened.rounds == task.rounds
            assert happened.gap >= 0 and happened.guess > 0 and np.isfinite(happened.eta)
            assert happened.regret >= -happened.gap - 1e-9 or not isinstance(within, fmrl.FTRL)
            if lipschitz is None:
                assert happened.regret <= happened.bound + 1e-8 * (1 + abs(happened.bound)), algo
            assert np.all(np.isfinite(happened.losses))
            step = happened.theta - phi
            far = relative_entropy(happened.theta, phi) if domain.norm == "l1" else step @ step / 2
            if abs(far - happened.guess**2) > 1e-9:
                assert bool(happened.violated) == (far > happened.guess**2), algo


def test_a_violation_is_an_update_vector_further_than_guessed():
    """½·(0.5 − 0)² = 0.125 against D²."""
    task = fmrl.Task([[1.0]], [0.5], loss=fmrl.Squared())
    for D, expected in ((0.35, True), (0.36, False)):
        algo = fmrl.FMRL(similarity=fmrl.Known(D))
        assert bool(algo.step(algo.init([0.0]), task)[1].violated) is expected
        assert fmrl.run(algo, [task, task], np.zeros(1)).violations.tolist() == [expected, False]
    step = fmrl.FMRL(similarity=fmrl.KnownStep(1e-3))
    assert not fmrl.run(step, [task] * 3).violations.any()  # a step guesses no distance


def relative_entropy(theta, phi):
    some = theta > 0
    with np.errstate(divide="ignore"):
        return float(np.sum(theta[some] * np.log(theta[some] / phi[some])))


class Remembered:
    """A task that solves its optimum once, because no composition changes it."""

    def __init__(self, task, domain):
        self.game, self.rounds = task.open(), task.open().rounds
        self.best = self.game.hindsight(domain)

    def open(self):
        return self

    def hindsight(self, domain):
        return self.best

    def __getattr__(self, name):
        return getattr(self.game, name)


def combinations():
    for within in WITHIN:
        for update in UPDATES:
            for meta in METAS:
                for similarity in SIMILARITIES:
                    yield within, update, meta, similarity


def members():
    for name in fmrl.__all__:
        value = getattr(fmrl, name)
        if not getattr(value, "__module__", "fmrl.core").startswith("fmrl.core"):
            continue
        yield name, value
        if inspect.isclass(value):
            for key, member in inspect.getmembers(value):
                if not key.startswith("_") and (
                    inspect.isfunction(member) or isinstance(member, property)
                ):
                    yield f"{name}.{key}", member


@pytest.mark.parametrize("name", [name for name, _ in members()])
def test_everything_public_is_documented(name):
    value = fmrl
    for part in name.split("."):
        value = (
            inspect.getattr_static(value, part) if inspect.isclass(value) else getattr(value, part)
        )
    owner = getattr(fmrl, name.split(".")[0])
    text = inspect.getdoc(value) or inspect.getdoc(getattr(owner, name.split(".")[-1], None))
    assert text and len(text) > 10 and not text.startswith(name.split(".")[-1] + "("), name


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(fmrl.core.__path__)])
def test_every_module_says_what_it_is(name):
    module = importlib.import_module(f"fmrl.core.{name}")
    assert module.__doc__
    for key, value in vars(module).items():
        if (
            not key.startswith("_")
            and getattr(value, "__module__", None) == module.__name__
            and callable(value)
        ):
            assert inspect.getdoc(value), key


def test_public_names_of_the_design():
    names = {type(value).__name__ for value in VALUES} | {"Task", "run", "presets"}
    assert names <= set(fmrl.__all__)
    for name in ("paper", "released", "single_task", "strawman", "omniscient"):
        assert inspect.getdoc(getattr(fmrl.presets, name))
    assert {"regret", "guess", "eta", "losses", "theta", "optimum", "gap"} <= set(
        fmrl.Round._fields
    )


BARE = """
import sys

class Block:  # as where no extra is installed
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "ray", "flwr", "dp_accounting", "pyarrow", "PIL"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Block())
from fmrl import *
print(FMRL(), MetaClassifier.__name__, "deep" in dir(sys.modules["fmrl"]))
"""


def test_import_of_everything_needs_no_extra():
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("MetaClassifier True")
