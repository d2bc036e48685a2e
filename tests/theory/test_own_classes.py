"""What is the user's own is assumed by its name, and what is called checked was checked on the
tasks that were played.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from test_certificate import names, regression

import fmrl
from fmrl import FMRL, certify
from fmrl.core.losses import Weighted
from fmrl.core.samples import identify
from fmrl.core.values import foreign
from fmrl.theory.adversary import LowerBound

STATUS = ("convex losses", "Lipschitz losses")


def status(certificate, *wanted):
    found = {a.name: a for a in certificate.assumptions}
    return [found[name].status for name in wanted]


def is_guarantee(certificate):
    """Whether a printed bound is above what was measured."""
    return all(certificate.slack(b)[0] >= 0 for b in certificate.bounds)


@dataclass(frozen=True)
class Weak(fmrl.Ball):
    """A ball whose R is a thousandth of what theorems need."""

    def divergence(self, theta, phi):
        return 1e-3 * super().divergence(theta, phi)


@dataclass(frozen=True)
class Plain(fmrl.Ball):
    """A ball under another name."""


@dataclass(frozen=True)
class Strong(fmrl.Ball):
    """A ball with R = ‖·‖²: strongly convex, and not the one that D* is computed for."""

    def divergence(self, theta, phi):
        return 2 * super().divergence(theta, phi)

    def argmin(self, phi, z):
        return self.project(phi - z / 2)


@dataclass(frozen=True)
class Ring(fmrl.Ball):
    """A ball with a hole, which is not convex."""

    def project(self, theta):
        theta = super().project(theta)
        length = np.linalg.norm(theta, axis=-1, keepdims=True)
        return np.where(length < 0.1, 0.1 * (theta + 1e-9) / (length + 1e-9), theta)

    def contains(self, theta, slack=1e-6):
        inside = super().contains(theta, slack)
        return inside & (np.linalg.norm(theta, axis=-1) >= 0.09)


@dataclass(frozen=True)
class Cap(fmrl.Logistic):
    """min(logistic, 0.7), which is not convex and does not say so."""

    def value(self, z, target):
        return np.minimum(super().value(z, target), 0.7)

    def slope(self, z, target):
        low = super().value(z, target)[..., None] < 0.7
        return np.where(low, super().slope(z, target), 0.0)


def pushed(m=16):
    """A task of the cost (1, 0), again and again."""
    return fmrl.Task(np.tile([[1.0, 0.0]], (m, 1)), loss=fmrl.Linear())


def test_a_weak_divergence_of_ones_own_is_caught():
    """TAR 31 where 0.44 was printed as a guarantee."""
    algo = FMRL(Weak(1.0), meta=fmrl.Fixed(), similarity=fmrl.Known(0.02))
    certificate = certify(fmrl.run(algo, [pushed()] * 3, np.array([1.0, 0.0])))
    assert certificate.interval[1] > 30 and not certificate.applicable
    assert "B_R of Weak is less than ½‖·‖²" in certificate.reason
    lean = fmrl.run(algo, [pushed()] * 3, np.array([1.0, 0.0]), keep="scalars")
    name = "the set is convex and R is 1-strongly convex"
    assert status(certify(lean), name) == ["assumed"]
    assert "31.4 was measured: not all is true of" in certify(lean).reason
    assert name in certify(lean).reason


def test_a_domain_of_ones_own_is_taken_on_trust():
    tasks = regression()
    own, known = (certify(fmrl.run(FMRL(d), tasks)) for d in (Plain(1.0), fmrl.Ball(1.0)))
    assert [b.total for b in own.bounds] == [b.total for b in known.bounds]
    trusted = {a.name for a in own.assumptions if a.status == "assumed"}
    convex = "the set is convex and R is 1-strongly convex"
    steps = "Lipschitz losses", "within-task learner has a regret bound"
    assert trusted == {convex, "B_R is that of Ball", "optima in the domain", *steps}
    for bound in own.bounds:
        assert convex in {a.name for a in bound.assumptions}
    assert not {a.name for a in known.assumptions} & {convex, "B_R is that of Ball"}


def test_several_compositions_on_a_domain_of_ones_own():
    """A mean of actions lies in a convex set, and that the set is convex is taken on trust."""
    members = [FMRL(Plain(1.0)), FMRL(Plain(1.0), similarity=fmrl.KnownStep(0.0))]
    found = certify(fmrl.run(fmrl.Hedge(members), regression()))
    name = "the set is convex and R is 1-strongly convex"
    assert found.applicable and status(found, name) == ["assumed"]
    assert found.violations is None


def test_a_divergence_that_is_not_its_parents_has_no_theorem_of_its_spread():
    """R is strongly convex, so a task's own bound holds; D* is that of another R."""
    algo = FMRL(Strong(1.0), similarity=fmrl.Doubling(0.1, 1.1))
    certificate = certify(fmrl.run(algo, regression()))
    assert set(names(certificate)) == {"per-task sum", "per-task sum, sharp"}
    assert any("B_R is that of Ball: not that of Strong" in why for _, why in certificate.refused)
    assert is_guarantee(certificate)


