"""Rules of the user's own on a cluster: the numbers of `fmrl.run`, whatever they override."""

from dataclasses import dataclass

import numpy as np
import pytest
from instances import same

import fmrl
from fmrl.cluster import Ray
from fmrl.cluster.workers import Here


@dataclass(frozen=True)
class Halfway(fmrl.MetaUpdate):
    """Its memory is None."""

    def init(self, domain, phi):
        return phi, None

    def update(self, domain, phi, memory, end):
        return 0.5 * phi + 0.5 * end.theta, None


@dataclass(frozen=True)
class Nested(fmrl.MetaUpdate):
    """Its memory is a tuple in a tuple, with a flag."""

    def init(self, domain, phi):
        return phi, (0, (phi, True))

    def update(self, domain, phi, memory, end):
        count, (first, flag) = memory
        return 0.9 * phi + 0.1 * end.theta, (count + 1, (first, flag))


@dataclass(frozen=True)
class SometimesMerged(fmrl.FollowLeader):
    """Blocks of some sizes merge, others do not."""

    def merged(self, ends):
        return None if ends.tasks == 5 else super().merged(ends)


@dataclass(frozen=True)
class OtherMeasure(fmrl.Doubling):
    """Overrides update and measure, and inherits follow."""

    def measure(self, domain, phi, end):
        return 2 * super().measure(domain, phi, end)

    def update(self, domain, phi, guess, memory, end):
        found, memory = super().update(domain, phi, guess, memory, end)
        return found / 2, memory


class Duck:
    """No base class, and an attribute that happens to be called measure."""

    measure = 3

    def __repr__(self):
        return "Duck()"

    def init(self, domain, phi):
        return domain.reach(phi), ()

    def update(self, domain, phi, guess, memory, end):
        return 0.9 * guess + 0.01, ()


RULES = [
    {"meta": Halfway()},
    {"meta": Nested()},
    {"meta": SometimesMerged()},
    {"similarity": OtherMeasure(0.1, 1.2)},
    {"similarity": Duck()},
    {"meta": fmrl.Discounted(0.2)},
    {"meta": fmrl.Window(4)},
    {"meta": fmrl.Restart(6)},
    {"meta": fmrl.Mixture([fmrl.FollowLeader(), fmrl.Discounted(0.3)], share=0.1)},
    {"meta": fmrl.Conditional([1, 2], 0.5)},
    {"meta": fmrl.Conditional([1], 0.5), "update": fmrl.FLIOnline()},
    {"meta": fmrl.Conditional([1], 0.5), "similarity": fmrl.PerCoordinate(0.3)},
]


@pytest.mark.parametrize("rules", RULES, ids=repr)
def test_every_rule_gives_the_numbers_of_run(rules, tmp_path):
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(4, 3)), rng.normal(size=4)) for _ in range(17)]
    tasks = [fmrl.Task(X, y, loss=fmrl.Squared()) for X, y in rows]
    algo = fmrl.FMRL(**rules)
    expected = fmrl.run(algo, tasks)
    state = algo.init(np.zeros(3))
    for task, regret in zip(tasks, expected.regret, strict=True):
        state, round = algo.step(state, task)
        np.testing.assert_allclose(round.regret, regret, atol=1e-9)
    played = Ray(out=tmp_path / "out", block=5).play(algo, tasks, mapper=Here())
    np.testing.assert_allclose(played.history().regret, expected.regret, atol=1e-9)
    np.testing.assert_allclose(played.state.phi, expected.state.phi, atol=1e-9)
    for block in (5, 8):  # a meta-batch inside a block, and over several
        batched = fmrl.run(algo, tasks, meta_batch=8)
        out = tmp_path / f"batched{block}"
        played = Ray(out=out, block=block).play(algo, tasks, meta_batch=8, mapper=Here())
        np.testing.assert_allclose(played.history().regret, batched.regret, atol=1e-9)
        np.testing.assert_allclose(played.state.phi, batched.state.phi, atol=1e-9)


BASE = fmrl.FMRL(fmrl.Ball(2.0), fmrl.OGD(), similarity=fmrl.AverageDeviation())
SHAPED = fmrl.FMRL(fmrl.Ball(2.0), meta=fmrl.Conditional([1]), similarity=fmrl.PerCoordinate(0.3))
ENSEMBLES = [fmrl.Hedge([BASE, SHAPED]), fmrl.Centres(2, BASE)]


@pytest.mark.parametrize("algo", ENSEMBLES, ids=lambda a: type(a).__name__)
def test_ensembles_on_a_cluster_and_resumed(algo, tmp_path):
    rng, tasks = np.random.default_rng(0), []
    for t in range(30):
        X = rng.normal(size=(4 + t % 2, 3))
        y = X @ np.full(3, (-0.5, 0.5)[t % 2]) + 0.1 * rng.normal(size=len(X))
        tasks.append(fmrl.Task(X, y, loss=fmrl.Squared()))
    expected = fmrl.run(algo, tasks)
    out = tmp_path / "out"
    whole = Ray(out=out, block=7).play(algo, tasks, mapper=Here(), keep="all")
    same(whole.history(), expected)
    # Stopped after two blocks, with a state lost and one torn: the same bits.
    for number in (2, 3, 4):
        (out / "rounds" / f"{number:08d}.parquet").unlink()
    (out / "rounds" / "00000000.npz").unlink()
    (out / "rounds" / "00000001.npz").write_bytes(b"torn")
    for _ in range(2):  # the second time nothing is left to do
        again = Ray(out=out, block=7).play(algo, tasks, mapper=Here(), keep="all")
        assert np.array_equal(again.history().regret, whole.history().regret)
        assert np.array_equal(again.state.phi, whole.state.phi)
    assert again.ledger.reused == 10  # five blocks, solved and played
    late = fmrl.run(algo, tasks[:13])
    rest = Ray(out=tmp_path / "rest", block=7).play(
        algo, tasks[13:], state=late.state, mapper=Here(), keep="all"
    )
    np.testing.assert_allclose(rest.history().regret, expected.regret[13:], atol=1e-10)
    with pytest.raises(fmrl.FMRLError, match="another run"):
        Ray(out=out, block=7).play(algo, tasks, state=algo.init(np.ones(3) / 9), mapper=Here())
    with pytest.raises(fmrl.FMRLError, match="task after task"):
        fmrl.run(algo, tasks, meta_batch=2, engine="ray")