def test_a_set_of_ones_own_that_is_not_convex_is_caught():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0]] * 4)
    tasks = [fmrl.Task(row[None], loss=fmrl.Linear()) for row in rows]
    certificate = certify(fmrl.run(FMRL(Ring(1.0)), tasks, np.array([0.2, 0.0])))
    assert not certificate.applicable
    assert "Ring lacks a point between two of its own" in certificate.reason


@pytest.mark.parametrize("keep", ["all", "vectors", "scalars"])
@pytest.mark.parametrize("lipschitz", [None, 1e-3])
def test_tasks_that_were_never_played_are_refused(keep, lipschitz):
    """A G that is too small was called checked, on tasks that are a thousandth of those played."""
    tasks = regression()
    small = [fmrl.Task(t.X / 1e3, t.open().target[:, 0] / 1e3, loss=t.loss) for t in tasks]
    history = fmrl.run(FMRL(lipschitz=lipschitz), tasks, keep=keep)
    assert is_guarantee(certify(history, tasks))
    for other in (small, tasks[::-1], [*tasks[:-1], tasks[0]]):
        with pytest.raises(fmrl.FMRLError, match=r"task \d+: is not the task that was played"):
            certify(history, other)


@pytest.mark.parametrize("keep", ["all", "vectors", "scalars"])
def test_several_orders_are_compared_too(keep):
    tasks, orders = regression(), np.array([np.arange(12), np.arange(12)[::-1]])
    history = fmrl.run(FMRL(lipschitz=1e-3), tasks, orders=orders, keep=keep)
    assert status(certify(history, tasks, order=0), "Lipschitz losses") == ["false"]
    assert certify(history, tasks[::-1], order=1).interval == certify(history, order=1).interval
    for given, order in ((tasks[::-1], 0), (tasks, 1)):
        with pytest.raises(fmrl.FMRLError, match="is not the task that was played"):
            certify(history, given, order=order)


def variants(task):
    """Tasks that differ from one in as little as a label, a row's place, a sign or the loss."""
    X, y = np.array(task.X), np.array(task.open().target[:, 0])
    yield fmrl.Task(X, np.where(np.arange(len(y)) == 3, y + 1e-9, y), loss=task.loss)
    yield fmrl.Task(X[::-1], y[::-1], loss=task.loss)
    yield fmrl.Task(-X, -y, loss=task.loss)
    yield fmrl.Task(X[:, ::-1], y, loss=task.loss)
    yield fmrl.Task(1e-300 * X, 1e-300 * y, loss=task.loss)
    yield fmrl.Task(X, 1.1 * y, loss=task.loss)
    yield fmrl.Task(X, y, loss=Unknown())


class Unknown(fmrl.Squared):
    """Somebody else's loss, equal to a known one."""


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_smallest_change_of_a_task_is_seen(dtype):
    task = regression(1)[0]
    task = fmrl.Task(task.X.astype(dtype), task.open().target[:, 0], loss=task.loss)
    history = fmrl.run(FMRL(), [task] * 3, keep="scalars")
    certify(history, [task] * 3)
    for number, other in enumerate(variants(task)):
        if dtype == "float64" or number:  # 1e-9 is lost in float32
            with pytest.raises(fmrl.FMRLError, match="task 1"):
                certify(history, [task, other, task])


def test_the_kind_of_loss_is_seen():
    """Losses whose rows and targets are written alike."""
    X, y = np.eye(2), [0, 1]
    for pair in ((fmrl.Logistic(), fmrl.Squared()), (fmrl.OneVsAll(2), fmrl.Softmax(2))):
        for played, given in (pair, pair[::-1]):
            history = fmrl.run(FMRL(), [fmrl.Task(X, y, loss=played)])
            with pytest.raises(fmrl.FMRLError, match="task 0: is not the task that was played"):
                certify(history, [fmrl.Task(X, y, loss=given)])


def test_faint_rows_are_seen_beside_their_labels():
    """One number for both would lose rows of 1e-150 in labels of 1."""
    faint = [fmrl.Task([[s, 2 * s]], [1], loss=fmrl.Hinge()) for s in (1e-150, 1e-151)]
    for one, other in (faint, faint[::-1]):
        history = fmrl.run(FMRL(), [one, one])
        certify(history, [one, one])
        with pytest.raises(fmrl.FMRLError, match="task 1: is not the task that was played"):
            certify(history, [one, other])


def test_the_checksum_is_the_same_in_every_stack():
    """Padded, alone, in orders, in a meta-batch and read from a file."""
    rng, tasks = np.random.default_rng(0), []
    for m in (1, 2, 3, 5, 17):
        tasks.append(fmrl.Task(rng.normal(size=(m, 3)), rng.integers(0, 2, m), loss=fmrl.Hinge()))
    rows, targets = np.array([t.open().checksums() for t in tasks]).T
    online = FMRL(update=fmrl.FLIOnline())
    both = fmrl.Hedge([online, FMRL()])
    for history in (
        *(fmrl.run(algo, tasks) for algo in (FMRL(), online, both)),
        fmrl.run(online, tasks, meta_batch=5),
    ):
        np.testing.assert_allclose(history.row_checksum, rows, rtol=1e-12)
        np.testing.assert_allclose(history.target_checksum, targets, rtol=1e-12)
        assert np.all(history.convex == 1)
    both = fmrl.run(online, tasks, orders=np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]))
    np.testing.assert_allclose(both.row_checksum, [rows, rows[::-1]], rtol=1e-12)


def test_a_saved_run_knows_its_tasks(tmp_path):
    tasks = regression()
    fmrl.save_history(fmrl.run(FMRL(), tasks, keep="scalars"), tmp_path / "run.npz")
    loaded = fmrl.load_history(tmp_path / "run.npz")
    assert status(certify(loaded, tasks), *STATUS) == ["checked"] * 2
    with pytest.raises(fmrl.FMRLError, match="is not the task that was played"):
        certify(loaded, tasks[::-1])


def test_a_weighted_loss_of_ones_own_is_looked_into():
    """TAR 2,800 where 1,581 was printed under "convex losses: checked"."""
    task = fmrl.Task(np.full((4000, 1), 10.0), np.ones(4000), loss=Weighted(Cap()))
    algo = FMRL(similarity=fmrl.Known(1.0))
    history = fmrl.run(algo, [task, task], np.array([-1.0]))
    for given in (None, [task, task]):
        certificate = certify(history, given)
        assert not certificate.applicable
        assert "not all is true of convex losses, Lipschitz losses" in certificate.reason
        assert status(certificate, *STATUS) == ["assumed"] * 2
    details = [a.detail for a in certify(history, [task, task]).assumptions]
    assert "Cap: not a loss of this library" in details


class Ramp:
    """A reactive task of a non-convex loss, that calls itself linear."""

    loss = fmrl.Linear()

    def __init__(self, m):
        self.m = m

    def open(self):
        return self

    @property
    def length(self):
        return self.m

    @property
    def rounds(self):
        return np.array(float(self.m))

    def reveal(self, i, theta):
        flat = theta[..., 0] > -0.5
        return np.where(flat, 1.0, 0.0), np.zeros_like(theta)

    def lipschitz(self, domain):
        return np.array(1.0)

    def hindsight(self, domain):
        return fmrl.core.solve.Solution(np.array([-1.0]), np.array(0.0), np.array(0.0))


def test_a_reactive_task_that_has_a_known_loss_is_not_known():
    """TAR 20,000 where 354 was printed under "convex losses: checked"."""
    ramp = Ramp(20_000)
    history = fmrl.run(FMRL(similarity=fmrl.Known(1.0)), [ramp, ramp], np.array([0.0]))
    for given in (None, [ramp, ramp]):
        certificate = certify(history, given)
        assert not certificate.applicable
        assert "not all is true of convex losses, Lipschitz losses" in certificate.reason
        assert status(certificate, *STATUS) == ["assumed"] * 2
    with pytest.raises(fmrl.FMRLError, match="is not the task that was played"):
        certify(history, [ramp, pushed(20_000)])


def test_rows_cannot_stand_for_a_reactive_task_nor_it_for_them():
    adversary = LowerBound(0.5, 1.0, 4, tasks=2)
    rows = [fmrl.Task(np.eye(3)[[0, 1, 2, 0]], loss=fmrl.Linear())] * 2
    algo = FMRL()
    for played, given in ((adversary, rows), (rows, adversary)):
        history = fmrl.run(algo, played, np.zeros(3))
        with pytest.raises(fmrl.FMRLError, match="is not the task that was played"):
            certify(history, given)


class Leaves(fmrl.MetaUpdate):
    """A meta-update that walks out of the domain."""

    def update(self, domain, phi, memory, end):
        return phi + 10.0, memory


class Half(fmrl.Doubling):
    """A similarity rule of somebody's own."""


@pytest.mark.parametrize(
    "change, kind, found",
    [
        ({"meta": Leaves()}, "Leaves", "false"),
        ({"meta": type("Still", (fmrl.Fixed,), {})()}, "Still", "assumed"),
        ({"similarity": Half(0.1, 1.1)}, "Half", "assumed"),
        ({"meta": fmrl.Mixture([fmrl.LastUpdate(), Leaves()])}, "Leaves", "assumed"),
    ],
)
def test_rules_of_ones_own_are_named(change, kind, found):
    name = "phi and the step are known before each task, and phi is in the domain"
    certificate = certify(fmrl.run(replace(FMRL(), **change), regression()))
    (line,) = (a for a in certificate.assumptions if a.name == name)
    assert line.status == found and (kind in line.detail or found == "false")
    assert certificate.applicable == (found != "false")


def test_what_is_foreign_is_found_inside():
    inner = FMRL(Plain(1.0), meta=Leaves())
    assert foreign(fmrl.Hedge([inner, inner])) == ["Plain", "Leaves"] * 2
    assert foreign(Weighted(Cap())) == ["Cap"] and foreign(fmrl.OneVsAll(["a", "b"])) == []
    assert foreign(FMRL(fmrl.Simplex(), meta=fmrl.Mixture([fmrl.Window(2), fmrl.Fixed()]))) == []
    assert float(identify(object(), np.zeros(()))["convex"]) == 0


@dataclass(frozen=True)
class Dull(fmrl.Ball):
    """A ball that calls gradients a thousandth of what they are."""

    def dual(self, gradient):
        return 1e-3 * super().dual(gradient)


@dataclass(frozen=True)
class Stuck(fmrl.Ball):
    """A ball whose steps lead nowhere."""

    def argmin(self, phi, z):
        return phi + 0 * z


@pytest.mark.parametrize("domain", [Dull(1.0), Stuck(1.0)], ids=repr)
def test_what_the_methods_of_a_domain_decide_is_taken_on_trust(domain):
    """TAR 66.7 where 11.7 was printed under "within-task learner …: checked"."""
    tasks = [fmrl.Task([[1.0, 0.0]] * 100, loss=fmrl.Linear()) for _ in range(3)]
    algo = FMRL(domain, similarity=fmrl.Known(1.0))
    found = certify(fmrl.run(algo, tasks, np.array([1.0, 0.0])), tasks)
    names = "Lipschitz losses", "within-task learner has a regret bound"
    assert status(found, *names) == ["assumed"] * 2
    assert is_guarantee(found)


def test_a_rule_that_is_no_value_is_the_users_own():
    class Duck:
        def init(self, domain, phi):
            return phi, ()

        def update(self, domain, phi, memory, end):
            return phi, ()

    tasks = regression()
    found = certify(fmrl.run(FMRL(meta=fmrl.Mixture([Duck(), Duck()])), tasks), tasks)
    assert any("Duck" in a.detail and a.status == "assumed" for a in found.assumptions)


def test_rows_that_weigh_more_than_the_most_are_refused():
    """TAR 100 under a bound of 1.77, "Lipschitz losses: checked"."""
    with pytest.raises(fmrl.FMRLError, match="rows weigh 1"):
        fmrl.Task([[100.0, 0.0]], [1], loss=Weighted(fmrl.Logistic(), 1e-3))


def test_several_compositions_whose_bound_the_run_contradicts():
    """The mean of actions may cost more than the mean of their costs, where losses are capped."""
    rng, refused = np.random.default_rng(0), 0
    still = FMRL(similarity=fmrl.KnownStep(0.0))
    for _ in range(60):
        rows = ((3 * rng.normal(size=(3, 2)), rng.integers(0, 2, 3)) for _ in range(2))
        tasks = [fmrl.Task(X, 2 * y - 1, loss=Cap()) for X, y in rows]
        found = certify(fmrl.run(fmrl.Hedge([FMRL(similarity=fmrl.Known(1.0)), still]), tasks))
        assert all(found.slack(b)[0] >= -1e-9 for b in found.bounds)
        refused += "not all is true of convex losses" in found.reason
    assert refused > 0
